"""What stands for the catalog: the same mark, the same basins and streams; and what is as it is."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import (
    BasinDeletionPending,
    BasinNotFound,
    BournError,
    StreamDeletionPending,
    StreamNotFound,
)
from bourn.model.access import ALL, Op, Scope
from bourn.model.access_json import IssueToken
from bourn.model.config import Age, BasinConfig, DeleteOnEmpty, StreamConfig
from bourn.model.patch import BasinPatch, StreamPatch
from bourn.model.resource import CreateStream, EnsureBasin
from bourn.settings import EngineSettings
from tests.engine.harness import append_each, gated_node, read_one, soon
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

NOW_MS = 1_700_000_000_000
CALM = EngineSettings(housekeeping_secs=1e9, epoch_poll_secs=1e9, history_poll_secs=1e9)
BASINS = (BASIN, "other-basin")
NAMES = ("a", "b", "c")
FLEETING = StreamConfig(delete_on_empty=DeleteOnEmpty(60))
MAKING = EnsureBasin(BasinConfig(create_stream_on_append=True))


async def told(asked: Awaitable[Any]) -> Any:
    """What is answered, be it an error."""
    try:
        return await asked
    except BournError as error:
        return type(error)


async def catalog_of(node: Node) -> list[Any]:
    """All that lists and configs say."""
    found: list[Any] = [await node.list_basins()]
    for basin in BASINS:
        found += [await told(node.basin_config(basin)), await told(node.list_streams(basin))]
        found += [await told(node.stream_config(basin, name)) for name in NAMES]
    return found


class Steps:
    """Anything that happens to a node, by chance."""

    def __init__(self, node: Node, clock: ManualClock, rng: Random) -> None:
        self._node = node
        self._clock = clock
        self._rng = rng
        self._tokens = 0

    async def step(self) -> None:
        node, rng = self._node, self._rng
        basin, name, age = rng.choice(BASINS), rng.choice(NAMES), Age(rng.randint(1, 3))
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: node.ensure_basin(basin, MAKING),
            lambda: node.reconfigure_basin(basin, BasinPatch(create_stream_on_read=True)),
            lambda: node.create_stream(basin, CreateStream(name, FLEETING)),
            lambda: node.ensure_stream(basin, name, StreamConfig(retention_policy=age)),
            lambda: node.reconfigure_stream(basin, name, StreamPatch(retention_policy=age)),
            lambda: node.append(basin, name, batch("x")),
            lambda: node.check_tail(basin, name),
            lambda: node.delete_stream(basin, name),
            self._token,
            self._later,
            node.housekeeping.snapshots.take,
            node.housekeeping.flush_usage,
            node.housekeeping.purge,
        ]
        if not rng.randrange(8):
            steps = [lambda: node.delete_basin(basin)]
        try:
            await rng.choice(steps)()
        except BournError:
            return

    async def _token(self) -> None:
        self._tokens += 1
        scope = Scope(basins=ALL, ops=(Op.LIST_BASINS,))
        digest = self._tokens.to_bytes(32, "little")
        await self._node.issue_token(IssueToken(f"t-{self._tokens}", scope), digest)

    async def _later(self) -> None:
        self._clock.set_wall(self._clock.now_ms() + self._rng.choice([1, 1000, 100_000]))
        self._node.housekeeping.expire()


@pytest.mark.parametrize("seed", range(6))
def test_the_same_mark_stands_for_the_same_catalog(seed: int) -> None:
    async def scenario() -> None:
        rng, clock = Random(seed), ManualClock(NOW_MS)
        bucket, marked, kept = MemoryBucket(), dict[Any, list[Any]](), 0
        for _ in range(3):
            async with node_on(bucket, CALM, clock=clock) as node:
                steps = Steps(node, clock, rng)
                for _ in range(60):
                    await steps.step()
                    mark = node.catalog_now()
                    catalog = await catalog_of(node)
                    if mark is not None and node.catalog_now() == mark:
                        kept += mark in marked
                        assert marked.setdefault(mark, catalog) == catalog
        assert kept > 20
        assert len(marked) > 20

    run(scenario())


def test_reads_and_appends_leave_the_mark_and_every_change_moves_it() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            await with_stream(node)
            mark = node.catalog_now()
            assert mark is not None
            await append_each(node, "a", "b")
            await read_one(node, seq_num=0)
            await node.ensure_stream(BASIN, STREAM)
            await node.housekeeping.snapshots.take()
            assert node.catalog_now() == mark
            await node.create_stream(BASIN, CreateStream("more"))
            assert node.catalog_now() not in {None, mark}

    run(scenario())


def test_a_change_has_a_mark_when_it_is_durable_and_a_new_term_has_another() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with gated_node(bucket, CALM) as (gated, node):
            await with_stream(node)
            mark = node.catalog_now()
            gated.shut = True
            creating = asyncio.ensure_future(node.create_stream(BASIN, CreateStream("more")))
            await gated.until_held(1)
            assert node.catalog_now() is None
            assert node.basin_config_now(BASIN) is None
            assert node.ensured_now(BASIN, STREAM, StreamConfig()) is None
            gated.open()
            await soon(creating)
            assert node.catalog_now() not in {None, mark}
        async with node_on(bucket, CALM) as node:
            first = node.catalog_now()
        async with node_on(bucket, CALM) as node:
            assert node.catalog_now() not in {None, mark, first}

    run(scenario())


def test_a_node_that_may_not_lead_any_more_has_no_mark() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(settings=EngineSettings(epoch_poll_secs=2.0), clock=clock) as node:
            await with_stream(node)
            assert node.catalog_now() is not None
            clock._elapsed += 100.0  # it was stopped, and has not looked since
            assert node.catalog_now() is None
            assert node.basin_config_now(BASIN) is None
            assert node.ensured_now(BASIN, STREAM, StreamConfig()) is None

    run(scenario())


def test_a_stream_that_is_as_it_should_be_is_told_at_once_and_nothing_is_ever_done() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            await with_stream(node)
            short = StreamConfig(retention_policy=Age(60))
            mark = node.catalog_now()
            found = node.ensured_now(BASIN, STREAM, StreamConfig())
            assert found == (await node.ensure_stream(BASIN, STREAM)).row
            assert node.ensured_now(BASIN, STREAM, short) is None
            assert node.ensured_now(BASIN, "more", StreamConfig()) is None
            with pytest.raises(BasinNotFound):
                node.ensured_now("other-basin", STREAM, StreamConfig())
            assert node.catalog_now() == mark
            await node.reconfigure_basin(
                BASIN, BasinPatch(default_stream_config=StreamPatch(retention_policy=Age(60)))
            )
            assert node.ensured_now(BASIN, STREAM, StreamConfig()) is None  # it has another default
            await node.ensure_stream(BASIN, STREAM)
            assert node.ensured_now(BASIN, STREAM, StreamConfig()) is not None
            await node.delete_stream(BASIN, STREAM)
            with pytest.raises(StreamDeletionPending):
                node.ensured_now(BASIN, STREAM, StreamConfig())
            await node.delete_basin(BASIN)
            with pytest.raises(BasinDeletionPending):
                node.ensured_now(BASIN, STREAM, StreamConfig())

    run(scenario())


def test_the_config_of_a_basin_is_told_as_long_as_it_is_there() -> None:
    async def scenario() -> None:
        async with node_on(settings=CALM) as node:
            with pytest.raises(BasinNotFound):
                node.basin_config_now(BASIN)
            await with_stream(node)
            assert node.basin_config_now(BASIN) == await node.basin_config(BASIN)
            await node.reconfigure_basin(BASIN, BasinPatch(create_stream_on_read=True))
            assert node.basin_config_now(BASIN) == BasinConfig(create_stream_on_read=True)
            await node.delete_basin(BASIN)
            await node.housekeeping.purge()
            with pytest.raises(BasinNotFound):
                node.basin_config_now(BASIN)
            with pytest.raises(StreamNotFound):
                node.config_now(BASIN, STREAM)

    run(scenario())
