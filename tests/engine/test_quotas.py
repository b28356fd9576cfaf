"""Quotas on a node: counted from the log, kept across starts, told when they are durable."""

import asyncio

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.engine.node import Node
from bourn.errors import QuotaExhausted
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import GatedBucket, eventually, soon, turns
from tests.support import BASIN, node_on, run

QUOTAS = EngineSettings(quota_basins=1, quota_streams_per_basin=2)


async def full(node: Node) -> None:
    await node.create_basin(CreateBasin(BASIN))
    for name in ("a", "b"):
        await node.create_stream(BASIN, CreateStream(name))


async def check_full(node: Node) -> None:
    with pytest.raises(QuotaExhausted):
        await node.create_basin(CreateBasin("another-basin"))
    with pytest.raises(QuotaExhausted):
        await node.create_stream(BASIN, CreateStream("c"))
    assert (await node.ensure_stream(BASIN, "a")).change is None


def test_what_was_there_before_a_start_counts() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, QUOTAS) as first:
            await full(first)
            async with node_on(bucket, QUOTAS) as second:
                await check_full(second)  # of the log
        async with node_on(bucket, QUOTAS) as third:
            await check_full(third)  # of the snapshot that the second took at its end
            await third.delete_stream(BASIN, "a")
            await eventually(lambda: third.term.find(BASIN, "a") is None)
            await third.create_stream(BASIN, CreateStream("c"))
            with pytest.raises(QuotaExhausted):
                await third.create_stream(BASIN, CreateStream("d"))

    run(scenario())


def test_a_lower_quota_takes_nothing_away_and_none_lets_everything_pass() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            for name in ("a", "b", "c"):
                await node.create_stream(BASIN, CreateStream(name))
        async with node_on(bucket, EngineSettings(quota_streams_per_basin=0)) as node:
            assert len((await node.list_streams(BASIN)).rows) == 3
            with pytest.raises(QuotaExhausted):
                await node.create_stream(BASIN, CreateStream("d"))
        async with node_on(bucket) as node:
            await node.create_stream(BASIN, CreateStream("d"))

    run(scenario())


def test_a_refusal_waits_until_what_it_rests_on_is_durable() -> None:
    async def scenario() -> None:
        bucket = GatedBucket(MemoryBucket())
        async with node_on(bucket, QUOTAS) as node:
            bucket.shut = True
            creating = asyncio.ensure_future(node.create_basin(CreateBasin(BASIN)))
            await bucket.until_held(1)
            refused = asyncio.ensure_future(node.create_basin(CreateBasin("another-basin")))
            await turns()
            assert not refused.done()
            bucket.open()
            await soon(creating)
            with pytest.raises(QuotaExhausted):
                await soon(refused)

    run(scenario())
