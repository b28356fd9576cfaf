"""No request to a bucket lasts for ever, and giving one up hurts nobody else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bourn.bucket.faults import Fault, FaultBucket, FaultPlan, Operation, Rule
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.bounded import BYTES_PER_SEC_MIN, BoundedBucket
from bourn.errors import BucketUnavailable, ObjectExists, ObjectMissing
from bourn.settings import EngineSettings
from tests.faults.world import World, in_world

SETTINGS = EngineSettings(put_attempt_secs=8.0)
KEY = "wal/1"


def bounded(world: World, *rules: Rule) -> tuple[BoundedBucket, FaultBucket]:
    inner = FaultBucket(MemoryBucket(), FaultPlan(*rules), world.rng, world.clock)
    return BoundedBucket(inner, SETTINGS, world.clock), inner


async def listed(bucket: Bucket) -> list[str]:
    return [info.key async for info in bucket.list("wal/")]


CALLS: dict[Operation, tuple[Callable[[Bucket], Awaitable[object]], float]] = {
    Operation.PUT_IF_ABSENT: (lambda bucket: bucket.put_if_absent(KEY, b"x"), 8.0),
    Operation.PUT: (lambda bucket: bucket.put(KEY, b"x"), 8.0),
    Operation.GET: (lambda bucket: bucket.get(KEY), 16.0),
    Operation.GET_RANGE: (lambda bucket: bucket.get_range(KEY, 0, 1), 8.0),
    Operation.LIST: (listed, 8.0),
    Operation.DELETE: (lambda bucket: bucket.delete(KEY), 8.0),
}


@pytest.mark.parametrize("operation", Operation)
def test_a_request_that_is_not_answered_is_given_up(operation: Operation) -> None:
    async def scenario(world: World) -> None:
        bucket, inner = bounded(world, Rule(Fault.STUCK_BEFORE, calls=(1,)))
        call, secs = CALLS[operation]
        with pytest.raises(BucketUnavailable, match="no answer within"):
            await call(bucket)
        assert secs <= world.clock.monotonic() <= secs + 2.0
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        assert inner.injected[operation, Fault.STUCK_BEFORE] == 1
        await inner.release()
        assert await listed(bucket) == ([KEY] if "put" in operation else [])

    in_world(scenario)


def test_answers_and_errors_pass_as_they_are() -> None:
    async def scenario(world: World) -> None:
        bucket, _ = bounded(world)
        await bucket.put_if_absent(KEY, b"xyz")
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent(KEY, b"x")
        assert await bucket.get(KEY) == b"xyz"
        assert await bucket.get_range(KEY, 1, 9) == b"yz"
        await bucket.put("wal/2", b"x")
        assert await listed(bucket) == [KEY, "wal/2"]
        await bucket.delete(KEY)
        with pytest.raises(ObjectMissing):
            await bucket.get(KEY)
        assert (bucket.name, bucket.is_remote) == ("memory: (with faults)", False)
        await world.clock.sleep(100)
        await bucket.close()

    in_world(scenario)


def test_large_transfers_may_take_longer() -> None:
    async def scenario(world: World) -> None:
        slow = Rule(Fault.LATENCY, delay_secs=(12.0, 12.0))
        bucket, _ = bounded(world, slow)
        data = bytes(5 * BYTES_PER_SEC_MIN)
        await bucket.put_if_absent(KEY, data)
        assert await bucket.get_range(KEY, 0, len(data)) == data
        with pytest.raises(BucketUnavailable):
            await bucket.get_range(KEY, 0, 1)

    in_world(scenario)


def test_whoever_is_cancelled_is_cancelled_even_if_its_time_is_up_in_that_moment() -> None:
    async def scenario(world: World) -> None:
        bucket, _ = bounded(world, Rule(Fault.STUCK_BEFORE))
        for secs in (1.0, 8.0, 9.0):
            task = asyncio.ensure_future(bucket.get_range(KEY, 0, 1))
            timer = world.loop.call_later(secs, task.cancel)
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            timer.cancel()
            assert isinstance(outcome, asyncio.CancelledError | BucketUnavailable)
            assert task.cancelled() == isinstance(outcome, asyncio.CancelledError)
        task = asyncio.ensure_future(bucket.get_range(KEY, 0, 1))
        await world.clock.sleep(0.1)
        bucket._look()
        for call in bucket._calls:
            call.deadline = 0.0
        bucket._look()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_world(scenario)


def test_one_stuck_request_leaves_the_others_alone() -> None:
    async def scenario(world: World) -> None:
        bucket, _ = bounded(world, Rule(Fault.STUCK_BEFORE, prefix="wal/1"))

        async def work() -> int:
            done = 0
            while world.clock.monotonic() < 40.0:
                await bucket.put("wal/2", b"x")
                await world.clock.sleep(0.5)
                done += 1
            return done

        working = asyncio.ensure_future(work())
        for _ in range(3):
            with pytest.raises(BucketUnavailable):
                await bucket.put("wal/1", b"x")
        assert await working == 80

    in_world(scenario)


def test_a_clock_that_is_late_cancels_nobody_who_is_done() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        bucket = BoundedBucket(MemoryBucket(), SETTINGS, clock)
        await bucket.put(KEY, b"x")
        clock.advance(100.0)
        assert await bucket.get(KEY) == b"x"
        clock.advance(100.0)
        await clock.sleep(0)
        await clock.sleep(0)
        assert await bucket.get(KEY) == b"x"

    asyncio.run(scenario())
