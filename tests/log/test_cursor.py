"""Requests, budgets, cursors and waits, rule by rule; whole reads are in test_read_outcomes."""

from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from bourn.errors import Invalid
from bourn.limits import MIB, U64_MAX
from bourn.log.cursor import (
    Budget,
    Cursor,
    FromSeqNum,
    FromTailOffset,
    FromTimestamp,
    ReadLimits,
    ReadRequest,
    ReadStart,
    WaitBudget,
    advance,
    budget,
    finished,
    make_request,
    may_follow,
    unary,
)
from tests.log.naive import fit, refuses


class Row(NamedTuple):
    seq_num: int
    timestamp: int
    metered_bytes: int


# Requests


@pytest.mark.parametrize(
    ("parameters", "start"),
    [
        ({}, FromTailOffset(0)),
        ({"seq_num": 0}, FromSeqNum(0)),
        ({"timestamp": 0}, FromTimestamp(0)),
        ({"tail_offset": 0}, FromTailOffset(0)),
        ({"timestamp": 4, "until": 5}, FromTimestamp(4)),
        ({"seq_num": 9, "until": 5}, FromSeqNum(9)),
    ],
)
def test_a_request_has_one_start(parameters: dict[str, Any], start: ReadStart) -> None:
    assert make_request(**parameters).start == start


@pytest.mark.parametrize(
    "parameters",
    [
        {"seq_num": 0, "timestamp": 0},
        {"seq_num": 0, "tail_offset": 0},
        {"timestamp": 0, "tail_offset": 0},
        {"seq_num": 0, "timestamp": 0, "tail_offset": 0},
    ],
)
def test_two_starts_contradict(parameters: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"^only one of seq_num, timestamp, or tail_offset can be "):
        make_request(**parameters)


@pytest.mark.parametrize("timestamp", [5, 6, U64_MAX])
def test_a_start_that_is_not_before_until_contradicts(timestamp: int) -> None:
    with pytest.raises(Invalid, match=r"^start `timestamp` exceeds or equal to `until`$"):
        make_request(timestamp=timestamp, until=5)


def test_a_unary_read_is_one_batch_and_waits_a_minute_at_most() -> None:
    capped = unary(make_request(seq_num=3, clamp=True, until=9, wait=3600))
    assert capped == ReadRequest(FromSeqNum(3), True, ReadLimits(1000, MIB, 9), 60)
    wide = unary(make_request(count=1001, bytes=MIB + 1))
    assert wide.limits == ReadLimits(1000, MIB)
    narrow = unary(make_request(count=0, bytes=7, wait=0))
    assert (narrow.limits, narrow.wait_secs) == (ReadLimits(0, 7), 0)
    assert unary(make_request()).wait_secs is None


@pytest.mark.parametrize(
    ("parameters", "session", "one_response"),
    [
        ({}, True, False),
        ({"wait": 0}, True, False),
        ({"wait": 1}, True, True),
        ({"count": 5}, False, False),
        ({"bytes": 5}, False, False),
        ({"until": 5}, False, False),
        ({"until": 5, "wait": 0}, False, False),
        ({"count": 5, "wait": 1}, True, True),
    ],
)
def test_a_read_follows_if_it_is_unbounded_or_waits(
    parameters: dict[str, Any], session: bool, one_response: bool
) -> None:
    request = make_request(**parameters)
    assert may_follow(request) is session
    assert may_follow(unary(request)) is one_response


# Budgets and cursors


def test_a_batch_is_bounded_by_its_own_caps_and_by_what_the_read_has_left() -> None:
    assert budget(Cursor(0)) == Budget(1000, MIB, None)
    assert budget(Cursor(0, 5, 70, 9)) == Budget(5, 70, 9)
    assert budget(Cursor(0, 5000, 10 * MIB)) == Budget(1000, MIB, None)


def test_a_budget_shrinks_by_what_is_spent_and_takes_whole_batches_that_fit() -> None:
    room = Budget(10, 100, 9).spend(4, 60)
    assert room == Budget(6, 40, 9)
    assert room.takes_whole(6, 40, 8)
    assert not room.takes_whole(7, 40, 8)
    assert not room.takes_whole(6, 41, 8)
    assert not room.takes_whole(6, 40, 9)
    assert Budget(1, 8, None).takes_whole(1, 8, U64_MAX)


def test_a_cursor_counts_down_and_is_finished_at_zero() -> None:
    cursor = advance(Cursor(4, 5, 100, 9), 2, 30, 6)
    assert cursor == Cursor(6, 3, 70, 9)
    assert not finished(cursor)
    assert finished(advance(cursor, 3, 30, 9))
    assert finished(advance(cursor, 1, 70, 7))
    assert not finished(advance(Cursor(4), 1000, MIB, 1004))


def test_a_cursor_moves_over_a_gap_without_spending() -> None:
    assert advance(Cursor(4, 5, 100, 9), 0, 0, 50) == Cursor(50, 5, 100, 9)


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 1200), st.sampled_from([8, 100, 900, 70_000, MIB])), max_size=12
    ),
    gaps=st.integers(1, 50),
    start=st.integers(0, 3000),
    count=st.none() | st.integers(1, 4000),
    limit_bytes=st.none() | st.integers(1, 20 * MIB),
    until=st.none() | st.integers(0, 600),
)
def test_the_batches_of_a_session_join_to_the_longest_prefix_that_its_limits_allow(
    shapes: list[tuple[int, int]],
    gaps: int,
    start: int,
    count: int | None,
    limit_bytes: int | None,
    until: int | None,
) -> None:
    rows: list[Row] = []
    for drawn, size in shapes:
        first = rows[-1].seq_num + gaps if rows else 4
        repeats = min(drawn, 40) if size > 900 else drawn
        rows += [Row(first + i, (first + i) // 7, size) for i in range(repeats)]
    naive: list[int] = []
    spent = 0
    for row in rows:
        if row.seq_num < start:
            continue
        spent += row.metered_bytes
        if (
            (count is not None and len(naive) == count)
            or (limit_bytes is not None and spent > limit_bytes)
            or (until is not None and row.timestamp >= until)
        ):
            break
        naive.append(row.seq_num)

    cursor = Cursor(start, count, limit_bytes, until)
    delivered: list[int] = []
    seq_nums = np.array([row.seq_num for row in rows], dtype=np.uint64)
    sizes = np.array([row.metered_bytes for row in rows], dtype=np.uint64)
    timestamps = np.array([row.timestamp for row in rows], dtype=np.uint64)
    while not finished(cursor):
        at = int(np.searchsorted(seq_nums, np.uint64(cursor.position)))
        taken = fit(budget(cursor), sizes[at:], timestamps[at:])
        end = at + taken
        if taken == 0:
            assert at == len(rows) or refuses(cursor, rows[at].metered_bytes, rows[at].timestamp)
            break
        weight = int(sizes[at:end].sum())
        assert taken <= 1000
        assert weight <= MIB
        more = end < len(rows) and not refuses(
            advance(cursor, taken, weight, 0), rows[end].metered_bytes, rows[end].timestamp
        )
        assert not more or taken == 1000 or weight + rows[end].metered_bytes > MIB, "too small"
        delivered += [int(n) for n in seq_nums[at:end]]
        cursor = advance(cursor, taken, weight, delivered[-1] + 1)
    assert delivered == naive


# Waiting


def test_a_deadline_is_armed_at_the_tail_and_only_once_by_reaching_it() -> None:
    wait = WaitBudget(5)
    assert not wait.delivered(1000).expired(10**9), "history does not arm it"
    armed = wait.at_tail(1000)
    assert armed.deadline_ms == 6000
    assert armed.at_tail(4000) == armed
    assert not armed.expired(5999)
    assert armed.expired(6000)


def test_a_delivered_batch_renews_the_deadline() -> None:
    assert WaitBudget(5).at_tail(1000).delivered(4000).deadline_ms == 9000


def test_without_a_wait_there_is_no_deadline() -> None:
    wait = WaitBudget(None).at_tail(1000).delivered(2000)
    assert wait.deadline_ms is None
    assert not wait.expired(10**15)


def test_a_wait_of_zero_expires_at_the_tail() -> None:
    assert WaitBudget(0).at_tail(1000).expired(1000)
