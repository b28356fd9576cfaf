"""The byte budget: never exceeded, handed out in order, and never leaked."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bourn.engine.room import Room
from bourn.errors import Unavailable
from tests.engine.harness import turns
from tests.support import run


def test_what_fits_is_taken_at_once() -> None:
    room = Room(100)
    assert room.try_take(60)
    assert room.try_take(40)
    assert not room.try_take(1)
    room.give_back(60)
    assert room.try_take(59)
    assert room.bytes_taken == 99


def test_one_that_is_too_large_fits_when_nothing_else_is_there() -> None:
    room = Room(100)
    assert room.try_take(1000)
    assert not room.try_take(1)
    room.give_back(1000)
    assert room.try_take(1)
    assert not room.try_take(1000)


def test_a_small_one_does_not_overtake_a_large_one_that_waits() -> None:
    async def scenario() -> None:
        room = Room(100)
        room.try_take(50)
        large = asyncio.ensure_future(room.take(80))
        await turns(2)
        assert not room.try_take(10)
        small = asyncio.ensure_future(room.take(10))
        await turns(2)
        assert not small.done()
        room.give_back(50)
        await large
        await small
        assert room.bytes_taken == 90

    run(scenario())


def test_a_waiter_that_goes_lets_those_behind_it_pass() -> None:
    async def scenario() -> None:
        room = Room(100)
        room.try_take(50)
        large = asyncio.ensure_future(room.take(80))
        small = asyncio.ensure_future(room.take(10))
        await turns(2)
        large.cancel()
        await small
        assert room.bytes_taken == 60
        assert room.waiting == 0

    run(scenario())


def test_a_waiter_that_is_cancelled_in_the_moment_of_its_turn_gives_it_back() -> None:
    async def scenario() -> None:
        room = Room(100)
        room.try_take(100)
        first = asyncio.ensure_future(room.take(70))
        second = asyncio.ensure_future(room.take(70))
        await turns(2)
        room.give_back(100)  # the first has its turn, and does not know it yet
        first.cancel()
        await second
        assert first.cancelled()
        assert room.bytes_taken == 70

    run(scenario())


def test_failing_turns_everybody_away_for_good() -> None:
    async def scenario() -> None:
        room = Room(100)
        room.try_take(100)
        waiting = asyncio.ensure_future(room.take(1))
        await turns(2)
        room.fail(Unavailable("over"))
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await room.take(1)
        assert room.waiting == 0

    run(scenario())


Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["take", "take", "give", "cancel", "turn"]), st.integers(1, 130)),
    max_size=60,
)


async def simulate(steps: list[Step]) -> None:
    room = Room(100)
    waiting: list[tuple[int, asyncio.Task[None]]] = []  # in order of asking
    held: list[int] = []

    def collect() -> None:
        """Move those whose turn has come; they must be the first of those who wait."""
        granted = [(size, task) for size, task in waiting if task.done()]
        assert waiting[: len(granted)] == granted, "somebody was overtaken"
        del waiting[: len(granted)]
        held.extend(size for size, _ in granted)

    for kind, number in steps:
        if kind == "take":
            waiting.append((number, asyncio.ensure_future(room.take(number))))
        elif kind == "give" and held:
            room.give_back(held.pop(number % len(held)))
        elif kind == "cancel" and waiting:
            size, task = waiting.pop(number % len(waiting))
            task.cancel()
            await turns(2)
            if not task.cancelled():  # it had been granted before
                held.append(size)
        else:
            await turns(2)
            collect()
        assert room.bytes_taken <= 100 or len(held) <= 1
    await turns(2)
    collect()
    assert room.bytes_taken == sum(held)
    assert sum(held) <= 100 or len(held) == 1
    while held:
        room.give_back(held.pop())
        await turns(2)
        collect()
    assert not waiting
    assert room.bytes_taken == 0
    assert room.waiting == 0


@settings(max_examples=150, deadline=None)
@given(steps)
def test_any_order_of_asking_giving_and_leaving_keeps_the_budget(steps: list[Step]) -> None:
    run(simulate(steps))
