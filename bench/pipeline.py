"""The pipeline and the history it makes: `make bench-pipeline`, or `python -m bench.pipeline`.

A log on local disk is measured as it is (reads, server), tiered by one process and by Spark, and
measured again as a table; then a server takes appends beside a pipeline that works. Prints a table
with the budgets, and writes bench/results/pipeline.json.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import pipeline_acks, pipeline_reads, pipeline_tier
from bench.pipeline_log import fill, size_of
from bourn.cli.supervise_plan import local_cores
from bourn.engine.process import share_heaps

RESULTS: Final = Path(__file__).parent / "results" / "pipeline.json"
SMALL_RECORD_BYTES: Final = 100


class Line(NamedTuple):
    """A figure that has a budget."""

    what: str
    value: float
    unit: str
    bound: float
    at_least: bool

    @property
    def holds(self) -> bool:
        """Whether it is kept."""
        return self.value >= self.bound if self.at_least else self.value < self.bound


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Everything, for records of 1 KB and, shorter, of 100 B."""
    results: dict[str, Any] = {}
    for size in () if options.only_acks else (options.record, SMALL_RECORD_BYTES):
        place = root / f"of-{size}" / "data"
        megabytes = options.megabytes if size == options.record else options.small_megabytes
        print(f"filling {megabytes} MB of {size} B records", flush=True)
        _fill(options, place, megabytes, size)
        results[f"{size} B"] = _history(options, place)
    if options.ack_repeats:
        print("appends beside a pipeline", flush=True)
        acks, busy = root / "acks" / "data", root / "busy" / "data"
        acks.mkdir(parents=True)
        _fill(options, busy, options.megabytes, options.record)
        results["acks"] = pipeline_acks.measure(acks, busy, options, options.ack_master)
    return results


def _fill(options: argparse.Namespace, place: Path, megabytes: int, size: int) -> None:
    per_batch = max(options.batch_bytes // size, 1)
    share = options.large_share
    asyncio.run(fill(place, megabytes, options.streams, size, per_batch, large=share))


def _history(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    print("reads from the log", flush=True)
    found: dict[str, Any] = {"log": pipeline_reads.measure(place, options)}
    before = size_of(place)
    print("tiering", flush=True)
    found["tier"] = pipeline_tier.measure(place, options.master, options.warm)
    asyncio.run(pipeline_reads.collect(place))
    found["bytes"] = {
        "bucket before": before,
        "bucket after": size_of(place),
        "table": size_of(place / "history"),
        "log after": size_of(place / "wal"),
    }
    print("reads from the history", flush=True)
    found["history"] = pipeline_reads.measure(place, options)
    return found


def lines_of(results: dict[str, Any], options: argparse.Namespace) -> list[Line]:
    """Return what has a budget."""
    if options.only_acks:
        return _ack_lines(results)
    main, small = results[f"{options.record} B"], results[f"{SMALL_RECORD_BYTES} B"]
    many = f"{options.read_megabytes} MB"
    warm = main["tier"][f"spark, warm {options.warm}"]
    lines = [
        Line("tier, two cores, warm", warm["log_mb_per_sec"], "MB/s of log", 60, at_least=True),
        Line(
            "one record from the history, p50",
            main["history"]["reader"]["one record"]["p50_ms"],
            "ms",
            20,
            at_least=False,
        ),
    ]
    for name, found, bound in (("1 KB", main, 300), ("100 B", small, 200)):
        value = found["history"]["reader"][many]["mb_per_cpu_sec"]
        lines.append(
            Line(f"catch-up from the history, {name}", value, "MB/s a core", bound, at_least=True)
        )
    return lines + _ack_lines(results)


def _ack_lines(results: dict[str, Any]) -> list[Line]:
    if "acks" not in results:
        return []
    return [
        Line(
            "ack p99 beside the pipeline", results["acks"]["p99_ratio"], "times", 2, at_least=False
        )
    ]


def show(results: dict[str, Any], lines: list[Line]) -> None:
    """Print it all."""
    for group, found in results.items():
        print(f"\n{group}")
        _show(found, "  ")
    print()
    for line in lines:
        sign = ">=" if line.at_least else "<"
        verdict = "ok" if line.holds else "MISSED"
        print(f"{line.what:36} {line.value:9.1f} {line.unit:12} {sign} {line.bound:g}  {verdict}")


def _show(found: dict[str, Any], indent: str) -> None:
    for name, value in found.items():
        if name == "repeats":
            continue
        if isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
            print(f"{indent}{name}")
            _show(value, indent + "  ")
        elif isinstance(value, dict):
            parts = ", ".join(f"{key} {part:,}" for key, part in value.items())
            print(f"{indent}{name:22} {parts}")
        else:
            print(f"{indent}{name:22} {value}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=600, help="of 1 KB records")
    parser.add_argument("--small-megabytes", type=int, default=200, help="of 100 B records")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--large-share", type=float, default=0.7, help="of it, in one stream")
    parser.add_argument("--record", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--batch-bytes", type=int, default=100_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--reads", type=int, default=100, help="single records")
    parser.add_argument("--read-megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ack-rate", type=int, default=400, help="appends a second")
    parser.add_argument("--ack-secs", type=float, default=8.0)
    parser.add_argument("--ack-repeats", type=int, default=5)
    parser.add_argument("--ack-master", default=f"local[{local_cores()}]")
    parser.add_argument("--only-acks", action="store_true", help="and save nothing")
    parser.add_argument("--no-save", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure, print, save."""
    options = parse()
    share_heaps()
    root = Path(tempfile.mkdtemp(prefix="bourn-bench-"))
    load = os.getloadavg()[0]
    try:
        results = measure(options, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    lines = lines_of(results, options)
    show(results, lines)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": load}
    budgets = [{**line._asdict(), "holds": line.holds} for line in lines]
    if not (options.no_save or options.only_acks):
        saved = {"machine": machine, "settings": vars(options), "budgets": budgets, **results}
        RESULTS.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
