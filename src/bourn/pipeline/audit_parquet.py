"""How an audit reads a segment: as any reader of Parquet does, but a window at a time."""

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bourn.bucket.port import Bucket
from bourn.errors import Damaged
from bourn.layout.history.footer import LEAVES
from bourn.layout.history.schema import SCHEMA
from bourn.layout.history.segment import expires_s_of
from bourn.limits import AUDIT_WINDOW_BYTES
from bourn.pipeline.audit_facts import U64Array

_TRAILER_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


class Columns(NamedTuple):
    """The columns of a row group that say which record a row is."""

    stream_ids: U64Array
    seq_nums: U64Array
    stamps: U64Array
    arrivals_us: npt.NDArray[np.int64]
    retentions: U64Array
    metered: npt.NDArray[np.int64]
    expires_s: npt.NDArray[np.int64]


def chunks_of(group: pq.RowGroupMetaData) -> tuple[int, list[int]]:
    """Return where a row group begins, and where from there each column chunk ends."""
    if group.num_columns != LEAVES:
        raise ValueError(f"{group.num_columns} columns where there are {LEAVES}")
    columns = [group.column(leaf) for leaf in range(LEAVES)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = [
        start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)
    ]
    return starts[0], [end - starts[0] for end in ends]


def windows_of(footer: pq.FileMetaData) -> Iterator[tuple[int, int, int, int]]:
    """Yield row groups that are fetched together: first, end; where their bytes begin, how many."""
    first = start = end = 0
    for at in range(footer.num_row_groups):
        offset, ends = chunks_of(footer.row_group(at))
        if at > first and offset + ends[-1] - start > AUDIT_WINDOW_BYTES:
            yield first, at, start, end - start
            first = at
        if at == first:
            start = offset
        end = offset + ends[-1]
    if footer.num_row_groups:
        yield first, footer.num_row_groups, start, end - start


async def fetch_range(bucket: Bucket, key: str, start: int, length: int) -> bytes:
    """Return so many bytes; Damaged where the object ends before them."""
    data = await bucket.get_range(key, start, length)
    if len(data) != length:
        raise Damaged(key, f"it ends at byte {start + len(data)}: truncated")
    return data


async def fetch_footer(bucket: Bucket, key: str, size: int) -> pq.FileMetaData:
    """Return the footer of a file of the table; Damaged where it has none, or other columns."""
    if size < _TRAILER_BYTES:
        raise Damaged(key, "it is no Parquet file")
    trailer = await fetch_range(bucket, key, size - _TRAILER_BYTES, _TRAILER_BYTES)
    length = int.from_bytes(trailer[:4], "little") + _TRAILER_BYTES
    if trailer[4:] != _MAGIC or length > size:
        raise Damaged(key, "it does not end like a Parquet file")
    data = await fetch_range(bucket, key, size - length, length)
    try:
        footer = pq.read_metadata(io.BytesIO(data))
        fault = _schema_fault(footer)
        for at in range(footer.num_row_groups):
            chunks_of(footer.row_group(at))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(key, f"its footer cannot be read: {error}") from None
    if fault:
        raise Damaged(key, fault)
    return footer


def _schema_fault(footer: pq.FileMetaData) -> str:
    found = footer.schema.to_arrow_schema()
    if found.names != SCHEMA.names:
        return f"its columns are {', '.join(found.names)[:200]}"
    for name in SCHEMA.names:
        if found.field(name).type != SCHEMA.field(name).type:
            return f"its column {name} is {found.field(name).type}"
    return ""


class _Window(io.RawIOBase):
    """A part of a file, at the offsets that it has there."""

    def __init__(self, data: memoryview, start: int, size: int) -> None:
        self._data = data
        self._start = start
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        start = self._at - self._start
        end = len(self._data) if size is None or size < 0 else start + size
        if start < 0 or end > len(self._data):
            raise OSError("it points outside of its row group")
        self._at = self._start + end
        return bytes(self._data[start:end])


def read_group(
    footer: pq.FileMetaData,
    at: int,
    data: memoryview,
    start: int,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return the rows of a row group, or some of its columns; `data` begins at `start`."""
    file = pq.ParquetFile(
        pa.PythonFile(_Window(data, start, start + len(data)), mode="r"),
        metadata=footer,
        read_dictionary=["basin", "stream", "kind"],
        pre_buffer=False,
    )
    names = None if columns is None else list(columns)
    table = file.read_row_group(at, columns=names, use_threads=False)
    table.validate(full=True)
    batches = table.combine_chunks().to_batches()
    if sum(batch.num_rows for batch in batches) != footer.row_group(at).num_rows:
        raise ValueError("not the rows that its footer says")
    if len(batches) > 1:
        raise ValueError("its rows are in several pieces")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def columns_of(rows: pa.RecordBatch) -> Columns:
    """Return what says which records the rows are; ValueError where something is null."""
    if any(column.null_count for column in rows.columns):
        raise ValueError("a column has nulls")
    found: list[Any] = [
        np.ascontiguousarray(rows.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False))
        for name in (
            "stream_id",
            "seq_num",
            "timestamp",
            "arrival",
            "retention_secs",
            "metered_bytes",
        )
    ]
    ids, numbers, stamps, arrivals, retentions, metered = found
    unsigned = retentions.view(np.uint64)
    return Columns(
        ids.view(np.uint64),
        numbers.view(np.uint64),
        stamps.view(np.uint64),
        arrivals,
        unsigned,
        metered,
        expires_s_of(arrivals, unsigned),
    )
