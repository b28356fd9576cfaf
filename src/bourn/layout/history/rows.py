"""Batches to rows of the history, and rows back to batches.

Whole batches go through compiled kernels over Arrow's buffers, without a Python object per record.
What comes back from rows are the records as they were stored, byte for byte; only where one batch
ends and the next begins may differ. A batch that would not come back so is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bourn.layout.entry import Entry
from bourn.layout.history.pages import KERNELS, NO_BYTES, NO_KIND, Columns
from bourn.layout.history.schema import HEADER, HEADERS, KINDS, ROWS_SCHEMA
from bourn.layout.kernels import facts, rows_facts
from bourn.layout.kernels.compiled import blank
from bourn.layout.records import RecordFormatError
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HISTORY_ARRIVAL_MS_MAX,
    HISTORY_CHUNK_BYTES,
)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_PLAIN: Final = pa.StringArray.from_buffers(  # `pa.array` would import pandas, here and now
    len(KINDS),
    pa.py_buffer(np.cumsum([0, *map(len, KINDS)], dtype=np.int32).tobytes()),
    pa.py_buffer("".join(KINDS).encode()),
)


def warm(say: Callable[[str], None]) -> None:
    """Make sure that every kernel is compiled, or loaded from the cache; say so if it takes."""
    KERNELS.warm(say)


def table_of(entries: Iterable[Entry], names: Mapping[int, tuple[str, str]]) -> pa.Table:
    """Return the rows of some batches, which are sorted by (stream_id, first_seq_num).

    `names` has basin and stream by stream id; batches of streams without a name are left out.
    Raises RecordFormatError for what is no batch.
    """
    batches: list[pa.RecordBatch] = []
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.stream_id in names:
            chunk.append(entry)
            size += len(entry.payload)
            if size >= HISTORY_CHUNK_BYTES:
                batches.append(_rows_of(chunk, names))
                chunk, size = [], 0
    if chunk:
        batches.append(_rows_of(chunk, names))
    return pa.Table.from_batches(batches, ROWS_SCHEMA)


def _rows_of(chunk: list[Entry], names: Mapping[int, tuple[str, str]]) -> pa.RecordBatch:
    counts = np.array([entry.count for entry in chunk], np.int64)
    row_ends = np.cumsum(counts)
    rows = int(row_ends[-1])
    firsts = np.array([entry.first_seq_num for entry in chunk], np.uint64)
    positions = np.repeat(firsts - (row_ends - counts).astype(np.uint64), counts)
    arrivals = np.array([entry.arrival_ms for entry in chunk], np.uint64)
    if arrivals.max() > HISTORY_ARRIVAL_MS_MAX:
        raise RecordFormatError("the time of arrival is beyond what the table can hold")
    basins, streams, of_entry = _dictionaries(chunk, names)
    kinds, headers, bodies, metered = _records_of(chunk, counts, rows)
    wide = {
        "stream_id": np.repeat(np.array([entry.stream_id for entry in chunk], np.uint64), counts),
        "seq_num": positions + np.arange(rows, dtype=np.uint64),
        "timestamp": _stamps_of(chunk, counts, row_ends),
        "arrival": np.repeat(arrivals * np.uint64(1000), counts),
        "retention_secs": np.repeat(
            np.array([entry.retention_secs for entry in chunk], np.uint64), counts
        ),
    }
    columns: dict[str, pa.Array[Any]] = {
        "basin": pa.DictionaryArray.from_arrays(np.repeat(of_entry[0], counts), basins),
        "stream": pa.DictionaryArray.from_arrays(np.repeat(of_entry[1], counts), streams),
        "kind": _kinds_array(kinds),
        "headers": headers,
        "body": bodies,
        "metered_bytes": pa.array(metered.view(np.int32)),
    }
    for name, values in wide.items():
        columns[name] = _array(ROWS_SCHEMA.field(name).type, rows, values.view(np.uint8))
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in ROWS_SCHEMA.names], schema=ROWS_SCHEMA
    )


def _dictionaries(
    chunk: list[Entry], names: Mapping[int, tuple[str, str]]
) -> tuple["pa.Array[Any]", "pa.Array[Any]", npt.NDArray[np.int32]]:
    """Return the names of basins and streams, and which are those of every batch."""
    basins: dict[str, int] = {}
    streams: dict[str, int] = {}
    numbers: dict[int, tuple[int, int]] = {}
    for entry in chunk:
        if entry.stream_id not in numbers:
            basin, stream = names[entry.stream_id]
            numbers[entry.stream_id] = (
                basins.setdefault(basin, len(basins)),
                streams.setdefault(stream, len(streams)),
            )
    of_entry = np.array([numbers[entry.stream_id] for entry in chunk], np.int32)
    return (
        pa.array(basins, pa.string()),
        pa.array(streams, pa.string()),
        np.ascontiguousarray(of_entry.T),
    )


def _stamps_of(chunk: list[Entry], counts: Words, row_ends: Words) -> npt.NDArray[np.uint64]:
    ones = [entry.timestamps if isinstance(entry.timestamps, int) else 0 for entry in chunk]
    stamps = np.repeat(np.array(ones, np.uint64), counts)
    for entry, end in zip(chunk, row_ends.tolist(), strict=True):
        if not isinstance(entry.timestamps, int):
            stamps[end - entry.count : end] = entry.timestamps
    return stamps


def _records_of(
    chunk: list[Entry], counts: Words, rows: int
) -> tuple[Bytes, "pa.Array[Any]", "pa.Array[Any]", Bytes]:
    """Return kinds, headers, bodies and metered sizes of all records."""
    payloads = np.frombuffer(b"".join([entry.payload for entry in chunk]), np.uint8)
    sizes = np.array([len(entry.payload) for entry in chunk], np.int64)
    batches = np.empty((len(chunk), rows_facts.BATCH_WORDS), np.int64)
    batches[:, rows_facts.BATCH_AT] = np.cumsum(sizes) - sizes
    batches[:, rows_facts.BATCH_BYTES] = sizes
    batches[:, rows_facts.BATCH_COUNT] = counts
    words = batches.reshape(-1)
    kinds, metered = np.empty(rows, np.uint8), np.empty(4 * rows, np.uint8)
    headers_at, bodies_at = np.empty(4 * rows + 4, np.uint8), np.empty(4 * rows + 4, np.uint8)
    sums = np.zeros(rows_facts.SUMS, np.int64)
    found = KERNELS.scan_batches(
        payloads, words, len(chunk), kinds, metered, headers_at, bodies_at, sums
    )
    if found < 0:
        raise _format_error(found, chunk, counts)
    headers, name_bytes, value_bytes, body_bytes = sums.tolist()
    names_at, values_at = np.empty(4 * headers + 4, np.uint8), np.empty(4 * headers + 4, np.uint8)
    names, values = np.empty(name_bytes, np.uint8), np.empty(value_bytes, np.uint8)
    bodies = np.empty(body_bytes, np.uint8)
    filled = KERNELS.fill_columns(
        payloads, words, len(chunk), bodies_at, bodies, names_at, names, values_at, values
    )
    assert filled == rows, "a second walk finds what the first one found"
    pairs = pa.StructArray.from_buffers(
        HEADER,
        headers,
        [None],
        children=[
            _array(pa.binary(), headers, names_at, names),
            _array(pa.binary(), headers, values_at, values),
        ],
    )
    lists = pa.ListArray.from_buffers(
        HEADERS, rows, [None, pa.py_buffer(headers_at.data)], children=[pairs]
    )
    return kinds, lists, _array(pa.binary(), rows, bodies_at, bodies), metered


def _array(of: pa.DataType, length: int, *buffers: Bytes) -> "pa.Array[Any]":
    return pa.Array.from_buffers(
        of, length, [None, *(pa.py_buffer(buffer.data) for buffer in buffers)]
    )


def _format_error(found: int, chunk: list[Entry], counts: Words) -> RecordFormatError:
    row, code = divmod(-found, facts.RECORD_FAULT_BASE)
    ends = np.cumsum(counts)
    at = int(np.searchsorted(ends, row, side="right"))
    entry = chunk[at]
    seq_num = entry.first_seq_num + row - int(ends[at] - counts[at])
    fault = rows_facts.FAULTS[code]
    return RecordFormatError(f"record {seq_num} of stream {entry.stream_id}: {fault}")


def entries_of(rows: pa.Table | pa.RecordBatch) -> list[Entry]:
    """Return the batches of rows of one stream, ascending.

    A batch has rows of one retention, of one arrival unless they never expire, and of consecutive
    sequence numbers, at most 1,000 of them and at most 1 MiB. Raises ValueError for rows that no
    batch can have made.
    """
    parts = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    entries: list[Entry] = []
    for part in parts:
        if not part.num_rows:
            continue
        ids = _fixed(part.column("stream_id"), 8).view(np.uint64)
        stream_id = int(ids[0])
        if (ids != ids[0]).any() or (entries and entries[0].stream_id != stream_id):
            raise ValueError("the rows are of more than one stream")
        more = batches_in(part, stream_id)
        if entries and more[0].first_seq_num < entries[-1].end_seq_num:
            raise ValueError(rows_facts.FAULTS[rows_facts.OUT_OF_ORDER])
        entries += more
    return entries


def batches_in(rows: pa.RecordBatch | Columns, stream_id: int) -> list[Entry]:
    """Return the batches of rows that are known to be of that stream."""
    columns = rows if isinstance(rows, Columns) else columns_of(rows)
    count = columns.rows
    groups = np.empty(count * rows_facts.GROUP_WORDS, np.int64)
    try:
        found = KERNELS.plan_groups(
            count,
            columns.seq_nums,
            columns.stamps,
            columns.arrivals,
            columns.retentions,
            columns.kinds,
            columns.metered,
            columns.headers_at,
            columns.names_at,
            columns.values_at,
            columns.values,
            columns.bodies_at,
            columns.gap,
            BATCH_RECORDS_MAX,
            BATCH_METERED_BYTES_MAX,
            groups,
        )
        if found < 0:
            raise _row_error(found)
        plan = groups[: found * rows_facts.GROUP_WORDS].reshape(found, rows_facts.GROUP_WORDS)
        payloads, fresh = blank(int(plan[:, rows_facts.GROUP_BYTES].sum()))
        written = KERNELS.write_groups(*columns[4:], groups, found, fresh)
    except IndexError:
        raise ValueError("the columns point outside of their data") from None
    if written != len(payloads):
        raise _row_error(written)
    return _entries_of(plan, columns, payloads, stream_id)


def _entries_of(plan: Words, columns: Columns, payloads: bytes, stream_id: int) -> list[Entry]:
    firsts = plan[:, rows_facts.GROUP_ROW]
    lasts = firsts + plan[:, rows_facts.GROUP_COUNT] - 1
    stamps = columns.stamps.view(np.uint64)
    if (plan[:, rows_facts.GROUP_FLAGS] & rows_facts.FLAG_STAMPS).any():
        stamps = stamps.copy()  # what is kept of it must not keep all of the columns
    view = memoryview(payloads)
    entries: list[Entry] = []
    at = 0
    for (row, count, metered, headers, size, flags), seq_num, arrival, retention, last in zip(
        plan.tolist(),
        columns.seq_nums.view(np.uint64)[firsts].tolist(),
        columns.arrivals.view(np.int64)[lasts].tolist(),
        columns.retentions.view(np.uint64)[firsts].tolist(),
        stamps[lasts].tolist(),
        strict=True,
    ):
        entries.append(
            Entry(
                stream_id,
                seq_num,
                count,
                metered,
                headers,
                arrival // 1000,
                retention,
                last,
                stamps[row : row + count] if flags & rows_facts.FLAG_STAMPS else last,
                view[at : at + size],
                bool(flags & rows_facts.FLAG_COMMANDS),
            )
        )
        at += size
    return entries


def _row_error(found: int) -> ValueError:
    row, code = divmod(-found, facts.RECORD_FAULT_BASE)
    return ValueError(f"row {row}: {rows_facts.FAULTS[code]}")


def columns_of(rows: pa.RecordBatch) -> Columns:
    """Return the bytes of the columns that make batches; ValueError where a value is missing."""
    headers = rows.column("headers")
    _check(headers)
    pairs = cast("pa.StructArray", cast("pa.ListArray[Any]", headers).values)
    _check(pairs)
    return Columns(
        _fixed(rows.column("seq_num"), 8),
        _fixed(rows.column("timestamp"), 8),
        _fixed(rows.column("arrival"), 8),
        _fixed(rows.column("retention_secs"), 8),
        _kinds_of(rows.column("kind")),
        _fixed(rows.column("metered_bytes"), 4),
        _memory(headers.buffers()[1])[4 * headers.offset :],
        *_binary(pairs.field(0)),
        *_binary(pairs.field(1)),
        *_binary(rows.column("body")),
    )


def _check(array: "pa.Array[Any]") -> None:
    if array.null_count:
        raise ValueError("a column has nulls")


def _memory(buffer: pa.Buffer | None) -> Bytes:
    return NO_BYTES if buffer is None else np.frombuffer(memoryview(buffer), np.uint8)


def _fixed(array: "pa.Array[Any]", width: int) -> Bytes:
    _check(array)
    return _memory(array.buffers()[1])[width * array.offset : width * (array.offset + len(array))]


def _binary(array: "pa.Array[Any]") -> tuple[Bytes, Bytes]:
    """Return offsets and data; an array without values may have no offsets at all."""
    _check(array)
    _, offsets, data = array.buffers()
    if not len(array):
        return np.zeros(4, np.uint8), NO_BYTES
    return _memory(offsets)[4 * array.offset :], _memory(data)


def _kinds_of(kinds: "pa.Array[Any]") -> Bytes:
    """Return the kinds by their numbers; 255 is no kind."""
    _check(kinds)
    if not isinstance(kinds, pa.DictionaryArray):
        return _numbers_of(kinds)
    places: npt.NDArray[np.integer[Any]] = kinds.indices.to_numpy()
    numbers: Bytes = _numbers_of(kinds.dictionary)[places]
    return numbers


def _numbers_of(kinds: "pa.Array[Any]") -> Bytes:
    places = pc.index_in(kinds.cast(pa.string()), value_set=_PLAIN)
    numbers: Bytes = places.fill_null(NO_KIND).to_numpy().astype(np.uint8)
    return numbers


def uniform_kinds(kinds: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    """Return a column of kinds in the dictionary of all kinds; ValueError for any other value."""
    numbers = [_kinds_of(chunk) for chunk in kinds.chunks]
    if any((chunk == NO_KIND).any() for chunk in numbers):
        raise ValueError("a record is of an unknown kind")
    return pa.chunked_array(
        [_kinds_array(chunk) for chunk in numbers], ROWS_SCHEMA.field("kind").type
    )


def _kinds_array(numbers: Bytes) -> "pa.Array[Any]":
    return pa.DictionaryArray.from_arrays(numbers.view(np.int8), _PLAIN)
