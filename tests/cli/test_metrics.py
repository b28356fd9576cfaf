"""`bourn metrics` against a real server on a disk, which is killed in between."""

import json
import signal
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import SECS_MAX, Serving, bourn

BASIN = "metered-basin"
STREAM = f"s2://{BASIN}/a/b"
BATCHES = 40


def call(server: Serving, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{server.url}/v1{path}",
        None if body is None else json.dumps(body).encode(),
        {"s2-basin": BASIN, "content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=SECS_MAX) as response:
        data = response.read()
        return json.loads(data) if data else None


def totals(server: Serving, of: str, *words: str) -> dict[str, float]:
    """The totals of each series, as the command tells them."""
    place = words or ("basin", BASIN)
    ended = bourn(
        "metrics", *place, "--set", of, "--interval", "day", "--start", "2days", "--json",
        "--endpoint", server.url,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    found: Counter[str] = Counter()
    for line in ended.lines:
        inner = json.loads(line)["accumulation"]
        assert inner["interval"] == "day"
        found[inner["name"]] += sum(value for _, value in inner["values"])
    return dict(found)


def append(server: Serving, batches: int) -> int:
    """Append so many batches; returns their metered bytes, as acknowledged."""
    metered = 0
    for number in range(batches):
        records = [{"body": "x" * number}, {"headers": [["a", "b"]], "body": "y"}]
        call(server, "POST", "/streams/a%2Fb/records", {"records": records})
        metered += 8 + number + 8 + 2 + 2 + 1
    return metered


def read(server: Serving, times: int) -> int:
    """Read the first record so often; returns the metered bytes."""
    for _ in range(times):
        found = call(server, "GET", "/streams/a%2Fb/records?seq_num=1&count=1")
        assert len(found["records"]) == 1
    return times * 13


def test_totals_are_those_of_the_workload_across_a_kill_and_a_restart(tmp_path: Path) -> None:
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags) as server:
        call(server, "PUT", f"/basins/{BASIN}")
        call(server, "PUT", "/streams/a%2Fb")
        metered = append(server, BATCHES)
        assert totals(server, "append-ops") == {"express": BATCHES}
        server.stop(signal.SIGKILL)
    with Serving(*flags) as server:
        assert totals(server, "append-ops") == {"express": BATCHES}
        assert totals(server, "append-throughput") == {"express": metered}
        delivered = read(server, 7)
        assert totals(server, "read-ops") == {"unary": 7}
        metered += append(server, 3)
        assert server.stop(signal.SIGTERM) == 0
    with Serving(*flags) as server:
        assert totals(server, "append-ops") == {"express": BATCHES + 3}
        assert totals(server, "append-throughput") == {"express": metered}
        assert totals(server, "read-ops") == {"unary": 7}
        assert totals(server, "read-throughput") == {"metered_bytes": delivered}
        assert totals(server, "account-ops", "account")["basin-metrics"] >= 3
        shown = bourn("metrics", "stream", STREAM, "--json", "--endpoint", server.url)
        assert json.loads(shown.lines[0])["gauge"]["values"][-1][1] == metered


@pytest.mark.long
def test_a_kill_costs_no_count_that_is_older_than_a_minute(tmp_path: Path) -> None:
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags) as server:
        call(server, "PUT", f"/basins/{BASIN}")
        call(server, "PUT", "/streams/a%2Fb")
        append(server, 1)
        read(server, 5)
        threading.Event().wait(33)
        server.stop(signal.SIGKILL)
    with Serving(*flags) as server:
        assert totals(server, "read-ops") == {"unary": 5}


@pytest.fixture(scope="module")
def server() -> Any:
    with Serving("--memory") as serving:
        call(serving, "PUT", f"/basins/{BASIN}")
        call(serving, "PUT", "/streams/a%2Fb")
        append(serving, 4)
        yield serving


def test_people_see_rows_with_bars(server: Serving) -> None:
    ended = bourn(
        "metrics", "basin", BASIN, "--set", "append-ops", "--interval", "day",
        "--start", "2days", "--endpoint", server.url,
    )  # fmt: skip
    assert ended.code == 0
    head, row = ended.lines
    assert head == "express: operations, total 4"
    assert row.split()[2:] == ["4", "█" * 20]
    names = bourn("metrics", "account", "--endpoint", server.url)
    assert names.lines == [BASIN]
    nothing = bourn("metrics", "basin", "other-basin", "--endpoint", server.url)
    assert (nothing.code, nothing.out) == (0, b"")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["account", "--set", "storage"], 2, "invalid choice"),
        (["basin", "X"], 2, "names no basin"),
        (["stream", "s2://b"], 2, "names no stream"),
        (["account", "--start", "yesterday"], 2, "--start: 'yesterday' is no time"),
        (["account", "--end", "soon"], 2, "--end: 'soon' is no time"),
        (["account", "--start", "40days"], 1, "the time span must not exceed 30 days"),
        (["account", "--end", "2100-01-01T00:00Z"], 1, "seconds ahead"),
        (["basin", BASIN, "--interval", "minute"], 1, "interval `minute` is not supported"),
    ],
)
def test_a_wrong_question_says_what_to_mend(
    server: Serving, words: list[str], code: int, said: str
) -> None:
    ended = bourn("metrics", *words, "--endpoint", server.url)
    assert (ended.code, ended.out) == (code, b"")
    assert said in ended.err


@pytest.mark.parametrize("start", ["1h", "1h ago", "2020-01-01", "0", "2020-01-01T00:00:00+02:00"])
def test_a_time_is_written_in_many_ways(server: Serving, start: str) -> None:
    end = ["--end", "0"] if start == "0" else []
    if start.startswith("2020"):
        end = ["--end", "2020-01-02T00:00Z"]
    ended = bourn("metrics", "account", "--start", start, *end, "--endpoint", server.url)
    assert ended.code == 0, ended.err


def test_every_default_window_is_allowed(server: Serving) -> None:
    for place, sets in (
        (("account",), ("active-basins", "account-ops", "estimated-billable-usage")),
        (("basin", BASIN), ("storage", "append-ops", "basin-ops")),
        (("stream", STREAM), ("storage",)),
    ):
        for of in sets:
            words = ["metrics", *place, "--set", of, "--endpoint", server.url]
            assert bourn(*words).code == 0
            if of.endswith("ops"):
                assert bourn(*words, "--interval", "day").code == 0
