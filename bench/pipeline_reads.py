"""Reads of old records: one of them, and 100 MB, at random places, from the log or the history.

Cold means that the server has none of it in its caches, and for a single record that the system
has none of it in its page cache either.
"""

import http.client
import random
import statistics
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.http.server import Server, serving
from bench.pipeline_log import BASIN, CLOCK, LARGE, drop_page_cache, make_pool, size_of
from bourn.bucket.local import LocalBucket
from bourn.engine.node import Node
from bourn.engine.process import tune_process
from bourn.log.cursor import make_request
from bourn.settings import EngineSettings

COLD: Final = EngineSettings(
    tail_cache_bytes=1 << 20, read_cache_bytes=8 << 20, encoded_cache_bytes=1 << 20
)
READ_BYTES: Final = 1 << 20
LOG_BYTES_LEFT_MAX: Final = 1 << 20


class CountingBucket(LocalBucket):
    """A disk that counts what is fetched."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests = 0
        self.bytes_fetched = 0

    async def get(self, key: str) -> bytes:
        """Count, and read."""
        return self._counted(await super().get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Count, and read."""
        return self._counted(await super().get_range(key, start, length))

    def _counted(self, data: bytes) -> bytes:
        self.requests += 1
        self.bytes_fetched += len(data)
        return data


async def by_reader(root: Path, reads: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """Measure the engine's own reader, without HTTP."""
    bucket = CountingBucket(root)
    node = await Node.open(bucket, COLD)
    rng = random.Random(3)
    try:
        tail = (await node.check_tail(BASIN, LARGE)).seq_num
        for _ in range(5):
            await _one(node, rng.randrange(tail))  # lets everything load that loads once
        one = await _single_reads(node, bucket, root, rng, tail, reads)
        many = [await _catch_up(node, bucket, rng, tail, megabytes) for _ in range(repeats)]
    finally:
        await node.close()
        await bucket.close()
    return {"one record": one, f"{megabytes} MB": _medians(many)}


async def _single_reads(
    node: Node, bucket: CountingBucket, root: Path, rng: random.Random, tail: int, reads: int
) -> dict[str, Any]:
    taken: list[float] = []
    requests, fetched = bucket.requests, bucket.bytes_fetched
    for _ in range(reads):
        drop_page_cache(root)
        at = rng.randrange(tail)
        began = CLOCK.monotonic()
        await _one(node, at)
        taken.append((CLOCK.monotonic() - began) * 1000)
    return {
        "p50_ms": round(statistics.median(taken), 2),
        "p99_ms": round(sorted(taken)[int(0.99 * len(taken))], 2),
        "bytes_fetched": round((bucket.bytes_fetched - fetched) / reads),
        "requests": round((bucket.requests - requests) / reads, 2),
    }


async def _one(node: Node, at: int) -> None:
    batch = await node.read(BASIN, LARGE, make_request(seq_num=at, count=1))
    assert batch.records_count == 1
    batch.wire()


async def _catch_up(
    node: Node, bucket: CountingBucket, rng: random.Random, tail: int, megabytes: int
) -> dict[str, float]:
    wanted = megabytes * 1_000_000
    start = rng.randrange(max(tail // 4, 1))
    size = records = 0
    fetched, began, cpu = bucket.bytes_fetched, CLOCK.monotonic(), time.process_time()
    first = 0.0
    request = make_request(seq_num=start, wait=0, bytes=wanted)
    async with node.read_session(BASIN, LARGE, request) as batches:
        async for batch in batches:
            first = first or CLOCK.monotonic() - began
            batch.wire()
            size += batch.metered_bytes
            records += batch.records_count
    secs, cpu = CLOCK.monotonic() - began, time.process_time() - cpu
    return {
        "first_batch_ms": first * 1000,
        "mb_per_sec": size / 1e6 / secs,
        "mb_per_cpu_sec": size / 1e6 / cpu,
        "records_per_sec": records / secs,
        "read_mb": size / 1e6,
        "fetched_mb": (bucket.bytes_fetched - fetched) / 1e6,
    }


def by_http(root: Path, reads: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """Measure the same through a server, with its usual caches."""
    with serving("disk", root.parent, "--tail-cache-bytes", "1MiB", has_basin=True) as server:
        rng = random.Random(4)
        tail = int(server.request("GET", f"/streams/{LARGE}/records/tail")["tail"]["seq_num"])
        taken = []
        for number in range(reads + 5):
            at = rng.randrange(tail)
            began = CLOCK.monotonic()
            server.request("GET", f"/streams/{LARGE}/records?seq_num={at}&count=1")
            if number >= 5:
                taken.append((CLOCK.monotonic() - began) * 1000)
        many = [
            _session(server, rng.randrange(max(tail // 4, 1)), megabytes) for _ in range(repeats)
        ]
    one = {
        "p50_ms": round(statistics.median(taken), 2),
        "p99_ms": round(sorted(taken)[int(0.99 * len(taken))], 2),
    }
    return {"one record": one, f"{megabytes} MB": _medians(many)}


def _session(server: Server, start: int, megabytes: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    path = f"/v1/streams/{LARGE}/records?seq_num={start}&wait=0&bytes={megabytes * 1_000_000}"
    headers = {"s2-basin": BASIN, "content-type": "s2s/proto"}
    cpu, began = server.cpu_secs(), CLOCK.monotonic()
    size, first = 0, 0.0
    try:
        connection.request("GET", path, None, headers)
        answer = connection.getresponse()
        assert answer.status == http.client.OK, answer.read()
        while chunk := answer.read1(READ_BYTES):
            first = first or CLOCK.monotonic() - began
            size += len(chunk)
    finally:
        connection.close()
    secs, cpu = CLOCK.monotonic() - began, server.cpu_secs() - cpu
    return {
        "first_bytes_ms": first * 1000,
        "mb_per_sec": size / 1e6 / secs,
        "mb_per_server_cpu_sec": size / 1e6 / max(cpu, 0.01),
        "read_mb": size / 1e6,
    }


def server_costs(root: Path, repeats: int) -> dict[str, float]:
    """How long a server takes to start on a bucket, and what it takes in memory then."""
    starts, resident = [], []
    for _ in range(repeats):
        began = CLOCK.monotonic()
        with serving("disk", root.parent, has_basin=True) as server:
            starts.append(CLOCK.monotonic() - began)
            resident.append(server.memory_mb())
    return {
        "start_secs": round(statistics.median(starts), 2),
        "resident_mb": round(statistics.median(resident), 1),
    }


async def collect(root: Path, secs_max: float = 120.0) -> None:
    """Let a node without patience delete the log that the table has."""
    settings = EngineSettings(
        snapshot_interval_secs=0.5,
        collect_grace_secs=0.0,
        housekeeping_secs=0.1,
        history_poll_secs=0.2,
    )
    bucket = LocalBucket(root)
    node = await Node.open(bucket, settings)
    deadline = CLOCK.monotonic() + secs_max
    try:
        while size_of(root / "wal") > LOG_BYTES_LEFT_MAX and CLOCK.monotonic() < deadline:
            # Something must change for a snapshot to be taken.
            await node.append(BASIN, "s00000", make_pool(10, 1)[0])
            await CLOCK.sleep(1.0)
    finally:
        await node.close()
        await bucket.close()


def measure(root: Path, options: Any) -> dict[str, Any]:
    """All reads from what serves them at the moment."""
    reads, megabytes, repeats = options.reads, options.read_megabytes, options.repeats
    tune_process()  # as the server does when it begins to serve
    return {
        "reader": uvloop.run(by_reader(root, reads, megabytes, repeats)),
        "http": by_http(root, reads, megabytes, repeats),
        "server": server_costs(root, repeats),
    }


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in found), 1) for name in found[0]}
