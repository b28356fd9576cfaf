"""The same load, spread over ever more active streams: what one append and one read cost.

A server on local disk, 64 connections, each behind its own answer. The streams are created, each
is appended to once, so that all are active and in memory; then records of 256 B are appended one
by one, round and round over all streams, and then the newest record is read, likewise. Only the
number of streams differs. Memory is the resident set: of the empty server, with all streams
active, and at most.
"""

from pathlib import Path
from typing import Any, Final

from bench.engine.target import directory_in
from bench.http.server import serving
from bench.scaling.asking import ask, hammered, request

RECORD_BYTES: Final = 256
CONNECTIONS: Final = 64
KEPT: Final = (
    "requests_per_s",
    "p50_ms",
    "p99_ms",
    "server_cpu_us_per_request",
    "server_cpus",
    "client_cpus",
)


def measure(count: int, seconds: float, root: Path) -> dict[str, Any]:
    """Figures with so many streams."""
    paths = [f"/streams/tenant-{number // 1000:03d}-{number % 1000:03d}" for number in range(count)]
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * (RECORD_BYTES - 8))
    appends = [request("POST", f"{path}/records", body) for path in paths]
    reads = [request("GET", f"{path}/records?tail_offset=1&count=1") for path in paths]
    with directory_in(root) as directory, serving("local", directory) as server:
        empty_mb = server.memory_mb()
        created = ask(server, _once([request("PUT", path, b"{}") for path in paths]), None)
        ask(server, _once(appends), None)
        active_mb = server.memory_mb()
        appended = hammered(server, appends, CONNECTIONS, seconds)
        read = hammered(server, reads, CONNECTIONS, seconds)
        return {
            "streams": count,
            "create": {name: _rounded(created[name]) for name in KEPT},
            "append": {name: _rounded(appended[name]) for name in KEPT},
            "read": {name: _rounded(read[name]) for name in KEPT},
            "rss_empty_mb": _rounded(empty_mb),
            "rss_active_mb": _rounded(active_mb),
            "rss_after_mb": _rounded(server.memory_mb()),
            "rss_peak_mb": _rounded(server.memory_mb("VmHWM")),
            "rss_bytes_per_stream": round((active_mb - empty_mb) * 1e6 / count),
        }


def _once(requests: list[bytes]) -> list[list[bytes]]:
    """Each request by one connection alone."""
    connections = min(CONNECTIONS, len(requests))
    return [requests[number::connections] for number in range(connections)]


def _rounded(value: float | str) -> float:
    return float(f"{float(value):.5g}")
