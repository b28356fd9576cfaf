"""Any bucket, failing on purpose; shipped with the rest, so that users can do it too.

    bucket = FaultBucket(MemoryBucket(), plan, random.Random(seed), clock)

For one seed and one order of calls everything that happens is the same. `injected` counts what
did happen: a test that relies on a fault asserts that it was there.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar, cast

from bourn.bucket.fault_plan import (
    ALL,
    GETS,
    PUTS,
    Dice,
    Fault,
    FaultPlan,
    Operation,
    Rule,
    Strike,
)
from bourn.bucket.port import Bucket, Data, ObjectInfo, check_key, check_listing
from bourn.clock import Clock
from bourn.errors import BucketError, BucketUnavailable, ObjectMissing

__all__ = [
    "ALL",
    "GETS",
    "PUTS",
    "Fault",
    "FaultBucket",
    "FaultPlan",
    "Operation",
    "Rule",
    "flip_bit",
    "lose_object",
    "truncate_object",
]

T = TypeVar("T")

_NO_STRIKE: Final = Strike()
_ANY: Final = frozenset(Fault)
_OF_ITEMS: Final = frozenset({Fault.MISSING})  # of a listing, asked for each key
_OF_CALLS: Final = _ANY - _OF_ITEMS
_LISTED_BEFORE_BREAK_MAX: Final = 16


class _Stuck(NamedTuple):
    effect: Callable[[], Coroutine[Any, Any, Any]]
    outcome: asyncio.Future[Any]
    key: str


class FaultBucket:
    """`inner`, behind a network as bad as `plan` says.

    `enabled` switches the plan off and on; setting `plan` starts its counting anew.
    """

    def __init__(self, inner: Bucket, plan: FaultPlan, rng: random.Random, clock: Clock) -> None:
        self.inner: Final = inner
        self.enabled = True
        self.injected: Counter[tuple[Operation, Fault]] = Counter()
        self._rng = rng
        self._clock = clock
        self._stuck: list[_Stuck] = []
        self._plan = plan
        self._dice = Dice(plan, rng)

    @property
    def name(self) -> str:
        """Where the inner bucket is."""
        return f"{self.inner.name} (with faults)"

    @property
    def is_remote(self) -> bool:
        """Whether the inner bucket is remote."""
        return self.inner.is_remote

    @property
    def plan(self) -> FaultPlan:
        """The rules in force."""
        return self._plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._dice = Dice(plan, self._rng)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The keys of the calls that hang, in the order in which they came."""
        return tuple(stuck.key for stuck in self._stuck)

    async def release(self) -> int:
        """Let every stuck call go on, in order, also those that nobody waits for any more."""
        stuck, self._stuck = self._stuck, []
        for effect, outcome, _ in stuck:
            await _settle(effect, outcome)
        return len(stuck)

    def abandon(self) -> int:
        """Break off every stuck call: what has not happened by now never will."""
        stuck, self._stuck = self._stuck, []
        for _, outcome, key in stuck:
            if not outcome.done():
                outcome.set_exception(BucketUnavailable(key, "injected: the connection broke"))
        return len(stuck)

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, or fail."""
        await self._call(Operation.PUT_IF_ABSENT, key, lambda: self.inner.put_if_absent(key, data))

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object, or fail."""
        await self._call(Operation.PUT, key, lambda: self.inner.put(key, data))

    async def get(self, key: str) -> bytes:
        """Return the object, or what is left of it."""
        return await self._call(Operation.GET, key, lambda: self.inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the object, or what is left of it."""
        return await self._call(
            Operation.GET_RANGE, key, lambda: self.inner.get_range(key, start, length)
        )

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects, or some of them."""
        check_listing(prefix, after)
        strike = self._strike(Operation.LIST, prefix, _OF_CALLS)
        breaks = strike.fault is Fault.LOST_REPLY
        left = int(strike.roll * _LISTED_BEFORE_BREAK_MAX) if breaks else -1
        before = strike._replace(fault=None) if breaks else strike
        await self._struck(Operation.LIST, prefix, before, _nothing)
        async for info in self.inner.list(prefix, after):
            if left == 0:
                break
            if self._strike(Operation.LIST, info.key, _OF_ITEMS).fault is Fault.MISSING:
                self.injected[Operation.LIST, Fault.MISSING] += 1
                continue
            yield info
            left -= 1
        if breaks:
            self.injected[Operation.LIST, Fault.LOST_REPLY] += 1
            raise BucketUnavailable(prefix, "injected: the listing broke off")

    async def delete(self, key: str) -> None:
        """Remove the object, or fail."""
        await self._call(Operation.DELETE, key, lambda: self.inner.delete(key))

    async def close(self) -> None:
        """Break off what hangs, and close the inner bucket."""
        self.abandon()
        await self.inner.close()

    async def _call(
        self, operation: Operation, key: str, effect: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        check_key(key)
        return await self._struck(operation, key, self._strike(operation, key), effect)

    def _strike(self, operation: Operation, key: str, faults: frozenset[Fault] = _ANY) -> Strike:
        return self._dice.strike(operation, key, faults) if self.enabled else _NO_STRIKE

    async def _struck(
        self,
        operation: Operation,
        key: str,
        strike: Strike,
        effect: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """Run the effect as the strike has it; what is counted has really happened."""
        if strike.delay_secs:
            self.injected[operation, Fault.LATENCY] += 1
            await self._clock.sleep(strike.delay_secs)
        fault = strike.fault
        if fault is None:
            return await effect()
        if fault is Fault.TRUNCATED or fault is Fault.FLIPPED:
            data = await effect()
            damaged = _damaged(data, fault, strike.roll) if isinstance(data, bytes) else data
            self.injected[operation, fault] += damaged != data
            return cast("T", damaged)
        self.injected[operation, fault] += 1
        if fault is Fault.MISSING:
            raise ObjectMissing(key)
        if fault is Fault.ERROR:
            raise BucketUnavailable(key, "injected: the request got lost")
        if fault is Fault.STUCK_BEFORE:
            return await self._stick(key, effect)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        await _settle(effect, outcome)
        outcome.exception()  # seen, and kept from the caller
        if fault is Fault.STUCK_AFTER:
            return await self._stick(key, lambda: _result(outcome))
        raise BucketUnavailable(key, "injected: the reply got lost")

    async def _stick(self, key: str, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._stuck.append(_Stuck(effect, outcome, key))
        return await outcome


async def truncate_object(bucket: Bucket, key: str, keep_bytes: int) -> None:
    """Damage a stored object: only its first bytes stay."""
    await bucket.put(key, (await bucket.get(key))[:keep_bytes])


async def flip_bit(bucket: Bucket, key: str, bit: int) -> None:
    """Damage a stored object: one bit changes, counted from the lowest bit of the first byte."""
    await bucket.put(key, _flipped(await bucket.get(key), bit))


async def lose_object(bucket: Bucket, key: str) -> None:
    """Damage a bucket: an object that is there goes away."""
    await bucket.get_range(key, 0, 0)
    await bucket.delete(key)


async def _nothing() -> None:
    pass


async def _result(outcome: asyncio.Future[T]) -> T:
    return outcome.result()


async def _settle(effect: Callable[[], Coroutine[Any, Any, T]], outcome: asyncio.Future[T]) -> None:
    """Run the effect and hand its result or its error to whoever waits, if anybody does."""
    try:
        result = await effect()
    except BucketError as error:
        if not outcome.done():
            outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(result)


def _damaged(data: bytes, fault: Fault, roll: float) -> bytes:
    if not data:
        return data
    if fault is Fault.TRUNCATED:
        return data[: int(roll * len(data))]
    return _flipped(data, int(roll * len(data) * 8))


def _flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
