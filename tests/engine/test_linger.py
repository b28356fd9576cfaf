"""Small commits on a bucket where every put costs: how long they wait, and for whom."""

import asyncio
from collections.abc import Callable

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Data
from bourn.clock import ManualClock
from bourn.engine.linger import (
    CROWD,
    ENDS_SOON_SHARE,
    GATHER_SECS,
    GATHER_SHARE_MAX,
    MANY,
    TRIED_EVERY,
    TWICE,
    Linger,
)
from bourn.engine.node import Node
from bourn.layout.keys import WAL_PREFIX
from bourn.settings import EngineSettings
from tests.engine.harness import commits_of, keys_of, pass_time_until, turns
from tests.support import BASIN, STREAM, batch, node_on, with_stream

INTERVAL_SECS = 0.02
PUT_SECS = 0.022
WRITERS = 20
ROUNDS = 10


class Commit:
    """Batches that weigh one each."""

    def __init__(self, reserved: int = 1) -> None:
        self.reserved = reserved

    @property
    def batches(self) -> int:
        return self.reserved


class Case:
    """A linger, the time, and what was flushed when."""

    def __init__(self, next_put: Callable[[], tuple[int, float]] = lambda: (0, 0.0)) -> None:
        self.clock = ManualClock()
        self.flushed: list[Commit] = []
        self.linger: Linger[Commit] = Linger(
            self.clock, INTERVAL_SECS, next_put, self.flushed.append
        )

    async def pass_ms(self, milliseconds: float) -> None:
        self.clock.advance(milliseconds / 1000)
        await turns(3)


def test_the_first_commit_is_flushed_at_once_and_the_next_behind_the_interval() -> None:
    async def scenario() -> None:
        case = Case()
        first, second = Commit(), Commit()
        case.linger.begin(first)
        await turns(3)
        assert case.flushed == [first]
        case.linger.flushed()
        case.linger.begin(second)
        await case.pass_ms(19.9)
        assert case.flushed == [first]
        await case.pass_ms(0.2)
        assert case.flushed == [first, second]

    asyncio.run(scenario())


def test_a_lone_writer_waits_for_nobody() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.acked(1, 1, Commit(0))
        case.linger.begin(Commit(1))
        await turns(3)
        assert len(case.flushed) == 1

    asyncio.run(scenario())


def test_writers_that_were_acked_together_are_waited_for_as_long_as_they_keep_coming() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.acked(4, 4, Commit(0))
        commit = Commit(1)
        case.linger.begin(commit)
        for _ in range(2):
            await case.pass_ms(0.9)
            commit.reserved += 1
            await case.pass_ms(0.2)
            assert not case.flushed
        await case.pass_ms(1.1)  # nobody came
        assert case.flushed == [commit]

    asyncio.run(scenario())


def test_nobody_waits_for_a_crowd() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.acked(CROWD + 1, 1_000_000, Commit(0))
        commit = Commit(1)
        case.linger.begin(commit)
        await turns(3)
        assert case.flushed == [commit]

    asyncio.run(scenario())


def test_a_commit_is_flushed_once_all_are_back() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.acked(4, 4, Commit(0))
        commit = Commit(1)
        case.linger.begin(commit)
        commit.reserved = 4
        await case.pass_ms(1000 * GATHER_SECS)
        assert case.flushed == [commit]

    asyncio.run(scenario())


def test_nobody_is_waited_for_longer_than_a_part_of_the_interval() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.acked(CROWD, 1_000_000, Commit(0))
        commit = Commit(1)
        case.linger.begin(commit)
        waited = 0
        while not case.flushed:
            commit.reserved += 1
            await case.pass_ms(1)
            waited += 1
        assert waited <= 1000 * GATHER_SHARE_MAX * INTERVAL_SECS + 1

    asyncio.run(scenario())


def test_a_put_that_acks_many_and_ends_about_now_is_waited_for_and_no_other() -> None:
    async def flushed_after_ms(acks: int, put_ends_ms: float, batches: int = 10) -> float:
        case = Case(lambda: (acks, put_ends_ms / 1000))
        case.linger.flushed()  # at 0
        case.linger.begin(Commit(batches))
        waited = 0.0
        while not case.flushed:
            await case.pass_ms(0.5)
            waited += 0.5
        return waited

    async def scenario() -> None:
        many = 10 * TWICE
        later_ms = 20 + 1000 * ENDS_SOON_SHARE * INTERVAL_SECS
        at_once = await flushed_after_ms(0, 0.0)
        assert at_once <= 20.5
        assert await flushed_after_ms(many, 22) >= later_ms
        assert await flushed_after_ms(many, 19) >= later_ms
        assert await flushed_after_ms(many - 1, 22) == at_once, "there are as many here"
        assert await flushed_after_ms(MANY, 22, batches=1) >= later_ms
        assert await flushed_after_ms(MANY - 1, 22, batches=1) == at_once, "they are few"
        assert await flushed_after_ms(CROWD, 22) >= later_ms
        assert await flushed_after_ms(CROWD + 1, 22) == at_once, "they take long to come back"
        assert await flushed_after_ms(many, 11) == at_once, "it is overdue"
        assert await flushed_after_ms(many, 40) == at_once, "it takes too long"

    asyncio.run(scenario())


def test_now_and_then_a_put_that_acks_no_more_than_that_is_waited_for() -> None:
    async def scenario() -> None:
        case = Case(lambda: (10, case.clock.monotonic() + 0.001))
        late = []
        for number in range(2 * TRIED_EVERY + 2):
            case.linger.flushed()
            begun = len(case.flushed)
            case.linger.begin(Commit(10))
            await case.pass_ms(20.01)
            if len(case.flushed) == begun:
                late.append(number)
                await case.pass_ms(1000 * ENDS_SOON_SHARE * INTERVAL_SECS)
            assert len(case.flushed) == begun + 1
        assert late == [TRIED_EVERY - 1, 2 * TRIED_EVERY - 1]

    asyncio.run(scenario())


def test_a_commit_that_has_waited_for_a_put_waits_for_those_whom_it_acked_too() -> None:
    async def scenario() -> None:
        puts = [(20, 0.021), (0, 0.0)]
        case = Case(lambda: puts[0])
        case.linger.flushed()
        commit = Commit(10)
        case.linger.begin(commit)
        await case.pass_ms(21)
        assert not case.flushed
        del puts[0]
        case.linger.acked(20, 20, commit)
        case.linger.end()
        case.linger.begin(commit)
        await case.pass_ms(0.5)
        assert not case.flushed, "they are on their way"
        commit.reserved += 20
        await case.pass_ms(1)
        assert case.flushed == [commit]

    asyncio.run(scenario())


def test_a_commit_that_was_closed_meanwhile_is_not_flushed() -> None:
    async def scenario() -> None:
        case = Case()
        case.linger.flushed()
        case.linger.begin(Commit())
        before = case.linger.is_waiting
        case.linger.flushed()
        assert (before, case.linger.is_waiting) == (True, False)
        await case.pass_ms(100)
        assert not case.flushed

    asyncio.run(scenario())


class LateBucket(MemoryBucket):
    """Every put takes as long as one far away, by the clock of the test."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    async def put_if_absent(self, key: str, data: Data) -> None:
        if key.startswith(WAL_PREFIX):
            await self._clock.sleep(PUT_SECS)
        await super().put_if_absent(key, data)


def test_appends_that_come_by_themselves_are_not_late_for_a_put_that_ends() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        bucket = LateBucket(clock)
        took: list[float] = []

        async def write(node: Node, number: int) -> None:
            await clock.sleep(0.02 * number)
            asked = clock.monotonic()
            await node.append(BASIN, STREAM, batch(b"%d" % number))
            took.append(clock.monotonic() - asked)

        async with node_on(bucket, EngineSettings(flush_interval_ms=20), clock=clock) as node:
            creating = asyncio.ensure_future(with_stream(node))
            await pass_time_until(clock, creating.done, 0.001)
            writers = [asyncio.ensure_future(write(node, number)) for number in range(30)]
            await pass_time_until(clock, lambda: all(one.done() for one in writers), 0.0005)
        assert sorted(took)[15] < PUT_SECS + 0.002  # each in a put of its own, two under way

    asyncio.run(scenario())


def test_writers_that_append_behind_their_acks_come_to_share_every_commit() -> None:
    async def write(node: Node, clock: ManualClock, number: int) -> None:
        for _ in range(ROUNDS):
            await clock.sleep(0.0001 * (number + 1))  # until it has its ack, and asks again
            await node.append(BASIN, STREAM, batch(b"%d" % number))

    async def scenario() -> None:
        clock = ManualClock()
        bucket = LateBucket(clock)
        async with node_on(bucket, EngineSettings(flush_interval_ms=20), clock=clock) as node:
            creating = asyncio.ensure_future(with_stream(node))
            await pass_time_until(clock, creating.done, 0.001)
            before = len(await keys_of(bucket, WAL_PREFIX))
            writers = [asyncio.ensure_future(write(node, clock, n)) for n in range(WRITERS)]
            await pass_time_until(clock, lambda: all(one.done() for one in writers), 0.0005)
            stored = len(await keys_of(bucket, WAL_PREFIX)) - before
            # One each round, and a few until they are together; else it would be two each.
            assert ROUNDS <= stored <= ROUNDS + 4
            counts = [
                sum(len(entries) for _, entries in commit.runs)
                for commit in (await commits_of(bucket)).values()
            ]
            assert counts[-3:] == [WRITERS] * 3

    asyncio.run(scenario())
