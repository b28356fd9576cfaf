"""Reads on a bucket that fails: right or refused, never wrong, never without an end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bourn.bucket.faults import (
    Fault,
    FaultPlan,
    Operation,
    Rule,
    flip_bit,
    lose_object,
    truncate_object,
)
from bourn.bucket.port import Bucket
from bourn.engine.node import NodeState
from bourn.errors import Damaged, Fenced, StorageFailed, Unavailable, Unwritten
from bourn.layout.keys import EPOCH_PREFIX, WAL_PREFIX
from bourn.log.cursor import make_request
from bourn.model.record import AppendAck
from tests.faults.clients import Client, Pipeline
from tests.faults.world import SETTINGS, Host, World, in_world
from tests.support import BASIN

FIRST, SECOND, OTHER = "first", "second", "other"
RANGE, LIST = Operation.GET_RANGE, Operation.LIST
RANGES = frozenset({RANGE})
COMMITS = 8
FAULTS = [fault for fault in Fault if fault is not Fault.MISSING]  # that one is never believed away
SLOW_SECS = (0.9, 1.3)  # around the time that an attempt may take


def test_every_kind_of_fault_is_tried() -> None:
    assert {*FAULTS, Fault.MISSING} == set(Fault)


async def written(world: World) -> Host:
    """A node that has everything in its bucket and nothing in memory."""
    writer = await world.start()
    await world.with_streams(writer, FIRST, SECOND, OTHER)
    for number in range(COMMITS):
        await append_both(world, writer, number)
    await Client(world, OTHER).append(writer, b"apart")
    await writer.node.close()
    return await world.start()


async def append_both(world: World, host: Host, number: int) -> None:
    """One commit with two batches of each of two streams."""
    clients = [Client(world, stream) for stream in (FIRST, SECOND) for _ in range(2)]
    bodies = [b"x" * 30 * number, b"y"]
    await asyncio.gather(*(client.append(host, *bodies) for client in clients))


async def unary_reads(world: World, host: Host) -> None:
    assert await Client(world, FIRST).read_all(host)
    assert await Client(world, SECOND).read_all(host)


async def sessions(world: World, host: Host) -> None:
    tail = 4 * COMMITS
    follows = [Client(world, stream).follow(host, 0, tail) for stream in (FIRST, SECOND)]
    assert await asyncio.gather(*follows) == [tail, tail]


async def reads_by_time(world: World, host: Host) -> None:
    book = world.ledger.book(FIRST)
    for timestamp in sorted(set(book.timestamps.values())) or [0]:
        request = make_request(timestamp=timestamp)
        work = host.node.read(BASIN, FIRST, request)
        batch = await world.ask(host, work, f"read from timestamp {timestamp}")
        records = batch.records()
        assert records[0].timestamp >= timestamp
        world.ledger.seen(FIRST, records, records[0].seq_num)


WAYS = [unary_reads, sessions, reads_by_time]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("calls", [(1,), (2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_gets_over_faults_that_pass(
    fault: Fault, calls: tuple[int, ...], way: Callable[[World, Host], Awaitable[None]]
) -> None:
    rule = Rule(fault, RANGES, calls=calls, prefix=WAL_PREFIX, delay_secs=SLOW_SECS)

    async def scenario(world: World) -> None:
        host = await written(world)
        host.bucket.plan = FaultPlan(rule)
        await way(world, host)
        assert host.bucket.injected[RANGE, fault] == len(calls)
        for stream in (FIRST, SECOND, OTHER):
            await Client(world, stream).check(host)
        assert world.ledger.violations == []

    in_world(scenario)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_follower_misses_nothing_while_one_read_in_five_fails(fault: Fault, seed: int) -> None:
    rule = Rule(fault, RANGES, probability=0.2, prefix=WAL_PREFIX, delay_secs=(0.1, 1.2))

    async def scenario(world: World) -> None:
        host = await written(world)
        host.bucket.plan = FaultPlan(rule)
        tail = 8 * COMMITS

        async def write() -> None:
            for number in range(COMMITS):
                await append_both(world, host, number)
                await world.clock.sleep(0.3)

        async def follow() -> None:
            position = 0
            while position < tail:
                position = await Client(world, FIRST).follow(host, position, 7)

        await asyncio.gather(write(), follow())
        assert host.bucket.injected[RANGE, fault]
        host.bucket.enabled = False
        await Client(world, FIRST).check(host)
        assert world.ledger.violations == []

    in_world(scenario, seed)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.LATENCY])
def test_faults_that_do_not_pass_are_told_with_the_name_of_the_object(fault: Fault) -> None:
    damaging = {Fault.TRUNCATED, Fault.FLIPPED, Fault.MISSING}

    async def scenario(world: World) -> None:
        host = await written(world)
        host.bucket.plan = FaultPlan(Rule(fault, RANGES, prefix=WAL_PREFIX))
        client = Client(world, FIRST)
        for read in (client.read(host, 0), client.follow(host, 0, 1)):
            with pytest.raises(Damaged if fault in damaging else StorageFailed, match="wal/0"):
                await read
        assert host.bucket.injected[RANGE, fault]
        assert host.node.state is NodeState.SERVING
        assert isinstance(await client.append(host, b"still written"), AppendAck)
        host.bucket.enabled = False
        await host.bucket.release()
        await client.check(host)
        assert world.ledger.violations == []

    in_world(scenario)


async def _flip(bucket: Bucket, key: str) -> None:
    size = len(await bucket.get(key))
    await flip_bit(bucket, key, 8 * (size // 3))


async def _truncate(bucket: Bucket, key: str) -> None:
    await truncate_object(bucket, key, len(await bucket.get(key)) // 4)


DAMAGES = [_flip, _truncate, lose_object]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_object_is_named_and_everything_else_stays_readable(
    damage: Callable[[Bucket, str], Awaitable[None]],
) -> None:
    async def scenario(world: World) -> None:
        host = await written(world)
        run = host.node.term.find(BASIN, FIRST)
        assert run is not None
        broken = run.runs.row(3)  # of eight
        key = f"wal/{1:012d}/{broken.commit:012d}"
        await damage(world.store, key)
        await Client(world, OTHER).check(host)
        named: list[str] = []
        for stream in (FIRST, SECOND):
            client = Client(world, stream)
            for seq_num in range(4 * COMMITS):
                try:
                    assert await client.read(host, seq_num, count=1)
                except Damaged as damaged:
                    named.append(damaged.key)
            assert isinstance(await client.append(host, b"new"), AppendAck)
            assert await client.read(host, 4 * COMMITS)
        assert set(named) == {key}
        assert len(named) <= 2 * broken.count, "only what it held is lost"
        assert world.ledger.violations == []

    in_world(scenario)


def test_a_read_that_met_damage_once_is_right_the_next_time() -> None:
    async def scenario(world: World) -> None:
        host = await written(world)
        host.bucket.plan = FaultPlan(Rule(Fault.MISSING, RANGES, calls=(1,), prefix=WAL_PREFIX))
        client = Client(world, FIRST)
        with pytest.raises(Damaged, match="wal/0"):
            await client.read(host, 0)
        assert host.bucket.injected[RANGE, Fault.MISSING] == 1
        await client.check(host)
        assert world.ledger.violations == []

    in_world(scenario)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.STUCK_BEFORE, Fault.STUCK_AFTER])
def test_a_node_that_cannot_look_for_newer_writers_stops_to_answer(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        old = await written(world)
        old.bucket.plan = FaultPlan(Rule(fault, frozenset({LIST}), prefix=EPOCH_PREFIX))
        new = await world.start()
        await Client(world, FIRST).append(new, b"unknown to the old one")
        await world.clock.sleep(6 * SETTINGS.epoch_poll_secs)
        assert old.bucket.injected[LIST, fault]
        for question in (
            old.node.check_tail(BASIN, FIRST),
            old.node.read(BASIN, FIRST, make_request(seq_num=0)),
            old.node.list_streams(BASIN),
        ):
            with pytest.raises(Unavailable):
                await world.ask(old, question, "a question to a node that may be fenced")
        old.bucket.enabled = False
        await old.bucket.release()
        with pytest.raises(Fenced):
            await Client(world, FIRST).check_tail(old)
        await Client(world, FIRST).check(new)
        assert world.ledger.violations == []

    in_world(scenario)


def test_slow_looks_for_newer_writers_do_not_stop_reads() -> None:
    async def scenario(world: World) -> None:
        host = await written(world)
        lists = frozenset({LIST})
        host.bucket.plan = FaultPlan(
            Rule(Fault.LATENCY, lists, prefix=EPOCH_PREFIX, delay_secs=(0.5, 0.9)),
            Rule(Fault.MISSING, lists, prefix=EPOCH_PREFIX, probability=0.5),
        )
        for _ in range(10):
            await world.clock.sleep(2.0)
            await unary_reads(world, host)
        assert host.bucket.injected[LIST, Fault.LATENCY]
        assert world.ledger.violations == []

    in_world(scenario)


@pytest.mark.parametrize("ending", ["crash", "close", "takeover", "log"])
def test_a_read_under_way_ends_when_its_node_does(ending: str) -> None:
    """With an answer, unless the whole process is gone."""

    async def scenario(world: World) -> None:
        host = await written(world)
        host.bucket.plan = FaultPlan(Rule(Fault.STUCK_BEFORE, RANGES, prefix=WAL_PREFIX))
        reading = world.loop.create_task(Client(world, FIRST).read(host, 0))
        following = world.loop.create_task(Client(world, OTHER).follow(host, 1, 10))
        await world.clock.sleep(0.1)
        assert host.bucket.injected[RANGE, Fault.STUCK_BEFORE]
        if ending == "crash":
            await world.crash(host)
        elif ending == "close":
            await world.ask(host, host.node.close(), "close")
        elif ending == "takeover":
            await world.start()
            await world.clock.sleep(1.1 * SETTINGS.epoch_poll_secs)
        else:
            host.bucket.plan = FaultPlan(Rule(Fault.ERROR))
            await Client(world, SECOND).append(host, b"the log's end")
        outcomes = await asyncio.gather(reading, following, return_exceptions=True)
        assert all(isinstance(outcome, Exception | int) for outcome in outcomes)
        assert isinstance(outcomes[0], Exception)
        assert world.ledger.violations == []

    in_world(scenario)


def test_nothing_is_read_beyond_what_is_durable() -> None:
    async def scenario(world: World) -> None:
        host = await written(world)
        tail = 4 * COMMITS
        host.bucket.plan = FaultPlan(
            Rule(
                Fault.STUCK_BEFORE,
                frozenset({Operation.PUT_IF_ABSENT}),
                calls=(1,),
                prefix=WAL_PREFIX,
            )
        )
        pipeline = await Pipeline.open(Client(world, FIRST), host)
        for _ in range(4):
            await pipeline.submit(b"x" * 1100)  # a commit each: the first is stuck, the rest is in
        await world.clock.sleep(0.5)
        assert len(host.bucket.stuck) == 1
        client = Client(world, FIRST)
        assert await client.check_tail(host) == tail
        with pytest.raises(Unwritten):
            await client.read(host, tail)
        with pytest.raises(Unwritten):
            await client.read(host, tail + 1)
        await host.bucket.release()
        await pipeline.settle()
        assert await client.check_tail(host) == tail + 4
        await client.check(host)
        assert world.ledger.violations == []

    in_world(scenario)
