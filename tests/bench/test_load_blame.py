"""A long wait is laid to the server, unless it is proven that somebody else stood still."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps

from bench.load.pulse import NOTED_NS_MIN, TURNS_MAX, Pulse
from bench.load.target import SILENT_NS_MIN, Watch, serving
from bench.load.witness import Outlier, Span, Witnesses, longest_ns, shared_ns

LIMIT_MS = 100.0
PATIENCE_LOOKS = 6000
STOPS_MAX = 20
LONG = Outlier(
    "read",
    at_secs=1.0,
    wait_ms=150.0,
    unsent_ms=0.1,
    loop_starved_ms=0.0,
    loop_ran_ms=1.0,
    probe_starved_ms=0.0,
    major_faults=0,
)


def test_a_long_wait_that_nothing_explains_is_the_servers() -> None:
    assert LONG.server_ms == 150.0
    assert LONG.verdict(LIMIT_MS) == "the server's: 150 ms"


def test_a_long_wait_is_not_the_servers_when_one_cause_outside_covers_it() -> None:
    for excused in (
        replace(LONG, loop_starved_ms=60.0),
        replace(LONG, host_ms=60.0),
        replace(LONG, unsent_ms=60.0, probe_starved_ms=60.0),
        replace(LONG, unsent_ms=60.0, host_probe_ms=60.0),
    ):
        assert excused.server_ms == 90.0
        assert excused.verdict(LIMIT_MS).endswith(" for 60 ms")


def test_causes_that_may_be_the_same_time_are_not_added_up() -> None:
    both = replace(LONG, loop_starved_ms=40.0, host_ms=40.0)
    assert both.server_ms == 110.0
    assert both.verdict(LIMIT_MS) == "the server's: 110 ms"


def test_a_client_is_not_late_for_what_comes_behind_its_request() -> None:
    late = replace(LONG, unsent_ms=1.0, probe_starved_ms=90.0, host_probe_ms=90.0)
    assert late.verdict(LIMIT_MS) == "the server's: 149 ms"


def test_only_what_lies_within_a_wait_counts_and_the_turn_that_touches_it_counts_whole() -> None:
    wait = Span(100, 200)
    spans = [Span(0, 90), Span(50, 120), Span(150, 160), Span(190, 300), Span(200, 900)]
    assert shared_ns(spans, wait) == 20 + 10 + 10
    assert longest_ns(spans, wait) == 110
    assert longest_ns([], wait) == 0


def test_a_host_keeps_a_server_only_where_it_keeps_all_of_its_cores() -> None:
    witnesses = Witnesses([])
    witnesses.still = {0: [Span(0, 80_000_000)], 1: [Span(70_000_000, 90_000_000)], 2: []}
    wait = Span(10_000_000, 200_000_000)
    assert witnesses.still_ms([0], wait) == 70.0
    assert witnesses.still_ms([0, 1], wait) == 20.0
    assert witnesses.still_ms([0, 1, 2], wait) == 0.0


def test_a_pulse_shows_the_long_turns_to_others_and_forgets_the_oldest(tmp_path: Path) -> None:
    ours, theirs = Pulse(tmp_path / "pulse"), Pulse(tmp_path / "pulse")
    assert theirs.last_ns() == 0
    ours.beat(10)
    assert theirs.last_ns() == 10
    ours.beat(10 + NOTED_NS_MIN)
    assert theirs.turns() == []
    for _ in range(TURNS_MAX + 1):
        ours.beat(theirs.last_ns() + NOTED_NS_MIN + 1)
    assert len(theirs.turns()) == TURNS_MAX
    assert max(end for _, end in theirs.turns()) == theirs.last_ns()


def test_a_loop_that_stands_still_is_seen_from_outside_and_says_where_it_stood() -> None:
    with serving("native") as server, Watch(server) as watch:
        # It is asked once a turn: where it has stood before by itself, it is not asked again.
        for _ in range(STOPS_MAX):
            still = stand_still(server.pid)
            wait_until(lambda: longest_ns(server.turns(), still) >= still.length_ns)  # noqa: B023
            if "bourn/cli/serve.py" in watch.where(still):
                return
    raise AssertionError("it never said where it stood")


def stand_still(pid: int) -> Span:
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time_ns()
    Event().wait(4 * SILENT_NS_MIN / 1e9)
    still = Span(stopped_at, time_ns())
    os.kill(pid, signal.SIGCONT)
    return still


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_LOOKS):
        if condition():
            return
        Event().wait(0.01)
    raise AssertionError("it did not come to pass")
