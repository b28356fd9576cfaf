"""Reads across log and history: the same records wherever they lie, and nothing of the log kept."""

import asyncio
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine import history_index
from bourn.engine.history_index import HistoryVersion, Segment, Stretch
from bourn.engine.node import Node
from bourn.layout.history.index import decode_index
from bourn.layout.history.rows import table_of
from bourn.layout.history.segment import encode_segment
from bourn.layout.keys import WAL_PREFIX
from bourn.model.config import Age, DeleteOnEmpty, StreamConfig
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    crash,
    eventually,
    gated_node,
    keys_of,
    read_one,
    seq_nums,
    session,
    stream_of,
    trim,
)
from tests.engine.tiering import Pipeline, adopt, live_files
from tests.layout.history.samples import NAMES, entry_of
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream

UNCACHED = EngineSettings(tail_cache_bytes=0, read_cache_bytes=1, encoded_cache_bytes=1)
BY_HAND = EngineSettings(  # the node does nothing by itself
    housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9, put_attempt_secs=1e9,
    collect_grace_secs=10, snapshots_kept=1, tail_cache_bytes=0, read_cache_bytes=1,
)  # fmt: skip


def pipeline(bucket: Bucket, clock: ManualClock | None = None) -> Pipeline:
    return Pipeline(bucket, clock or ManualClock(), random.Random(1))


async def tiered(bucket: Bucket, node: Node, **how: int) -> None:
    await pipeline(bucket).tier(**how)
    await adopt(node)


def test_reads_go_across_history_and_log_without_a_seam(storage: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, UNCACHED) as node:
            await with_stream(node)
            await append_each(node, *(f"old {n}" for n in range(20)))
            await tiered(bucket, node, commits_per_file=7)
            assert len(stream_of(node).runs) == 0
            assert node.history.segments == 4
            await append_each(node, *(f"new {n}" for n in range(5)))
            texts = [body.decode() for body in bodies(await read_all(node))]
            assert texts == [*(f"old {n}" for n in range(20)), *(f"new {n}" for n in range(5))]
            found = await read_one(node, seq_num=18, count=4)
            assert seq_nums(found.records()) == [18, 19, 20, 21]
            found = await read_one(node, tail_offset=25, count=1)
            assert bodies(found.records()) == [b"old 0"]

    storage.run(scenario)


def test_a_follower_goes_on_while_the_log_becomes_history_under_it(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, UNCACHED) as node:
            await with_stream(node)
            work = pipeline(bucket)
            seen: list[int] = []
            await append_each(node, *map(str, range(10)))
            async with session(node) as follower:
                for n in range(10, 40):
                    await append_each(node, str(n))
                    if n % 3 == 0:
                        await work.tier()
                        await adopt(node)
                    if n % 2 == 0:
                        seen += seq_nums((await follower.next()).records())
                while len(seen) < 40:
                    seen += seq_nums((await follower.next()).records())
            assert seen == list(range(40))

    memory.run(scenario)


def test_timestamps_are_found_in_the_history(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, UNCACHED) as node:
            await with_stream(node)
            for n in range(30):
                await node.append(BASIN, STREAM, batch(Record(b"%d" % n, (), 100 * n)))
            await tiered(bucket, node, commits_per_file=4, commits_max=22)
            for wanted, first in ((0, 0), (1, 1), (1000, 10), (1901, 20), (2900, 29)):
                found = await read_one(node, timestamp=wanted, count=1)
                assert seq_nums(found.records()) == [first]
            found = await read_one(node, timestamp=500, until=900)
            assert seq_nums(found.records()) == [5, 6, 7, 8]

    memory.run(scenario)


def test_gaps_within_and_between_blocks_are_stepped_over(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            for _ in range(3):
                await node.append(BASIN, STREAM, batch(*"abcdefghij"))
            work = pipeline(bucket)
            await work.tier(commits_per_file=2)
            kept = {3, 4, 8, 20, 21, 25, 29}

            def keeps(rows: pa.Table) -> Any:
                return np.isin(rows.column("seq_num").to_numpy(), list(kept))

            await work.rewrite(await live_files(bucket), keeps)
            await adopt(node)
            assert seq_nums(await read_all(node)) == sorted(kept)
            for start in range(30):
                found = await read_one(node, seq_num=start, count=2)
                assert seq_nums(found.records()) == sorted(n for n in kept if n >= start)[:2]

    memory.run(scenario)


def test_batches_that_begin_alike_in_log_and_history_are_told_apart(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            clock_free = [Record(b"%d" % n, (), 5) for n in range(3)]
            for record in clock_free:
                await node.append(BASIN, STREAM, batch(record))
            before = b"".join((await read_one(node, seq_num=0)).wire())
            await tiered(bucket, node)
            assert b"".join((await read_one(node, seq_num=0)).wire()) == before

    memory.run(scenario)


def test_what_is_trimmed_or_expired_is_hidden_at_once(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            config = StreamConfig(retention_policy=Age(60))
            await node.create_stream(BASIN, CreateStream(STREAM, config))
            await append_each(node, "0", "1", "2")
            clock.advance(50)
            await append_each(node, "3", "4")
            await pipeline(bucket, clock).tier()
            await adopt(node)
            assert seq_nums(await read_all(node)) == [0, 1, 2, 3, 4]
            await node.append(BASIN, STREAM, batch(trim(2)))
            assert seq_nums(await read_all(node)) == [2, 3, 4, 5]
            clock.advance(11)
            assert seq_nums(await read_all(node)) == [3, 4, 5]
            clock.advance(50)
            assert seq_nums(await read_all(node)) == []

    memory.run(scenario)


def test_streams_at_rest_are_read_from_the_history_too(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            await node.housekeeping.snapshots.take()
            assert node.term.state.streams.in_use_count == 0
            await tiered(bucket, node)
            assert node.term.state.streams.in_use_count == 0, "nobody needs it for that"
            await node.housekeeping.snapshots.take()
            assert bodies(await read_all(node)) == [b"a", b"b"]
            assert len(stream_of(node).runs) == 0
            await append_each(node, "c")
            await node.housekeeping.snapshots.take()
            columns = node.term.state.streams.cold.columns
            assert len(columns.runs.data) == 56, "the snapshot has the newest run alone"

    memory.run(scenario)


def test_the_log_goes_once_the_table_the_snapshot_and_the_grace_period_allow_it(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a", "b", "c")
            work = pipeline(bucket, clock)
            await work.tier()
            jobs = node.housekeeping

            async def commits() -> int:
                clock.advance(11)
                await jobs.collect()
                clock.advance(11)
                await jobs.collect()
                return len(await keys_of(bucket, WAL_PREFIX))

            assert await commits() == 5
            await jobs.snapshots.take()
            assert await commits() == 3, "the catalog's alone: the version was not taken yet"
            await append_each(node, "d")
            await adopt(node)
            await jobs.collect()
            assert len(await keys_of(bucket, WAL_PREFIX)) == 3 + 1, "readers are under way"
            assert await commits() == 1, "the snapshot is not past the last one"
            assert bodies(await read_all(node)) == [b"a", b"b", b"c", b"d"]
            await crash(node)
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            assert bodies(await read_all(node)) == [b"a", b"b", b"c", b"d"]
            await append_each(node, "e")
            assert bodies(await read_all(node)) == [b"a", b"b", b"c", b"d", b"e"]

    memory.run(scenario)


def test_a_commit_stays_as_long_as_the_newest_snapshot_refers_to_it(memory: Storage):
    """Else the pipeline, which finds it missing, would take it for lost."""

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            jobs = node.housekeeping
            await jobs.snapshots.take()
            await node.append(BASIN, STREAM, batch(trim(2)))
            for _ in range(3):
                jobs.expire()
                clock.advance(20)
                await jobs.collect()
            await pipeline(bucket, clock).tier()
            await jobs.snapshots.take()
            await jobs.collect()
            clock.advance(20)
            await jobs.collect()
            assert jobs.collected == 2 + 2, "and those of the catalog"

    memory.run(scenario)


def test_a_table_that_reaches_further_than_what_is_known_to_be_durable_waits(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, BY_HAND) as (gated, node):
            await with_stream(node)
            await append_each(node, "a")
            gated.shut = True
            appends = [node.append(BASIN, STREAM, batch(text)) for text in "bc"]
            waiting = [asyncio.ensure_future(work) for work in appends]
            (key,) = await gated.until_held(1)
            # It has landed, and its writer does not know it yet.
            data = node.term.committer._commits[node.term.committer.durable_ordinal].data
            await bucket.put_if_absent(key, data)
            await pipeline(bucket).tier()
            await adopt(node)
            assert node.history.end_ordinal > node.term.committer.durable_ordinal
            assert bodies(await read_all(node)) == [b"a"], "nobody sees what is not durable"
            assert node.term.state.runs_from == node.term.committer.durable_ordinal
            gated.open()
            for one in waiting:
                await one
            await adopt(node)
            assert bodies(await read_all(node)) == [b"a", b"b", b"c"]

    memory.run(scenario)


def test_polls_of_a_bucket_without_news_take_one_request_each():
    async def scenario() -> None:
        bucket = Counting()
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            for _ in range(3):
                before = bucket.requests
                await adopt(node)
                assert bucket.requests == before + 1
            await pipeline(bucket).tier()
            await adopt(node)
            before = bucket.requests
            await adopt(node)
            assert bucket.requests == before + 1

    run(scenario())


class Counting(MemoryBucket):
    requests = 0

    async def get(self, key: str) -> bytes:
        self.requests += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.requests += 1
        return await super().get_range(key, start, length)


def test_readers_of_one_block_share_its_fetch(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, BY_HAND) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            await tiered(bucket, node)
            gated.reads_shut = True
            reads = [asyncio.ensure_future(read_one(node, seq_num=0)) for _ in range(5)]
            await eventually(lambda: gated.held_reads)
            gated.open()
            for one in reads:
                assert (await one).records_count == 2
            assert node.history.fetches == 1

    memory.run(scenario)


def test_a_stream_created_again_has_nothing_of_the_one_before(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            await append_each(node, "old")
            await tiered(bucket, node)
            await node.delete_stream(BASIN, STREAM)
            await node.housekeeping.purge()
            await node.create_stream(BASIN, CreateStream(STREAM))
            assert await read_all(node) == []
            await append_each(node, "new")
            await tiered(bucket, node)
            assert bodies(await read_all(node)) == [b"new"]

    memory.run(scenario)


def test_a_stream_whose_records_are_all_in_the_history_is_not_empty(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            config = StreamConfig(
                retention_policy=Age(1000), delete_on_empty=DeleteOnEmpty(min_age_secs=5)
            )
            await node.create_stream(BASIN, CreateStream(STREAM, config))
            await append_each(node, "a")
            await pipeline(bucket, clock).tier()
            await adopt(node)
            await node.housekeeping.snapshots.take()
            for _ in range(3):
                clock.advance(100)
                node.housekeeping.expire()
                await node.housekeeping.snapshots.take()
            assert bodies(await read_all(node)) == [b"a"]
            stream = stream_of(node)
            assert node.term.state.next_check_s(stream) >= (1000 + clock.now_ms() // 1000 - 301)
            clock.advance(800)
            node.housekeeping.expire()
            await node.housekeeping.purge()
            assert node.term.find(BASIN, STREAM) is None

    memory.run(scenario)


def test_housekeeping_looks_once_at_streams_that_live_in_the_history_alone(memory: Storage):
    """Their rows were written when they were in the log, and say too early a time."""

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            config = StreamConfig(retention_policy=Age(100))
            await node.create_stream(BASIN, CreateStream(STREAM, config))
            await append_each(node, "a")
            jobs, streams = node.housekeeping, node.term.state.streams
            await jobs.snapshots.take()
            await pipeline(bucket, clock).tier()
            await adopt(node)
            clock.advance(200)
            assert len(streams.due(clock.now_ms() // 1000, 10)) == 1
            jobs.expire()
            await node.create_stream(BASIN, CreateStream("other"))
            await jobs.snapshots.take()
            assert streams.due(clock.now_ms() // 1000, 10) == []

    memory.run(scenario)


def test_storage_is_counted_across_log_and_history(memory: Storage):
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            for name in ("hot", "cold", "gone"):
                await node.create_stream(BASIN, CreateStream(name))
                for _ in range(3):
                    await node.append(BASIN, name, batch(b"x" * 92))
            await node.housekeeping.snapshots.take()
            await node.append(BASIN, "hot", batch(b"x" * 92))
            work = pipeline(bucket, clock)

            def sizes() -> tuple[int | None, int, int]:
                state, now_ms = node.term.state, clock.now_ms()
                hot, cold = (node.term.find(BASIN, name) for name in ("hot", "cold"))
                assert hot is not None
                assert cold is not None
                return (
                    state.metering.basin_bytes(BASIN),
                    state.stored_bytes(hot, now_ms),
                    state.stored_bytes(cold, now_ms),
                )

            assert sizes() == (1000, 400, 300)
            await work.tier(commits_per_file=3)
            await adopt(node)
            assert sizes() == (1000, 400, 300)
            await node.append(BASIN, "hot", batch(b"x" * 92))
            await node.housekeeping.snapshots.take()
            await work.tier()
            await work.merge()
            await adopt(node)
            assert sizes() == (1100, 500, 300)
            await node.delete_stream(BASIN, "gone")
            await node.housekeeping.purge()
            assert sizes() == (800, 500, 300)
            tail = (await node.append(BASIN, "cold", batch(trim(3)))).tail.seq_num
            assert tail == 4
            clock.advance(61)
            await adopt(node)
            assert sizes()[0] == 500 + (400 if sizes()[2] > 300 else sizes()[2])
            await crash(node)
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            assert sizes()[1] == 500
            await adopt(node)
            assert sizes()[0] == sizes()[1] + sizes()[2]

    memory.run(scenario)


def test_a_place_in_the_history_is_found_whatever_was_looked_for_before() -> None:
    some = batch(*[Record(bytes(50_000))] * 20)
    entries = [entry_of(some, id_, first) for id_ in (3, 5) for first in (0, 20, 40, 100, 120, 140)]
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, "history/_index/a.idx")
    assert len(index.blocks_of(3)) > 2
    version = HistoryVersion(1, 1, [Segment("history/a.parquet", 1, index)])
    rng = random.Random(1)
    wanted = [(rng.choice((2, 3, 5, 6)), rng.randrange(180)) for _ in range(300)]
    steps = [(id_, seq_num + step) for id_, seq_num in wanted for step in (0, 0, 1)]
    for stream_id, seq_num in steps:
        found, block = version.find(stream_id, seq_num), index.find(stream_id, seq_num)
        if block is None:
            assert found is None
        else:
            assert found is not None
            assert (found.stream_id, found.first_seq_num) == (stream_id, block.first_seq_num)
            assert found.end_seq_num == block.last_seq_num + 1


def test_no_more_places_are_kept_than_the_limit_and_one_that_was_dropped_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept_max = 3
    monkeypatch.setattr(history_index, "HISTORY_STRETCHES_KEPT", kept_max)
    some = batch(*[Record(bytes(50_000))] * 20)
    segments = []
    places = ((0, 20, 40), (60, 80, 100))  # of either, the same places hold other records
    for number, firsts in enumerate(places):
        entries = [entry_of(some, id_, first) for id_ in (3, 5) for first in firsts]
        key = f"history/_index/{number}.idx"
        data = encode_segment(table_of(entries, NAMES)).index
        segments.append(Segment(key, number, decode_index(data, key)))
    version = HistoryVersion(1, 1, segments)
    wanted = [(id_, seq_num) for id_ in (3, 5) for seq_num in range(120)]

    def found(stream_id: int, seq_num: int) -> Stretch:
        stretch = version.find(stream_id, seq_num)
        assert stretch is not None
        assert len(version._near) <= kept_max
        assert stretch.stream_id == stream_id
        assert stretch.first_seq_num <= seq_num < stretch.end_seq_num
        assert stretch.segment is segments[seq_num // 60]
        return stretch

    first_time = {place: found(*place) for place in wanted}
    assert len(set(first_time.values())) > 2 * kept_max
    rng = random.Random(1)
    for place in rng.choices(wanted, k=300):
        assert found(*place) == first_time[place]
    for start in (first_time[3, 0], first_time[5, 0]):
        way = [start]
        for stretch in version.behind(start):
            assert len(version._near) <= kept_max
            assert stretch.first_seq_num == way[-1].end_seq_num
            way.append(stretch)
        ids = [place for place in wanted if place[0] == start.stream_id]
        assert way == list(dict.fromkeys(first_time[place] for place in ids))
    version = HistoryVersion(1, 1, segments)  # which keeps nothing yet
    last = found(5, 119)
    assert found(5, 0) == first_time[5, 0]
    assert found(5, 119) is last, "what fits is kept"
