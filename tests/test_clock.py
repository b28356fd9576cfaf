"""Time: the machine's own, and one that tests move."""

import asyncio

from bourn.clock import ManualClock, SystemClock
from tests.support import run


async def turns() -> None:
    for _ in range(5):
        await SystemClock().sleep(0)


def test_the_systems_clock_goes_on() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        before, wall = clock.monotonic(), clock.now_ms()
        called = asyncio.Event()
        clock.call_later(0.001, called.set)
        clock.call_later(-5, called.set)  # long due
        await clock.sleep(0.002)
        await asyncio.wait_for(called.wait(), 10)
        assert clock.monotonic() >= before + 0.002
        assert clock.now_ms() >= wall
        assert wall > 1_600_000_000_000

    run(scenario())


def test_a_call_that_was_put_off_can_be_taken_back() -> None:
    async def scenario() -> None:
        for clock in (SystemClock(), ManualClock()):
            called: list[int] = []
            timer = clock.call_later(0, lambda called=called: called.append(1))  # type: ignore[misc]
            timer.cancel()
            if isinstance(clock, ManualClock):
                clock.advance(1)
            await turns()
            assert called == []
            timer.cancel()

    run(scenario())


def test_the_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(5_000)
    assert (clock.now_ms(), clock.monotonic()) == (5_000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (6_500, 1.5)
    clock.set_wall(100)
    assert (clock.now_ms(), clock.monotonic()) == (100, 1.5)


def test_advancing_wakes_exactly_who_is_due() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        woken: list[str] = []

        async def sleep(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(name)

        tasks = [asyncio.ensure_future(sleep(f"{seconds}", seconds)) for seconds in (3.0, 1.0, 2.0)]
        clock.call_later(2.0, lambda: woken.append("call"))
        await turns()
        clock.advance(0.5)
        await turns()
        assert woken == []
        clock.advance(0.5)
        await turns()
        assert woken == ["1.0"]
        clock.advance(1.5)
        await turns()
        assert sorted(woken[1:]) == ["2.0", "call"]
        clock.advance(100)
        await asyncio.gather(*tasks)
        assert woken[-1] == "3.0"

    run(scenario())


def test_those_who_are_due_together_are_woken_in_order_of_their_times() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        called: list[int] = []
        for moment in (3, 1, 2):
            clock.call_later(moment, lambda moment=moment: called.append(moment))  # type: ignore[misc]
        clock.advance(5)
        await turns()
        assert called == [1, 2, 3]

    run(scenario())


def test_a_sleep_of_nothing_is_a_turn_of_the_loop() -> None:
    async def scenario() -> None:
        await asyncio.wait_for(ManualClock().sleep(0), 10)

    run(scenario())


def test_a_sleeper_that_was_cancelled_does_not_trouble_the_clock() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        sleeper = asyncio.ensure_future(clock.sleep(1))
        await turns()
        sleeper.cancel()
        await asyncio.wait([sleeper])
        clock.advance(2)
        assert sleeper.cancelled()

    run(scenario())
