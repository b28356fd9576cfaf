"""Measure Bourn against `s2 lite`, show the table, keep the figures.

python -m bench.versus [--only GROUP …] [--bucket memory | local | s3 …] [--rounds N] [--seconds S]
"""

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

import orjson

from bench.engine import report
from bench.engine.case import Figures
from bench.engine.target import directory_in, file_system_of
from bench.http.benches import s2_binary
from bench.versus import loads, table
from bench.versus.peers import BUCKETS, PEERS, serving, sync_calls
from tests.s3server import NotHere, built_versitygw

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "versus.json"
GROUPS: Final = ("bench", "ack", "streams", "followers", "replay", "unary", "sessions")


def main() -> int:
    """Run what is asked for."""
    options = _options()
    if s2_binary() is None:
        print(
            "no s2 here: cargo install --locked s2-cli, or set BOURN_TEST_S2 to it", file=sys.stderr
        )
        return 2
    buckets = options.bucket or list(BUCKETS)
    if "s3" in buckets:
        try:
            built_versitygw()
        except NotHere as why:
            print(f"without s3: {why}", file=sys.stderr)
            buckets.remove("s3")
    root = Path(options.directory)
    facts = report.machine(file_system_of(root), "versitygw, every answer 20 ms late")
    results = _results(options, buckets)
    total = options.rounds * len(results) * len(PEERS)
    began, done = time.perf_counter(), 0
    for turn in range(options.rounds):
        for result, load in results:
            # Who goes first changes, so that neither always finds the machine as the other left it.
            for peer in PEERS if turn % 2 == 0 else reversed(PEERS):
                done += 1
                _run(result, load, peer, root)
                took = time.perf_counter() - began
                said = result.failures.get(peer) or _shown(result, peer)
                what = f"{result.bucket}, {result.workload}, {peer}"
                print(f"{took:6.0f} s  {done}/{total}  {what}: {said}", flush=True)
    rows = [row for result, _ in results for row in table.rows_of(result)]
    facts["syncs"] = _syncs(root) if "local" in buckets and not options.only else {}
    _save(facts, options, rows)
    print(table.render(rows))
    missed = sum(1 for row in rows if not row["ratio"] or row["ratio"] < row["goal"])
    print(f"{len(rows) - missed} of {len(rows)} rows reach their goal")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS)
    parser.add_argument("--bucket", nargs="+", choices=BUCKETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of most workloads")
    parser.add_argument("--long", type=float, default=30.0, help="seconds of many streams")
    parser.add_argument("--directory", default=str(REPOSITORY / ".cache" / "bench"))
    return parser.parse_args()


def _results(
    options: argparse.Namespace, buckets: list[str]
) -> list[tuple[table.Result, loads.Load]]:
    return [
        (
            table.Result(
                load.group, load.name, bucket, load.compared, {peer: [] for peer in PEERS}, {}
            ),
            load,
        )
        for bucket in buckets
        for load in loads.loads(options.seconds, options.long)
        if not options.only or load.group in options.only
    ]


def _run(result: table.Result, load: loads.Load, peer: str, root: Path) -> None:
    try:
        with directory_in(root) as directory, serving(peer, result.bucket, directory) as server:
            figures: Figures = load.work(server, **load.arguments)
            figures["peak_mb"] = server.memory_mb("VmHWM")
    except Exception:  # noqa: BLE001  whatever it was, the row tells
        result.failures[peer] = traceback.format_exc().strip().splitlines()[-1][:300]
    else:
        result.repeats[peer].append(figures)


def _shown(result: table.Result, peer: str) -> str:
    last = result.repeats[peer][-1]
    return ", ".join(
        f"{one.name} {float(last[one.figure]):,.4g}"
        for one in result.compared
        if one.figure in last
    )


def _syncs(root: Path) -> dict[str, Any]:
    """What both sync on local disk for 20 appends: neither acks what the disk does not have."""
    found: dict[str, Any] = {}
    for peer in PEERS:
        with directory_in(root) as directory:
            found[peer] = sync_calls(peer, directory)
    print(f"synced for 20 appends, by strace: {found}")
    return found


def _save(facts: dict[str, Any], options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the rows; what was not measured this time keeps its earlier rows."""
    measured = {(row["bucket"], row["workload"]) for row in rows}
    earlier = orjson.loads(RESULTS.read_bytes())["rows"] if RESULTS.exists() else []
    kept = [row for row in earlier if (row["bucket"], row["workload"]) not in measured]
    for row in rows:
        row["measured_at"] = facts["measured_at"]
    shape = {"machine": facts, "options": {"rounds": options.rounds}, "rows": [*rows, *kept]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(orjson.dumps(shape, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    sys.exit(main())
