"""Retention and trims: what is hidden, from which instant on, and what never changes by it."""

import asyncio
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import Unwritten
from bourn.log.cursor import make_request
from bourn.model.config import Age, Infinite
from bourn.model.patch import StreamPatch
from bourn.model.record import Record, StreamPosition
from tests.engine.harness import (
    Storage,
    append_each,
    bodies,
    gated_node,
    read_one,
    seq_nums,
    session,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream

NOW_MS = 1_700_000_000_000


async def keep_for(node: Node, secs: int | None) -> None:
    """Change the stream's retention."""
    policy = Infinite() if secs is None else Age(secs)
    await node.reconfigure_stream(BASIN, STREAM, StreamPatch(retention_policy=policy))


async def visible(node: Node) -> list[int]:
    """The sequence numbers that a session from 0 delivers."""
    async with session(node, make_request(seq_num=0, wait=0)) as reader:
        return [r.seq_num for found in await reader.rest() for r in found.records()]


def test_a_record_is_hidden_from_the_very_instant_of_its_expiry_on(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS + 123)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 10)
            ack = await node.append(BASIN, STREAM, batch("a", "b"))
            clock.set_wall(NOW_MS + 123 + 9_999)
            assert await visible(node) == [0, 1]
            clock.set_wall(NOW_MS + 123 + 10_000)
            assert await visible(node) == []
            assert (await read_one(node, seq_num=0)).records() == []
            assert (await read_one(node, seq_num=1, count=1)).records() == []
            with pytest.raises(Unwritten):
                await read_one(node, timestamp=0)
            assert await node.check_tail(BASIN, STREAM) == ack.tail
            assert (await node.append(BASIN, STREAM, batch("c"))).start.seq_num == 2
            assert await visible(node) == [2]

    storage.run(scenario)


def test_batches_of_one_commit_expire_each_at_its_own_instant(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, clock=clock) as (gated, node):
            await with_stream(node)
            await keep_for(node, 10)
            gated.shut = True
            appends = []
            for i in range(4):  # the first is put alone, the others wait for it and share a commit
                appends.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}"))))
                await gated.until_held(1)
                await turns()
                clock.set_wall(clock.now_ms() + 400)
            gated.open()
            await soon(asyncio.gather(*appends))
            assert len(stream_of(node).runs) == 2
            for ms, left in ((9_999, 4), (10_000, 3), (10_400, 2), (10_799, 2), (10_800, 1)):
                clock.set_wall(NOW_MS + ms)
                assert await visible(node) == list(range(4 - left, 4)), ms
            clock.set_wall(NOW_MS + 11_200)
            assert await visible(node) == []

    storage.run(scenario)


def test_age_counts_from_arrival_and_by_the_policy_of_that_moment(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, None)
            await node.append(BASIN, STREAM, batch(Record(b"", (), 0)))  # kept for ever
            await keep_for(node, 5)
            await node.append(BASIN, STREAM, batch(Record(b"", (), 0)))  # five seconds
            await keep_for(node, 100)
            await append_each(node, "", "")  # a hundred
            await keep_for(node, None)
            await append_each(node, "")  # for ever
            await keep_for(node, 1)  # concerns none of them
            seen = {}
            for age in (1, 4, 5, 99, 100):
                clock.set_wall(NOW_MS + age * 1000)
                seen[age] = await visible(node)
            everything = [0, 1, 2, 3, 4]
            assert seen == {
                1: everything,
                4: everything,
                5: [0, 2, 3, 4],
                99: [0, 2, 3, 4],
                100: [0, 4],
            }
            # The gap is skipped from wherever a read starts.
            assert seq_nums((await read_one(node, seq_num=1)).records()) == [4]
            assert seq_nums((await read_one(node, tail_offset=4)).records()) == [4]
            assert seq_nums((await read_one(node, timestamp=1)).records()) == [4]
            assert seq_nums((await read_one(node, seq_num=0, count=2)).records()) == [0, 4]
            node.housekeeping.expire()
            assert len(stream_of(node).runs) == 2
            assert await visible(node) == [0, 4]
        async with node_on(bucket, clock=clock) as node:
            assert await visible(node) == [0, 4]
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 5

    storage.run(scenario)


def test_a_trim_hides_at_once_exactly_what_lies_before_it(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("0", "1", "2", "3"))
            await node.append(BASIN, STREAM, batch("4", "5"))
            ack = await node.append(BASIN, STREAM, batch(trim(3)))
            assert await visible(node) == [3, 4, 5, 6]
            assert ack.tail.seq_num == 7
            await node.append(BASIN, STREAM, batch(trim(1)))  # never backwards
            assert await visible(node) == [3, 4, 5, 6, 7]
            await node.append(BASIN, STREAM, batch("8", trim(1 << 63), "10", trim(5)))
            assert await visible(node) == [10, 11]
            assert stream_of(node).trim_point == 10
            node.housekeeping.expire()
            assert await visible(node) == [10, 11]
        async with node_on(bucket) as node:
            assert await visible(node) == [10, 11]
            assert seq_nums((await read_one(node, timestamp=0)).records()) == [10, 11]
            assert seq_nums((await read_one(node, tail_offset=100)).records()) == [10, 11]

    storage.run(scenario)


def test_a_trim_that_is_not_durable_yet_hides_nothing(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await append_each(node, "a", "b")
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch(trim(2))))
            await gated.until_held(1)
            node.housekeeping.expire()
            assert await visible(node) == [0, 1]
            gated.open()
            await soon(append)
            assert await visible(node) == [2]

    storage.run(scenario)


def test_behind_a_stretch_that_is_gone_a_read_does_not_look_at_what_is_in_flight(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, clock=clock) as (gated, node):
            await with_stream(node)
            await keep_for(node, 5)
            await append_each(node, "a", "b")
            clock.set_wall(NOW_MS + 5_000)
            node.housekeeping.expire()
            assert len(stream_of(node).runs) == 0
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("in flight")))
            await gated.until_held(1)
            assert len(stream_of(node).runs) == 1
            assert await visible(node) == []
            assert (await read_one(node, seq_num=1)).records() == []
            with pytest.raises(Unwritten):
                await read_one(node, timestamp=0)
            gated.open()
            await soon(append)
            assert await visible(node) == [2]

    storage.run(scenario)


def test_a_timestamp_within_a_gap_leads_to_the_first_record_behind_it(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            for i, secs in enumerate((None, 10, 10, None, 10)):
                await keep_for(node, secs)
                await node.append(BASIN, STREAM, batch(Record(b"", (), 100 * i)))
            clock.set_wall(NOW_MS + 10_000)
            for timestamp, first in ((0, 0), (1, 3), (100, 3), (250, 3), (300, 3)):
                found = await read_one(node, timestamp=timestamp)
                assert seq_nums(found.records())[0] == first, timestamp
            with pytest.raises(Unwritten) as unwritten:
                await read_one(node, timestamp=301)
            assert unwritten.value.tail_seq_num == 5
            async with session(node, make_request(timestamp=301)) as follower:
                heartbeat = await follower.next()
                assert heartbeat.tail == StreamPosition(5, 400)

    storage.run(scenario)


def test_what_expires_while_a_follower_waits_does_not_disturb_it(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 10)
            await append_each(node, "a")
            async with session(node) as follower:
                assert bodies((await follower.next()).records()) == [b"a"]
                assert (await follower.next()).is_heartbeat
                asked = follower.ask()
                await turns()
                clock.set_wall(NOW_MS + 20_000)
                node.housekeeping.expire()
                await append_each(node, "b")
                assert bodies((await soon(asked)).records()) == [b"b"]

    storage.run(scenario)


# Against a list


class Write(NamedTuple):
    records: int
    retention_secs: int | None
    trim_to: int | None


class Pass(NamedTuple):
    ms: int


class Job(NamedTuple):
    name: str


steps = st.lists(
    st.one_of(
        st.builds(
            Write,
            st.integers(1, 4),
            st.none() | st.sampled_from([1, 2, 5]),
            st.none() | st.none() | st.integers(0, 40),
        ),
        st.builds(Pass, st.sampled_from([1, 500, 999, 1000, 1001, 2500])),
        st.builds(Job, st.sampled_from(["expire", "snapshot", "restart"])),
    ),
    min_size=3,
    max_size=25,
)


async def compare(steps: list[object]) -> None:
    clock = ManualClock(NOW_MS + 250)
    bucket = MemoryBucket()
    node = await Node.open(bucket, clock=clock)
    await with_stream(node)
    expiries: list[float] = []  # by sequence number
    trim_point = 0
    for step in steps:
        match step:
            case Write(count, retention_secs, trim_to):
                await keep_for(node, retention_secs)
                records = [Record(b"x")] * count
                if trim_to is not None:
                    records.append(trim(trim_to))
                await node.append(BASIN, STREAM, batch(*records))
                secs = float("inf") if retention_secs is None else retention_secs
                expiries += [clock.now_ms() + 1000 * secs] * len(records)
                if trim_to is not None:
                    trim_point = max(trim_point, min(trim_to, len(expiries)))
            case Pass(ms):
                clock.set_wall(clock.now_ms() + ms)
            case Job("expire"):
                node.housekeeping.expire()
            case Job("snapshot"):
                await node.housekeeping.snapshots.take()
            case Job("restart"):
                await node.close()
                node = await Node.open(bucket, clock=clock)
        now_ms = clock.now_ms()
        expected = [n for n, expiry in enumerate(expiries) if expiry > now_ms and n >= trim_point]
        if expiries:
            assert seq_nums(await read_all(node)) == expected
            assert (await node.check_tail(BASIN, STREAM)).seq_num == len(expiries)
    await node.close()


@settings(max_examples=25, deadline=None)
@given(steps)
def test_what_is_visible_is_what_a_list_says_whatever_housekeeping_has_done(
    steps: list[object],
) -> None:
    run(compare(steps))
