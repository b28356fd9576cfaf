"""Time at the tail: heartbeats, deadlines, and no work at all while nothing happens."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node
from bourn.log.cursor import make_request
from bourn.settings import EngineSettings
from tests.engine.harness import (
    Session,
    Storage,
    append_each,
    pass_time,
    read_one,
    session,
    soon,
    stream_of,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream

STEP_SECS = 0.25
QUIET = EngineSettings(  # no job of the node's own is due while a test looks
    epoch_poll_secs=1e6, history_poll_secs=1e6, housekeeping_secs=1e6, put_attempt_secs=1e7
)


async def seconds_until(clock: ManualClock, asked: "asyncio.Future[ReadBatch]") -> float:
    """Let time pass until a batch comes; returns how much has."""
    began = clock.monotonic()
    while not asked.done():
        assert clock.monotonic() - began < 100, "nothing ever came"
        await pass_time(clock, STEP_SECS, STEP_SECS)
    return clock.monotonic() - began


async def to_the_tail(follower: Session) -> None:
    while not (await follower.next()).is_heartbeat:
        pass


def timers_within(clock: ManualClock, seconds: float) -> int:
    """How many calls are due within this time."""
    until = clock.monotonic() + seconds
    return sum(not future.done() and due <= until for due, future in clock._sleepers)


def test_a_follower_hears_something_every_five_to_fifteen_seconds(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            ack = await node.append(BASIN, STREAM, batch("a"))
            async with session(node) as follower:
                assert (await follower.next()).records_count == 1
                first = follower.ask()
                await turns()
                assert first.done(), "the first comes on reaching the tail"
                silences = []
                for _ in range(8):
                    asked = follower.ask()
                    silences.append(await seconds_until(clock, asked))
                    heartbeat = await asked
                    assert heartbeat.is_heartbeat
                    assert heartbeat.tail == ack.tail
                assert all(5 <= silence <= 15 + STEP_SECS for silence in silences)
                assert len(set(silences)) > 1, "drawn anew each time"

    memory.run(scenario)


def test_a_batch_postpones_the_next_heartbeat(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            async with session(node) as follower:
                assert (await follower.next()).is_heartbeat
                for i in range(6):
                    asked = follower.ask()
                    await pass_time(clock, 4.5)
                    assert not asked.done()
                    await append_each(node, f"{i}")
                    assert (await soon(asked)).records_count == 1
                asked = follower.ask()
                assert await seconds_until(clock, asked) >= 5

    memory.run(scenario)


@pytest.mark.parametrize("start_secs", [0.0, 0.236, 0.345, 2.3, 123.456])
def test_the_wait_ends_a_session_cleanly_whatever_the_clock_shows(
    memory: Storage, start_secs: float
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        clock.advance(start_secs)
        async with node_on(bucket, QUIET, clock=clock) as node:
            await with_stream(node)
            async with session(node, make_request(seq_num=0, wait=3)) as follower:
                assert (await follower.next()).is_heartbeat
                rest = asyncio.ensure_future(follower.rest())
                await pass_time(clock, 2.875, 0.125)
                assert not rest.done()
                clock.advance(0.126)
                await turns()
                assert rest.done()
                assert await rest == []

    memory.run(scenario)


def test_the_wait_begins_at_the_tail_and_again_with_each_batch_but_not_with_heartbeats(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            async with session(node, make_request(seq_num=0, wait=20)) as follower:
                await follower.next()
                await pass_time(clock, 50)  # the consumer is slow: this is not idling at the tail
                began = clock.monotonic()
                heartbeats = 0
                rest = asyncio.ensure_future(follower.rest())
                await pass_time(clock, 18)
                assert not rest.done()
                await append_each(node, "b")
                await pass_time(clock, 19.5)
                assert not rest.done(), "the batch armed the wait again"
                await pass_time(clock, 1)
                batches = await soon(rest)
                heartbeats = sum(found.is_heartbeat for found in batches)
                assert sum(found.records_count for found in batches) == 1
                assert heartbeats >= 3
                assert 38 <= clock.monotonic() - began <= 39

    memory.run(scenario)


def test_a_wait_of_a_session_may_be_long_and_that_of_a_unary_read_is_a_minute(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            unary = asyncio.ensure_future(read_one(node, seq_num=0, wait=1000))
            async with session(node, make_request(seq_num=0, wait=300)) as follower:
                rest = asyncio.ensure_future(follower.rest())
                await turns()
                await pass_time(clock, 59.5)
                assert not unary.done()
                await pass_time(clock, 1)
                assert unary.done()
                await pass_time(clock, 239, 1)
                assert not rest.done()
                await pass_time(clock, 1.5)
                assert rest.done()

    memory.run(scenario)


def test_a_record_that_comes_within_the_wait_is_returned_at_once(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            unary = asyncio.ensure_future(read_one(node, seq_num=0, wait=30))
            await pass_time(clock, 10)
            assert not unary.done()
            await append_each(node, "a", "b")
            await turns()
            assert unary.done()
            assert (await unary).records_count == 1, "it does not wait to fill"
            assert timers_within(clock, 29) <= 4 + 1, "its timer is gone"

    memory.run(scenario)


# Idle readers


def test_readers_who_wait_cost_one_timer_each_and_no_turn_of_the_loop(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(node_on(bucket, QUIET, clock=clock))
            await with_stream(node)
            asked = []
            for _ in range(40):
                follower = await stack.enter_async_context(session(node))
                await to_the_tail(follower)
                asked.append(follower.ask())
            await turns()
            assert timers_within(clock, 1e5) == 40
            loop = asyncio.get_running_loop()
            deadlines_of_this_test = 40  # `soon` guards each `ask`
            live = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            assert len(live) <= deadlines_of_this_test
            assert len(loop._ready) == 0, "something turns"  # type: ignore[attr-defined]
            await pass_time(clock, 4.9)
            assert not any(one.done() for one in asked)
            await append_each(node, "wake")
            for one in asked:
                assert (await one).records_count == 1

    memory.run(scenario)


def test_a_follower_keeps_one_timer_and_one_place_however_much_comes(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, QUIET, clock=clock) as node:
            await with_stream(node)
            async with session(node) as follower:
                await to_the_tail(follower)
                for i in range(50):
                    asked = follower.ask()
                    await turns(3)
                    await append_each(node, f"{i}")
                    assert (await asked).records_count == 1
                asked = follower.ask()
                await turns(3)
                assert timers_within(clock, 1e5) == 1
                assert places(node) == 1
                asked.cancel()
                await asyncio.wait([asked])
            assert places(node) == 0
            assert timers_within(clock, 1e5) == 0
            assert stream_of(node).users == 0

    memory.run(scenario)


def test_heartbeats_of_a_long_silence_leave_nothing_behind(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, QUIET, clock=clock) as node:
            await with_stream(node)
            async with session(node) as follower:
                await to_the_tail(follower)
                for _ in range(30):
                    asked = follower.ask()
                    await seconds_until(clock, asked)
                asked = follower.ask()
                await turns()
                assert places(node) == 1
                asked.cancel()
                await asyncio.wait([asked])
            assert places(node) == 0

    memory.run(scenario)


def places(node: Node) -> int:
    """How many wait at the tail of the stream."""
    return len(stream_of(node).waiters or ())


def test_reads_that_end_let_go_of_the_stream(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            await read_one(node, seq_num=0)
            await read_all(node)
            async with session(node) as follower:
                await follower.next()  # left in the middle
            waiting = asyncio.ensure_future(read_one(node, seq_num=2, wait=60))
            await turns()
            waiting.cancel()
            await asyncio.wait([waiting])
            stream = stream_of(node)
            assert stream.users == 0
            assert places(node) == 0
            await node.housekeeping.snapshots.take()
            assert node.term.state.streams.hot() == [], "an idle stream is let go"

    storage.run(scenario)
