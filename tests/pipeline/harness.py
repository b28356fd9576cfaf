"""What the pipeline's tests share: a log to tier, tiering without Spark, and what a table holds."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.errors import BucketUnavailable
from bourn.layout.history.facts import SegmentFacts
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.scan import LogSpan
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import write_segment
from bourn.pipeline.tier import Tier, cut
from bourn.settings import PipelineSettings
from tests.engine.harness import crash
from tests.support import batch, node_on

BASIN = "tiered-basin"
CLOCK = SystemClock()
NOWHERE = Place("file", "/nowhere", "", "", "")

Row = tuple[str, str, int, int, bytes]  # basin, stream, seq_num, timestamp, body


class Killed(BaseException):
    """What a process feels of `kill -9`: nothing that it could catch."""


def retry(secs: float = 0.2) -> Retry:
    return Retry(CLOCK, random.Random(1), secs)


class InProcessTier(Tier):
    """The job with its tasks done here, one after the other."""

    def __init__(self, bucket: Bucket, seed: int = 1, *, tasks: int = 3) -> None:
        spark = Spark(PipelineSettings())
        super().__init__(bucket, NOWHERE, spark, CLOCK, random.Random(seed), retry())
        self._tasks = tasks

    async def _segments(
        self, span: LogSpan, names: StreamNames, progress: Progress
    ) -> list[SegmentFacts]:
        facts = []
        for run in cut(span, self._tasks):
            nonce = self._rng.getrandbits(64)
            facts.append(await write_segment(self._bucket, run, names, nonce, retry()))
        return [found for found in facts if found is not None]


def quiet() -> Progress:
    return Progress(CLOCK, lambda _: None)


class Trap:
    """A bucket that kills its user at the nth operation, before or after it has its effect.

    With `replies_lost`, every put has its effect and says that it has not, the first time.
    """

    def __init__(self, inner: Bucket, at: int = -1, *, after: bool = False) -> None:
        self.inner = inner
        self.name = inner.name
        self.is_remote = inner.is_remote
        self.at = at
        self.after = after
        self.replies_lost = False
        self.operations: list[str] = []
        self._lost: set[str] = set()

    async def _step(self, what: str, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)  # noqa: TID251  a bare yield
        number = len(self.operations)
        self.operations.append(what)
        if number == self.at and not self.after:
            raise Killed(what)
        try:
            return await work()
        finally:
            if number == self.at:
                raise Killed(what)

    async def put_if_absent(self, key: str, data: Data) -> None:
        await self._step(f"create {key}", lambda: self.inner.put_if_absent(key, data))
        if self.replies_lost and key not in self._lost:
            self._lost.add(key)
            raise BucketUnavailable(key, "the reply was lost")

    async def put(self, key: str, data: Data) -> None:
        await self._step(f"put {key}", lambda: self.inner.put(key, data))

    async def get(self, key: str) -> bytes:
        found: bytes = await self._step(f"get {key}", lambda: self.inner.get(key))
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = await self._step(
            f"get {key}", lambda: self.inner.get_range(key, start, length)
        )
        return found

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        async def every() -> list[ObjectInfo]:
            return [info async for info in self.inner.list(prefix, after)]

        for info in await self._step(f"list {prefix}", every):
            yield info

    async def delete(self, key: str) -> None:
        await self._step(f"delete {key}", lambda: self.inner.delete(key))

    async def close(self) -> None:
        await self.inner.close()


async def copied(bucket: MemoryBucket) -> MemoryBucket:
    copy = MemoryBucket()
    async for info in bucket.list(""):
        await copy.put(info.key, await bucket.get(info.key))
    return copy


class Wrote(NamedTuple):
    """What was appended, in the order of streams and numbers."""

    rows: list[Row]

    def extend(self, stream: str, first: int, records: list[Record], stamp: int = 0) -> None:
        self.rows.extend(
            (BASIN, stream, first + n, record.timestamp or stamp, record.body)
            for n, record in enumerate(records)
        )


async def make_streams(node: Node, *streams: str, basin: str = BASIN) -> None:
    await node.create_basin(CreateBasin(basin))
    for stream in streams:
        await node.create_stream(basin, CreateStream(stream))


async def append(node: Node, wrote: Wrote, stream: str, *bodies: bytes) -> None:
    """Append records with timestamps of their own, all of them in the past."""
    acked = await node.check_tail(BASIN, stream)
    first = acked.seq_num
    records = [Record(body, (), first + n + 1) for n, body in enumerate(bodies)]
    await node.append(BASIN, stream, batch(*records))
    wrote.extend(stream, first, records)


async def a_log(bucket: Bucket, *, epochs: int = 2, each: int = 4, is_clean: bool = True) -> Wrote:
    """Leave a log of several epochs and streams behind; no snapshot, unless `is_clean`."""
    wrote = Wrote([])
    streams = ("one", "two", "three")
    for epoch in range(epochs):
        async with node_on(bucket) as node:
            if epoch == 0:
                await make_streams(node, *streams)
            for number in range(each):
                for stream in streams:
                    await append(
                        node, wrote, stream, b"%d.%d" % (epoch, number), b"", b"\x00\xff" * 40
                    )
            if not is_clean:
                await crash(node)
    return wrote


async def rows_in(bucket: Bucket) -> list[Row]:
    """Every row of the table, through the files that its newest version names."""
    state = await read_table(bucket)
    rows: list[Row] = []
    for add in state.live.values():
        table = pq.read_table(io.BytesIO(await bucket.get(add.key)))
        assert await bucket.get(add.index_key)
        columns = ("basin", "stream", "seq_num", "timestamp", "body")
        rows += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    return sorted(rows)


async def objects_in(bucket: Bucket, prefix: str) -> list[str]:
    return [info.key async for info in bucket.list(prefix)]
