"""The same load, spread over ever more active streams: what one append and one read cost.

A server on local disk, 64 connections, each behind its own answer. The streams are created, each
is appended to once, so that all are active and in memory; then records of 256 B are appended one
by one, round and round over all streams, and then the newest record is read, likewise. The first
seconds do not count: in them falls the snapshot that so many new streams are worth. Only the
number of streams differs. Memory is the resident set: of the empty server, with all streams
active, and at most; and of a server that starts on all these streams, with none of them in use.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.engine.target import directory_in
from bench.http.asking import ask, hammered, request
from bench.http.server import serving

RECORD_BYTES: Final = 256
CONNECTIONS: Final = 64
SETTLE_SECS: Final = 3.0
KEPT: Final = (
    "requests_per_s",
    "p50_ms",
    "p99_ms",
    "server_cpu_us_per_request",
    "server_cpus",
    "client_cpus",
)


def measure(count: int, seconds: float, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures with so many streams."""
    paths = [f"/streams/tenant-{number // 1000:03d}-{number % 1000:03d}" for number in range(count)]
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * (RECORD_BYTES - 8))
    appends = [request("POST", f"{path}/records", body) for path in paths]
    reads = [request("GET", f"{path}/records?tail_offset=1&count=1") for path in paths]
    with directory_in(root) as directory:
        with serving("local", directory) as server:
            empty_mb = server.memory_mb()
            created = ask(server, _once([request("PUT", path, b"{}") for path in paths]), None)
            ask(server, _once(appends), None)
            active_mb = server.memory_mb()
            say(f"{count:,} streams are there and active; appends, then reads of {seconds:g} s")
            hammered(server, appends, CONNECTIONS, SETTLE_SECS)
            appended = hammered(server, appends, CONNECTIONS, seconds)
            read = hammered(server, reads, CONNECTIONS, seconds)
            after_mb, peak_mb = server.memory_mb(), server.memory_mb("VmHWM")
        began = time.perf_counter()
        with serving("local", directory, has_basin=True) as server:
            start_s = time.perf_counter() - began
            started_mb = server.memory_mb()
    return {
        "streams": count,
        "create": {name: _rounded(created[name]) for name in KEPT},
        "append": {name: _rounded(appended[name]) for name in KEPT},
        "read": {name: _rounded(read[name]) for name in KEPT},
        "rss_empty_mb": _rounded(empty_mb),
        "rss_active_mb": _rounded(active_mb),
        "rss_after_mb": _rounded(after_mb),
        "rss_peak_mb": _rounded(peak_mb),
        "rss_bytes_per_stream": round((active_mb - empty_mb) * 1e6 / count),
        "start_s": _rounded(start_s),
        "rss_started_mb": _rounded(started_mb),
    }


def _once(requests: list[bytes]) -> list[list[bytes]]:
    """Each request by one connection alone."""
    connections = min(CONNECTIONS, len(requests))
    return [requests[number::connections] for number in range(connections)]


def _rounded(value: float | str) -> float:
    return float(f"{float(value):.5g}")
