"""The commit object: a group commit of many streams, durable before any of it is acked.

Little endian.

```
header   0  8 B  magic "BOURNCMT"
         8  u16  version, 1
        10  u16  kind: 1 commit, 2 tombstone (no entries; nothing of this epoch follows)
        12  u32  reserved, 0
        16  u64  epoch
        24  u64  id
        32  u64  created_ms
        40  u64  durable_id: every commit of this epoch below it was durable when this was made,
                 so a gap below it is a lost object, not one that never was
        48 16 B  writer: random, drawn once per node; its claims bear the same name
        64       entries, back to back (entry.py): catalog changes in their order first, then
                 batches sorted by (stream_id, first_seq_num)
index            columns, n = number of entries:
                 stream_id u64[n] · first_seq_num u64[n] · first_timestamp u64[n] ·
                 last_timestamp u64[n] · checksum u64[n] · offset u32[n] · length u32[n] ·
                 count u32[n] · kind u8[n]
footer      u64  offset of the index
            u32  n
            u32  reserved, 0
            u64  xxh3-64 of header + index (the index holds the entries' checksums, so this
                 covers the whole object)
            8 B  magic "CMTBOURN"
```

A reader that wants one stream fetches the footer, then the index, then one range.
"""

import struct
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from bourn.errors import Damaged
from bourn.layout.entry import (
    KIND_BATCH,
    KIND_CHANGE,
    Buffer,
    Entry,
    decode_entry,
    encode_batch,
    encode_change,
)
from bourn.limits import COMMIT_BYTES_MAX, COMMIT_ENTRIES_MAX

MAGIC: Final = b"BOURNCMT"
MAGIC_END: Final = b"CMTBOURN"
VERSION: Final = 1
KIND_COMMIT: Final = 1
KIND_TOMBSTONE: Final = 2
WRITER_BYTES: Final = 16

_HEADER: Final = struct.Struct("<8sHHIQQQQ16s")
_FOOTER: Final = struct.Struct("<QIIQ8s")
HEADER_BYTES: Final = _HEADER.size
FOOTER_BYTES: Final = _FOOTER.size
_INDEX_ROW_BYTES: Final = 5 * 8 + 3 * 4 + 1


class CommitHeader(NamedTuple):
    """Who wrote a commit, where it stands in the log, and what was durable then."""

    epoch: int
    id: int
    created_ms: int
    durable_id: int
    writer: bytes
    is_tombstone: bool = False


class RunLocation(NamedTuple):
    """Where the batches of one stream lie within an encoded commit."""

    stream_id: int
    offset: int
    length: int


# Not a Python function, unlike the class itself, and half as long.
_new_location: Final = cast(
    "Callable[[tuple[int, int, int]], RunLocation]", partial(tuple.__new__, RunLocation)
)


class Commit(NamedTuple):
    """A decoded commit: every entry checked."""

    header: CommitHeader
    changes: tuple[bytes, ...]
    runs: tuple[tuple[RunLocation, tuple[Entry, ...]], ...]


class CommitIndex(NamedTuple):
    """The index columns of a commit, for readers that fetch entries by range."""

    stream_ids: npt.NDArray[np.uint64]
    first_seq_nums: npt.NDArray[np.uint64]
    first_timestamps: npt.NDArray[np.uint64]
    last_timestamps: npt.NDArray[np.uint64]
    checksums: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint8]


def encode_commit(
    header: CommitHeader,
    changes: Iterable[bytes],
    groups: Iterable[tuple[int, Iterable[Entry]]],
) -> tuple[bytes, list[RunLocation]]:
    """Return the object, and where each group's run of entries lies in it.

    `groups` are (stream_id, entries in order); ascending ids are the caller's promise.
    """
    head = _encode_header(header)
    parts: list[Buffer] = [head]
    locations: list[RunLocation] = []
    rows: list[tuple[int, int, int, int, int, int, int, int, int]] = []
    offset = HEADER_BYTES
    for change in changes:
        length, checksum, pieces = encode_change(change)
        parts += pieces
        rows.append((0, 0, 0, 0, checksum, offset, length, 0, KIND_CHANGE))
        offset += length
    for stream_id, entries in groups:
        start = offset
        for entry in entries:
            length, checksum, pieces = encode_batch(entry)
            parts += pieces
            timestamps = entry.timestamps
            rows.append(
                (
                    stream_id,
                    entry.first_seq_num,
                    timestamps if isinstance(timestamps, int) else int(timestamps[0]),
                    entry.last_timestamp,
                    checksum,
                    offset,
                    length,
                    entry.count,
                    KIND_BATCH,
                )
            )
            offset += length
        locations.append(_new_location((stream_id, start, offset - start)))
    parts += _encode_tail(head, rows, offset)
    return b"".join(parts), locations


def encode_tombstone(header: CommitHeader) -> bytes:
    """Return the object that seals an epoch."""
    head = _encode_header(header._replace(is_tombstone=True))
    return b"".join([head, *_encode_tail(head, [], HEADER_BYTES)])


def _encode_header(header: CommitHeader) -> bytes:
    return _HEADER.pack(
        MAGIC,
        VERSION,
        KIND_TOMBSTONE if header.is_tombstone else KIND_COMMIT,
        0,
        header.epoch,
        header.id,
        header.created_ms,
        header.durable_id,
        header.writer,
    )


def _encode_tail(
    head: bytes, rows: list[tuple[int, int, int, int, int, int, int, int, int]], offset: int
) -> tuple[bytes, bytes]:
    index = b""
    if rows:
        columns = tuple(zip(*rows, strict=True))
        index = b"".join(
            [
                *(_little(array("Q", columns[i])) for i in range(5)),
                *(_little(array("I", columns[i])) for i in range(5, 8)),
                bytes(columns[8]),
            ]
        )
    checksum = xxh3_64_intdigest(index, xxh3_64_intdigest(head))
    return index, _FOOTER.pack(offset, len(rows), 0, checksum, MAGIC_END)


def _little(column: "array[int]") -> bytes:
    if _BIG_ENDIAN_HOST:
        column.byteswap()
    return column.tobytes()


_BIG_ENDIAN_HOST: Final = array("H", [1]).tobytes() == b"\x00\x01"
assert array("I").itemsize == struct.calcsize("<I"), "u32 columns are written through array('I')"


def decode_header(data: Buffer, key: str) -> CommitHeader:
    """Return the header of an object that may be truncated behind it."""
    if len(data) < HEADER_BYTES:
        raise Damaged(key, f"it has {len(data)} bytes, fewer than a header")
    magic, version, kind, _, epoch, commit_id, created_ms, durable_id, writer = _HEADER.unpack_from(
        data
    )
    if magic != MAGIC:
        raise Damaged(key, "it does not begin like a commit")
    if version != VERSION:
        raise Damaged(key, f"it has version {version}; this Bourn reads version {VERSION}")
    if kind not in {KIND_COMMIT, KIND_TOMBSTONE}:
        raise Damaged(key, f"it is of an unknown kind ({kind})")
    return CommitHeader(
        epoch, commit_id, created_ms, durable_id, bytes(writer), kind == KIND_TOMBSTONE
    )


def decode_index(data: bytes, key: str) -> tuple[CommitHeader, CommitIndex]:
    """Return header and index of a whole object, checked against its footer; entries unread."""
    header = decode_header(data, key)
    if len(data) > COMMIT_BYTES_MAX:
        raise Damaged(key, f"it has {len(data)} bytes, more than any commit")
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise Damaged(key, "it ends before its footer")
    index_at, count, reserved, checksum, magic = _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    if magic != MAGIC_END or reserved:
        raise Damaged(key, "it does not end like a commit: truncated or altered")
    index_end = len(data) - FOOTER_BYTES
    if count > COMMIT_ENTRIES_MAX or index_at + count * _INDEX_ROW_BYTES != index_end:
        raise Damaged(key, "its footer does not fit its length")
    view = memoryview(data)
    seed = xxh3_64_intdigest(view[:HEADER_BYTES])
    if xxh3_64_intdigest(view[index_at:index_end], seed) != checksum:
        raise Damaged(key, "its index fails its checksum")
    return header, _index_columns(view[index_at:index_end], count)


def _index_columns(view: memoryview, n: int) -> CommitIndex:
    wide = [np.frombuffer(view[8 * n * i : 8 * n * (i + 1)], dtype="<u8") for i in range(5)]
    at = 8 * n * 5
    narrow = [
        np.frombuffer(view[at + 4 * n * i : at + 4 * n * (i + 1)], dtype="<u4") for i in range(3)
    ]
    kinds = np.frombuffer(view[at + 4 * n * 3 :], dtype=np.uint8)
    return CommitIndex(
        wide[0], wide[1], wide[2], wide[3], wide[4], narrow[0], narrow[1], narrow[2], kinds
    )


def decode_commit(data: bytes, key: str) -> Commit:
    """Return a commit with every checksum verified; Damaged, naming `key`, otherwise."""
    header, index = decode_index(data, key)
    view = memoryview(data)[: len(data) - FOOTER_BYTES - len(index.kinds) * _INDEX_ROW_BYTES]
    changes: list[bytes] = []
    runs: list[tuple[RunLocation, tuple[Entry, ...]]] = []
    group: list[Entry] = []
    offset = group_at = HEADER_BYTES
    for i in range(len(index.kinds)):
        if offset != index.offsets[i]:
            raise Damaged(key, f"entry {i} is not where the index says")
        end, entry = decode_entry(view, offset, key)
        if isinstance(entry, bytes):
            if group or runs:
                raise Damaged(key, "a catalog change stands behind a batch")
            changes.append(entry)
            group_at = end
        else:
            if group and group[0].stream_id != entry.stream_id:
                runs.append((_location(group, group_at, offset), tuple(group)))
                group, group_at = [], offset
            group.append(entry)
        offset = end
    if group:
        runs.append((_location(group, group_at, offset), tuple(group)))
    if offset != len(view):
        raise Damaged(key, "bytes stand between its entries and its index")
    return Commit(header, tuple(changes), tuple(runs))


def _location(group: list[Entry], start: int, end: int) -> RunLocation:
    return RunLocation(group[0].stream_id, start, end - start)
