"""Appends on a bucket that fails: what is acked is there, what is not known is whole or absent."""

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from bourn.bucket.faults import GETS, PUTS, Fault, FaultPlan, Operation, Rule
from bourn.engine.node import NodeState
from bourn.errors import BucketUnavailable, Fenced, OutcomeUnknown, SeqNumMismatch, Unavailable
from bourn.layout.keys import SNAPSHOT_PREFIX, WAL_PREFIX
from bourn.limits import APPEND_INFLIGHT_BYTES_MIN
from bourn.model.record import AppendAck
from bourn.model.resource import CreateStream
from tests.faults.clients import Client, Pipeline, is_there
from tests.faults.world import SETTINGS, Host, World, in_world
from tests.support import BASIN, batch

FIRST, SECOND, THIRD = "first", "second", "third"
CREATE, GET = Operation.PUT_IF_ABSENT, Operation.GET
LOSES_REPLIES = Rule(Fault.LOST_REPLY, PUTS, probability=0.4, prefix=WAL_PREFIX)


def on_puts(
    fault: Fault, probability: float = 0.3, delay_secs: tuple[float, float] = (0.0, 0.0)
) -> Rule:
    return Rule(fault, PUTS, probability=probability, prefix=WAL_PREFIX, delay_secs=delay_secs)


def on_gets(fault: Fault) -> Rule:
    """Such a get follows a put whose reply was lost: what is it that stands there?"""
    return Rule(fault, GETS, probability=0.3, prefix=WAL_PREFIX)


class Case(NamedTuple):
    """Faults that a node must get over without anybody noticing."""

    name: str
    rules: tuple[Rule, ...]
    must_strike: tuple[tuple[Operation, Fault], ...]
    release_secs: float | None = None  # how often what is stuck is let go


CASES = (
    Case("latency", (on_puts(Fault.LATENCY, 1.0, (0.01, 0.8)),), ((CREATE, Fault.LATENCY),)),
    Case("slow puts", (on_puts(Fault.LATENCY, 0.3, (0.8, 2.0)),), ((CREATE, Fault.LATENCY),)),
    Case("errors", (on_puts(Fault.ERROR),), ((CREATE, Fault.ERROR),)),
    Case(
        "slow errors",
        (on_puts(Fault.LATENCY, 1.0, (0.8, 1.1)), on_puts(Fault.ERROR)),
        ((CREATE, Fault.LATENCY), (CREATE, Fault.ERROR)),
    ),
    Case("lost replies", (LOSES_REPLIES,), ((CREATE, Fault.LOST_REPLY),)),
    Case("stuck for ever", (on_puts(Fault.STUCK_BEFORE),), ((CREATE, Fault.STUCK_BEFORE),)),
    Case(
        "stuck, effective later",
        (on_puts(Fault.STUCK_BEFORE),),
        ((CREATE, Fault.STUCK_BEFORE),),
        release_secs=0.7,
    ),
    Case("stuck replies", (on_puts(Fault.STUCK_AFTER),), ((CREATE, Fault.STUCK_AFTER),)),
    Case(
        "lost replies, slow gets",
        (LOSES_REPLIES, Rule(Fault.LATENCY, GETS, delay_secs=(0.5, 1.5))),
        ((CREATE, Fault.LOST_REPLY), (GET, Fault.LATENCY)),
    ),
    *(
        Case(
            f"lost replies, gets {fault.value}",
            (LOSES_REPLIES, on_gets(fault)),
            ((CREATE, Fault.LOST_REPLY), (GET, fault)),
        )
        for fault in Fault
        if fault is not Fault.LATENCY
    ),
)


async def append_a_lot(world: World, host: Host, batches: int = 20) -> None:
    """Two sessions and a unary client, on two streams; and a stream that comes and goes."""

    async def session(stream: str) -> None:
        pipeline = await Pipeline.open(Client(world, stream), host)
        for number in range(batches):
            await pipeline.submit(b"a" * (number % 7) * 40, b"b")
            if number % 3 == 0:
                await world.clock.sleep(0.02)
        await pipeline.settle()
        pipeline.close()

    async def unary() -> None:
        client = Client(world, FIRST)
        for _ in range(batches // 2):
            await client.append(host, b"u", b"v")

    async def catalog() -> None:
        request = CreateStream(THIRD)
        await world.ask(host, host.node.create_stream(BASIN, request), "create")
        await Client(world, THIRD).append(host, b"short-lived")
        await world.ask(host, host.node.delete_stream(BASIN, THIRD), "delete")

    await asyncio.gather(session(FIRST), session(SECOND), unary(), catalog())


async def judge(world: World, host: Host) -> None:
    """Nothing that was promised is missing, here or on a node that starts anew."""
    for stream in (FIRST, SECOND):
        await Client(world, stream).check(host)
    await world.crash(host)
    fresh = await world.start()
    for stream in (FIRST, SECOND):
        await Client(world, stream).check(fresh)
    assert world.ledger.violations == []


def test_the_cases_cover_every_kind_of_fault() -> None:
    assert {fault for case in CASES for _, fault in case.must_strike} == set(Fault)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(2))
def test_every_append_is_acked_in_spite_of_faults_that_pass(case: Case, seed: int) -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST, SECOND)
        host.bucket.plan = FaultPlan(*case.rules)

        async def release() -> None:
            while case.release_secs is not None and host.bucket.enabled:
                await world.clock.sleep(case.release_secs)
                await host.bucket.release()

        releasing = world.loop.create_task(release())
        await append_a_lot(world, host)
        assert not world.ledger.unknown_batches
        assert not world.ledger.refused_batches
        assert (host.node.state, host.node.term.epoch) == (NodeState.SERVING, 1)
        for operation, fault in case.must_strike:
            assert host.bucket.injected[operation, fault], f"{fault} never struck"
        host.bucket.enabled = False
        await host.bucket.release()
        await releasing
        assert not await is_there(world, host, THIRD)
        await judge(world, host)

    in_world(scenario, seed)


@pytest.mark.parametrize("arrives", [False, True], ids=["never arrives", "arrives later"])
@pytest.mark.parametrize(
    "fault", [Fault.ERROR, Fault.LOST_REPLY, Fault.STUCK_BEFORE, Fault.STUCK_AFTER]
)
def test_what_cannot_be_known_is_whole_or_absent_and_the_node_comes_back(
    fault: Fault, *, arrives: bool
) -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST, SECOND)
        await append_some(world, host, acked=True)
        host.bucket.plan = FaultPlan(Rule(fault, PUTS, prefix=WAL_PREFIX))
        began = world.clock.monotonic()
        await append_some(world, host, acked=False)
        assert world.clock.monotonic() - began < 2 * SETTINGS.put_deadline_secs
        assert host.bucket.injected[CREATE, fault]
        assert host.node.state is NodeState.REBUILDING
        host.bucket.enabled = False
        if not arrives:
            host.bucket.abandon()
        await append_some(world, host, acked=True)
        assert (host.node.state, host.node.term.epoch) == (NodeState.SERVING, 2)
        await host.bucket.release()
        await append_some(world, host, acked=True)
        await judge(world, host)

    in_world(scenario)


async def append_some(world: World, host: Host, *, acked: bool) -> None:
    """Append through a session and alone; all is acked, or nothing is."""
    before = world.ledger.acked_batches, world.ledger.unknown_batches
    pipeline = await Pipeline.open(Client(world, FIRST), host)
    for _ in range(6):
        await pipeline.submit(b"x" * 600, b"y")
    alone = Client(world, SECOND).append(host, b"z" * 300)
    await asyncio.gather(pipeline.settle(), alone)
    after = world.ledger.acked_batches, world.ledger.unknown_batches
    assert after == ((before[0] + 7, before[1]) if acked else (before[0], before[1] + 7))


def test_a_refusal_waits_for_what_it_rests_on() -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST)
        host.bucket.plan = FaultPlan(Rule(Fault.STUCK_AFTER, PUTS, calls=(1,), prefix=WAL_PREFIX))
        first = world.loop.create_task(Client(world, FIRST).append(host, b"first"))
        await world.clock.sleep(0.01)
        second = world.loop.create_task(
            Client(world, FIRST).append(host, b"second", match_seq_num=0)
        )
        await world.clock.sleep(0.5)
        assert host.bucket.injected[CREATE, Fault.STUCK_AFTER] == 1
        assert not first.done()
        assert not second.done(), "the state that refuses it is not durable yet"
        await host.bucket.release()
        assert isinstance(await first, AppendAck)
        assert isinstance(await second, SeqNumMismatch)
        await Client(world, FIRST).check(host)
        assert world.ledger.violations == []

    in_world(scenario)


def test_a_refusal_by_what_never_became_durable_is_no_refusal() -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST)
        host.bucket.plan = FaultPlan(Rule(Fault.ERROR, PUTS, prefix=WAL_PREFIX))
        first = world.loop.create_task(Client(world, FIRST).append(host, b"first"))
        await world.clock.sleep(0.01)
        client = Client(world, FIRST)
        assert isinstance(await client.append(host, b"second", match_seq_num=0), OutcomeUnknown)
        assert isinstance(await first, OutcomeUnknown)
        host.bucket.enabled = False
        assert isinstance(await client.append(host, b"third", match_seq_num=0), AppendAck)
        await client.check(host)
        assert world.ledger.violations == []

    in_world(scenario)


@pytest.mark.parametrize("fault", [Fault.STUCK_BEFORE, Fault.STUCK_AFTER])
def test_a_put_that_is_answered_after_a_takeover_is_acked_only_if_the_next_writer_has_it(
    fault: Fault,
) -> None:
    async def scenario(world: World) -> None:
        old = await world.start()
        await world.with_streams(old, FIRST)
        await Client(world, FIRST).append(old, b"before")
        old.bucket.plan = FaultPlan(Rule(fault, PUTS, prefix=WAL_PREFIX))
        late = world.loop.create_task(Client(world, FIRST).append(old, b"late"))
        await world.clock.sleep(0.1)
        assert old.bucket.injected[CREATE, fault] == 1
        new = await world.start()
        tail = await Client(world, FIRST).check_tail(new)
        assert tail == (1 if fault is Fault.STUCK_BEFORE else 2)
        await old.bucket.release()
        outcome = await late
        if fault is Fault.STUCK_BEFORE:
            assert isinstance(outcome, OutcomeUnknown)
            assert old.node.state is NodeState.FENCED
        await Client(world, FIRST).append(new, b"after")
        await Client(world, FIRST).check(new)
        assert isinstance(await Client(world, FIRST).append(old, b"no"), Fenced | OutcomeUnknown)
        await Client(world, FIRST).check(new)
        assert world.ledger.violations == []

    in_world(scenario)


def test_who_waits_for_room_is_told_when_the_log_ends_and_so_is_who_asks_later() -> None:
    async def scenario(world: World) -> None:
        world.settings = msgspec.structs.replace(
            SETTINGS, append_inflight_bytes=APPEND_INFLIGHT_BYTES_MIN
        )
        host = await world.start()
        await world.with_streams(host, FIRST, SECOND)
        host.bucket.plan = FaultPlan(Rule(Fault.STUCK_BEFORE, PUTS, prefix=WAL_PREFIX))
        filling = world.loop.create_task(
            Client(world, FIRST).append(host, b"x" * (APPEND_INFLIGHT_BYTES_MIN - 100))
        )
        await world.clock.sleep(0.01)
        appender = await host.node.appender(BASIN, SECOND)
        large = batch(b"y" * 1000)
        with pytest.raises(Unavailable):
            await world.ask(host, appender.room_for(large), "room")
        assert isinstance(await filling, OutcomeUnknown)
        with pytest.raises(Unavailable):
            await world.ask(host, appender.room_for(large), "room of a log that has ended")
        assert host.bucket.injected[CREATE, Fault.STUCK_BEFORE]
        assert world.ledger.violations == []

    in_world(scenario)


@pytest.mark.parametrize("prefix", [WAL_PREFIX, SNAPSHOT_PREFIX])
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.STUCK_BEFORE, Fault.STUCK_AFTER])
def test_a_node_closes_in_bounded_time_on_a_bucket_that_does_not_answer(
    fault: Fault, prefix: str
) -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST, SECOND)
        await Client(world, FIRST).append(host, b"before")
        host.bucket.plan = FaultPlan(Rule(fault, PUTS, prefix=prefix))
        appending = world.loop.create_task(Client(world, FIRST).append(host, b"while"))
        await world.clock.sleep(0.01)
        await world.ask(host, host.node.close(), "close")
        assert host.bucket.injected[CREATE, fault]
        assert isinstance(await appending, OutcomeUnknown) == (prefix == WAL_PREFIX)
        await host.bucket.release()
        await judge(world, await world.start())

    in_world(scenario)


def test_a_bucket_that_stays_away_is_named_to_who_asks() -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST)
        host.bucket.plan = FaultPlan(Rule(Fault.ERROR))
        client = Client(world, FIRST)
        assert isinstance(await client.append(host, b"x"), OutcomeUnknown)
        later = await client.append(host, b"y")
        assert isinstance(later, Unavailable)
        assert "rebuilding" in str(later)
        with pytest.raises(BucketUnavailable):
            await world.start(Rule(Fault.ERROR))
        assert world.ledger.violations == []

    in_world(scenario)
