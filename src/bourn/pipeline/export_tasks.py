"""What an export does on executors: pieces of the history and of the log become one part.

A part has one name, and the plan says what it holds, so an attempt may be repeated: it puts the
same rows in the same place.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.errors import BournError, Damaged, ObjectMissing
from bourn.layout.entry import Entry, decode_run
from bourn.layout.history.index import SegmentIndex, decode_row_group
from bourn.layout.history.rows import table_of
from bourn.layout.records import RecordFormatError
from bourn.limits import EXPORT_FETCHES
from bourn.pipeline.export_format import KINDS, ROWS_SCHEMA, encode_part, part_name
from bourn.pipeline.export_plan import PartTask, Piece, fetch_index
from bourn.pipeline.job import Note
from bourn.pipeline.place import Place
from bourn.pipeline.tasks import check_version

RETRY_SECS: Final = 60.0
RETENTION_SECS_MAX: Final = 1 << 50  # for ever and ever, and no overflow

Rows = pa.RecordBatch


class PartOutcome(NamedTuple):
    """A part that was written; `is_gone`: what the plan names is there no more, make another."""

    number: int
    name: str = ""
    rows: int = 0
    metered_bytes: int = 0
    size_bytes: int = 0
    error: str = ""
    is_gone: bool = False


async def write_part(
    bucket: Bucket, target: Bucket, task: PartTask, of: str, retry: Retry
) -> PartOutcome:
    """Read the pieces, leave out what is hidden or not wanted, put the part."""
    rows = await _Reader(bucket, task, retry).rows()
    data = await asyncio.to_thread(encode_part, rows, of)
    name = part_name(task.number, of)
    await retry(partial(target.put, name, data))
    metered = sum(int(chunk.to_numpy().sum()) for chunk in rows.column("metered_bytes").chunks)
    return PartOutcome(task.number, name, rows.num_rows, metered, len(data))


class _Reader:
    """Fetches the pieces of one part; a sidecar and a row group are fetched once."""

    def __init__(self, bucket: Bucket, task: PartTask, retry: Retry) -> None:
        self._bucket = bucket
        self._task = task
        self._retry = retry
        self._turn = asyncio.Semaphore(EXPORT_FETCHES)
        self._indexes: dict[str, asyncio.Task[SegmentIndex]] = {}
        self._groups: dict[tuple[str, int], asyncio.Task[Rows]] = {}

    async def rows(self) -> pa.Table:
        """Return all that is wanted of them, in their order."""
        fault: BournError | None = None
        found: list[asyncio.Task[Rows | list[Entry]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for piece in self._task.pieces:
                    work = self._run(piece) if piece.length else self._block(piece)
                    found.append(group.create_task(work))
        except* BournError as errors:
            fault = _first(errors)
        if fault is not None:
            raise fault
        batches = list(self._joined([task.result() for task in found]))
        return pa.Table.from_batches(batches, ROWS_SCHEMA).unify_dictionaries()

    def _joined(self, found: list[Rows | list[Entry]]) -> Iterator[Rows]:
        """Yield the wanted rows; the runs of a stream become rows together."""
        entries: list[Entry] = []
        key = ""
        for piece, content in zip(self._task.pieces, found, strict=True):
            if entries and (not piece.length or entries[0].stream_id != piece.stream_id):
                yield from self._rows_of(entries, key)
                entries = []
            if isinstance(content, list):
                entries += content
                key = piece.key
            else:
                yield self._visible(content, piece.stream_id)
        if entries:
            yield from self._rows_of(entries, key)

    def _rows_of(self, entries: list[Entry], key: str) -> Iterator[Rows]:
        stream_id = entries[0].stream_id
        try:
            table = table_of(entries, {stream_id: self._task.streams[stream_id][:2]})
        except RecordFormatError as error:
            raise Damaged(key, str(error)) from None
        for batch in table.to_batches():
            yield self._visible(batch, stream_id)

    async def _run(self, piece: Piece) -> Rows | list[Entry]:
        async def fetch() -> list[Entry]:
            data = await self._bucket.get_range(piece.key, piece.at, piece.length)
            return decode_run(data, piece.key)

        async with self._turn:
            return await self._retry(fetch)

    async def _block(self, piece: Piece) -> Rows | list[Entry]:
        if piece.index_key not in self._indexes:
            fetch = fetch_index(self._bucket, self._retry, piece.index_key)
            self._indexes[piece.index_key] = self._group.create_task(fetch)
        index = await self._indexes[piece.index_key]
        block = index.block(piece.at)
        at = (piece.key, block.row_group)
        if at not in self._groups:
            self._groups[at] = self._group.create_task(self._row_group(index, *at))
        rows = await self._groups[at]
        return rows.slice(block.first_row, block.count)

    async def _row_group(self, index: SegmentIndex, key: str, number: int) -> Rows:
        group = index.row_group(number)

        async def fetch() -> Rows:
            data = await self._bucket.get_range(key, group.offset, group.length)
            return decode_row_group(index, number, data, key)

        async with self._turn:
            return await self._retry(fetch)

    def _visible(self, rows: Rows, stream_id: int) -> Rows:
        """Return the wanted rows, with the columns of an export."""
        stream = self._task.streams[stream_id]
        bounds = self._task.bounds
        seq_nums = _unsigned(rows, "seq_num")
        timestamps = _unsigned(rows, "timestamp")
        mask = seq_nums >= np.uint64(max(stream.trim_point, bounds.from_seq_num))
        mask &= timestamps >= np.uint64(bounds.from_timestamp)
        mask &= _up_to(seq_nums, bounds.last_seq_num)
        mask &= _up_to(timestamps, bounds.last_timestamp)
        mask &= ~_expired(rows, self._task.now_ms)
        kept = rows if mask.all() else rows.filter(pa.array(mask))
        columns = {name: kept.column(name) for name in ROWS_SCHEMA.names[2:]}
        columns["kind"] = columns["kind"].cast(KINDS)
        columns["basin"] = _repeated(stream.basin, kept.num_rows)
        columns["stream"] = _repeated(stream.stream, kept.num_rows)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in ROWS_SCHEMA.names], schema=ROWS_SCHEMA
        )


def _unsigned(rows: Rows, column: str) -> npt.NDArray[np.uint64]:
    values: npt.NDArray[np.uint64] = _longs(rows, column).view(np.uint64)
    return values


def _longs(rows: Rows, column: str) -> npt.NDArray[np.int64]:
    """Return a column of 64 bits as it is, whatever its type."""
    array: pa.Array[Any] = rows.column(column)
    buffer = array.buffers()[1]
    assert buffer is not None, "it has no nulls, and values"
    return np.frombuffer(memoryview(buffer), np.int64, len(array), 8 * array.offset)


def _up_to(values: npt.NDArray[np.uint64], last: int) -> npt.NDArray[np.bool_]:
    return values <= np.uint64(last) if last >= 0 else np.zeros(len(values), np.bool_)


def _expired(rows: Rows, now_ms: int) -> npt.NDArray[np.bool_]:
    """Tell which rows retention hides: as `Entry.is_expired` does."""
    retention = _unsigned(rows, "retention_secs")
    secs = np.minimum(retention, np.uint64(RETENTION_SECS_MAX)).astype(np.int64)
    ends_ms = _longs(rows, "arrival") // 1000 + secs * 1000
    return np.asarray((retention != 0) & (ends_ms <= now_ms), np.bool_)


def _repeated(name: str, count: int) -> "pa.Array[Any]":
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([name], pa.string()))


async def run_part_task(place: Place, target: Place, task: PartTask, of: str) -> PartOutcome:
    """Do one task on buckets of its own; what cannot be mended by another attempt is told."""
    bucket = place.open()
    try:
        to = target.open()
        try:
            retry = Retry(SystemClock(), random.Random(task.number), RETRY_SECS)  # noqa: S311  jitter
            return await write_part(bucket, to, task, of, retry)
        finally:
            await to.close()
    except BournError as error:
        is_gone = isinstance(error, ObjectMissing)
        return PartOutcome(task.number, error=error.message, is_gone=is_gone)
    finally:
        await bucket.close()


def _first(errors: BaseExceptionGroup[BournError]) -> BournError:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def part_partition(
    place: Place, target: Place, of: str, version: str, note: Note
) -> Callable[[Iterable[PartTask]], Iterator[PartOutcome]]:
    """Return the function that Spark calls with the tasks of a partition, on the executor."""

    def work(tasks: Iterable[PartTask]) -> Iterator[PartOutcome]:
        check_version(version)
        for task in tasks:
            outcome = asyncio.run(run_part_task(place, target, task, of))
            note(1, task.weight, outcome.rows)
            yield outcome

    return work
