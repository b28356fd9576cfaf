"""How fast the log becomes the table: `python -m bench.pipeline [--megabytes 500]`.

A log of 1 KiB records on local disk, tiered three times from the beginning: by one process without
Spark, by a Spark that must be started first, and by one that is warm. Prints a table, and writes
bench/results/pipeline.json.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bourn.bucket.local import LocalBucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.layout.records import encode_records
from bourn.layout.reports import JobReport, RunReport
from bourn.limits import MIB
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from bourn.pipeline.scan import LogScan
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import write_segment
from bourn.pipeline.tier import cut
from bourn.settings import PipelineSettings

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
BASIN = "bench-basin"
APPENDS_AT_ONCE = 64
CLOCK = SystemClock()


async def fill(root: Path, megabytes: int, streams: int, record_bytes: int, per_batch: int) -> None:
    """Append batches of text that compresses about as well as logs do."""
    bucket = LocalBucket(root)
    node = await Node.open(bucket)
    await node.create_basin(CreateBasin(BASIN))
    for number in range(streams):
        await node.create_stream(BASIN, CreateStream(f"s{number:05d}"))
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() + b" " for _ in range(4000)]

    def body() -> bytes:
        return b"".join(rng.choices(words, k=record_bytes // 13 + 1))[:record_bytes]

    pool = [
        encode_records([Record(body(), ((b"k", b"v%d" % n),)) for n in range(per_batch)])
        for _ in range(40)
    ]
    turn = asyncio.Semaphore(APPENDS_AT_ONCE)

    async def append(number: int) -> None:
        async with turn:
            stream = f"s{rng.randrange(streams):05d}"
            await node.append(BASIN, stream, pool[number % len(pool)])

    total = megabytes * 1_000_000 // (record_bytes * per_batch)
    await asyncio.gather(*map(append, range(total)))
    await node.close()
    await bucket.close()


def forget(root: Path) -> None:
    """Take the table away, so that the log is tiered from its beginning again."""
    for name in ("history", "pipeline"):
        shutil.rmtree(root / name, ignore_errors=True)


async def alone(root: Path) -> dict[str, Any]:
    """The same work in one process, one task after the other."""
    bucket = LocalBucket(root)
    retry = Retry(CLOCK, random.Random(1), 10)
    scan = LogScan(bucket, retry)
    span = await scan.span(0, commits_max=1 << 40, bytes_max=1 << 60)
    names = await scan.names(span.end)
    began = CLOCK.monotonic()
    rows = 0
    for run in cut(span, 4):
        facts = await write_segment(bucket, run, names, random.getrandbits(64), retry)
        rows += facts.rows if facts else 0
    secs = CLOCK.monotonic() - began
    await bucket.close()
    return figures(span.size_bytes, rows, secs)


async def on_spark(root: Path, spark: Spark, settings: PipelineSettings) -> dict[str, Any]:
    """One run of the pipeline."""
    told: list[RunReport] = []
    runner = Runner(
        Place("file", str(root), "", "", ""),
        settings,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=told.append,
        spark=spark,
    )
    began = CLOCK.monotonic()
    await runner.once()
    secs = CLOCK.monotonic() - began
    await runner.close()
    job: JobReport = told[0].jobs[0]
    shown = figures(job.log_bytes, job.records, job.secs["tiering"])
    return {**shown, "whole_secs": round(secs, 2), "stages": job.secs, "files": job.files}


def figures(size: int, rows: int, secs: float) -> dict[str, Any]:
    return {
        "log_bytes": size,
        "records": rows,
        "secs": round(secs, 2),
        "log_mb_per_sec": round(size / 1e6 / secs, 1),
        "records_per_sec": round(rows / secs),
    }


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def measure(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    settings = PipelineSettings(master=arguments.master)
    spark = Spark(settings)
    results: dict[str, Any] = {}
    asyncio.run(
        fill(root, arguments.megabytes, arguments.streams, arguments.record, arguments.batch)
    )
    try:
        results["one process"] = asyncio.run(alone(root))
        forget(root)
        results["spark, cold"] = asyncio.run(on_spark(root, spark, settings))
        for number in range(arguments.warm):
            forget(root)
            results[f"spark, warm {number + 1}"] = asyncio.run(on_spark(root, spark, settings))
    finally:
        spark.close()
    results["bytes of log"] = size_of(root / "wal")
    results["bytes of table"] = size_of(root / "history")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--record", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--batch", type=int, default=100, help="records of a batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--warm", type=int, default=2)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bourn-bench-"))
    try:
        load = os.getloadavg()[0]
        results = measure(arguments, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, found in results.items():
        if isinstance(found, dict):
            print(
                f"{name:14} {found['log_mb_per_sec']:7.1f} MB/s "
                f"{found['records_per_sec']:9,} records/s  in {found['secs']} s  "
                f"{found.get('stages', '')}"
            )
        else:
            print(f"{name:14} {found / MIB:9.1f} MiB")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": load}
    RESULTS.write_text(
        json.dumps({"machine": machine, "settings": vars(arguments), **results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
