"""The checks are checked: an engine with one rule broken must be found out by the same seeds."""

import functools
import re
from collections.abc import Callable, Iterator

import msgspec
import pytest

from bourn.bucket.faults import lose_object
from bourn.errors import BasinNotFound, Damaged
from bourn.layout.keys import wal_key
from bourn.model.record import trim_record
from tests.faults import mutations
from tests.faults.clients import Client
from tests.faults.mutations import Mutation
from tests.faults.simulation import live
from tests.faults.world import SETTINGS, World, in_world

SEEDS = range(12)
LOST = r"went back|was b'.* and is b'|are not there|is not there|not there as a whole|told"

# Each with what its discovery may look like.
MUTATIONS: list[tuple[Mutation, str]] = [
    (mutations.ack_before_durable, LOST),
    (mutations.ack_out_of_order, LOST),
    (mutations.no_tombstone, LOST + "|has acked after it was replaced"),
    (mutations.exists_is_success, LOST + "|has acked after it was replaced"),
    (mutations.readers_see_what_is_in_flight, LOST),
    (mutations.refusals_do_not_wait, LOST),
    (mutations.snapshot_before_its_commits, LOST + "|cannot be read"),
    (mutations.session_goes_on_behind_a_refusal, "of the same session before it is not"),
]


@functools.cache
def violations_of_the_engine_as_it_is(seed: int) -> tuple[str, ...]:
    return tuple(live(seed).violations)


def discoveries(mutation: Mutation, pattern: str) -> Iterator[tuple[int, str]]:
    """Seeds that find the mutation out, with what they say."""
    for seed in SEEDS:
        assert violations_of_the_engine_as_it_is(seed) == (), "the rule is broken already"
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found = [what for what in live(seed).violations if re.search(pattern, what)]
        if found:
            yield seed, found[0]


@pytest.mark.parametrize(
    ("mutation", "pattern"),
    [pytest.param(*row, id=row[0].__name__) for row in MUTATIONS],
)
def test_a_broken_rule_is_found_out(mutation: Mutation, pattern: str) -> None:
    found = next(discoveries(mutation, pattern), None)
    assert found is not None, f"no seed of {SEEDS} has noticed"


async def lose_what_was_acked(world: World) -> None:
    """Let an acked commit vanish from the store, and start anew."""
    first = await world.start()
    await world.with_streams(first, "stream")
    for _ in range(6):
        await Client(world, "stream").append(first, b"x")
    await world.crash(first)
    await lose_object(world.store, wal_key(1, 5))
    second = await world.start()
    await Client(world, "stream").check(second)


def test_a_start_that_does_not_look_for_lost_objects_is_found_out() -> None:
    with pytest.raises(Damaged, match=wal_key(1, 5)):
        in_world(lose_what_was_acked)

    async def scenario(world: World) -> list[str]:
        await lose_what_was_acked(world)
        return world.ledger.violations

    with pytest.MonkeyPatch.context() as patch:
        mutations.lost_objects_go_unnoticed(patch)
        violations = in_world(scenario)
    assert any("were promised and are not there" in what for what in violations)


async def trim_everything(world: World) -> None:
    """Let every record go, wait until nobody can need its commit, and start anew."""
    world.settings = msgspec.structs.replace(SETTINGS, snapshot_interval_secs=1000.0)
    first = await world.start()
    await world.with_streams(first, "stream")
    for _ in range(6):
        await Client(world, "stream").append(first, b"x")
    await Client(world, "stream").append(first, b"", commands=(trim_record(8),))
    await world.clock.sleep(3 * SETTINGS.collect_grace_secs)
    await world.crash(first)
    await Client(world, "stream").check(await world.start())
    assert world.ledger.violations == []


def test_a_collection_of_what_no_snapshot_covers_is_found_out() -> None:
    in_world(trim_everything)
    with pytest.MonkeyPatch.context() as patch:
        mutations.collects_above_the_snapshots(patch)
        with pytest.raises((Damaged, BasinNotFound)):  # by what is left of the log
            in_world(trim_everything)


def test_every_mutation_is_tried() -> None:
    named: set[Callable[..., None]] = {mutation for mutation, _ in MUTATIONS}
    named |= {mutations.lost_objects_go_unnoticed, mutations.collects_above_the_snapshots}
    written = {
        value
        for value in vars(mutations).values()
        if getattr(value, "__module__", "") == mutations.__name__
    }
    assert written == named
