"""A bucket none of whose calls lasts for ever: whoever waited too long is told, and may ask again.

A put that was given up may still take effect, as after every `BucketUnavailable`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Final, TypeVar

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo, Range, ReadsMany, ReadsNow
from bourn.bucket.spool import SpooledBucket
from bourn.clock import Clock
from bourn.errors import BucketUnavailable
from bourn.settings import EngineSettings

T = TypeVar("T")

_READING_NOW: Final = frozenset({MemoryBucket, LocalBucket, SpooledBucket})
BYTES_PER_SEC_MIN: Final = 1 << 20  # a transfer that is slower than this counts as stuck


class _Call:
    """A call under way, as the watch sees it."""

    __slots__ = ("deadline", "is_overdue", "task")

    def __init__(self, task: "asyncio.Task[object]", deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.is_overdue = False


class BoundedBucket:
    """`inner`, with `put_attempt_secs` for each call and more for large transfers.

    What `get` returns is at most a commit, and may take twice as long; whoever wants more asks for
    a range and so tells its size. One timer watches all calls, and only while there are any: a
    call may last a quarter longer.
    """

    def __init__(self, inner: Bucket, settings: EngineSettings, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._attempt_secs = settings.put_attempt_secs
        # Those very buckets: what is put around one, or made of it, may have its own idea.
        self._near = inner if isinstance(inner, ReadsNow) and type(inner) in _READING_NOW else None
        self._calls: dict[_Call, None] = {}
        self._is_watching = False

    @property
    def name(self) -> str:
        """Where the inner bucket is."""
        return self._inner.name

    @property
    def is_remote(self) -> bool:
        """Whether the inner bucket is remote."""
        return self._inner.is_remote

    @property
    def in_memory(self) -> MemoryBucket | None:
        """The inner bucket, where its objects need not be asked for: nothing of it takes time."""
        return self._inner if type(self._inner) is MemoryBucket else None

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, or fail."""
        secs = self._attempt_secs + len(data) / BYTES_PER_SEC_MIN
        await self._within(secs, key, self._inner.put_if_absent(key, data))

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object, or fail."""
        secs = self._attempt_secs + len(data) / BYTES_PER_SEC_MIN
        await self._within(secs, key, self._inner.put(key, data))

    async def get(self, key: str) -> bytes:
        """Return the object, or fail."""
        return await self._within(2 * self._attempt_secs, key, self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the object, or fail."""
        secs = self._attempt_secs + length / BYTES_PER_SEC_MIN
        return await self._within(secs, key, self._inner.get_range(key, start, length))

    @property
    def reads_now(self) -> bool:
        """Whether `range_now` ever gives anything."""
        return self._near is not None

    def range_now(self, key: str, start: int, length: int) -> bytes | memoryview | None:
        """Return a part of the object where nobody has to wait for it; None for `get_range`."""
        return None if self._near is None else self._near.range_now(key, start, length)

    def forget_copy(self, key: str) -> None:
        """Ask for the object itself the next time, where there is a copy of it."""
        if isinstance(self._inner, SpooledBucket):
            self._inner.forget_copy(key)

    @property
    def reads_many(self) -> bool:
        """Whether `get_ranges` may be called."""
        return isinstance(self._inner, ReadsMany)

    async def get_ranges(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return the ranges that can be had, or fail."""
        assert isinstance(self._inner, ReadsMany)
        secs = self._attempt_secs + sum(length for _, _, length in ranges) / BYTES_PER_SEC_MIN
        return await self._within(secs, ranges[0].key, self._inner.get_ranges(ranges))

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects, or fail; the time counts anew for each."""
        listing = aiter(self._inner.list(prefix, after))
        while True:
            try:
                info = await self._within(self._attempt_secs, prefix, anext(listing))
            except StopAsyncIteration:
                return
            yield info

    async def delete(self, key: str) -> None:
        """Remove the object, or fail."""
        await self._within(self._attempt_secs, key, self._inner.delete(key))

    async def close(self) -> None:
        """Close the inner bucket, however long it takes."""
        await self._inner.close()

    async def _within(self, secs: float, key: str, request: Awaitable[T]) -> T:
        task = asyncio.current_task()
        assert task is not None, "buckets are used by tasks"
        cancels = task.cancelling()
        call = _Call(task, self._clock.monotonic() + secs)
        self._calls[call] = None
        if not self._is_watching:
            self._watch()
        try:
            return await request
        except asyncio.CancelledError:
            if call.is_overdue and task.cancelling() == cancels + 1:  # by nobody else as well
                raise BucketUnavailable(key, f"no answer within {secs:.3g} s") from None
            raise
        finally:
            del self._calls[call]
            if call.is_overdue:
                task.uncancel()

    def _watch(self) -> None:
        self._is_watching = True
        self._clock.call_later(self._attempt_secs / 4, self._look)

    def _look(self) -> None:
        """Give up what takes too long."""
        self._is_watching = False
        now = self._clock.monotonic()
        for call in self._calls:
            if now >= call.deadline and not call.is_overdue:
                call.is_overdue = True
                call.task.cancel()
        if self._calls:
            self._watch()
