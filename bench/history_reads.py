"""What a node that serves the history costs: cold reads of one record, catching up, its index.

    python -m bench.history_reads [--mib 64]

A log of one large stream and a thousand small ones on local disk is tiered in this process, and a
new node reads it, all through `Node.read` and `Node.read_session`. Speeds are metered bytes by
second of CPU time, all threads of the process counted. Files are in the page cache.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bourn.bucket.local import LocalBucket
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.engine.history_index import HistoryVersion, Segment
from bourn.engine.node import Node
from bourn.layout.history.facts import SegmentFacts, add_of
from bourn.layout.history.footer import LEAVES
from bourn.layout.history.index import decode_index, encode_index
from bourn.layout.records import RecordBatch, encode_records
from bourn.limits import KIB, MIB
from bourn.log.cursor import make_request
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.scan import LogScan
from bourn.pipeline.table import HistoryTable, TableChange
from bourn.pipeline.tasks import TierRun, write_segment
from bourn.settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "history_reads.json"
BASIN = "history-bench"
SMALL_STREAMS = 1000
TIER_COMMITS = 24  # of some 4 MiB each in one segment
RANDOM_READS = 300
COLD = EngineSettings(tail_cache_bytes=0, read_cache_bytes=1, encoded_cache_bytes=1)


def batches(body_bytes: int, size_bytes: int, rng: random.Random) -> list[RecordBatch]:
    """Batches of up to 1,000 records, up to so many bytes in all; texts as logs have them."""
    words = [b"%x" % rng.getrandbits(24) for _ in range(2000)]
    each = min(1000, (MIB - 64 * KIB) // (body_bytes + 8))

    def body() -> bytes:
        return b" ".join(rng.choices(words, k=body_bytes // 6 + 1))[:body_bytes].ljust(body_bytes)

    made = [encode_records([Record(body()) for _ in range(each)]) for _ in range(8)]
    return [made[n % 8] for n in range(-(-size_bytes // made[0].metered_bytes))]


async def write(bucket: Bucket, shapes: dict[str, int], size_bytes: int) -> None:
    """A log with one large stream for every size of records, and many small streams."""
    rng = random.Random(1)
    node = await Node.open(bucket)
    try:
        await node.create_basin(CreateBasin(BASIN))
        for name, body_bytes in shapes.items():
            await node.create_stream(BASIN, CreateStream(name))
            for batch in batches(body_bytes, size_bytes, rng):
                await node.append(BASIN, name, batch)
        small = encode_records([Record(rng.randbytes(100)) for _ in range(20)])
        for n in range(SMALL_STREAMS):
            await node.create_stream(BASIN, CreateStream(f"small-{n:04d}"))
        for _ in range(3):
            await asyncio.gather(
                *(node.append(BASIN, f"small-{n:04d}", small) for n in range(SMALL_STREAMS))
            )
    finally:
        await node.close()


async def tier(bucket: Bucket) -> None:
    """The log into the table, without Spark."""
    clock, rng = SystemClock(), random.Random(2)
    retry = Retry(clock, rng, 30.0)
    scan, table = LogScan(bucket, retry), HistoryTable(bucket, clock, rng, retry)
    span = await scan.span(0, commits_max=1 << 20, bytes_max=1 << 40)
    names = await scan.names(span.end)
    facts: list[SegmentFacts | None] = []
    for at in range(0, len(span.commits), TIER_COMMITS):
        commits = span.commits[at : at + TIER_COMMITS]
        run = TierRun(
            commits[0].ordinal, commits[-1].ordinal + 1, tuple(commit.key for commit in commits), 0
        )
        facts.append(await write_segment(bucket, run, names, rng.getrandbits(64), retry))
    adds = [add_of(found, clock.now_ms()) for found in facts if found is not None]
    await table.commit(TableChange("TIER", adds, first_ordinal=0, end_ordinal=span.end))


async def cold_reads(bucket: Bucket, *names: str) -> dict[str, float]:
    """One record at a random place, nothing of it in memory; milliseconds."""
    rng = random.Random(3)
    node = await Node.open(bucket, COLD)
    try:
        waits = []
        for _ in range(RANDOM_READS):
            name = rng.choice(names)
            tail = (await node.check_tail(BASIN, name)).seq_num
            request = make_request(seq_num=rng.randrange(tail), count=1)
            began = time.perf_counter()
            found = await node.read(BASIN, name, request)
            found.wire()
            waits.append(1000 * (time.perf_counter() - began))
        waits.sort()
        return {
            "p50_ms": round(statistics.median(waits), 2),
            "p99_ms": round(waits[int(0.99 * len(waits))], 2),
            "fetched_kib_each": round(node.history.bytes_fetched / RANDOM_READS / KIB),
        }
    finally:
        await node.close()


async def catch_up(bucket: Bucket, name: str) -> dict[str, float]:
    """The whole stream through a session, as the bytes that sessions send."""
    node = await Node.open(bucket)
    try:
        tail = (await node.check_tail(BASIN, name)).seq_num
        began, cpu = time.perf_counter(), time.process_time()
        total = records = 0
        async with node.read_session(BASIN, name, make_request(seq_num=0, count=tail)) as found:
            async for batch in found:
                total += batch.metered_bytes
                records += batch.records_count
                batch.wire()
        cpu, secs = time.process_time() - cpu, time.perf_counter() - began
        assert records == tail
        return {
            "mb_per_cpu_s": round(total / cpu / 1e6),
            "mb_per_s": round(total / secs / 1e6),
            "fetches": node.history.fetches,
        }
    finally:
        await node.close()


async def start(bucket: Bucket) -> dict[str, float]:
    began = time.perf_counter()
    node = await Node.open(bucket)
    secs = time.perf_counter() - began
    history = node.history
    found = {
        "open_ms": round(1000 * secs, 1),
        "segments": history.segments,
        "blocks": history.blocks,
        "index_bytes_per_block": round(history.index_bytes / max(history.blocks, 1), 1),
    }
    await node.close()
    return found


def many_segments(streams: int, segments: int) -> dict[str, float]:
    """The index of many streams in many files, each stream one block in each."""
    rss = _rss_mib()
    groups = max(streams // 100, 1)
    in_memory = [
        Segment(f"history/{n}.parquet", n + 1, decode_index(_sidecar(streams, groups, n), "bench"))
        for n in range(segments)
    ]
    version = HistoryVersion(1, segments, in_memory)
    rng = random.Random(4)
    wanted = [rng.randrange(1, streams + 1) for _ in range(1000)]
    began = time.process_time()
    for stream_id in wanted:
        assert version.find(stream_id, 1000 * (segments // 2)) is not None
    first = time.process_time() - began
    began = time.process_time()
    for stream_id in wanted:
        version.find(stream_id, 1000 * (segments // 2))
    again = time.process_time() - began
    return {
        "streams": streams,
        "segments": segments,
        "find_first_us": round(1e6 * first / len(wanted), 1),
        "find_again_us": round(1e6 * again / len(wanted), 1),
        "rss_mib": round(_rss_mib() - rss),
        "bytes_per_block": round((_rss_mib() - rss) * MIB / (streams * segments), 1),
    }


def _sidecar(streams: int, groups: int, number: int) -> bytes:
    blocks = np.arange(streams, dtype=np.uint64)
    per_group = -(-streams // groups)
    group_of = (blocks // np.uint64(per_group)).astype(np.uint64)
    counts = np.bincount(group_of.astype(np.int64), minlength=int(group_of[-1]) + 1)
    first = np.full(streams, 1000 * number, np.uint64)
    in_group = blocks % np.uint64(per_group)
    return encode_index(
        {
            "offset": np.arange(len(counts), dtype=np.uint64) * np.uint64(MIB),
            "checksum": np.zeros(len(counts), np.uint64),
            "rows": counts.astype(np.uint64) * np.uint64(10),
            "header_values": np.zeros(len(counts), np.uint64),
            "chunk_ends": np.tile(np.arange(1, LEAVES + 1, dtype=np.uint64), len(counts)),
        },
        {
            "stream_id": blocks + np.uint64(1),
            "first_seq_num": first,
            "last_seq_num": first + np.uint64(999),
            "first_timestamp": first,
            "last_timestamp": first,
            "row_group": group_of,
            "first_row": in_group * np.uint64(10),
            "count": np.full(streams, 10, np.uint64),
            "metered_bytes": np.full(streams, 1000, np.uint64),
            "expires_s": np.full(streams, 2**32 - 1, np.uint64),
        },
    )


def _rss_mib() -> float:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * resource.getpagesize() / MIB


async def main(mib: int) -> dict[str, Any]:
    shapes = {"1 KiB": 1024, "100 B": 100}
    streams = {f"large-{body}": body for body in shapes.values()}
    with tempfile.TemporaryDirectory() as folder:
        bucket = LocalBucket(Path(folder) / "bucket")
        try:
            await write(bucket, streams, mib * MIB)
            before = await start(bucket)
            await tier(bucket)
            return {
                "start before tiering": before,
                "start behind tiering": await start(bucket),
                **{
                    f"cold read of one record, {shape}": await cold_reads(bucket, f"large-{body}")
                    for shape, body in shapes.items()
                },
                "cold read of one record, small streams": await cold_reads(
                    bucket, *(f"small-{n:04d}" for n in range(SMALL_STREAMS))
                ),
                **{
                    f"catching up, {shape}": (
                        await catch_up(bucket, f"large-{body}"),
                        await catch_up(bucket, f"large-{body}"),
                    )[1]  # the first one loads code
                    for shape, body in shapes.items()
                },
                "index of many streams": many_segments(100_000, 50),
            }
        finally:
            await bucket.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="of records of each size")
    parser.add_argument("--save", action="store_true", help="keep the figures with the others")
    options = parser.parse_args()
    figures = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        **asyncio.run(main(options.mib)),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if options.save:
        RESULTS.write_text(text + "\n")
