"""tier: commits of the log become rows of the table, each once, whatever happens in between.

    table's end ─► span of the log ─► runs ─► a Spark task each: a segment ─► one version

Until the version is made nothing has happened: segments that it does not name are orphans. Once it
is made, the table's end has moved, so that nobody takes these commits again.
"""

import asyncio
import importlib.metadata
import logging
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.errors import BournError, BucketError
from bourn.layout.history.delta import HISTORY_PREFIX, INDEX_PREFIX
from bourn.layout.history.facts import SegmentFacts, add_of
from bourn.layout.reports import JobReport
from bourn.limits import (
    TIER_ROUND_BYTES,
    TIER_ROUND_COMMITS,
    TIER_RUN_BYTES,
    TIER_RUN_BYTES_MIN,
)
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.scan import LogScan, LogSpan
from bourn.pipeline.session import Spark
from bourn.pipeline.table import HistoryTable, Superseded, TableChange
from bourn.pipeline.tasks import TierOutcome, TierRun, tier_partition

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

log = logging.getLogger(__name__)

LOOK_SECS: Final = 0.5  # between two looks at a job that runs
_TOLD: Final = re.compile(r"[A-Za-z_.]+(?:Error|Exception|Exit|Mismatch)\b.*:")
STOPPED: Final = "stopped SparkContext"  # a consequence, not a cause
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

    async def run(self, progress: Progress) -> JobReport:
        """Bring the table up to where the log is now; returns what it took."""
        report = JobReport(name=self.name)
        try:
            is_done = False
            while not is_done:
                progress.enter("looking at the log")
                span = await self._span()
                if not report.rounds:
                    report.first_ordinal = span.first
                if span.end == span.first:
                    break
                is_done = await self._round(span, report, progress) and not span.is_cut
        finally:
            progress.leave()
            report.end_ordinal = self.table.state.end_ordinal
            report.table_version = self.table.state.version
            report.secs = {stage: round(secs, 3) for stage, secs in progress.secs.items()}
        return report

    async def _span(self) -> LogSpan:
        state = await self.table.refresh()
        return await self._scan.span(
            state.end_ordinal, commits_max=TIER_ROUND_COMMITS, bytes_max=TIER_ROUND_BYTES
        )

    async def _round(self, span: LogSpan, report: JobReport, progress: Progress) -> bool:
        """Turn a span into one version; False where somebody else was quicker."""
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
        )
        try:
            await self.table.commit(change)
        except Superseded as error:
            log.info("somebody else was quicker: %s", error)
            report.superseded += 1
            await self._discard(facts)
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
        progress.enter("starting Spark")
        context = await asyncio.to_thread(self._spark.context)
        progress.enter("tiering", len(span.commits), span.size_bytes)
        runs = cut(span, context.defaultParallelism * TASKS_PER_CORE)
        job = _SparkJob(context, self._place, runs, names, self._rng.getrandbits(31))
        waiting = asyncio.create_task(asyncio.to_thread(job.collect))
        try:
            while not (await asyncio.wait({waiting}, timeout=LOOK_SECS))[0]:
                progress.at(*job.done())
            outcomes = await waiting
        except SparkFailed as error:
            why = error.message
            if not why or STOPPED in why:
                why = self._spark.last_error() or why or "it has gone"
            # Whatever ended it may have left Spark half dead: the next round gets a new one.
            await asyncio.to_thread(self._spark.close)
            raise TaskFailed(f"Spark failed on {self._spark.master}: {why}") from error
        finally:
            if not waiting.done():
                self._spark.cancel()
        progress.at(*job.done())
        facts = [outcome.facts for outcome in outcomes if outcome.facts is not None]
        errors = [outcome.error for outcome in outcomes if outcome.error]
        if errors:
            await self._discard(facts)
            raise TaskFailed(errors[0])
        return facts

    async def _discard(self, facts: Sequence[SegmentFacts]) -> None:
        """Delete segments that no version names or will ever name."""
        for found in facts:
            try:
                await self._bucket.delete(f"{HISTORY_PREFIX}{found.name}.parquet")
                await self._bucket.delete(f"{INDEX_PREFIX}{found.name}.idx")
            except BucketError as error:
                log.warning("an orphan stays until it is vacuumed: %s", error)


class TaskFailed(BournError):
    """A task met what another attempt would meet again; the text is the task's."""

    code = "storage"


class SparkFailed(BournError):
    """Spark itself failed, or a task in a way that nobody foresaw."""


class _SparkJob:
    """The tasks of one round."""

    def __init__(
        self,
        context: "SparkContext",
        place: Place,
        runs: Sequence[TierRun],
        names: StreamNames,
        seed: int,
    ) -> None:
        self._context = context
        self._place = place
        self._runs = runs
        self._names = names
        self._seed = seed
        self._counters: list[Accumulator[int]] = []

    def collect(self) -> list[TierOutcome]:
        """Run them all; SparkFailed where that cannot be done. Blocks."""
        try:
            return self._collect()
        except Exception as error:
            raise SparkFailed(_cause(error)) from error

    def _collect(self) -> list[TierOutcome]:
        context = self._context
        counters = [context.accumulator(0) for _ in range(3)]
        self._counters = counters

        def note(commits: int, size_bytes: int, records: int) -> None:
            for counter, amount in zip(counters, (commits, size_bytes, records), strict=True):
                counter.add(amount)

        names = context.broadcast(self._names)
        version = importlib.metadata.version("bourn")
        work = tier_partition(self._place, lambda: names.value, self._seed, version, note)
        context.setJobDescription("bourn tier")
        try:
            tasks = context.parallelize(self._runs, len(self._runs))
            return tasks.mapPartitions(work).collect()
        finally:
            with suppress(Exception):  # Spark may have gone, and the names with it
                names.destroy()

    def done(self) -> tuple[int, int, int]:
        """Commits, bytes and records of the tasks that have ended; repetitions count again."""
        values = [counter.value for counter in self._counters] or [0, 0, 0]
        commits, size_bytes, records = values
        return commits, size_bytes, records


def _cause(error: Exception) -> str:
    """Return the line of Spark's many that says what happened; nothing where none can be had."""
    try:
        lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    except Exception:  # noqa: BLE001  py4j asks the Java for the text, which may have gone
        return ""
    told = [line for line in lines if _TOLD.match(line) and not line.endswith("last):")]
    told.sort(key=lambda line: line.startswith("org.apache.spark"))  # a task's own words first
    return told[0][:500] if told else ""


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
