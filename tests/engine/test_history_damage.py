"""A history that is missing, damaged or late: named where it is needed, in nobody else's way."""

import asyncio
import io
import logging
import random
from collections.abc import Awaitable, Callable

import pyarrow.parquet as pq
import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.retry import Retry
from bourn.clock import ManualClock
from bourn.engine import fetches, history, row_groups
from bourn.engine.node import Node
from bourn.errors import BucketUnavailable, Damaged, StorageFailed
from bourn.layout.history.delta import (
    Add,
    SegmentName,
    Txn,
    decode_actions,
    delta_key,
    encode_actions,
)
from bourn.layout.history.facts import add_of, facts_of
from bourn.layout.history.segment import encode_segment
from bourn.layout.keys import WAL_PREFIX
from bourn.log.cursor import make_request
from bourn.model.config import DeleteOnEmpty, StreamConfig
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.table import HistoryTable, TableChange
from bourn.settings import EngineSettings
from tests.engine.harness import (
    REAL_CLOCK,
    append_each,
    bodies,
    crash,
    keys_of,
    read_one,
    stream_of,
)
from tests.engine.tiering import Pipeline, adopt, live_files
from tests.support import BASIN, node_on, read_all, run

BY_HAND = EngineSettings(
    housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9,
    collect_grace_secs=0, snapshots_kept=1, tail_cache_bytes=0, read_cache_bytes=1,
    put_deadline_secs=0.01,
)  # fmt: skip
FIRST, SECOND = "first", "second"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches, "FETCH_BACKOFF_SECS", 0.0001)
    monkeypatch.setattr(history, "POLL_DEADLINE_SECS", 0.01)
    monkeypatch.setattr(row_groups, "HISTORY_GROUPS_BYTES", 0)


def pipeline(bucket: MemoryBucket) -> Pipeline:
    return Pipeline(bucket, ManualClock(), random.Random(1))


async def two_streams(node: Node, bucket: MemoryBucket) -> list[Add]:
    """One stream in each of two files, with no log left of them; returns the files."""
    await node.create_basin(CreateBasin(BASIN))
    work = pipeline(bucket)
    for name in (FIRST, SECOND):
        await node.create_stream(BASIN, CreateStream(name))
        await append_each(node, f"{name} a", f"{name} b", stream=name)
        await work.tier()
    await adopt(node)
    await node.housekeeping.snapshots.take()
    await node.housekeeping.collect()
    kept = await keys_of(bucket, WAL_PREFIX)
    assert not kept
    return await live_files(bucket)


async def flip(bucket: MemoryBucket, key: str) -> None:
    data = bytearray(await bucket.get(key))
    data[len(data) // 2] ^= 1
    await bucket.put(key, bytes(data))


async def flip_early(bucket: MemoryBucket, key: str) -> None:
    """Among the rows: what follows them is Parquet's own, which the server never reads."""
    data = bytearray(await bucket.get(key))
    data[10] ^= 1
    await bucket.put(key, bytes(data))


async def lose(bucket: MemoryBucket, key: str) -> None:
    await bucket.delete(key)


async def cut(bucket: MemoryBucket, key: str) -> None:
    await bucket.put(key, (await bucket.get(key))[:-1])


harms = pytest.mark.parametrize("harm", [flip, lose, cut])
Harm = Callable[[MemoryBucket, str], Awaitable[None]]


@pytest.mark.parametrize("harm", [flip_early, lose])
def test_a_damaged_file_spoils_what_it_holds_and_nothing_else(harm: Harm, caplog):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            first, _ = await two_streams(node, bucket)
            await append_each(node, "c", stream=FIRST)
            await harm(bucket, first.key)
            for _ in range(3):
                with pytest.raises(Damaged, match=first.key):
                    await read_one(node, stream=FIRST, seq_num=0)
                with pytest.raises(Damaged, match=first.key):
                    await read_one(node, stream=FIRST, timestamp=0)
            assert bodies((await read_one(node, stream=FIRST, seq_num=2)).records()) == [b"c"]
            assert len(await read_all(node, stream=SECOND)) == 2
            warnings = [found for found in caplog.records if first.key in found.message]
            assert len(warnings) == 1, "it is said once, not with every read"
            assert node.history.failures > 0

    run(scenario())


@harms
def test_a_damaged_index_leaves_the_version_before_and_the_log(harm: Harm, caplog):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            version = node.history.version
            await append_each(node, "c", "d", stream=FIRST)
            await pipeline(bucket).tier()
            newest = (await live_files(bucket))[-1]
            whole = await bucket.get(newest.index_key)
            await harm(bucket, newest.index_key)
            for _ in range(3):
                await adopt(node)
                await node.housekeeping.snapshots.take()
                await node.housekeeping.collect()
            assert node.history.version == version
            assert node.history.seen_version == version + 1
            assert len(stream_of(node, stream=FIRST).runs) == 2
            assert len(await read_all(node, stream=FIRST)) == 4
            assert node.history.failures == 3
            told = [found for found in caplog.records if newest.index_key in found.message]
            assert len(told) == 1
            await bucket.put(newest.index_key, whole)
            await adopt(node)
            assert node.history.version == version + 1
            assert len(stream_of(node, stream=FIRST).runs) == 0
            assert len(await read_all(node, stream=FIRST)) == 4

    run(scenario())


@harms
def test_a_start_with_a_damaged_index_serves_the_rest(harm: Harm):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            first, _ = await two_streams(node, bucket)
            await append_each(node, "c", stream=FIRST)
            await crash(node)
        whole = await bucket.get(first.index_key)
        await harm(bucket, first.index_key)
        async with node_on(bucket, BY_HAND) as node:
            assert node.history.segments_missing == 1
            assert len(await read_all(node, stream=SECOND)) == 2
            assert bodies((await read_one(node, stream=FIRST, seq_num=2)).records()) == [b"c"]
            for request in ({"seq_num": 0}, {"seq_num": 1}, {"timestamp": 0}, {"tail_offset": 3}):
                with pytest.raises(Damaged, match=first.index_key):
                    await node.read(BASIN, FIRST, make_request(**request))  # type: ignore[arg-type]
            await append_each(node, "d", stream=FIRST)
            await pipeline(bucket).tier()
            await adopt(node)
            assert node.term.state.runs_from == 0, "nothing of the log is let go of"
            with pytest.raises(Damaged, match=first.index_key):
                await read_all(node, stream=FIRST)
            assert bodies((await read_one(node, stream=FIRST, seq_num=2)).records()) == [b"c", b"d"]
            await bucket.put(first.index_key, whole)
            await adopt(node)
            assert node.history.segments_missing == 0
            assert len(await read_all(node, stream=FIRST)) == 4
            assert len(stream_of(node, stream=FIRST).runs) == 0

    run(scenario())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_start_with_a_damaged_log_of_the_table_takes_no_hole_for_a_gap(version: int):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            await append_each(node, "c", stream=FIRST)
            await crash(node)
        key = delta_key(version)
        whole = await bucket.get(key)
        await bucket.put(key, b"{")
        async with node_on(bucket, BY_HAND) as node:
            with pytest.raises(Damaged, match=key):
                await read_one(node, stream=FIRST, seq_num=0)
            with pytest.raises(Damaged, match=key):
                await read_one(node, stream=SECOND, timestamp=0)
            assert bodies((await read_one(node, stream=FIRST, seq_num=2)).records()) == [b"c"]
            await append_each(node, "d", stream=FIRST)
            await adopt(node)
            assert node.history.version == -1
            assert node.history.failures > 1
            await bucket.put(key, whole)
            await adopt(node)
            assert len(await read_all(node, stream=FIRST)) == 4
            assert len(await read_all(node, stream=SECOND)) == 2

    run(scenario())


def test_a_damaged_log_of_the_table_is_told_and_leaves_everything_as_it_was(caplog):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            version = node.history.version
            await append_each(node, "c", stream=FIRST)
            await bucket.put(delta_key(version + 1), b"no action")
            for _ in range(3):
                await adopt(node)
            assert node.history.version == version
            assert node.history.failures == 3
            assert len(await read_all(node, stream=FIRST)) == 3
            told = [found for found in caplog.records if found.levelno >= logging.WARNING]
            assert len(told) == 1

    run(scenario())


def test_files_that_were_replaced_and_cleaned_away_are_read_in_their_new_place():
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            work = pipeline(bucket)
            await work.merge()
            await work.vacuum()
            assert len(await read_all(node, stream=FIRST)) == 2
            await work.merge(parts=2)
            await work.rewrite(await live_files(bucket))
            await work.vacuum()
            found = await read_one(node, stream=SECOND, timestamp=0, count=1)
            assert bodies(found.records()) == [b"second a"]
            assert node.history.failures == 1 + 1, "two fetches found nothing"

    run(scenario())


def test_files_that_overlap_are_refused_rather_than_half_of_them_passed_over():
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            table = HistoryTable(
                bucket, ManualClock(), random.Random(2), Retry(REAL_CLOCK, random.Random(3), 1)
            )
            first, _ = await live_files(bucket)
            rows = pq.read_table(io.BytesIO(await bucket.get(first.key)))
            copy = encode_segment(rows.slice(1, 1))
            name = SegmentName(1, 2, 9, "0123456789abcdef")
            await bucket.put(name.key, copy.parquet)
            await bucket.put(name.index_key, copy.index)
            stream_id = rows.column("stream_id")[0].as_py()
            add = add_of(facts_of(name, copy, (stream_id, stream_id)), 1)
            await table.commit(TableChange("BY MISTAKE", [add]))
            await adopt(node)
            with pytest.raises(Damaged, match="overlaps"):
                await read_one(node, stream=FIRST, seq_num=0)
            assert len(await read_all(node, stream=SECOND)) == 2

    run(scenario())


def test_a_log_that_ends_before_its_table_does_refuses_the_start():
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            version, end = node.history.version, node.history.end_ordinal
        actions = decode_actions(await bucket.get(delta_key(version)), delta_key(version))
        further = encode_actions(
            type(actions)(txns=(Txn(app_id="bourn-wal", version=end + 100),), info=actions.info)
        )
        await bucket.put(delta_key(version + 1), further)
        with pytest.raises(Damaged, match="the end of the log is lost"):
            async with node_on(bucket, BY_HAND):
                pass

    run(scenario())


def test_a_table_that_is_lost_or_seen_as_it_was_makes_no_gap_of_what_it_held():
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            await append_each(node, "c", stream=FIRST)
            version = node.history.version
        for lost in (range(version, version + 1), range(version + 1)):
            kept = {number: await bucket.get(delta_key(number)) for number in lost}
            for number in lost:
                await bucket.delete(delta_key(number))
            async with node_on(bucket, BY_HAND) as node:
                with pytest.raises(Damaged, match="the log was let go"):
                    await read_one(node, stream=SECOND, seq_num=0)
                assert bodies((await read_one(node, stream=FIRST, seq_num=2)).records()) == [b"c"]
                await adopt(node)
                with pytest.raises(Damaged, match="the log was let go"):
                    await read_one(node, stream=SECOND, timestamp=0)
                for number, data in kept.items():
                    await bucket.put(delta_key(number), data)
                await adopt(node)
                assert len(await read_all(node, stream=SECOND)) == 2
                assert len(await read_all(node, stream=FIRST)) == 3

    run(scenario())


def test_an_empty_stream_is_not_deleted_while_its_history_cannot_be_read():
    async def scenario() -> None:
        bucket, clock = MemoryBucket(), ManualClock()
        settings = EngineSettings(
            housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9, put_attempt_secs=1e9
        )
        async with node_on(bucket, settings, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            config = StreamConfig(delete_on_empty=DeleteOnEmpty(min_age_secs=5))
            await node.create_stream(BASIN, CreateStream(FIRST, config))
            await append_each(node, "a", stream=FIRST)
            await Pipeline(bucket, clock, random.Random(1)).tier()
            await adopt(node)
            await node.housekeeping.snapshots.take()
        (file,) = await live_files(bucket)
        whole = await bucket.get(file.index_key)
        await bucket.put(file.index_key, b"")
        opening = asyncio.ensure_future(
            Node.open(bucket, settings, clock=clock, rng=random.Random())
        )
        while not opening.done():
            clock.advance(1)  # damage is looked at again before it is believed
            await REAL_CLOCK.sleep(0.001)
        node = await opening
        clock.advance(100)
        node.housekeeping.expire()
        await node.housekeeping.purge()
        assert node.term.find(BASIN, FIRST) is not None
        await bucket.put(file.index_key, whole)
        await adopt(node)
        assert len(await read_all(node, stream=FIRST)) == 1
        await node.close()

    run(scenario())


def test_a_bucket_that_does_not_answer_fails_the_read_and_not_the_node(monkeypatch):
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await two_streams(node, bucket)
            get_range = bucket.get_range

            async def failing(key: str, start: int, length: int) -> bytes:
                raise BucketUnavailable(key, "no answer")

            monkeypatch.setattr(bucket, "get_range", failing)
            with pytest.raises(StorageFailed):
                await read_one(node, stream=FIRST, seq_num=0)
            monkeypatch.setattr(bucket, "get_range", get_range)
            assert len(await read_all(node, stream=FIRST)) == 2

    run(scenario())
