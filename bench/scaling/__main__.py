"""Measure how cost grows, show it, keep the figures after every step.

    python -m bench.scaling [--streams 1 10 …] [--history-gb 1 10 …] [--minutes 30]

What is not asked for, or no longer fits into the time, keeps its earlier figures in
bench/results/scaling.json. With neither --streams nor --history-gb, all of both are measured.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import orjson

from bench.engine import report
from bench.engine.target import IN_MEMORY, file_system_of
from bench.scaling import history, streams, tables

STREAMS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
HISTORY_GB: Final = (1, 10, 100)
REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "scaling.json"
DISK_GB_SPARE: Final = 5.0
DISK_SHARE: Final = 0.15  # of a GB of records, at most; see tables.py


class Run:
    """One run: its time, its progress, its results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._began = time.perf_counter()
        self._end = self._began + 60 * options.minutes
        self._output: Path = options.output
        self._facts = report.machine(file_system_of(options.directory.resolve()), "")
        earlier = orjson.loads(self._output.read_bytes()) if self._output.exists() else {}
        self._rows: dict[str, dict[int, Any]] = {
            kind: {row[of]: row for row in earlier.get(kind, [])}
            for kind, of in (("streams", "streams"), ("history", "history_gb"))
        }

    def say(self, text: str) -> None:
        """One line, with the time that has passed."""
        minutes, seconds = divmod(int(time.perf_counter() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d}  {text}", flush=True)

    def has_time(self, what: str) -> bool:
        """Whether the next step may begin; says so where it may not."""
        if time.perf_counter() < self._end:
            return True
        self.say(f"left out, the time is over: {what}")
        return False

    def keep(self, kind: str, size: int, row: dict[str, Any]) -> None:
        """Save a row beside the others."""
        row["measured_at"] = self._facts["measured_at"]
        self._rows[kind][size] = row
        shape = {
            "machine": self._facts,
            "scaled": tables.__doc__,
            **{kind: [rows[size] for size in sorted(rows)] for kind, rows in self._rows.items()},
        }
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self._output.write_bytes(
            orjson.dumps(shape, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )


def main() -> int:
    """Measure what the command line asks for."""
    options = _options()
    options.directory.mkdir(parents=True, exist_ok=True)
    if (kind := file_system_of(options.directory.resolve())) in IN_MEMORY:
        print(f"{kind} is no disk: give --directory one that is", file=sys.stderr)
        return 2
    if options.streams is None and options.history_gb is None:
        options.streams, options.history_gb = list(STREAMS), list(HISTORY_GB)
    run = Run(options)
    if options.streams:
        run.say("streams: nothing is scaled down; the client shares the machine with the server")
    for count in sorted(options.streams or []):
        if run.has_time(f"{count:,} streams"):
            row = streams.measure(count, options.seconds, options.directory, run.say)
            run.keep("streams", count, row)
            append, read = row["append"], row["read"]
            run.say(
                f"{count:,} streams: {append['requests_per_s']:,.0f} appends/s, "
                f"p50 {append['p50_ms']:.3g} ms, p99 {append['p99_ms']:.3g} ms, "
                f"{append['server_cpu_us_per_request']:.0f} us CPU; "
                f"{read['requests_per_s']:,.0f} reads/s, "
                f"{read['server_cpu_us_per_request']:.0f} us CPU; {row['rss_active_mb']:.0f} MB; "
                f"start {row['start_s']:.2f} s, {row['rss_started_mb']:.0f} MB"
            )
    if options.history_gb:
        _history(options, run)
    return 0


def _history(options: argparse.Namespace, run: Run) -> None:
    sizes = [size for size in sorted(options.history_gb) if _fits(size, options.directory, run)]
    run.say(
        "history: files, sidecars, table and catalog are real; one GB of repetitive records is "
        "encoded, the others are copies of its files for other streams (bench/scaling/tables.py)"
    )
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=options.directory) as name:
        root = Path(name)
        first: list[tables.File] = []
        for gigabytes in sizes:
            if not run.has_time(f"{gigabytes} GB of history"):
                continue
            first = first or tables.encode_first(root / "store", random.Random(1), run.say)
            directory = root / f"{gigabytes}"
            facts = tables.make_bucket(
                directory / "data", root / "store", first, gigabytes, run.say
            )
            row = {
                "history_gb": gigabytes,
                **history.measure(directory, facts, options.seconds),
            }
            run.keep("history", gigabytes, row)
            run.say(
                f"{gigabytes} GB: start {row['start_s']:.2f} s, {row['rss_started_mb']:.0f} MB, "
                f"cold read p50 {row['cold_read']['p50_ms']:.3g} ms, "
                f"p99 {row['cold_read']['p99_ms']:.3g} ms, "
                f"append p50 {row['append_alone']['p50_ms']:.3g} ms alone, "
                f"{row['append_beside_cold_reads']['p50_ms']:.3g} ms beside"
            )
            shutil.rmtree(directory)


def _fits(gigabytes: int, directory: Path, run: Run) -> bool:
    free_gb = shutil.disk_usage(directory).free / 1e9
    needed_gb = gigabytes * DISK_SHARE + DISK_GB_SPARE
    if needed_gb > free_gb:
        run.say(f"left out: {gigabytes} GB of history take {needed_gb:.0f} GB, {free_gb:.0f} free")
    return needed_gb <= free_gb


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--streams", nargs="*", type=int, help="numbers of streams")
    parser.add_argument("--history-gb", nargs="*", type=int, help="sizes of the history")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (10)")
    parser.add_argument("--minutes", type=float, default=30.0, help="no step begins later (30)")
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".cache" / "bench")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
