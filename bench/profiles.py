"""Flame graphs of the server under load, one for each path, and where its own time goes.

    python -m bench.profiles [PATH …] [--label before] [--bucket memory | local] [--seconds 10]

py-spy samples all threads of a `bourn serve` process that is under load from this process: once
for the flame graph (bench/results/profiles/PATH.svg), once for the figures, which go to
bench/results/profiles/profiles.json. With a label, the name is PATH-LABEL, and the others stay.
Own time is summed by file: what a frame's callees take is theirs, and what a C extension takes
is that of the line that calls it.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from bench.engine import report
from bench.engine.target import directory_in, file_system_of
from bench.http import followers
from bench.http.asking import hammered, raise_files, request
from bench.http.server import Server, serving
from bench.http.sessions import LARGE, fill
from bench.soak import readers, writers
from bench.soak.client import Window
from bourn.clock import SystemClock

REPOSITORY: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "profiles"
RATE: Final = 200
FILES_SHOWN: Final = 8
CONNECTIONS: Final = 64
SESSIONS: Final = 100
FOLLOWERS: Final = 500
REPLAYS: Final = 100
REPLAY_RECORDS: Final = 200
START_SECS: Final = 2.0  # for py-spy, twice
MARGIN_SECS_MAX: Final = 120.0

Load = Callable[[Server, float], None]


def _body(size: int) -> bytes:
    return b'{"records":[{"body":"%b"}]}' % (b"x" * size)


def unary_append(server: Server, seconds: float) -> None:
    """One record of 256 B in each."""
    with server.stream() as path:
        hammered(server, [request("POST", path, _body(248))], CONNECTIONS, seconds)


def unary_read(server: Server, seconds: float) -> None:
    """Ten records of 256 B in each."""
    with server.stream() as path:
        server.request("POST", path, {"records": [{"body": "x" * 248}] * 10})
        hammered(server, [request("GET", f"{path}?seq_num=0&count=10")], CONNECTIONS, seconds)


def _append_sessions(server: Server, kind: str, seconds: float) -> None:
    names = [f"{kind}-{number}" for number in range(SESSIONS)]
    for name in names:
        server.request("PUT", f"/streams/{name}", {})

    async def run() -> None:
        window = Window()
        crowd = await writers.write(server.port, window, names)
        crowd.full()
        await SystemClock().sleep(seconds)
        crowd.close()
        if window.errors_count:
            raise RuntimeError(window.errors[0])

    uvloop.run(run())


def append_sessions_h1(server: Server, seconds: float) -> None:
    """Four records of 1 KiB in each input, one input under way."""
    _append_sessions(server, "h1", seconds)


def append_sessions_h2(server: Server, seconds: float) -> None:
    """The same over one connection of HTTP/2."""
    _append_sessions(server, "h2", seconds)


def sse_fan_out(server: Server, seconds: float) -> None:
    """Fifty events a second to all of them."""
    followers.measure(server, FOLLOWERS, seconds)


def catch_up(server: Server, seconds: float) -> None:
    """A read session from the first record to the tail, again and again."""
    with server.stream(timestamping={"mode": "client-require", "uncapped": True}) as path:
        stream = path.split("/")[2]

        async def run() -> None:
            await fill(server, path, LARGE)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                await asyncio.gather(
                    *(readers.catch_up(server.port, stream, "seq_num=0&wait=0") for _ in range(2))
                )

        uvloop.run(run())


def replay(server: Server, seconds: float) -> None:
    """Each client reads all of a stream of its own as JSON, again and again."""
    shape = {"records": [{"body": "x" * 1024}] * REPLAY_RECORDS}
    requests = []
    for number in range(REPLAYS):
        path = f"/streams/replay-{number}"
        server.request("PUT", path, {})
        server.request("POST", f"{path}/records", shape)
        requests.append(request("GET", f"{path}/records?seq_num=0&count={REPLAY_RECORDS}"))
    hammered(server, requests, REPLAYS, seconds)


PATHS: Final[dict[str, tuple[str, Load]]] = {
    "unary-append": (f"Unary appends, JSON, 256 B, {CONNECTIONS} connections", unary_append),
    "unary-read": (f"Unary reads, JSON, 10 x 256 B, {CONNECTIONS} connections", unary_read),
    "append-sessions-h1": (f"{SESSIONS} append sessions, HTTP/1.1, 4 x 1 KiB", append_sessions_h1),
    "append-sessions-h2": (f"{SESSIONS} append sessions, HTTP/2, 4 x 1 KiB", append_sessions_h2),
    "sse-fan-out": (f"{FOLLOWERS} SSE followers, 50 events/s", sse_fan_out),
    "catch-up": ("Catch-up by read sessions, 8 KiB records", catch_up),
    "replay": (f"{REPLAYS} clients read {REPLAY_RECORDS} x 1 KiB each, JSON", replay),
}


def main() -> int:
    """Profile what the command line names."""
    options = _options()
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        print("py-spy is not here: make setup installs it", file=sys.stderr)
        return 2
    raise_files()
    options.output.mkdir(parents=True, exist_ok=True)
    for path in options.paths or PATHS:
        name = f"{path}-{options.label}" if options.label else path
        title, load = PATHS[path]
        with (
            directory_in(options.directory) as directory,
            serving(options.bucket, directory) as server,
        ):
            load(server, 1.0)  # what is loaded or compiled at first use is no part of it
            stacks = _profiled(server, load, options, name, spy)
        _entitle(options.output / f"{name}.svg", title)
        found = {"title": title, "bucket": options.bucket, **summary(stacks)}
        _keep(options, name, found)
        told = ", ".join(f"{row['file']} {row['share']:.0%}" for row in found["files"][:4])
        print(f"{name}: {told}", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], metavar="PATH")
    parser.add_argument("--label", default="", help="of this state of the code")
    parser.add_argument("--bucket", choices=("memory", "local"), default="memory")
    parser.add_argument("--seconds", type=float, default=10.0, help="of sampling (10)")
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".cache" / "bench")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def _profiled(server: Server, load: Load, options: argparse.Namespace, name: str, spy: Path) -> str:
    """Stacks, one a line with their count; the flame graph goes to its file."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"

        def sample() -> None:
            for form, output in (("flamegraph", options.output / f"{name}.svg"), ("raw", raw)):
                done = subprocess.run(
                    [
                        *(spy, "record", "--pid", str(server.pid), "--threads"),
                        *("--duration", str(max(1, round(options.seconds)))),
                        *("--rate", str(RATE), "--format", form, "--output", output),
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    failures.append(done.stderr.strip()[-300:])

        sampling = threading.Thread(target=sample)
        sampling.start()
        load(server, 2 * (options.seconds + START_SECS))
        sampling.join(MARGIN_SECS_MAX)
        if failures:
            raise RuntimeError(f"py-spy: {failures[0]}")
        return raw.read_text(encoding="utf-8")


def _entitle(path: Path, title: str) -> None:
    """Say what was measured, where py-spy has put its own command line."""
    drawn = path.read_text(encoding="utf-8")
    said = re.sub(r'(<text id="title"[^>]*>)[^<]*', lambda found: found[1] + title, drawn, count=1)
    path.write_text(said, encoding="utf-8")


def summary(stacks: str) -> dict[str, Any]:
    """Own time by file, the most first, and how much of all is the main thread's."""
    own: Counter[tuple[str, str]] = Counter()
    main_thread = 0
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        function, _, place = frames[-1].rpartition(" (")
        own[place.rpartition(":")[0] or place.rstrip(")"), function] += int(count)
        if "MainThread" in frames[0]:
            main_thread += int(count)
    total = sum(own.values())
    if not total:
        return {"samples": 0, "main_thread_share": 0.0, "files": []}
    by_file: Counter[str] = Counter()
    for (file, _), samples in own.items():
        by_file[file] += samples
    return {
        "samples": total,
        "main_thread_share": round(main_thread / total, 4),
        "files": [
            {
                "file": file,
                "share": round(count / total, 4),
                "function": max(
                    (found for found in own if found[0] == file), key=lambda found: own[found]
                )[1],
            }
            for file, count in by_file.most_common(FILES_SHOWN)
        ],
    }


def _keep(options: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    path = options.output / "profiles.json"
    kept: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    facts = report.machine(file_system_of(options.directory.resolve()), "")
    found["measured_at"] = facts["measured_at"]
    paths = {**kept.get("paths", {}), name: found}
    path.write_bytes(
        orjson.dumps(
            {"machine": facts, "paths": dict(sorted(paths.items()))},
            option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
