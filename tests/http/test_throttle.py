"""The memory of limits: bounded, and bounded without giving anything away."""

import asyncio

import pytest

from bourn.clock import ManualClock
from bourn.errors import RateLimited
from bourn.http.telemetry import Telemetry
from bourn.http.throttle import Throttle, microseconds
from bourn.limits import LIMIT_HOLDERS_MAX
from bourn.settings import TrafficLimit, TrafficLimits
from tests.engine.harness import soon
from tests.support import node_on, run


async def throttle(clock: ManualClock, **limit: int) -> Throttle:
    async with node_on(clock=clock) as node:
        telemetry = Telemetry(node, clock)
    return Throttle(TrafficLimits(basin=TrafficLimit(**limit)), clock, telemetry)


def kept(found: Throttle) -> int:
    assert found._basins is not None
    return len(found._basins)


def test_basins_at_rest_are_forgotten_and_those_that_are_not_are_remembered() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        found = await throttle(clock, requests=2, sessions=1)
        async with found.session("busy", ""):
            for number in range(LIMIT_HOLDERS_MAX - 2):
                found.admit_request(f"basin-{number}", "")
            clock.advance(1)
            found.admit_request("spent", "")
            found.admit_request("spent", "")
            assert kept(found) == LIMIT_HOLDERS_MAX
            found.admit_request("one-more", "")
            assert kept(found) == 3
            with pytest.raises(RateLimited):
                found.admit_request("spent", "")
            with pytest.raises(RateLimited):
                await found.session("busy", "").__aenter__()

    run(scenario())


def test_where_nobody_is_at_rest_the_oldest_half_is_forgotten_but_no_session() -> None:
    async def scenario() -> None:
        found = await throttle(ManualClock(), requests=1, sessions=1)
        async with found.session("session", ""):
            for number in range(3 * LIMIT_HOLDERS_MAX):
                found.admit_request(f"basin-{number}", "")
                assert kept(found) <= LIMIT_HOLDERS_MAX
            with pytest.raises(RateLimited):
                found.admit_request(f"basin-{3 * LIMIT_HOLDERS_MAX - 1}", "")
            with pytest.raises(RateLimited):
                await found.session("session", "").__aenter__()

    run(scenario())


def test_a_wait_that_is_cancelled_has_spent_nothing_and_holds_no_place() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        found = await throttle(clock, append_bytes=100_000, sessions=1)
        async with found.session("basin", "") as pace:
            assert pace is not None
            await pace.wait_for(100_000)
            waiting = asyncio.ensure_future(pace.wait_for(500_000))
            await clock.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            clock.advance(1)
            await soon(pace.wait_for(100_000))
        holder = found._holders("basin", "", microseconds(clock))[0]
        assert not holder.is_at_rest(microseconds(clock))
        clock.advance(1)
        assert holder.is_at_rest(microseconds(clock))

    run(scenario())
