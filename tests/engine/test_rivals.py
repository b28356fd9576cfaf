"""Two nodes on one bucket: what the older one does meanwhile, and what it may still say."""

from collections.abc import Awaitable, Callable

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.node import Node, NodeState
from bourn.errors import Fenced
from bourn.layout.keys import SNAPSHOT_PREFIX
from bourn.log.cursor import make_request
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.support import BASIN, STREAM, batch, node_on, read_all, run, with_stream

CALLS: dict[str, Callable[[Node], Awaitable[object]]] = {
    "list_basins": lambda node: node.list_basins(),
    "basin_config": lambda node: node.basin_config(BASIN),
    "list_streams": lambda node: node.list_streams(BASIN),
    "stream_config": lambda node: node.stream_config(BASIN, STREAM),
    "create_stream": lambda node: node.create_stream(BASIN, CreateStream(STREAM)),
    "delete_stream": lambda node: node.delete_stream(BASIN, "absent"),
    "check_tail": lambda node: node.check_tail(BASIN, STREAM),
    "read": lambda node: node.read(BASIN, STREAM, make_request(seq_num=0, count=1)),
    "append": lambda node: node.append(BASIN, STREAM, batch("c"), match_seq_num=2),
    "append to none": lambda node: node.append(BASIN, "absent", batch("c")),
    "appender": lambda node: node.appender(BASIN, STREAM),
}


class Interrupted(MemoryBucket):
    """Lets something happen before a snapshot is fetched the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if key.startswith(SNAPSHOT_PREFIX) and self.meanwhile:
            await self.meanwhile.pop()()
        return await super().get_range(key, start, length)


def test_a_snapshot_that_the_older_node_has_replaced_meanwhile_is_looked_for_again():
    async def scenario():
        bucket = Interrupted()
        settings = EngineSettings(snapshots_kept=1, collect_grace_secs=0.0)
        async with node_on(bucket, settings) as older:
            await with_stream(older)
            await older.append(BASIN, STREAM, batch("a"))
            await older.housekeeping.snapshots.take()
            await older.housekeeping.collect()
            assert older.housekeeping.collected, "else a start needs no snapshot"
            await older.append(BASIN, STREAM, batch("b"))

            bucket.meanwhile.append(older.housekeeping.snapshots.take)
            async with node_on(bucket, settings, seed=1) as newer:
                assert not bucket.meanwhile
                assert [record.body for record in await read_all(newer)] == [b"a", b"b"]

    run(scenario())


@pytest.mark.parametrize("call", CALLS)
def test_a_node_that_slept_through_a_takeover_tells_nothing_of_its_old_state(call):
    async def scenario():
        bucket = MemoryBucket()
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as sleeper:
            await with_stream(sleeper)
            await sleeper.append(BASIN, STREAM, batch("a"))
            async with node_on(bucket, seed=1) as newer:
                await newer.append(BASIN, STREAM, batch("b"))
                clock.advance(60)
                with pytest.raises(Fenced):
                    await CALLS[call](sleeper)
                assert sleeper.state is NodeState.FENCED

    run(scenario())
