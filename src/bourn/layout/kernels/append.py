"""AppendInput to stored records, in two walks over the message.

`scan_append` checks every byte of the message, weighs its records and leaves a row of facts for
each; `write_append` copies what the rows name into the stored form. As in `protobuf.py`, functions
return the position behind what they took, or a fault.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.facts import (
    AT,
    BAD_UTF8,
    BODY_AT,
    BODY_BYTES,
    BYTE_MAX,
    COMMANDS,
    FACTS,
    FENCE_OP_BYTES,
    FLAG_COMMAND,
    FLAG_EMPTY_NAME,
    FLAG_STAMPED,
    FLAG_WIDE,
    FLAGS,
    FLAWED,
    HEADER_COUNT,
    HEADER_SUM,
    MAGIC_WIDE,
    MATCH,
    MATCH_SET,
    METERED,
    METERED_SUM,
    NARROW_MAX,
    OP_FENCE,
    OP_TRIM,
    RECORD_AT,
    RECORD_END,
    RECORD_METERED_MAX,
    STAMP,
    STAMPED,
    STORED_SUM,
    TOKEN_AT,
    TOKEN_BYTES,
    TYPE_COMMAND,
    TYPE_ENVELOPE,
    VALUE_AT,
    VALUE_BYTES,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    copy,
    inlined,
    int64,
    load_word,
    span,
    store_big,
    store_byte,
    store_little_u32,
    store_word,
)
from bourn.layout.kernels.protobuf import (
    is_utf8,
    read_bytes,
    read_tag,
    read_varint,
    skip_field,
)

HELPERS_CHECKSUM: Final = "776a6e4e301770bc"  # see the package

# Tags: field number and wire type
_RECORDS: Final = 0x0A
_MATCH_SEQ_NUM: Final = 0x10
_FENCING_TOKEN: Final = 0x1A
_TIMESTAMP: Final = 0x08
_HEADERS: Final = 0x12
_BODY: Final = 0x1A
_NAME: Final = 0x0A
_VALUE: Final = 0x12

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


@inlined
def read_header(data: Span, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Take a Header message: where its name and value lie, and how long they are."""
    name_at = name_bytes = value_at = value_bytes = int64(0)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag == _NAME:
            name_at, name_bytes, at = read_bytes(data, at, end)
        elif tag == _VALUE:
            value_at, value_bytes, at = read_bytes(data, at, end)
        else:
            at = skip_field(data, at, end, tag, 2)
    return name_at, name_bytes, value_at, value_bytes, at


@inlined
def scan_record(data: Span, at: int, end: int, rows: Span, row: int) -> int:
    """Take an AppendRecord and leave its facts at `row`."""
    body_at = body_bytes = value_at = value_bytes = int64(0)
    header_count = header_bytes = stamp = flags = int64(0)
    store_word(rows, row + RECORD_AT, at)
    store_word(rows, row + RECORD_END, end)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag == _BODY:
            body_at, body_bytes, at = read_bytes(data, at, end)
        elif tag == _HEADERS:
            header_at, _, header_end = read_bytes(data, at, end)
            _, name_bytes, value_at, value_bytes, at = read_header(data, header_at, header_end)
            header_count += 1
            header_bytes += name_bytes + value_bytes
            if name_bytes == 0:
                flags |= FLAG_EMPTY_NAME
            if name_bytes > NARROW_MAX or value_bytes > NARROW_MAX:
                flags |= FLAG_WIDE
        elif tag == _TIMESTAMP:
            value, at = read_varint(data, at, end)
            stamp = int64(value)
            flags |= FLAG_STAMPED
        else:
            at = skip_field(data, at, end, tag, 1)
    if header_count > NARROW_MAX:
        flags |= FLAG_WIDE
    if header_count == 1 and flags & FLAG_EMPTY_NAME:
        flags = flags & FLAG_STAMPED | FLAG_COMMAND
    store_word(rows, row + BODY_AT, body_at)
    store_word(rows, row + BODY_BYTES, body_bytes)
    store_word(rows, row + HEADER_COUNT, header_count)
    store_word(rows, row + METERED, 8 + 2 * header_count + header_bytes + body_bytes)
    store_word(rows, row + STAMP, stamp)
    store_word(rows, row + FLAGS, flags)
    store_word(rows, row + VALUE_AT, value_at)
    store_word(rows, row + VALUE_BYTES, value_bytes)
    return at


@inlined
def metered_width(metered: int) -> int:
    """Return how many bytes hold a metered size."""
    return 1 if metered <= BYTE_MAX else (2 if metered <= NARROW_MAX else 3)


@inlined
def stored_size(rows: Span, row: int) -> int:
    """Return how many bytes the stored record takes."""
    metered = load_word(rows, row + METERED)
    flags = load_word(rows, row + FLAGS)
    if flags & FLAG_COMMAND:
        return 2 + metered_width(metered) + load_word(rows, row + BODY_BYTES)
    field = 4 if flags & FLAG_WIDE else 2
    headers = load_word(rows, row + HEADER_COUNT)
    # The metered size counts 8 for the record and 2 for a header; the rest are the bytes.
    return 1 + metered_width(metered) + field * (1 + 2 * headers) + metered - 8 - 2 * headers


@inlined
def add(state: Span, index: int, value: int) -> None:
    """Add to one of the sums."""
    store_word(state, index, load_word(state, index) + value)


@inlined
def count_record(rows: Span, row: int, index: int, state: Span) -> None:
    """Add a scanned row to the sums."""
    metered = load_word(rows, row + METERED)
    flags = load_word(rows, row + FLAGS)
    add(state, METERED_SUM, metered)
    add(state, HEADER_SUM, load_word(rows, row + HEADER_COUNT))
    add(state, STORED_SUM, stored_size(rows, row))
    add(state, STAMPED, flags & FLAG_STAMPED)
    add(state, COMMANDS, (flags & FLAG_COMMAND) >> 1)
    is_flawed = flags & FLAG_EMPTY_NAME or metered > RECORD_METERED_MAX
    if is_flawed and load_word(state, FLAWED) < 0:
        store_word(state, FLAWED, index)


def scan_append(data_array: Bytes, rows_array: Words, state_array: Words) -> int:
    """Take an AppendInput from `state[AT]` on; return the number of rows filled, or a fault.

    Stops in front of a record that finds no free row.
    """
    data, rows, state = span(data_array), span(rows_array), span(state_array)
    rows_max = rows_array.size // FACTS
    end = data[1]
    at = load_word(state, AT)
    filled = int64(0)
    store_word(state, FLAWED, -1)
    while 0 <= at < end:
        start = at
        tag, at = read_tag(data, at, end)
        if tag == _RECORDS:
            if filled == rows_max:
                at = start
                break
            record_at, _, record_end = read_bytes(data, at, end)
            at = scan_record(data, record_at, record_end, rows, FACTS * filled)
            count_record(rows, FACTS * filled, filled, state)
            filled += 1
        elif tag == _MATCH_SEQ_NUM:
            match, at = read_varint(data, at, end)
            store_word(state, MATCH_SET, 1)
            store_word(state, MATCH, int64(match))
        elif tag == _FENCING_TOKEN:
            token_at, size, at = read_bytes(data, at, end)
            if at > 0 and not is_utf8(data, token_at, at):
                at = int64(BAD_UTF8)
            store_word(state, TOKEN_AT, token_at)
            store_word(state, TOKEN_BYTES, size)
        else:
            at = skip_field(data, at, end, tag, 0)
    store_word(state, AT, at)
    return filled if at >= 0 else at


@inlined
def write_headers(data: Span, at: int, end: int, out: Span, to: int, field: int) -> int:
    """Copy the headers of a scanned record, in their order; return the position behind them."""
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag != _HEADERS:
            at = skip_field(data, at, end, tag, 1)
            continue
        header_at, _, header_end = read_bytes(data, at, end)
        name_at, name_bytes, value_at, value_bytes, at = read_header(data, header_at, header_end)
        store_big(out, to, name_bytes, field)
        copy(out, to + field, data, name_at, name_bytes)
        to += field + name_bytes
        store_big(out, to, value_bytes, field)
        copy(out, to + field, data, value_at, value_bytes)
        to += field + value_bytes
    return to if at >= 0 else at


def write_append(data_array: Bytes, rows_array: Words, count: int, fresh: Bytes) -> int:
    """Write the stored form of `count` scanned rows; return its size, or a fault."""
    data, rows, out = span(data_array), span(rows_array), span(fresh)
    at = area = 8 * count
    for index in range(count):
        row = FACTS * index
        start = at
        metered = load_word(rows, row + METERED)
        flags = load_word(rows, row + FLAGS)
        width = metered_width(metered)
        store_big(out, at + 1, metered, width)
        if flags & FLAG_COMMAND:
            store_byte(out, at, TYPE_COMMAND | width << 3)
            is_fence = load_word(rows, row + VALUE_BYTES) == FENCE_OP_BYTES
            store_byte(out, at + 1 + width, OP_FENCE if is_fence else OP_TRIM)
            at += 2 + width
        else:
            wide = flags & FLAG_WIDE
            field = 4 if wide else 2
            headers = load_word(rows, row + HEADER_COUNT)
            store_byte(out, at, TYPE_ENVELOPE | width << 3 | (MAGIC_WIDE if wide else 0))
            store_big(out, at + 1 + width, headers, field)
            at += 1 + width + field
            if headers > 0:
                record_at, record_end = (
                    load_word(rows, row + RECORD_AT),
                    load_word(rows, row + RECORD_END),
                )
                at = write_headers(data, record_at, record_end, out, at, field)
                if at < 0:
                    return at
        body_bytes = load_word(rows, row + BODY_BYTES)
        copy(out, at, data, load_word(rows, row + BODY_AT), body_bytes)
        store_little_u32(out, 4 * (count + index), at - start)
        at += body_bytes
        store_little_u32(out, 4 * index, at - area)
    return at


KERNELS: Final = {
    "scan_append": (scan_append, types.int64(BYTES, WORDS, WORDS)),
    "write_append": (write_append, types.int64(BYTES, WORDS, types.int64, BYTES)),
}
