"""What the pipeline's tests share: a log to tier, tiering without Spark, and what a table holds."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.bucket.retry import Retry
from bourn.clock import Clock, SystemClock
from bourn.engine.node import Node
from bourn.errors import BucketUnavailable
from bourn.layout.history.delta import HISTORY_PREFIX, Add, parse_segment_key
from bourn.layout.history.facts import SegmentFacts
from bourn.layout.history.index import decode_index
from bourn.layout.history.schema import SCHEMA
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.files import Files
from bourn.pipeline.job import Tools
from bourn.pipeline.living import Living, u64_of
from bourn.pipeline.merge import Merge
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.retain import Retain
from bourn.pipeline.rewrite import (
    Shuffle,
    Tally,
    Written,
    kept_of,
    pieces_of,
    read_rows,
    rewrite_file,
    write_files,
)
from bourn.pipeline.scan import LogSpan
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import nonce_at, write_segment
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


class NoSpark(Spark):
    """What stands where nobody asks for one."""

    is_running = True


class InProcessTier(Tier):
    """The job with its tasks done here, one after the other."""

    def __init__(self, bucket: Bucket, seed: int = 1, *, tasks: int = 3) -> None:
        spark = NoSpark(PipelineSettings())
        super().__init__(bucket, NOWHERE, spark, CLOCK, random.Random(seed), retry())
        self._tasks = tasks

    async def _segments(
        self, span: LogSpan, names: StreamNames, progress: Progress
    ) -> list[SegmentFacts]:
        facts = []
        for run in cut(span, self._tasks):
            nonce = nonce_at(CLOCK.now_ms(), self._rng)
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


def tools_on(
    bucket: Bucket, seed: int = 1, *, clock: Clock = CLOCK, settings: PipelineSettings | None = None
) -> Tools:
    """What a job works with, without a Spark."""
    settings = settings or PipelineSettings(merge_files=2)
    spark = Spark(settings)
    return Tools(bucket, NOWHERE, spark, clock, random.Random(seed), retry(), settings)


class InProcessFiles(Files):
    """Files, with the tasks done here, one after the other; the shuffle is a dict."""

    def __init__(self, tools: Tools, *, cores: int = 3) -> None:
        super().__init__(tools)
        self._cores = cores

    def _nonce(self) -> int:
        return nonce_at(self._tools.clock.now_ms(), self._tools.rng)

    async def _shuffled(
        self,
        adds: Sequence[Add],
        share_out: Callable[[int], Shuffle],
        living: Living,
        progress: Progress,
    ) -> list[Written]:
        bucket, again = self._tools.bucket, self._tools.retry
        shuffle = share_out(self._cores)
        parts: dict[int, list[bytes]] = {}
        written: list[Written] = []
        for add in adds:
            rows = await read_rows(bucket, add, again)
            kept = kept_of(rows, living)
            written.append(Tally(add.path, rows.num_rows, kept.num_rows))
            for part, piece in pieces_of(kept, shuffle.cuts):
                parts.setdefault(part, []).append(piece)
        for part, pieces in parts.items():
            self._tools.rng.shuffle(pieces)  # they come in any order
            written += await write_files(bucket, shuffle, part, pieces, self._nonce(), again)
        return written

    async def _rewritten(
        self, adds: Sequence[Add], living: Living, progress: Progress
    ) -> list[Written]:
        written: list[Written] = []
        for add in adds:
            tally, facts = await rewrite_file(
                self._tools.bucket, add, living, self._nonce(), self._tools.retry
            )
            written += [tally] if facts is None else [tally, facts]
        return written


def merge_on(bucket: Bucket, seed: int = 1, **more: Any) -> Merge:
    """The job with its tasks done here."""
    tools = tools_on(bucket, seed, **more)
    return Merge(tools, InProcessFiles(tools))


def retain_on(bucket: Bucket, seed: int = 1, **more: Any) -> Retain:
    """The job with its tasks done here."""
    tools = tools_on(bucket, seed, **more)
    return Retain(tools, InProcessFiles(tools))


async def whole_rows_in(bucket: Bucket) -> list[tuple[Any, ...]]:
    """Every column of every row of the table, by stream and number; headers as they are."""
    rows: list[tuple[Any, ...]] = []
    for add in (await read_table(bucket)).live.values():
        table = pq.read_table(io.BytesIO(await bucket.get(add.key)))
        columns = [
            table.column(name).cast(pa.int64()).to_pylist()
            if name == "arrival"
            else table.column(name).to_pylist()
            for name in SCHEMA.names
        ]
        rows += zip(*columns, strict=True)
    return sorted(rows, key=lambda row: (row[2] % 2**64, row[3] % 2**64))


async def check_files(bucket: Bucket) -> None:
    """Assert what holds between the files of a table, whoever made its last version."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for add in (await read_table(bucket)).live.values():
        index = decode_index(await bucket.get(add.index_key), add.index_key)
        rows = pq.read_table(io.BytesIO(await bucket.get(add.key)))
        assert rows.num_rows == add.tag("rows")
        keys = list(
            zip(
                u64_of(rows, "stream_id").tolist(),
                u64_of(rows, "seq_num").tolist(),
                strict=True,
            )
        )
        assert keys == sorted(set(keys)), f"{add.path} is not sorted, or has a row twice"
        for stream_id in set(index.stream_ids.tolist()):
            blocks = index.blocks_of(stream_id)
            span = (blocks[0].first_seq_num, blocks[-1].last_seq_num)
            ranges.setdefault(stream_id, []).append(span)
    for stream_id, spans in ranges.items():
        spans.sort()
        for before, behind in pairwise(spans):
            assert before[1] < behind[0], f"files hold intertwined parts of stream {stream_id}"


async def table_bytes(bucket: Bucket) -> int:
    """The bytes of all segments and sidecars in the bucket, in the table or not."""
    return sum(
        [
            info.size_bytes
            async for info in bucket.list(HISTORY_PREFIX)
            if parse_segment_key(info.key) is not None
        ]
    )
