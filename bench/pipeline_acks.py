"""What an append feels of a pipeline on the same cores: acks at a fixed load, with and without.

The load is open: an append is due at its time whether or not the one before was acknowledged, and
its latency counts from there. Times with and without work take turns.
"""

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.engine.target import append_message
from bench.http.server import BASIN, Server, serving
from bench.pipeline_log import CLOCK

CONNECTIONS: Final = 8
BODY_BYTES: Final = 1000
SETTLE_SECS: Final = 1.0  # behind the opening of the gate


def measure(root: Path, busy_root: Path, options: Any, master: str) -> dict[str, Any]:
    """Take turns: without, with, without, with."""
    gate = busy_root.parent / "gate"
    without: list[dict[str, float]] = []
    beside: list[dict[str, float]] = []
    with (
        serving("disk", root.parent) as server,
        server.stream() as path,
        _busy(busy_root, gate, master),
    ):
        asyncio.run(_load(server, path, options.ack_rate, 1.0))
        for _ in range(options.ack_repeats):
            without.append(_measured(server, path, options))
            gate.touch()
            _pause(SETTLE_SECS)
            try:
                beside.append(_measured(server, path, options))
            finally:
                gate.unlink()
            _pause(SETTLE_SECS * 4)  # a run that is under way ends
    alone, together = _medians(without), _medians(beside)
    return {
        "appends_per_sec": options.ack_rate,
        "master": master,
        "without": alone,
        "beside": together,
        "p50_ratio": round(together["p50_ms"] / alone["p50_ms"], 2),
        "p99_ratio": round(together["p99_ms"] / alone["p99_ms"], 2),
        "repeats": {"without": without, "beside": beside},
    }


def _pause(secs: float) -> None:
    asyncio.run(CLOCK.sleep(secs))


@contextmanager
def _busy(root: Path, gate: Path, master: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.pipeline_busy", str(root), str(gate), master],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        for line in child.stdout:
            if line.strip() == "ready":
                break
        else:
            raise RuntimeError("the busy pipeline has ended")
        try:
            yield
        finally:
            child.stdin.close()
            child.wait(60)


def _measured(server: Server, path: str, options: Any) -> dict[str, float]:
    taken = sorted(uvloop.run(_load(server, path, options.ack_rate, options.ack_secs)))
    return {
        "appends": len(taken),
        "p50_ms": round(taken[len(taken) // 2] * 1000, 3),
        "p99_ms": round(taken[int(len(taken) * 0.99)] * 1000, 3),
        "max_ms": round(taken[-1] * 1000, 3),
    }


async def _load(server: Server, path: str, rate: int, secs: float) -> list[float]:
    body = append_message(1, BODY_BYTES)
    request = (
        f"POST /v1{path} HTTP/1.1\r\nhost: bench\r\ns2-basin: {BASIN}\r\n"
        "content-type: application/protobuf\r\naccept: application/protobuf\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    began = CLOCK.monotonic() + 0.1
    taken: list[float] = []

    async def appends(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        due = began + number / rate
        try:
            while due < began + secs:
                await CLOCK.sleep(max(due - CLOCK.monotonic(), 0))
                writer.write(request)
                await _answer(reader)
                taken.append(CLOCK.monotonic() - due)
                due += CONNECTIONS / rate
        finally:
            writer.close()

    await asyncio.gather(*map(appends, range(CONNECTIONS)))
    return taken


async def _answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}
