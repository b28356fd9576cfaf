"""Measure the engine, show the table, keep the figures.

python -m bench.engine [--only GROUP …] [--quick] [--no-s3] [--seconds S] [--repeats N]
"""

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.engine import appends, idle, reads, report, startup, streams, table
from bench.engine.case import Case, ChildFailed, Row, in_child
from bench.engine.target import (
    IN_MEMORY,
    Target,
    directory_in,
    file_system_of,
    s3_server_name,
    serve_s3,
)

GROUPS: Final = ("appends", "idle", "reads", "streams", "startup")
REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "engine.json"
S3_REPEATS_MAX: Final = 2  # these rows say more about the server on the loopback than about us


def main() -> int:
    """Run what the command line asks for; 1 where a case failed, whatever the budgets say."""
    options = _options()
    root = options.directory.resolve()
    root.mkdir(parents=True, exist_ok=True)
    file_system = file_system_of(root)
    if file_system in IN_MEMORY:
        print(f"{file_system} is no disk: give --directory one that is", file=sys.stderr)
        return 2
    facts = report.machine(file_system, "" if options.no_s3 else s3_server_name())
    rows = _measure(_cases(options), options.repeats, root)
    print(f"\n{table.render(rows)}\n")
    if note := table.note_on_load(rows):
        print(f"{note}\n")
    chosen = {"seconds": options.seconds, "repeats": options.repeats, "quick": options.quick}
    report.save(options.output, facts, chosen, rows)
    verdicts = [holds for row in rows for _, holds in row.verdicts()]
    print(f"{verdicts.count(True)} of {len(verdicts)} budgets kept")
    return 1 if any(row.failure for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--quick", action="store_true", help="short, and 100,000 streams at most")
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--match", default="", help="only cases whose name holds this text")
    parser.add_argument("--seconds", type=float, help="how long each case appends (1.5)")
    parser.add_argument("--repeats", type=int, help="how often each case runs (3)")
    parser.add_argument(
        "--directory", type=Path, default=REPOSITORY / ".cache" / "bench", help="on a real disk"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.seconds = options.seconds or (0.5 if options.quick else 1.5)
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


def _cases(options: argparse.Namespace) -> list[Case]:
    targets = ("memory", "local") if options.no_s3 else ("memory", "local", "s3")
    counts = (100_000,) if options.quick else (100_000, 1_000_000)
    made = {
        "appends": lambda: appends.cases(targets, options.seconds),
        "idle": lambda: idle.cases(targets),
        "reads": reads.cases,
        "streams": lambda: streams.cases(counts),
        "startup": startup.cases,
    }
    cases = [case for group in GROUPS if group in options.only for case in made[group]()]
    return [case for case in cases if options.match in case.name]


def _measure(cases: list[Case], repeats: int, root: Path) -> list[Row]:
    """Run every case as often as it is due, turn by turn, so that all meet the same weather."""
    rows = [Row(case.group, case.name, case.budgets) for case in cases]
    due = [_repeats(case, repeats) for case in cases]
    total, done = sum(due), 0
    began = time.perf_counter()
    for turn in range(repeats):
        for case, row, times in zip(cases, rows, due, strict=True):
            if turn >= times or row.failure:
                continue
            done += 1
            minutes, seconds = divmod(int(time.perf_counter() - began), 60)
            print(f"{minutes:3d}:{seconds:02d} [{done}/{total}] {case.group}: {case.name}", end="")
            sys.stdout.flush()
            try:
                figures = _run(case, root)
            except ChildFailed as failed:
                row.failure = str(failed)
                print("  FAILED", flush=True)
            else:
                row.repeats.append(figures)
                print(f"  {table.one_line(case.group, figures)}", flush=True)
    return rows


def _repeats(case: Case, repeats: int) -> int:
    if case.repeats is not None:
        return min(case.repeats, repeats)
    return min(repeats, S3_REPEATS_MAX) if case.arguments["target"] == "s3" else repeats


def _run(case: Case, root: Path) -> dict[str, Any]:
    kind = case.arguments["target"]
    with ExitStack() as stack:
        directory = stack.enter_context(directory_in(root))
        target = Target(kind, str(directory))
        if kind == "s3":
            target = stack.enter_context(serve_s3(directory))
        return in_child(case.work, **{**case.arguments, "target": target})


if __name__ == "__main__":
    sys.exit(main())
