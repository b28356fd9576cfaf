"""The sidecar of a segment: where each stream lies in it, and how to read a part of it alone.

Little endian:

```
 0  8 B  magic "BOURNIDX"
 8  u32  version, 1
12  u32  row_groups
16  u32  blocks
20  u32  leaves, 12: the columns of the table, where a header's name and value are two
         of every row group, in the order of the file:
         u64  offset            in the Parquet file
         u64  checksum          xxh3-64 of its bytes
         of every block (the rows of one stream in one row group), in the order of the file:
         u64  stream_id, first_seq_num, last_seq_num, first_timestamp, last_timestamp
         of every row group:
         u32  rows, header_values
         u32  chunk_ends[12]    of each leaf's column chunk, from the start of the row group
         of every block:
         u32  row_group, first_row, count, metered_bytes, expires_s
-8  u64  xxh3-64 of everything before it
```

Each of these is an array of its own: all offsets, then all checksums, and so on. The order of the
file is that of (stream_id, seq_num). Sequence numbers within a block may have gaps. `expires_s` is
that of the row which expires last; 0xFFFFFFFF is never. `header_values` is what the columns of
headers hold: one for every header, and one for every row that has none.

A decoded index is the object itself with views into it: 60 bytes a block.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from bourn.errors import Damaged, NewerFormat
from bourn.layout.entry import Entry
from bourn.layout.history.footer import LEAVES, footer_of
from bourn.layout.history.pages import Columns, read_columns
from bourn.layout.history.rows import batches_in, columns_of

Arrays = dict[str, npt.NDArray[Any]]
Buffer = bytes | memoryview

VERSION: Final = 1
MAGIC: Final = b"BOURNIDX"

_HEAD: Final = struct.Struct("<8sIIII")
_U64: Final = struct.Struct("<Q")
# (name, bytes of a value, of every row group or block, values for each)
_ARRAYS: Final = (
    ("offset", 8, "group", 1),
    ("checksum", 8, "group", 1),
    ("stream_id", 8, "block", 1),
    ("first_seq_num", 8, "block", 1),
    ("last_seq_num", 8, "block", 1),
    ("first_timestamp", 8, "block", 1),
    ("last_timestamp", 8, "block", 1),
    ("rows", 4, "group", 1),
    ("header_values", 4, "group", 1),
    ("chunk_ends", 4, "group", LEAVES),
    ("row_group", 4, "block", 1),
    ("first_row", 4, "block", 1),
    ("count", 4, "block", 1),
    ("metered_bytes", 4, "block", 1),
    ("expires_s", 4, "block", 1),
)
_BLOCK_ARRAYS: Final = tuple(name for name, _, of, _ in _ARRAYS if of == "block")


class Block(NamedTuple):
    """The rows of one stream in one row group."""

    stream_id: int
    first_seq_num: int
    last_seq_num: int
    first_timestamp: int
    last_timestamp: int
    row_group: int
    first_row: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no block needs
    metered_bytes: int
    expires_s: int


assert Block._fields == _BLOCK_ARRAYS


class RowGroup(NamedTuple):
    """Where a row group lies, and how to read it."""

    offset: int
    length: int
    checksum: int
    rows: int
    header_values: int
    chunk_ends: list[int]


class SegmentIndex:
    """A decoded sidecar; immutable, and shared between threads.

    A block has a *place*, from 0 on; the places of a stream are in one piece, and ascend.
    """

    __slots__ = ("_arrays", "key", "nbytes")

    def __init__(self, key: str, arrays: Arrays, nbytes: int) -> None:
        self.key = key
        self.nbytes = nbytes
        self._arrays = arrays

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._arrays["stream_id"])

    @property
    def stream_ids(self) -> npt.NDArray[np.uint64]:
        """The stream of every block, ascending."""
        return self._arrays["stream_id"]

    @property
    def expires_s(self) -> npt.NDArray[np.uint32]:
        """When the last row of every block expires."""
        return self._arrays["expires_s"]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a field of every block, as `Block` names it."""
        assert name in _BLOCK_ARRAYS
        return self._arrays[name]

    @property
    def row_groups(self) -> int:
        """How many there are."""
        return len(self._arrays["rows"])

    def block(self, place: int) -> Block:
        """Return a block by its place."""
        arrays = self._arrays
        return Block(*[arrays[name].item(place) for name in _BLOCK_ARRAYS])

    def span(self, stream_id: int) -> tuple[int, int]:
        """Return the places of a stream's blocks: the first, and the one behind the last."""
        ids = self._arrays["stream_id"]
        wanted = np.uint64(stream_id)
        return int(ids.searchsorted(wanted)), int(ids.searchsorted(wanted, "right"))

    def find(self, stream_id: int, seq_num: int) -> Block | None:
        """Return the first block of the stream that reaches `seq_num`."""
        return self._first(stream_id, "last_seq_num", seq_num)

    def find_timestamp(self, stream_id: int, timestamp: int) -> Block | None:
        """Return the first block of the stream that reaches `timestamp`."""
        return self._first(stream_id, "last_timestamp", timestamp)

    def blocks_of(self, stream_id: int) -> list[Block]:
        """Return all blocks of the stream, ascending."""
        return [self.block(place) for place in range(*self.span(stream_id))]

    def row_group_range(self, block: Block) -> tuple[int, int]:
        """Return offset and length of the bytes to fetch for a block."""
        at = block.row_group
        end: int = self._arrays["chunk_ends"].item(LEAVES * (at + 1) - 1)
        return self._arrays["offset"].item(at), end

    def row_group(self, at: int) -> RowGroup:
        """Return a row group by its number."""
        arrays = self._arrays
        chunk_ends: list[int] = arrays["chunk_ends"][LEAVES * at : LEAVES * (at + 1)].tolist()
        return RowGroup(
            arrays["offset"].item(at),
            chunk_ends[-1],
            arrays["checksum"].item(at),
            arrays["rows"].item(at),
            arrays["header_values"].item(at),
            chunk_ends,
        )

    def places_in(self, row_group: int) -> range:
        """Return the places of the blocks of a row group."""
        groups = self._arrays["row_group"]
        wanted = np.uint32(row_group)
        return range(int(groups.searchsorted(wanted)), int(groups.searchsorted(wanted, "right")))

    def _first(self, stream_id: int, column: str, wanted: int) -> Block | None:
        first, end = self.span(stream_id)
        place = first + int(self._arrays[column][first:end].searchsorted(np.uint64(wanted)))
        return self.block(place) if place < end else None


def encode_index(groups: Arrays, blocks: Arrays) -> bytes:
    """Return the object."""
    counts = {"group": len(groups["rows"]), "block": len(blocks["count"])}
    parts = [_HEAD.pack(MAGIC, VERSION, counts["group"], counts["block"], LEAVES)]
    for name, width, of, _ in _ARRAYS:
        values = (groups if of == "group" else blocks)[name]
        assert not len(values) or values.max() < 1 << 8 * width, name
        parts.append(values.astype(f"<u{width}").tobytes())
    body = b"".join(parts)
    return body + _U64.pack(xxh3_64_intdigest(body))


def decode_index(data: bytes, key: str) -> SegmentIndex:
    """Return the index; Damaged, naming `key`, where the object is not what was written.

    NewerFormat, where it is whole and too new. The result keeps `data`.
    """
    if len(data) < _HEAD.size + _U64.size or not data.startswith(MAGIC):
        raise Damaged(key, "it is no index of a segment, or only a part of one")
    end = len(data) - _U64.size
    if xxh3_64_intdigest(memoryview(data)[:end]) != _U64.unpack_from(data, end)[0]:
        raise Damaged(key, "it fails its checksum")
    _, version, groups, blocks, leaves = _HEAD.unpack_from(data)
    if version > VERSION:
        raise NewerFormat(key, version, VERSION)
    if version != VERSION or leaves != LEAVES:
        raise Damaged(key, f"it has version {version} with {leaves} leaves, which never was")
    counts = {"group": groups, "block": blocks}
    if end != _HEAD.size + sum(width * counts[of] * each for _, width, of, each in _ARRAYS):
        raise Damaged(key, "its arrays do not fit")
    arrays: Arrays = {}
    at = _HEAD.size
    for name, width, of, each in _ARRAYS:
        arrays[name] = np.frombuffer(data, f"<u{width}", counts[of] * each, at)
        at += arrays[name].nbytes
    fault = _fault_in(arrays)
    if fault is not None:
        raise Damaged(key, fault)
    return SegmentIndex(key, arrays, len(data))


def _fault_in(arrays: Arrays) -> str | None:
    """Say which promise of this format the values break; None when they keep all."""
    ids, groups, counts = arrays["stream_id"], arrays["row_group"], arrays["count"]
    firsts, lasts = arrays["first_seq_num"], arrays["last_seq_num"]
    chunk_ends = arrays["chunk_ends"].reshape(-1, LEAVES)
    if (
        np.any(groups[:1])
        or np.any((groups[1:] != groups[:-1]) & (groups[1:] != groups[:-1] + 1))
        or len(arrays["rows"]) != (int(groups[-1]) + 1 if len(groups) else 0)
        or np.any(chunk_ends[:, 1:] < chunk_ends[:, :-1])
    ):
        return "its row groups are out of order"
    if (
        np.any(ids[1:] < ids[:-1])
        or np.any(firsts > lasts)
        or np.any((ids[1:] == ids[:-1]) & (firsts[1:] <= lasts[:-1]))
    ):
        return "its blocks are out of order"
    ends = arrays["first_row"].astype(np.uint64) + counts
    is_new = groups[1:] != groups[:-1]
    if (
        np.any(counts == 0)
        or np.any(arrays["first_row"][:1])
        or np.any(arrays["first_row"][1:] != np.where(is_new, 0, ends[:-1]))
        or np.any(ends[np.append(is_new, [True])[: len(groups)]] != arrays["rows"])
    ):
        return "its blocks do not fill its row groups"
    return None


def decode_row_group(index: SegmentIndex, at: int, data: Buffer, key: str) -> pa.RecordBatch:
    """Return the rows of a row group from its bytes: the columns that make batches.

    Damaged, naming `key`, the Parquet file's, where the bytes are not what the index says.
    """
    group = _checked(index, at, data, key)
    try:
        return _read(group, data)
    except (pa.ArrowException, OSError, ValueError) as error:  # all that pyarrow throws
        raise Damaged(key, f"row group {at} cannot be read: {error}") from None


def decode_columns(index: SegmentIndex, at: int, data: Buffer, key: str) -> Columns:
    """Return the same as plain columns, which takes half the time."""
    group = _checked(index, at, data, key)
    columns = read_columns(data, group.rows, group.header_values, group.chunk_ends)
    if columns is not None:
        return columns
    try:
        return columns_of(_read(group, data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(key, f"row group {at} cannot be read: {error}") from None


def _checked(index: SegmentIndex, at: int, data: Buffer, key: str) -> RowGroup:
    group = index.row_group(at)
    if len(data) != group.length:
        raise Damaged(key, f"{len(data)} bytes where {group.length} were written: truncated")
    if xxh3_64_intdigest(data) != group.checksum:
        raise Damaged(key, f"row group {at} fails its checksum")
    return group


def decode_block(index: SegmentIndex, block: Block, data: Buffer, key: str) -> list[Entry]:
    """Return the batches of a block from the bytes of its row group.

    Damaged, naming `key`, the Parquet file's, where the bytes are not what the index says.
    """
    return entries_in(decode_columns(index, block.row_group, data, key), block, key)


def entries_in(group: Columns, block: Block, key: str) -> list[Entry]:
    """Return the batches of a block from the columns of its row group; Damaged as above."""
    try:
        entries = batches_in(group.slice(block.first_row, block.count), block.stream_id)
    except ValueError as error:
        raise Damaged(key, f"row group {block.row_group} cannot be read: {error}") from None
    if (
        entries[0].first_seq_num != block.first_seq_num
        or entries[-1].end_seq_num != block.last_seq_num + 1
        or sum(entry.count for entry in entries) != block.count
        or sum(entry.metered_bytes for entry in entries) != block.metered_bytes
    ):
        raise Damaged(key, f"row group {block.row_group} holds other rows than its index says")
    return entries


def _read(group: RowGroup, data: Buffer) -> pa.RecordBatch:
    """Return the rows of a row group, of the columns that make batches."""
    footer = footer_of(group.rows, group.header_values, group.chunk_ends)
    file = pq.ParquetFile(
        pa.BufferReader(data),
        metadata=pq.read_metadata(pa.BufferReader(footer)),
        read_dictionary=["kind"],
        pre_buffer=False,
    )
    batches = file.read_row_group(0, use_threads=False).combine_chunks().to_batches()
    if len(batches) != 1 or batches[0].num_rows != group.rows:
        raise ValueError(f"not the {group.rows} rows that were written")
    return batches[0]
