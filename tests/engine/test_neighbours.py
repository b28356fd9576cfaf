"""Records that came one by one are read together out of memory, as they would be one by one."""

import asyncio
import base64
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.batch import ReadBatch
from bourn.engine.committer import PIPELINE_BYTES
from bourn.engine.node import Node
from bourn.engine.tail_cache import COMMIT_OBJECT_BYTES
from bourn.errors import Damaged
from bourn.layout.keys import WAL_PREFIX
from bourn.limits import (
    MIB,
    READ_JOINED_RUNS_MIN,
    READ_NEAR_RUNS_MAX,
    READ_TOGETHER_BYTES_MAX,
)
from bourn.log.cursor import Cursor, make_request, unary
from bourn.model.config import Age, BasinConfig, Cipher, Infinite
from bourn.model.keys import CustomerKey
from bourn.model.patch import StreamPatch
from bourn.model.record import Record, SequencedRecord
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    append_each,
    bodies,
    gated_node,
    keys_of,
    read_one,
    seq_nums,
    session,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, run, with_stream

NOW_MS = 1_700_000_000_000
MANY = 300
OTHER = "other"
CALM = EngineSettings(housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9)
NO_TAIL = EngineSettings(tail_cache_bytes=0)


class Far(MemoryBucket):
    """One that has to be waited for: only what the node has in memory is at hand."""


def sizes(found: ReadBatch) -> list[int]:
    """How many records each slice has."""
    return [stop - start for _, start, stop in found.slices]


async def append(node: Node, *records: Record | str | bytes) -> None:
    await node.append(BASIN, STREAM, batch(*records))


async def fill(node: Node, count: int = MANY, first: int = 0) -> None:
    """Single records, each in a commit that another stream has records in, or had before."""
    if not first:
        await with_stream(node)
        await node.create_stream(BASIN, CreateStream(OTHER))
    for number in range(first, first + count):
        other = node.append(BASIN, OTHER, batch(f"other {number}", "x"))
        if number % 3:
            await asyncio.gather(other, append(node, f"{number}"))
        else:
            await other
            await append(node, f"{number}")


async def keep_for(node: Node, secs: int | None) -> None:
    policy = Infinite() if secs is None else Age(secs)
    await node.reconfigure_stream(BASIN, STREAM, StreamPatch(retention_policy=policy))


def texts(*ranges: range) -> list[bytes]:
    return [b"%d" % number for numbers in ranges for number in numbers]


async def batches_of(node: Node, **query: Any) -> list[ReadBatch]:
    async with session(node, make_request(**query)) as reader:
        return await reader.rest()


def test_single_records_are_one_slice_from_any_position() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await fill(node)
            for start in range(0, MANY, 7):
                hits = node.term.reader.hits
                found = await read_one(node, seq_num=start)
                left = MANY - start
                if left >= READ_JOINED_RUNS_MIN:
                    assert sizes(found) == [left]
                assert bodies(found.records()) == texts(range(start, MANY))
                assert node.term.reader.hits == hits + left
                at_once = node.read_now(BASIN, STREAM, unary(make_request(seq_num=start)))
                assert at_once is not None
                assert sizes(at_once.batch) == sizes(found)
                assert at_once.batch.records() == found.records()
            assert node.term.reader.fetches == 0
            others = await read_all(node, stream=OTHER)
            assert bodies(others)[::2] == [b"other %d" % number for number in range(MANY)]

    run(scenario())


def test_few_are_taken_one_by_one() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await fill(node, 20)
            few = READ_JOINED_RUNS_MIN - 1
            assert sizes(await read_one(node, seq_num=0, count=few)) == [1] * few
            assert sizes(await read_one(node, seq_num=0, count=few + 1)) == [few + 1]
            assert sizes(await read_one(node, tail_offset=few)) == [1] * few
            assert sizes(await read_one(node, tail_offset=few + 1)) == [few + 1]

    run(scenario())


def test_more_than_a_batch_may_have_are_read_a_thousand_at_a_time() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await with_stream(node)
            await append_each(node, *(f"{number}" for number in range(1100)))
            batches = await batches_of(node, seq_num=50, wait=0)
            assert [sizes(found) for found in batches] == [[1000], [50]]
            records = [record for found in batches for record in found.records()]
            assert bodies(records) == texts(range(50, 1100))

    run(scenario())


def test_a_mebibyte_ends_a_batch_and_large_runs_stay_alone() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await with_stream(node)
            small, large = b"s" * 9_992, b"l" * READ_TOGETHER_BYTES_MAX
            for body in [small] * 120 + [large] + [small] * 10:
                await append(node, body)
            first, second = await batches_of(node, seq_num=0, wait=0)
            fit = MIB // 10_000
            assert (sizes(first), first.metered_bytes) == ([fit], fit * 10_000)
            assert sizes(second) == [120 - fit, 1, 10]
            assert sizes(await read_one(node, seq_num=0, bytes=49_999)) == [4]
            assert sizes(await read_one(node, seq_num=0, bytes=50_000)) == [5]

    run(scenario())


def test_what_is_trimmed_is_not_joined() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await fill(node)
            await append(node, trim(200))
            found = await read_one(node, seq_num=0)
            assert seq_nums(found.records()) == list(range(200, MANY + 1))
            assert sizes(found) == [MANY + 1 - 200]
            assert found.slices[0].entry.has_commands

    run(scenario())


def test_what_was_seen_holds_until_the_first_of_its_records_expires() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 10)
            for number in range(20):
                clock.set_wall(NOW_MS + 100 * number)
                await append(node, f"{number}")
            for start, limit in ((0, 20), (4, 20), (0, 8)):
                request = unary(make_request(seq_num=start, count=limit))
                found = node.read_now(BASIN, STREAM, request)
                assert found is not None
                assert len(found.batch.slices) == 1
                assert found.sight().until_ms == NOW_MS + 100 * start + 10_000

    run(scenario())


@pytest.mark.parametrize("kind", [Far, MemoryBucket])
def test_what_the_memory_has_let_go_of_is_fetched_and_the_rest_joined(
    kind: type[MemoryBucket],
) -> None:
    async def scenario() -> None:
        async with node_on(kind()) as node:
            await fill(node, 200)
            held_bytes = node.term.tail_cache.bytes_held
        small = EngineSettings(tail_cache_bytes=held_bytes // 2 + COMMIT_OBJECT_BYTES)
        async with node_on(kind(), small) as node:
            await fill(node, 200)
            cache = node.term.tail_cache
            newer = sum(row.commit in cache for row in stream_of(node).runs)
            assert 2 * READ_NEAR_RUNS_MAX > 200 - newer > READ_NEAR_RUNS_MAX
            for start in (0, 50, 200 - newer - 1, 200 - newer, 200 - newer + 1, 190):
                found = await read_one(node, seq_num=start)
                assert bodies(found.records()) == texts(range(start, 200))
                older, rest = max(0, 200 - newer - start), min(newer, 200 - start)
                if kind is Far:
                    assert sizes(found) == [1] * older + [rest]
                elif older > READ_NEAR_RUNS_MAX:
                    assert sizes(found) == [READ_NEAR_RUNS_MAX, 200 - start - READ_NEAR_RUNS_MAX]
                else:
                    assert sizes(found) == [older + rest]
            assert len(await read_all(node)) == 200

    run(scenario())


def test_the_next_node_joins_what_it_has_committed_itself() -> None:
    async def scenario() -> None:
        bucket = Far()
        async with node_on(bucket) as node:
            await fill(node, 30)
        async with node_on(bucket) as node:
            await fill(node, 20, first=30)
            found = await read_one(node, seq_num=0)
            assert bodies(found.records()) == texts(range(50))
            assert sizes(found) == [1] * 30 + [20]

    run(scenario())


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_is_near_and_damaged_ends_what_is_joined_and_is_named(is_gone: bool) -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, NO_TAIL) as node:
            await with_stream(node)
            await append_each(node, *(f"<{number}>" for number in range(40)))
            assert sizes(await read_one(node, seq_num=0)) == [40]
            (key,) = [
                key for key in await keys_of(bucket, WAL_PREFIX) if b"<20>" in await bucket.get(key)
            ]
            if is_gone:
                await bucket.delete(key)
            else:
                await bucket.put(key, (await bucket.get(key)).replace(b"<20>", b"<21>"))
            found = await read_one(node, seq_num=0)
            assert seq_nums(found.records()) == list(range(20))
            with pytest.raises(Damaged, match=key):
                await read_one(node, seq_num=20)
            behind = await read_one(node, seq_num=21)
            assert seq_nums(behind.records()) == list(range(21, 40))

    run(scenario())


def test_encrypted_streams_are_not_joined() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            config = BasinConfig(stream_cipher=Cipher.AEGIS_256)
            await node.create_basin(CreateBasin(BASIN, config=config))
            await node.create_stream(BASIN, CreateStream(STREAM))
            key = CustomerKey(base64.b64encode(bytes(32)).decode())
            for number in range(20):
                sealer = await node.sealer(BASIN, STREAM, key)
                assert sealer is not None
                await node.append(BASIN, STREAM, sealer.seal(batch(f"{number}")))
            stored = await node.term.reader.collect(stream_of(node), Cursor(0))
            assert sizes(stored.batch) == [1] * 20
            opened = await node.read(BASIN, STREAM, make_request(seq_num=0), None, key)
            assert bodies(opened.records()) == texts(range(20))

    run(scenario())


def test_a_follower_gets_all_at_once_and_then_goes_on_live() -> None:
    async def scenario() -> None:
        async with node_on() as node:
            await fill(node)
            async with session(node, from_start()) as follower:
                first = await follower.next()
                assert sizes(first) == [MANY]
                assert bodies(first.records()) == texts(range(MANY))
                caught_up = first if first.tail is not None else await follower.next()
                assert caught_up.tail is not None
                assert caught_up.tail.seq_num == MANY
                for number in range(MANY, MANY + 5):
                    ask = follower.ask()
                    await turns()
                    await append(node, f"{number}")
                    assert bodies((await soon(ask)).records()) == texts(range(number, number + 1))
                await fill(node, 30, first=MANY + 5)  # it falls behind
                seen: list[SequencedRecord] = []
                while len(seen) < 30:
                    seen += (await follower.next()).records()
                assert bodies(seen) == texts(range(MANY + 5, MANY + 35))

    run(scenario())


def test_what_is_not_durable_is_never_in_it() -> None:
    async def scenario() -> None:
        async with gated_node(MemoryBucket(), CALM) as (gated, node):
            await fill(node, 20)
            gated.shut = True
            appending: list[asyncio.Future[Any]] = [asyncio.ensure_future(append(node, "20"))]
            await gated.until_held(1)
            appending.append(asyncio.ensure_future(append(node, "21")))
            large = node.append(BASIN, OTHER, batch(b"x" * PIPELINE_BYTES))
            appending.append(asyncio.ensure_future(large))  # so that the next commit goes
            first, second = await gated.until_held(2)

            async def see(count: int) -> None:
                found = await read_one(node, seq_num=0)
                assert bodies(found.records()) == texts(range(count))
                assert sizes(found) == [count]
                at_once = node.read_now(BASIN, STREAM, unary(make_request(seq_num=0)))
                assert at_once is not None
                assert at_once.batch.records() == found.records()

            await see(20)
            gated.let(second)  # durable itself, behind what is not
            await turns()
            await see(20)
            gated.let(first)
            await soon(asyncio.gather(*appending))
            await see(22)

    run(scenario())
