"""Stored records to the `records` of a ReadBatch message, and what they weigh.

A fault is `-(16 * index + code)`: which record of the batch, and what is wrong with it.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.facts import (
    BAD_BODY_START,
    BAD_COLUMNS,
    BAD_COMMAND,
    BAD_MAGIC,
    BAD_METERED,
    CHANGED,
    ENCRYPTED,
    FENCE_BODY_BYTES_MAX,
    FENCE_OP_BYTES,
    MAGIC_MAX,
    MAGIC_WIDE,
    OP_FENCE,
    OP_TRIM,
    RECORD_CUT_SHORT,
    RECORD_FAULT_BASE,
    TRIM_BODY_BYTES,
    TRIM_OP_BYTES,
    TYPE_COMMAND,
    TYPE_ENCRYPTED,
    TYPE_ENVELOPE,
)
from bourn.layout.kernels.memory import (
    BYTES,
    Span,
    copy,
    inlined,
    int64,
    load_big,
    load_byte,
    load_little_u32,
    load_little_u64,
    span,
    store_byte,
    store_little_u32,
    store_varint,
    uint64,
    varint_size,
)

HELPERS_CHECKSUM: Final = "776a6e4e301770bc"  # see the package

# Tags
_RECORDS: Final = 0x0A
_SEQ_NUM: Final = 0x08
_TIMESTAMP: Final = 0x10
_HEADERS: Final = 0x1A
_BODY: Final = 0x22
_NAME: Final = 0x0A
_VALUE: Final = 0x12

Bytes = npt.NDArray[np.uint8]


@inlined
def columns_fit(payload: Span, count: int) -> bool:
    """Whether the payload has its columns, and records that end where it ends."""
    return (
        0 < count <= payload[1] >> 3
        and load_little_u32(payload, 4 * (count - 1)) == payload[1] - 8 * count
    )


@inlined
def locate(payload: Span, count: int, index: int) -> tuple[int, int, int]:
    """Return where a record starts, where its body starts and where it ends; or a fault."""
    at = end = area = 8 * count
    if index > 0:
        at += load_little_u32(payload, 4 * (index - 1))
    end += load_little_u32(payload, 4 * index)
    body_at = at + load_little_u32(payload, 4 * (count + index))
    if at < area or end > payload[1] or body_at <= at or body_at > end:
        return -BAD_COLUMNS, 0, 0
    return at, body_at, end


@inlined
def read_prefix(payload: Span, at: int, end: int) -> tuple[int, int, int]:
    """Take magic byte and metered size: both, and the position behind them or a fault."""
    magic = load_byte(payload, at)
    width = magic >> 3 & 3
    kind = magic & 7
    if magic > MAGIC_MAX or width == 0 or kind == 0 or kind > TYPE_ENCRYPTED:
        return magic, 0, -BAD_MAGIC
    if magic & MAGIC_WIDE and kind != TYPE_ENVELOPE:
        return magic, 0, -BAD_MAGIC
    if end - at < 1 + width:
        return magic, 0, -RECORD_CUT_SHORT
    return magic, load_big(payload, at + 1, width), at + 1 + width


@inlined
def header_size(name_bytes: int, value_bytes: int) -> int:
    """Return the size of a Header message."""
    size = int64(0)
    if name_bytes > 0:
        size += 1 + varint_size(name_bytes) + name_bytes
    if value_bytes > 0:
        size += 1 + varint_size(value_bytes) + value_bytes
    return size


@inlined
def measure_envelope(payload: Span, at: int, body_at: int, end: int, field: int) -> tuple[int, int]:
    """Walk the headers from their count on: metered size or fault, encoded size of the headers."""
    if end - at < field:
        return -RECORD_CUT_SHORT, 0
    count = load_big(payload, at, field)
    at += field
    metered = 8 + 2 * count + end - body_at
    encoded = int64(0)
    for _ in range(count):
        if end - at < field:
            return -RECORD_CUT_SHORT, 0
        name_bytes = load_big(payload, at, field)
        at += field
        if end - at < name_bytes + field:
            return -RECORD_CUT_SHORT, 0
        at += name_bytes
        value_bytes = load_big(payload, at, field)
        at += field
        if end - at < value_bytes:
            return -RECORD_CUT_SHORT, 0
        at += value_bytes
        metered += name_bytes + value_bytes
        size = header_size(name_bytes, value_bytes)
        encoded += 1 + varint_size(size) + size
    if at != body_at:
        return -BAD_BODY_START, 0
    return metered, encoded


@inlined
def measure_command(payload: Span, at: int, body_at: int, end: int) -> tuple[int, int]:
    """Judge a command from its op on: metered size or fault, encoded size of its header."""
    if at == end:
        return -RECORD_CUT_SHORT, 0
    if body_at != at + 1:
        return -BAD_BODY_START, 0
    op = load_byte(payload, at)
    body_bytes = end - body_at
    if op == OP_FENCE and body_bytes <= FENCE_BODY_BYTES_MAX:
        return 10 + FENCE_OP_BYTES + body_bytes, 4 + FENCE_OP_BYTES
    if op == OP_TRIM and body_bytes == TRIM_BODY_BYTES:
        return 10 + TRIM_OP_BYTES + body_bytes, 4 + TRIM_OP_BYTES
    return -BAD_COMMAND, 0


@inlined
def measure(payload: Span, at: int, body_at: int, end: int) -> tuple[int, int]:
    """Judge one record: metered size or fault, encoded size of its headers."""
    magic, stored, after = read_prefix(payload, at, end)
    if after < 0:
        return after, 0
    if magic & 7 == TYPE_ENVELOPE:
        field = 4 if magic & MAGIC_WIDE else 2
        metered, encoded = measure_envelope(payload, after, body_at, end, field)
    elif magic & 7 == TYPE_COMMAND:
        metered, encoded = measure_command(payload, after, body_at, end)
    else:
        return -ENCRYPTED, 0
    if metered >= 0 and metered != stored:
        return -BAD_METERED, 0
    return metered, encoded


@inlined
def message_size(seq_num: int, stamp: int, headers: int, body_bytes: int) -> int:
    """Return the size of a SequencedRecord message; zeros and an empty body are left out."""
    size = headers
    if seq_num != 0:
        size += 1 + varint_size(seq_num)
    if stamp != 0:
        size += 1 + varint_size(stamp)
    if body_bytes > 0:
        size += 1 + varint_size(body_bytes) + body_bytes
    return size


@inlined
def load_stamp(stamps: Span, stamp_of_all: int, index: int) -> int:
    """Return the timestamp of a record: its own, or where there are none, the one of all."""
    return load_little_u64(stamps, 8 * index) if stamps[1] > 0 else stamp_of_all


def cut_sequenced(
    payload_array: Bytes,
    count: int,
    first_seq_num: int,
    stamps_array: Bytes,
    stamp_of_all: int,
    start: int,
    stop: int,
    metered_max: int,
    encoded_max: int,
    has_until: int,
    until: int,
) -> tuple[int, int, int]:
    """Return how far records from `start` keep the limits, and their metered and encoded size.

    The first is a fault where a record on the way is none.
    """
    payload, stamps = span(payload_array), span(stamps_array)
    metered_sum = encoded_sum = int64(0)
    if not columns_fit(payload, count):
        return -BAD_COLUMNS, 0, 0
    for index in range(start, stop):
        stamp = load_stamp(stamps, stamp_of_all, index)
        if has_until and stamp >= until:
            return index, metered_sum, encoded_sum
        at, body_at, end = locate(payload, count, index)
        if at < 0:
            return at - RECORD_FAULT_BASE * index, 0, 0
        metered, headers = measure(payload, at, body_at, end)
        if metered < 0:
            return metered - RECORD_FAULT_BASE * index, 0, 0
        size = message_size(first_seq_num + uint64(index), stamp, headers, end - body_at)
        size += 1 + varint_size(size)
        if metered_sum + metered > metered_max or encoded_sum + size > encoded_max:
            return index, metered_sum, encoded_sum
        metered_sum += metered
        encoded_sum += size
    return stop, metered_sum, encoded_sum


@inlined
def store_field(out: Span, at: int, tag: int, payload: Span, source_at: int, size: int) -> int:
    """Store a bytes field unless it is empty."""
    if size == 0:
        return at
    store_byte(out, at, tag)
    at = store_varint(out, at + 1, size)
    copy(out, at, payload, source_at, size)
    return at + size


@inlined
def write_headers(payload: Span, at: int, field: int, out: Span, out_at: int) -> int:
    """Write the headers of a measured envelope; `at` is their count."""
    count = load_big(payload, at, field)
    at += field
    for _ in range(count):
        name_at = at + field
        name_bytes = load_big(payload, at, field)
        value_at = name_at + name_bytes + field
        value_bytes = load_big(payload, value_at - field, field)
        store_byte(out, out_at, _HEADERS)
        out_at = store_varint(out, out_at + 1, header_size(name_bytes, value_bytes))
        out_at = store_field(out, out_at, _NAME, payload, name_at, name_bytes)
        out_at = store_field(out, out_at, _VALUE, payload, value_at, value_bytes)
        at = value_at + value_bytes
    return out_at


@inlined
def write_command_header(op: int, out: Span, at: int) -> int:
    """Write the header that a command has for clients: no name, and its op as the value."""
    size = FENCE_OP_BYTES if op == OP_FENCE else TRIM_OP_BYTES
    store_byte(out, at, _HEADERS)
    store_byte(out, at + 1, size + 2)
    store_byte(out, at + 2, _VALUE)
    store_byte(out, at + 3, size)
    if op == OP_FENCE:
        store_little_u32(out, at + 4, 0x636E6566)  # "fenc"
        store_byte(out, at + 8, 0x65)  # "e"
    else:
        store_little_u32(out, at + 4, 0x6D697274)  # "trim"
    return at + 4 + size


@inlined
def write_record(
    payload: Span,
    at: int,
    body_at: int,
    end: int,
    seq_num: int,
    stamp: int,
    headers: int,
    out: Span,
    to: int,
) -> int:
    """Write the fields of a measured record."""
    if seq_num != 0:
        store_byte(out, to, _SEQ_NUM)
        to = store_varint(out, to + 1, seq_num)
    if stamp != 0:
        store_byte(out, to, _TIMESTAMP)
        to = store_varint(out, to + 1, stamp)
    if headers > 0:
        magic = load_byte(payload, at)
        after = at + 1 + (magic >> 3 & 3)
        if magic & 7 == TYPE_COMMAND:
            to = write_command_header(load_byte(payload, after), out, to)
        else:
            to = write_headers(payload, after, 4 if magic & MAGIC_WIDE else 2, out, to)
    return store_field(out, to, _BODY, payload, body_at, end - body_at)


def write_sequenced(
    payload_array: Bytes,
    count: int,
    first_seq_num: int,
    stamps_array: Bytes,
    stamp_of_all: int,
    start: int,
    stop: int,
    fresh: Bytes,
) -> int:
    """Write the entries of records [start, stop); return their size, or a fault."""
    payload, stamps, out = span(payload_array), span(stamps_array), span(fresh)
    to = int64(0)
    if not columns_fit(payload, count):
        return -BAD_COLUMNS
    for index in range(start, stop):
        at, body_at, end = locate(payload, count, index)
        if at < 0:
            return at - RECORD_FAULT_BASE * index
        metered, headers = measure(payload, at, body_at, end)
        if metered < 0:
            return metered - RECORD_FAULT_BASE * index
        seq_num = first_seq_num + uint64(index)
        stamp = load_stamp(stamps, stamp_of_all, index)
        size = message_size(seq_num, stamp, headers, end - body_at)
        if 1 + varint_size(size) + size > out[1] - to:
            return -CHANGED - RECORD_FAULT_BASE * index
        store_byte(out, to, _RECORDS)
        to = store_varint(out, to + 1, size)
        to = write_record(payload, at, body_at, end, seq_num, stamp, headers, out, to)
    return to


def metered_sizes(payload_array: Bytes, count: int, sizes: npt.NDArray[np.uint32]) -> int:
    """Fill in the metered size of every record; return 0, or a fault."""
    payload, out = span(payload_array), span(sizes)
    if not columns_fit(payload, count):
        return -BAD_COLUMNS
    for index in range(count):
        at, _, end = locate(payload, count, index)
        if at < 0:
            return at - RECORD_FAULT_BASE * index
        _, metered, after = read_prefix(payload, at, end)
        if after < 0:
            return after - RECORD_FAULT_BASE * index
        store_little_u32(out, 4 * index, metered)
    return int64(0)


_INT: Final = types.int64
_UINT: Final = types.uint64
_INTS: Final[Callable[..., Any]] = types.UniTuple

KERNELS: Final = {
    "cut_sequenced": (
        cut_sequenced,
        _INTS(_INT, 3)(BYTES, _INT, _UINT, BYTES, _UINT, _INT, _INT, _INT, _INT, _INT, _UINT),
    ),
    "write_sequenced": (write_sequenced, _INT(BYTES, _INT, _UINT, BYTES, _UINT, _INT, _INT, BYTES)),
    "metered_sizes": (metered_sizes, _INT(BYTES, _INT, types.uint32[::1])),
}
