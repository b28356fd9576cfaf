"""`make versus` keeps what was measured: row by row, and whatever happens next."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from bench import plots
from bench.versus import __main__ as versus
from bench.versus import loads
from bench.versus.loads import Compared, Load
from bench.versus.peers import BUCKETS, PEERS

RATE = (Compared("rate", "ops/s", more_is_better=True), Compared("late", "p50 ms", goal=2.0))


class Fake(NamedTuple):
    """A server that costs nothing."""

    peer: str
    bucket: str

    def memory_mb(self, what: str) -> float:
        return 100.0 if what == "VmHWM" else 0.0


def work(server: Fake, seconds: float, ends_with: type[BaseException] | None = None) -> Any:
    if ends_with is not None and server.peer == "s2_lite":
        raise ends_with("no more")
    more = 2.0 if server.peer == "bourn" else 1.0
    return {"rate": seconds * more, "late": seconds / more, "server_cpu_s": 1.0}


@contextmanager
def serving(peer: str, bucket: str, directory: Path) -> Iterator[Fake]:
    assert directory.is_dir()
    yield Fake(peer, bucket)


class Run:
    """The command, with servers and workloads that take no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.path = root / "results" / "versus.json"
        self.root = root
        self.patch = monkeypatch
        self.ends_with: type[BaseException] | None = None
        monkeypatch.setattr(versus, "serving", serving)
        monkeypatch.setattr(versus, "s2_binary", lambda: "s2")
        monkeypatch.setattr(versus, "built_versitygw", lambda: Path("versitygw"))
        monkeypatch.setattr(versus, "sync_calls", lambda peer, _: {"fdatasync": len(peer)})
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        monkeypatch.setattr(loads, "loads", self.loads)

    def loads(self, seconds: float, long_seconds: float) -> list[Load]:
        ends = {"seconds": seconds, "ends_with": self.ends_with}
        return [
            Load("streams", "streams", work, {"seconds": long_seconds}, RATE),
            Load("unary", "unary", work, ends, RATE),
        ]

    def __call__(self, *words: str) -> int:
        command = ["versus", "--to", str(self.path), "--directory", str(self.root / "scratch")]
        self.patch.setattr(sys, "argv", [*command, *words])
        return versus.main()

    @property
    def saved(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.path.read_bytes())
        return found

    @property
    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["bucket"], row["workload"]): row for row in self.saved["rows"]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path)


def test_a_run_of_some_keeps_the_rows_of_others_and_each_row_says_how_it_was_measured(
    run: Run,
) -> None:
    assert run("--rounds", "2", "--seconds", "4", "--long", "16") == 0
    first = run.rows
    names = [f"{load}: {name}" for load in ("streams", "unary") for name in ("ops/s", "p50 ms")]
    order = [(bucket, name) for bucket in BUCKETS for name in names]
    assert list(first) == order
    assert run("--rounds", "1", "--seconds", "5", "--only", "unary", "--bucket", "s3", "local") == 0
    second = run.rows
    assert list(second) == order, "where each row stands does not depend on who was measured last"
    for key in order:
        is_new = key[0] in {"s3", "local"} and key[1].startswith("unary")
        seconds = 16.0 if key[1].startswith("streams") else 5.0 if is_new else 4.0
        assert (second[key]["rounds"], second[key]["seconds"]) == (1 if is_new else 2, seconds)
        if not is_new:
            assert second[key] == first[key]


def test_what_was_synced_is_kept_until_it_is_counted_again(run: Run) -> None:
    assert run("--rounds", "1", "--bucket", "local") == 0
    counted = {peer: {"fdatasync": len(peer)} for peer in PEERS}
    assert run.saved["machine"]["syncs"] == counted
    assert run("--rounds", "1", "--bucket", "memory") == 0
    assert run.saved["machine"]["syncs"] == counted


def test_an_interrupted_run_keeps_what_was_measured_and_no_half_of_a_pair(run: Run) -> None:
    assert run("--rounds", "1", "--seconds", "4", "--bucket", "memory") == 0
    run.ends_with = KeyboardInterrupt
    assert run("--rounds", "1", "--seconds", "9", "--long", "9", "--bucket", "memory") == 130
    assert run.rows["memory", "streams: ops/s"]["seconds"] == 9.0
    assert run.rows["memory", "unary: ops/s"]["seconds"] == 4.0


def test_a_run_that_was_interrupted_is_gone_on_with(run: Run) -> None:
    assert run("--rounds", "2", "--seconds", "4", "--long", "4", "--bucket", "memory") == 0
    shape = run.saved
    for row in shape["rows"]:
        if row["workload"].startswith("unary"):
            row["repeats"] = {peer: values[:1] for peer, values in row["repeats"].items()}
    run.path.write_bytes(orjson.dumps(shape))
    words = ("--rounds", "3", "--long", "4", "--bucket", "memory", "--more")
    assert run(*words, "--seconds", "4") == 0
    for row in run.rows.values():
        assert (row["rounds"], row["ratio"]) == (3, 2.0)
        assert {peer: len(values) for peer, values in row["repeats"].items()} == dict.fromkeys(
            PEERS, 3
        )
        assert row["cost"]["bourn"]["server_cpu_s"] == 1.0
    assert run(*words, "--seconds", "8") == 0, "what took another time is not taken up"
    assert run.rows["memory", "unary: ops/s"]["repeats"]["bourn"] == [16.0] * 3


def test_a_failure_is_told_in_its_row_and_the_others_are_measured(run: Run) -> None:
    run.ends_with = RuntimeError
    assert run("--rounds", "1", "--bucket", "memory") == 0
    failed = run.rows["memory", "unary: ops/s"]
    assert (failed["ratio"], failed["failures"]) == (None, {"s2_lite": "RuntimeError: no more"})
    assert run.rows["memory", "streams: ops/s"]["ratio"] == 2.0


def test_rows_of_workloads_that_are_no_more_are_dropped(run: Run) -> None:
    assert run("--rounds", "1", "--bucket", "memory") == 0
    shape = run.saved
    shape["rows"].append({**shape["rows"][0], "workload": "forgotten: ops/s"})
    run.path.write_bytes(orjson.dumps(shape))
    assert run("--rounds", "1", "--bucket", "local") == 0
    assert not any("forgotten" in workload for _, workload in run.rows)
    assert ("memory", "unary: ops/s") in run.rows


def test_tables_and_plots_are_made_of_all_three_buckets(run: Run) -> None:
    run.ends_with = RuntimeError  # of one workload there is no ratio
    assert run("--rounds", "1") == 0
    results = {"versus": run.saved}
    text = plots.filled(plots.DOCUMENT.read_text(encoding="utf-8"), results)
    assert text.count("4 rows are at 1.0 or above") == len(BUCKETS)
    for bucket in BUCKETS:
        assert f"versus-{bucket}.svg" in plots.plots_of(results)
