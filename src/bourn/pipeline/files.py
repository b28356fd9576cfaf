"""Files of the table are replaced by others with the same rows, less those that are dead.

    plan ─► tasks on Spark write files ─► are all rows accounted for? ─► one version: out, and in

Until the version is made nothing has happened, and it is only made while every file that it takes
out is still in the table: of two who replace the same file, one comes too late, and discards what
it has written.
"""

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from bourn.layout.history.delta import Add
from bourn.layout.history.facts import SegmentFacts, add_of, remove_of
from bourn.layout.history.index import SegmentIndex
from bourn.layout.reports import JobReport
from bourn.limits import INDEX_FETCHES, RETAIN_SKEW_SECS
from bourn.pipeline.generations import Generation, cuts_of, parts_of, weight_of
from bourn.pipeline.job import Note, TaskFailed, Tools, run_on_spark
from bourn.pipeline.living import Living
from bourn.pipeline.progress import Progress
from bourn.pipeline.rewrite import (
    Shuffle,
    Tally,
    Written,
    read_index,
    read_partition,
    rewrite_partition,
    write_partition,
)
from bourn.pipeline.scan import LogScan
from bourn.pipeline.table import HistoryTable, Superseded, TableChange, discard

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

FILES: Final = "files"


class Files:
    """The files of one table, and what may be done to them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._turn = asyncio.Semaphore(INDEX_FETCHES)
        self._scan = LogScan(tools.bucket, tools.retry)
        self.table = HistoryTable(tools.bucket, tools.clock, tools.rng, tools.retry)

    async def living(self) -> Living:
        """Return what may be read of the table as it was last seen."""
        living = await self._scan.living(self.table.state.end_ordinal)
        now_s = self._tools.clock.now_ms() // 1000
        return living._replace(expired_s=now_s - RETAIN_SKEW_SECS)

    async def merge(
        self, generation: Generation, living: Living, report: JobReport, progress: Progress
    ) -> bool:
        """Make one generation of several, by a shuffle; False where somebody else was quicker."""
        fence = self.table.state.fence
        first, end, adds = generation
        indexes = await asyncio.gather(*map(self.index, adds))

        def share_out(cores: int) -> Shuffle:
            return Shuffle(first, end, cuts_of(indexes, parts_of(generation.weight, cores)))

        written = await self._shuffled(adds, share_out, living, progress)
        return await self._replace(adds, written, fence, report, progress)

    async def index(self, add: Add) -> SegmentIndex:
        """Return the sidecar of a file."""
        async with self._turn:
            return await read_index(self._tools.bucket, add, self._tools.retry)

    async def rewrite(
        self, adds: Sequence[Add], living: Living, report: JobReport, progress: Progress
    ) -> bool:
        """Write files again, each for itself; False where somebody else was quicker."""
        fence = self.table.state.fence
        written = await self._rewritten(adds, living, progress)
        return await self._replace(adds, written, fence, report, progress)

    async def drop(self, adds: Sequence[Add], report: JobReport, progress: Progress) -> bool:
        """Take files out that hold nothing alive; False where somebody else was quicker."""
        tallies = [Tally(add.path, add.tag("rows"), 0) for add in adds]
        return await self._replace(adds, tallies, self.table.state.fence, report, progress)

    async def _shuffled(
        self,
        adds: Sequence[Add],
        share_out: Callable[[int], Shuffle],
        living: Living,
        progress: Progress,
    ) -> list[Written]:
        seed = self._tools.rng.getrandbits(31)
        place = self._tools.place

        def build(context: "SparkContext", note: Note) -> list[Written]:
            shuffle = share_out(context.defaultParallelism)
            shared = context.broadcast(living)
            version = importlib.metadata.version("bourn")
            read = read_partition(place, shuffle, lambda: shared.value, version, note)
            context.setJobDescription("bourn merge")
            try:
                pieces = context.parallelize(adds, len(adds)).mapPartitions(read)
                parts = pieces.partitionBy(len(shuffle.cuts) + 1, _as_it_is)
                return parts.mapPartitions(write_partition(place, shuffle, seed)).collect()
            finally:
                with suppress(Exception):  # Spark may have gone, and this with it
                    shared.destroy()

        enter = partial(progress.enter, "merging", len(adds), sum(map(weight_of, adds)), FILES)
        return await run_on_spark(self._tools.spark, progress, enter, build)

    async def _rewritten(
        self, adds: Sequence[Add], living: Living, progress: Progress
    ) -> list[Written]:
        seed = self._tools.rng.getrandbits(31)
        place = self._tools.place

        def build(context: "SparkContext", note: Note) -> list[Written]:
            shared = context.broadcast(living)
            version = importlib.metadata.version("bourn")
            work = rewrite_partition(place, lambda: shared.value, seed, version, note)
            context.setJobDescription("bourn retain")
            try:
                return context.parallelize(adds, len(adds)).mapPartitions(work).collect()
            finally:
                with suppress(Exception):  # Spark may have gone, and this with it
                    shared.destroy()

        enter = partial(progress.enter, "rewriting", len(adds), sum(map(weight_of, adds)), FILES)
        return await run_on_spark(self._tools.spark, progress, enter, build)

    async def _replace(
        self,
        adds: Sequence[Add],
        written: Sequence[Written],
        fence: int,
        report: JobReport,
        progress: Progress,
    ) -> bool:
        facts = [found for found in written if isinstance(found, SegmentFacts)]
        tallies = [found for found in written if isinstance(found, Tally)]
        fault = fault_in(adds, facts, tallies)
        if fault:
            await discard(self._tools.bucket, facts)
            raise TaskFailed(fault)
        progress.enter("committing")
        now_ms = self._tools.clock.now_ms()
        dropped = sum(tally.rows - tally.kept for tally in tallies)
        change = TableChange(
            "DELETE" if dropped else "OPTIMIZE",
            adds=[add_of(found, now_ms, data_change=bool(dropped)) for found in facts],
            removes=[remove_of(add, now_ms, data_change=bool(dropped)) for add in adds],
            fence=fence,
        )
        report.rounds += 1
        try:
            await self.table.commit(change)
        except Superseded as error:
            log.info("somebody else was quicker: %s", error)
            report.superseded += 1
            await discard(self._tools.bucket, facts)
            return False
        report.records += sum(found.rows for found in facts)
        report.files += len(facts)
        report.file_bytes += sum(found.parquet_bytes + found.index_bytes for found in facts)
        before = sum(add.size + add.tag("index_bytes") for add in adds)
        for name, amount in (
            ("files_replaced", len(adds)),
            ("replaced_bytes", before),
            ("read_bytes", sum(map(weight_of, adds)) if facts else 0),
            ("records_dropped", dropped),
        ):
            report.facts[name] = report.facts.get(name, 0) + amount
        return True


def _as_it_is(part: int) -> int:
    return part


def fault_in(adds: Sequence[Add], facts: Sequence[SegmentFacts], tallies: Sequence[Tally]) -> str:
    """Say why what was written cannot take the place of files; nothing where it can."""
    errors = [tally.error for tally in tallies if tally.error]
    if errors:
        return errors[0]
    rows = {add.path: add.tag("rows") for add in adds}
    read = {tally.path: tally.rows for tally in tallies}
    if len(tallies) != len(adds) or read != rows:
        return "not every file was read once, and wholly: nothing is replaced"
    kept, written = sum(tally.kept for tally in tallies), sum(found.rows for found in facts)
    if kept != written:
        return f"{kept:,} rows were read, and {written:,} written: nothing is replaced"
    return ""
