"""Each fault does what it says, is counted, and comes again with its seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.bucket.faults import (
    ALL,
    GETS,
    PUTS,
    Fault,
    FaultBucket,
    FaultPlan,
    Operation,
    Rule,
    flip_bit,
    lose_object,
    truncate_object,
)
from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.errors import (
    BucketError,
    BucketMisuse,
    BucketRefused,
    BucketUnavailable,
    ObjectExists,
    ObjectMissing,
)

CREATE = frozenset({Operation.PUT_IF_ABSENT})


def faulty(*rules: Rule, seed: int = 1) -> tuple[FaultBucket, MemoryBucket, ManualClock]:
    inner, clock = MemoryBucket(), ManualClock()
    return FaultBucket(inner, FaultPlan(*rules), random.Random(seed), clock), inner, clock


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)  # noqa: TID251  a bare yield


async def keys_of(bucket: Bucket, prefix: str = "") -> list[str]:
    return [info.key async for info in bucket.list(prefix)]


def test_without_rules_it_is_the_inner_bucket() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty()
        await bucket.put_if_absent("a/1", b"12345")
        await bucket.put("a/2", b"678")
        assert await bucket.get("a/1") == b"12345"
        assert await bucket.get_range("a/1", 1, 2) == b"23"
        assert await keys_of(bucket) == await keys_of(inner) == ["a/1", "a/2"]
        await bucket.delete("a/1")
        assert await keys_of(inner, "a/") == ["a/2"]
        assert bucket.is_remote is False
        assert "memory:" in bucket.name
        assert not bucket.injected
        await bucket.close()

    asyncio.run(scenario())


def test_latency_takes_time_of_the_clock_and_adds_up() -> None:
    async def scenario() -> None:
        bucket, inner, clock = faulty(
            Rule(Fault.LATENCY, delay_secs=(1.0, 2.0)),
            Rule(Fault.LATENCY, PUTS, delay_secs=(10.0, 10.0)),
        )
        put = asyncio.ensure_future(bucket.put("key", b"1"))
        await settled()
        clock.advance(10.9)
        await settled()
        assert not put.done()
        assert await keys_of(inner) == []
        clock.advance(1.2)
        await put
        assert await inner.get("key") == b"1"
        get = asyncio.ensure_future(bucket.get("key"))
        await settled()
        assert not get.done()
        clock.advance(2.1)
        assert await get == b"1"
        assert bucket.injected[Operation.PUT, Fault.LATENCY] == 1
        assert bucket.injected[Operation.GET, Fault.LATENCY] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", list(Operation))
def test_an_error_happens_before_the_effect_and_a_lost_reply_behind_it(
    operation: Operation,
) -> None:
    async def call(bucket: Bucket) -> None:
        match operation:
            case Operation.PUT_IF_ABSENT:
                await bucket.put_if_absent("new", b"1")
            case Operation.PUT:
                await bucket.put("new", b"1")
            case Operation.DELETE:
                await bucket.delete("old")
            case Operation.LIST:
                await keys_of(bucket)
            case Operation.GET:
                await bucket.get("old")
            case Operation.GET_RANGE:
                await bucket.get_range("old", 0, 1)

    async def scenario() -> None:
        effects = {
            Operation.PUT_IF_ABSENT: ["new", "old"],
            Operation.PUT: ["new", "old"],
            Operation.DELETE: list[str](),
        }
        for fault in (Fault.ERROR, Fault.LOST_REPLY):
            bucket, inner, _ = faulty(Rule(fault, frozenset({operation})))
            await inner.put("old", b"0")
            with pytest.raises(BucketUnavailable, match="injected"):
                await call(bucket)
            after = effects.get(operation, ["old"])
            assert await keys_of(inner) == (after if fault is Fault.LOST_REPLY else ["old"])
            assert bucket.injected == {(operation, fault): 1}

    asyncio.run(scenario())


def test_a_lost_reply_hides_what_the_reply_would_have_been() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.LOST_REPLY))
        await inner.put("key", b"0")
        with pytest.raises(BucketUnavailable):
            await bucket.put_if_absent("key", b"1")
        with pytest.raises(BucketUnavailable):
            await bucket.get("absent")
        assert await inner.get("key") == b"0"

    asyncio.run(scenario())


def test_a_retry_after_a_lost_reply_meets_its_own_object() -> None:
    async def scenario() -> None:
        bucket, _, _ = faulty(Rule(Fault.LOST_REPLY, CREATE, calls=(1,)))
        with pytest.raises(BucketUnavailable):
            await bucket.put_if_absent("key", b"mine")
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent("key", b"mine")
        assert await bucket.get("key") == b"mine"

    asyncio.run(scenario())


def test_a_script_strikes_the_named_calls_of_a_prefix_and_no_others() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.LOST_REPLY, PUTS, calls=(3, 5), prefix="wal/"))
        failed = []
        for number in range(1, 8):
            await bucket.put_if_absent(f"other/{number}", b"")
            try:
                await bucket.put_if_absent(f"wal/{number}", b"")
            except BucketUnavailable:
                failed.append(number)
        assert failed == [3, 5]
        assert len(await keys_of(inner, "wal/")) == 7
        assert bucket.injected == {(Operation.PUT_IF_ABSENT, Fault.LOST_REPLY): 2}

    asyncio.run(scenario())


def test_a_rule_may_ask_the_key_and_a_plan_may_be_changed_or_switched_off() -> None:
    async def scenario() -> None:
        bucket, _, _ = faulty(Rule(Fault.ERROR, matches=lambda key: key.endswith("7")))
        await bucket.put("k/6", b"")
        with pytest.raises(BucketUnavailable):
            await bucket.put("k/7", b"")
        bucket.enabled = False
        await bucket.put("k/7", b"")
        bucket.enabled = True
        bucket.plan = FaultPlan(Rule(Fault.ERROR, PUTS, calls=(2,)))
        assert len(bucket.plan) == 1
        await bucket.put("k/7", b"")
        with pytest.raises(BucketUnavailable):
            await bucket.put("k/7", b"")
        bucket.plan = FaultPlan(*bucket.plan)
        await bucket.put("k/7", b"")  # counted from one again

    asyncio.run(scenario())


def test_the_first_rule_that_strikes_decides_and_all_rules_count() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(
            Rule(Fault.ERROR, PUTS, calls=(2,)), Rule(Fault.LOST_REPLY, PUTS, calls=(2, 3))
        )
        await bucket.put("1", b"")
        with pytest.raises(BucketUnavailable):
            await bucket.put("2", b"")
        with pytest.raises(BucketUnavailable):
            await bucket.put("3", b"")
        assert await keys_of(inner) == ["1", "3"]

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [Fault.STUCK_BEFORE, Fault.STUCK_AFTER])
def test_a_stuck_call_hangs_until_it_is_released(fault: Fault) -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(fault, calls=(1, 2, 3)))
        await inner.put("there", b"0")
        create = asyncio.ensure_future(bucket.put_if_absent("new", b"1"))
        again = asyncio.ensure_future(bucket.put_if_absent("there", b"1"))
        get = asyncio.ensure_future(bucket.get("there"))
        await settled()
        assert list(bucket.stuck) == ["new", "there", "there"]
        assert not any(call.done() for call in (create, again, get))
        assert ("new" in await keys_of(inner)) == (fault is Fault.STUCK_AFTER)
        assert await bucket.release() == 3
        await create
        with pytest.raises(ObjectExists):
            await again
        assert await get == b"0"
        assert await inner.get("new") == b"1"
        assert list(bucket.stuck) == []
        assert bucket.injected[Operation.PUT_IF_ABSENT, fault] == 2
        assert bucket.injected[Operation.GET, fault] == 1

    asyncio.run(scenario())


def test_a_stuck_put_takes_effect_on_release_although_its_caller_gave_up() -> None:
    """The packet that arrives after its sender has been replaced."""

    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.STUCK_BEFORE, CREATE, calls=(1,)))
        put = asyncio.ensure_future(bucket.put_if_absent("wal/7", b"late"))
        await settled()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert await keys_of(inner) == []
        assert await bucket.release() == 1
        assert await inner.get("wal/7") == b"late"

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["abandon", "close"])
def test_an_abandoned_put_never_takes_effect_and_its_caller_is_told(ending: str) -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.STUCK_BEFORE))
        waiting = asyncio.ensure_future(bucket.put("1", b""))
        given_up = asyncio.ensure_future(bucket.put("2", b""))
        listing = asyncio.ensure_future(keys_of(bucket))
        await settled()
        given_up.cancel()
        await settled()
        if ending == "abandon":
            assert bucket.abandon() == 3
        else:
            await bucket.close()
        for call in (waiting, listing):
            with pytest.raises(BucketUnavailable, match="injected"):
                await call
        assert given_up.cancelled()
        assert await bucket.release() == 0
        assert await keys_of(inner) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", sorted(GETS))
def test_a_truncated_get_returns_a_true_beginning_and_a_flipped_one_differs_by_one_bit(
    operation: Operation,
) -> None:
    data = bytes(range(200))

    async def scenario() -> None:
        for fault in (Fault.TRUNCATED, Fault.FLIPPED):
            bucket, inner, _ = faulty(Rule(fault, frozenset({operation})))
            await inner.put("key", data)
            await inner.put("empty", b"")
            seen = set()
            for _ in range(30):
                if operation is Operation.GET:
                    found, whole = await bucket.get("key"), data
                else:
                    found, whole = await bucket.get_range("key", 10, 50), data[10:60]
                seen.add(found)
                if fault is Fault.TRUNCATED:
                    assert len(found) < len(whole)
                    assert whole.startswith(found)
                else:
                    assert len(found) == len(whole)
                    wrong = [a ^ b for a, b in zip(found, whole, strict=True) if a != b]
                    assert len(wrong) == 1
                    assert wrong[0].bit_count() == 1
            assert len(seen) > 10, "the place of the damage moves"
            assert bucket.injected == {(operation, fault): 30}
            assert await bucket.get("empty") == b""
            assert bucket.injected == {(operation, fault): 30}, "nothing was damaged"
            assert await inner.get("key") == data, "the stored object is whole"
            with pytest.raises(ObjectMissing):
                await bucket.get("absent")

    asyncio.run(scenario())


def test_a_missing_object_is_not_found_and_not_listed() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.MISSING, prefix="k/3"))
        for number in range(5):
            await inner.put(f"k/{number}", b"1")
        with pytest.raises(ObjectMissing):
            await bucket.get("k/3")
        with pytest.raises(ObjectMissing):
            await bucket.get_range("k/3", 0, 1)
        assert await keys_of(bucket) == ["k/0", "k/1", "k/2", "k/4"]
        assert await bucket.get("k/2") == b"1"
        await bucket.put("k/3", b"2")  # puts know no such fault
        assert bucket.injected == {
            (Operation.GET, Fault.MISSING): 1,
            (Operation.GET_RANGE, Fault.MISSING): 1,
            (Operation.LIST, Fault.MISSING): 1,
        }

    asyncio.run(scenario())


async def collect(bucket: Bucket, seen: list[str]) -> None:
    async for info in bucket.list("k/"):
        seen.append(info.key)  # noqa: PERF401  what came before the break is the point


def test_a_listing_that_breaks_off_yields_a_true_beginning_first() -> None:
    async def scenario() -> None:
        bucket, inner, _ = faulty(Rule(Fault.LOST_REPLY, frozenset({Operation.LIST})))
        keys = [f"k/{number:02}" for number in range(40)]
        for key in keys:
            await inner.put(key, b"")
        lengths = set()
        for _ in range(20):
            seen: list[str] = []
            with pytest.raises(BucketUnavailable):
                await collect(bucket, seen)
            assert seen == keys[: len(seen)]
            lengths.add(len(seen))
        assert len(lengths) > 3

    asyncio.run(scenario())


def test_misuse_stays_misuse() -> None:
    async def scenario() -> None:
        bucket, _, _ = faulty(Rule(Fault.ERROR), Rule(Fault.STUCK_BEFORE))
        with pytest.raises(BucketMisuse):
            await bucket.get("../escape")
        with pytest.raises(BucketMisuse):
            await keys_of(bucket, "half")
        assert not bucket.injected

    asyncio.run(scenario())


CHAOS = FaultPlan(
    Rule(Fault.ERROR, ALL, probability=0.1),
    Rule(Fault.LOST_REPLY, PUTS, probability=0.2),
    Rule(Fault.TRUNCATED, GETS, probability=0.2),
    Rule(Fault.FLIPPED, GETS, probability=0.2),
    Rule(Fault.MISSING, probability=0.1),
    Rule(Fault.ERROR, PUTS, calls=(4,), prefix="k/1"),
)


async def chaos(seed: int, calls: list[int]) -> tuple[list[str], Counter[tuple[Operation, Fault]]]:
    """Do the calls, and write down everything that could be seen of it."""
    bucket, inner, _ = faulty(*CHAOS, seed=seed)
    seen: list[str] = []
    made: tuple[Callable[[str], Awaitable[object]], ...] = (
        lambda key: bucket.put_if_absent(key, key.encode() * 9),
        lambda key: bucket.put(key, key.encode() * 5),
        bucket.get,
        lambda key: bucket.get_range(key, 1, 20),
        bucket.delete,
        lambda _: keys_of(bucket),
    )
    for call in calls:
        try:
            seen.append(repr(await made[call % 6](f"k/{call // 6}")))
        except BucketError as error:
            seen.append(repr(error))
    seen += await keys_of(inner)
    return seen, bucket.injected


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 29), max_size=80))
def test_everything_comes_again_with_its_seed(seed: int, calls: list[int]) -> None:
    assert asyncio.run(chaos(seed, calls)) == asyncio.run(chaos(seed, calls))


def test_another_seed_is_another_run_and_every_fault_of_a_plan_comes() -> None:
    calls = [number % 30 for number in range(600)]
    runs = [asyncio.run(chaos(seed, calls)) for seed in range(3)]
    assert runs[0][0] != runs[1][0] != runs[2][0]
    for _, injected in runs:
        assert {fault for _, fault in injected} == {rule.fault for rule in CHAOS}


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_stored_objects_can_be_damaged_on_purpose(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket: Bucket = MemoryBucket() if kind == "memory" else LocalBucket(tmp_path)
        await bucket.put_if_absent("d/key", b"\x00\x01\x02\x03")
        await flip_bit(bucket, "d/key", 9)
        assert await bucket.get("d/key") == b"\x00\x03\x02\x03"
        await truncate_object(bucket, "d/key", 2)
        assert await bucket.get("d/key") == b"\x00\x03"
        await lose_object(bucket, "d/key")
        with pytest.raises(ObjectMissing):
            await bucket.get("d/key")
        with pytest.raises(ObjectMissing):
            await lose_object(bucket, "d/key")
        await bucket.close()

    asyncio.run(scenario())


def test_errors_of_the_inner_bucket_pass_through(tmp_path: Path) -> None:
    async def scenario() -> None:
        inner = LocalBucket(tmp_path)
        bucket = FaultBucket(inner, FaultPlan(), random.Random(1), ManualClock())
        await bucket.put("a/b", b"")
        with pytest.raises(BucketRefused):
            await bucket.put("a", b"")
        await bucket.close()
        with pytest.raises(BucketRefused, match="closed"):
            await inner.get("a/b")

    asyncio.run(scenario())
