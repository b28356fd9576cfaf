"""How fast files are merged and rid of the dead: `python -m bench.pipeline_jobs [--megabytes 400]`.

A log in one large stream and many small ones is tiered, and its table merged from the same files
several times; then half of the small streams are deleted, and retain takes them out. Prints a
table, and writes bench/results/pipeline_jobs.json.
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

from bench.pipeline_log import BASIN, CLOCK, fill, size_of
from bourn.bucket.delta_log import read_table
from bourn.bucket.local import LocalBucket
from bourn.engine.node import Node
from bourn.layout.reports import JobReport
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings

RESULTS = Path(__file__).parent / "results" / "pipeline_jobs.json"


async def do(root: Path, spark: Spark, settings: PipelineSettings, job: str) -> JobReport:
    """Do one job once."""
    runner = Runner(
        Place("file", str(root), "", "", ""),
        settings,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=lambda _: None,
        jobs=[job],
        spark=spark,
    )
    try:
        return (await runner.once()).jobs[0]
    finally:
        await runner.close()


async def standing(root: Path) -> dict[str, int]:
    """Files and bytes of the table, and of all that lies at its place."""
    bucket = LocalBucket(root)
    live = (await read_table(bucket)).live.values()
    await bucket.close()
    return {
        "files": len(live),
        "table_bytes": sum(add.size + add.tag("index_bytes") for add in live),
        "bucket_bytes": size_of(root / "history"),
    }


def rates(report: JobReport, stage: str) -> dict[str, Any]:
    """What a job took, and how much of it."""
    secs = report.secs.get(stage, 0.0)
    read = report.facts.get("read_bytes", 0)
    return {
        "secs": round(secs, 2),
        "rows_mb": round(read / 1e6, 1),
        "mb_per_sec": round(read / 1e6 / secs, 1) if secs else 0.0,
        "files_replaced": report.facts.get("files_replaced", 0),
        "files_written": report.files,
        "records_dropped": report.facts.get("records_dropped", 0),
        "objects_deleted": report.facts.get("objects_deleted", 0),
    }


async def delete_half(root: Path, streams: int) -> None:
    """Delete every second small stream."""
    bucket = LocalBucket(root)
    node = await Node.open(bucket)
    for number in range(0, streams, 2):
        await node.delete_stream(BASIN, f"s{number:05d}")
    await node.close()
    await bucket.close()


async def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Merge, delete, retain."""
    settings = PipelineSettings(master=options.master, merge_files=2, grace_secs=0)
    spark = Spark(settings)
    found: dict[str, Any] = {}
    per_batch = max(1, min(1000, 100_000 // options.record))
    await fill(
        root, options.megabytes, options.streams, options.record, per_batch, large=options.large
    )
    try:
        await do(root, spark, settings, "tier")
        found["tiered"] = await standing(root)
        shutil.copytree(root / "history", root / "before")
        for number in range(options.repeats):
            shutil.rmtree(root / "history")
            shutil.copytree(root / "before", root / "history")
            report = await do(root, spark, settings, "merge")
            found[f"merge {number + 1}"] = rates(report, "merging")
        shutil.rmtree(root / "before")
        found["vacuum"] = rates(await do(root, spark, settings, "retain"), "vacuuming")
        found["merged"] = await standing(root)
        await delete_half(root, options.streams)
        await do(root, spark, settings, "tier")
        found["retain"] = rates(await do(root, spark, settings, "retain"), "rewriting")
        found["retained"] = await standing(root)
    finally:
        spark.close()
    return found


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--record", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--large", type=float, default=0.5, help="share of one stream")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bourn-bench-"))
    load = os.getloadavg()[0]
    try:
        found = asyncio.run(measure(options, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, figures in found.items():
        print(f"{name:10}", ", ".join(f"{key} {value:,}" for key, value in figures.items()))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": load}
    if not options.no_save:
        saved = {"machine": machine, "settings": vars(options), **found}
        RESULTS.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
