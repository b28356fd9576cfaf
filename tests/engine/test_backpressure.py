"""Back-pressure: what is admitted and not durable is bounded, in bytes, in order, in commits."""

import asyncio

import pytest

from bourn.bucket.port import Bucket
from bourn.limits import COMMIT_SPLIT_BYTES, KIB, MIB
from bourn.settings import EngineSettings
from tests.engine.harness import (
    Storage,
    append_each,
    bodies,
    eventually,
    gated_node,
    read_one,
    seq_nums,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream

CAP = MIB
TIGHT = EngineSettings(append_inflight_bytes=CAP)


def numbered(i: int, size: int) -> bytes:
    return b"%d|" % i + b"x" * size


def test_bytes_in_flight_stay_below_the_cap_and_who_waits_is_served_in_order(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, TIGHT) as (gated, node):
            await with_stream(node)
            gated.shut = True
            room = node.term.room
            appends = [
                asyncio.ensure_future(
                    node.append(BASIN, STREAM, batch(numbered(i, 90_000 + 1000 * (i % 7))))
                )
                for i in range(40)
            ]
            served = 0
            while served < 40:
                await eventually(lambda: gated.held)
                await turns()
                assert room.bytes_taken <= CAP
                if not all(append.done() for append in appends[-10:]):
                    assert room.bytes_taken > CAP - 100_000 or not room.waiting
                for key in list(gated.held):
                    gated.let(key)
                await eventually(
                    lambda served=served: sum(a.done() for a in appends) > served  # type: ignore[misc]
                )
                done = [append.done() for append in appends]
                served = sum(done)
                assert done == sorted(done, reverse=True), "somebody was overtaken"
            assert room.bytes_taken == 0
            assert room.waiting == 0
            found = bodies(await read_all(node))
            assert [int(body.split(b"|")[0]) for body in found] == list(range(40))

    storage.run(scenario)


def test_a_session_waits_for_room_too(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, TIGHT) as (gated, node):
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            half = batch(b"x" * (CAP // 2 - 100))
            futures = []
            for _ in range(2):
                await soon(appender.room_for(half))
                futures.append(appender.submit(half))
            stopped = asyncio.ensure_future(appender.room_for(half))
            await gated.until_held(1)
            await turns()
            assert not stopped.done()
            gated.open()
            await soon(stopped)
            futures.append(appender.submit(half))
            assert [ack.start.seq_num for ack in await soon(asyncio.gather(*futures))] == [0, 1, 2]
            appender.close()

    storage.run(scenario)


def test_a_batch_larger_than_the_cap_is_admitted_alone(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, TIGHT) as (gated, node):
            await with_stream(node)
            large = batch(*[b"x" * 1040] * 1000)
            assert len(large.payload) > CAP
            small = asyncio.ensure_future(node.append(BASIN, STREAM, batch("small")))
            gated.shut = True
            await gated.until_held(1)
            alone = asyncio.ensure_future(node.append(BASIN, STREAM, large))
            behind = asyncio.ensure_future(node.append(BASIN, STREAM, batch("behind")))
            await turns()
            assert node.term.room.waiting == 2
            gated.let(next(iter(gated.held)))
            await soon(small)
            await gated.until_held(1)
            await turns()
            assert not behind.done()
            assert node.term.room.waiting == 1
            gated.open()
            assert (await soon(alone)).end.seq_num == 1001
            assert (await soon(behind)).end.seq_num == 1002
            assert node.term.room.bytes_taken == 0

    storage.run(scenario)


def test_appends_that_are_given_up_while_they_wait_leak_nothing(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, TIGHT) as (gated, node):
            await with_stream(node)
            gated.shut = True
            large = batch(b"x" * 400_000)
            appends = [asyncio.ensure_future(node.append(BASIN, STREAM, large)) for _ in range(12)]
            await gated.until_held(1)
            await turns()
            for append in appends[2::2]:
                append.cancel()
            await turns()
            gated.open()
            outcomes = await soon(asyncio.gather(*appends, return_exceptions=True))
            stored = sum(not isinstance(outcome, BaseException) for outcome in outcomes)
            assert stored == 7
            assert node.term.room.bytes_taken == 0
            assert node.term.room.waiting == 0
            tail = await node.check_tail(BASIN, STREAM)
            assert tail.seq_num == stored, "who was not admitted has left no trace"

    storage.run(scenario)


@pytest.mark.parametrize("split_bytes", [10_000, COMMIT_SPLIT_BYTES])
def test_no_commit_outgrows_the_split_by_more_than_a_batch_however_slow_the_bucket_is(
    storage: Storage, split_bytes: int
) -> None:
    settings = EngineSettings(commit_split_bytes=split_bytes, commits_in_flight=2)
    batch_bytes = split_bytes // 8

    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.sizes.clear()
            gated.shut = True
            appends = [
                asyncio.ensure_future(node.append(BASIN, STREAM, batch(numbered(i, batch_bytes))))
                for i in range(40)
            ]
            await gated.until_held(2)
            await turns(100)
            assert len(gated.held) == 2, "more puts in flight than allowed"
            gated.open()
            await soon(asyncio.gather(*appends))
            sizes = list(gated.sizes.values())
            assert len(sizes) >= 5
            assert max(sizes) <= split_bytes + batch_bytes + 4 * KIB
            assert seq_nums(await read_all(node)) == list(range(40))

    storage.run(scenario)


def test_a_flood_of_catalog_changes_is_split_too(memory: Storage) -> None:
    settings = EngineSettings(commit_split_bytes=4000, commits_in_flight=1)

    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.sizes.clear()
            gated.shut = True
            creates = [
                asyncio.ensure_future(node.ensure_stream(BASIN, f"{i}" * 50)) for i in range(100)
            ]
            await gated.until_held(1)
            await turns()
            gated.open()
            await soon(asyncio.gather(*creates))
            assert len(gated.sizes) > 3
            assert max(gated.sizes.values()) < 10_000

    memory.run(scenario)


def test_a_reader_is_not_held_up_by_appends_that_wait(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, TIGHT) as (gated, node):
            await with_stream(node)
            await append_each(node, "a")
            gated.shut = True
            large = batch(b"x" * 700_000)
            appends = [asyncio.ensure_future(node.append(BASIN, STREAM, large)) for _ in range(3)]
            await gated.until_held(1)
            assert bodies((await read_one(node, seq_num=0)).records()) == [b"a"]
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 1
            gated.open()
            await soon(asyncio.gather(*appends))

    storage.run(scenario)


def test_room_is_given_back_when_a_stream_is_not_found(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, TIGHT) as node:
            await with_stream(node)
            large = batch(b"x" * 900_000)
            outcomes = await asyncio.gather(
                *(node.append(BASIN, "absent", large) for _ in range(5)), return_exceptions=True
            )
            assert all(isinstance(outcome, Exception) for outcome in outcomes)
            assert node.term.room.bytes_taken == 0

    storage.run(scenario)
