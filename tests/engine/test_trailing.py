"""Writers let live followers catch up that take what they are given, and wait for nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from bourn.clock import ManualClock
from bourn.engine.appender import Appender
from bourn.engine.node import Node
from bourn.limits import (
    LIVE_LAG_BYTES_MAX,
    LIVE_LOST_BYTES,
    LIVE_WAIT_SECS_MAX,
    LIVE_WAIT_SECS_MIN,
    MIB,
)
from tests.engine.harness import Session, session, soon, stream_of, turns
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

BODY = b"x" * (LIVE_LAG_BYTES_MAX // 2)
BATCH = MIB // (len(BODY) + 8)  # records that one read returns
MANY = 20 * BATCH


class Case(NamedTuple):
    node: Node
    clock: ManualClock
    appender: Appender
    follower: Session

    async def write(self, count: int = MANY) -> None:
        for _ in range(count):
            await soon(self.appender.append(batch(BODY)))

    @property
    def is_waited_for(self) -> bool:
        return stream_of(self.node).trailers is not None

    def let_catch_up(self) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.appender.let_catch_up())


@asynccontextmanager
async def case() -> AsyncIterator[Case]:
    clock = ManualClock()
    async with node_on(clock=clock) as node:
        await with_stream(node)
        appender = await node.appender(BASIN, STREAM)
        clock.advance(1.0)
        async with session(node) as follower:
            yield Case(node, clock, appender, follower)
        appender.close()


async def at_tail(found: Case) -> "asyncio.Task[object]":
    """Have the follower wait at the tail; the task is its next batch."""
    assert (await found.follower.next()).is_heartbeat
    asked: asyncio.Task[object] = asyncio.ensure_future(found.follower.next())
    await turns()
    assert not asked.done()
    return asked


async def fall_behind(found: Case) -> None:
    """Have the follower be at the tail, and then far behind it and quick."""
    asked = await at_tail(found)
    await found.write()
    await soon(asked)
    for _ in range(2):
        await found.follower.next()
    assert found.is_waited_for


def test_a_writer_waits_until_a_live_follower_has_caught_up() -> None:
    async def scenario() -> None:
        async with case() as found:
            await fall_behind(found)
            assert found.appender.is_ahead
            waits = found.let_catch_up()
            await turns()
            assert not waits.done()
            while not waits.done():
                await found.follower.next()
            await soon(found.let_catch_up())
            assert not found.is_waited_for

    run(scenario())


def test_a_little_behind_is_not_behind() -> None:
    async def scenario() -> None:
        async with case() as found:
            asked = await at_tail(found)
            await found.write(BATCH + 2)
            await soon(asked)
            await found.follower.next()
            await found.follower.next()
            assert not found.is_waited_for

    run(scenario())


def test_a_follower_that_takes_nothing_more_holds_nobody_up() -> None:
    async def scenario() -> None:
        async with case() as found:
            await fall_behind(found)
            waits = found.let_catch_up()
            await turns()
            assert not waits.done()
            found.clock.advance(0.5)
            await soon(waits)
            await found.follower.next()  # the one before was late
            assert not found.is_waited_for
            await found.follower.next()  # this one is quick again
            assert found.is_waited_for

    run(scenario())


def test_no_writer_waits_for_more_than_half_of_its_time() -> None:
    async def scenario() -> None:
        async with case() as found:
            await fall_behind(found)
            waits = found.let_catch_up()
            await turns()
            for _ in range(5):
                found.clock.advance(LIVE_WAIT_SECS_MAX / 4)
                await found.follower.next()
            await soon(waits)
            due = []
            for _ in range(4):
                due.append(found.is_waited_for and found.appender.is_ahead)
                found.clock.advance(0.4 * LIVE_WAIT_SECS_MIN)
                await found.follower.next()
            assert due == [False, False, False, True]

    run(scenario())


def test_a_follower_that_is_far_behind_is_not_live_any_more() -> None:
    async def scenario() -> None:
        async with case() as found:
            asked = await at_tail(found)
            await found.write(LIVE_LOST_BYTES // len(BODY) + 2 * BATCH)
            await soon(asked)
            for _ in range(8):  # by then it is near enough, but has been too far away
                await found.follower.next()
                assert not found.is_waited_for

    run(scenario())


def test_a_follower_that_was_never_at_the_tail_holds_nobody_up() -> None:
    async def scenario() -> None:
        async with case() as found:
            await found.write()
            for _ in range(3):
                await found.follower.next()
                assert not found.is_waited_for

    run(scenario())


def test_a_follower_that_goes_lets_writers_go_on() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with node_on(clock=clock) as node:
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            clock.advance(1.0)
            async with session(node) as follower:
                found = Case(node, clock, appender, follower)
                await fall_behind(found)
                waits = [found.let_catch_up() for _ in range(3)]
                await turns()
                waits.pop().cancel()
            for waiting in waits:
                await soon(waiting)
            assert not found.is_waited_for
            appender.close()

    run(scenario())
