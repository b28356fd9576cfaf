"""The only way to the world's time: everything that waits or dates takes a `Clock`."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has been put off."""

    def cancel(self) -> None:
        """Take the call back; harmless where it was made already."""
        ...


class Clock(Protocol):
    """Wall time for records, monotonic time for measuring, and sleep."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after `seconds` of this clock, on the running loop."""
        ...


class SystemClock:
    """The machine's own time."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000  # noqa: TID251  this is the replacement

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()  # noqa: TID251  this is the replacement

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)  # noqa: TID251  this is the replacement

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Put a call off on the running loop."""
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), callback)


class ManualClock:
    """A clock that a test moves by hand: `advance` wakes every sleeper that is due."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Wall time, as set."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    def set_wall(self, now_ms: int) -> None:
        """Move the wall clock alone, also backwards, as an operator or NTP would."""
        self._now_ms = now_ms

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has passed the deadline."""
        if seconds <= 0:
            await asyncio.sleep(0)  # noqa: TID251  a bare yield
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed + seconds, future))
        await future

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Put a call off until `advance` has passed its moment."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def due(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                callback()

        future.add_done_callback(due)
        self._sleepers.append((self._elapsed + seconds, future))
        return _FutureTimer(future)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; both clocks move."""
        self._elapsed += seconds
        self._now_ms += round(seconds * 1000)
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._elapsed]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._elapsed]
        for _, future in sorted(due, key=lambda sleeper: sleeper[0]):
            if not future.done():
                future.set_result(None)


class _FutureTimer:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def cancel(self) -> None:
        self._future.cancel()
