"""Columns to AppendInput messages: where they are cut, and what they are as bytes.

Columns are Arrow's: offsets have 32 bits, and are one more than there are values. A mask has a byte
for each row, or none where nothing is missing. A fault is `-(4 * row + code)`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.client_facts import (
    INPUT_BYTES,
    INPUT_COUNT,
    INPUT_METERED,
    INPUT_ROW,
    INPUT_WORDS,
    ROW_BROKEN,
    ROW_FAULT_BASE,
    ROW_HEAVY,
    ROW_LONG,
)
from bourn.layout.kernels.facts import RECORD_METERED_MAX
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    copy,
    inlined,
    int64,
    load_byte,
    load_little_u32,
    load_little_u64,
    span,
    store_byte,
    store_varint,
    store_word,
    varint_size,
)

HELPERS_CHECKSUM: Final = "3848727cfb9f41fc"  # see the package

# Tags
_RECORDS: Final = 0x0A
_TIMESTAMP: Final = 0x08
_HEADERS: Final = 0x12
_BODY: Final = 0x1A
_NAME: Final = 0x0A
_VALUE: Final = 0x12

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


@inlined
def field_size(size: int) -> int:
    """Return what a field of so many bytes takes; an empty one is left out."""
    return 1 + varint_size(size) + size if size > 0 else int64(0)


@inlined
def range_of(offsets: Span, index: int) -> tuple[int, int]:
    """Return where a value starts, and how many bytes or items it has; -1 where it is none."""
    at = load_little_u32(offsets, 4 * index)
    return at, load_little_u32(offsets, 4 * index + 4) - at


@inlined
def is_there(mask: Span, row: int) -> bool:
    """Whether the row has a value, by a mask that may be empty."""
    return mask[1] == 0 or load_byte(mask, row) != 0


@inlined
def headers_of(headers: Span, headed: Span, row: int) -> tuple[int, int]:
    """Return the first header of a row, and how many there are."""
    if headers[1] == 0 or not is_there(headed, row):
        return int64(0), int64(0)
    return range_of(headers, row)


@inlined
def header_sizes(names: Span, values: Span, header: int) -> tuple[int, int, int, int, int]:
    """Return where name and value lie and their sizes, and the size of the Header message."""
    name_at, name_bytes = range_of(names, header)
    value_at, value_bytes = range_of(values, header)
    if name_bytes < 0 or value_bytes < 0:
        return name_at, name_bytes, value_at, value_bytes, int64(-1)
    size = field_size(name_bytes) + field_size(value_bytes)
    return name_at, name_bytes, value_at, value_bytes, size


@inlined
def measure_row(
    stamps: Span,
    stamped: Span,
    headers: Span,
    headed: Span,
    names: Span,
    values: Span,
    bodies: Span,
    row: int,
) -> tuple[int, int]:
    """Return the metered size of a row, or -1, and the size of its AppendRecord message."""
    _, body_bytes = range_of(bodies, row)
    first, count = headers_of(headers, headed, row)
    if body_bytes < 0 or count < 0:
        return int64(-1), int64(0)
    metered = 8 + 2 * count + body_bytes
    size = field_size(body_bytes)
    if stamps[1] > 0 and is_there(stamped, row):
        size += 1 + varint_size(load_little_u64(stamps, 8 * row))
    for header in range(first, first + count):
        _, name_bytes, _, value_bytes, header_bytes = header_sizes(names, values, header)
        if header_bytes < 0:
            return int64(-1), int64(0)
        metered += name_bytes + value_bytes
        size += 1 + varint_size(header_bytes) + header_bytes
    return metered, size


def plan_inputs(
    count: int,
    stamps_array: Bytes,
    stamped_array: Bytes,
    headers_array: Bytes,
    headed_array: Bytes,
    names_array: Bytes,
    values_array: Bytes,
    bodies_array: Bytes,
    records_max: int,
    metered_max: int,
    bytes_max: int,
    inputs_array: Words,
) -> int:
    """Cut rows into messages within all limits; return how many, or a fault."""
    stamps, stamped = span(stamps_array), span(stamped_array)
    headers, headed = span(headers_array), span(headed_array)
    names, values, bodies = span(names_array), span(values_array), span(bodies_array)
    inputs = span(inputs_array)
    planned = first = metered_sum = size_sum = int64(0)
    for row in range(count):
        metered, size = measure_row(stamps, stamped, headers, headed, names, values, bodies, row)
        if metered < 0:
            return -ROW_BROKEN - ROW_FAULT_BASE * row
        if metered > RECORD_METERED_MAX:
            return -ROW_HEAVY - ROW_FAULT_BASE * row
        size += 1 + varint_size(size)
        if size > bytes_max:
            return -ROW_LONG - ROW_FAULT_BASE * row
        is_full = (
            row - first == records_max
            or metered_sum + metered > metered_max
            or size_sum + size > bytes_max
        )
        if is_full:
            planned += 1
            first = int64(row)
            metered_sum = size_sum = int64(0)
        metered_sum += metered
        size_sum += size
        word = INPUT_WORDS * planned
        store_word(inputs, word + INPUT_ROW, first)
        store_word(inputs, word + INPUT_COUNT, row + 1 - first)
        store_word(inputs, word + INPUT_METERED, metered_sum)
        store_word(inputs, word + INPUT_BYTES, size_sum)
    return planned + 1 if count > 0 else int64(0)


@inlined
def write_field(out: Span, to: int, tag: int, data: Span, at: int, size: int) -> int:
    """Write a field of bytes; an empty one is left out."""
    if size == 0:
        return to
    store_byte(out, to, tag)
    to = store_varint(out, to + 1, size)
    copy(out, to, data, at, size)
    return to + size


def write_input(
    first: int,
    count: int,
    stamps_array: Bytes,
    stamped_array: Bytes,
    headers_array: Bytes,
    headed_array: Bytes,
    names_array: Bytes,
    values_array: Bytes,
    bodies_array: Bytes,
    name_array: Bytes,
    value_array: Bytes,
    body_array: Bytes,
    fresh: Bytes,
) -> int:
    """Write the records of planned rows; return the size."""
    stamps, stamped = span(stamps_array), span(stamped_array)
    headers, headed = span(headers_array), span(headed_array)
    names, values, bodies = span(names_array), span(values_array), span(bodies_array)
    name_data, value_data, body_data = span(name_array), span(value_array), span(body_array)
    out = span(fresh)
    to = int64(0)
    for row in range(first, first + count):
        metered, size = measure_row(stamps, stamped, headers, headed, names, values, bodies, row)
        if metered < 0:
            return -ROW_BROKEN - ROW_FAULT_BASE * row
        store_byte(out, to, _RECORDS)
        to = store_varint(out, to + 1, size)
        if stamps[1] > 0 and is_there(stamped, row):
            store_byte(out, to, _TIMESTAMP)
            to = store_varint(out, to + 1, load_little_u64(stamps, 8 * row))
        header, header_count = headers_of(headers, headed, row)
        for index in range(header, header + header_count):
            name_at, name_bytes, value_at, value_bytes, size = header_sizes(names, values, index)
            store_byte(out, to, _HEADERS)
            to = store_varint(out, to + 1, size)
            to = write_field(out, to, _NAME, name_data, name_at, name_bytes)
            to = write_field(out, to, _VALUE, value_data, value_at, value_bytes)
        body_at, body_bytes = range_of(bodies, row)
        to = write_field(out, to, _BODY, body_data, body_at, body_bytes)
    return to


_INT: Final = types.int64

KERNELS: Final = {
    "plan_inputs": (
        plan_inputs,
        _INT(_INT, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, _INT, _INT, _INT, WORDS),
    ),
    "write_input": (
        write_input,
        _INT(
            _INT,
            _INT,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
            BYTES,
        ),
    ),
}
