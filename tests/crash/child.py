"""A node's process: open the bucket, look at all of it or not, work, and end as planned."""

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import uvloop

from bourn.catalog.rows import StreamRow
from bourn.clock import SystemClock
from bourn.engine.node import Node, NodeState
from bourn.log.cursor import make_request
from bourn.settings import EngineSettings
from tests.crash.buckets import open_bucket
from tests.crash.events import Dumped, Listed, Mark, Reporter
from tests.crash.workload import BASIN, BASIN_PREFIX, Workload, check_is_deleted, read_token

BUCKET: Final = "bucket"
LOG: Final = "node.log"
PAGE: Final = 100
RIVAL_POLL_SECS: Final = 0.04

clock: Final = SystemClock()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process will do; the parent decides when it dies."""

    directory: str
    seed: int
    process: int
    look: bool = False
    work: bool = False
    work_secs: float = 600.0
    then: str = "idle"  # idle | snapshots | close, all until killed; or leave: end without closing
    pace: float = 1.0
    sabotage: str = ""
    rivals: bool = False  # others may be at work on the bucket at the same time


def settings_of(plan: Plan) -> EngineSettings:
    """Vary what changes the course of commits, snapshots and collection, by the seed alone."""
    rng = Random(f"{plan.seed}/settings/{plan.process}")
    return EngineSettings(
        commits_in_flight=rng.choice([1, 8, 32]),
        flush_interval_ms=rng.choice([0, 0, 5]),
        commit_split_bytes=rng.choice([4 << 20, 256 << 10, 32 << 10]),
        append_inflight_bytes=rng.choice([128 << 20, 4 << 20]),
        tail_cache_bytes=rng.choice([256 << 20, 1 << 20]),
        housekeeping_secs=rng.choice([0.1, 0.02]),
        snapshot_interval_secs=rng.choice([0.3, 0.05]),
        snapshots_kept=rng.choice([1, 2]),
        # The grace period is for those who read the log meanwhile, such as a rival that recovers.
        collect_grace_secs=60.0 if plan.rivals else rng.choice([0.0, 0.1]),
        epoch_poll_secs=RIVAL_POLL_SECS if plan.rivals else 1.0,
    )


def run_child(plan: Plan, reporter: Reporter) -> None:
    """Live until the plan ends, or until killed."""
    logging.basicConfig(
        filename=Path(plan.directory) / LOG,
        format=f"%(asctime)s process {plan.process} %(levelname)s %(name)s %(message)s",
    )
    rng = Random(f"{plan.seed}/loop/{plan.process}")
    factory = uvloop.new_event_loop if rng.random() < 0.5 else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_live(plan, reporter, rng))


async def _live(plan: Plan, reporter: Reporter, rng: Random) -> None:
    reporter.tell(Mark("started"))
    bucket = open_bucket(Path(plan.directory) / BUCKET, rng, plan.sabotage)
    node = await Node.open(bucket, settings_of(plan), rng=rng)
    reporter.tell(Mark("opened", node.term.epoch))
    if plan.look:
        await look(node, reporter, rng)
    if plan.work:
        workload = Workload(node, reporter, plan.seed, plan.process, plan.pace)
        reporter.tell(Mark("working"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(workload.run())
            tasks.create_task(_watch(node, reporter))
            tasks.create_task(_then(plan, node, reporter))
    elif plan.then == "close":
        await node.close()
        await bucket.close()
    elif plan.then == "idle":
        await _idle()


async def _then(plan: Plan, node: Node, reporter: Reporter) -> None:
    await clock.sleep(plan.work_secs)
    if plan.then == "close":
        reporter.tell(Mark("closing"))
        await node.close()
        reporter.tell(Mark("closed"))
    while plan.then == "snapshots":
        reporter.tell(Mark("snapshot"))
        await node.housekeeping.snapshots.take()
    await _idle()


async def _idle() -> None:
    while True:
        await clock.sleep(1)


async def _watch(node: Node, reporter: Reporter) -> None:
    """Tell when the node has understood that another one leads."""
    while node.state is not NodeState.FENCED:
        await clock.sleep(0.005)
    reporter.tell(Mark("fenced"))


async def look(node: Node, reporter: Reporter, rng: Random) -> None:
    """Tell everything that the node knows: the catalog, every record, tokens and tails."""
    reporter.tell(Mark("looking"))
    basins = await node.list_basins()
    for basin in basins.rows:
        deleting = basin.deleted_at_ms is not None
        reporter.tell(Listed(BASIN_PREFIX + basin.name, basin.id, deleting))
    if any(basin.name == BASIN for basin in basins.rows):
        await _look_at_streams(node, reporter, rng)
    reporter.tell(Mark("looked"))


async def _look_at_streams(node: Node, reporter: Reporter, rng: Random) -> None:
    rows: list[StreamRow] = []
    has_more = True
    while has_more:
        after = rows[-1].name if rows else ""
        page = await node.list_streams(BASIN, start_after=after, limit=PAGE)
        rows += page.rows
        has_more = page.has_more
    for row in rows:
        reporter.tell(Listed(row.name, row.id, row.deleted_at_ms is not None))
    for row in rows:
        if row.deleted_at_ms is None:
            await _look_at(node, reporter, row.name, row.id, rng)
        else:
            await check_is_deleted(node, row.name, reporter.tell)


async def _look_at(node: Node, reporter: Reporter, name: str, stream: int, rng: Random) -> None:
    request = make_request(seq_num=0, wait=0)
    async with node.read_session(BASIN, name, request) as batches:
        async for found in batches:
            if found.slices:
                reporter.tell_seen(stream, found.records())
    tail = await node.check_tail(BASIN, name)
    token = await read_token(node, name)
    reporter.tell(Dumped(stream, (tail.seq_num, tail.timestamp), token))
    if tail.seq_num:
        # Once more from the middle: the way to a position must not depend on coming from the start.
        middle = make_request(seq_num=rng.randrange(tail.seq_num), count=10)
        found = await node.read(BASIN, name, middle)
        if found.slices:
            reporter.tell_seen(stream, found.records())
