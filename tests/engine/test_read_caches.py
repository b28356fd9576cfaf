"""Caches change nothing but speed: with them, without them, and as a plain list, reads agree."""

import asyncio
import tracemalloc
from random import Random
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.fetches import unpacked
from bourn.engine.node import Node
from bourn.engine.stream import Stream
from bourn.errors import Unwritten
from bourn.layout.entry import Entry, own_run
from bourn.log.cursor import FromSeqNum, FromTailOffset, FromTimestamp, ReadRequest, make_request
from bourn.model.record import Record, SequencedRecord, StreamPosition, metered_bytes
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    Storage,
    append_each,
    gated_node,
    read_one,
    seq_nums,
    session,
    trim,
    turns,
)
from tests.engine.test_together import NO_TAIL, ManyBucket
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, run, with_stream

CACHED = EngineSettings()
UNCACHED = EngineSettings(tail_cache_bytes=0, read_cache_bytes=1, encoded_cache_bytes=1)
SMALL = EngineSettings(
    tail_cache_bytes=3000, read_cache_bytes=3000, encoded_cache_bytes=500, commit_split_bytes=600
)


class Append(NamedTuple):
    sizes: list[int]
    timestamps: list[int | None]
    trim_to: int | None


class Restart(NamedTuple):
    pass


class Snapshot(NamedTuple):
    pass


class Look(NamedTuple):
    parameters: dict[str, Any]


optional_small = st.none() | st.integers(0, 40)
appends = st.builds(
    Append,
    st.lists(st.integers(0, 120), min_size=1, max_size=12),
    st.lists(st.none() | st.integers(0, 300), min_size=12, max_size=12),
    st.none() | st.none() | st.integers(0, 80),
)
starts = st.one_of(
    st.fixed_dictionaries({"seq_num": st.integers(0, 120)}),
    st.fixed_dictionaries({"timestamp": st.integers(0, 310)}),
    st.fixed_dictionaries({"tail_offset": st.integers(0, 120)}),
)
looks = st.builds(
    lambda start, rest: Look({**start, **rest}),
    starts,
    st.fixed_dictionaries(
        {"clamp": st.booleans()},
        optional={
            "count": st.integers(0, 30),
            "bytes": st.integers(0, 900),
            "until": st.integers(0, 310),
        },
    ),
)
steps = st.lists(
    st.one_of(appends, looks, appends, looks, st.builds(Restart), st.builds(Snapshot)),
    min_size=1,
    max_size=30,
)


class Listed:
    """A stream as a list."""

    def __init__(self, now_ms: int) -> None:
        self.records: list[SequencedRecord] = []
        self.trim_point = 0
        self.now_ms = now_ms

    @property
    def tail(self) -> StreamPosition:
        return StreamPosition(len(self.records), self.records[-1].timestamp if self.records else 0)

    def append(self, records: list[Record], trim_to: int | None) -> None:
        for record in records:
            wanted = self.now_ms if record.timestamp is None else record.timestamp
            stamp = max(self.tail.timestamp, min(wanted, self.now_ms))
            self.records.append(
                SequencedRecord(len(self.records), stamp, record.body, record.headers)
            )
        if trim_to is not None:
            self.trim_point = max(self.trim_point, min(trim_to, len(self.records)))

    def read(self, request: ReadRequest) -> list[SequencedRecord] | None:
        """What a unary read returns; None where it is refused."""
        limits = request.limits
        if limits.count == 0 or limits.bytes == 0:
            return []
        start = self.start(request)
        if start is None:
            return None
        taken: list[SequencedRecord] = []
        left = 1 << 20 if limits.bytes is None else limits.bytes
        for record in self.records[max(start, self.trim_point) :]:
            left -= metered_bytes(record.headers, record.body)
            late = limits.until is not None and record.timestamp >= limits.until
            if late or left < 0 or len(taken) == (limits.count or 1000):
                break
            taken.append(record)
        return taken

    def start(self, request: ReadRequest) -> int | None:
        """Where a read that cannot wait starts; None where it may not."""
        tail = self.tail
        there = self.records[self.trim_point :]
        match request.start:
            case FromSeqNum(seq_num):
                start, beyond = seq_num, seq_num > tail.seq_num
            case FromTimestamp(timestamp):
                beyond = timestamp > tail.timestamp
                found = (r.seq_num for r in there if r.timestamp >= timestamp)
                start = next(found, tail.seq_num)
            case FromTailOffset(offset):
                start, beyond = max(0, tail.seq_num - offset), False
        return None if beyond or start >= tail.seq_num else start


def made(step: Append, serial: int) -> list[Record]:
    records = [
        Record(
            bytes([serial % 256]) * size,
            ((b"h", b"%d" % size),) if size % 3 == 0 else (),
            step.timestamps[i],
        )
        for i, size in enumerate(step.sizes)
    ]
    return records if step.trim_to is None else [*records, trim(step.trim_to)]


class Replica:
    """A node that can be restarted on its bucket."""

    def __init__(
        self, settings: EngineSettings, clock: ManualClock, bucket: MemoryBucket | None = None
    ) -> None:
        self.bucket = bucket or MemoryBucket()
        self.settings = settings
        self.clock = clock
        self.node: Node | None = None

    async def start(self) -> Node:
        self.node = await Node.open(self.bucket, self.settings, clock=self.clock, rng=Random(0))
        return self.node

    async def stop(self) -> None:
        assert self.node is not None
        await self.node.close()

    async def read(self, request: ReadRequest) -> tuple[list[SequencedRecord], bytes] | None:
        assert self.node is not None
        try:
            found = await self.node.read(BASIN, STREAM, request)
        except Unwritten:
            return None
        return found.records(), b"".join(found.wire())


async def compare(steps: list[object]) -> None:
    clock = ManualClock(200)
    model = Listed(clock.now_ms())
    replicas = [Replica(settings, clock) for settings in (CACHED, UNCACHED, SMALL)]
    replicas.append(Replica(NO_TAIL, clock, ManyBucket()))
    for replica in replicas:
        await with_stream(await replica.start())
    for serial, step in enumerate(steps):
        for replica in replicas:
            assert replica.node is not None
            match step:
                case Append():
                    sent = batch(*made(step, serial))
                    await replica.node.append(BASIN, STREAM, sent)
                case Restart():
                    await replica.stop()
                    await replica.start()
                case Snapshot():
                    await replica.node.housekeeping.snapshots.take()
        if isinstance(step, Append):
            model.append(made(step, serial), step.trim_to)
        elif isinstance(step, Look):
            await check(step, model, replicas)
    assert replicas[0].node is not None
    everything = await read_all(replicas[0].node)
    assert everything == model.records[model.trim_point :]
    for replica in replicas:
        assert replica.node is not None
        assert await read_all(replica.node) == everything
        await replica.stop()


async def check(step: Look, model: Listed, replicas: list[Replica]) -> None:
    parameters = dict(step.parameters)
    if parameters.get("timestamp", -1) >= parameters.get("until", 10_000):
        del parameters["until"]
    request = make_request(**parameters)
    expected = model.read(request)
    first, *others = [await replica.read(request) for replica in replicas]
    assert (None if first is None else first[0]) == expected
    assert all(other == first for other in others)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_reads_agree_with_a_list_whatever_the_caches_hold(steps: list[object]) -> None:
    run(compare(steps))


# Bounds


def test_a_node_without_caches_reads_everything_from_objects(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, UNCACHED) as (gated, node):
            await with_stream(node)
            await append_each(node, *(f"{i}" for i in range(20)))
            gated.fetches = 0
            assert seq_nums(await read_all(node)) == list(range(20))
            assert gated.fetches >= 20
            assert node.term.tail_cache.bytes_held == 0
            assert len(node.term.reader._read) <= 1
        async with node_on(gated) as node:
            await append_each(node, *(f"{i}" for i in range(20)))
            gated.fetches = 0
            assert (await read_one(node, seq_num=20)).records_count == 20
            assert gated.fetches == 0, "what was just written is still in memory"

    storage.run(scenario)


def test_the_caches_stay_within_their_bounds(storage: Storage) -> None:
    bounds = EngineSettings(
        tail_cache_bytes=250_000, read_cache_bytes=170_000, encoded_cache_bytes=80_000
    )

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, bounds) as node:
            await with_stream(node)
            for _ in range(60):
                await node.append(BASIN, STREAM, batch(b"x" * 17_000))
                assert node.term.tail_cache.bytes_held <= 250_000
            for _ in range(2):
                async with session(node, from_start(wait=0)) as reader:
                    for found in await reader.rest():
                        assert sum(map(len, found.wire())) > 0
                        assert node.term.encoded.bytes_held <= 80_000
                assert node.term.reader.bytes_held <= 170_000

    storage.run(scenario)


class Copying(MemoryBucket):
    """Gives copies of its objects, as a disk does."""


def test_what_the_caches_let_go_is_not_kept_alive_by_its_encoding() -> None:
    # A batch that was fetched is a view of its whole run: 100 kB here, for 10 kB encoded.
    tiny = msgspec.structs.replace(UNCACHED, encoded_cache_bytes=1 << 20)

    async def scenario() -> None:
        async with node_on(Copying(), tiny) as node:
            await with_stream(node)
            for _ in range(60):
                await asyncio.gather(
                    *(node.append(BASIN, STREAM, batch(b"x" * 10_000)) for _ in range(10))
                )
            (await read_one(node, seq_num=0)).wire()  # whatever is loaded at first use
            tracemalloc.start()
            try:
                for first in range(0, 600, 10):
                    for _ in range(2):  # it is kept from the second reader on
                        (await read_one(node, seq_num=first, count=1)).wire()
                await turns()
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert 60 * 10_000 < held < 2_000_000

    run(scenario())


def test_many_readers_of_one_batch_share_one_encoding(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a", "b"))
            first = (await read_one(node, seq_num=0)).wire()[0]
            second = (await read_one(node, seq_num=0)).wire()[0]
            assert second == first
            for _ in range(5):
                assert (await read_one(node, seq_num=0)).wire()[0] is second

    memory.run(scenario)


@pytest.mark.parametrize("readers", [1, 30])
def test_readers_of_one_place_share_its_fetch(storage: Storage, readers: int) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, *(f"{i}" for i in range(6)))
        async with gated_node(bucket) as (gated, node):
            gated.fetches = 0
            reads = await asyncio.gather(*(read_one(node, seq_num=0) for _ in range(readers)))
            assert [read.records_count for read in reads] == [6] * readers
            assert gated.fetches == 6

    storage.run(scenario)


LARGE = batch(b"x" * 9000, b"y" * 9000)


async def append_large_and_small(node: Node) -> None:
    """Two commits: one of large batches of two streams, one of a small batch."""
    await with_stream(node)
    await node.create_stream(BASIN, CreateStream("other"))
    appends = (node.append(BASIN, name, LARGE) for name in (STREAM, "other", STREAM))
    await asyncio.gather(*appends)
    await node.append(BASIN, STREAM, batch("small"))


def found_stream(node: Node, name: str) -> Stream:
    found = node.term.find(BASIN, name)
    assert found is not None
    return found


def objects_of(bucket: MemoryBucket) -> set[int]:
    return {id(data) for data in bucket._objects.values()}


def test_large_batches_in_memory_are_views_of_the_object_that_was_put() -> None:
    bucket = MemoryBucket()

    async def scenario() -> None:
        async with node_on(bucket) as node:
            await append_large_and_small(node)
            kept = node.term.tail_cache
            assert {id(data) for data in kept._objects.values()} <= objects_of(bucket)
            held = [
                entry
                for name in (STREAM, "other")
                for run in found_stream(node, name).runs
                for entry in own_run(kept.get(run.commit) or b"", run.offset, run.length)
            ]
            large = [entry.payload for entry in held if entry.count == 2]
            assert [bytes(payload) for payload in large] == [LARGE.payload] * 3
            for payload in large:
                assert isinstance(payload, memoryview)
                assert id(payload.obj) in objects_of(bucket)
            assert [type(entry.payload) for entry in held if entry.count == 1] == [bytes]
            assert len((await read_one(node, seq_num=0)).records()) == 5

    run(scenario())


def test_what_is_large_and_read_back_from_memory_is_not_copied() -> None:
    bucket = MemoryBucket()

    async def scenario() -> None:
        async with node_on(bucket, EngineSettings(tail_cache_bytes=0)) as node:
            await append_large_and_small(node)
            found = (await read_one(node, seq_num=0)).records()
            assert [len(record.body) for record in found] == [9000, 9000, 9000, 9000, 5]
            read = entries_held(node)
            assert len(read) == 2, "small neighbours are not kept where they are at hand"
            for entry in read:
                assert isinstance(entry.payload, memoryview)
                assert id(entry.payload.obj) in objects_of(bucket)

    run(scenario())


def test_what_is_small_and_read_back_owns_its_bytes() -> None:
    async def scenario() -> None:
        async with node_on(Copying(), EngineSettings(tail_cache_bytes=0)) as node:
            await append_large_and_small(node)
            await read_one(node, seq_num=0)
            assert [type(entry.payload) for entry in entries_held(node)] == [
                memoryview,
                memoryview,
                bytes,  # smaller than a view of it
            ]

    run(scenario())


def entries_held(node: Node) -> list[Entry]:
    held = node.term.reader._read.values()
    return [entry for part in held for entry in unpacked(part.batches)]
