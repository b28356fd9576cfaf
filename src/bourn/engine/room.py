"""Back-pressure: bytes admitted but not durable are capped; who comes too early waits its turn."""

import asyncio
from collections import deque
from typing import Final

from bourn.errors import BournError

# What Python's objects around one batch in flight weigh. No batch takes less room than that:
# millions of tiny ones would fit the budget otherwise, and not the memory.
BATCH_ROOM_BYTES_MIN: Final = 512


def room_of(payload: bytes | memoryview) -> int:
    """How much room a batch takes."""
    return max(len(payload), BATCH_ROOM_BYTES_MIN)


class Room:
    """A byte budget handed out in order of asking. One oversized request alone always fits."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._failed: BournError | None = None

    @property
    def waiting(self) -> int:
        """How many appends wait for room."""
        return len(self._waiters)

    def try_take(self, size_bytes: int) -> bool:
        """Take at once if there is room and nobody waits before; False otherwise."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self.bytes_taken += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Take, waiting in line; a cancelled or failed wait holds nothing."""
        if self.try_take(size_bytes):
            return
        if self._failed is not None:
            raise self._failed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(size_bytes)  # it was granted in the moment of the cancellation
            else:
                self._grant()
            raise

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken, and let the next in line go."""
        self.bytes_taken -= size_bytes
        self._grant()

    def fail(self, error: BournError) -> None:
        """Turn everybody away who waits, or would have to: nothing is given back any more."""
        self._failed = error
        waiters, self._waiters = self._waiters, deque()
        for _, future in waiters:
            if not future.done():
                future.set_exception(error)

    def _fits(self, size_bytes: int) -> bool:
        return self.bytes_taken + size_bytes <= self.bytes_max or self.bytes_taken == 0

    def _grant(self) -> None:
        while self._waiters:
            size_bytes, future = self._waiters[0]
            if future.done():  # cancelled while it waited
                self._waiters.popleft()
            elif self._fits(size_bytes):
                self._waiters.popleft()
                self.bytes_taken += size_bytes
                future.set_result(None)
            else:
                return
