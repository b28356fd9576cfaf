"""A server on much history: how long it starts, what it holds, what cold reads and appends take.

The page cache forgets the bucket first. Starts are whole processes, from their making to the line
that says ready; the median of three counts. Each cold read asks for one record at a place that
nobody has read before (another row group each time), over one connection: alone, and beside a
connection that appends 256 B again and again, each behind its ack. Appends alone stand beside.
"""

import random
import statistics
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.engine.case import latency_figures
from bench.http.asking import Asked, ask, raise_files, request
from bench.http.server import Server, serving
from bench.pipeline_log import drop_page_cache
from bench.scaling.tables import RECORDS, stream_name

STARTS: Final = 3
READS: Final = 300
RECORD_BYTES: Final = 256
PLACES: Final = 8  # of a stream that are asked for: of these, no two lie in one row group


def measure(directory: Path, facts: dict[str, int], seconds: float) -> dict[str, Any]:
    """Figures of a bucket that lies in `data` of the directory."""
    raise_files()
    starts = [_start(directory) for _ in range(STARTS - 1)]
    drop_page_cache(directory / "data")
    began = time.perf_counter()
    with serving("local", directory, has_basin=True) as server:
        starts.append(time.perf_counter() - began)
        started_mb = server.memory_mb()
        server.request("PUT", "/streams/beside", {})
        cold = _places(facts["streams"])
        warm_up, alone, beside = cold[:10], cold[10 : 10 + READS], cold[10 + READS :]
        ask(server, [warm_up], None)  # the first read of all loads code
        appended = ask(server, [[_append()]], seconds)
        read = ask(server, [alone], None)
        both = uvloop.run(_beside(server, beside))
        return {
            **facts,
            "start_s": round(statistics.median(starts), 3),
            "starts_s": [round(start, 3) for start in starts],
            "rss_started_mb": round(started_mb, 1),
            "rss_after_mb": round(server.memory_mb(), 1),
            "rss_peak_mb": round(server.memory_mb("VmHWM"), 1),
            "cold_read": _figures(read),
            "append_alone": _figures(appended),
            "cold_read_beside_appends": both["read"],
            "append_beside_cold_reads": both["append"],
        }


def _start(directory: Path) -> float:
    drop_page_cache(directory / "data")
    began = time.perf_counter()
    with serving("local", directory, has_basin=True):
        return time.perf_counter() - began


def _places(streams: int) -> list[bytes]:
    """Reads of one record each, at random places that share no row group."""
    rng = random.Random(1)
    step = RECORDS // PLACES
    wanted = 10 + 2 * READS
    taken = rng.sample(range(streams * PLACES), min(wanted, streams * PLACES))
    made = []
    for number in taken:
        stream, place = divmod(number, PLACES)
        seq_num = place * step + step // 2
        path = f"/streams/{stream_name(stream)}/records?seq_num={seq_num}&count=1"
        made.append(request("GET", path))
    return made


def _append() -> bytes:
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * (RECORD_BYTES - 8))
    return request("POST", "/streams/beside/records", body)


async def _beside(server: Server, reads: list[bytes]) -> dict[str, dict[str, float]]:
    """Read through the list while another connection appends."""
    reading, appending = Asked([reads]), Asked([[_append()]])
    await reading.connect(server.port)
    await appending.connect(server.port)
    appending.begin(float("inf"))
    await reading.run(None)
    await appending.finish()
    return {
        "read": _figures(dict(latency_figures(reading.latencies))),
        "append": _figures(dict(latency_figures(appending.latencies))),
    }


def _figures(found: dict[str, Any]) -> dict[str, float]:
    wanted = ("p50_ms", "p99_ms", "requests_per_s", "server_cpu_us_per_request")
    return {name: float(f"{found[name]:.5g}") for name in wanted if name in found}
