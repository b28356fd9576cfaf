"""A node that tiers against one that never does: every read gives the same bytes, whatever happens.

Both are told the same appends, trims, deletions and times. Only one of them has a pipeline, whose
files are merged, rid of what nobody sees, and cleaned away; and only that one is restarted, killed
and taken over, snapshots its state and deletes its log.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine import row_groups
from bourn.engine.node import Node
from bourn.engine.stream import Stream
from bourn.errors import BournError
from bourn.log.cursor import make_request
from bourn.model.config import Age, RetentionPolicy, StreamConfig
from bourn.model.patch import StreamPatch
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings, PipelineSettings
from tests.engine.harness import crash, trim
from tests.engine.tiering import Keeps, Pipeline, adopt
from tests.pipeline.harness import merge_on, quiet, retain_on
from tests.support import BASIN, batch, run

STREAMS = ("a", "b", "c", "d")
JOBS = PipelineSettings(merge_files=2, grace_secs=3, retain_secs=0)
NEVER_ALONE = EngineSettings(  # whatever a node does by itself is told to it, one by one
    epoch_poll_secs=1e9,
    history_poll_secs=1e9,
    housekeeping_secs=1e9,
    put_attempt_secs=1e9,
    collect_grace_secs=5,
    snapshots_kept=1,
    tail_cache_bytes=2000,
    read_cache_bytes=3000,
    encoded_cache_bytes=2000,
)


class World:
    """The two nodes, their common time, and the pipeline of one."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = MemoryBucket()
        self.plain_bucket = MemoryBucket()
        self.pipeline = Pipeline(self.bucket, self.clock, random.Random(seed + 1))
        self.node: Node
        self.plain: Node
        self.reads = 0
        self.from_history = 0

    async def begin(self) -> None:
        self.node = await self.opened(self.bucket)
        self.plain = await self.opened(self.plain_bucket)
        for node in (self.node, self.plain):
            await node.create_basin(CreateBasin(BASIN))
            for name in STREAMS:
                await node.create_stream(BASIN, CreateStream(name))

    async def opened(self, bucket: MemoryBucket) -> Node:
        rng = random.Random(self.rng.getrandbits(32))
        return await Node.open(bucket, NEVER_ALONE, clock=self.clock, rng=rng)

    async def end(self) -> None:
        await self.node.close()
        await self.plain.close()

    async def both(self, work: Callable[[Node], Awaitable[Any]]) -> None:
        """Tell both the same; both must answer the same."""
        answers = []
        for node in (self.node, self.plain):
            try:
                answers.append(repr(await work(node)))
            except BournError as error:
                answers.append(repr(error))
        assert answers[0] == answers[1]

    # What clients do

    async def append(self) -> None:
        rng = self.rng
        name = rng.choice(STREAMS)
        records = [
            Record(
                rng.randbytes(rng.choice([0, 1, 20, 200])),
                ((b"h", rng.randbytes(3)),) if rng.random() < 0.3 else (),
                rng.randrange(self.clock.now_ms()) if rng.random() < 0.3 else None,
            )
            for _ in range(rng.choice([1, 1, 2, 7]))
        ]
        await self.both(lambda node: node.append(BASIN, name, batch(*records)))

    async def trim(self) -> None:
        name = self.rng.choice(STREAMS)
        tail = (await self.plain.check_tail(BASIN, name)).seq_num
        record = trim(self.rng.randrange(tail + 2))
        await self.both(lambda node: node.append(BASIN, name, batch(record)))

    async def reconfigure(self) -> None:
        name = self.rng.choice(STREAMS)
        policy: RetentionPolicy = Age(self.rng.choice([5, 20, 60]))
        config = StreamPatch(retention_policy=policy)
        await self.both(lambda node: node.reconfigure_stream(BASIN, name, config))

    async def recreate(self) -> None:
        name = self.rng.choice(STREAMS)

        async def work(node: Node) -> None:
            await node.delete_stream(BASIN, name)
            await node.housekeeping.purge()
            await node.create_stream(BASIN, CreateStream(name, StreamConfig()))

        await self.both(work)

    async def time_passes(self) -> None:
        self.clock.advance(self.rng.choice([0.1, 1, 6, 30]))

    # What only one of them goes through

    async def tier(self) -> None:
        per_file, most = self.rng.choice([1, 3, 50]), self.rng.choice([2, 10, 1000])
        await self.pipeline.tier(per_file, most)

    async def adopt(self) -> None:
        await adopt(self.node)

    async def merge(self) -> None:
        await self.pipeline.merge(parts=self.rng.choice([1, 2, 3]))

    async def retain(self) -> None:
        live = list((await self.pipeline.table.refresh()).live.values())
        if live:
            await self.pipeline.rewrite(live, self.keeps(), parts=self.rng.choice([1, 2]))

    async def merge_job(self) -> None:
        job = merge_on(self.bucket, self.rng.getrandbits(16), clock=self.clock, settings=JOBS)
        await job.run(quiet())

    async def retain_job(self) -> None:
        job = retain_on(self.bucket, self.rng.getrandbits(16), clock=self.clock, settings=JOBS)
        await job.run(quiet())

    async def vacuum(self) -> None:
        await self.pipeline.vacuum()

    async def housekeeping(self) -> None:
        jobs = self.node.housekeeping
        for work in self.rng.sample(
            [jobs.purge, jobs.snapshots.take, jobs.collect, jobs.flush_usage], 2
        ):
            await work()
        jobs.expire()

    async def collect(self) -> None:
        await self.node.housekeeping.snapshots.take()
        await self.node.housekeeping.collect()
        self.clock.advance(6)
        await self.node.housekeeping.collect()

    async def restart(self) -> None:
        how = self.rng.choice([self.node.close, lambda: crash(self.node), None])
        if how is not None:
            await how()
        before, self.node = self.node, await self.opened(self.bucket)
        if how is None:  # taken over: the other one never knew
            await crash(before)

    # What must be the same

    def keeps(self) -> Keeps:
        """What of the table somebody may still see."""
        now_us = self.clock.now_ms() * 1000
        state = self.node.term.state

        def kept(rows: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
            ids, seq_nums, retentions = (
                rows.column(name).to_numpy() for name in ("stream_id", "seq_num", "retention_secs")
            )
            arrivals = rows.column("arrival").cast(pa.int64()).to_numpy()
            streams: dict[int, Stream | None] = {
                i: state.streams.by_id(i) for i in set(ids.tolist())
            }
            trims = np.array(
                [2**62 if (s := streams[i]) is None else s.trim_point for i in ids.tolist()]
            )
            expired = (retentions > 0) & (arrivals + retentions * 1_000_000 <= now_us)
            result: np.ndarray[tuple[int], np.dtype[np.bool_]] = (seq_nums >= trims) & ~expired
            return result

        return kept

    async def read(self) -> None:
        rng = self.rng
        name = rng.choice(STREAMS)
        tail = await self.plain.check_tail(BASIN, name)
        start: dict[str, Any] = rng.choice(
            [
                {"seq_num": rng.randrange(tail.seq_num + 2)},
                {"seq_num": 0},
                {"timestamp": rng.randrange(tail.timestamp + 2)},
                {"timestamp": max(tail.timestamp - rng.randrange(40_000), 0)},
                {"tail_offset": rng.randrange(tail.seq_num + 2)},
            ]
        )
        limits: dict[str, Any] = rng.choice(
            [
                {},
                {"count": rng.randrange(1, 12)},
                {"bytes": rng.randrange(1, 600)},
                {"until": start.get("timestamp", 0) + rng.randrange(1, self.clock.now_ms())},
            ]
        )
        request = make_request(**start, **limits, wait=0, clamp=rng.random() < 0.5)

        async def one(node: Node) -> bytes:
            found = await node.read(BASIN, name, request)
            return b"".join(found.wire())

        async def many(node: Node) -> bytes:
            async with node.read_session(BASIN, name, request) as batches:
                return b"".join([piece async for found in batches for piece in found.wire()])

        fetched = self.node.history.fetches
        await self.both(one)
        await self.both(many)
        self.reads += 1
        self.from_history += self.node.history.fetches > fetched


STEPS = {
    World.append: 30,
    World.read: 25,
    World.time_passes: 6,
    World.trim: 4,
    World.reconfigure: 2,
    World.recreate: 2,
    World.tier: 8,
    World.adopt: 8,
    World.merge: 2,
    World.merge_job: 3,
    World.retain: 2,
    World.retain_job: 3,
    World.vacuum: 2,
    World.housekeeping: 4,
    World.collect: 2,
    World.restart: 3,
}


async def live(seed: int, steps: int) -> World:
    world = World(seed)
    await world.begin()
    chosen = world.rng.choices(list(STEPS), list(STEPS.values()), k=steps)
    for step in [*chosen, *[World.read] * 10]:
        await step(world)
    await world.end()
    return world


@pytest.mark.parametrize("seed", range(12))
def test_a_node_with_a_history_reads_as_one_without(seed: int, monkeypatch: pytest.MonkeyPatch):
    if seed % 3:
        monkeypatch.setattr(row_groups, "HISTORY_GROUPS_BYTES", 0)
    run(live(seed, 150))


def test_the_comparison_reads_from_the_history_and_loses_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_groups, "HISTORY_GROUPS_BYTES", 0)

    async def scenario() -> None:
        worlds = [await live(seed, 150) for seed in range(100, 104)]
        assert sum(world.from_history for world in worlds) > 50
        collected = [world.node.housekeeping.collected for world in worlds]
        assert sum(collected) > 20

    run(scenario())
