"""Measure Bourn against `s2 lite`, show the table, keep the figures.

python -m bench.versus [--only GROUP …] [--bucket memory | local | s3 …] [--rounds N] [--seconds S]
                       [--more]

What was measured is in the file as soon as both servers have had their turn, so that a run may be
interrupted, and another one with `--more` does the rounds that are missing; whatever a run does not
measure keeps its earlier figures.
"""

import argparse
import signal
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
from bench.versus import loads, memory, table
from bench.versus.peers import BOURN, BUCKETS, PEERS, serving, sync_calls
from tests.s3server import NotHere, built_versitygw

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "versus.json"
INTERRUPTED: Final = 130
GROUPS: Final = (
    "bench",
    "light",
    "ack",
    "same",
    "streams",
    "followers",
    "replay",
    "unary",
    "batches",
    "http2",
    "sessions",
)

Results = list[tuple[table.Result, loads.Load]]


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
    if not buckets:
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers are ended, not left behind
    root = Path(options.directory)
    facts = report.machine(file_system_of(root), "versitygw, every answer 20 ms late")
    results = _results(options, buckets)
    print("touching the machine's free memory once, which may take a minute", flush=True)
    facts["memory_touched_secs"] = round(memory.touch_free(), 1)
    try:
        with directory_in(root) as directory, serving(BOURN, "memory", directory):
            pass  # machine code that is made once is nobody's figure
        _measure(facts, options, results, root)
        if "local" in buckets and not options.only:
            facts["syncs"] = _syncs(root)
            _save(facts, options, results)
        ended = 0
    except KeyboardInterrupt:
        ended = INTERRUPTED
    rows = _rows(facts, results)
    print(table.render(rows))
    missed = sum(1 for row in rows if not row["ratio"] or row["ratio"] < row["goal"])
    print(f"{len(rows) - missed} of {len(rows)} rows reach their goal")
    return ended


def _measure(
    facts: dict[str, Any], options: argparse.Namespace, results: Results, root: Path
) -> None:
    total = options.rounds * len(results) * len(PEERS)
    began, done = time.perf_counter(), 0
    for turn in range(options.rounds):
        for result, load in results:
            if all(len(repeats) > turn for repeats in result.repeats.values()):
                done += len(PEERS)
                continue  # taken up from an earlier run
            # Who goes first changes, so that neither always finds the machine as the other left it.
            for peer in PEERS if turn % 2 == 0 else reversed(PEERS):
                done += 1
                said = _run(result, load, peer, root)
                took = time.perf_counter() - began
                what = f"{result.bucket}, {result.workload}, {peer}"
                print(f"{took:6.0f} s  {done}/{total}  {what}: {said}", flush=True)
            _save(facts, options, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS)
    parser.add_argument("--bucket", nargs="+", choices=BUCKETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of most workloads")
    parser.add_argument("--long", type=float, default=30.0, help="seconds of many streams")
    parser.add_argument("--more", action="store_true", help="of what was measured as long before")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="of results")
    parser.add_argument("--directory", default=str(REPOSITORY / ".cache" / "bench"))
    return parser.parse_args()


def _results(options: argparse.Namespace, buckets: list[str]) -> Results:
    results = [
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
    if options.more:
        earlier = _by_place(_saved(options.to))
        for result, load in results:
            seconds = load.arguments.get("seconds")
            as_long = {key: row for key, row in earlier.items() if row["seconds"] == seconds}
            table.take_up(result, as_long)
    return results


def _saved(path: Path) -> dict[str, Any]:
    """What an earlier run has left, if anything."""
    return orjson.loads(path.read_bytes()) if path.exists() else {"rows": []}


def _by_place(shape: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["bucket"], row["workload"]): row for row in shape["rows"]}


def _run(result: table.Result, load: loads.Load, peer: str, root: Path) -> str:
    """Measure one of them once; what to say of it."""
    try:
        with directory_in(root) as directory, serving(peer, result.bucket, directory) as server:
            figures: Figures = load.work(server, **load.arguments)
            figures["peak_mb"] = server.memory_mb("VmHWM")
    except Exception:  # noqa: BLE001  whatever it was, the row tells
        result.failures[peer] = traceback.format_exc().strip().splitlines()[-1][:300]
        return result.failures[peer]
    result.repeats[peer].append(figures)
    return _shown(result, peer)


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


def _rows(facts: dict[str, Any], results: Results) -> list[dict[str, Any]]:
    """What has been measured so far; each row says how."""
    return [
        row
        | {
            "measured_at": facts["measured_at"],
            "cpu": facts["cpu"],
            "rounds": max(map(len, result.repeats.values())),
            "seconds": load.arguments.get("seconds"),
        }
        for result, load in results
        if result.is_measured
        for row in table.rows_of(result)
    ]


def _save(facts: dict[str, Any], options: argparse.Namespace, results: Results) -> None:
    """Write the rows; what was not measured this time keeps its earlier rows."""
    path: Path = options.to
    earlier = _saved(path)
    order = [
        (bucket, f"{load.name}: {compared.name}")
        for bucket in BUCKETS
        for load in loads.loads(options.seconds, options.long)
        for compared in load.compared
    ]
    rows = _by_place(earlier) | _by_place({"rows": _rows(facts, results)})
    syncs = earlier.get("machine", {}).get("syncs", {})
    shape = {
        "machine": {"syncs": syncs} | facts,
        "rows": [rows[key] for key in order if key in rows],  # of others, nothing is compared now
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(orjson.dumps(shape, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
