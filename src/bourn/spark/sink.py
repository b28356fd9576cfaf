"""The sink as Spark sees it: tasks stage rows, or append them; the driver commits.

Exactly once, a task appends nothing: it stages what its rows will be as appends, and hands that to
the driver, which goes by `sink_protocol`. At least once, tasks append directly, side by side.

Spark makes a writer anew for each commit, in a process of its own, so a writer holds nothing but
options. Who writes is told by the tasks: the query, its run and the batch are properties of a task.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bourn.client import AppendRetry, Client, ClientError
from bourn.clock import SystemClock
from bourn.limits import SINK_INLINE_BYTES_MAX, SINK_MANIFEST_INLINE_BYTES_MAX, SINK_PART_BYTES
from bourn.spark.options import OptionError
from bourn.spark.options_sink import SinkOptions, parse_sink_options
from bourn.spark.sink_delivery import Manner, Sink, stopped
from bourn.spark.sink_manifest import Part, batch_prefix, make_manifest
from bourn.spark.sink_parts import RowLimits, by_stream, chunks_of, encode_part
from bourn.spark.sink_protocol import SinkStopped, Terms
from bourn.spark.sink_rows import RowCheck, Shape, check_columns
from bourn.spark.sink_staging import Staging

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"
_ABANDONED_SECS: Final = 7 * 86_400


class Writing(NamedTuple):
    """Whose rows they are: a batch of a writer, and the run that has computed them."""

    writer: str
    run: str
    batch: int


class Staged(WriterCommitMessage):
    """What a task has staged."""

    def __init__(self, writing: Writing, partition: int, parts: tuple[Part, ...]) -> None:
        self.writing = writing
        self.partition = partition
        self.parts = parts


def batch_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,  # noqa: FBT001  Spark's own
) -> DataSourceArrowWriter:
    """Return what `df.write.format("bourn")` writes with."""
    if overwrite:
        raise OptionError("mode", "takes append: a stream cannot be overwritten")
    return BatchWriter(parse_sink_options(options, is_streaming=False), schema)


def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,  # noqa: FBT001  Spark's own
) -> DataSourceStreamArrowWriter:
    """Return what `df.writeStream.format("bourn")` writes with."""
    if overwrite:
        raise OptionError("outputMode", "takes append: a stream cannot be overwritten")
    return StreamWriter(parse_sink_options(options, is_streaming=True), schema)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._shape = check_columns(schema, options.stream)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # pyspark's
        """Stage, or append, the rows of a partition. On an executor."""
        context = _context()
        found = [context.getLocalProperty(name) for name in (_QUERY, _RUN, _BATCH)]
        query, run, batch = (str(value or "") for value in found)
        if not query or not batch:
            raise SinkStopped("this is no task of a streaming query")
        writing = Writing(query, run, int(batch))
        return write_partition(self._options, self._shape, writing, context, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's own
        """Bring the batch into its streams. In a process beside the driver."""
        staged = _staged(messages)
        if staged and self._options.is_exactly_once:
            assert staged[0].writing.batch == batchId, "a commit is for the batch of its tasks"
            with Staging(self._options.staging) as staging:
                deliver_staged(self._options, staging, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's own
        """Leave all as it is: it may be named in a manifest, and the next commit sweeps it out."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame, once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._shape = check_columns(schema, options.stream)
        rng = random.SystemRandom()
        run = f"{rng.getrandbits(128):032x}"
        started = SystemClock().now_ms() // 1000
        self._writing = Writing(options.write_id or f"w{started:012d}-{run[:16]}", run, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # pyspark's
        """Stage, or append, the rows of a partition. On an executor."""
        return write_partition(self._options, self._shape, self._writing, _context(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Bring the rows into their streams. In a process beside the driver."""
        if not self._options.is_exactly_once:
            return
        with Staging(self._options.staging) as staging:
            deliver_staged(self._options, staging, _staged(messages))
            if not self._options.write_id:
                _forget(staging, self._writing.writer)
                _sweep_abandoned(staging, SystemClock().now_ms() // 1000)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002  Spark's own
        """Drop what was staged; a write with a name keeps it, to be run again."""
        if self._options.is_exactly_once and not self._options.write_id:
            with Staging(self._options.staging) as staging:
                _forget(staging, self._writing.writer)


def write_partition(
    options: SinkOptions,
    shape: Shape,
    writing: Writing,
    context: TaskContext,
    batches: Iterator[pa.RecordBatch],
) -> Staged:
    """Stage the rows of a partition, or append them."""
    rows = gathered(batches, RowCheck(shape, context.partitionId()))
    if not options.is_exactly_once:
        append_rows(options, rows)
        return Staged(writing, context.partitionId(), ())
    limits = RowLimits.with_marker(options.marking, writing.writer, writing.batch)
    nonce = random.SystemRandom().getrandbits(64)
    # An attempt has names of its own: task ids begin anew with each run.
    name = f"{context.partitionId():06d}-{context.taskAttemptId()}-{nonce:016x}"
    prefix = batch_prefix(writing.writer, writing.batch) + name
    return Staged(writing, context.partitionId(), stage_rows(options.staging, prefix, rows, limits))


def gathered(batches: Iterator[pa.RecordBatch], check: RowCheck) -> Iterator[pa.RecordBatch]:
    """Yield plain rows, about as many as a part may hold."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch):
            kept.append(check.plain(piece))
            size += kept[-1].nbytes
            if size >= SINK_PART_BYTES:
                yield _joined(kept)
                kept, size = [], 0
    if kept:
        yield _joined(kept)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch that is larger than a part."""
    if not batch.num_rows:
        return
    parts = 1 + batch.nbytes // SINK_PART_BYTES
    step = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    joined: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return joined


def stage_rows(
    location: str, prefix: str, rows: Iterator[pa.RecordBatch], limits: RowLimits
) -> tuple[Part, ...]:
    """Return the parts that the rows become: few rows travel in the message itself."""
    first = next(rows, None)
    if first is None:
        return ()
    data, regions = encode_part(first, limits)
    second = next(rows, None)
    if second is None and len(data) <= SINK_INLINE_BYTES_MAX:
        return (Part("", data, regions),)
    parts: list[Part] = []
    with Staging(location) as staging:
        while True:
            key = f"{prefix}-{len(parts):06d}"
            staging.create(key, data)
            parts.append(Part(key, b"", regions))
            if second is None:
                return tuple(parts)
            data, regions = encode_part(second, limits)
            second = next(rows, None)


def append_rows(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> None:
    """Append rows as they come, at least once."""
    with Client(options.settings) as client:
        for some in rows:
            for stream, own in by_stream(some):
                try:
                    with client.append_session(stream, retry=AppendRetry.ALL) as session:
                        for chunk in chunks_of(own, RowLimits()):
                            session.submit(chunk.plain())
                except ClientError as error:
                    raise stopped(stream, error) from error


def deliver_staged(options: SinkOptions, staging: Staging, staged: Sequence[Staged]) -> None:
    """Bring what tasks have staged into the streams."""
    if not staged:
        return
    writer, run, batch = staged[0].writing
    parts = [part for message in staged for part in message.parts]
    key = batch_prefix(writer, batch) + f"driver-{random.SystemRandom().getrandbits(64):016x}"
    kept = _within_manifest(parts, staging, key)
    manifest = make_manifest(writer, run, batch, kept, options.marking)
    terms = Terms(writer, run, options.is_exclusive, not options.fails_on_data_loss)
    manner = Manner(options.settings, options.retry_secs)
    Sink(terms, manner, staging, SystemClock()).commit(batch, manifest)


def _within_manifest(parts: list[Part], staging: Staging, key: str) -> list[Part]:
    """Return the parts with no more rows in them than a manifest may hold."""
    if sum(len(part.data) for part in parts) <= SINK_MANIFEST_INLINE_BYTES_MAX:
        return parts
    staging.create(key, b"".join(part.data for part in parts))
    moved: list[Part] = []
    offset = 0
    for part in parts:
        if part.key:
            moved.append(part)
            continue
        regions = tuple(
            msgspec.structs.replace(region, offset=offset + region.offset)
            for region in part.regions
        )
        moved.append(Part(key, b"", regions))
        offset += len(part.data)
    return moved


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    return sorted(staged, key=lambda message: message.partition)


def _forget(staging: Staging, writer: str) -> None:
    staging.delete(staging.keys(f"{writer}/"))


def _sweep_abandoned(staging: Staging, now_secs: int) -> None:
    """Remove what batch writes without a name have left behind whose driver was killed."""
    staging.delete(
        [
            key
            for key in staging.keys("")
            if key[:1] == "w"
            and key[1:13].isdecimal()
            and key[13:14] == "-"
            and int(key[1:13]) < now_secs - _ABANDONED_SECS
        ]
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a partition is written by a task"
    return context
