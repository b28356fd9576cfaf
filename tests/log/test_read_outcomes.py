"""Whole reads of a stream that is a list: the outcome matrix, and live following."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from bourn.errors import Invalid, Unwritten
from bourn.log.cursor import (
    Cursor,
    Exhausted,
    Locate,
    ReadRequest,
    WaitBudget,
    advance,
    budget,
    finished,
    make_request,
    may_follow,
    open_cursor,
    plan_start,
    settle_start,
    unary,
)
from bourn.model.record import StreamPosition
from tests.log.naive import batch_tail, fit, refuses


class Row(NamedTuple):
    seq_num: int
    timestamp: int
    metered_bytes: int = 8


class Live(NamedTuple):
    """A batch that becomes durable while a read waits."""

    at_ms: int
    rows: list[Row]


class Outcome(NamedTuple):
    """What the client of a read sees; `ended_at_ms` is None where the read follows on."""

    status: int
    seq_nums: Sequence[int] = ()
    tails: Sequence[int] = ()  # of delivered batches and heartbeats
    ended_at_ms: int | None = 0


class Listed(NamedTuple):
    """The rows that still exist, and the durable tail."""

    rows: list[Row]
    tail: StreamPosition

    def start(self, request: ReadRequest) -> int | Exhausted:
        planned = plan_start(request, self.tail)
        if isinstance(planned, Exhausted):
            return planned
        if isinstance(planned, Locate):
            not_older = (row.seq_num for row in self.rows if row.timestamp >= planned.timestamp)
            planned = next(not_older, self.tail.seq_num)
        return settle_start(request, planned, self.tail)


class Reader:
    """A read loop with time as a number: unary or session, history then live batches."""

    def __init__(self, stream: Listed, request: ReadRequest, live: Sequence[Live]) -> None:
        self.stream = stream
        self.request = request
        self.live = list(live)
        self.wait = WaitBudget(request.wait_secs)
        self.now_ms = 0
        self.seq_nums: list[int] = []
        self.tails: list[int] = []

    def deliver(self, cursor: Cursor, rows: list[Row], live_end: StreamPosition | None) -> Cursor:
        taken = rows[: fit(budget(cursor), sizes_of(rows), timestamps_of(rows))]
        self.seq_nums += [row.seq_num for row in taken]
        tail = batch_tail(len(taken), live_end)
        if tail is not None:
            self.tails.append(tail.seq_num)
        if not taken:
            return cursor
        self.wait = self.wait.delivered(self.now_ms)
        weight = sum(row.metered_bytes for row in taken)
        return advance(cursor, len(taken), weight, taken[-1].seq_num + 1)

    def ended(self, cursor: Cursor, rows: list[Row]) -> bool:
        rest = [row for row in rows if row.seq_num >= cursor.position]
        return finished(cursor) or bool(
            rest and refuses(cursor, rest[0].metered_bytes, rest[0].timestamp)
        )

    def run(self, cursor: Cursor, *, session: bool) -> int | None:
        """Return when the read ended, or None if it would follow for ever."""
        while rest := [row for row in self.stream.rows if row.seq_num >= cursor.position]:
            cursor = self.deliver(cursor, rest, None)
            if not session or self.ended(cursor, rest):
                return self.now_ms
        if not may_follow(self.request):
            return self.now_ms
        tail = self.stream.tail
        self.wait = self.wait.at_tail(self.now_ms)
        if session:
            self.tails.append(tail.seq_num)
        while not self.wait.expired(self.now_ms):
            if not self.live or self.wait.expired(self.live[0].at_ms):
                if self.wait.deadline_ms is None:
                    return None
                self.now_ms = self.wait.deadline_ms
                continue
            self.now_ms, rows = self.live.pop(0)
            end = StreamPosition(rows[-1].seq_num + 1, rows[-1].timestamp)
            cursor = self.deliver(cursor, rows, end)
            if not session or self.ended(cursor, rows):
                return self.now_ms
        return self.now_ms


def sizes_of(rows: Sequence[Row]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([row.metered_bytes for row in rows], dtype=np.uint64)


def timestamps_of(rows: Sequence[Row]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([row.timestamp for row in rows], dtype=np.uint64)


def read(
    stream: Listed, *, session: bool = False, live: Sequence[Live] = (), **parameters: Any
) -> Outcome:
    try:
        request = make_request(**parameters)
        if not session:
            request = unary(request)
        start = stream.start(request)
    except Invalid:
        return Outcome(422)
    except Unwritten:
        return Outcome(416)
    if isinstance(start, Exhausted):
        return Outcome(200)
    reader = Reader(stream, request, live)
    ended_at_ms = reader.run(open_cursor(request, start), session=session)
    return Outcome(200, tuple(reader.seq_nums), tuple(reader.tails), ended_at_ms)


# Sequence numbers 4..9; 5 and 6 share a timestamp, and so do 8 and 9.
T = 1008
STREAM = Listed(
    [Row(4, 1004), Row(5, 1005), Row(6, 1005), Row(7, 1007), Row(8, T), Row(9, T)],
    StreamPosition(10, T),
)
ALL_TRIMMED = Listed([], StreamPosition(10, T))
NEW = Listed([], StreamPosition(0, 0))
SOON = [Live(500, [Row(10, 1010), Row(11, 1011), Row(12, 1012)])]
SESSION = {"session": True}

OK = 200
MATRIX: list[tuple[Listed, dict[str, Any], Outcome]] = [
    (STREAM, {"seq_num": 0}, Outcome(OK, (4, 5, 6, 7, 8, 9))),
    (STREAM, {"seq_num": 9, "count": 5}, Outcome(OK, (9,))),
    (STREAM, {"seq_num": 10}, Outcome(416)),
    (STREAM, {"seq_num": 10, "wait": 2}, Outcome(OK, (), (), 2000)),
    (STREAM, {"seq_num": 10, "wait": 30, "live": SOON}, Outcome(OK, (10, 11, 12), (13,), 500)),
    (STREAM, {"seq_num": 8, "wait": 30, "live": SOON}, Outcome(OK, (8, 9))),
    (STREAM, {"seq_num": 11}, Outcome(416)),
    (STREAM, {"seq_num": 11, "wait": 30}, Outcome(416)),
    (STREAM, {"seq_num": 11, "clamp": True}, Outcome(416)),
    (STREAM, {"seq_num": 11, "clamp": True, "wait": 2}, Outcome(OK, (), (), 2000)),
    (STREAM, {"tail_offset": 3}, Outcome(OK, (7, 8, 9))),
    (STREAM, {"tail_offset": 100}, Outcome(OK, (4, 5, 6, 7, 8, 9))),
    (STREAM, {"tail_offset": 0, "clamp": True}, Outcome(416)),
    (STREAM, {}, Outcome(416)),
    (STREAM, {"timestamp": T}, Outcome(OK, (8, 9))),
    (STREAM, {"timestamp": 1006}, Outcome(OK, (7, 8, 9))),
    (STREAM, {"timestamp": 0}, Outcome(OK, (4, 5, 6, 7, 8, 9))),
    (STREAM, {"timestamp": T + 1}, Outcome(416)),
    (STREAM, {"timestamp": T + 1, "wait": 1}, Outcome(416)),
    (STREAM, {"timestamp": T + 1, "clamp": True, "wait": 1}, Outcome(OK, (), (), 1000)),
    (STREAM, {"seq_num": 4, "count": 0}, Outcome(OK)),
    (STREAM, {"seq_num": 99, "count": 0}, Outcome(OK)),
    (STREAM, {"seq_num": 99, "bytes": 0}, Outcome(OK)),
    (STREAM, {"seq_num": 99, "bytes": 7}, Outcome(416)),
    (STREAM, {"seq_num": 4, "bytes": 7}, Outcome(OK)),
    (STREAM, {"seq_num": 4, "bytes": 23}, Outcome(OK, (4, 5))),
    (STREAM, {"seq_num": 4, "until": 1005}, Outcome(OK, (4,))),
    (STREAM, {"timestamp": 5, "until": 5}, Outcome(422)),
    (STREAM, {"timestamp": 5, "until": 5, "count": 0}, Outcome(422)),
    (STREAM, {"seq_num": 1, "timestamp": 1}, Outcome(422)),
    (STREAM, {"seq_num": 0, "count": 100} | SESSION, Outcome(OK, (4, 5, 6, 7, 8, 9))),
    (STREAM, {"seq_num": 0} | SESSION, Outcome(OK, (4, 5, 6, 7, 8, 9), (10,), None)),
    (STREAM, {"seq_num": 0, "wait": 0} | SESSION, Outcome(OK, (4, 5, 6, 7, 8, 9), (10,), 0)),
    (STREAM, {"seq_num": 10, "count": 5} | SESSION, Outcome(416)),
    (
        STREAM,
        {"seq_num": 10, "count": 2, "wait": 60, "live": SOON} | SESSION,
        Outcome(OK, (10, 11), (10, 13), 500),
    ),
    (ALL_TRIMMED, {"seq_num": 0}, Outcome(OK)),
    (ALL_TRIMMED, {"tail_offset": 0}, Outcome(416)),
    (ALL_TRIMMED, {"tail_offset": 5}, Outcome(OK)),
    (ALL_TRIMMED, {"timestamp": 5}, Outcome(416)),
    (ALL_TRIMMED, {"timestamp": 5, "wait": 1}, Outcome(OK, (), (), 1000)),
    (ALL_TRIMMED, {"seq_num": 0, "count": 5} | SESSION, Outcome(OK)),
    (ALL_TRIMMED, {"seq_num": 0} | SESSION, Outcome(OK, (), (10,), None)),
    (NEW, {"seq_num": 0}, Outcome(416)),
    (NEW, {"timestamp": 0}, Outcome(416)),
    (NEW, {"seq_num": 0} | SESSION, Outcome(OK, (), (0,), None)),
]


def name_of(value: Any) -> str | None:
    if isinstance(value, dict):
        return "&".join(f"{k}={'…' if k == 'live' else v}" for k, v in value.items()) or "no-start"
    if isinstance(value, Listed):
        return {STREAM.tail: "kept" if value.rows else "trimmed", NEW.tail: "new"}[value.tail]
    return ""


@pytest.mark.parametrize(("stream", "request_", "expected"), MATRIX, ids=name_of)
def test_the_outcome_of_a_read_is_that_of_the_matrix(
    stream: Listed, request_: dict[str, Any], expected: Outcome
) -> None:
    assert read(stream, **request_) == expected


@pytest.mark.parametrize("start", [{"seq_num": 10}, {"seq_num": 11}, {"timestamp": T + 1}])
def test_an_unwritten_read_is_told_the_tail(start: dict[str, Any]) -> None:
    with pytest.raises(Unwritten) as refusal:
        STREAM.start(unary(make_request(**start)))
    assert (refusal.value.tail_seq_num, refusal.value.tail_timestamp) == STREAM.tail


# Live following


def test_a_session_ends_when_its_wait_passes_without_a_batch_and_each_batch_renews_it() -> None:
    live = [
        Live(900, [Row(10, 1010)]),
        Live(1800, [Row(11, 1011)]),
        Live(2800, [Row(12, 1012)]),
    ]
    outcome = read(STREAM, session=True, seq_num=10, wait=1, live=live)
    assert outcome == Outcome(OK, (10, 11), (10, 11, 12), 2800)


def test_a_live_batch_that_until_excludes_ends_a_read_at_once() -> None:
    assert read(STREAM, seq_num=10, wait=30, until=1010, live=SOON) == Outcome(OK, (), (), 500)
    outcome = read(STREAM, session=True, seq_num=10, wait=30, until=1011, live=SOON)
    assert outcome == Outcome(OK, (10,), (10, 13), 500)


def test_a_live_batch_that_bytes_exclude_ends_a_read_at_once() -> None:
    assert read(STREAM, seq_num=10, wait=30, bytes=7, live=SOON) == Outcome(OK, (), (), 500)
    outcome = read(STREAM, session=True, seq_num=9, wait=30, bytes=20, live=SOON)
    assert outcome == Outcome(OK, (9, 10), (10, 13), 500)


def test_a_tail_is_shown_by_live_batches_only_and_never_without_records() -> None:
    end = StreamPosition(13, 5)
    assert batch_tail(2, end) == end
    assert batch_tail(2, None) is None
    assert batch_tail(0, end) is None
