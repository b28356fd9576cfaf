"""meter: usage by minutes, hours and days becomes rows of the usage table, each period once.

    newest snapshot ─► what the server counted, in periods that are over   ┐
    history         ─► what each stream took in, in periods that are over  ┴─► one version

A period is over when its end lies a quarter of an hour before the snapshot, or before the oldest
commit that is not in the history: counts that were late have arrived by then. The version says up
to which minute it reaches, so that whoever repeats it finds the table there already. Nothing here
needs an object of the log.
"""

import logging
from functools import partial
from typing import Final, NamedTuple

from bourn.catalog.rows import decode_basin_row
from bourn.catalog.usage import EXTRA_KEY, UsageTable
from bourn.errors import BucketError, Damaged, ObjectMissing, Undecodable
from bourn.layout.history.delta import Add
from bourn.layout.keys import SNAPSHOT_PREFIX, parse_snapshot_key
from bourn.layout.reports import JobReport
from bourn.layout.snapshot import Snapshot, decode_snapshot
from bourn.layout.usage_table import (
    USAGE_PREFIX,
    add_of,
    closed_minutes,
    encode_usage,
    file_name,
    rows_table,
    usage_key,
)
from bourn.limits import METER_CLOSED_AFTER_SECS
from bourn.pipeline.job import Tools
from bourn.pipeline.meter_counts import Rows, count_rows
from bourn.pipeline.meter_streams import MeterTask, SparkStreams, StreamWork, files_of, spans_of
from bourn.pipeline.meter_upkeep import Living, Upkeep
from bourn.pipeline.names import Catalog
from bourn.pipeline.progress import Progress
from bourn.pipeline.scan import LogScan
from bourn.pipeline.table import HistoryTable, Superseded
from bourn.pipeline.usage_log import UsageChange, UsageLog
from bourn.settings import PipelineSettings

log = logging.getLogger(__name__)

MINUTE_MS: Final = 60_000
SNAPSHOTS_TRIED_MAX: Final = 5


class _Counted(NamedTuple):
    until: int
    rows: Rows
    living: Living | None = None


class Meter:
    """The job, on one bucket."""

    name: Final = "meter"

    def __init__(self, tools: Tools, streams: StreamWork | None = None) -> None:
        self._tools = tools
        self._bucket = tools.bucket
        self._scan = LogScan(tools.bucket, tools.retry)
        self._history = HistoryTable(tools.bucket, tools.clock, tools.rng, tools.retry)
        self._streams: StreamWork = streams or SparkStreams(tools.spark, tools.place, tools.rng)
        self.log = UsageLog(tools.bucket, tools.clock, tools.rng, tools.retry)
        self._upkeep = Upkeep(tools, self.log)
        self._looked_at: float | None = None

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Whether it is time to look again, and there is anything to look at."""
        now = self._tools.clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < settings.meter_secs:
            return False
        if await self._newest_snapshot_key():
            return True
        self._looked_at = now
        return False

    async def run(self, progress: Progress) -> JobReport:
        """Write what has closed since the last time, and keep the table small."""
        report = JobReport(name=self.name)
        self._looked_at = self._tools.clock.monotonic()
        try:
            progress.enter("looking at usage")
            living = await self._write(report, progress)
            if self.log.state.version >= 0:
                progress.enter("keeping the usage table small")
                await self._upkeep.run(report, living)
        finally:
            progress.leave()
            report.table_version = self.log.state.version
            report.secs = {stage: round(secs, 3) for stage, secs in progress.secs.items()}
        return report

    async def _write(self, report: JobReport, progress: Progress) -> Living | None:
        """Write what has closed; returns the basins that there are."""
        state = await self.log.refresh()
        before, fence = closed_minutes(state), state.fence
        counted = await self._counted(before[0])
        until, task = await self._metered(before[1])
        after = (max(counted.until, before[0]), max(until, before[1]))
        if after == before:
            return counted.living
        adds = await self._files(counted)
        if after[1] > before[1]:
            adds += await self._streams.run(task, progress)
        progress.enter("committing")
        report.rounds += 1
        try:
            await self.log.commit(UsageChange("STREAMING UPDATE", before, after, fence, adds))
        except Superseded as error:
            log.info("somebody else was quicker: %s", error)
            report.superseded += 1
            await self._discard(adds)
            return counted.living
        report.facts["usage_rows"] = sum(add.tag("rows") for add in adds)
        report.files += len(adds)
        report.file_bytes += sum(add.size for add in adds)
        return counted.living

    # What the server counted

    async def _counted(self, first: int) -> _Counted:
        snapshot = await self._snapshot()
        if snapshot is None or EXTRA_KEY not in snapshot.meta.extra:
            return _Counted(0, {})
        until = _closed(snapshot.meta.created_at_ms)
        try:
            basins = frozenset(decode_basin_row(row).name for row in snapshot.meta.basins)
            living = Living(basins, snapshot.meta.created_at_ms // 1000)
            if until <= first:
                return _Counted(0, {}, living)
            usage = UsageTable.decode(snapshot.meta.extra[EXTRA_KEY])
        except Undecodable as error:
            raise Damaged(SNAPSHOT_PREFIX, str(error)) from error
        rows = count_rows(usage, Catalog(snapshot).names(), first, until)
        return _Counted(until, rows, living)

    async def _snapshot(self) -> Snapshot | None:
        for _ in range(SNAPSHOTS_TRIED_MAX):
            key = await self._newest_snapshot_key()
            if not key:
                return None
            try:
                return await self._tools.retry(partial(self._load, key))
            except ObjectMissing:
                continue  # a newer one has taken its place
        raise Damaged(SNAPSHOT_PREFIX, "snapshots are listed and cannot be found")

    async def _load(self, key: str) -> Snapshot:
        return decode_snapshot(await self._bucket.get(key), key)

    async def _newest_snapshot_key(self) -> str:
        async def listed() -> list[str]:
            keys = [info.key async for info in self._bucket.list(SNAPSHOT_PREFIX)]
            return sorted(key for key in keys if parse_snapshot_key(key) is not None)

        return (await self._tools.retry(listed) or [""])[-1]

    async def _files(self, counted: _Counted) -> list[Add]:
        now_ms = self._tools.clock.now_ms()
        adds: list[Add] = []
        for secs, rows in counted.rows.items():
            if rows:
                bits = self._tools.rng.getrandbits(32)
                name = file_name("basins", secs, counted.until, now_ms, bits)
                table = rows_table(secs, rows)
                data = encode_usage(table)
                await self._tools.retry(partial(self._bucket.put, USAGE_PREFIX + name, data))
                adds.append(add_of(name, table, len(data), now_ms))
        return adds

    # What streams took in

    async def _metered(self, first: int) -> tuple[int, MeterTask]:
        """Return up to which minute the history has everything, and what of it is to be read."""
        state = await self._history.refresh()
        if state.version < 0:
            return 0, MeterTask([], {}, 0)
        oldest_ms = self._tools.clock.now_ms()
        span = await self._scan.span(state.end_ordinal, commits_max=1, bytes_max=1)
        if span.commits:
            oldest_ms = min(oldest_ms, await self._scan.created_ms(span.commits[0]))
        until = _closed(oldest_ms)
        spans = spans_of(first, max(until, first))
        return until, MeterTask(files_of(state, spans), spans, until)

    async def _discard(self, adds: list[Add]) -> None:
        for add in adds:
            try:
                await self._bucket.delete(usage_key(add))
            except BucketError as error:
                log.warning("an orphan stays until it is vacuumed: %s", error)


def _closed(at_ms: int) -> int:
    return max(at_ms - METER_CLOSED_AFTER_SECS * 1000, 0) // MINUTE_MS
