"""Followers that are served together: each sees what it would see alone, whoever else there is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.batch import ReadBatch
from bourn.engine.follower import ReadSession
from bourn.engine.node import Node
from bourn.errors import BournError, ServerDraining, Unavailable
from bourn.log.cursor import make_request
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    eventually,
    gated_node,
    pass_time,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, with_stream


class Taker:
    """A follower that takes batches by a plain call, except when it does not."""

    def __init__(self, refuses: Callable[[], bool] = lambda: False) -> None:
        self._refuses = refuses
        self.batches: list[ReadBatch] = []
        self.pushed: list[ReadBatch] = []  # of these, by a call
        self.failure: BournError | None = None

    def deliver(self, found: ReadBatch) -> bool:
        if self._refuses():
            return False
        self.batches.append(found)
        self.pushed.append(found)
        return True

    async def follow(self, node: Node, pause: Callable[[], int] = lambda: 0, **query: int) -> None:
        request = make_request(**(query or {"seq_num": 0}))  # type: ignore[arg-type]
        async with node.read_session(BASIN, STREAM, request) as batches:
            assert isinstance(batches, ReadSession)
            batches.deliver = self.deliver
            try:
                async for found in batches:
                    self.batches.append(found)
                    await turns(pause())
            except BournError as error:
                self.failure = error

    @property
    def seq_nums(self) -> list[int]:
        return [record.seq_num for found in self.batches for record in found.records()]

    @property
    def heartbeats(self) -> int:
        return sum(found.is_heartbeat for found in self.batches)


@asynccontextmanager
async def seated(node: Node, *takers: Taker) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Have followers at the tail, served together, for a block."""
    tasks = [asyncio.ensure_future(taker.follow(node, tail_offset=0)) for taker in takers]
    await eventually(lambda: all(taker.heartbeats for taker in takers))
    # The first to come waits alone until something has been said.
    await node.append(BASIN, STREAM, batch("first"))
    await eventually(lambda: all(taker.seq_nums for taker in takers))
    await node.append(BASIN, STREAM, batch("second"))
    await eventually(lambda: all(len(taker.seq_nums) == 2 for taker in takers))
    await turns()
    for taker in takers:
        taker.batches.clear()
        taker.pushed.clear()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_goes_or_cannot_take_it_gets_every_record_once_and_in_order(
    memory: Storage, seed: int
) -> None:
    settings = EngineSettings(tail_cache_bytes=(0, 3000, 1 << 20)[seed % 3], read_cache_bytes=1)
    total = 3000

    async def scenario(bucket: Bucket) -> None:
        rng = Random(seed)
        async with node_on(bucket, settings) as node:
            await with_stream(node)
            share = (0.0, 0.02, 0.3)[seed % 3]
            takers = [Taker(lambda: rng.random() < share) for _ in range(20)]
            tasks: list[asyncio.Task[None]] = []
            for at, taker in enumerate(takers):
                pause = (lambda: 0) if at % 2 else (lambda: rng.randint(0, 3))
                tasks.append(asyncio.ensure_future(taker.follow(node, pause)))
            left = total
            while left:
                count = min(left, rng.choice([1, 1, 2, 5, 700, 1000]))
                left -= count
                appends = [node.append(BASIN, STREAM, batch(*["x"] * count))]
                if rng.random() < 0.3:
                    count = min(left, 3)
                    left -= count
                    appends += [node.append(BASIN, STREAM, batch(*["y"] * count))] if count else []
                await asyncio.gather(*appends)
                await turns(rng.randint(0, 30))
            await eventually(lambda: all(len(taker.seq_nums) >= total for taker in takers))
            for taker in takers:
                assert taker.seq_nums == list(range(total))
                for found in taker.batches:
                    if found.slices and found.tail is not None:
                        assert found.tail.seq_num == found.last_seq_num + 1
            assert sum(len(taker.pushed) for taker in takers) > 50
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert stream_of(node).users == 0
            await eventually(lambda: stream_of(node).waiters is None)

    memory.run(scenario)


def test_all_of_them_are_given_the_same_batch_with_the_tail_on_it(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            takers = [Taker() for _ in range(5)]
            async with seated(node, *takers):
                ack = await node.append(BASIN, STREAM, batch("a", "b"))
                await eventually(lambda: all(taker.batches for taker in takers))
                [found] = {id(found): found for t in takers for found in t.pushed}.values()
                assert found.tail == ack.tail
                assert found.records_count == 2

    memory.run(scenario)


def test_a_burst_comes_in_batches_and_ends_with_a_heartbeat(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            takers = [Taker() for _ in range(3)]
            async with seated(node, *takers):
                gated.shut = True
                appends = [
                    asyncio.ensure_future(node.append(BASIN, STREAM, batch(*["x"] * 900)))
                    for _ in range(3)
                ]
                await turns()
                gated.open()
                acks = await soon(asyncio.gather(*appends))
                await eventually(lambda: all(taker.heartbeats for taker in takers))
                for taker in takers:
                    *batches, last = taker.pushed
                    assert [found.records_count for found in batches] == [1000, 1000, 700]
                    assert [found.tail for found in batches] == [None] * 3
                    assert last.is_heartbeat
                    assert last.tail == acks[-1].tail

    memory.run(scenario)


def test_who_cannot_take_a_batch_gets_it_by_waiting_and_comes_back(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            is_stalled = False
            slow, quick = Taker(lambda: is_stalled), Taker()
            async with seated(node, slow, quick):
                is_stalled = True
                await node.append(BASIN, STREAM, batch("a"))
                await eventually(lambda: slow.batches and quick.batches)
                assert not slow.pushed
                assert slow.batches[0].tail == quick.batches[0].tail == stream_of(node).tail
                is_stalled = False
                for _ in range(3):
                    await node.append(BASIN, STREAM, batch("b"))
                    await turns()
                await eventually(lambda: slow.pushed)
                assert slow.seq_nums == quick.seq_nums

    memory.run(scenario)


def test_each_hears_something_every_five_to_fifteen_seconds(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            takers = [Taker() for _ in range(4)]
            async with seated(node, *takers):
                heard = [clock.monotonic()] * len(takers)
                silences: list[float] = []
                for _ in range(240):
                    before = [taker.heartbeats for taker in takers]
                    await pass_time(clock, 0.25, 0.25)
                    for at, taker in enumerate(takers):
                        if taker.heartbeats > before[at]:
                            silences.append(clock.monotonic() - heard[at])
                            heard[at] = clock.monotonic()
                assert len(silences) >= 16
                assert all(4.75 <= silence <= 15.25 for silence in silences)
                assert len(set(silences)) > 5, "drawn anew each time, for each"

    memory.run(scenario)


def test_a_batch_postpones_everybodys_heartbeat(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            takers = [Taker() for _ in range(3)]
            async with seated(node, *takers):
                for _ in range(6):
                    await pass_time(clock, 4.5)
                    await node.append(BASIN, STREAM, batch("x"))
                    await turns()
                assert [taker.heartbeats for taker in takers] == [0, 0, 0]
                assert all(len(taker.pushed) == 6 for taker in takers)

    memory.run(scenario)


def test_a_call_for_heartbeats_reaches_everybody_once(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            is_stalled = True
            slow, quick = Taker(lambda: is_stalled), Taker()
            is_stalled = False
            async with seated(node, slow, quick):
                is_stalled = True
                node.hurry_readers()
                await eventually(lambda: slow.heartbeats and quick.heartbeats)
                await turns()
                assert (slow.heartbeats, quick.heartbeats) == (1, 1)

    memory.run(scenario)


@pytest.mark.parametrize("end", ["deleted", "drained"])
def test_the_end_of_the_stream_is_everybodys(memory: Storage, end: str) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            takers = [Taker() for _ in range(3)]
            async with seated(node, *takers) as tasks:
                if end == "deleted":
                    await node.delete_stream(BASIN, STREAM)
                else:
                    node.end_reads(ServerDraining("it stops"))
                await soon(asyncio.gather(*tasks))
            expected = Unavailable if end == "deleted" else ServerDraining
            assert [type(taker.failure) for taker in takers] == [expected] * 3

    memory.run(scenario)


def test_what_is_trimmed_before_it_was_delivered_is_stepped_over(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            takers = [Taker() for _ in range(3)]
            async with seated(node, *takers):
                gated.shut = True
                appends = [
                    asyncio.ensure_future(node.append(BASIN, STREAM, batch("gone"))),
                    asyncio.ensure_future(node.append(BASIN, STREAM, batch("kept", trim(3)))),
                ]
                await turns()
                gated.open()
                await soon(asyncio.gather(*appends))
                await eventually(lambda: all(taker.seq_nums for taker in takers))
                assert [taker.seq_nums for taker in takers] == [[3, 4]] * 3

    memory.run(scenario)


def test_damage_ends_each_with_the_error_and_nobody_hangs(memory: Storage) -> None:
    settings = EngineSettings(tail_cache_bytes=0, read_cache_bytes=1)

    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, settings) as node:
            await with_stream(node)
            takers = [Taker() for _ in range(3)]
            async with seated(node, *takers) as tasks:
                gated.reads_shut = True
                await node.append(BASIN, STREAM, batch("lost"))
                await eventually(lambda: gated.held_reads)
                async for info in bucket.list("wal/"):
                    await bucket.delete(info.key)
                gated.open()
                await soon(asyncio.gather(*tasks))
            assert all(taker.failure is not None for taker in takers)

    memory.run(scenario)


def test_limits_and_waits_are_kept_by_each_alone(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            others = [Taker(), Taker()]
            async with seated(node, *others):
                limited, waiting = Taker(), Taker()
                ends = [
                    asyncio.ensure_future(limited.follow(node, seq_num=2, count=2, wait=60)),
                    asyncio.ensure_future(waiting.follow(node, seq_num=2, wait=60)),
                ]
                await turns()
                for text in ("a", "b", "c"):
                    await node.append(BASIN, STREAM, batch(text))
                await soon(ends[0])
                await eventually(lambda: waiting.seq_nums == [2, 3, 4])
                assert limited.seq_nums == [2, 3]
                assert not limited.pushed
                assert not waiting.pushed
                ends[1].cancel()
                await asyncio.gather(*ends, return_exceptions=True)

    memory.run(scenario)
