"""Stored records: the form in which records lie in the log, and batches of them.

A record, big endian:

```
+-------+--------------+---------------------------------------------------------------+
| magic | metered size | envelope:  count | { name size | name | value size | value }  |
|  1 B  |   1 to 3 B   |            body                                               |
|       |              | command:   op | payload                                       |
|       |              | encrypted: as `sealed.py` draws it                            |
+-------+--------------+---------------------------------------------------------------+
magic bits 0-2  type: 1 command, 2 envelope, 3 encrypted
      bits 3-4  width of the metered size in bytes: 1, 2 or 3
      bit 5     wide, in envelopes alone: count and sizes have 4 bytes instead of 2
      bits 6-7  0
op              1 fence: the payload is the token, at most 36 bytes
                2 trim: the payload is the earliest sequence number to keep, 8 bytes
```

The metered size is what the record weighs for its client; a reader checks it against the rest.
Writers take the narrowest width, and the wide form only where a count or a size exceeds 65,535;
readers take any. A command's payload is the body of the record, and its only header is the op:
`(b"", b"fence")`. Encrypted records are recognised, and refused: `sealed.py` opens them.

The payload of a batch, its columns little endian:

```
+------------------+-------------------------+------------------------+
| ends: u32[count] | body starts: u32[count] | records, back to back  |
+------------------+-------------------------+------------------------+
end         where the record ends, from the start of the records
body start  where its body starts, from the start of the record
```
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from bourn.errors import Invalid, Undecodable
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    FENCING_TOKEN_BYTES_MAX,
    TRIM_BODY_BYTES,
)
from bourn.model.record import (
    FENCE_OP,
    TRIM_OP,
    Command,
    Fence,
    Headers,
    Record,
    check_record_size,
    command_of,
    metered_bytes,
)

U64Array = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]
Buffer = bytes | memoryview

COMMAND: Final = 1
ENVELOPE: Final = 2
ENCRYPTED: Final = 3

_TYPE_MASK: Final = 0b111
_WIDTH_SHIFT: Final = 3
_WIDTH_MASK: Final = 0b11
_WIDE: Final = 1 << 5
_RESERVED: Final = 0b1100_0000
_BYTE_MAX: Final = 0xFF
_NARROW_MAX: Final = 0xFFFF
_NARROW: Final = struct.Struct(">H")
_WIDER: Final = struct.Struct(">I")
_OPS: Final = {1: FENCE_OP, 2: TRIM_OP}

_COLUMNS: Final = struct.Struct("<II")
_PLAIN_HEADS_KEPT_MAX: Final = 1024  # many records are of the same sizes
_PLAIN_1: Final = struct.Struct(">BBH")
_PLAIN_2: Final = struct.Struct(">BHH")
_PLAIN_3: Final = struct.Struct(">BBHH")
_PLAIN_MAGIC_1: Final = ENVELOPE | 1 << _WIDTH_SHIFT
_PLAIN_MAGIC_2: Final = ENVELOPE | 2 << _WIDTH_SHIFT
_PLAIN_MAGIC_3: Final = ENVELOPE | 3 << _WIDTH_SHIFT


class RecordFormatError(Undecodable):
    """Stored bytes are no record, or no batch of records."""


class RecordBatch(msgspec.Struct, frozen=True, eq=False):
    """A validated batch in storage form, before it has a position.

    `payload` is `ends u32[count] | body_starts u32[count] | records`, little endian.
    """

    payload: bytes
    count: int
    metered_bytes: int
    header_count: int
    timestamps: U64Array | None = None  # None: no record carries one
    missing: BoolArray | None = None  # None: none is missing (where timestamps is set)
    commands: tuple[tuple[int, Command], ...] = ()  # (index in the batch, command)
    sealed_for: int = 0  # the id of the only stream that it may go to; 0: it is plaintext


def encode_record(headers: Headers, body: bytes) -> bytes:
    """Return the stored form of a record; Invalid for one that no client may append."""
    start, _, _ = _encode_start(headers, body)
    return start + body


def decode_record(data: Buffer) -> tuple[Headers, bytes]:
    """Return headers and body of a stored record; RecordFormatError where it is none."""
    headers, body_at = parse_record(data, 0, len(data))
    return headers, bytes(data[body_at:])


def encode_records(records: Sequence[Record]) -> RecordBatch:
    """Return the batch of some records.

    Raises Invalid for the first record that breaks a rule of its own, and only then for a batch
    that is empty, has too many records, or weighs too much, in this order.
    """
    if len(records) == 1 and not records[0].headers:
        body, _, timestamp = records[0]
        if timestamp is None:
            return plain_batch(body)
        check_record_size(8 + len(body))
        stamps = np.array((timestamp,), np.uint64)
        return RecordBatch(plain_payload(body), 1, 8 + len(body), 0, stamps)
    ends: list[int] = []
    starts: list[int] = []
    parts: list[bytes] = []
    commands: list[tuple[int, Command]] = []
    end = metered_sum = header_count = 0
    for index, (body, headers, _) in enumerate(records):
        if headers:
            start, metered, command = _encode_start(headers, body)
            header_count += len(headers)
            if command is not None:
                commands.append((index, command))
        else:
            metered = 8 + len(body)
            check_record_size(metered)
            start = plain_start(len(body))
        metered_sum += metered
        end += len(start) + len(body)
        ends.append(end)
        starts.append(len(start))
        parts += (start, body)
    check_batch(len(ends), metered_sum)
    columns = struct.pack(f"<{2 * len(ends)}I", *ends, *starts)
    timestamps, missing = _timestamp_columns(records)
    return RecordBatch(
        b"".join((columns, *parts)),
        len(ends),
        metered_sum,
        header_count,
        timestamps,
        missing,
        tuple(commands),
    )


def plain_batch(body: bytes) -> RecordBatch:
    """Return the batch of one record without headers and timestamp; Invalid where it is large."""
    size = 8 + len(body)
    check_record_size(size)
    return RecordBatch(plain_payload(body), 1, size, 0)


def check_batch(count: int, metered: int) -> None:
    """Refuse a batch of well-formed records that is no batch."""
    if count == 0:
        raise Invalid("record batch must not be empty")
    if count > BATCH_RECORDS_MAX:
        raise Invalid(f"record batch must not exceed {BATCH_RECORDS_MAX} records")
    if metered > BATCH_METERED_BYTES_MAX:
        raise Invalid("record batch must not exceed a metered size of 1 MiB")


def plain_start(body_bytes: int) -> bytes:
    """Return everything in front of the body in a stored record without headers."""
    metered = 8 + body_bytes
    if metered <= _BYTE_MAX:
        return _PLAIN_1.pack(_PLAIN_MAGIC_1, metered, 0)
    if metered <= _NARROW_MAX:
        return _PLAIN_2.pack(_PLAIN_MAGIC_2, metered, 0)
    return _PLAIN_3.pack(_PLAIN_MAGIC_3, metered >> 16, metered & 0xFFFF, 0)


@lru_cache(maxsize=_PLAIN_HEADS_KEPT_MAX)
def _plain_head(body_bytes: int) -> bytes:
    start = plain_start(body_bytes)
    return _COLUMNS.pack(len(start) + body_bytes, len(start)) + start


def plain_payload(body: Buffer) -> bytes:
    """Return the payload of the commonest batch: one record without headers."""
    return b"".join((_plain_head(len(body)), body))


def parse_record(data: Buffer, at: int, end: int) -> tuple[Headers, int]:
    """Return the headers of the record in [at, end) and where its body starts; it ends at `end`.

    `end` must not exceed the data. Raises RecordFormatError.
    """
    magic = data[at] if at < end else 0
    kind, width = magic & _TYPE_MASK, magic >> _WIDTH_SHIFT & _WIDTH_MASK
    if not COMMAND <= kind <= ENCRYPTED or not width or magic & _RESERVED:
        raise RecordFormatError("unknown magic byte")
    if magic & _WIDE and kind != ENVELOPE:
        raise RecordFormatError("unknown magic byte")
    after = at + 1 + width
    if after > end:
        raise RecordFormatError("record is cut short")
    stored = int.from_bytes(data[at + 1 : after], "big")
    if kind == ENVELOPE:
        headers, body_at, size = _parse_headers(
            data, after, end, _WIDER if magic & _WIDE else _NARROW
        )
    elif kind == COMMAND:
        headers, body_at, size = _parse_op(data, after, end)
    else:
        raise RecordFormatError("record is encrypted")
    if stored != 8 + 2 * len(headers) + size + end - body_at:
        raise RecordFormatError("metered size is wrong")
    return headers, body_at


def stored_commands(payload: Buffer, count: int) -> tuple[tuple[int, Command], ...]:
    """Return the commands of a stored batch with their places in it; nothing else is looked at.

    Raises RecordFormatError where a command is none.
    """
    area = 8 * count
    if len(payload) < area:
        raise RecordFormatError("the columns do not fit the records")
    ends: list[int] = np.frombuffer(payload, "<u4", count).tolist()
    commands: list[tuple[int, Command]] = []
    at = area
    for index, offset in enumerate(ends):
        end = area + offset
        if not area <= at < end <= len(payload):
            raise RecordFormatError(f"record {index}: the columns do not fit the records")
        if payload[at] & _TYPE_MASK == COMMAND:
            headers, body_at = parse_record(payload, at, end)
            command = command_of(headers, bytes(payload[body_at:end]))
            assert command is not None, "its only header has no name"
            commands.append((index, command))
        at = end
    return tuple(commands)


def _parse_headers(
    data: Buffer, at: int, end: int, number: struct.Struct
) -> tuple[Headers, int, int]:
    """Return the headers, the position behind them, and the bytes in names and values."""
    width, unpack = number.size, number.unpack_from
    start = at + width
    if start > end:
        raise RecordFormatError("record is cut short")
    (count,) = unpack(data, at)
    headers: list[tuple[bytes, bytes]] = []
    at = start
    for _ in range(count):
        name_at = at + width
        if name_at > end:
            raise RecordFormatError("record is cut short")
        name_end = name_at + unpack(data, at)[0]
        value_at = name_end + width
        if value_at > end:
            raise RecordFormatError("record is cut short")
        at = value_at + unpack(data, name_end)[0]
        if at > end:
            raise RecordFormatError("record is cut short")
        headers.append((bytes(data[name_at:name_end]), bytes(data[value_at:at])))
    return tuple(headers), at, at - start - 2 * width * count


def _parse_op(data: Buffer, at: int, end: int) -> tuple[Headers, int, int]:
    if at == end:
        raise RecordFormatError("record is cut short")
    op = _OPS.get(data[at])
    size = end - at - 1
    if (op == FENCE_OP and size <= FENCING_TOKEN_BYTES_MAX) or (
        op == TRIM_OP and size == TRIM_BODY_BYTES
    ):
        return ((b"", op),), at + 1, len(op)
    raise RecordFormatError("unknown command")


def _encode_start(headers: Headers, body: bytes) -> tuple[bytes, int, Command | None]:
    """Return everything of a stored record in front of its body, its metered size, its command."""
    command = command_of(headers, body)
    if command is not None:
        metered = metered_bytes(headers, body)
        op = 1 if isinstance(command, Fence) else 2
        return bytes((COMMAND | 1 << _WIDTH_SHIFT, metered, op)), metered, command
    wide = 0
    try:
        fields = _encode_headers(headers, _NARROW)
        size = len(fields) - _NARROW.size * (1 + 2 * len(headers))
    except struct.error:
        fields = _encode_headers(headers, _WIDER)
        size = len(fields) - _WIDER.size * (1 + 2 * len(headers))
        wide = _WIDE
    metered = 8 + 2 * len(headers) + size + len(body)
    check_record_size(metered)
    width = 1 if metered <= _BYTE_MAX else 2 if metered <= _NARROW_MAX else 3
    magic = ENVELOPE | width << _WIDTH_SHIFT | wide
    return (magic << 8 * width | metered).to_bytes(1 + width, "big") + fields, metered, None


def _encode_headers(headers: Headers, number: struct.Struct) -> bytes:
    """Return count and headers; struct.error where one of the numbers is too large."""
    pack = number.pack
    parts = [pack(len(headers))]
    for name, value in headers:
        parts += (pack(len(name)), name, pack(len(value)), value)
    return b"".join(parts)


def _timestamp_columns(records: Sequence[Record]) -> tuple[U64Array | None, BoolArray | None]:
    stamps = [record.timestamp for record in records]
    absent = stamps.count(None)
    if absent == len(stamps):
        return None, None
    if not absent:
        return np.array(stamps, np.uint64), None
    missing = np.array([stamp is None for stamp in stamps], np.bool_)
    return np.array([stamp or 0 for stamp in stamps], np.uint64), missing
