"""Faults that were found by reading: each was shown by its test before it was mended."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.clock import ManualClock
from bourn.engine import housekeeping, snapshots
from bourn.engine.node import Node, NodeState
from bourn.engine.room import BATCH_ROOM_BYTES_MIN
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import EncodedBatches
from bourn.errors import BournError, BucketRefused, OutcomeUnknown, ServerDraining
from bourn.layout.entry import Entry
from bourn.layout.keys import EPOCH_PREFIX, WAL_PREFIX, epoch_key, wal_key
from bourn.limits import COMMIT_BYTES_MAX, KIB, MIB, STREAM_REST_SECS
from bourn.log.cursor import make_request
from bourn.log.retention import is_abandoned
from bourn.model.config import Age, BasinConfig, DeleteOnEmpty, StreamConfig
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    commits_of,
    crash,
    eventually,
    gated_node,
    keys_of,
    pass_time,
    read_one,
    soon,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, run, with_stream

BY_HAND = EngineSettings(  # no job of the node's own runs unless a test says so
    housekeeping_secs=1e9, epoch_poll_secs=1e9, put_attempt_secs=1e9, collect_grace_secs=0
)


class Scripted(MemoryBucket):
    """A bucket in which a test has things happen at certain calls."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""  # puts under this prefix fail for good
        self.before_put: dict[str, Callable[[], Awaitable[object]]] = {}
        self.before_list: dict[str, Callable[[], Awaitable[object]]] = {}
        self.before_get: dict[str, Callable[[], Awaitable[object]]] = {}
        self.lists = 0

    async def put_if_absent(self, key: str, data: Data) -> None:
        if self.refused and key.startswith(self.refused):
            raise BucketRefused(key, "by the test")
        if key in self.before_put:
            await self.before_put.pop(key)()
        await super().put_if_absent(key, data)

    async def get(self, key: str) -> bytes:
        if key in self.before_get:
            await self.before_get.pop(key)()
        return await super().get(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:  # type: ignore[override]  # a generator is one
        self.lists += prefix == EPOCH_PREFIX
        if prefix in self.before_list:
            await self.before_list[prefix]()
        async for info in super().list(prefix, after):
            yield info


async def fail_log(node: Node, bucket: Scripted) -> None:
    """Let an append meet a bucket that refuses it, so that the node must rebuild itself."""
    bucket.refused = WAL_PREFIX
    with pytest.raises(OutcomeUnknown):
        await node.append(BASIN, STREAM, batch("lost"))
    bucket.refused = ""


# One node after the other, and two at once


def test_a_node_does_not_take_the_claim_of_its_own_rebuild_for_another_writers() -> None:
    async def scenario() -> None:
        bucket, clock = Scripted(), ManualClock()
        settings = EngineSettings(housekeeping_secs=1e9, put_attempt_secs=1e9)
        async with node_on(bucket, settings, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            gate = asyncio.Event()
            bucket.before_list[EPOCH_PREFIX] = gate.wait
            clock.advance(60)  # nobody has looked for newer writers for long
            await turns()
            reading = asyncio.ensure_future(node.read(BASIN, STREAM, from_start()))
            await turns()
            await fail_log(node, bucket)
            del bucket.before_list[EPOCH_PREFIX]
            await eventually(lambda: node.state is NodeState.SERVING)
            assert node.term.epoch == 2
            gate.set()  # the look that began in epoch 1 goes on and may see the claim of epoch 2
            await asyncio.gather(soon(reading), return_exceptions=True)
            await turns()
            assert node.state is NodeState.SERVING
            assert bodies(await read_all(node)) == [b"a"]

    run(scenario())


def test_a_rebuild_gives_way_to_a_writer_that_claims_in_the_same_moment() -> None:
    async def scenario() -> None:
        bucket = Scripted()
        async with node_on(bucket, BY_HAND) as older:
            await with_stream(older)
            rivals: list[Node] = []

            async def overtake() -> None:
                rivals.append(await Node.open(bucket, BY_HAND))

            bucket.before_put[epoch_key(2)] = overtake
            await fail_log(older, bucket)
            await eventually(lambda: older.state is not NodeState.REBUILDING)
            assert older.state is NodeState.FENCED
            await append_each(rivals[0], "mine")
            await rivals[0].close()

    run(scenario())


def test_rebuilds_that_fail_leave_one_claim_and_not_one_each() -> None:
    async def scenario() -> None:
        bucket, clock = Scripted(), ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            key = wal_key(1, 2)
            whole = await bucket.get(key)
            await bucket.put(key, whole[:-1])
            await fail_log(node, bucket)
            await pass_time(clock, 120)
            assert len(await keys_of(bucket, EPOCH_PREFIX)) == 2
            with pytest.raises(BournError, match="not serving"):
                _ = node.term
            await bucket.put(key, whole)
            await pass_time(clock, 10)
            assert node.state is NodeState.SERVING
            assert node.term.epoch == 2
            await append_each(node, "b")
            assert bodies(await read_all(node)) == [b"a", b"b"]
            await fail_log(node, bucket)
            await pass_time(clock, 10)
            assert node.term.epoch == 3, "an epoch that was worked in is not used again"
            assert bodies(await read_all(node)) == [b"a", b"b"]

    run(scenario())


def test_a_rebuild_goes_on_after_a_fault_that_nobody_has_foreseen() -> None:
    async def scenario() -> None:
        bucket, clock = Scripted(), ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)

            async def burst() -> None:
                raise RuntimeError("a fault in a library")

            bucket.before_get[wal_key(1, 0)] = burst
            await fail_log(node, bucket)
            await pass_time(clock, 5)
            assert not bucket.before_get
            assert node.state is NodeState.SERVING

    run(scenario())


def test_all_who_ask_whether_the_node_still_leads_share_one_look() -> None:
    async def scenario() -> None:
        bucket, clock = Scripted(), ManualClock()
        settings = EngineSettings(housekeeping_secs=1e9, put_attempt_secs=1e9)
        async with node_on(bucket, settings, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            gate = asyncio.Event()
            bucket.before_list[EPOCH_PREFIX] = gate.wait
            clock.advance(60)
            await turns()
            reads = [asyncio.ensure_future(read_one(node, seq_num=0)) for _ in range(100)]
            await turns()
            assert bucket.lists <= 3, "one at the start, one of the watch's own, one for all"
            gate.set()
            assert [found.records_count for found in await asyncio.gather(*reads)] == [1] * 100
            assert bucket.lists <= 3

    run(scenario())


def test_a_process_that_was_stopped_during_a_put_tries_it_again(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with gated_node(bucket, clock=clock) as (gated, node):
            await with_stream(node)
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))
            await gated.until_held(1)
            clock.advance(3600)
            gated.shut = False
            await eventually(lambda: not gated.held)
            await pass_time(clock, 1)
            assert (await soon(append)).start.seq_num == 0
            assert node.term.epoch == 1

    storage.run(scenario)


# The end


def test_a_second_close_returns_no_sooner_than_the_first(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        node = await Node.open(gated)
        await with_stream(node)
        gated.shut = True
        append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))
        await gated.until_held(1)
        closes = [asyncio.ensure_future(node.close()) for _ in range(3)]
        await turns()
        assert not any(close.done() for close in closes)
        gated.open()
        await soon(asyncio.gather(*closes))
        assert (await append).start.seq_num == 0

    storage.run(scenario)


def test_a_close_that_is_cancelled_stops_everything_at_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        before = asyncio.all_tasks()
        gated = GatedBucket(bucket)
        node = await Node.open(gated)
        await with_stream(node)
        gated.shut = True
        append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))
        await gated.until_held(1)
        close = asyncio.ensure_future(node.close())
        await turns()
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(close)
        with pytest.raises(OutcomeUnknown):
            await soon(append)
        await node.close()
        assert node.state is NodeState.CLOSED
        await turns()
        assert asyncio.all_tasks() == before

    storage.run(scenario)


def test_an_append_that_waits_for_room_at_the_end_has_not_happened(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        node = await Node.open(gated, EngineSettings(append_inflight_bytes=MIB))
        await with_stream(node)
        gated.shut = True
        large = batch(b"x" * 700 * KIB)
        first, *waiting = [
            asyncio.ensure_future(node.append(BASIN, STREAM, large)) for _ in range(4)
        ]
        await gated.until_held(1)
        close = asyncio.ensure_future(node.close())
        await turns()
        gated.open()
        await soon(close)
        assert (await first).end.seq_num == 1
        for append in waiting:
            with pytest.raises(ServerDraining):
                await append
        async with node_on(bucket) as node:
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 1

    storage.run(scenario)


# What a node does by itself


def test_housekeeping_goes_on_after_a_fault_that_nobody_has_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with node_on(clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN))
            config = StreamConfig(delete_on_empty=DeleteOnEmpty(1))
            await node.create_stream(BASIN, CreateStream(STREAM, config))
            faults = [RuntimeError("a fault in a library"), RuntimeError("and another")]

            def faulty(*facts: object) -> bool:
                if faults:
                    raise faults.pop()
                return is_abandoned(*facts)  # type: ignore[arg-type]

            monkeypatch.setattr(housekeeping, "is_abandoned", faulty)
            await pass_time(clock, 20)
            assert not faults
            assert node.term.find(BASIN, STREAM) is None

    run(scenario())


def test_one_step_collects_all_that_is_ripe_however_much_it_is(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            await append_each(node, *["x"] * 600)
            await node.append(BASIN, STREAM, batch(trim(600)))
            node.housekeeping.expire()
            for i in range(2):
                await node.create_stream(BASIN, CreateStream(f"{i}"))
                await node.housekeeping.snapshots.take()
            await node.housekeeping.collect()
            assert node.housekeeping.collected >= 600
            assert len(await keys_of(bucket, WAL_PREFIX)) < 10
            assert bodies(await read_all(node)) == [(600).to_bytes(8, "big")]

    memory.run(scenario)


def test_a_slow_collection_holds_up_no_expiry_and_no_snapshot() -> None:
    class Undeletable(MemoryBucket):
        tried = False

        async def delete(self, key: str) -> None:
            if key.startswith(WAL_PREFIX):
                self.tried = True
                await asyncio.get_running_loop().create_future()
            await super().delete(key)

    async def scenario() -> None:
        bucket, clock = Undeletable(), ManualClock()
        settings = EngineSettings(
            collect_grace_secs=0, put_attempt_secs=1e9, snapshot_interval_secs=5, snapshots_kept=1
        )
        async with node_on(bucket, settings, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "x")
            await node.append(BASIN, STREAM, batch(trim(9)))
            deadline = 60.0
            while not bucket.tried or deadline > 0:
                await pass_time(clock, 1)
                await append_each(node, "y")
                deadline -= 1
            taken = node.housekeeping.snapshots.taken
            for _ in range(60):
                await pass_time(clock, 1)
                await append_each(node, "z")
                await asyncio.sleep(0.001)  # noqa: TID251  snapshots are made in a thread
            assert node.housekeeping.snapshots.taken > taken

    run(scenario())


def test_a_damaged_object_that_nobody_needs_does_not_stop_the_sweep(memory: Storage) -> None:
    settings = EngineSettings(
        housekeeping_secs=1e9, epoch_poll_secs=1e9, collect_grace_secs=0, snapshots_kept=1
    )

    async def scenario(bucket: Bucket) -> None:
        for text in "ab":
            async with node_on(bucket, settings) as node:
                if text == "a":
                    await with_stream(node)
                await append_each(node, text)
                await node.append(BASIN, STREAM, batch(trim(99)))
                node.housekeeping.expire()
                await node.housekeeping.snapshots.take()
                await node.housekeeping.collect()
                await append_each(node, text)
        seal = (await keys_of(bucket, WAL_PREFIX))[0]
        await bucket.put(seal, b"damaged")
        async with node_on(bucket, settings) as node:
            assert node.term.state.epochs.span(1) is None, "else its seal is known without a look"
            await append_each(node, "c")
            await node.housekeeping.snapshots.take()
            await node.housekeeping.collect()
            assert seal in await keys_of(bucket, WAL_PREFIX)

    memory.run(scenario)


async def many_streams(node: Node, count: int, age_secs: int = 1000) -> None:
    """Create streams of one record each."""
    config = BasinConfig(
        create_stream_on_append=True,
        default_stream_config=StreamConfig(retention_policy=Age(age_secs)),
    )
    await node.create_basin(CreateBasin(BASIN, config))
    await asyncio.gather(*(node.append(BASIN, f"{i:06d}", batch("x")) for i in range(count)))


def test_housekeeping_brings_no_stream_at_rest_back_into_use() -> None:
    async def scenario() -> None:
        async with node_on(settings=BY_HAND) as node:
            await many_streams(node, 2 * housekeeping.STREAMS_PER_STEP + 10)
            node.housekeeping.expire()  # has the rest of the streams in use on its list
            await node.housekeeping.snapshots.take()
            assert node.term.state.streams.hot() == []
            node.housekeeping.expire()
            node.housekeeping.expire()
            assert node.term.state.streams.hot() == []

    run(scenario())


def test_streams_that_were_only_read_are_let_go_without_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "STREAMS_IN_USE_MAX", 50)

    async def scenario() -> None:
        async with node_on(settings=BY_HAND) as node:
            await many_streams(node, 200)
            await node.housekeeping.snapshots.take()
            streams = node.term.state.streams
            async with node.read_session(BASIN, "000007", make_request(seq_num=0)) as batches:
                await anext(batches)
                for i in range(200):
                    await node.check_tail(BASIN, f"{i:06d}")
                followed = streams.get(node.term.state.basins.get(BASIN).id, "000007")  # type: ignore[union-attr]
                assert streams.in_use_count == 200
                node.housekeeping.expire()
                assert streams.in_use_count <= 51
                await node.append(BASIN, "000007", batch("y"))
                assert followed is streams.in_use(followed.id)  # type: ignore[union-attr]
                assert bodies((await soon(anext(batches))).records()) == [b"y"]
            assert len((await node.list_streams(BASIN)).rows) == 200

    run(scenario())


def test_streams_at_work_stay_in_use_behind_a_snapshot_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "STREAMS_IN_USE_MAX", 150)

    async def scenario() -> None:
        async with node_on(settings=BY_HAND) as node:
            await many_streams(node, 200)
            await node.housekeeping.snapshots.take()
            streams = node.term.state.streams
            assert {stream.row.name for stream in streams.hot()} == {
                f"{i:06d}" for i in range(50, 200)
            }, "those that came into use first have gone"
            for i in range(200):
                ack = await node.append(BASIN, f"{i:06d}", batch("y"))
                assert ack.start.seq_num == 1

    run(scenario())


def test_streams_at_rest_are_let_go_however_few_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "STREAMS_IN_USE_MAX", 150)

    async def scenario() -> None:
        clock = ManualClock()
        async with node_on(settings=BY_HAND, clock=clock) as node:
            await many_streams(node, 10)
            streams = node.term.state.streams
            await pass_time(clock, STREAM_REST_SECS + 1, step=1.0)
            node.housekeeping.expire()
            assert streams.in_use_count == 10, "their rows are older than they are"
            await node.append(BASIN, "000007", batch("y"))
            await node.housekeeping.snapshots.take()
            assert streams.in_use_count == 10
            node.housekeeping.expire()
            assert [stream.row.name for stream in streams.hot()] == ["000007"]

    run(scenario())


def test_a_large_basin_goes_without_all_its_streams_in_memory_at_once() -> None:
    async def scenario() -> None:
        async with node_on(settings=BY_HAND) as node:
            count = 4 * housekeeping.PURGES_PER_COMMIT
            await many_streams(node, count)
            await node.housekeeping.snapshots.take()
            streams = node.term.state.streams
            most = 0
            await node.delete_basin(BASIN)
            while len(node.term.state.basins):
                most = max(most, streams.in_use_count)
                await turns(1)
            assert streams.count() == 0
            assert most <= 2 * housekeeping.PURGES_PER_COMMIT

    run(scenario())


def test_a_tick_lets_others_have_their_turn_between_its_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    async def scenario() -> None:
        clock = ManualClock()
        async with node_on(clock=clock, settings=EngineSettings(put_attempt_secs=1e9)) as node:
            await many_streams(node, 1500, age_secs=10)
            turn = 0

            def look_at(self: object, stream: Stream, now_ms: int) -> None:
                looked.append(turn)

            monkeypatch.setattr(housekeeping.Housekeeping, "_look_at", look_at)
            clock.advance(100)
            while len(looked) < 1500:
                turn += 1
                assert turn < 1000
                await turns(1)

    run(scenario())
    assert max(looked.count(turn) for turn in looked) <= 2 * housekeeping.STREAMS_PER_TURN


# Reads


def test_a_read_of_one_record_fetches_one_object(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, EngineSettings(tail_cache_bytes=0)) as node:
            await with_stream(node)
            await append_each(node, *["x"] * 40)
            wants = [
                {"seq_num": 5, "count": 1},
                {"seq_num": 15, "bytes": 9},
                {"timestamp": 1, "count": 1},
                {"tail_offset": 12, "count": 1, "wait": 1},
            ]
            for want in wants:
                gated.fetches = 0
                found = await node.read(BASIN, STREAM, make_request(**want))  # type: ignore[arg-type]  # the API's names
                assert found.records_count == 1
                await turns()
                assert gated.fetches == 1

    storage.run(scenario)


def test_readers_do_not_push_out_what_was_read_ahead_for_each_other(memory: Storage) -> None:
    streams, runs = 24, 16

    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        settings = EngineSettings(tail_cache_bytes=0, read_cache_bytes=MIB)
        async with node_on(gated, settings) as node:
            await node.create_basin(CreateBasin(BASIN, BasinConfig(create_stream_on_append=True)))
            for _ in range(runs):
                await asyncio.gather(
                    *(node.append(BASIN, f"{i}", batch(b"x" * 20_000)) for i in range(streams))
                )
            gated.fetches = 0

            async def read(i: int) -> int:
                request, records = make_request(seq_num=0, wait=0), 0
                async with node.read_session(BASIN, f"{i}", request) as batches:
                    async for found in batches:
                        records += found.records_count
                return records

            assert await asyncio.gather(*map(read, range(streams))) == [runs] * streams
            assert gated.fetches <= 1.5 * streams * runs
            assert node.term.reader._unasked_bytes == sum(node.term.reader._unasked.values())
            assert node.term.reader._unasked_bytes <= MIB // 2

    memory.run(scenario)


# Memory and the loop


def tiny_entry(seq_num: int) -> Entry:
    records = batch("x")
    return Entry(1, seq_num, 1, 9, 0, 0, 0, 7, 7, records.payload, False)


def test_encodings_of_tiny_batches_take_no_more_memory_than_they_may() -> None:
    limit = 2 * MIB
    encoded = EncodedBatches(limit)
    encoded.wire(tiny_entry(0))
    entries = [tiny_entry(seq_num) for seq_num in range(1, 40_000)]
    gc.collect()
    tracemalloc.start()
    try:
        for entry in entries:
            encoded.wire(entry)
            encoded.wire(entry)  # it is kept from the second reader on
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes <= 1.5 * limit


def test_tiny_appends_take_room_for_what_they_weigh_in_memory(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        settings = EngineSettings(append_inflight_bytes=MIB)
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.shut = True
            appends = [
                asyncio.ensure_future(node.append(BASIN, STREAM, batch("x"))) for _ in range(3000)
            ]
            await gated.until_held(1)
            await turns()
            assert node.term.room.waiting >= 3000 - MIB // BATCH_ROOM_BYTES_MIN
            gated.open()
            acks = await soon(asyncio.gather(*appends))
            assert [ack.start.seq_num for ack in acks] == list(range(3000))
            assert node.term.room.bytes_taken == 0

    memory.run(scenario)


def test_no_commit_holds_more_batches_than_the_loop_can_afford(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        settings = EngineSettings(commits_in_flight=1)
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.shut = True
            appender = await node.appender(BASIN, STREAM)
            replies = []
            for _ in range(20_000):
                tiny = batch("x")
                await appender.room_for(tiny)
                replies.append(appender.submit(tiny))
            await gated.until_held(1)
            gated.open()
            await soon(asyncio.gather(*replies))
            appender.close()
        commits = (await commits_of(bucket)).values()
        most = max(sum(len(entries) for _, entries in commit.runs) for commit in commits)
        assert most <= 4 * MIB // BATCH_ROOM_BYTES_MIN

    memory.run(scenario)


def test_commits_that_no_start_could_read_cannot_be_asked_for() -> None:
    for split_bytes in (0, -1, COMMIT_BYTES_MAX // 2, 2 * COMMIT_BYTES_MAX):
        with pytest.raises(ValueError, match="commit_split_bytes"):
            EngineSettings(commit_split_bytes=split_bytes)


def test_the_largest_commits_that_may_be_asked_for_can_be_read_back(memory: Storage) -> None:
    settings = EngineSettings(commits_in_flight=1, commit_split_bytes=16 * MIB)

    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.shut = True
            large = batch(b"x" * 1_000_000)
            appends = [asyncio.ensure_future(node.append(BASIN, STREAM, large)) for _ in range(20)]
            await gated.until_held(1)
            gated.open()
            await soon(asyncio.gather(*appends))
            assert max(gated.sizes.values()) > 15 * MIB
            await crash(node)
        async with node_on(bucket) as node:
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 20

    memory.run(scenario)
