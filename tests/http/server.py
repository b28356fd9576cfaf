"""A real server: its own thread, its own loop, a port of its own, a bucket in memory."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from random import Random
from typing import Any, Self, TypeVar

import uvloop

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.catalog.tokens import digest_of
from bourn.clock import Clock, SystemClock
from bourn.engine.node import Node
from bourn.engine.stream import Stream
from bourn.http.app import App
from bourn.settings import EngineSettings, TrafficLimits, UsagePrices
from tests.http.edges import edge_of

T = TypeVar("T")

PATIENCE_SECS = 20.0
LOCATION = "local:test"
CLOCK: Clock = SystemClock()


class LoopThread:
    """An event loop in a thread, for callers that have none."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end; what takes too long fails the test."""
        return self.submit(work).result(PATIENCE_SECS)

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop."""

        async def called() -> T:
            return function()

        return self.run(called())

    def close(self) -> None:
        async def settle() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.loop.shutdown_asyncgens()

        self.run(settle())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_SECS)
        self.loop.close()


class Server:
    """Serves until `close`; tests may look inside through `call`.

    With a `root_token`, every request needs a token.
    """

    def __init__(
        self,
        *,
        bucket: Bucket | None = None,
        settings: EngineSettings | None = None,
        clock: Clock = CLOCK,
        cors: bool = True,
        basin_suffixes: tuple[str, ...] = (),
        root_token: str = "",
        prices: UsagePrices | None = None,
        traffic: TrafficLimits | None = None,
        **limits: Any,
    ) -> None:
        self._thread = LoopThread()
        self.call, self.run, self.submit = (
            self._thread.call,
            self._thread.run,
            self._thread.submit,
        )
        settings = settings or EngineSettings(location=LOCATION)

        async def start() -> int:
            self.node = await Node.open(
                bucket or MemoryBucket(), settings, clock=clock, rng=Random(0)
            )
            if root_token:
                await self.node.set_root_token(digest_of(root_token.encode()))
            self.app = App(
                self.node,
                clock,
                location=LOCATION,
                basin_suffixes=basin_suffixes,
                cors=cors,
                auth_required=bool(root_token),
                prices=prices,
                limits=traffic,
            )
            self.edge = edge_of(self.app, **limits)
            return await self.edge.listen("127.0.0.1", 0)

        self.port = self.run(start())

    def stream(self, basin: str, name: str) -> Stream:
        """The stream as the node holds it."""
        found = self.node.term.find(basin, name)
        assert found is not None
        return found

    def basins(self) -> list[str]:
        """The names of all basins; on the loop."""
        return [row.name for row in self.node.term.state.basins]

    def users(self, basin: str, name: str) -> int:
        """How many sessions and reads hold the stream."""
        return self.call(lambda: self.stream(basin, name).users)

    def hold_purges(self) -> asyncio.Event:
        """Let nothing be purged until `release_purges` is called with what this returns."""
        wanted, self.node.term.purge_wanted = self.node.term.purge_wanted, asyncio.Event()
        return wanted

    def release_purges(self, wanted: asyncio.Event) -> None:
        self.node.term.purge_wanted = wanted
        wanted.set()

    def stop(self, timeout_secs: float = 0.0) -> None:
        """Let go of every connection."""
        self.run(self.edge.stop(timeout_secs))

    def close(self) -> None:
        self.stop()
        self.run(self.node.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def eventually(condition: Callable[[], object]) -> None:
    """Return once the condition holds; fail if it does not within a long time."""
    deadline = CLOCK.monotonic() + PATIENCE_SECS
    pause = threading.Event()
    while not condition():
        assert CLOCK.monotonic() < deadline, "it never happened"
        pause.wait(0.005)
