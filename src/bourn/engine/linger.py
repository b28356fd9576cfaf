"""When a small commit is put to a bucket where every put costs: not too often, and not too early.

There is a flush interval between two of them. Writers that are acked together append again
together, but not at once: the first of them would be put alone, all others an interval later, and
so on for ever. So behind the interval

- a commit waits for a put that should end about now and acks many, twice as many as it has itself:
  they will be back soon; every now and then, for a put that acks fewer of them too, because
  writers who have come to share a commit stay together;
- where less has come than was acked last, it waits a moment for the next append, and again as long
  as they keep coming.

Both are bounded by a part of the interval. A lone writer waits for nobody: what it appends is as
much as was acked. Nor does anybody wait for a crowd, which takes longer than that to come back.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from bourn.clock import Clock, Timer

GATHER_SECS: Final = 0.001  # for the next of those who were acked together
GATHER_SHARE_MAX: Final = 0.2  # of the interval, for all of them
ENDS_SOON_SHARE: Final = 0.4  # of the interval, up to the end of a put that is waited for,
MANY: Final = 8  # batches that such a put acks, at least,
TWICE: Final = 2  # and of what the commit has,
CROWD: Final = 128  # batches that are acked together: more take too long to come back
TRIED_EVERY: Final = 16  # commits, of which one waits all the same


class Growing(Protocol):
    """A commit that batches join."""

    reserved: int  # bytes of room: more with every batch

    @property
    def batches(self) -> int:
        """How many have joined."""
        ...


Commit = TypeVar("Commit", bound=Growing)


class Linger(Generic[Commit]):
    """Decides when the open commit is flushed; `flush` is called once for each, on the loop."""

    def __init__(
        self,
        clock: Clock,
        interval_secs: float,
        next_put: Callable[[], tuple[int, float]],
        flush: Callable[[Commit], None],
    ) -> None:
        self._clock = clock
        self._interval_secs = interval_secs
        self._next_put = next_put  # how many batches it acks, and when it probably ends
        self._flush = flush
        self._flushed_at = float("-inf")
        self._expected_bytes = 0  # of room, in a commit with all who were acked last
        self._timer: Timer | None = None
        self._awaits_put = False
        self._untried = 0  # commits since one has waited for a put

    @property
    def is_waiting(self) -> bool:
        """Whether a commit waits for its time."""
        return self._timer is not None

    def begin(self, commit: Commit) -> None:
        """Have a commit flushed when its time has come."""
        secs = self._flushed_at + self._interval_secs - self._clock.monotonic()
        if secs > 0:
            self._wait(secs, partial(self._interval_over, commit))
        else:
            self._interval_over(commit)

    def acked(self, batches: int, reserved_bytes: int, commit: Commit) -> None:
        """Writers of so much were acked together; the open commit may have waited for them."""
        expected_bytes = reserved_bytes + commit.reserved * self._awaits_put
        self._expected_bytes = expected_bytes if batches <= CROWD else 0

    def flushed(self) -> None:
        """A commit was closed; the interval to the next one begins."""
        self._flushed_at = self._clock.monotonic()
        self._untried += 1
        self.end()

    def end(self) -> None:
        """Wait no more, and do nothing."""
        self._awaits_put = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, secs: float, then: Callable[[], None]) -> None:
        self._timer = self._clock.call_later(secs, then)

    def _interval_over(self, commit: Commit) -> None:
        now, soon_secs = self._clock.monotonic(), ENDS_SOON_SHARE * self._interval_secs
        is_late = now >= self._flushed_at + self._interval_secs + soon_secs
        acks, ends_at = self._next_put()
        are_many = self._untried >= TRIED_EVERY or acks >= TWICE * commit.batches
        if MANY <= acks <= CROWD and are_many and not is_late and abs(ends_at - now) <= soon_secs:
            self._awaits_put, self._untried = True, 0
            self._wait(soon_secs, partial(self._now, commit))
        else:
            self._gather(commit, 0, now + GATHER_SHARE_MAX * self._interval_secs)

    def _gather(self, commit: Commit, had_bytes: int, until: float) -> None:
        has_bytes = commit.reserved
        if had_bytes < has_bytes < self._expected_bytes and self._clock.monotonic() < until:
            self._wait(GATHER_SECS, partial(self._gather, commit, has_bytes, until))
        else:
            self._now(commit)

    def _now(self, commit: Commit) -> None:
        """Flush with all that joins in this turn of the loop."""
        self.end()
        asyncio.get_running_loop().call_soon(self._flush, commit)
