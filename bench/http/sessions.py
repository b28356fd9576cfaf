"""Sessions over HTTP/2: full batches in, one record at a time, and catch-up reads."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import uvloop

from bench.engine.case import Budget, Figures, latency_figures
from bench.engine.target import append_message
from bench.http.server import BASIN, HttpCase, Server
from bourn.cli.bench.content import Check, Source
from bourn.cli.bench.link import Way, linked, make_way
from bourn.limits import MIB
from bourn.wire.compression import Compression
from bourn.wire.frames import encode_frame

UNACKED_BYTES_MAX: Final = 8 * MIB
WARM_ROUNDS: Final = 100
STAMPED: Final = {"mode": "client-require", "uncapped": True}

SMALL_BATCHES: Final = Budget("mb_per_s", 100, "MB/s", at_least=True)
LARGE_BATCHES: Final = Budget("mb_per_s", 400, "MB/s", at_least=True)
ROUND_TRIP: Final = Budget("p50_ms", 0.5, "ms")
READ_MB: Final = Budget("mb_per_s", 524.3, "MB/s", at_least=True)  # 500 MiB/s
READ_RECORDS: Final = Budget("records_per_s", 600_000, at_least=True)
READ_CPU: Final = Budget("server_cpu_s_per_gb", 0.6, "s")


class Shape(msgspec.Struct, frozen=True):
    """What a stream is filled with before it is read."""

    record_bytes: int
    batch_records: int
    batches: int


LARGE: Final = Shape(8192, 128, 256)
SMALL: Final = Shape(256, 1000, 400)


def cases(buckets: tuple[str, ...], seconds: float) -> list[HttpCase]:
    """Appends, round trips, reads."""
    made = []
    for bucket in buckets:
        for name, body_bytes, budget in (
            ("1,000 x 100 B batches", 100, SMALL_BATCHES),
            ("1,000 x 1 KB batches", 1000, LARGE_BATCHES),
        ):
            arguments = {"body_bytes": body_bytes, "seconds": seconds}
            made.append(HttpCase("batches", name, bucket, append, arguments, (budget,)))
        made.append(
            HttpCase(
                "rounds",
                "1 x 100 B, each behind the ack before",
                bucket,
                rounds,
                {"seconds": seconds},
                (ROUND_TRIP,) if bucket == "memory" else (),
            )
        )
        made.append(HttpCase("reads", "8 KiB", bucket, read, {"shape": LARGE}, (READ_MB, READ_CPU)))
        made.append(HttpCase("reads", "256 B", bucket, read, {"shape": SMALL}, (READ_RECORDS,)))
    return made


def append(server: Server, body_bytes: int, seconds: float) -> Figures:
    """Send the same batch again and again, with some MiB under way."""
    frame = encode_frame(append_message(1000, body_bytes))
    with server.stream() as path:
        cpu, client, began = server.cpu_secs(), time.process_time(), time.perf_counter()
        until = began + seconds
        ahead = max(2, UNACKED_BYTES_MAX // len(frame))
        latencies = uvloop.run(_append(server, path, frame, until, ahead))
        took = time.perf_counter() - began
        cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    moved = len(latencies) * 1000 * body_bytes
    return {
        "mb_per_s": moved / took / 1e6,
        "records_per_s": len(latencies) * 1000 / took,
        **latency_figures(latencies),
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "server_cpu_s_per_gb": cpu / moved * 1e9,
        "seconds": took,
    }


def rounds(server: Server, seconds: float) -> Figures:
    """Send one record at a time, each when the one before is acked."""
    frame = encode_frame(append_message(1, 100))
    with server.stream() as path:
        cpu, client, began = server.cpu_secs(), time.process_time(), time.perf_counter()
        latencies = uvloop.run(_append(server, path, frame, began + seconds, 1))
        took = time.perf_counter() - began
        cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    return {
        **latency_figures(latencies[WARM_ROUNDS:] or latencies),
        "rounds_per_s": len(latencies) / took,
        "server_cpu_us_per_round": cpu / len(latencies) * 1e6,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "seconds": took,
    }


async def _append(server: Server, path: str, frame: bytes, until: float, ahead: int) -> list[float]:
    sent: list[float] = []
    latencies: list[float] = []
    room = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        while (now := time.perf_counter()) < until:
            if len(sent) - len(latencies) < ahead:
                sent.append(now)
                yield frame
            else:
                room.clear()
                await room.wait()

    async with linked(_way(server)) as link:
        async for acks in link.frames("POST", path, frames()):
            now = time.perf_counter()
            for _ in acks:
                latencies.append(now - sent[len(latencies)])
            room.set()
    assert len(latencies) == len(sent) > 0, "every batch was acked"
    return latencies


def read(server: Server, shape: Shape) -> Figures:
    """Fill a stream, then read it twice from its first record on; the second time counts."""
    with server.stream(timestamping=STAMPED) as path:
        return uvloop.run(_read(server, path, shape))


async def fill(server: Server, path: str, shape: Shape) -> Source:
    """Fill a stream; gives the source, which knows its hash."""
    source = Source(shape.record_bytes)

    async def frames() -> AsyncIterator[bytes]:
        for number in range(shape.batches):
            yield source.frame(shape.batch_records, number)

    async with linked(_way(server)) as link:
        async for _ in link.frames("POST", path, frames()):
            pass
    return source


async def _read(server: Server, path: str, shape: Shape) -> Figures:
    source = await fill(server, path, shape)
    async with linked(_way(server)) as link:
        for _ in range(2):
            check = Check(shape.record_bytes)
            cpu, client, began = server.cpu_secs(), time.process_time(), time.perf_counter()
            async for batches in link.frames("GET", f"{path}?seq_num=0&wait=0"):
                for batch in batches:
                    check.batch(bytes(batch.message()), shape.batches)
            took = time.perf_counter() - began
            cpu, client = server.cpu_secs() - cpu, time.process_time() - client
            assert check.records == shape.batches * shape.batch_records
            assert check.chain_hash == source.chain_hash, "what was read is what was appended"
    moved = check.records * shape.record_bytes
    return {
        "mb_per_s": moved / took / 1e6,
        "records_per_s": check.records / took,
        "server_cpu_s_per_gb": cpu / moved * 1e9,
        "client_cpu_s_per_gb": client / moved * 1e9,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "seconds": took,
    }


def _way(server: Server) -> Way:
    return make_way(server.url, BASIN, "2", Compression.NONE)
