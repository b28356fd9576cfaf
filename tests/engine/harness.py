"""What the engine's tests share: buckets under test, a gate before a bucket, time moved by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.clock import ManualClock, SystemClock
from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node, NodeState
from bourn.engine.stream import Stream
from bourn.errors import BucketError, BucketUnavailable
from bourn.layout.commit import Commit, decode_commit
from bourn.layout.history.delta import DELTA_PREFIX
from bourn.layout.keys import WAL_PREFIX
from bourn.log.cursor import ReadRequest, make_request
from bourn.model.record import Record, SequencedRecord, fence_record, trim_record
from bourn.settings import EngineSettings
from tests.support import BASIN, STREAM, batch, node_on, run

T = TypeVar("T")

PATIENCE_SECS = 20.0
REAL_CLOCK = SystemClock()


class Storage(NamedTuple):
    """A kind of bucket, and where it may lie."""

    kind: str
    root: Path

    def bucket(self) -> Bucket:
        """A bucket of this kind; the local one finds what an earlier one left."""
        return MemoryBucket() if self.kind == "memory" else LocalBucket(self.root / "bucket")

    def run(self, scenario: Callable[[Bucket], Awaitable[None]]) -> None:
        """Run a scenario on a new bucket."""

        async def main() -> None:
            bucket = self.bucket()
            try:
                await scenario(bucket)
            finally:
                await bucket.close()

        run(main())


class GatedBucket:
    """A bucket whose create-only puts under `prefix` wait, while it is shut, until let through.

    `reads_shut` does the same to ranges that are fetched.
    """

    def __init__(self, inner: Bucket, prefix: str = WAL_PREFIX) -> None:
        self.inner = inner
        self.prefix = prefix
        self.shut = False
        self.held: dict[str, asyncio.Future[BucketError | None]] = {}
        self.sizes: dict[str, int] = {}  # of every put that was tried, by key
        self.reads_shut = False
        self.held_reads: list[asyncio.Future[None]] = []
        self.fetches = 0

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    async def put_if_absent(self, key: str, data: Data) -> None:
        self.sizes[key] = len(data)
        if self.shut and key.startswith(self.prefix):
            gate: asyncio.Future[BucketError | None] = asyncio.get_running_loop().create_future()
            self.held[key] = gate
            try:
                error = await gate
            finally:
                del self.held[key]
            if error is not None:
                raise error
        await self.inner.put_if_absent(key, data)

    async def until_held(self, count: int) -> list[str]:
        """Return the keys that wait, in order, once there are this many."""
        await eventually(lambda: len(self.held) >= count)
        return sorted(self.held)

    def let(self, key: str, error: BucketError | None = None) -> None:
        """Let one put through, or fail it."""
        self.held[key].set_result(error)

    def open(self) -> None:
        """Let everything through from here on."""
        self.shut = self.reads_shut = False
        gates: list[asyncio.Future[Any]] = [*self.held.values(), *self.held_reads]
        for gate in gates:
            if not gate.done():
                gate.set_result(None)

    async def put(self, key: str, data: Data) -> None:
        await self.inner.put(key, data)

    async def get(self, key: str) -> bytes:
        self.fetches += 1
        return await self.inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if key.startswith(DELTA_PREFIX):  # asked for now and then, whatever a test does
            return await self.inner.get_range(key, start, length)
        self.fetches += 1
        if self.reads_shut:
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.held_reads.append(gate)
            await gate
        return await self.inner.get_range(key, start, length)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix, after):
            yield info

    async def delete(self, key: str) -> None:
        await self.inner.delete(key)

    async def close(self) -> None:
        await self.inner.close()


class SlowBucket(GatedBucket):
    """Every put takes some turns of the loop, before and after it has its effect; some get lost."""

    def __init__(self, inner: Bucket, rng: Random, lost: float = 0.0) -> None:
        super().__init__(inner)
        self._rng = rng
        self._lost = lost

    async def put_if_absent(self, key: str, data: Data) -> None:
        await turns(self._rng.randint(0, 12))
        if self._rng.random() < self._lost:
            raise BucketUnavailable(key, "lost on the way")
        await self.inner.put_if_absent(key, data)
        await turns(self._rng.randint(0, 12))
        if self._rng.random() < self._lost:
            raise BucketUnavailable(key, "the reply was lost")


async def turns(count: int = 20) -> None:
    """Let everything run that needs no more than the loop's own turns."""
    for _ in range(count):
        await REAL_CLOCK.sleep(0)


async def eventually(condition: Callable[[], object]) -> None:
    """Return once the condition holds; fail if it does not within a long time."""
    deadline = REAL_CLOCK.monotonic() + PATIENCE_SECS
    pause = 0.0
    while not condition():
        assert REAL_CLOCK.monotonic() < deadline, "it never happened"
        await REAL_CLOCK.sleep(pause)
        pause = min(pause + 0.0002, 0.01)


async def soon(work: Awaitable[T]) -> T:
    """Await what must not hang."""
    return await asyncio.wait_for(work, PATIENCE_SECS)


async def pass_time(clock: ManualClock, seconds: float, step: float = 0.5) -> None:
    """Let time pass in steps, so that whoever sleeps again and again is woken as often."""
    while seconds > 0:
        clock.advance(min(step, seconds))
        seconds -= step
        await turns()


async def pass_time_until(
    clock: ManualClock, condition: Callable[[], object], step: float = 0.5
) -> None:
    """Let time pass until the condition holds, giving threads a chance at each step."""
    deadline = REAL_CLOCK.monotonic() + PATIENCE_SECS
    while not condition():
        assert REAL_CLOCK.monotonic() < deadline, "it never happened"
        clock.advance(step)
        await turns(5)
        await REAL_CLOCK.sleep(0.001)


def trim(seq_num: int) -> Record:
    return trim_record(seq_num)


def fence(token: str) -> Record:
    return fence_record(token)


def bodies(records: Iterable[SequencedRecord]) -> list[bytes]:
    return [record.body for record in records]


def seq_nums(records: Iterable[SequencedRecord]) -> list[int]:
    return [record.seq_num for record in records]


def stream_of(node: Node, basin: str = BASIN, stream: str = STREAM) -> Stream:
    """The stream as it is in memory."""
    found = node.term.find(basin, stream)
    assert found is not None
    return found


async def keys_of(bucket: Bucket, prefix: str) -> list[str]:
    return [info.key async for info in bucket.list(prefix)]


async def commits_of(bucket: Bucket) -> dict[str, Commit]:
    """Every commit object in the bucket, tombstones left out."""
    commits = {
        key: decode_commit(await bucket.get(key), key) for key in await keys_of(bucket, WAL_PREFIX)
    }
    return {key: commit for key, commit in commits.items() if not commit.header.is_tombstone}


async def append_each(node: Node, *texts: str, basin: str = BASIN, stream: str = STREAM) -> None:
    """Append each text as a batch of its own, each in a commit of its own."""
    for text in texts:
        await node.append(basin, stream, batch(text))


class Session:
    """A read session driven by hand: `next` is one batch, `rest` all that come until it ends."""

    def __init__(self, batches: AsyncIterator[ReadBatch]) -> None:
        self._batches = batches

    async def next(self) -> ReadBatch:
        return await soon(anext(self._batches))

    def ask(self) -> "asyncio.Task[ReadBatch]":
        """Ask for the next batch without waiting for it."""
        return asyncio.ensure_future(self.next())

    async def rest(self) -> list[ReadBatch]:
        async def drain() -> list[ReadBatch]:
            return [found async for found in self._batches]

        return await soon(drain())


@asynccontextmanager
async def session(
    node: Node, request: ReadRequest | None = None, *, basin: str = BASIN, stream: str = STREAM
) -> AsyncIterator[Session]:
    """Open a session; without a request it follows from the beginning."""
    request = request or make_request(seq_num=0)
    async with node.read_session(basin, stream, request) as batches:
        yield Session(batches)


async def read_one(
    node: Node, *, basin: str = BASIN, stream: str = STREAM, **parameters: Any
) -> ReadBatch:
    """A unary read with the API's parameters."""
    return await soon(node.read(basin, stream, make_request(**parameters)))


async def crash(node: Node) -> None:
    """End a node as a killed process would: what is not in the bucket by now never will be."""
    term, node._term = node._term, None
    node.state = NodeState.CLOSED
    if term is not None:
        await term.close()
    await node._tasks.cancel_all()


@asynccontextmanager
async def gated_node(
    bucket: Bucket, settings: EngineSettings | None = None, *, clock: ManualClock | None = None
) -> AsyncIterator[tuple[GatedBucket, Node]]:
    """A node behind a gate, which is opened at the end, so that the node can finish."""
    gated = GatedBucket(bucket)
    async with node_on(gated, settings, clock=clock) as node:
        try:
            yield gated, node
        finally:
            gated.open()
