"""Measure the server through HTTP, show the table, keep the figures.

python -m bench.http [--only GROUP …] [--bucket memory | local …] [--seconds S] [--repeats N]
"""

import argparse
import os
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.engine import report
from bench.engine.case import Row
from bench.engine.target import IN_MEMORY, directory_in, file_system_of
from bench.http import benches, followers, memory, sessions, table, unary
from bench.http.server import HttpCase, Server, serving

GROUPS: Final = ("bench", "batches", "rounds", "reads", "unary", "followers", "memory")
BUCKETS: Final = ("memory", "local")
REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "http.json"


class Progress:
    """One line a case."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.perf_counter()

    def begin(self, name: str) -> None:
        """A case is under way."""
        self._done += 1
        minutes, seconds = divmod(int(time.perf_counter() - self._began), 60)
        print(f"{minutes:3d}:{seconds:02d} [{self._done}/{self._total}] {name}", end="", flush=True)


def main() -> int:
    """Run what the command line asks for; 1 where a case failed, whatever the budgets say."""
    options = _options()
    root = options.directory.resolve()
    root.mkdir(parents=True, exist_ok=True)
    file_system = file_system_of(root)
    if file_system in IN_MEMORY:
        print(f"{file_system} is no disk: give --directory one that is", file=sys.stderr)
        return 2
    facts = report.machine(file_system, "")
    facts["s2"] = "present" if benches.s2_binary() else "absent"
    if not benches.s2_binary():
        print(f"there is no s2 command (PATH, {benches.S2_VARIABLE}): its rows are left out")
    rows = _measure(_cases(options), options.repeats, root)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    print(f"\n{table.render(rows)}\n")
    if max(facts["load_before"], facts["load_after"]) > (os.cpu_count() or 1):
        print(
            "The machine was busy with other things: figures by the clock would be better on a "
            "machine of our own; those by CPU hold.\n"
        )
    report.save(
        options.output, facts, {"seconds": options.seconds, "repeats": options.repeats}, rows
    )
    verdicts = [holds for row in rows for _, holds in row.verdicts()]
    print(f"{verdicts.count(True)} of {len(verdicts)} budgets kept")
    return 1 if any(row.failure for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--bucket", nargs="+", choices=BUCKETS, default=BUCKETS)
    parser.add_argument("--match", default="", help="only cases whose name holds this text")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each case runs (1.5)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each case runs (3)")
    parser.add_argument(
        "--directory", type=Path, default=REPOSITORY / ".cache" / "bench", help="on a real disk"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> list[HttpCase]:
    buckets, seconds = tuple(options.bucket), options.seconds
    cases = [
        *benches.cases(buckets, seconds),
        *sessions.cases(buckets, seconds),
        *unary.cases(buckets, seconds),
        *followers.cases(buckets, seconds),
        *memory.cases(buckets),
    ]
    return [case for case in cases if case.group in options.only and options.match in case.name]


def _measure(cases: list[HttpCase], repeats: int, root: Path) -> list[Row]:
    """Run every case, turn by turn, so that all meet the same weather."""
    rows = [Row(case.group, f"{case.bucket}, {case.name}", case.budgets) for case in cases]
    progress = Progress(len(cases) * repeats)
    for _ in range(repeats):
        for bucket in BUCKETS:
            pairs = [
                (case, row) for case, row in zip(cases, rows, strict=True) if case.bucket == bucket
            ]
            shared = [pair for pair in pairs if not pair[0].is_alone]
            alone = [[pair] for pair in pairs if pair[0].is_alone]
            for group in filter(None, [shared, *alone]):
                with ExitStack() as stack:
                    directory = stack.enter_context(directory_in(root))
                    server = stack.enter_context(serving(bucket, directory))
                    for case, row in group:
                        _run(case, row, server, progress)
    return rows


def _run(case: HttpCase, row: Row, server: Server, progress: Progress) -> None:
    progress.begin(f"{case.group}: {row.name}")
    if row.failure:
        print("  failed before", flush=True)
        return
    try:
        figures = case.work(server, **case.arguments)
    except Exception:  # noqa: BLE001  whatever it was, the row tells
        row.failure = traceback.format_exc()
        print("  FAILED", flush=True)
    else:
        row.repeats.append(figures)
        print(f"  {table.one_line(case.group, figures)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
