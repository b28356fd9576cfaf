"""Rows to a segment: one Parquet file, sorted by (stream_id, seq_num), and its sidecar.

A row group has 512 KiB to 1 MiB of data and is fetched as one range; where it can, it ends with a
stream. Zstandard at its first level; pages that it cannot shrink are stored as they are (that is
what data pages of version 2 are for). Statistics are kept of what queries select by, never of
bodies.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from bourn.layout.entry import NEVER_S
from bourn.layout.history.footer import HEADER_LEAF, LEAF_PATHS, LEAVES
from bourn.layout.history.index import Arrays, encode_index
from bourn.layout.history.rows import uniform_kinds
from bourn.layout.history.schema import ROWS_SCHEMA
from bourn.limits import (
    HISTORY_ROW_BYTES,
    HISTORY_ROW_GROUP_BYTES_MAX,
    HISTORY_ROW_GROUP_BYTES_MIN,
    HISTORY_ROW_GROUP_BYTES_SHARED_MAX,
)

I64Array = npt.NDArray[np.int64]

_COMPRESSION_LEVEL: Final = 1
# Where few values repeat a dictionary is small; elsewhere it only slows encoding and decoding.
_DICTIONARY_COLUMNS: Final = ["basin", "stream", "stream_id", "arrival", "retention_secs", "kind"]
_NAME_COLUMNS: Final = ("basin", "stream")  # the first two
_DELTA_COLUMNS: Final = ("seq_num", "timestamp")
_STATISTICS_COLUMNS: Final = ["basin", "stream", "stream_id", "seq_num", "timestamp", "arrival"]


class Segment(NamedTuple):
    """A part of the history: two objects, and what the table's log says of them.

    The bounds are as the columns hold them, signed; where there are no rows they are 0.
    """

    parquet: bytes
    index: bytes  # type: ignore[assignment]  # hides tuple.index, which no segment needs
    rows: int
    metered_bytes: int
    seq_num_min: int
    seq_num_max: int
    timestamp_min: int
    timestamp_max: int
    arrival_min_us: int
    arrival_max_us: int
    expires_s_min: int
    expires_s_max: int


class _Rows(NamedTuple):
    """What the index must know of every row."""

    stream_ids: npt.NDArray[np.uint64]
    seq_nums: npt.NDArray[np.uint64]
    timestamps: npt.NDArray[np.uint64]
    arrivals_us: I64Array
    metered: I64Array
    expires_s: I64Array


def encode_segment(table: pa.Table) -> Segment:
    """Return the segment of some rows; ValueError where they are not sorted, or one is twice there.

    The columns are those of the schema, their strings plain or in dictionaries.
    """
    table = table.select(ROWS_SCHEMA.names).unify_dictionaries().cast(ROWS_SCHEMA)
    kind_at = ROWS_SCHEMA.get_field_index("kind")
    kinds = uniform_kinds(table.column(kind_at))
    table = table.set_column(kind_at, ROWS_SCHEMA.field(kind_at), kinds)
    rows = _rows_of(table)
    same = rows.stream_ids[1:] == rows.stream_ids[:-1]
    falls = rows.stream_ids[1:] < rows.stream_ids[:-1]
    if np.any(falls | same & (rows.seq_nums[1:] <= rows.seq_nums[:-1])):
        raise ValueError("the rows are not sorted by stream_id and seq_num")
    stream_starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(table)), np.bool_), ~same)))
    cuts = np.array([0, *_cuts(rows.metered, stream_starts)], np.int64)
    parquet, groups = _write(table, stream_starts, cuts)
    blocks = _blocks(rows, stream_starts, cuts)
    return Segment(
        parquet,
        encode_index(groups, blocks),
        len(table),
        int(rows.metered.sum()),
        *_bounds(rows.seq_nums.view(np.int64)),
        *_bounds(rows.timestamps.view(np.int64)),
        *_bounds(rows.arrivals_us),
        *_bounds(rows.expires_s),
    )


def _rows_of(table: pa.Table) -> _Rows:
    if any(column.null_count for column in table.columns):
        raise ValueError("a column has nulls")
    ids, seq_nums, timestamps, arrivals, retentions, metered = (
        np.ascontiguousarray(table.column(name).cast(pa.int64()).to_numpy())
        for name in (
            "stream_id",
            "seq_num",
            "timestamp",
            "arrival",
            "retention_secs",
            "metered_bytes",
        )
    )
    expires_s = expires_s_of(arrivals, retentions.view(np.uint64))
    u64 = np.uint64
    return _Rows(
        ids.view(u64), seq_nums.view(u64), timestamps.view(u64), arrivals, metered, expires_s
    )


def expires_s_of(arrivals_us: I64Array, retentions: npt.NDArray[np.uint64]) -> I64Array:
    """Return what `Entry.expires_s` says, for every row."""
    seconds = -(-arrivals_us // 1_000_000) + np.minimum(retentions, NEVER_S).astype(np.int64)
    return np.where(retentions == 0, NEVER_S, np.minimum(seconds, NEVER_S))


def _cuts(metered: I64Array, stream_starts: I64Array) -> Iterator[int]:
    """Yield where every row group ends.

    Who reads a large stream reads much of it; who reads one of many small ones, little.
    """
    weights = np.cumsum(metered + HISTORY_ROW_BYTES)
    bounds = np.append(stream_starts, len(weights))
    start = before = 0
    while start < len(weights):
        stream_end = int(bounds[np.searchsorted(bounds, start, side="right")])
        end = _fitting(weights, start, before + HISTORY_ROW_GROUP_BYTES_MAX)
        if stream_end <= end:
            end = stream_end
            if weights[end - 1] - before < HISTORY_ROW_GROUP_BYTES_MIN:
                end = _shared_end(weights, bounds, start, before)
        yield end
        start, before = end, int(weights[end - 1])


def _shared_end(weights: I64Array, bounds: I64Array, start: int, before: int) -> int:
    """Where a row group ends that begins with the little that is left of a stream."""
    end = _fitting(weights, start, before + HISTORY_ROW_GROUP_BYTES_SHARED_MAX)
    boundary = int(bounds[np.searchsorted(bounds, end, side="right") - 1])
    is_enough = boundary > start and weights[boundary - 1] - before >= HISTORY_ROW_GROUP_BYTES_MIN
    return boundary if is_enough else end


def _fitting(weights: I64Array, start: int, limit: int) -> int:
    """Where the rows end that fit, one at least."""
    return max(start + 1, int(np.searchsorted(weights, limit, side="right")))


def _blocks(rows: _Rows, stream_starts: I64Array, cuts: I64Array) -> Arrays:
    starts = np.union1d(stream_starts, cuts[:-1]).astype(np.int64)
    lasts = np.append(starts[1:], cuts[-1:])[: len(starts)] - 1
    groups = np.searchsorted(cuts, starts, side="right") - 1
    return {
        "stream_id": rows.stream_ids[starts],
        "first_seq_num": rows.seq_nums[starts],
        "last_seq_num": rows.seq_nums[lasts],
        "first_timestamp": rows.timestamps[starts],
        "last_timestamp": rows.timestamps[lasts],
        "row_group": groups,
        "first_row": starts - cuts[groups],
        "count": lasts - starts + 1,
        "metered_bytes": np.add.reduceat(rows.metered, starts) if len(starts) else starts,
        "expires_s": np.maximum.reduceat(rows.expires_s, starts) if len(starts) else starts,
    }


def _write(table: pa.Table, stream_starts: I64Array, cuts: I64Array) -> tuple[bytes, Arrays]:
    """Return the Parquet file, and where its row groups lie."""
    names = [table.column(name).take(stream_starts).cast(pa.string()) for name in _NAME_COLUMNS]
    sink = pa.BufferOutputStream()
    found: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        ROWS_SCHEMA,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_DICTIONARY_COLUMNS,  # type: ignore[arg-type]  # the stubs know no list
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        write_statistics=_STATISTICS_COLUMNS,
        data_page_version="2.0",
        store_schema=False,  # or others would read our dictionaries as a type of their own
        metadata_collector=found,
    ) as writer:
        for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            part = table.slice(start, end - start)
            first, stop = np.searchsorted(stream_starts, (start + 1, end)).tolist()
            bounds = np.concatenate(([start], stream_starts[first:stop], [end]))
            for at, values in enumerate(names):
                column = _spread(values.slice(first - 1, stop - first + 1), np.diff(bounds))
                part = part.set_column(at, ROWS_SCHEMA.field(at), column)
            writer.write_table(part, row_group_size=end - start)
    data = sink.getvalue().to_pybytes()
    return data, _groups(memoryview(data), found[0])


def _spread(names: "pa.ChunkedArray[Any]", counts: I64Array) -> "pa.Array[Any]":
    """Return each name as often as its stream has rows; the dictionary holds no others."""
    distinct = names.combine_chunks().dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        np.repeat(distinct.indices.to_numpy(), counts), distinct.dictionary
    )


def _groups(data: memoryview, found: pq.FileMetaData) -> Arrays:
    """Return what the index says of every row group."""
    count = found.num_row_groups
    offsets, checksums, rows, values = (np.zeros(count, np.uint64) for _ in range(4))
    chunk_ends = np.zeros((count, LEAVES), np.uint64)
    for at in range(count):
        group = found.row_group(at)
        chunks = [group.column(leaf) for leaf in range(LEAVES)]
        assert tuple(chunk.path_in_schema for chunk in chunks) == LEAF_PATHS
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        ends = [
            start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)
        ]
        assert starts[1:] == ends[:-1], "column chunks lie back to back"
        offsets[at] = starts[0]
        checksums[at] = xxh3_64_intdigest(data[starts[0] : ends[-1]])
        rows[at] = group.num_rows
        values[at] = chunks[HEADER_LEAF].num_values
        chunk_ends[at] = ends
        chunk_ends[at] -= offsets[at]
    return {
        "offset": offsets,
        "checksum": checksums,
        "rows": rows,
        "header_values": values,
        "chunk_ends": chunk_ends.reshape(-1),
    }


def _bounds(values: I64Array) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)
