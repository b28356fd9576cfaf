"""Streams as columns: what a snapshot stores, and what memory holds of streams not in use.

One row a stream, sorted by (basin_id, name) in byte order:

| column | type | |
|---|---|---|
| `id`, `basin_id` | u64 | the stream's and its basin's |
| `name` | UTF-8 | unique within the basin |
| `row` | bytes | the packed catalog row, opaque here |
| `next_seq_num`, `last_timestamp` | u64 | the tail |
| `fencing_token` | UTF-8 | empty where there is none |
| `trim_point` | u64 | the earliest sequence number that a trim has left |
| `last_write_ms` | u64 | when a record last arrived |
| `runs` | bytes | where the batches lie, as `runs.py` draws it |
| `next_check_s` | u32 | when housekeeping must look again; 0xFFFFFFFF is never |

No column has nulls. Every column is one Arrow array of its own memory, which numpy and
memoryviews look into without a copy: about 160 bytes a stream with one run, and its catalog row.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64

from bourn.layout.runs import RUN_BYTES, RUN_DTYPE, fault_in_rows

U64Array = npt.NDArray[np.uint64]
U32Array = npt.NDArray[np.uint32]
I64Array = npt.NDArray[np.int64]

# 64-bit offsets: the rows and runs of many streams may pass 2 GiB.
_TYPES: Final[dict[str, pa.DataType]] = {
    "id": pa.uint64(),
    "basin_id": pa.uint64(),
    "name": pa.large_string(),
    "row": pa.large_binary(),
    "next_seq_num": pa.uint64(),
    "last_timestamp": pa.uint64(),
    "fencing_token": pa.large_string(),
    "trim_point": pa.uint64(),
    "last_write_ms": pa.uint64(),
    "runs": pa.large_binary(),
    "next_check_s": pa.uint32(),
}
LARGE_BYTES_MIN: Final = 16 * 1024  # a value, on average: many small ones are quicker as they are
SCHEMA: Final = pa.schema([pa.field(name, of, nullable=False) for name, of in _TYPES.items()])


class StreamImage(msgspec.Struct, frozen=True):
    """Everything that is kept of one stream besides its records."""

    id: int
    basin_id: int
    name: str
    row: bytes
    next_seq_num: int
    last_timestamp: int
    fencing_token: str
    trim_point: int
    last_write_ms: int
    runs: bytes | memoryview
    next_check_s: int


class Ragged:
    """A column of byte strings, read one value at a time; a sequence that `bisect` can search."""

    __slots__ = ("data", "offsets")

    def __init__(self, array: "pa.Array[Any]") -> None:
        _, offsets, data = array.buffers()
        self.offsets = _memory(offsets).cast("B").cast("q")[: len(array) + 1]
        self.data = _memory(data).cast("B")[: self.offsets[-1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def views(self) -> list[memoryview]:
        """Return all values, without a copy."""
        starts = self.offsets.tolist()
        return [self.data[start:end] for start, end in pairwise(starts)]


class StreamColumns:
    """The columns of many streams; immutable, and shared between threads.

    `__init__` takes arrays in the order of SCHEMA; `fault` says whether their values fit too.
    """

    __slots__ = (
        "arrays",
        "basin_ids",
        "fencing_tokens",
        "ids",
        "last_timestamps",
        "last_writes_ms",
        "names",
        "next_checks_s",
        "next_seq_nums",
        "rows",
        "runs",
        "trim_points",
    )

    def __init__(self, arrays: Sequence["pa.Array[Any]"]) -> None:
        self.arrays = tuple(map(_whole, arrays))
        if [array.type for array in self.arrays] != SCHEMA.types:
            raise ValueError("the columns are not those of the schema")
        if len(set(map(len, self.arrays))) != 1 or any(array.null_count for array in self.arrays):
            raise ValueError("the columns are not complete")
        column = dict(zip(SCHEMA.names, self.arrays, strict=True))
        self.ids: U64Array = column["id"].to_numpy()
        self.basin_ids: U64Array = column["basin_id"].to_numpy()
        self.names = Ragged(column["name"])
        self.rows = Ragged(column["row"])
        self.next_seq_nums: U64Array = column["next_seq_num"].to_numpy()
        self.last_timestamps: U64Array = column["last_timestamp"].to_numpy()
        self.fencing_tokens = Ragged(column["fencing_token"])
        self.trim_points: U64Array = column["trim_point"].to_numpy()
        self.last_writes_ms: U64Array = column["last_write_ms"].to_numpy()
        self.runs = Ragged(column["runs"])
        self.next_checks_s: U32Array = column["next_check_s"].to_numpy()

    @classmethod
    def of(cls, images: Sequence[StreamImage]) -> Self:
        """Make columns of images in any order."""
        ordered = sorted(images, key=attrgetter("basin_id", "name"))
        return cls(
            [
                _column([getattr(image, attribute) for image in ordered], field.type)
                for attribute, field in zip(SCHEMA.names, SCHEMA, strict=True)
            ]
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """The memory of all columns."""
        return sum(array.nbytes for array in self.arrays)

    def image(self, index: int) -> StreamImage:
        """Return one row as a value."""
        return StreamImage(
            id=int(self.ids[index]),
            basin_id=int(self.basin_ids[index]),
            name=self.names[index].decode(),
            row=self.rows[index],
            next_seq_num=int(self.next_seq_nums[index]),
            last_timestamp=int(self.last_timestamps[index]),
            fencing_token=self.fencing_tokens[index].decode(),
            trim_point=int(self.trim_points[index]),
            last_write_ms=int(self.last_writes_ms[index]),
            runs=self.runs[index],
            next_check_s=int(self.next_checks_s[index]),
        )

    def splice(self, others: "StreamColumns", order: I64Array) -> "StreamColumns":
        """Gather rows of both into new columns; rows of `others` count on from the last of ours.

        Column by column, outside Python's lock, with one column's copy as the only waste; of large
        values, nothing but what is kept is copied. Where all rows are of `others`, nothing is.
        """
        if len(order) == len(others) and np.array_equal(order, len(self) + np.arange(len(others))):
            return others
        return StreamColumns(
            [
                _gathered(mine, other, order)
                for mine, other in zip(self.arrays, others.arrays, strict=True)
            ]
        )

    def without_runs_before(self, commit: int) -> "StreamColumns":
        """Return the same rows without the runs of commits below an ordinal; fit for a thread."""
        rows = np.frombuffer(self.runs.data, RUN_DTYPE)
        kept = rows["commit"] >= np.uint64(commit)
        if kept.all():
            return self
        before = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])
        offsets = before[np.asarray(self.runs.offsets) // RUN_BYTES] * RUN_BYTES
        at = SCHEMA.get_field_index("runs")
        runs = pa.Array.from_buffers(
            SCHEMA.field(at).type,
            len(self),
            [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(rows[kept].tobytes())],
        )
        return StreamColumns([*self.arrays[:at], runs, *self.arrays[at + 1 :]])

    def checksum(self) -> int:
        """Return xxh3-64 over all values: offsets and bytes of each column in turn."""
        digest = xxh3_64()
        digest.update(len(self).to_bytes(8, "little"))
        for name, array in zip(SCHEMA.names, self.arrays, strict=True):
            digest.update(name.encode())
            if pa.types.is_integer(array.type):
                digest.update(array.to_numpy().data)
            else:
                ragged = Ragged(array)
                digest.update(ragged.offsets)
                digest.update(ragged.data)
        return digest.intdigest()

    def fault(self) -> str | None:
        """Say which promise of this format the values break; None when they keep all."""
        for name, array in zip(SCHEMA.names, self.arrays, strict=True):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                return f"column {name} holds malformed values"
        if not _ascends(self.basin_ids, self.arrays[SCHEMA.get_field_index("name")]):
            return "the streams are not in the order of their names"
        ids = np.sort(self.ids)
        if np.any(ids[1:] == ids[:-1]):
            return "two streams have one id"
        offsets = np.asarray(self.runs.offsets)
        return fault_in_rows(self.runs.data, offsets)


def _gathered(mine: "pa.Array[Any]", other: "pa.Array[Any]", order: I64Array) -> "pa.Array[Any]":
    size_bytes = mine.nbytes + other.nbytes
    if mine.type != pa.large_binary() or not _are_large(size_bytes, len(mine) + len(other)):
        return pa.concat_arrays([mine, other]).take(order)
    values = [*Ragged(mine).views(), *Ragged(other).views()]
    return joined([values[row] for row in order.tolist()])


def _are_large(size_bytes: int, count: int) -> bool:
    return size_bytes > LARGE_BYTES_MIN * (count + 1)


def _column(values: Sequence[Any], of: pa.DataType) -> "pa.Array[Any]":
    if of == pa.large_binary() and _are_large(sum(map(len, values)), len(values)):
        return joined(values)
    return pa.array(values, of)


def joined(values: Sequence[bytes | memoryview]) -> "pa.Array[Any]":
    """Return a column of large values, each copied outside Python's lock; Arrow's own holds it."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    for value, start, end in zip(values, offsets.tolist(), offsets[1:].tolist(), strict=False):
        data[start:end] = np.frombuffer(value, np.uint8)
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    )


def _memory(buffer: pa.Buffer | None) -> memoryview:
    """Look into a buffer; Arrow leaves out those of empty arrays."""
    return memoryview(buffer if buffer is not None and buffer.size else bytes(8))


def _whole(array: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return the array as one that begins where its buffers do."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if array.offset else array


def _ascends(basin_ids: U64Array, names: "pa.Array[Any]") -> bool:
    """Whether (basin_id, name) rises strictly from row to row."""
    if len(names) == 0:
        return True
    rises = pc.less(names[:-1], names[1:]).to_numpy(zero_copy_only=False)
    same_basin = basin_ids[1:] == basin_ids[:-1]
    return bool(np.all(np.where(same_basin, rises, basin_ids[1:] > basin_ids[:-1])))
