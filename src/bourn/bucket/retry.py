"""Try again what may pass: for requests that change nothing, or that may be repeated."""

import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bourn.clock import Clock
from bourn.errors import BucketUnavailable, Damaged

BACKOFF_SECS_MIN: Final = 0.02
BACKOFF_SECS_MAX: Final = 1.0
REFETCHES_MAX: Final = 2

T = TypeVar("T")


class Backoff:
    """Pauses that grow from one to the next, each jittered down by up to half."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        secs: float = BACKOFF_SECS_MIN,
        secs_max: float = BACKOFF_SECS_MAX,
        growth: int = 2,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._secs = secs
        self._secs_max = secs_max
        self._growth = growth

    async def pause(self) -> None:
        """Sleep; the next pause is longer, up to the most."""
        await self._clock.sleep(self._secs * self._rng.uniform(0.5, 1.0))
        self._secs = min(self._growth * self._secs, self._secs_max)


class Retry:
    """Repeats requests until a deadline, with growing, jittered pauses."""

    def __init__(self, clock: Clock, rng: random.Random, deadline_secs: float) -> None:
        self._clock = clock
        self._rng = rng
        self._deadline_secs = deadline_secs

    async def __call__(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return what the request returns; what it raises last, once the deadline has passed.

        It is made twice at least, however long the first attempt took.

        A damaged object is fetched twice more before the damage is believed: the reply may have
        been cut short, or altered, on its way.
        """
        deadline = self._clock.monotonic() + self._deadline_secs
        backoff = Backoff(self._clock, self._rng)
        attempts = damages = 0
        while True:
            attempts += 1
            try:
                return await request()
            except BucketUnavailable:
                if attempts > 1 and self._clock.monotonic() >= deadline:
                    raise
            except Damaged:
                damages += 1
                if damages > REFETCHES_MAX:
                    raise
            await backoff.pause()
