"""Starts on a bucket that fails: a node takes over all that was promised, or says why not."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import pytest

from bourn.bucket.faults import (
    GETS,
    PUTS,
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
from bourn.errors import BournError, Damaged, Fenced, OutcomeUnknown
from bourn.layout.claim import Claim, decode_claim, encode_claim
from bourn.layout.keys import (
    EPOCH_PREFIX,
    SNAPSHOT_PREFIX,
    WAL_PREFIX,
    epoch_key,
    parse_snapshot_key,
    wal_key,
    wal_prefix,
)
from tests.faults.clients import Client, Pipeline
from tests.faults.ledger import Ledger
from tests.faults.simulation import MOODS
from tests.faults.world import SETTINGS, Host, World, in_world

T = TypeVar("T")

FIRST, SECOND = "first", "second"
CREATE, GET, LIST = Operation.PUT_IF_ABSENT, Operation.GET, Operation.LIST

OF_PUTS = (
    Fault.LATENCY,
    Fault.ERROR,
    Fault.LOST_REPLY,
    Fault.STUCK_BEFORE,
    Fault.STUCK_AFTER,
)
OF_LISTS = (*OF_PUTS, Fault.MISSING)
OF_GETS = (*OF_LISTS, Fault.TRUNCATED, Fault.FLIPPED)


class Stage(NamedTuple):
    """A step of a start."""

    name: str
    operation: Operation
    prefix: str
    faults: tuple[Fault, ...]
    before: tuple[Rule, ...] = ()  # what makes the step necessary


STAGES = (
    Stage("listing epochs", LIST, EPOCH_PREFIX, OF_LISTS),
    Stage("claiming an epoch", CREATE, EPOCH_PREFIX, OF_PUTS),
    Stage(
        "reading a claim",
        GET,
        EPOCH_PREFIX,
        OF_GETS,
        (Rule(Fault.LOST_REPLY, PUTS, calls=(1,), prefix=EPOCH_PREFIX),),
    ),
    Stage("listing snapshots", LIST, SNAPSHOT_PREFIX, OF_LISTS),
    Stage("loading a snapshot", Operation.GET_RANGE, SNAPSHOT_PREFIX, OF_GETS),
    Stage("listing commits", LIST, WAL_PREFIX, OF_LISTS),
    Stage("replaying commits", GET, WAL_PREFIX, OF_GETS),
    Stage("sealing an epoch", CREATE, WAL_PREFIX, OF_PUTS),
)


def test_the_stages_meet_every_kind_of_fault() -> None:
    assert {fault for stage in STAGES for fault in stage.faults} == set(Fault)


async def append_some(world: World, host: Host, batches: int) -> None:
    async def session(stream: str) -> None:
        pipeline = await Pipeline.open(Client(world, stream), host)
        for number in range(batches):
            await pipeline.submit(b"x" * 150 * (number % 5), b"y")
            await world.clock.sleep(0.01)
        await pipeline.settle()
        pipeline.close()

    await asyncio.gather(session(FIRST), session(SECOND))


async def live_a_past(world: World) -> None:
    """Two writers were here: one stopped in order, one died with puts on their way.

    There are two snapshots, commits behind the newer one, a gap, and commits behind the gap that
    were never acked.
    """
    first = await world.start()
    await world.with_streams(first, FIRST, SECOND)
    await append_some(world, first, 6)
    await first.node.close()
    second = await world.start()
    await append_some(world, second, 6)
    await second.node.housekeeping.snapshots.take()
    await append_some(world, second, 6)
    second.bucket.plan = FaultPlan(Rule(Fault.STUCK_BEFORE, PUTS, calls=(3,), prefix=WAL_PREFIX))
    dying = world.loop.create_task(append_some(world, second, 4))
    await world.clock.sleep(0.5)
    assert len(second.bucket.stuck) == 1
    assert [info async for info in world.store.list("wal/", second.bucket.stuck[0])]
    await world.crash(second)
    await dying
    assert world.ledger.unknown_batches
    assert len([info async for info in world.store.list(SNAPSHOT_PREFIX)]) == 2


@functools.cache
def the_past() -> tuple[dict[str, bytes], Ledger]:
    """The store and the ledger as `live_a_past` leaves them."""

    async def scenario(world: World) -> tuple[dict[str, bytes], Ledger]:
        await live_a_past(world)
        return dict(world.store._objects), world.ledger

    return in_world(scenario)


def after_the_past(scenario: Callable[[World], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run a scenario in a world with a past."""
    objects, ledger = the_past()

    async def main(world: World) -> T:
        for key, data in objects.items():
            await world.store.put(key, data)
        world.ledger.go_on_from(ledger)
        return await scenario(world)

    return in_world(main, seed)


async def judge(world: World, host: Host) -> None:
    for stream in (FIRST, SECOND):
        await Client(world, stream).check(host)
    assert world.ledger.violations == []


@pytest.mark.parametrize("calls", [(1,), (2,), (1, 2)], ids=lambda calls: f"calls {calls}")
@pytest.mark.parametrize(
    ("stage", "fault"),
    [
        pytest.param(stage, fault, id=f"{stage.name}: {fault}")
        for stage in STAGES
        for fault in stage.faults
    ],
)
def test_a_start_gets_over_faults_that_pass(
    stage: Stage, fault: Fault, calls: tuple[int, ...]
) -> None:
    rule = Rule(
        fault,
        frozenset({stage.operation}),
        calls=calls,
        prefix=stage.prefix,
        delay_secs=(0.9, 1.1),  # just as long as an attempt may take, or a little longer
    )

    async def scenario(world: World) -> None:
        host = await world.start(*stage.before, rule)
        if calls != (2,):
            assert host.bucket.injected[stage.operation, fault]
        host.bucket.plan = FaultPlan()
        assert host.is_in(NodeState.SERVING)
        await judge(world, host)
        await host.bucket.release()
        await append_some(world, host, 3)
        await judge(world, host)

    after_the_past(scenario)


@pytest.mark.parametrize("arrives", [False, True], ids=["never arrives", "arrives later"])
@pytest.mark.parametrize("fault", [Fault.STUCK_BEFORE, Fault.STUCK_AFTER])
def test_a_start_may_die_at_any_request_and_the_next_one_finds_everything(
    fault: Fault, *, arrives: bool
) -> None:
    async def scenario(request: int, world: World) -> bool:
        dying = world.loop.create_task(world.start(Rule(fault, calls=(request,))))
        await world.clock.sleep(0.5)
        first = world.newest
        is_reached = bool(first.bucket.stuck)
        await world.crash(first)
        await asyncio.gather(dying, return_exceptions=True)
        if not arrives:
            first.bucket.abandon()
        second = await world.start()
        await judge(world, second)
        await first.bucket.release()
        await append_some(world, second, 3)
        await judge(world, second)
        return is_reached

    requests = 0
    while after_the_past(functools.partial(scenario, requests + 1)):
        requests += 1
    assert requests > 12, "it lists, claims, lists, loads, lists, replays and seals"


@pytest.mark.parametrize("mood", ["flaky", "garbled", "sticky"])
@pytest.mark.parametrize("seed", range(4))
def test_starts_under_random_faults_succeed_or_fail_and_change_nothing(
    mood: str, seed: int
) -> None:
    async def scenario(world: World) -> None:
        for _ in range(4):
            try:
                host = await world.start(*MOODS[mood])
            except BournError:
                assert world.newest.bucket.injected.total()
            else:
                host.bucket.enabled = False
                await judge(world, host)
        for host in world.hosts:
            host.bucket.enabled = False
            await host.bucket.release()
        await judge(world, await world.start())

    after_the_past(scenario, seed)


@pytest.mark.parametrize(
    ("stage", "fault"),
    [
        pytest.param(stage, fault, id=f"{stage.name}: {fault}")
        for stage in STAGES
        for fault in stage.faults
        if fault is not Fault.LATENCY and not (stage.operation is LIST and fault is Fault.MISSING)
    ],
)
def test_a_start_on_faults_that_do_not_pass_fails_in_bounded_time_and_says_why(
    stage: Stage, fault: Fault
) -> None:
    rule = Rule(fault, frozenset({stage.operation}), prefix=stage.prefix)
    falls_back = stage.prefix == SNAPSHOT_PREFIX and stage.operation is Operation.GET_RANGE

    async def scenario(world: World) -> None:
        with pytest.raises(BournError, match=stage.prefix):
            await world.start(*stage.before, rule)
        assert world.newest.bucket.injected[stage.operation, fault]
        assert not world.ledger.violations, "it hung"
        await world.newest.bucket.release()
        await judge(world, await world.start())

    assert stage.operation is not Operation.GET_RANGE or falls_back
    after_the_past(scenario)


# Damage


async def keys(world: World, prefix: str) -> list[str]:
    return [info.key async for info in world.store.list(prefix)]


async def flip(bucket: Bucket, key: str) -> None:
    await flip_bit(bucket, key, 8 * (len(await bucket.get(key)) // 2))


async def truncate(bucket: Bucket, key: str) -> None:
    await truncate_object(bucket, key, len(await bucket.get(key)) // 2)


DURABLE_ID_AT = 40  # in the header of a commit
DAMAGES = [flip, truncate, lose_object]
Damage = Callable[[Bucket, str], Awaitable[None]]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_start_is_refused_by_damage_to_what_it_must_replay_and_names_it(damage: Damage) -> None:
    async def scenario(world: World) -> None:
        snapshot = parse_snapshot_key((await keys(world, SNAPSHOT_PREFIX))[-1])
        assert snapshot is not None
        replayed = [
            key
            for key in await keys(world, wal_prefix(2))
            if wal_key(*snapshot) <= key < (await acked_end(world))
        ]
        assert len(replayed) > 2
        for key in replayed:
            kept = await world.store.get(key)
            await damage(world.store, key)
            with pytest.raises(Damaged, match=key) as refused:
                await world.start()
            assert refused.value.key == key
            await world.store.put(key, kept)
        await judge(world, await world.start())

    after_the_past(scenario)


async def acked_end(world: World) -> str:
    """The first key of the second epoch that a lost object could hide behind: its gap."""
    position = 0
    found = await keys(world, wal_prefix(2))
    while wal_key(2, position) in found:
        position += 1
    # Nothing behind the last commit of a writer that died says that it was there.
    return wal_key(2, position - 1)


@pytest.mark.parametrize("fault", [Fault.TRUNCATED, Fault.FLIPPED, Fault.ERROR])
@pytest.mark.parametrize("seed", range(3))
def test_a_lost_object_is_noticed_even_if_what_proves_it_is_read_badly(
    fault: Fault, seed: int
) -> None:
    async def scenario(world: World) -> None:
        lost = (await keys(world, wal_prefix(2)))[-5]
        await lose_object(world.store, lost)
        with pytest.raises(Damaged, match="damaged"):
            await world.start(Rule(fault, GETS, probability=0.5, prefix=WAL_PREFIX))
        assert sum(world.newest.bucket.injected[get, fault] for get in GETS)
        with pytest.raises(Damaged, match=lost):
            await world.start()

    after_the_past(scenario, seed)


def test_a_lost_object_is_noticed_even_if_what_proves_it_is_damaged_too() -> None:
    async def scenario(world: World) -> None:
        lost, *later = (await keys(world, wal_prefix(2)))[-5:]
        await lose_object(world.store, lost)
        for key in later:  # let them say that nothing was durable when they were made
            data = bytearray(await world.store.get(key))
            data[DURABLE_ID_AT : DURABLE_ID_AT + 8] = bytes(8)
            await world.store.put(key, data)
        with pytest.raises(Damaged, match="wal/"):
            await world.start()

    after_the_past(scenario)


@pytest.mark.parametrize("damage", [flip, truncate], ids=lambda damage: damage.__name__)
def test_a_damaged_snapshot_is_replaced_by_the_one_before_it(damage: Damage) -> None:
    async def scenario(world: World) -> None:
        older, newer = await keys(world, SNAPSHOT_PREFIX)
        await damage(world.store, newer)
        host = await world.start()
        await judge(world, host)
        await world.crash(host)
        await damage(world.store, older)
        with pytest.raises(Damaged, match=newer):
            await world.start()

    after_the_past(scenario)


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2)], ids=lambda lost: f"epochs {lost}")
def test_a_lost_claim_loses_nothing_else(lost: tuple[int, ...]) -> None:
    async def scenario(world: World) -> None:
        for epoch in lost:
            await lose_object(world.store, epoch_key(epoch))
        host = await world.start()
        await judge(world, host)
        await append_some(world, host, 3)
        await host.node.close()
        await judge(world, await world.start())

    after_the_past(scenario)


def test_a_claim_with_any_bit_flipped_is_damaged_or_a_claim() -> None:
    """It is JSON without a checksum; but no reply can break a start in an unforeseen way."""
    claim = encode_claim(
        Claim(epoch=7, writer="5d" * 16, started_at_ms=1_700_000_000_000, commits_in_flight=8)
    )
    damaged = 0
    for bit in range(8 * len(claim)):
        altered = bytearray(claim)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            decode_claim(bytes(altered), epoch_key(7))
        except Damaged:
            damaged += 1
    assert damaged > 4 * len(claim)


def test_a_claim_that_no_listing_shows_is_found_and_its_writer_sealed() -> None:
    async def scenario(world: World) -> None:
        old = await world.start()
        await world.with_streams(old, FIRST, SECOND)
        await append_some(world, old, 3)
        lists = frozenset({LIST})
        new = await world.start(Rule(Fault.MISSING, lists, prefix=EPOCH_PREFIX))
        assert new.bucket.injected[LIST, Fault.MISSING]
        assert new.node.term.epoch == 2
        await judge(world, new)
        late = await Client(world, FIRST).append(old, b"too late")
        assert isinstance(late, OutcomeUnknown | Fenced)
        await append_some(world, new, 3)
        await judge(world, new)

    in_world(scenario)


# Writers that are still there


@pytest.mark.parametrize("pause_secs", [0.003, 0.01, 0.03])
def test_a_start_beside_a_busy_writer_takes_over_without_a_false_alarm(pause_secs: float) -> None:
    """A listing takes its time, and the writer goes on meanwhile."""

    async def scenario(world: World) -> None:
        old = await world.start()
        await world.with_streams(old, FIRST, SECOND)
        old.bucket.plan = FaultPlan(Rule(Fault.LATENCY, PUTS, delay_secs=(0.001, 0.05)))

        async def write() -> None:
            while old.serves:
                await append_some(world, old, 3)

        writing = world.loop.create_task(write())
        await world.clock.sleep(0.5)
        before = world.ledger.acked_batches
        new = await world.start(list_pause_secs=pause_secs)
        assert world.ledger.acked_batches > before, "the old one went on meanwhile"
        await writing
        await judge(world, new)

    in_world(scenario)


@pytest.mark.parametrize("starters", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_of_writers_that_start_at_once_one_goes_on(seed: int, starters: int) -> None:
    async def scenario(world: World) -> None:
        slow = Rule(Fault.LATENCY, delay_secs=(0.001, 0.2))
        starts = [world.start(slow) for _ in range(starters)]
        hosts = await asyncio.gather(*starts)
        await world.clock.sleep(3.0)
        leaders = [host for host in hosts if host.serves]
        assert len(leaders) == 1
        await judge(world, leaders[0])
        await append_some(world, leaders[0], 3)
        assert {host.node.state for host in hosts if not host.serves} == {NodeState.FENCED}
        await judge(world, leaders[0])

    after_the_past(scenario, seed)


# A node that rebuilds itself


async def lose_the_log(world: World, host: Host, *rules: Rule) -> None:
    """Let a commit's put fail until the node gives its epoch up."""
    host.bucket.plan = FaultPlan(Rule(Fault.ERROR, PUTS, prefix=WAL_PREFIX), *rules)
    assert isinstance(await Client(world, FIRST).append(host, b"?"), OutcomeUnknown)
    assert host.is_in(NodeState.REBUILDING)


@pytest.mark.parametrize(
    "rules",
    [
        (Rule(Fault.ERROR, frozenset({LIST}), prefix=WAL_PREFIX),),
        (Rule(Fault.ERROR, PUTS, prefix=WAL_PREFIX),),
        (Rule(Fault.STUCK_BEFORE, frozenset({LIST}), prefix=SNAPSHOT_PREFIX),),
        (
            Rule(Fault.LOST_REPLY, PUTS, prefix=EPOCH_PREFIX),
            Rule(Fault.ERROR, frozenset({GET}), prefix=EPOCH_PREFIX),
        ),
    ],
    ids=["listing fails", "sealing fails", "loading hangs", "claim unknown"],
)
def test_a_node_that_fails_to_rebuild_itself_tries_again_and_knows_its_own_claims(
    rules: tuple[Rule, ...],
) -> None:
    async def scenario(world: World) -> None:
        host = await world.start()
        await world.with_streams(host, FIRST, SECOND)
        await append_some(world, host, 3)
        await lose_the_log(world, host)
        host.bucket.plan = FaultPlan(*rules)
        await world.clock.sleep(6 * SETTINGS.put_deadline_secs)
        assert host.is_in(NodeState.REBUILDING)
        assert len(await keys(world, EPOCH_PREFIX)) > 1, "it has claimed an epoch"
        host.bucket.enabled = False
        await world.clock.sleep(12.0)
        assert host.is_in(NodeState.SERVING)
        await append_some(world, host, 3)
        await judge(world, host)

    in_world(scenario)


@pytest.mark.parametrize("start_secs", [0.1, 0.4, 0.9])
def test_a_node_that_rebuilds_itself_gives_way_to_a_newer_writer(start_secs: float) -> None:
    async def scenario(world: World) -> None:
        old = await world.start()
        await world.with_streams(old, FIRST, SECOND)
        await append_some(world, old, 3)
        # It lists at 0.3 s and claims at 0.6 s: the newer one comes before, between or after.
        slow = Rule(Fault.LATENCY, prefix=EPOCH_PREFIX, delay_secs=(0.3, 0.3))
        await lose_the_log(world, old, slow)
        await world.clock.sleep(start_secs)
        new = await world.start()
        old.bucket.plan = FaultPlan(slow)
        await world.clock.sleep(10.0)
        assert old.node.state is NodeState.FENCED
        assert new.node.state is NodeState.SERVING
        await judge(world, new)

    in_world(scenario)
