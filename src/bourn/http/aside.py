"""Work that a client can make long: done beside the loop, one piece at a time."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Aside:
    """A thread's worth of room; who waits for it can still be cancelled."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in its turn."""
        async with self._lock:
            work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                # A thread cannot be stopped, and the next must not run beside it.
                await asyncio.wait([work])
                raise
