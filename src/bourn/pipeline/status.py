"""How the pipeline stands, read from the bucket alone: the table, what waits, the last runs."""

import random
from typing import Any, Final

import msgspec

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.errors import ObjectMissing
from bourn.layout.reports import (
    REPORT_PREFIX,
    RunReport,
    decode_report,
    is_report_key,
)
from bourn.limits import TIER_ROUND_BYTES, TIER_ROUND_COMMITS
from bourn.pipeline.scan import LogScan
from bourn.pipeline.table import HistoryTable

RETRY_SECS: Final = 5.0


class PipelineStatus(msgspec.Struct, kw_only=True):
    """One look. The lag is what of the log is not in the table; `lag_is_cut`: and more."""

    table_version: int
    table_end_ordinal: int
    files: int
    file_bytes: int
    records: int
    metered_bytes: int
    lag_commits: int
    lag_bytes: int
    lag_secs: float  # age of the oldest commit that is not in the table
    lag_is_cut: bool
    last_run: RunReport | None = None
    last_failure: RunReport | None = None

    def shape(self) -> dict[str, Any]:
        """Return it as plain values."""
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape


async def look(bucket: Bucket, clock: Clock, rng: random.Random) -> PipelineStatus:
    """Read how things stand; changes nothing."""
    retry = Retry(clock, rng, RETRY_SECS)
    table = await HistoryTable(bucket, clock, rng, retry).refresh()
    scan = LogScan(bucket, retry)
    span = await scan.span(
        table.end_ordinal, commits_max=TIER_ROUND_COMMITS, bytes_max=TIER_ROUND_BYTES
    )
    lag_secs = 0.0
    if span.commits:
        lag_secs = max(clock.now_ms() - await scan.created_ms(span.commits[0]), 0) / 1000
    last_run, last_failure = await _last_reports(bucket)
    adds = table.live.values()
    return PipelineStatus(
        table_version=table.version,
        table_end_ordinal=table.end_ordinal,
        files=len(adds),
        file_bytes=sum(add.size + add.tag("index_bytes") for add in adds),
        records=sum(add.tag("rows") for add in adds),
        metered_bytes=sum(add.tag("metered_bytes") for add in adds),
        lag_commits=len(span.commits),
        lag_bytes=span.size_bytes,
        lag_secs=lag_secs,
        lag_is_cut=span.is_cut,
        last_run=last_run,
        last_failure=last_failure,
    )


async def _last_reports(bucket: Bucket) -> tuple[RunReport | None, RunReport | None]:
    """Return the newest report, and the newest of a run that failed."""
    keys = [info.key async for info in bucket.list(REPORT_PREFIX) if is_report_key(info.key)]
    newest: RunReport | None = None
    for key in reversed(keys):
        try:
            report = decode_report(await bucket.get(key), key)
        except ObjectMissing:
            continue  # the oldest go while we look
        newest = newest or report
        if report.error:
            return newest, report
    return newest, None
