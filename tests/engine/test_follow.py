"""Followers: every record once and in order, from anywhere, at any pace, to an honest end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

import msgspec
import pytest

from bourn.bucket.port import Bucket
from bourn.engine.node import Node, NodeState
from bourn.errors import (
    BournError,
    BucketRefused,
    ServerDraining,
    StreamDeletionPending,
    Unavailable,
)
from bourn.log.cursor import make_request
from bourn.model.config import BasinConfig
from bourn.model.record import SequencedRecord
from bourn.model.resource import CreateBasin
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Session,
    Storage,
    append_each,
    bodies,
    eventually,
    gated_node,
    read_one,
    seq_nums,
    session,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, with_stream

CACHES = {
    "all in memory": EngineSettings(),
    "some in memory": EngineSettings(tail_cache_bytes=4000, read_cache_bytes=4000),
    "nothing in memory": EngineSettings(tail_cache_bytes=0, read_cache_bytes=1),
}


async def follow(
    node: Node, start: int, until: int, pause: Callable[[], int]
) -> list[SequencedRecord]:
    """Read from `start` on, now and then pausing, until the record before `until` has come."""
    found: list[SequencedRecord] = []
    async with session(node, make_request(seq_num=start, clamp=True)) as follower:
        while not found or found[-1].seq_num < until - 1:
            found += (await follower.next()).records()
            await turns(pause())
    return found


@pytest.mark.parametrize("caches", CACHES)
def test_followers_from_anywhere_get_every_record_once_and_in_order_while_others_append(
    storage: Storage, caches: str
) -> None:
    settings = msgspec.structs.replace(CACHES[caches], commit_split_bytes=2000)
    total, followers = 400, 25

    async def scenario(bucket: Bucket) -> None:
        rng = Random(7)
        async with node_on(bucket, settings) as node:
            await with_stream(node)
            left = total

            async def write() -> None:
                nonlocal left
                while left:
                    count = min(left, rng.randint(1, 7))
                    left -= count
                    texts = [rng.randbytes(rng.randint(1, 60)) for _ in range(count)]
                    await node.append(BASIN, STREAM, batch(*texts))
                    await turns(rng.randint(0, 3))

            async def late_follower() -> tuple[int, list[SequencedRecord]]:
                written = rng.randint(0, total - 50)
                await eventually(lambda: stream_of(node).tail.seq_num >= written)
                start = rng.randint(0, stream_of(node).tail.seq_num)
                return start, await follow(node, start, total, lambda: rng.randint(0, 4))

            writers = [asyncio.ensure_future(write()) for _ in range(3)]
            results = await soon(asyncio.gather(*(late_follower() for _ in range(followers))))
            await asyncio.gather(*writers)
            expected = bodies((await read_one(node, seq_num=0)).records())
            assert len(expected) == total
            for start, found in results:
                assert seq_nums(found) == list(range(start, total))
                assert bodies(found) == expected[start:]
            assert len({start for start, _ in results}) > 10

    storage.run(scenario)


def test_a_batch_that_becomes_durable_while_a_follower_turns_to_the_tail_is_not_missed(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            for delay in range(12):  # let the put end at each turn around the hand-over
                start = stream_of(node).tail.seq_num
                await append_each(node, "history")
                gated.shut = True
                append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("live")))
                (key,) = await gated.until_held(1)
                reading = asyncio.ensure_future(follow(node, start, start + 2, lambda: 0))
                await turns(delay)
                gated.let(key)
                found = await soon(reading)
                assert bodies(found) == [b"history", b"live"], delay
                await append
                gated.open()

    memory.run(scenario)


def test_slow_followers_cost_no_memory_and_miss_nothing(storage: Storage) -> None:
    bounds = EngineSettings(
        tail_cache_bytes=20_000, read_cache_bytes=20_000, encoded_cache_bytes=5_000
    )

    async def scenario(bucket: Bucket) -> None:
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(node_on(bucket, bounds))
            await with_stream(node)
            slow: list[Session] = []
            for _ in range(20):
                follower = await stack.enter_async_context(session(node))
                assert (await follower.next()).is_heartbeat
                slow.append(follower)
            for i in range(120):
                await node.append(BASIN, STREAM, batch(b"%d" % i + b"x" * 500))
            stream = stream_of(node)
            assert not stream.waiters, "who does not ask does not wait either"
            assert node.term.tail_cache.bytes_held <= 20_000
            for follower in slow:
                found: list[SequencedRecord] = []
                while len(found) < 120:
                    found += (await follower.next()).records()
                    assert node.term.reader.bytes_held <= 20_000
                assert seq_nums(found) == list(range(120))
                assert found[119].body.startswith(b"119x")

    storage.run(scenario)


def test_a_follower_is_fed_from_memory_while_it_keeps_up(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            async with session(node) as follower:
                assert (await follower.next()).is_heartbeat
                gated.fetches = 0
                for i in range(20):
                    await append_each(node, f"{i}")
                    found = await follower.next()
                    assert bodies(found.records()) == [f"{i}".encode()]
                    assert found.tail is not None
                    assert found.tail.seq_num == i + 1
                assert gated.fetches == 0

    memory.run(scenario)


def test_a_follower_stays_with_its_stream_through_snapshots(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "a")
            async with session(node) as follower:
                assert (await follower.next()).records_count == 1
                assert (await follower.next()).is_heartbeat
                asked = follower.ask()
                await turns()
                for _ in range(2):
                    await node.housekeeping.snapshots.take()
                await append_each(node, "b")
                assert bodies((await soon(asked)).records()) == [b"b"]

    storage.run(scenario)


def test_a_follower_skips_what_is_trimmed_before_it_gets_there(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            async with session(node) as follower:
                assert (await follower.next()).is_heartbeat
                await append_each(node, "a", "b")
                await node.append(BASIN, STREAM, batch("c", trim(2)))
                found = await follower.next()
                assert seq_nums(found.records()) == [2, 3]
                await node.append(BASIN, STREAM, batch(trim(5)))  # takes itself along
                await append_each(node, "d")
                assert seq_nums((await follower.next()).records()) == [5]

    storage.run(scenario)


def test_a_read_creates_the_stream_that_it_follows_where_the_basin_says_so(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            config = BasinConfig(create_stream_on_read=True)
            await node.create_basin(CreateBasin(BASIN, config))
            async with session(node) as follower:
                assert (await follower.next()).is_heartbeat
                await append_each(node, "first")
                assert bodies((await follower.next()).records()) == [b"first"]

    storage.run(scenario)


# The end


async def end_by_deletion(node: Node, gated: GatedBucket) -> None:
    await node.delete_stream(BASIN, STREAM)


async def end_by_basin(node: Node, gated: GatedBucket) -> None:
    await node.delete_basin(BASIN)


async def end_by_closing(node: Node, gated: GatedBucket) -> None:
    await node.close()


async def end_by_takeover(node: Node, gated: GatedBucket) -> None:
    async with node_on(gated.inner):
        await eventually(lambda: node.state is NodeState.FENCED)


async def end_by_failure(node: Node, gated: GatedBucket) -> None:
    gated.shut = True
    other = asyncio.ensure_future(node.append("other-basin", "other", batch("x")))
    (key,) = await gated.until_held(1)
    gated.let(key, BucketRefused(key, "no"))
    gated.shut = False
    await asyncio.wait([other])
    await eventually(lambda: node.state is NodeState.SERVING)


ENDINGS = [end_by_deletion, end_by_basin, end_by_closing, end_by_takeover, end_by_failure]
QUICK = EngineSettings(epoch_poll_secs=0.02)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_followers_end_with_an_error_and_never_cleanly(
    storage: Storage, ending: Callable[[Node, GatedBucket], "asyncio.Future[None]"]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(node_on(gated, QUICK))
            await with_stream(node)
            await with_stream(node, "other-basin", "other")
            for _ in range(2):
                await node.append(BASIN, STREAM, batch(*["x"] * 800))
            at_tail = await stack.enter_async_context(session(node, make_request()))
            assert (await at_tail.next()).is_heartbeat
            live = at_tail.ask()
            with_deadline = await stack.enter_async_context(
                session(node, make_request(wait=600, count=9))
            )
            assert (await with_deadline.next()).is_heartbeat
            bounded = with_deadline.ask()
            in_history = await stack.enter_async_context(session(node))
            assert (await in_history.next()).records_count == 1000
            unary = asyncio.ensure_future(read_one(node, wait=60))
            await turns()
            await ending(node, gated)
            for waiting in (live, bounded, unary):
                with pytest.raises((Unavailable, StreamDeletionPending)):
                    await waiting
            with pytest.raises((Unavailable, StreamDeletionPending)):
                await in_history.next()

    storage.run(scenario)


@pytest.mark.parametrize(
    "ending", [end_by_closing, end_by_takeover, end_by_failure], ids=lambda ending: ending.__name__
)
def test_a_read_that_is_fetching_when_the_node_goes_down_ends_with_an_error(
    storage: Storage, ending: Callable[[Node, GatedBucket], "asyncio.Future[None]"]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        settings = msgspec.structs.replace(QUICK, tail_cache_bytes=0)
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            await with_stream(node, "other-basin", "other")
            await append_each(node, "a", "b")
            gated.reads_shut = True
            reads = [
                asyncio.ensure_future(read_one(node, seq_num=0)),
                asyncio.ensure_future(read_one(node, timestamp=0)),
            ]
            await eventually(lambda: gated.held_reads)
            await ending(node, gated)
            for read in reads:
                with pytest.raises(Unavailable):
                    await read

    storage.run(scenario)


def test_nothing_is_left_running_behind_a_closed_node(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        before = asyncio.all_tasks()
        async with node_on(bucket) as node:
            await with_stream(node)
            reading = asyncio.ensure_future(read_one(node, seq_num=0, wait=60))
            await turns()
        with pytest.raises(BournError):
            await reading
        assert asyncio.all_tasks() == before

    storage.run(scenario)


def test_what_comes_to_a_node_that_closes_is_answered(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            admitted = asyncio.ensure_future(node.append(BASIN, STREAM, batch("admitted")))
            await gated.until_held(1)
            closing = asyncio.ensure_future(node.close())
            await turns()
            late = asyncio.ensure_future(node.append(BASIN, STREAM, batch("late")))
            later = asyncio.ensure_future(appender.append(batch("later")))
            await turns()
            gated.open()
            assert (await soon(admitted)).end.seq_num == 1
            await soon(closing)
            last = asyncio.ensure_future(appender.append(batch("last")))
            outcomes = await soon(asyncio.gather(late, later, last, return_exceptions=True))
            assert isinstance(outcomes[0], ServerDraining)
            assert isinstance(outcomes[2], Unavailable)
        async with node_on(bucket) as node:
            found = bodies((await read_one(node, seq_num=0)).records())
            for text, outcome in zip((b"late", b"later"), outcomes, strict=False):
                assert isinstance(outcome, BournError) or text in found
            assert found[0] == b"admitted"
            assert b"last" not in found

    storage.run(scenario)
