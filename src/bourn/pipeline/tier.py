"""tier: commits of the log become rows of the table, each once, whatever happens in between.

    table's end ─► span of the log ─► runs ─► a Spark task each: a segment ─► one version

Until the version is made nothing has happened: segments that it does not name are orphans. Once it
is made, the table's end has moved, so that nobody takes these commits again.
"""

import asyncio
import importlib.metadata
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.layout.history.facts import SegmentFacts, add_of
from bourn.layout.reports import JobReport
from bourn.limits import (
    TIER_ROUND_BYTES,
    TIER_ROUND_COMMITS,
    TIER_RUN_BYTES,
    TIER_RUN_BYTES_MIN,
)
from bourn.pipeline.job import Note, TaskFailed, run_on_spark
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.scan import LogScan, LogSpan
from bourn.pipeline.session import Spark
from bourn.pipeline.table import HistoryTable, Superseded, TableChange, discard
from bourn.pipeline.tasks import TierOutcome, TierRun, Vanished, tier_partition
from bourn.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

LOOKS_MAX: Final = 5  # at a log of which something goes while it is read
TASKS_PER_CORE: Final = 2  # so that a core that is done early helps with the rest


class Backlog(NamedTuple):
    """What of the log is not in the table."""

    first_ordinal: int
    end_ordinal: int
    commits: int
    size_bytes: int
    age_secs: float  # of the oldest


class Tier:
    """The job, on one bucket."""

    name: Final = "tier"

    def __init__(
        self,
        bucket: Bucket,
        place: Place,
        spark: Spark,
        clock: Clock,
        rng: random.Random,
        retry: Retry,
    ) -> None:
        self._bucket = bucket
        self._place = place
        self._spark = spark
        self._clock = clock
        self._rng = rng
        self._scan = LogScan(bucket, retry)
        self.table = HistoryTable(bucket, clock, rng, retry)

    async def backlog(self) -> Backlog:
        """Look at what waits; a long backlog is looked at in part."""
        span = await self._span()
        age_secs = 0.0
        if span.commits:
            created_ms = await self._scan.created_ms(span.commits[0])
            age_secs = max(self._clock.now_ms() - created_ms, 0) / 1000
        return Backlog(span.first, span.end, len(span.commits), span.size_bytes, age_secs)

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Whether enough of the log waits, or has waited long enough."""
        backlog = await self.backlog()
        if backlog.end_ordinal == backlog.first_ordinal:
            return False
        return backlog.size_bytes >= settings.backlog_bytes or backlog.age_secs >= settings.age_secs

    async def run(self, progress: Progress) -> JobReport:
        """Bring the table up to where the log is now; returns what it took."""
        report = JobReport(name=self.name)
        try:
            is_done = False
            gone = 0
            while not is_done:
                progress.enter("looking at the log")
                span = await self._span()
                if not report.rounds:
                    report.first_ordinal = span.first
                if span.end == span.first:
                    break
                if span.commits and not self._spark.is_running:
                    await self._start(progress)
                    continue  # commits may have been collected meanwhile
                try:
                    is_done = await self._round(span, report, progress) and not span.is_cut
                    gone = 0
                except Vanished:
                    gone += 1
                    if gone == LOOKS_MAX:
                        raise
        finally:
            progress.leave()
            report.end_ordinal = self.table.state.end_ordinal
            report.table_version = self.table.state.version
            report.secs = {stage: round(secs, 3) for stage, secs in progress.secs.items()}
        return report

    async def _start(self, progress: Progress) -> None:
        progress.enter("starting Spark")
        await asyncio.to_thread(self._spark.context)

    async def _span(self) -> LogSpan:
        state = await self.table.refresh()
        return await self._scan.span(
            state.end_ordinal, commits_max=TIER_ROUND_COMMITS, bytes_max=TIER_ROUND_BYTES
        )

    async def _round(self, span: LogSpan, report: JobReport, progress: Progress) -> bool:
        """Turn a span into one version; False where somebody else was quicker."""
        fence = self.table.state.fence
        names = await self._scan.names(span.end)
        facts: list[SegmentFacts] = []
        if span.commits:
            facts = await self._segments(span, names, progress)
        progress.enter("committing")
        report.rounds += 1
        now_ms = self._clock.now_ms()
        change = TableChange(
            "STREAMING UPDATE",
            adds=[add_of(found, now_ms) for found in facts],
            first_ordinal=span.first,
            end_ordinal=span.end,
            fence=fence,
        )
        try:
            await self.table.commit(change)
        except Superseded as error:
            log.info("somebody else was quicker: %s", error)
            report.superseded += 1
            await discard(self._bucket, facts)
            return False
        report.commits += len(span.commits)
        report.log_bytes += span.size_bytes
        report.records += sum(found.rows for found in facts)
        report.files += len(facts)
        report.file_bytes += sum(found.parquet_bytes + found.index_bytes for found in facts)
        return True

    async def _segments(
        self, span: LogSpan, names: StreamNames, progress: Progress
    ) -> list[SegmentFacts]:
        """Write the span's segments by tasks on Spark; all of them, or TaskFailed."""
        seed = self._rng.getrandbits(31)

        def build(context: "SparkContext", note: Note) -> list[TierOutcome]:
            runs = cut(span, context.defaultParallelism * TASKS_PER_CORE)
            return _collect(context, self._place, runs, names, seed, note)

        outcomes = await run_on_spark(
            self._spark,
            progress,
            lambda: progress.enter("tiering", len(span.commits), span.size_bytes),
            build,
        )
        facts = [outcome.facts for outcome in outcomes if outcome.facts is not None]
        errors = [outcome for outcome in outcomes if outcome.error]
        if errors:
            await discard(self._bucket, facts)
            vanished = next((found.vanished for found in errors if found.vanished), "")
            if vanished:
                raise Vanished(vanished, "it was listed and cannot be found")
            raise TaskFailed(errors[0].error)
        return facts


def _collect(
    context: "SparkContext",
    place: Place,
    runs: Sequence[TierRun],
    names: StreamNames,
    seed: int,
    note: Note,
) -> list[TierOutcome]:
    shared = context.broadcast(names)
    version = importlib.metadata.version("bourn")
    work = tier_partition(place, lambda: shared.value, seed, version, note)
    context.setJobDescription("bourn tier")
    try:
        return context.parallelize(runs, len(runs)).mapPartitions(work).collect()
    finally:
        with suppress(Exception):  # Spark may have gone, and the names with it
            shared.destroy()


def cut(span: LogSpan, tasks: int) -> list[TierRun]:
    """Cut a span into runs of consecutive commits: about `tasks` of them, none of them too large.

    Together they cover the span without a gap, whatever of it has been collected.
    """
    wanted = min(max(span.size_bytes // max(tasks, 1), TIER_RUN_BYTES_MIN), TIER_RUN_BYTES)
    runs: list[TierRun] = []
    keys: list[str] = []
    first, size = span.first, 0
    for commit in span.commits:
        if keys and size + commit.size_bytes // 2 >= wanted:
            runs.append(TierRun(first, commit.ordinal, tuple(keys), size))
            first, keys, size = commit.ordinal, [], 0
        keys.append(commit.key)
        size += commit.size_bytes
    if keys:
        runs.append(TierRun(first, span.end, tuple(keys), size))
    return runs
