"""Rows as they are staged: ready to be appended, but for the marker and the conditions.

A part holds what a task has gathered, grouped by stream; the rows of a stream lie one behind the
other, as the appends that they will be, each within every limit of a batch with a marker in it:

    part    region*                                one of each stream
    region  chunk*
    chunk   +-----------+-------------+-----------+------------+---------+------+
            | rows: u32 | before: u32 | last: u32 | large: u32 | records | last |   little endian
            +-----------+-------------+-----------+------------+---------+------+
            records     `before` bytes of an AppendInput: its records but the last
            last        the AppendRecord of the last, without tag and length; the marker joins it
            large       1: the one row has no room for a marker, and is known by its digest instead
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from bourn.errors import Invalid
from bourn.layout.arrow import HEADERS, encode_inputs
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    RECORD_METERED_BYTES_MAX,
    SINK_ROWS_DIGITS_MAX,
)
from bourn.model.record import Headers
from bourn.spark.sink_manifest import Region
from bourn.spark.sink_protocol import Marker
from bourn.wire.protobuf import encode_varint

Numbers = npt.NDArray[np.int64]

_CHUNK: Final = struct.Struct("<IIII")
_RECORD: Final = b"\x0a"
_STAMP: Final = 0x08
_MORE: Final = 0x80

STREAM: Final = "stream"
BODY: Final = "body"
HEADS: Final = "headers"
STAMP: Final = "timestamp"


class Marking(NamedTuple):
    """How records are marked: by a header of this name, on the last of an append or behind it."""

    name: bytes = b"bourn-sink"
    is_record: bool = False

    def room_bytes(self, writer: str, batch: int) -> int:
        """Return the metered bytes that a marker may take."""
        longest = Marker(writer, batch, 10**SINK_ROWS_DIGITS_MAX - 1, 10**SINK_ROWS_DIGITS_MAX - 1)
        return (8 if self.is_record else 0) + 2 + len(self.name) + len(longest.encode())


class RowLimits(NamedTuple):
    """What an append of rows may hold beside its marker."""

    records_max: int = BATCH_RECORDS_MAX
    metered_max: int = BATCH_METERED_BYTES_MAX

    @classmethod
    def with_marker(cls, marking: Marking, writer: str, batch: int) -> "RowLimits":
        """Return the limits that leave room for a marker."""
        room = marking.room_bytes(writer, batch)
        return cls(BATCH_RECORDS_MAX - marking.is_record, BATCH_METERED_BYTES_MAX - room)


class Chunk(NamedTuple):
    """One append that is to be made."""

    rows: int
    records: bytes | memoryview
    last: bytes | memoryview
    is_large: bool

    def plain(self) -> bytes:
        """Return the AppendInput without a marker."""
        if self.is_large:
            return bytes(self.records)
        return b"".join((self.records, _record(bytes(self.last))))

    def marked(self, marking: Marking, marker: Marker) -> bytes:
        """Return the AppendInput with its marker, where there is room for one."""
        if self.is_large:
            return bytes(self.records)
        header = _field(b"\x12", _field(_RECORD, marking.name) + _field(b"\x12", marker.encode()))
        last = bytes(self.last)
        if not marking.is_record:
            return b"".join((self.records, _record(last + header)))
        return b"".join((self.records, _record(last), _record(_stamp_of(last) + header)))


def by_stream(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each stream, in their order; the streams come by name."""
    names = rows.column(STREAM)
    codes: Any = names.dictionary_encode()
    streams = cast("list[str]", codes.dictionary.to_pylist())
    if len(streams) == 1:
        yield streams[0], rows
        return
    keys = codes.indices.to_numpy()
    order = np.argsort(keys, kind="stable")
    sorted_rows = rows.take(order)
    counts = np.bincount(keys, minlength=len(streams))
    ends = np.cumsum(counts)
    for code in sorted(range(len(streams)), key=streams.__getitem__):
        count = int(counts[code])
        yield streams[code], sorted_rows.slice(int(ends[code]) - count, count)


def encode_part(rows: pa.RecordBatch, limits: RowLimits) -> tuple[bytes, tuple[Region, ...]]:
    """Return the bytes of a part, and where each stream lies in it."""
    pieces: list[bytes] = []
    regions: list[Region] = []
    offset = 0
    for stream, own in by_stream(rows):
        large: dict[int, bytes] = {}
        hasher = xxhash.xxh3_64()
        size = row = 0
        for chunk in chunks_of(own, limits):
            if chunk.is_large:
                large[row] = _digest_of_row(own, row)
            head = _CHUNK.pack(chunk.rows, len(chunk.records), len(chunk.last), int(chunk.is_large))
            for piece in (head, bytes(chunk.records), bytes(chunk.last)):
                pieces.append(piece)
                hasher.update(piece)
                size += len(piece)
            row += chunk.rows
        regions.append(Region(stream, row, offset, size, hasher.intdigest(), large))
        offset += size
    return b"".join(pieces), tuple(regions)


def decode_region(data: bytes | memoryview) -> Iterator[Chunk]:
    """Yield the chunks of a region, without a copy of what they hold."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        rows, before, last, large = _CHUNK.unpack_from(view, at)
        at += _CHUNK.size
        yield Chunk(rows, view[at : at + before], view[at + before : at + before + last], large > 0)
        at += before + last


def checksum(data: bytes | memoryview) -> int:
    """Return what a region's checksum must be."""
    return xxhash.xxh3_64_intdigest(data)


def chunks_of(rows: pa.RecordBatch, limits: RowLimits) -> Iterator[Chunk]:
    """Cut the rows of one stream into appends."""
    sizes = metered_sizes(rows)
    too_large = np.flatnonzero(sizes > RECORD_METERED_BYTES_MAX)
    if len(too_large):
        row = int(too_large[0])
        raise Invalid(
            f"row {row}: a record of {int(sizes[row])} metered bytes: at most "
            f"{RECORD_METERED_BYTES_MAX} may be appended"
        )
    start = 0
    for at in np.flatnonzero(sizes > limits.metered_max).tolist():
        yield from _plain_chunks(rows.slice(start, at - start), limits)
        for made in encode_inputs(*_columns(rows.slice(at, 1))):
            yield Chunk(1, made.message, b"", is_large=True)
        start = at + 1
    yield from _plain_chunks(rows.slice(start), limits)


def _plain_chunks(rows: pa.RecordBatch, limits: RowLimits) -> Iterator[Chunk]:
    if not rows.num_rows:
        return
    for made in encode_inputs(
        *_columns(rows), records_max=limits.records_max, metered_max=limits.metered_max
    ):
        count = made[2]
        at, payload_at = _last_record(made.message)
        view = memoryview(made.message)
        yield Chunk(count, view[:at], view[payload_at:], is_large=False)


def metered_sizes(rows: pa.RecordBatch) -> Numbers:
    """Return what each row weighs."""
    sizes = _lengths(rows.column(BODY)) + 8
    if HEADS not in rows.schema.names:
        return sizes
    headers = cast("pa.ListArray[Any]", rows.column(HEADS).cast(HEADERS))
    pairs = cast("pa.StructArray", headers.flatten())
    if not len(pairs):
        return sizes
    weight = np.full(len(pairs), 2, np.int64)
    for part in pairs.flatten():
        weight += _lengths(part)
    owners = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
    np.add.at(sizes, owners, weight)
    return sizes


def _lengths(values: Any) -> Numbers:
    found: Any = pc.fill_null(pc.binary_length(values), 0)
    lengths: Numbers = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def digest(headers: Headers, body: bytes) -> bytes:
    """Return what stands for a record that is too large to be marked."""
    hasher = xxhash.xxh3_128()
    for name, value in headers:
        hasher.update(struct.pack("<II", len(name), len(value)) + name + value)
    hasher.update(struct.pack("<II", 0xFFFFFFFF, len(body)))
    hasher.update(body)
    return hasher.digest()


def _digest_of_row(rows: pa.RecordBatch, row: int) -> bytes:
    body = rows.column(BODY).cast(pa.binary())[row].as_py() or b""
    headers: Headers = ()
    if HEADS in rows.schema.names:
        found = rows.column(HEADS).cast(HEADERS)[row].as_py() or ()
        headers = tuple((each["name"] or b"", each["value"] or b"") for each in found)
    return digest(headers, body)


def _columns(rows: pa.RecordBatch) -> tuple[Any, ...]:
    names = rows.schema.names
    return (
        rows.column(BODY),
        rows.column(HEADS) if HEADS in names else None,
        rows.column(STAMP) if STAMP in names else None,
    )


def _last_record(message: bytes) -> tuple[int, int]:
    """Return where the last record of an AppendInput starts, and its payload."""
    at = start = payload = 0
    end = len(message)
    while at < end:
        start = at
        at += 1
        size = shift = 0
        while True:
            byte = message[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < _MORE:
                break
            shift += 7
        payload = at
        at += size
    return start, payload


def _field(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, encode_varint(len(value)), value))


def _record(payload: bytes) -> bytes:
    return _field(_RECORD, payload)


def _stamp_of(record: bytes) -> bytes:
    """Return the timestamp field of an AppendRecord of ours, which is its first, if it has one."""
    if not record or record[0] != _STAMP:
        return b""
    end = 1
    while record[end] >= _MORE:
        end += 1
    return record[: end + 1]
