"""What was appended to each stream, from the rows of the history: by Spark SQL, file by file.

    files that have arrivals of the time ─► a task each: sums by stream and period
        ─► GROUP BY in Spark ─► files of the usage table, written by tasks

Only sums go through Spark, never a record.
"""

import asyncio
import importlib.metadata
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.layout.history.delta import Add, TableState
from bourn.layout.usage_table import INTERVALS, USAGE_PREFIX, add_of, encode_usage
from bourn.layout.usage_table import SCHEMA as USAGE_SCHEMA
from bourn.limits import (
    METER_FILE_ROWS,
    METER_STREAM_HOURS_KEPT_DAYS,
    METER_STREAM_MINUTES_KEPT_DAYS,
)
from bourn.model.instants import parse_ns
from bourn.pipeline.audit_parquet import fetch_footer, fetch_range, read_group, windows_of
from bourn.pipeline.job import Note, run_on_spark
from bourn.pipeline.meter_counts import closing
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import check_version, nonces

if TYPE_CHECKING:
    from pyspark import SparkContext

RETRY_SECS: Final = 60.0
RECORDS: Final = "append-records"
BYTES: Final = "append-bytes"
_COLUMNS: Final = ("basin", "stream_id", "arrival", "metered_bytes")
_US: Final = 1_000_000
_KEYS: Final = ["secs", "start_s", "basin", "stream_id"]
_TYPES: Final[dict[str, pa.DataType]] = {
    "secs": pa.int64(),
    "start_s": pa.int64(),
    "basin": pa.string(),
    "stream_id": pa.int64(),
    "records": pa.int64(),
    "metered": pa.int64(),
}
PARTIAL: Final = pa.schema(list(_TYPES.items()))
_PARTIAL_SQL: Final = (
    "secs long, start_s long, basin string, stream_id long, records long, metered long"
)
_WRITTEN_SQL: Final = "action string"


Spans = Mapping[int, tuple[int, int]]  # by interval: starts of its periods, in seconds


class MeteredFile(NamedTuple):
    """A file of the history to be read."""

    key: str
    size_bytes: int


class MeterTask(NamedTuple):
    """What is to be summed up, and up to which minute."""

    files: Sequence[MeteredFile]
    spans: Spans
    until_minute: int


class StreamWork(Protocol):
    """Who sums up and writes."""

    async def run(self, task: MeterTask, progress: Progress) -> list[Add]:
        """Return the files that were written."""
        ...


def spans_of(first: int, end: int) -> Spans:
    """Return which periods close between two minutes; what would be dropped at once is left out."""
    kept = {
        60: METER_STREAM_MINUTES_KEPT_DAYS * 1440,
        3600: METER_STREAM_HOURS_KEPT_DAYS * 1440,
        86_400: end,
    }
    return {secs: closing(max(first, end - kept[secs]), end, secs) for secs in INTERVALS}


def files_of(state: TableState, spans: Spans) -> list[MeteredFile]:
    """Return the files that may have arrivals in any of the periods."""
    wanted = [span for span in spans.values() if span[0] < span[1]]
    if not wanted:
        return []
    low, high = min(span[0] for span in wanted), max(span[1] for span in wanted)
    return [
        MeteredFile(add.key, add.size) for add in state.live.values() if _may_have(add, low, high)
    ]


def _may_have(add: Add, low_s: int, high_s: int) -> bool:
    try:
        stats: Any = json.loads(add.stats or "{}")
        first, last = (parse_ns(stats[of]["arrival"]) // 10**9 for of in ("minValues", "maxValues"))
    except (ValueError, KeyError, TypeError):
        return True
    return first < high_s and last >= low_s


async def sums_of(bucket: Bucket, file: MeteredFile, spans: Spans, retry: Retry) -> pa.Table:
    """Return the sums of one file."""
    footer = await retry(partial(fetch_footer, bucket, file.key, file.size_bytes))
    parts: list[pa.Table] = []
    for first, end, start, length in windows_of(footer):
        data = await retry(partial(fetch_range, bucket, file.key, start, length))
        for at in range(first, end):
            rows = read_group(footer, at, memoryview(data), start, _COLUMNS)
            parts += _sums(rows, spans)
    return grouped(pa.concat_tables([PARTIAL.empty_table(), *parts]))


def _sums(rows: pa.RecordBatch, spans: Spans) -> Iterator[pa.Table]:
    arrivals_s = rows.column("arrival").cast(pa.int64()).to_numpy() // _US
    for secs, (low, high) in spans.items():
        starts = arrivals_s // secs * secs
        table = pa.table(
            {
                "secs": pa.repeat(pa.scalar(secs, pa.int64()), len(rows)),
                "start_s": pa.array(starts, pa.int64()),
                "basin": rows.column("basin").cast(pa.string()),
                "stream_id": rows.column("stream_id"),
                "records": pa.repeat(pa.scalar(1, pa.int64()), len(rows)),
                "metered": rows.column("metered_bytes").cast(pa.int64()),
            }
        )
        yield grouped(table.filter(pa.array((starts >= low) & (starts < high))))


def grouped(sums: pa.Table) -> pa.Table:
    """Return sums with one row for each stream and period."""
    found = sums.group_by(_KEYS).aggregate([("records", "sum"), ("metered", "sum")])
    return found.rename_columns([*_KEYS, "records", "metered"]).cast(PARTIAL)


def usage_rows(sums: pa.Table, secs: int) -> pa.Table:
    """Return the rows of the usage table that the sums of one interval are."""
    mine = sums.filter(pa.array(sums.column("secs").to_numpy() == secs))
    starts = pa.array(mine.column("start_s").to_numpy() * _US, pa.timestamp("us", "UTC"))
    parts = [
        pa.table(
            {
                "interval": pa.repeat(pa.scalar(INTERVALS[secs]), len(mine)),
                "start": starts,
                "basin": mine.column("basin"),
                "stream_id": mine.column("stream_id"),
                "metric": pa.repeat(pa.scalar(metric), len(mine)),
                "label": pa.repeat(pa.scalar(""), len(mine)),
                "value": mine.column(column),
            }
        )
        for metric, column in ((RECORDS, "records"), (BYTES, "metered"))
    ]
    return pa.concat_tables(parts).cast(USAGE_SCHEMA)


async def write_sums(
    bucket: Bucket, sums: pa.Table, until_minute: int, names: Iterator[int], retry: Retry
) -> list[Add]:
    """Write sums that are complete as files of the usage table."""
    adds: list[Add] = []
    for secs, interval in INTERVALS.items():
        rows = usage_rows(sums, secs)
        for at in range(0, len(rows), METER_FILE_ROWS):
            part = rows.slice(at, METER_FILE_ROWS)
            nonce = next(names)
            name = f"streams-{interval}-{until_minute:012d}-{nonce:016x}.parquet"
            data = encode_usage(part)
            await retry(partial(bucket.put, USAGE_PREFIX + name, data))
            adds.append(add_of(name, part, len(data), (nonce >> 32) * 1000))
    return adds


class SparkStreams:
    """Sums up on a Spark."""

    def __init__(self, spark: Spark, place: Place, rng: random.Random) -> None:
        self._spark = spark
        self._place = place
        self._rng = rng

    async def run(self, task: MeterTask, progress: Progress) -> list[Add]:
        """Return the files that were written."""
        if not task.files:
            return []
        seed = self._rng.getrandbits(31)
        size = sum(file.size_bytes for file in task.files)
        found = await run_on_spark(
            self._spark,
            progress,
            lambda: progress.enter("metering streams", len(task.files), size, "files"),
            partial(_on_spark, self._place, task, seed),
        )
        return [msgspec.json.decode(action, type=Add) for action in found]


def _on_spark(
    place: Place, task: MeterTask, seed: int, context: "SparkContext", note: Note
) -> list[str]:
    from pyspark.sql import SparkSession, functions as sql  # noqa: PLC0415, I001  not everybody has it

    session = SparkSession(context)
    version = importlib.metadata.version("bourn")
    spans, until_minute = dict(task.spans), task.until_minute

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(version)
        for batch in batches:
            for row in batch.to_pylist():
                file = MeteredFile(row["key"], row["size_bytes"])
                sums = asyncio.run(_alone(place, partial(_sums_alone, file, spans)))
                note(1, file.size_bytes, 0)
                yield from sums.combine_chunks().to_batches()

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = nonces(seed)
        for sums in _portions(batches):
            adds = asyncio.run(_alone(place, partial(_write_alone, sums, until_minute, names)))
            actions = [msgspec.json.encode(add).decode() for add in adds]
            yield pa.RecordBatch.from_pydict({"action": pa.array(actions, pa.string())})

    context.setJobDescription("bourn meter")
    slices = min(len(task.files), context.defaultParallelism * 2)
    listed = session.createDataFrame(list(task.files), "key string, size_bytes long")
    sums = listed.repartition(slices).mapInArrow(read, _PARTIAL_SQL)
    whole = sums.groupBy(*_KEYS).agg(
        sql.sum("records").alias("records"), sql.sum("metered").alias("metered")
    )
    whole = whole.select("secs", "start_s", "basin", "stream_id", "records", "metered")
    written = whole.coalesce(context.defaultParallelism).mapInArrow(write, _WRITTEN_SQL)
    return [row["action"] for row in written.collect()]


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches in portions of bounded size."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        some.append(batch)
        if sum(part.num_rows for part in some) >= METER_FILE_ROWS:
            yield pa.Table.from_batches(some).cast(PARTIAL)
            some = []
    if some:
        yield pa.Table.from_batches(some).cast(PARTIAL)


async def _sums_alone(file: MeteredFile, spans: Spans, bucket: Bucket, retry: Retry) -> pa.Table:
    return await sums_of(bucket, file, spans, retry)


async def _write_alone(
    sums: pa.Table, until_minute: int, names: Iterator[int], bucket: Bucket, retry: Retry
) -> list[Add]:
    return await write_sums(bucket, sums, until_minute, names, retry)


async def _alone(place: Place, work: Any) -> Any:
    """Do a piece of work on a bucket of its own."""
    bucket = place.open()
    try:
        return await work(bucket, Retry(SystemClock(), random.Random(), RETRY_SECS))  # noqa: S311
    finally:
        await bucket.close()
