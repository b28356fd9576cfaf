"""Reads: where one starts, what each of its batches may hold, and when it ends.

    make_request ──► unary? ──► plan_start ──► [look a timestamp up] ──► settle_start ──► Cursor
                                    │                                        │
                                    ├─ Exhausted: an empty success           └─ Unwritten (416)
                                    └─ Unwritten (416)

A cursor then moves batch by batch: `budget` says what the next may take, `advance` moves on. The
read ends when the cursor is `finished`, when its limits exclude the next record, or at the tail: at
once unless `may_follow`, else when its WaitBudget has expired.
"""

from typing import NamedTuple, Self

import msgspec

from bourn.errors import Invalid, Unwritten
from bourn.limits import (
    READ_BATCH_METERED_BYTES_MAX,
    READ_BATCH_RECORDS_MAX,
    READ_WAIT_SECS_MAX,
)
from bourn.model.record import StreamPosition


class FromSeqNum(NamedTuple):
    """Start at this sequence number, or at the first record behind it that still exists."""

    seq_num: int


class FromTimestamp(NamedTuple):
    """Start at the first record that is not older."""

    timestamp: int


class FromTailOffset(NamedTuple):
    """Start this many records before the tail."""

    tail_offset: int


ReadStart = FromSeqNum | FromTimestamp | FromTailOffset


class ReadLimits(msgspec.Struct, frozen=True):
    """Where a read stops; None is unbounded. `until` is a timestamp and is exclusive."""

    count: int | None = None
    bytes: int | None = None  # metered
    until: int | None = None


class ReadRequest(msgspec.Struct, frozen=True):
    """A read that makes sense in itself, whatever the stream holds."""

    start: ReadStart
    clamp: bool = False
    limits: ReadLimits = ReadLimits()
    wait_secs: int | None = None


class Locate(NamedTuple):
    """The start depends on a look-up.

    Wanted is the first existing record with this timestamp or a later one, else the tail.
    """

    timestamp: int


class Exhausted(msgspec.Struct, frozen=True):
    """The limits leave room for nothing: an empty success, whatever the start."""


def make_request(
    *,
    seq_num: int | None = None,
    timestamp: int | None = None,
    tail_offset: int | None = None,
    clamp: bool = False,
    count: int | None = None,
    bytes: int | None = None,  # noqa: A002  the API's name for it
    until: int | None = None,
    wait: int | None = None,
) -> ReadRequest:
    """Build a request from the API's parameters; raises Invalid where they contradict."""
    starts: list[ReadStart] = []
    if seq_num is not None:
        starts.append(FromSeqNum(seq_num))
    if timestamp is not None:
        starts.append(FromTimestamp(timestamp))
    if tail_offset is not None:
        starts.append(FromTailOffset(tail_offset))
    if len(starts) > 1:
        raise Invalid("only one of seq_num, timestamp, or tail_offset can be provided")
    if timestamp is not None and until is not None and timestamp >= until:
        raise Invalid("start `timestamp` exceeds or equal to `until`")
    start = starts[0] if starts else FromTailOffset(0)
    return ReadRequest(start, clamp, ReadLimits(count, bytes, until), wait)


def unary(request: ReadRequest) -> ReadRequest:
    """Return the request as one response can answer it: a single batch, a bounded wait."""
    limits = ReadLimits(
        _at_most(request.limits.count, READ_BATCH_RECORDS_MAX),
        _at_most(request.limits.bytes, READ_BATCH_METERED_BYTES_MAX),
        request.limits.until,
    )
    wait_secs = None if request.wait_secs is None else min(request.wait_secs, READ_WAIT_SECS_MAX)
    return ReadRequest(request.start, request.clamp, limits, wait_secs)


def may_follow(request: ReadRequest) -> bool:
    """Whether the read may stay at the tail for what comes; otherwise it ends there."""
    limits = request.limits
    unbounded = limits.count is None and limits.bytes is None and limits.until is None
    return unbounded or bool(request.wait_secs)


def plan_start(request: ReadRequest, tail: StreamPosition) -> int | Locate | Exhausted:
    """Find the start as far as the durable tail tells it; raises Unwritten for one beyond it."""
    if request.limits.count == 0 or request.limits.bytes == 0:
        return Exhausted()
    match request.start:
        case FromTailOffset(offset):
            return max(0, tail.seq_num - offset)
        case FromSeqNum(seq_num):
            if seq_num <= tail.seq_num:
                return seq_num
        case FromTimestamp(timestamp):
            if timestamp <= tail.timestamp:
                return Locate(timestamp)
    if request.clamp:
        return tail.seq_num
    raise Unwritten(*tail)


def settle_start(request: ReadRequest, seq_num: int, tail: StreamPosition) -> int:
    """Accept a start that was planned or located; raises Unwritten at the tail without a wait.

    A start below the earliest record stands: there the read finds nothing, which is no error.
    """
    if seq_num >= tail.seq_num and not may_follow(request):
        raise Unwritten(*tail)
    return seq_num


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """A read under way: the sequence number to go on from and what its limits still allow."""

    position: int
    count_left: int | None = None
    bytes_left: int | None = None
    until: int | None = None


class Budget(NamedTuple):
    """What a read batch may still take: its own caps and the limits of its read, whichever less."""

    records: int
    metered_bytes: int
    until: int | None

    def spend(self, records: int, metered_bytes: int) -> "Budget":
        """Return what is left after these were taken."""
        return Budget(self.records - records, self.metered_bytes - metered_bytes, self.until)

    def takes_whole(self, records: int, metered_bytes: int, last_timestamp: int) -> bool:
        """Whether a stored batch fits without a cut."""
        return (
            records <= self.records
            and metered_bytes <= self.metered_bytes
            and (self.until is None or last_timestamp < self.until)
        )


def open_cursor(request: ReadRequest, seq_num: int) -> Cursor:
    """Begin a read at its settled start."""
    limits = request.limits
    return Cursor(seq_num, limits.count, limits.bytes, limits.until)


def budget(cursor: Cursor) -> Budget:
    """Return what the cursor's next batch may take."""
    return Budget(
        _at_most(cursor.count_left, READ_BATCH_RECORDS_MAX),
        _at_most(cursor.bytes_left, READ_BATCH_METERED_BYTES_MAX),
        cursor.until,
    )


def advance(cursor: Cursor, records: int, metered_bytes: int, next_position: int) -> Cursor:
    """Move behind what was delivered; also over a gap, where nothing was."""
    return Cursor(
        next_position,
        None if cursor.count_left is None else cursor.count_left - records,
        None if cursor.bytes_left is None else cursor.bytes_left - metered_bytes,
        cursor.until,
    )


def finished(cursor: Cursor) -> bool:
    """Whether the limits are used up, so that the read ends without a look at the next record."""
    return cursor.count_left == 0 or cursor.bytes_left == 0


class WaitBudget(msgspec.Struct, frozen=True, gc=False):
    """How long a read may idle at the tail; `now_ms` is of a clock that never goes back.

    The deadline is armed when the read first reaches the tail and again by each batch that it
    delivers from then on. Heartbeats do not touch it. Without `wait_secs` there is none.
    """

    wait_secs: int | None
    deadline_ms: int | None = None

    def at_tail(self, now_ms: int) -> Self:
        """Note that everything durable was delivered."""
        return self if self.deadline_ms is not None else self._armed(now_ms)

    def delivered(self, now_ms: int) -> Self:
        """Note that a batch was delivered."""
        return self if self.deadline_ms is None else self._armed(now_ms)

    def expired(self, now_ms: int) -> bool:
        """Whether a read that is at the tail ends now."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms

    def _armed(self, now_ms: int) -> Self:
        if self.wait_secs is None:
            return self
        return type(self)(self.wait_secs, now_ms + self.wait_secs * 1000)


def _at_most(limit: int | None, cap: int) -> int:
    return cap if limit is None else min(limit, cap)
