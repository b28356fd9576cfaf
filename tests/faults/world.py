"""A world to try nodes in: time jumps, buckets fail, nodes die, and there is a trace of it all.

Nothing here sleeps. The loop's time stands still while anything can run and jumps to the next
timer when nothing can; work for threads is done at once. So a minute of faults takes milliseconds,
and for one seed everything happens in the same order, to the last byte.
"""

import asyncio
import gc
import hashlib
import itertools
import logging
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from bourn.bucket.faults import FaultBucket, FaultPlan, Rule
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.clock import Clock, Timer
from bourn.engine.node import Node, NodeState
from bourn.errors import BournError
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.faults.ledger import Ledger
from tests.support import BASIN

T = TypeVar("T")

WORLD_SECS_MAX = 600.0
REQUEST_SECS_MAX = 90.0  # of the world's time; whatever takes longer hangs
BEGAN_MS = 1_700_000_000_000

# Short spans, small objects, hardly any cache: everything that can happen does.
SETTINGS = EngineSettings(
    commits_in_flight=4,
    commit_split_bytes=1024,
    put_attempt_secs=1.0,
    put_deadline_secs=10.0,
    rebuild_wait_secs=2.0,
    tail_cache_bytes=2048,
    read_cache_bytes=24 * 1024,
    encoded_cache_bytes=2048,
    snapshot_interval_secs=5.0,
    collect_grace_secs=6.0,  # a node that does not know that it was replaced may read so long
)


class Hang(Exception):
    """Something waits for what will never come."""


class Gone(Exception):
    """The node died with the request: nobody knows what became of it."""


class _Future(asyncio.Future[Any]):
    """Hashed by number: the engine keeps futures in sets, and an address is different each time."""

    def __init__(self, number: int, loop: "WorldLoop") -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """Hashed by number, as futures are."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class _Jump(selectors.SelectSelector):
    """Waits for no socket: where the loop would wait, time jumps."""

    loop: "WorldLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Hang("nothing can happen any more")
        self.loop.jump(timeout)
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own."""

    def __init__(self) -> None:
        selector = _Jump()
        super().__init__(selector)
        selector.loop = self
        self._now = 0.0
        self._numbers = itertools.count(1)
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), self)

    def _new_task(self, loop: Any, coro: Any, **options: Any) -> Any:
        return _Task(next(self._numbers), coro, loop=loop, **options)

    def run_in_executor(  # type: ignore[override]  # what a generic in the stubs says, less so
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Do the work now; who waits is told in the next turn, as by a thread."""
        future = self.create_future()
        try:
            result = func(*args)
        except BournError as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future


class LoopClock:
    """The loop's time as a clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return BEGAN_MS + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251  the loop's time is the world's

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(seconds, 0.0), callback)


class Trace:
    """Everything that happened, as a hash; and as text, for whoever looks into a failure."""

    def __init__(self, clock: Clock, *, keep: bool = False) -> None:
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None
        self.events = 0

    def note(self, what: str) -> None:
        line = f"{self._clock.monotonic():.6f} {what}"
        self._hash.update(line.encode() + b"\n")
        self.events += 1
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Tap:
    """One node's way to the store: what really takes effect there is noted."""

    def __init__(self, inner: Bucket, owner: str, trace: Trace, clock: Clock) -> None:
        self.inner = inner
        self._owner = owner
        self._trace = trace
        self._clock = clock
        self.list_pause_secs = 0.0  # between two keys: a listing is no look at one instant

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    def _note(self, what: str, key: str, data: Data = b"") -> None:
        digest = hashlib.blake2b(data, digest_size=6).hexdigest() if data else "-"
        self._trace.note(f"{self._owner} {what} {key} {len(data)} {digest}")

    async def put_if_absent(self, key: str, data: Data) -> None:
        self._note("creates", key, data)
        await self.inner.put_if_absent(key, data)

    async def put(self, key: str, data: Data) -> None:
        self._note("puts", key, data)
        await self.inner.put(key, data)

    async def get(self, key: str) -> bytes:
        self._note("gets", key)
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._note(f"gets {start}+{length} of", key)
        return await self.inner.get_range(key, start, length)

    async def list(self, prefix: str, after: str = "") -> Any:
        self._note(f"lists after {after or '-'}", prefix)
        async for info in self.inner.list(prefix, after):
            yield ObjectInfo(*info)
            if self.list_pause_secs:
                await self._clock.sleep(self.list_pause_secs)

    async def delete(self, key: str) -> None:
        self._note("deletes", key)
        await self.inner.delete(key)

    async def close(self) -> None:
        await self.inner.close()


class Host:
    """A node, its own network to the store, and the requests that are under way there."""

    def __init__(self, number: int, bucket: FaultBucket, tap: Tap) -> None:
        self.number = number
        self.bucket = bucket
        self.tap = tap
        self.requests: dict[asyncio.Future[Any], None] = {}
        self.is_dead = False
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        assert self._node is not None, "it has not started"
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node

    def is_in(self, state: NodeState) -> bool:
        return self.node.state is state

    @property
    def serves(self) -> bool:
        """Whether it is worth asking."""
        stopped = {NodeState.FENCED, NodeState.CLOSED, NodeState.DRAINING}
        return not self.is_dead and self._node is not None and self._node.state not in stopped


class World:
    """One store, the nodes on it, and the ledger of what they promised."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock: Clock = LoopClock(self.loop)
        self.rng = Random(seed)
        self.trace = Trace(self.clock, keep=keep_trace)
        self.ledger = Ledger(self.trace.note)
        self.store = MemoryBucket()
        self.settings = SETTINGS
        self.hosts: list[Host] = []

    @property
    def newest(self) -> Host:
        """The last one that has begun to start: only its answers must be up to date."""
        return self.hosts[-1]

    async def start(self, *plan: Rule, list_pause_secs: float = 0.0) -> Host:
        """Start another node on the store; a BournError where it cannot."""
        number = len(self.hosts) + 1
        rng = Random(self.rng.getrandbits(64))
        tap = Tap(self.store, f"node {number}", self.trace, self.clock)
        tap.list_pause_secs = list_pause_secs
        host = Host(number, FaultBucket(tap, FaultPlan(*plan), rng, self.clock), tap)
        self.hosts.append(host)
        self.trace.note(f"node {number} starts")
        seeded = Random(rng.getrandbits(64))
        opening = Node.open(host.bucket, self.settings, clock=self.clock, rng=seeded)
        host.node = await self.ask(host, opening, "start")
        self.trace.note(f"node {number} serves epoch {host.node.term.epoch}")
        return host

    async def ask(self, host: Host, work: Awaitable[T], what: str) -> T:
        """Let a node answer; Gone if it dies over it. It must answer in bounded time."""
        task = asyncio.ensure_future(work)
        if host.is_dead:
            task.cancel()
        host.requests[task] = None
        hung = False

        def give_up() -> None:
            nonlocal hung
            hung = True
            task.cancel()

        timer = self.clock.call_later(REQUEST_SECS_MAX, give_up)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if hung:
                self.ledger.violated(f"node {host.number} never answered: {what}")
                raise Gone(what) from None
            if task.cancelled() and current is not None and not current.cancelling():
                if not host.is_dead:
                    self.ledger.violated(f"node {host.number} broke a request off: {what}")
                raise Gone(what) from None
            raise
        finally:
            timer.cancel()
            host.requests.pop(task, None)

    async def crash(self, host: Host) -> None:
        """End a node as a killed process would; what is stuck on the way may still arrive."""
        self.trace.note(f"node {host.number} dies")
        host.is_dead = True
        for request in list(host.requests):
            request.cancel()
        if host._node is not None:
            node = host.node
            term, node._term = node._term, None
            node.state = NodeState.CLOSED
            if term is not None:
                await term.close()
            await node._tasks.cancel_all()

    async def with_streams(self, host: Host, *names: str) -> None:
        """Create the basin and these streams."""
        await host.node.create_basin(CreateBasin(BASIN))
        for name in names:
            await host.node.create_stream(BASIN, CreateStream(name))

    async def end(self) -> None:
        """Stop every node; nothing is checked."""
        for host in self.hosts:
            host.bucket.enabled = False
            host.bucket.abandon()
            if not host.is_dead:
                await self.crash(host)


class Alarm(logging.Handler):
    """An exception that the engine could only log is a broken promise."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._ledger.violated(f"{record.getMessage()}: {record.exc_info[1]!r}")


def in_world(
    scenario: Callable[[World], Coroutine[Any, Any, T]], seed: int = 0, *, keep_trace: bool = False
) -> T:
    """Run a scenario in a new world, to its end; its ledger must be clean unless asked before."""

    async def main() -> T:
        world = World(seed, keep_trace=keep_trace)
        alarm = Alarm(world.ledger)
        logging.getLogger("bourn").addHandler(alarm)
        try:
            async with asyncio.timeout(WORLD_SECS_MAX):
                return await scenario(world)
        finally:
            await world.end()
            logging.getLogger("bourn").removeHandler(alarm)

    # A collection ends generators that were left half-way, and at a moment nobody can repeat.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=WorldLoop) as runner:
            return runner.run(main())
    finally:
        gc.enable()
