"""Takeover: whoever starts last owns the bucket, and nothing that was acked is lost or doubled."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, ObjectInfo
from bourn.clock import ManualClock
from bourn.engine.node import Node, NodeState
from bourn.errors import (
    BournError,
    BucketRefused,
    BucketUnavailable,
    Fenced,
    OutcomeUnknown,
    StorageFailed,
)
from bourn.layout.commit import decode_header
from bourn.layout.keys import EPOCH_PREFIX
from bourn.model.patch import StreamPatch
from bourn.model.resource import CreateBasin
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    SlowBucket,
    Storage,
    append_each,
    bodies,
    eventually,
    gated_node,
    keys_of,
    read_one,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream

NOW_MS = 1_700_000_000_000
QUICK = EngineSettings(epoch_poll_secs=0.02)
SLOW_WATCH = EngineSettings(epoch_poll_secs=1e6)  # only its own puts can tell the old writer


def test_the_second_node_takes_over_with_everything_and_the_first_stops(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, SLOW_WATCH) as first:
            await with_stream(first)
            await append_each(first, "a", "b")
            async with node_on(bucket) as second:
                assert bodies(await read_all(second)) == [b"a", b"b"]
                with pytest.raises(OutcomeUnknown):
                    await first.append(BASIN, STREAM, batch("late"))
                assert first.state is NodeState.FENCED
                calls = [
                    first.append(BASIN, STREAM, batch("x")),
                    read_one(first, seq_num=0),
                    first.check_tail(BASIN, STREAM),
                    first.list_basins(),
                    first.create_basin(CreateBasin("another-basin")),
                    first.reconfigure_stream(BASIN, STREAM, StreamPatch()),
                ]
                for call in calls:
                    with pytest.raises(Fenced):
                        await call
                await append_each(second, "c")
                assert bodies(await read_all(second)) == [b"a", b"b", b"c"]

    storage.run(scenario)


def test_three_nodes_in_a_row_each_take_over_from_the_one_before(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        nodes = []
        for i in range(3):
            node = await Node.open(bucket, SLOW_WATCH)
            if i == 0:
                await with_stream(node)
            nodes.append(node)
            await append_each(node, f"{i}")
        for old in nodes[:2]:
            with pytest.raises((OutcomeUnknown, Fenced)):
                await old.append(BASIN, STREAM, batch("x"))
            assert old.state is NodeState.FENCED
        await append_each(nodes[2], "last")
        assert bodies(await read_all(nodes[2])) == [b"0", b"1", b"2", b"last"]
        for node in nodes:
            await node.close()
        async with node_on(bucket) as node:
            assert bodies(await read_all(node)) == [b"0", b"1", b"2", b"last"]

    storage.run(scenario)


def test_an_idle_node_notices_a_newer_writer_by_itself(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, QUICK) as first:
            await with_stream(first)
            async with node_on(bucket):
                await eventually(lambda: first.state is NodeState.FENCED)
                with pytest.raises(Fenced):
                    await read_one(first, seq_num=0)

    storage.run(scenario)


def test_a_put_that_arrives_late_loses_to_the_seal(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, SLOW_WATCH) as (gated, first):
            await with_stream(first)
            await append_each(first, "acked")
            gated.shut = True
            late = asyncio.ensure_future(first.append(BASIN, STREAM, batch("late")))
            (key,) = await gated.until_held(1)
            async with node_on(bucket) as second:
                assert decode_header(await bucket.get(key), key).is_tombstone
                gated.let(key)
                with pytest.raises(OutcomeUnknown):
                    await soon(late)
                assert first.state is NodeState.FENCED
                await append_each(second, "new")
                assert bodies(await read_all(second)) == [b"acked", b"new"]
        async with node_on(bucket) as third:
            assert bodies(await read_all(third)) == [b"acked", b"new"]

    storage.run(scenario)


def test_a_put_that_lands_behind_the_seal_is_never_acked_or_served(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        each = EngineSettings(flush_interval_ms=1, epoch_poll_secs=1e6)
        async with gated_node(bucket, each, clock=clock) as (gated, first):
            creating = asyncio.ensure_future(with_stream(first))
            while not creating.done():
                clock.advance(0.001)
                await turns(3)
            gated.shut = True
            lates = []
            for i in range(2):
                lates.append(asyncio.ensure_future(first.append(BASIN, STREAM, batch(f"{i}"))))
                await turns(3)
                clock.advance(0.001)
                await gated.until_held(i + 1)
            front, behind = sorted(gated.held)
            async with node_on(bucket, clock=clock) as second:
                gated.let(behind)
                await eventually(lambda: behind not in gated.held)
                await turns(50)
                assert not lates[1].done()
                gated.let(front)
                for late in lates:
                    with pytest.raises(OutcomeUnknown):
                        await soon(late)
                await append_each(second, "new")
                assert bodies(await read_all(second)) == [b"new"]
            async with node_on(bucket, clock=clock) as third:
                assert bodies(await read_all(third)) == [b"new"]

    storage.run(scenario)


def test_a_put_whose_reply_was_lost_before_the_takeover_is_there_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, SLOW_WATCH) as first:
            await with_stream(first)
            gated.shut = True
            late = asyncio.ensure_future(first.append(BASIN, STREAM, batch("stored")))
            (key,) = await gated.until_held(1)
            data = first.term.committer._commits[first.term.committer.durable_ordinal].data
            await bucket.put_if_absent(key, data)  # it has arrived; nobody has heard of it
            async with node_on(bucket) as second:
                assert bodies(await read_all(second)) == [b"stored"]
                gated.open()
                assert (await soon(late)).start.seq_num == 0
                with pytest.raises(OutcomeUnknown):
                    await first.append(BASIN, STREAM, batch("not this one"))
                await append_each(second, "next")
                assert bodies(await read_all(second)) == [b"stored", b"next"]

    storage.run(scenario)


def test_a_process_that_wakes_up_looks_for_newer_writers_before_it_serves(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as first:
            await with_stream(first)
            await append_each(first, "old")
            async with node_on(bucket, clock=clock) as second:
                await append_each(second, "new")
                clock.advance(3600)  # the first was stopped, and goes on right here
                reads = [
                    read_one(first, seq_num=0),
                    first.check_tail(BASIN, STREAM),
                    read_all(first),
                ]
                outcomes = await asyncio.gather(*reads, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [Fenced] * 3
                assert len(await read_all(second)) == 2

    storage.run(scenario)


def test_a_process_that_cannot_look_for_newer_writers_does_not_serve(memory: Storage) -> None:
    class Unlistable(GatedBucket):
        async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
            if self.shut:
                raise BucketUnavailable(prefix, "no network")
            async for info in self.inner.list(prefix, after):
                yield info

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        unlistable = Unlistable(bucket, prefix="nothing/")
        async with node_on(unlistable, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            unlistable.shut = True
            clock.advance(3600)
            with pytest.raises(BournError, match="still leads"):
                await read_one(node, seq_num=0)
            unlistable.shut = False
            assert (await read_one(node, seq_num=0)).records_count == 1

    memory.run(scenario)


def test_a_node_that_rebuilds_itself_gives_way_to_a_newer_writer(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, SLOW_WATCH) as (gated, first):
            await with_stream(first)
            gated.shut = True
            late = asyncio.ensure_future(first.append(BASIN, STREAM, batch("x")))
            (key,) = await gated.until_held(1)
            async with node_on(bucket) as second:
                gated.let(key, BucketRefused(key, "no"))
                with pytest.raises(OutcomeUnknown):
                    await soon(late)
                await eventually(lambda: first.state is NodeState.FENCED)
                assert len(await keys_of(bucket, EPOCH_PREFIX)) == 2
                await append_each(second, "mine")

    storage.run(scenario)


def test_a_fenced_node_can_be_closed_at_any_moment_and_leaves_nothing_running(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        before = asyncio.all_tasks()
        for pause in range(6):
            first = await Node.open(bucket, SLOW_WATCH)
            if pause == 0:
                await with_stream(first)
            async with node_on(bucket):
                late = asyncio.ensure_future(first.append(BASIN, STREAM, batch("x")))
                await eventually(lambda first=first: first.state is NodeState.FENCED)  # type: ignore[misc]
                await turns(pause)
                await soon(first.close())
                with pytest.raises(OutcomeUnknown):
                    await late
            assert asyncio.all_tasks() == before

    storage.run(scenario)


@pytest.mark.parametrize("error", [Fenced("seen"), StorageFailed("gone")], ids=["fenced", "failed"])
def test_a_node_that_is_closed_in_the_moment_of_its_failure_leaves_nothing_running(
    storage: Storage, error: BournError
) -> None:
    async def scenario(bucket: Bucket) -> None:
        before = asyncio.all_tasks()
        for pause in range(4):
            node = await Node.open(bucket)
            node._on_failed(error)
            await turns(pause)
            await node.close()  # without another turn of the loop
            assert asyncio.all_tasks() == before

    storage.run(scenario)


# By chance


@pytest.mark.parametrize("seed", range(8))
def test_overlapping_writers_lose_no_ack_and_double_no_record(seed: int) -> None:
    async def scenario() -> None:
        rng = Random(seed)
        bucket = MemoryBucket()
        settings = EngineSettings(
            epoch_poll_secs=rng.choice([0.005, 1e6]), commit_split_bytes=rng.choice([200, 1 << 20])
        )
        acked: dict[int, bytes] = {}
        nodes: list[Node] = []

        async def write(node: Node, writer: str) -> None:
            for i in range(100):
                text = f"{writer}.{i}".encode()
                try:
                    ack = await node.append(BASIN, STREAM, batch(text))
                except (OutcomeUnknown, Fenced):
                    return
                assert ack.start.seq_num not in acked
                acked[ack.start.seq_num] = text
                await turns(rng.randint(0, 3))

        writers: list[asyncio.Future[None]] = []
        for epoch in range(4):
            node = await Node.open(
                SlowBucket(bucket, rng, 0.05), settings, rng=Random(rng.random())
            )
            nodes.append(node)
            if epoch == 0:
                await with_stream(node)
            writers += [asyncio.ensure_future(write(node, f"{epoch}.{w}")) for w in range(6)]
            await turns(rng.randint(20, 200))
        await soon(asyncio.gather(*writers))
        found = await read_all(nodes[-1])
        assert [record.seq_num for record in found] == list(range(len(found)))
        assert len({record.body for record in found}) == len(found), "something is there twice"
        assert acked.items() <= {r.seq_num: r.body for r in found}.items()
        assert len({text.split(b".")[0] for text in acked.values()}) > 1
        for node in nodes:
            await node.close()

    run(scenario())
