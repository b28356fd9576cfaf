"""How fast the log becomes the table: by one process, and by Spark, cold and warm."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from bench.pipeline_log import CLOCK, forget_table
from bourn.bucket.local import LocalBucket
from bourn.bucket.retry import Retry
from bourn.layout.reports import JobReport, RunReport
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from bourn.pipeline.scan import LogScan
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import write_segment
from bourn.pipeline.tier import cut
from bourn.settings import PipelineSettings

ONE_PROCESS_TASKS = 4


async def alone(root: Path) -> dict[str, Any]:
    """The same work with pyarrow in this process, on one core, one task after the other."""
    bucket = LocalBucket(root)
    retry = Retry(CLOCK, random.Random(1), 10)
    scan = LogScan(bucket, retry)
    span = await scan.span(0, commits_max=1 << 40, bytes_max=1 << 60)
    names = await scan.names(span.end)
    began, cpu = CLOCK.monotonic(), time.process_time()
    rows = 0
    for run in cut(span, ONE_PROCESS_TASKS):
        facts = await write_segment(bucket, run, names, random.getrandbits(64), retry)
        rows += facts.rows if facts else 0
    secs, cpu = CLOCK.monotonic() - began, time.process_time() - cpu
    await bucket.close()
    return {**figures(span.size_bytes, rows, secs), "cpu_secs": round(cpu, 2)}


async def tiered(root: Path, spark: Spark, settings: PipelineSettings) -> dict[str, Any]:
    """One tier run on Spark."""
    told: list[RunReport] = []
    runner = Runner(
        Place("file", str(root), "", "", ""),
        settings,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=told.append,
        jobs=["tier"],
        spark=spark,
    )
    began = CLOCK.monotonic()
    await runner.once()
    secs = CLOCK.monotonic() - began
    await runner.close()
    job: JobReport = told[0].jobs[0]
    shown = figures(job.log_bytes, job.records, job.secs["tiering"])
    fixed = secs - job.secs["tiering"]
    return {
        **shown,
        "whole_secs": round(secs, 2),
        "fixed_secs": round(fixed, 2),
        "stages": job.secs,
        "files": job.files,
    }


def figures(size: int, rows: int, secs: float) -> dict[str, Any]:
    """Rates."""
    return {
        "log_bytes": size,
        "records": rows,
        "secs": round(secs, 2),
        "log_mb_per_sec": round(size / 1e6 / secs, 1),
        "records_per_sec": round(rows / secs),
    }


def measure(root: Path, master: str, warm: int) -> dict[str, Any]:
    """Tier a log again and again; at the end the table is there."""
    settings = PipelineSettings(master=master)
    spark = Spark(settings)
    results: dict[str, Any] = {}
    results["one process, pyarrow"] = asyncio.run(alone(root))
    try:
        forget_table(root)
        results["spark, cold"] = asyncio.run(tiered(root, spark, settings))
        for number in range(warm):
            forget_table(root)
            results[f"spark, warm {number + 1}"] = asyncio.run(tiered(root, spark, settings))
    finally:
        spark.close()
    return results
