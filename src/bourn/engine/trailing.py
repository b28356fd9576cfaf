"""Live followers that have fallen behind, and the writers that let them catch up.

One process takes appends in and delivers them. At full speed it would take in more than it
delivers, and followers at the tail would be seconds late for no fault of theirs. So a session that
appends waits while a live follower of its stream, here, is too far behind and moves on quickly.

Who reads slowly slows nobody: a follower counts only if it has been at the tail and is not far from
it, and only as long as it takes each batch in the time that `LIVE_BYTES_PER_S_MIN` allows. And no
session waits more than half of its time, so it is held up only if it comes at full speed.
"""

import asyncio
from functools import partial

from bourn.clock import Clock
from bourn.engine.batch import ReadBatch
from bourn.engine.stream import Stream
from bourn.limits import (
    LIVE_BATCH_SECS_MIN,
    LIVE_BYTES_PER_S_MIN,
    LIVE_LAG_BYTES_MAX,
    LIVE_LOST_BYTES,
    LIVE_WAIT_SECS_MAX,
    LIVE_WAIT_SECS_MIN,
)


class Trailer:
    """One follower's place behind the tail of its stream."""

    __slots__ = ("_clock", "_delivered_at", "_is_live", "_stream", "due_at")

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._is_live = False  # it has been at the tail, and was never far from it since
        self._delivered_at = 0.0
        self.due_at = 0.0  # when its next batch must be delivered

    def at_tail(self) -> None:
        """It has everything."""
        self._is_live = True
        self.close()

    def delivered(self, batch: ReadBatch, position: int) -> None:
        """It was given a batch, and goes on from this position."""
        if not self._is_live or not batch.records_count:
            return
        stream = self._stream
        behind = stream.tail.seq_num - position
        lag_bytes = behind * batch.metered_bytes // batch.records_count
        self._is_live = lag_bytes <= LIVE_LOST_BYTES
        now, before = self._clock.monotonic(), self._delivered_at
        self._delivered_at = now
        allowed_secs = max(batch.metered_bytes / LIVE_BYTES_PER_S_MIN, LIVE_BATCH_SECS_MIN)
        is_quick = now - before <= allowed_secs
        if lag_bytes <= LIVE_LAG_BYTES_MAX or not self._is_live or not is_quick:
            self.close()
            return
        self.due_at = now + allowed_secs
        if stream.trailers is None:
            stream.trailers = {}
        stream.trailers.setdefault(self, [])

    def close(self) -> None:
        """It is not waited for: it is not behind, or too slow, or has gone."""
        stream = self._stream
        if stream.trailers is None:
            return
        for waiter in stream.trailers.pop(self, ()):
            if not waiter.done():
                waiter.set_result(None)
        if not stream.trailers:
            stream.trailers = None


class Patience:
    """How long a session that appends may wait for followers: half of its time, and not for long.

    It waits no shorter than a moment either, or each of its batches would wait for a little.
    """

    __slots__ = ("_clock", "_left_secs", "_since", "_stream")

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._left_secs = 0.0
        self._since = clock.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether there is somebody to wait for, and time to do it."""
        if self._stream.trailers is None:
            return False
        return self._may_wait_secs(self._clock.monotonic()) >= LIVE_WAIT_SECS_MIN

    def _may_wait_secs(self, now: float) -> float:
        return min(self._left_secs + now - self._since, LIVE_WAIT_SECS_MAX)

    async def wait(self) -> None:
        """Return when no live follower is behind, or none of them is quick, or time is up."""
        began = self._clock.monotonic()
        may_secs = self._may_wait_secs(began)
        try:
            await _caught_up(self._stream, self._clock, began + may_secs)
        finally:
            self._since = self._clock.monotonic()
            self._left_secs = max(may_secs - (self._since - began), 0.0)


async def _caught_up(stream: Stream, clock: Clock, until: float) -> None:
    while stream.trailers:
        trailer = next(iter(stream.trailers))
        now = clock.monotonic()
        if now >= until:
            return
        if now >= trailer.due_at:
            trailer.close()
            continue
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.trailers[trailer].append(waiter)
        timer = clock.call_later(min(trailer.due_at, until) - now, partial(_settle, waiter))
        try:
            await waiter
        finally:
            timer.cancel()


def _settle(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
