"""Small runs that are neighbours come by one request; what is wrong with one harms no other."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Range
from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node
from bourn.errors import BournError, BucketError, BucketUnavailable, Damaged, ObjectMissing
from bourn.layout.keys import WAL_PREFIX
from bourn.limits import READ_TOGETHER_BYTES_MAX, READ_TOGETHER_RUNS
from bourn.settings import EngineSettings
from tests.engine.harness import append_each, eventually, read_one, seq_nums, session, turns
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, run, with_stream

NO_TAIL = EngineSettings(tail_cache_bytes=0)
RUNS = 3 * READ_TOGETHER_RUNS + 7


class ManyBucket(MemoryBucket):
    """In memory, but asked as a disk is; counts its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []  # how many ranges each request had
        self.alone = 0
        self.error: BucketError | None = None
        self.gate: asyncio.Event | None = None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.alone += key.startswith(WAL_PREFIX)
        return await super().get_range(key, start, length)

    async def get_ranges(self, ranges: Sequence[Range]) -> "list[bytes | None]":
        self.together.append(len(ranges))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        found: list[bytes | None] = []
        for wanted in ranges:
            try:
                found.append(await super().get_range(*wanted))
            except ObjectMissing:
                found.append(None)
        return found


async def filled(node: Node, runs: int = RUNS) -> None:
    await with_stream(node)
    await append_each(node, *(f"{number}" for number in range(runs)))


def wal_keys(bucket: MemoryBucket) -> list[str]:
    return sorted(key for key in bucket._objects if key.startswith(WAL_PREFIX))


def bodies(batches: ReadBatch) -> list[bytes]:
    return [record.body for record in batches.records()]


def test_many_small_runs_are_read_by_few_requests() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node)
            assert seq_nums(await read_all(node)) == list(range(RUNS))
            assert bucket.together == [READ_TOGETHER_RUNS] * 3 + [7]
            assert bucket.alone == 0
            assert not node.term.reader._edges
            assert not node.term.reader._bundled
            assert node.term.reader._unasked_bytes == 0

    run(scenario())


def test_a_disk_reads_them_so_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path_factory.mktemp("bucket"))
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node)
            found = await read_all(node)
            assert [record.body for record in found] == [b"%d" % number for number in range(RUNS)]
            assert node.term.reader.fetches == RUNS
        await bucket.close()

    run(scenario())


def test_no_more_is_read_ahead_than_the_read_may_take() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node)
            assert bodies(await read_one(node, seq_num=5, count=3)) == [b"5", b"6", b"7"]
            assert bucket.together == [3]

    run(scenario())


def test_large_runs_are_read_one_by_one() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await with_stream(node)
            large = batch(b"x" * READ_TOGETHER_BYTES_MAX)
            await append_each(node, "small", "small")
            for _ in range(3):
                await node.append(BASIN, STREAM, large)
            assert len(await read_all(node)) == 5
            assert bucket.together == [2]
            assert bucket.alone == 3

    run(scenario())


@pytest.mark.parametrize("damage", ["lost", "altered", "cut short"])
def test_one_that_is_damaged_is_named_and_all_others_are_read(damage: str) -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node, 9)
            key = wal_keys(bucket)[-5]
            data = bucket._objects[key]
            if damage == "lost":
                await bucket.delete(key)
            else:
                middle = len(data) // 2
                altered = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                await bucket.put(key, altered if damage == "altered" else data[:100])
            assert seq_nums((await read_one(node, seq_num=0)).records()) == [0, 1, 2, 3]
            with pytest.raises(Damaged) as damaged:
                await read_one(node, seq_num=4)
            assert damaged.value.key == key
            assert seq_nums((await read_one(node, seq_num=5)).records()) == [5, 6, 7, 8]

    run(scenario())


def test_where_the_request_fails_each_is_asked_for_alone() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        bucket.error = BucketUnavailable("*", "out of order")
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node, 20)
            assert seq_nums(await read_all(node)) == list(range(20))
            assert bucket.alone == 20
            assert node.term.reader._unasked_bytes == 0

    run(scenario())


def test_readers_of_one_place_share_the_request() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node, 20)
            reads = await asyncio.gather(*(read_one(node, seq_num=0) for _ in range(30)))
            assert [read.records_count for read in reads] == [20] * 30
            assert bucket.together == [20]
            assert bucket.alone == 0

    run(scenario())


def test_a_reader_that_leaves_takes_the_request_from_nobody() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node, 20)
            bucket.gate = asyncio.Event()
            leaving, staying = (
                asyncio.get_running_loop().create_task(read_one(node, seq_num=0)) for _ in "ab"
            )
            await eventually(lambda: bool(bucket.together))
            leaving.cancel()
            await turns()
            bucket.gate.set()
            assert (await staying).records_count == 20
            assert leaving.cancelled()
            assert bucket.together == [20]

    run(scenario())


def test_a_node_that_closes_ends_the_request() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node, 20)
            reader = node.term.reader
            bucket.gate = asyncio.Event()
            reading = asyncio.get_running_loop().create_task(read_one(node, seq_num=0))
            await eventually(lambda: bool(bucket.together))
        with pytest.raises(BournError, match="stop"):
            await reading
        assert not reader._bundled

    run(scenario())


def test_a_cache_without_room_reads_them_one_by_one() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        settings = msgspec.structs.replace(NO_TAIL, read_cache_bytes=1)
        async with node_on(bucket, settings) as node:
            await filled(node, 20)
            assert seq_nums(await read_all(node)) == list(range(20))
            assert bucket.together == []

    run(scenario())


def test_a_read_of_many_runs_lets_others_have_their_turn() -> None:
    async def scenario() -> None:
        bucket = ManyBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await filled(node)
            await read_all(node)  # all of it is kept, a part for each run: nothing of it waits
            asked = len(bucket.together)
            turns_taken = 0

            async def other() -> None:
                nonlocal turns_taken
                while True:
                    await asyncio.sleep(0)  # noqa: TID251  a bare yield
                    turns_taken += 1

            beside = asyncio.get_running_loop().create_task(other())
            async with session(node, from_start(wait=0)) as reader:
                assert (await reader.next()).records_count == RUNS
            beside.cancel()
            assert turns_taken >= 4
            assert len(bucket.together) == asked

    run(scenario())
