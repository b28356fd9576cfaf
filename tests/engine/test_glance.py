"""Reads out of memory give what any read gives, and know how long it holds."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.glance import Glance
from bourn.engine.node import Node
from bourn.errors import BournError
from bourn.log.cursor import make_request, unary
from bourn.model.config import Age, BasinConfig, Cipher, Infinite
from bourn.model.keys import CustomerKey
from bourn.model.patch import StreamPatch
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import append_each, gated_node, read_one, seq_nums, soon, trim
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

NOW_MS = 1_700_000_000_000
CALM = EngineSettings(housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9)


def glance(node: Node, **parameters: Any) -> Glance | None:
    return node.read_now(BASIN, STREAM, unary(make_request(**parameters)))


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
] + [{"tail_offset": offset, "count": 3} for offset in (0, 1, 4, 7, 99)]


def test_it_gives_what_a_read_gives_or_leaves_it_to_it() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a", "b", "c"))
            await append_each(node, "d", "e")
            await node.append(BASIN, STREAM, batch(trim(2), "f"))
            answered = 0
            for query in QUERIES:
                found = glance(node, **query)
                try:
                    expected = await read_one(node, **query)
                except BournError:
                    assert found is None
                    continue
                assert found is not None, query
                assert found.batch.records() == expected.records(), query
                assert found.batch.tail == expected.tail
                assert found.batch.metered_bytes == expected.metered_bytes
                answered += 1
            assert answered > len(QUERIES) // 2

    run(scenario())


@pytest.mark.parametrize("query", [{"timestamp": 0}, {"seq_num": 0, "count": 0}])
def test_what_takes_more_than_a_look_is_left_to_the_ordinary_read(query: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            assert glance(node, seq_num=0) is None  # no basin
            await with_stream(node)
            assert node.read_now(BASIN, "other", unary(make_request(seq_num=0))) is None
            await append_each(node, "a")
            assert glance(node, **query) is None

    run(scenario())


def test_what_is_not_in_memory_is_not_fetched() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, CALM) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
        async with node_on(bucket, CALM) as node:
            assert glance(node, seq_num=0) is None
            assert node.term.reader.fetches == 0
            await read_one(node, seq_num=0)
            assert seq_nums(seen(node, seq_num=0).batch.records()) == [0, 1]

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
