"""export: every visible record of some streams, from the bucket, to files that anyone reads.

    plan (what lies where, at one moment) ─► a Spark task for each part ─► the end

A single part is written by the driver itself.

It needs no server and changes nothing in the bucket. Where a merge or the server has removed what
the plan names, which they do only after a while, it begins again with another moment.
"""

import asyncio
import importlib.metadata
import logging
from typing import TYPE_CHECKING, Final

from bourn.errors import BournError, ObjectMissing
from bourn.pipeline.export_format import part_name
from bourn.pipeline.export_plan import (
    Bounds,
    ExportPlan,
    Moved,
    NoSuchStreams,
    Wanted,
    make_plan,
)
from bourn.pipeline.export_target import ExportReport, ExportTarget, Part
from bourn.pipeline.export_tasks import PartOutcome, part_partition, run_part_task
from bourn.pipeline.job import Note, TaskFailed, Tools, run_on_spark
from bourn.pipeline.progress import Progress
from bourn.pipeline.table import HistoryTable

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
TASKS: Final = 64  # that a small export is cut into at the most


class StreamsMissing(BournError):
    """There is no such stream."""

    code = "stream_not_found"


class Export:
    """One export from a bucket."""

    def __init__(self, tools: Tools, target: ExportTarget) -> None:
        self._tools = tools
        self._target = target

    async def run(self, wanted: Wanted, bounds: Bounds, progress: Progress) -> ExportReport:
        """Write it whole, or raise and leave nothing."""
        began = self._tools.clock.monotonic()
        try:
            plan, parts = await self._written(wanted, bounds, progress)
            progress.enter("finishing")
            await self._target.finish(parts)
        finally:
            progress.leave()
            await self._target.close()
        return ExportReport(
            to=self._target.place.uri,
            format=self._target.format,
            streams=plan.streams,
            records=sum(part.rows for part in parts),
            metered_bytes=sum(part.metered_bytes for part in parts),
            parts=len(parts),
            part_bytes=sum(part.size_bytes for part in parts),
            secs=round(self._tools.clock.monotonic() - began, 3),
        )

    async def _written(
        self, wanted: Wanted, bounds: Bounds, progress: Progress
    ) -> tuple[ExportPlan, list[Part]]:
        has_begun = False
        for _ in range(ATTEMPTS_MAX):
            progress.enter("looking at the bucket")
            try:
                plan = await self._plan(wanted, bounds)
            except (Moved, ObjectMissing):
                continue
            if not has_begun:
                await self._target.begin()
                has_begun = True
            outcomes = await self._parts(plan, progress)
            errors = [outcome for outcome in outcomes if outcome.error]
            if not errors:
                done = [Part(*outcome[1:5]) for outcome in sorted(outcomes)]
                return plan, done
            lasting = [outcome for outcome in errors if not outcome.is_gone]
            if lasting:
                raise TaskFailed(lasting[0].error)
            log.info("%s: the export begins again", errors[0].error)
            await self._target.clear()
        raise TaskFailed("the bucket changes faster than it can be read: try again")

    async def _plan(self, wanted: Wanted, bounds: Bounds) -> ExportPlan:
        tools = self._tools
        table = HistoryTable(tools.bucket, tools.clock, tools.rng, tools.retry)
        try:
            return await make_plan(
                tools.bucket,
                tools.retry,
                await table.refresh(),
                wanted,
                bounds,
                tools.clock.now_ms(),
                TASKS,
            )
        except NoSuchStreams:
            raise StreamsMissing(f"there is no stream {wanted.shown} in this bucket") from None

    async def _parts(self, plan: ExportPlan, progress: Progress) -> list[PartOutcome]:
        place, target, of = self._tools.place, self._target.place, self._target.format
        self._target.expect([part_name(task.number, of) for task in plan.tasks])
        if len(plan.tasks) == 1:  # sooner done than Spark has started
            progress.enter("exporting", 1, plan.weight)
            return [await run_part_task(place, target, plan.tasks[0], of)]
        version = importlib.metadata.version("bourn")

        def build(context: "SparkContext", note: Note) -> list[PartOutcome]:
            work = part_partition(place, target, of, version, note)
            context.setJobDescription("bourn export")
            tasks = context.parallelize(plan.tasks, len(plan.tasks))
            return tasks.mapPartitions(work).collect()

        def enter() -> None:
            progress.enter("exporting", len(plan.tasks), plan.weight)

        try:
            return await run_on_spark(self._tools.spark, progress, enter, build)
        except BaseException:
            # A task that still runs would put its part behind our back.
            await asyncio.to_thread(self._tools.spark.close)
            raise
