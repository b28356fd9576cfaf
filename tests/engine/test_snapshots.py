"""Snapshots: a shorter way to the same state, whatever was under way when they were taken."""

import asyncio
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine import snapshots
from bourn.engine import stream as stream_module
from bourn.engine.node import Node
from bourn.errors import (
    BournError,
    BucketRefused,
    BucketUnavailable,
    Fenced,
    OutcomeUnknown,
    ResourceError,
)
from bourn.layout.keys import SNAPSHOT_PREFIX, WAL_PREFIX, parse_snapshot_key, snapshot_key
from bourn.layout.runs import RUN_BYTES
from bourn.limits import SNAPSHOT_PAUSE_FACTOR
from bourn.model.config import Age, Infinite, StreamConfig
from bourn.model.patch import StreamPatch
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    SlowBucket,
    Storage,
    append_each,
    bodies,
    crash,
    eventually,
    fence,
    gated_node,
    keys_of,
    pass_time,
    pass_time_until,
    read_one,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream

NOW_MS = 1_700_000_000_000
QUICK = EngineSettings(housekeeping_secs=0.02)
WHOLE_LOG = EngineSettings(collect_grace_secs=1e9)  # nothing is collected
FOREVER = StreamConfig(retention_policy=Infinite())


async def copy_of(bucket: Bucket, without: str | None = None) -> MemoryBucket:
    """The same objects in another bucket, but for those under a prefix."""
    copy = MemoryBucket()
    for key in await keys_of(bucket, ""):
        if without is None or not key.startswith(without):
            await copy.put(key, await bucket.get(key))
    return copy


async def contents(node: Node) -> dict[str, Any]:
    """Everything that a client could find out, and what decides about its next requests."""
    await eventually(lambda: not node.term.deleting)
    found: dict[str, Any] = {"basins": (await node.list_basins()).rows}
    for basin in found["basins"]:
        for row in (await node.list_streams(basin.name)).rows:
            stream = node.term.find(basin.name, row.name)
            assert stream is not None
            records = await read_all(node, basin.name, row.name) if stream.tail.seq_num else []
            found[f"{basin.name}/{row.name}"] = (
                row,
                stream.state,
                stream.tail,
                stream.last_write_ms,
                records,
            )
    found["next id"] = node.term.state.next_resource_id
    return found


async def work(node: Node, clock: ManualClock, seed: int, steps: int) -> None:
    """A bit of everything, by a seed, until the node ends."""
    rng = Random(seed)
    for _ in range(steps):
        clock.advance(rng.choice([0, 0, 0.3, 2]))
        try:
            await step(node, rng, rng.choice(["basin-one", "basin-two"]), f"s{rng.randint(0, 4)}")
        except ResourceError:
            pass
        except BournError:
            return


async def step(node: Node, rng: Random, basin: str, stream: str) -> None:
    match rng.randint(0, 11):
        case 0:
            await node.ensure_basin(basin)
        case 1 | 2:
            await node.ensure_stream(basin, stream, FOREVER)
        case 3:
            policy = StreamPatch(retention_policy=Age(rng.randint(1, 5)))
            await node.reconfigure_stream(basin, stream, policy)
        case 4 if rng.random() < 0.4:
            await node.delete_stream(basin, stream)
        case 5 if rng.random() < 0.1:
            await node.delete_basin(basin)
        case 6 if rng.random() < 0.5:
            await node.housekeeping.snapshots.take()
        case 7:
            node.housekeeping.expire()
        case _:
            records = [rng.randbytes(rng.randint(0, 30)) for _ in range(rng.randint(1, 4))]
            extra = rng.choice([[], [], [fence(f"t{stream}")], [trim(rng.randint(0, 20))]])
            await node.append(basin, stream, batch(*records, *extra))


async def compare_starts(seed: int, steps: int, ending: str, workers: int) -> None:
    clock = ManualClock(NOW_MS)
    bucket = MemoryBucket()
    rng = Random(seed)
    node = await Node.open(SlowBucket(bucket, rng), WHOLE_LOG, clock=clock, rng=Random(0))
    await node.create_basin(CreateBasin("basin-one"))
    await node.create_basin(CreateBasin("basin-two"))
    working = [
        asyncio.ensure_future(work(node, clock, seed + i, steps // workers)) for i in range(workers)
    ]
    if ending == "crash in the middle":
        await turns(rng.randint(0, 20 * steps))
    else:
        await asyncio.gather(*working)
    await (node.close() if ending == "close" else crash(node))
    await asyncio.gather(*working)
    from_log = await copy_of(bucket, without=SNAPSHOT_PREFIX)
    starts = []
    now_ms = clock.now_ms()
    for copy in (await copy_of(bucket), from_log, from_log):  # the last from the second's own
        clock.set_wall(now_ms)  # else a record may expire between two of them
        async with node_on(copy, QUICK, clock=clock) as started:
            await pass_time(clock, 0.1, 0.02)
            starts.append(await contents(started))
    assert starts[0] == starts[1] == starts[2]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.integers(0, 80),
    st.sampled_from(["crash in the middle", "crash", "close"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_start_from_a_snapshot_equals_a_start_from_the_log_alone(
    seed: int, steps: int, ending: str, workers: int, is_by_pieces: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if is_by_pieces:
            copy_a_run_a_turn(patch)
        run(compare_starts(seed, steps, ending, workers))


def copy_a_run_a_turn(patch: pytest.MonkeyPatch) -> None:
    """Let no index be so short that it is copied at once."""
    patch.setattr(stream_module, "SNAPSHOT_RUNS_AT_ONCE_BYTES", 0)
    patch.setattr(snapshots, "SNAPSHOT_RUNS_PIECE_BYTES", RUN_BYTES)


def test_others_have_their_turn_while_a_long_index_is_copied_and_the_cut_stays_where_it_was(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_a_run_a_turn(monkeypatch)

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, *(f"{i}" for i in range(40)))
            taking = asyncio.ensure_future(node.housekeeping.snapshots.take())
            await turns(5)
            assert not taking.done()
            await node.append(BASIN, STREAM, batch("later", trim(10)))
            await soon(taking)
            await crash(node)
        async with node_on(bucket) as node:
            assert node.term.recovered.snapshot is not None
            assert node.term.recovered.replayed_commits == 1
            expected = [f"{i}".encode() for i in range(10, 40)]
            assert bodies(await read_all(node)) == [*expected, b"later", (10).to_bytes(8, "big")]

    storage.run(scenario)


def test_a_snapshot_taken_while_appends_are_in_flight_is_put_when_they_are_durable(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            appends = [asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))]
            await gated.until_held(1)
            appends.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch("b", trim(1)))))
            create = asyncio.ensure_future(node.create_stream(BASIN, CreateStream("new")))
            await turns()
            snapshot = asyncio.ensure_future(node.housekeeping.snapshots.take())
            await gated.until_held(2)
            later = asyncio.ensure_future(node.append(BASIN, STREAM, batch("later")))
            await turns(50)
            assert await keys_of(bucket, SNAPSHOT_PREFIX) == []
            first, second = sorted(gated.held)
            gated.let(second)
            await turns(50)
            assert await keys_of(bucket, SNAPSHOT_PREFIX) == []
            gated.let(first)
            await soon(asyncio.gather(*appends, create))
            await soon(snapshot)
            (key,) = await keys_of(bucket, SNAPSHOT_PREFIX)
            assert parse_snapshot_key(key) is not None
            gated.open()
            await soon(later)
            await crash(node)
        async with node_on(bucket) as node:
            assert node.term.recovered.snapshot is not None
            assert bodies(await read_all(node)) == [b"b", (1).to_bytes(8, "big"), b"later"]
            assert {row.name for row in (await node.list_streams(BASIN)).rows} == {STREAM, "new"}

    storage.run(scenario)


def test_no_snapshot_comes_of_a_state_that_failed_to_become_durable(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            snapshots = node.housekeeping.snapshots
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("lost")))
            (key,) = await gated.until_held(1)
            taking = asyncio.ensure_future(snapshots.take())
            await turns()
            gated.let(key, BucketRefused(key, "no"))
            gated.open()
            with pytest.raises(OutcomeUnknown):
                await soon(append)
            with pytest.raises((OutcomeUnknown, asyncio.CancelledError)):
                await soon(taking)
            assert await keys_of(bucket, SNAPSHOT_PREFIX) == []
            assert (await soon(node.check_tail(BASIN, STREAM))).seq_num == 0

    storage.run(scenario)


def test_no_snapshot_is_begun_when_the_log_has_ended(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        node = await Node.open(bucket)
        await with_stream(node)
        await append_each(node, "kept")
        appender = await node.appender(BASIN, STREAM)
        lost = batch("lost")
        await appender.room_for(lost)
        future = appender.submit(lost)  # admitted, and the log ends before it is flushed
        term, snapshots = node.term, node.housekeeping.snapshots
        term.committer.fail(Fenced("another writer was seen"))
        with pytest.raises(BournError):
            await soon(snapshots.take())
        with pytest.raises(OutcomeUnknown):
            await soon(future)
        await node.close()
        assert await keys_of(bucket, SNAPSHOT_PREFIX) == []
        async with node_on(bucket) as node:
            assert bodies(await read_all(node)) == [b"kept"]
            assert (await node.append(BASIN, STREAM, batch("next"))).start.seq_num == 1

    storage.run(scenario)


def test_a_snapshot_whose_put_fails_is_taken_again(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await append_each(node, "a")
            gated.prefix, gated.shut = SNAPSHOT_PREFIX, True
            taking = asyncio.ensure_future(node.housekeeping.snapshots.take())
            (key,) = await gated.until_held(1)
            await append_each(node, "b")
            gated.let(key, BucketUnavailable(key, "try later"))
            with pytest.raises(BucketUnavailable):
                await soon(taking)
            gated.open()
            await node.housekeeping.snapshots.take()
            await crash(node)
        async with node_on(bucket) as node:
            assert node.term.recovered.replayed_commits == 0
            assert bodies(await read_all(node)) == [b"a", b"b"]

    memory.run(scenario)


def test_only_the_newest_snapshots_are_kept(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            for i in range(5):
                await append_each(node, f"{i}")
                await node.housekeeping.snapshots.take()
                assert len(await keys_of(bucket, SNAPSHOT_PREFIX)) == min(i + 1, 2)
            newest = (await keys_of(bucket, SNAPSHOT_PREFIX))[-1]
            position = node.term.committer.position(node.term.committer.next_ordinal)
            assert newest == snapshot_key(position)
        for _ in range(3):
            async with node_on(bucket) as node:
                assert len(bodies(await read_all(node))) == 5
            assert len(await keys_of(bucket, SNAPSHOT_PREFIX)) == 2

    storage.run(scenario)


@pytest.mark.parametrize("reason", ["bytes", "streams", "age"])
def test_a_snapshot_is_taken_when_enough_has_changed(memory: Storage, reason: str) -> None:
    never = EngineSettings(snapshot_interval_secs=1e9)
    reasons = {
        "bytes": msgspec.structs.replace(never, snapshot_after_bytes=20_000),
        "streams": msgspec.structs.replace(never, snapshot_after_streams=5),
        "age": EngineSettings(snapshot_interval_secs=30),
    }

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, reasons[reason], clock=clock) as node:
            await with_stream(node)
            await pass_time(clock, 5)
            assert node.housekeeping.snapshots.taken == 0
            if reason == "bytes":
                await node.append(BASIN, STREAM, batch(b"x" * 20_000))
            elif reason == "streams":
                for i in range(5):
                    await node.create_stream(BASIN, CreateStream(f"{i}"))
            await pass_time_until(clock, lambda: node.housekeeping.snapshots.taken == 1)
            await pass_time(clock, 100)
            assert node.housekeeping.snapshots.taken == 1, "nothing has changed since"

    memory.run(scenario)


def test_snapshots_that_take_long_are_taken_seldom_where_many_streams_change(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "STREAMS_IN_USE_MAX", 10)
    settings = EngineSettings(snapshot_interval_secs=1e9, snapshot_after_streams=5)

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, settings, clock=clock) as (gated, node):
            await node.create_basin(CreateBasin(BASIN))
            taken = node.housekeeping.snapshots

            async def change(count: int) -> None:
                for _ in range(count):
                    name = f"{node.term.state.streams.count()}"
                    await node.create_stream(BASIN, CreateStream(name))

            await change(5)
            gated.prefix, gated.shut = SNAPSHOT_PREFIX, True
            await pass_time_until(clock, lambda: gated.held)
            await pass_time(clock, 4)  # as long as this one takes
            gated.open()
            await pass_time_until(clock, lambda: taken.taken == 1)
            await change(6)
            await pass_time(clock, 3.5 * SNAPSHOT_PAUSE_FACTOR)
            assert taken.taken == 1
            await pass_time_until(clock, lambda: taken.taken == 2)

    memory.run(scenario)


def test_a_start_replays_only_what_the_snapshot_does_not_cover(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, *(f"{i}" for i in range(10)))
            await node.housekeeping.snapshots.take()
            await append_each(node, "x", "y")
            await crash(node)
        async with node_on(bucket) as node:
            assert node.term.recovered.replayed_commits == 2
            assert len(await read_all(node)) == 12
            await crash(node)
        async with node_on(bucket) as node:  # what the second start did not snapshot either
            assert node.term.recovered.replayed_commits == 2
            assert len(await read_all(node)) == 12
        async with node_on(bucket) as node:
            assert node.term.recovered.replayed_commits == 0

    storage.run(scenario)


def test_streams_at_rest_are_let_go_and_come_back_as_they_were(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(fence("t"), "a"))
            await node.housekeeping.snapshots.take()
            assert node.term.state.streams.hot() == []
            ack = await node.append(BASIN, STREAM, batch("b"), match_seq_num=2, fencing_token="t")
            assert ack.start.seq_num == 2
            assert (await read_one(node, seq_num=1)).records_count == 2
            await node.housekeeping.snapshots.take()
            await node.create_stream(BASIN, CreateStream("other"))
            assert bodies(await read_all(node))[1:] == [b"a", b"b"]

    storage.run(scenario)


def test_a_trim_that_was_in_flight_when_its_stream_was_captured_is_still_carried_out(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await node.create_basin(CreateBasin(BASIN))
            await node.create_stream(BASIN, CreateStream(STREAM, FOREVER))
            await append_each(node, "a", "b")
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch(trim(3))))
            await gated.until_held(1)
            taking = asyncio.ensure_future(node.housekeeping.snapshots.take())
            await turns()
            gated.open()
            await soon(asyncio.gather(append, taking))
            assert node.term.state.streams.hot() == [], "only its row knows it now"
            node.housekeeping.expire()
            assert len(stream_of(node).runs) == 0

    memory.run(scenario)


def test_a_trim_right_before_the_end_is_carried_out_by_the_next_start(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            await node.create_stream(BASIN, CreateStream(STREAM, FOREVER))
            await append_each(node, "a", "b", "c")
            await node.append(BASIN, STREAM, batch(trim(2)))
        async with node_on(bucket) as node:
            node.housekeeping.expire()
            assert [run.first_seq_num for run in stream_of(node).runs] == [2, 3]
            assert bodies(await read_all(node))[:1] == [b"c"]

    storage.run(scenario)


def test_foreign_objects_are_ignored(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "a")
        for key in (
            "catalog/readme.txt",
            "catalog/000000000009-000000000000.parquet.tmp",
            "epoch/notes",
            "wal/000000000001/tmp-123",
            "wal/readme",
            "history/part-0.parquet",
            "other",
        ):
            await bucket.put(key, b"not ours")
        for _ in range(2):
            async with node_on(bucket) as node:
                assert bodies(await read_all(node)) == [b"a"]
        assert await bucket.get("catalog/readme.txt") == b"not ours"
        assert await bucket.get("wal/000000000001/tmp-123") == b"not ours"
        assert [key for key in await keys_of(bucket, WAL_PREFIX) if "tmp" in key]

    storage.run(scenario)
