"""Reads that go on: history first, then whatever comes, by position alone.

A follower holds a position and nothing else. It waits on the stream (no polling), is woken when
something became durable, and reads from its position, out of memory as long as it keeps up. So
the hand-over from storage to live cannot lose or repeat, and a slow follower costs no memory.
Followers of one stream that keep up are served together (`audience`).
"""

import random
from collections.abc import AsyncGenerator
from math import inf
from typing import Any, Self

from bourn.engine.audience import HEARTBEAT_SECS, Deliver, Seat, TailWait
from bourn.engine.batch import ReadBatch
from bourn.engine.reader import Collected
from bourn.engine.stream import Stream
from bourn.engine.term import Term
from bourn.engine.trailing import Trailer
from bourn.log.cursor import (
    Cursor,
    Exhausted,
    Locate,
    ReadLimits,
    ReadRequest,
    WaitBudget,
    finished,
    may_follow,
    open_cursor,
    plan_start,
    settle_start,
    unary,
)
from bourn.model.record import StreamPosition


class ReadSession(AsyncGenerator[ReadBatch, None]):
    """The batches of a session, and its heartbeats.

    Whoever can take a batch by a plain call sets `deliver`: as long as the session is at the tail
    and others are too, its batches come that way (see `audience`), and the iterator waits.
    """

    def __init__(self, read: "Read", rng: random.Random) -> None:
        self.deliver: Deliver | None = None
        self._batches = read.batches(rng, self)

    async def __anext__(self) -> ReadBatch:
        return await anext(self._batches)

    async def asend(self, value: None) -> ReadBatch:
        """Return the next batch."""
        return await self._batches.asend(value)

    async def athrow(self, *error: Any) -> ReadBatch:
        """Have the session fail."""
        return await self._batches.athrow(*error)

    async def aclose(self) -> None:
        """End the session."""
        await self._batches.aclose()


class Read:
    """A read that has found its start; opened by `open_read`, used as a context manager."""

    def __init__(
        self, term: Term, stream: Stream, request: ReadRequest, cursor: Cursor | None
    ) -> None:
        self._term = term
        self._stream = stream
        self._request = request
        self._cursor = cursor  # None: the limits leave room for nothing
        self._wait = TailWait(stream, term.clock)
        self._trailer = Trailer(stream, term.clock)
        stream.users += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the stream."""
        self._wait.close()
        self._trailer.close()
        self._stream.users -= 1

    @property
    def tail(self) -> StreamPosition:
        """The durable tail now."""
        return self._stream.tail

    async def one(self) -> ReadBatch:
        """Answer a unary read: what is there, else what comes first within the wait."""
        empty = ReadBatch((), 0, 0, self._term.encoded)
        cursor = self._cursor
        if cursor is None:
            return empty
        collected = await self._term.reader.collect(self._stream, cursor)
        if collected.batch.slices or collected.excluded or not may_follow(self._request):
            return collected.batch
        until = self._now() + (self._request.wait_secs or 0)
        while True:
            if collected.cursor.position >= self._stream.tail.seq_num:
                if self._now() >= until:
                    return empty
                self._raise_if_ended()
                await self._wait.wait(until)
                self._raise_if_ended()
                if collected.cursor.position >= self._stream.tail.seq_num:
                    continue
            collected = await self._term.reader.collect(self._stream, collected.cursor)
            if collected.batch.slices or collected.excluded:
                if collected.batch.slices:
                    collected.batch.tail = self._stream.tail
                return collected.batch

    def session(self, rng: random.Random) -> AsyncGenerator[ReadBatch, None]:
        """Yield batches and heartbeats until the read ends cleanly; errors are raised."""
        return ReadSession(self, rng)

    async def batches(
        self, rng: random.Random, session: ReadSession
    ) -> AsyncGenerator[ReadBatch, None]:
        """Do the work of a session."""
        cursor = self._cursor
        if cursor is None:
            return
        wait = WaitBudget(self._request.wait_secs)
        live = False  # whether everything up to the tail was delivered, and said so
        hurried = self._term.readers_hurried
        heard_at = heartbeat_at = 0.0
        while True:
            self._raise_if_ended()
            if cursor.position < self._stream.tail.seq_num:
                collected = await self._term.reader.collect(self._stream, cursor)
                cursor = collected.cursor
                if collected.batch.slices:
                    live = await self._mark_live(collected, live=live)
                    yield collected.batch
                    self._trailer.delivered(collected.batch, cursor.position)
                    wait = wait.delivered(self._now_ms())
                    heard_at = self._now()
                    heartbeat_at = heard_at + rng.uniform(*HEARTBEAT_SECS)
                if collected.excluded or finished(cursor):
                    return
                continue
            if not may_follow(self._request):
                return
            self._trailer.at_tail()
            wait = wait.at_tail(self._now_ms())
            if wait.expired(self._now_ms()):
                return
            if not live or self._now() >= heartbeat_at or hurried != self._term.readers_hurried:
                live, hurried = True, self._term.readers_hurried
                heard_at = self._now()
                heartbeat_at = heard_at + rng.uniform(*HEARTBEAT_SECS)
                yield ReadBatch((), 0, 0, self._term.encoded, self._stream.tail)
                continue
            seat = await self._attend(session.deliver, cursor, heard_at)
            if seat is not None:
                cursor, live, hurried = Cursor(seat.position), seat.is_live, seat.hurried
                heartbeat_at = self._now() + rng.uniform(*HEARTBEAT_SECS)
            else:
                deadline = inf if wait.deadline_ms is None else wait.deadline_ms / 1000
                await self._wait.wait(min(heartbeat_at, deadline))

    async def _attend(
        self, deliver: Deliver | None, cursor: Cursor, heard_at: float
    ) -> Seat | None:
        """Be served among the others at the tail, if there are any, and nothing ends this read."""
        request = self._request
        if deliver is None or request.limits != ReadLimits() or request.wait_secs is not None:
            return None
        return await self._term.audiences.attend(self._stream, cursor.position, deliver, heard_at)

    async def _mark_live(self, collected: Collected, *, live: bool) -> bool:
        """Show the tail on a batch that ends a caught-up reader's turn; True while it keeps up."""
        tail = self._stream.tail
        cursor = collected.cursor
        caught_up = cursor.position >= tail.seq_num
        if live and (caught_up or await self._limits_end(cursor)):
            collected.batch.tail = tail
        return live and caught_up

    async def _limits_end(self, cursor: Cursor) -> bool:
        """Whether the read's limits admit nothing of what is behind the cursor."""
        if finished(cursor):
            return True
        if cursor.bytes_left is None and cursor.until is None:
            return False
        return (await self._term.reader.collect(self._stream, cursor)).excluded

    def _raise_if_ended(self) -> None:
        if self._stream.ended is not None:
            raise self._stream.ended

    def _now(self) -> float:
        return self._term.clock.monotonic()

    def _now_ms(self) -> int:
        return round(self._term.clock.monotonic() * 1000)


async def open_read(term: Term, stream: Stream, request: ReadRequest, *, is_unary: bool) -> Read:
    """Find the start of a read; raises Unwritten where it may not begin.

    The caller is a user of the stream meanwhile; the read is one from then on.
    """
    if is_unary:
        request = unary(request)
    tail = stream.tail
    start = plan_start(request, tail)
    if isinstance(start, Exhausted):
        return Read(term, stream, request, None)
    if isinstance(start, Locate):
        start = await term.reader.locate(stream, start.timestamp)
    cursor = open_cursor(request, settle_start(request, start, tail))
    return Read(term, stream, request, cursor)
