"""Reads out of memory give what any read gives, and know how long it holds."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.glance import Glance
from bourn.engine.node import Node
from bourn.engine.room import room_of
from bourn.errors import (
    BasinNotFound,
    Damaged,
    SeqNumMismatch,
    StreamDeletionPending,
    StreamNotFound,
    Unwritten,
)
from bourn.limits import READ_NEAR_RUNS_MAX, READ_TOGETHER_BYTES_MAX
from bourn.log.cursor import make_request, unary
from bourn.model.config import Age, BasinConfig, Cipher, Infinite, ResolvedStreamConfig
from bourn.model.keys import CustomerKey
from bourn.model.patch import StreamPatch
from bourn.model.record import AppendAck, StreamPosition
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import append_each, gated_node, read_one, seq_nums, soon, trim
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

NOW_MS = 1_700_000_000_000
CALM = EngineSettings(housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9)


def glance(node: Node, **parameters: Any) -> Glance | None:
    return node.read_now(BASIN, STREAM, unary(make_request(**(parameters or {"seq_num": 0}))))


def tail_of(node: Node) -> StreamPosition | None:
    return node.tail_now(BASIN, STREAM)


def config_of(node: Node) -> ResolvedStreamConfig | None:
    return node.config_now(BASIN, STREAM)


def seen(node: Node, **parameters: Any) -> Glance:
    found = glance(node, **parameters)
    assert found is not None
    return found


def holds(node: Node, found: Glance) -> bool:
    return node.still_holds(found.sight(), BASIN, STREAM)


async def keep_for(node: Node, secs: int | None) -> None:
    policy = Infinite() if secs is None else Age(secs)
    await node.reconfigure_stream(BASIN, STREAM, StreamPatch(retention_policy=policy))


QUERIES: list[dict[str, Any]] = [
    {"seq_num": start} | limits
    for start in range(9)
    for limits in ({}, {"count": 2}, {"bytes": 20}, {"until": NOW_MS}, {"count": 9, "bytes": 30})
]
QUERIES += [{"tail_offset": offset, "count": 3} for offset in (0, 1, 4, 7, 99)]
QUERIES += [
    {"timestamp": NOW_MS + at} | limits
    for at in (-NOW_MS, -1, 0, 1, 2, 3, 99)
    for limits in ({}, {"count": 2}, {"bytes": 9}, {"until": NOW_MS + 2}, {"clamp": True})
    if NOW_MS + at < limits.get("until", NOW_MS + at + 1)
]
QUERIES += [{"seq_num": 0, "count": 0}, {"timestamp": 0, "bytes": 0}, {"seq_num": 1, "wait": 9}]
QUERIES += [{"seq_num": 0, "bytes": 1, "wait": 9}]


def test_it_gives_what_a_read_gives() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a", "b", "c"))
            for text in "de":
                clock.set_wall(clock.now_ms() + 1)
                await append_each(node, text)
            await node.append(BASIN, STREAM, batch(trim(2), "f"))
            answered = 0
            for query in QUERIES:
                try:
                    expected = await read_one(node, **query)
                except Unwritten:
                    with pytest.raises(Unwritten):
                        glance(node, **query)
                    continue
                found = seen(node, **query)
                assert found.batch.records() == expected.records(), query
                assert found.batch.tail == expected.tail
                assert found.batch.metered_bytes == expected.metered_bytes
                answered += 1
            assert answered > len(QUERIES) // 2
            assert glance(node, seq_num=99, clamp=True, wait=9) is None

    run(scenario())


def test_what_is_wrong_is_said_at_once_where_it_is_sure() -> None:
    async def scenario() -> None:
        async with gated_node(MemoryBucket(), CALM) as (gated, node):
            with pytest.raises(BasinNotFound):
                glance(node)
            with pytest.raises(BasinNotFound):
                tail_of(node)
            with pytest.raises(StreamNotFound):
                config_of(node)
            await with_stream(node)
            await node.delete_stream(BASIN, STREAM)
            await node.create_stream(BASIN, CreateStream("other"))
            for ask in (glance, tail_of, config_of):
                with pytest.raises(StreamDeletionPending):
                    ask(node)
            gated.shut = True
            deleting = asyncio.ensure_future(node.delete_stream(BASIN, "other"))
            await gated.until_held(1)
            for ask in (glance, tail_of, config_of):
                assert ask(node) is None  # what was deleted may be there again
            gated.open()
            await soon(deleting)

    run(scenario())


def test_a_stream_that_is_made_by_a_read_is_not_made_at_once() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            config = BasinConfig(create_stream_on_read=True)
            await node.create_basin(CreateBasin(BASIN, config=config))
            assert glance(node) is None
            assert tail_of(node) is None
            with pytest.raises(StreamNotFound):
                config_of(node)
            assert node.term.find(BASIN, STREAM) is None

    run(scenario())


def test_tail_and_config_are_those_that_are_durable() -> None:
    async def scenario() -> None:
        async with gated_node(MemoryBucket(), CALM) as (gated, node):
            await with_stream(node)
            await append_each(node, "a")
            before = await node.stream_config(BASIN, STREAM)
            gated.shut = True
            appending = asyncio.ensure_future(append_each(node, "b"))
            await gated.until_held(1)
            found = tail_of(node)
            assert found is not None
            assert found.seq_num == 1
            assert config_of(node) == before
            changing = asyncio.ensure_future(keep_for(node, 10))
            while node.term.last_change < node.term.committer.durable_ordinal:
                await node._clock.sleep(0)
            assert config_of(node) is None
            gated.open()
            await soon(appending)
            await soon(changing)
            assert tail_of(node) == await node.check_tail(BASIN, STREAM)
            assert config_of(node) == await node.stream_config(BASIN, STREAM)
            assert config_of(node) != before

    run(scenario())


def test_an_append_is_refused_at_once_where_all_is_durable() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        settings = EngineSettings(epoch_poll_secs=2.0)
        async with node_on(settings=settings, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            refused = submit(node, 7)
            assert isinstance(node.refusal_now(refused), SeqNumMismatch)
            appending = submit(node, 1)
            refused = submit(node, 1)
            assert node.refusal_now(appending) is None
            assert node.refusal_now(refused) is None  # the state that it rests on may be lost
            await appending
            assert node.refusal_now(appending) is None
            await asyncio.wait({refused})
            assert isinstance(node.refusal_now(refused), SeqNumMismatch)
            clock._elapsed += 100.0
            assert node.refusal_now(refused) is None

    run(scenario())


def submit(node: Node, match_seq_num: int) -> asyncio.Future[AppendAck]:
    stream, wanted = node.term.find(BASIN, STREAM), batch("x")
    assert stream is not None
    assert node.term.room.try_take(room_of(wanted.payload))
    return node.term.submit(stream, wanted, match_seq_num, None)


class Far(MemoryBucket):
    """One that has to be waited for."""


@asynccontextmanager
async def started_again(bucket: MemoryBucket, *texts: str) -> AsyncIterator[Node]:
    """A node that has nothing in memory of what another one has appended."""
    async with node_on(bucket, CALM) as node:
        await with_stream(node)
        await append_each(node, *texts)
    async with node_on(bucket, CALM) as node:
        yield node


def test_what_has_to_be_waited_for_is_not_fetched() -> None:
    async def scenario() -> None:
        bucket = Far()
        async with started_again(bucket, "a", "b") as node:
            assert glance(node, seq_num=0) is None
            assert glance(node, timestamp=0) is None
            assert node.term.reader.fetches == 0
            await read_one(node, seq_num=0)
            assert seq_nums(seen(node, seq_num=0).batch.records()) == [0, 1]

    run(scenario())


def test_what_is_near_is_fetched_at_once_and_kept() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with started_again(bucket, "a", "b") as node:
            reader = node.term.reader
            assert seq_nums(seen(node, timestamp=0).batch.records()) == [0, 1]
            fetches = reader.fetches
            assert fetches > 0
            assert seen(node).batch.records() == (await read_one(node, seq_num=0)).records()
            assert reader.fetches == fetches

    run(scenario())


def test_a_read_at_once_fetches_no_more_than_others_can_wait_for() -> None:
    async def scenario() -> None:
        bucket, texts = MemoryBucket(), ["a" * READ_TOGETHER_BYTES_MAX] * 40
        async with started_again(bucket, *texts) as node:  # each a commit of its own
            assert glance(node, seq_num=0) is None
            once = node.term.reader.fetches
            assert 0 < once < len(texts)
            while glance(node, seq_num=0) is None:  # the rest by the next ones
                assert once < node.term.reader.fetches < len(texts)
            assert len(seen(node, seq_num=0).batch.records()) == len(texts)

    run(scenario())


def test_a_read_at_once_of_small_runs_is_all_or_nothing() -> None:
    async def scenario() -> None:
        most = READ_NEAR_RUNS_MAX
        async with started_again(MemoryBucket(), *["a"] * (most + 1)) as node:
            assert glance(node, seq_num=0) is None
            assert node.term.reader.fetches == 0
            assert len(seen(node, seq_num=1).batch.records()) == most
            assert node.term.reader.fetches == most
            assert (await read_one(node, seq_num=0)).records_count == most + 1

    run(scenario())


def test_what_is_near_and_damaged_is_left_to_who_tells() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with started_again(bucket, "a", "b") as node:
            for key in [info.key async for info in bucket.list("wal/")]:
                data = await bucket.get(key)
                await bucket.put(key, data.replace(b"a", b"z"))
            assert glance(node, seq_num=0) is None
            with pytest.raises(Damaged):
                await read_one(node, seq_num=0)
            assert glance(node, seq_num=0) is None

    run(scenario())


def test_a_stream_that_is_not_durable_yet_is_not_seen() -> None:
    async def scenario() -> None:
        async with gated_node(MemoryBucket(), CALM) as (gated, node):
            await node.create_basin(CreateBasin(BASIN))
            gated.shut = True
            creating = asyncio.ensure_future(node.create_stream(BASIN, CreateStream(STREAM)))
            await gated.until_held(1)
            assert node.term.find(BASIN, STREAM) is not None
            assert glance(node, tail_offset=0, clamp=True) is None
            assert glance(node, seq_num=0, count=0) is None
            assert tail_of(node) is None
            assert config_of(node) is None
            gated.open()
            await soon(creating)

    run(scenario())


def test_encrypted_streams_are_not_seen() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            config = BasinConfig(stream_cipher=Cipher.AEGIS_256)
            await node.create_basin(CreateBasin(BASIN, config=config))
            await node.create_stream(BASIN, CreateStream(STREAM))
            key = CustomerKey(base64.b64encode(bytes(32)).decode())
            sealer = await node.sealer(BASIN, STREAM, key)
            assert sealer is not None
            await node.append(BASIN, STREAM, sealer.seal(batch("secret")))
            assert glance(node, seq_num=0) is None
            assert tail_of(node) == await node.check_tail(BASIN, STREAM)

    run(scenario())


def test_a_node_that_may_not_lead_any_more_says_nothing() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=EngineSettings(epoch_poll_secs=2.0), clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            found = seen(node, seq_num=0)
            assert holds(node, found)
            clock._elapsed += 100.0  # it was stopped, and has not looked since
            assert not holds(node, found)
            assert glance(node, seq_num=0) is None
            assert glance(node, seq_num=9) is None
            assert tail_of(node) is None
            assert config_of(node) is None

    run(scenario())


async def _append(node: Node) -> None:
    await append_each(node, "more")


async def _trim(node: Node) -> None:
    await node.append(BASIN, STREAM, batch(trim(1)))


async def _delete(node: Node) -> None:
    await node.delete_stream(BASIN, STREAM)


async def _close(node: Node) -> None:
    await node.close()


@pytest.mark.parametrize("change", [_append, _trim, _delete, _close])
def test_an_answer_holds_until_its_stream_changes(
    change: Callable[[Node], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            found = seen(node, seq_num=0)
            assert holds(node, found)
            await append_each(node, "elsewhere", stream=await other_stream(node))
            assert holds(node, found)
            await change(node)
            assert not holds(node, found)

    run(scenario())


async def other_stream(node: Node) -> str:
    await node.create_stream(BASIN, CreateStream("other"))
    return "other"


def test_an_answer_of_a_stream_is_none_of_the_next_of_its_name() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            found = seen(node, seq_num=0)
            await node.delete_stream(BASIN, STREAM)
            await node.housekeeping.purge()
            await node.create_stream(BASIN, CreateStream(STREAM))
            await append_each(node, "b")
            assert not holds(node, found)
            assert [r.body for r in seen(node, seq_num=0).batch.records()] == [b"b"]

    run(scenario())


def test_an_answer_holds_until_a_record_of_it_expires_and_not_before_it_was_given() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 20)
            await append_each(node, "a")
            await keep_for(node, 10)
            await append_each(node, "b")
            await keep_for(node, None)
            await append_each(node, "c")
            found = seen(node, seq_num=0)
            clock.set_wall(NOW_MS + 9_999)
            assert holds(node, found)
            clock.set_wall(NOW_MS + 10_000)
            assert not holds(node, found)
            assert seq_nums(seen(node, seq_num=0).batch.records()) == [0, 2]
            less = seen(node, seq_num=1)
            assert seq_nums(less.batch.records()) == [2]
            clock.set_wall(NOW_MS + 9_000)  # as NTP does
            assert not holds(node, less)
            assert seq_nums(seen(node, seq_num=1).batch.records()) == [1, 2]

    run(scenario())


@pytest.mark.parametrize("start", [{"seq_num": 0}, {"timestamp": 0}])
def test_an_answer_holds_until_what_did_not_fit_expires(start: dict[str, Any]) -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 10)
            await append_each(node, "a" * 100)
            await keep_for(node, None)
            await append_each(node, "b")
            found = seen(node, **start, bytes=50)
            assert found.batch.records() == []
            clock.set_wall(NOW_MS + 9_999)
            assert holds(node, found)
            clock.set_wall(NOW_MS + 10_000)
            assert not holds(node, found)
            assert seq_nums(seen(node, **start, bytes=50).batch.records()) == [1]

    run(scenario())


def test_a_start_by_time_steps_over_what_has_expired() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=CALM, clock=clock) as node:
            await with_stream(node)
            await keep_for(node, 10)
            await append_each(node, "a", "b")
            await keep_for(node, None)
            await append_each(node, "c")
            for at_ms in (0, 9_999, 10_000, 11_000):
                clock.set_wall(NOW_MS + at_ms)
                expected = await read_one(node, timestamp=NOW_MS)
                assert seen(node, timestamp=NOW_MS).batch.records() == expected.records()

    run(scenario())
