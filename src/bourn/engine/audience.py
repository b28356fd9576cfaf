"""Followers that have caught up with a stream, served together.

A thousand followers at one tail all want the same next batch. Alone, each would be woken, look it
up and go to sleep again. As an audience they have one task between them, which looks it up once and
hands it to all, one after the other, by a plain call. Whoever cannot take it at once (its client
does not read) leaves, and goes on alone from where it is; whoever keeps up stays.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from bourn.clock import Clock, Timer
from bourn.engine.batch import ReadBatch
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import EncodedBatches
from bourn.engine.tasks import Tasks
from bourn.errors import BournError
from bourn.log.cursor import Cursor
from bourn.model.record import StreamPosition

HEARTBEAT_SECS: Final = (5.0, 15.0)  # drawn anew each time
SERVED_AT_ONCE: Final = 64  # then others have their turn, and what was written goes out

Deliver = Callable[[ReadBatch], bool]  # False where the batch could not be taken at once


class Collected(Protocol):
    """A batch, and the cursor behind it."""

    @property
    def batch(self) -> ReadBatch:
        """What was found."""
        ...

    @property
    def cursor(self) -> Cursor:
        """Where to go on."""
        ...


class Collects(Protocol):
    """Who finds the batches of a stream."""

    async def collect(self, stream: Stream, cursor: Cursor) -> Collected:
        """Take the next batch at the cursor, from what is durable now."""
        ...


class TailWait:
    """Waits at the tail of one stream until a moment at the latest.

    One timer serves many waits: when it fires too early it is set again, so being woken by data
    costs no timer work.
    """

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._future: asyncio.Future[None] | None = None
        self._until = 0.0
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    async def wait(self, until: float) -> None:
        """Return when the stream moves or ends, or at `until` of the monotonic clock."""
        future = self._future = self._stream.wait()
        self._until = until
        if until < self._timer_at:
            self._set_timer(until)
        await future

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_later(at - self._clock.monotonic(), self._due)

    def _due(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        if self._future is None or self._future.done():
            return
        if self._clock.monotonic() >= self._until:
            self._stream.leave(self._future)
            self._future.set_result(None)
        elif self._until != float("inf"):
            self._set_timer(self._until)

    def close(self) -> None:
        """Let go of the timer and of the place among the waiters."""
        if self._timer is not None:
            self._timer.cancel()
        if self._future is not None:
            self._stream.leave(self._future)
            self._future.cancel()


class Seat:
    """One follower's place. What it says when the follower leaves is where that goes on."""

    __slots__ = ("deliver", "heartbeat_secs", "hurried", "is_live", "left", "position", "quiet_at")

    def __init__(
        self, deliver: Deliver, position: int, hurried: int, quiet_at: float, heartbeat_secs: float
    ) -> None:
        self.deliver = deliver
        self.position = position
        self.hurried = hurried  # the last call for heartbeats that it answered
        self.is_live = True  # whether its client was told that it has everything
        self.quiet_at = quiet_at  # since when its own client has heard nothing
        self.heartbeat_secs = heartbeat_secs
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Let the follower go on alone."""
        if not self.left.done():
            self.left.set_result(None)


class Audience:
    """All seats at the tail of one stream."""

    def __init__(
        self,
        stream: Stream,
        reader: Collects,
        encoded: EncodedBatches,
        clock: Clock,
        rng: random.Random,
        hurried: Callable[[], int],
        position: int,
    ) -> None:
        self.stream = stream
        self._reader = reader
        self._encoded = encoded
        self._clock = clock
        self._rng = rng
        self._hurried_now = hurried
        self._hurried = hurried()
        self._position = position
        self._is_live = True
        self._delivered_at = 0.0
        self._look_at = 0.0  # for heartbeats; nobody's is due before
        self._wait = TailWait(stream, clock)
        self.seats: dict[Seat, None] = {}
        self.task: asyncio.Task[None] | None = None
        self.is_over = False

    def has_place_at(self, position: int) -> bool:
        """Whether a follower at this position is where the others are, or will be in a moment."""
        return (
            self._position <= position == self.stream.tail.seq_num
            and self._is_live
            and self._hurried == self._hurried_now()
        )

    def enter(self, deliver: Deliver, position: int, quiet_at: float) -> Seat:
        """Take a seat; its client has heard nothing since `quiet_at`."""
        secs = self._rng.uniform(*HEARTBEAT_SECS)
        seat = Seat(deliver, position, self._hurried, quiet_at, secs)
        self.seats[seat] = None
        return seat

    async def serve(self) -> None:
        """Deliver whatever comes, until the stream ends or cannot be read, or nobody is left."""
        stream = self.stream
        try:
            while self.seats and stream.ended is None:
                if self._position < stream.tail.seq_num:
                    await self._serve_next()
                elif not self._is_live or self._hurried != self._hurried_now():
                    was_live, self._is_live = self._is_live, True
                    self._hurried = self._hurried_now()
                    await self._hand_out(self._heartbeat(), self._position, is_live=was_live)
                else:
                    self._send_heartbeats()
                    await self._wait.wait(self._look_at)
        except BournError:
            pass  # everybody meets it alone
        finally:
            self.is_over = True
            self._wait.close()
            for seat in self.seats:
                seat.leave()

    async def _serve_next(self) -> None:
        collected = await self._reader.collect(self.stream, Cursor(self._position))
        batch, position = collected.batch, collected.cursor.position
        was_live = self._is_live
        if batch.slices:
            is_all = position >= self.stream.tail.seq_num
            if was_live and is_all:
                batch.tail = self.stream.tail
            self._is_live = was_live and is_all
            await self._hand_out(batch, position, is_live=was_live)
        else:
            for seat in self.seats:
                seat.position = max(seat.position, position)
        self._position = position

    async def _hand_out(self, batch: ReadBatch, position: int, *, is_live: bool) -> None:
        """Give a batch to all; who does not take it leaves, and has not got it."""
        self._delivered_at = self._clock.monotonic()
        served = 0
        for seat in list(self.seats):
            if seat not in self.seats or seat.position >= position > self._position:
                continue  # it has gone, or had all of it before it came
            if seat.position == self._position and seat.deliver(batch):
                seat.position = position
                seat.is_live = self._is_live
                seat.hurried = self._hurried
            else:
                seat.is_live = is_live
                del self.seats[seat]
                seat.leave()
            served += 1
            if served % SERVED_AT_ONCE == 0:
                await asyncio.sleep(0)  # noqa: TID251  a bare yield

    def _send_heartbeats(self) -> None:
        """Give a heartbeat to whoever has heard nothing for long."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        heartbeat = None
        look_at = float("inf")
        for seat in list(self.seats):
            due_at = max(seat.quiet_at, self._delivered_at) + seat.heartbeat_secs
            if due_at <= now:
                heartbeat = heartbeat or self._heartbeat()
                if not seat.deliver(heartbeat):
                    del self.seats[seat]
                    seat.leave()
                    continue
                seat.quiet_at, seat.heartbeat_secs = now, self._rng.uniform(*HEARTBEAT_SECS)
                due_at = now + seat.heartbeat_secs
            look_at = min(look_at, due_at)
        self._look_at = min(look_at, now + HEARTBEAT_SECS[0])  # for those who come meanwhile

    def _heartbeat(self) -> ReadBatch:
        tail: StreamPosition = self.stream.tail
        return ReadBatch((), 0, 0, self._encoded, tail)


class Audiences:
    """The audiences of all streams."""

    def __init__(
        self,
        reader: Collects,
        encoded: EncodedBatches,
        clock: Clock,
        rng: random.Random,
        tasks: Tasks,
        hurried: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._encoded = encoded
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._hurried = hurried
        self._audiences: dict[int, Audience] = {}

    async def attend(
        self, stream: Stream, position: int, deliver: Deliver, quiet_at: float
    ) -> Seat | None:
        """Be served among others for as long as it goes; None where there are none just now.

        The stream stays the caller's to use meanwhile.
        """
        audience = self._audiences.get(stream.id)
        if audience is None or audience.is_over or audience.stream is not stream:
            if stream.waiters is None or position != stream.tail.seq_num:
                return None
            audience = self._open(stream, position)
        elif not audience.has_place_at(position):
            return None
        seat = audience.enter(deliver, position, quiet_at)
        try:
            await seat.left
        finally:
            audience.seats.pop(seat, None)
            if not audience.seats:
                self._close(audience)
        return seat

    def _open(self, stream: Stream, position: int) -> Audience:
        audience = Audience(
            stream,
            self._reader,
            self._encoded,
            self._clock,
            self._rng,
            self._hurried,
            position,
        )
        self._audiences[stream.id] = audience
        audience.task = self._tasks.spawn(audience.serve(), "audience")
        return audience

    def _close(self, audience: Audience) -> None:
        if self._audiences.get(audience.stream.id) is audience:
            del self._audiences[audience.stream.id]
        if audience.task is not None:
            audience.task.cancel()
