"""ReadBatch messages to columns, in two walks: the first checks and measures, the second copies.

As in `protobuf.py`, functions return the position behind what they took, or a fault. Columns are
Arrow's: offsets have 32 bits, and are one more than there are values.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.append import read_header
from bourn.layout.kernels.client_facts import (
    BODY_SUM,
    END,
    END_SET,
    FROM,
    FROM_SET,
    GAP_END,
    GAP_FROM,
    GAP_SET,
    HEADER_SUM,
    IS_PAST,
    METERED_SUM,
    NAME_SUM,
    NOT_ASCENDING,
    ROWS,
    TAIL_SEQ_NUM,
    TAIL_SET,
    TAIL_STAMP,
    VALUE_SUM,
    WANTS_BODY,
    WANTS_HEADERS,
    WANTS_METERED,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    copy,
    inlined,
    int64,
    load_little_u32,
    load_word,
    span,
    store_little_u32,
    store_word,
    uint64,
)
from bourn.layout.kernels.protobuf import read_bytes, read_tag, read_varint, skip_field

HELPERS_CHECKSUM: Final = "9c3aa3494af08d8b"  # see the package

# Tags
_RECORDS: Final = 0x0A
_TAIL: Final = 0x12
_SEQ_NUM: Final = 0x08
_TIMESTAMP: Final = 0x10
_HEADERS: Final = 0x1A
_BODY: Final = 0x22

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


@inlined
def add(state: Span, index: int, value: int) -> None:
    """Add to one of the sums."""
    store_word(state, index, load_word(state, index) + value)


@inlined
def measure_record(data: Span, at: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Take a SequencedRecord.

    Returns its number and timestamp, how many headers it has, the bytes of names and values, those
    of names alone, where the body lies, its size; and the position behind the record.
    """
    seq_num = stamp = uint64(0)
    headers = pairs = names = body_at = body_bytes = int64(0)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag == _BODY:
            body_at, body_bytes, at = read_bytes(data, at, end)
        elif tag == _SEQ_NUM:
            seq_num, at = read_varint(data, at, end)
        elif tag == _TIMESTAMP:
            stamp, at = read_varint(data, at, end)
        elif tag == _HEADERS:
            header_at, _, header_end = read_bytes(data, at, end)
            _, name_bytes, _, value_bytes, at = read_header(data, header_at, header_end)
            headers += 1
            names += name_bytes
            pairs += name_bytes + value_bytes
        else:
            at = skip_field(data, at, end, tag, 1)
    return seq_num, stamp, headers, pairs, names, body_at, body_bytes, at


@inlined
def read_tail(data: Span, at: int, end: int, state: Span) -> int:
    """Take a StreamPosition; one that came before lends what this one leaves out."""
    store_word(state, TAIL_SET, 1)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag == _SEQ_NUM:
            value, at = read_varint(data, at, end)
            store_word(state, TAIL_SEQ_NUM, int64(value))
        elif tag == _TIMESTAMP:
            value, at = read_varint(data, at, end)
            store_word(state, TAIL_STAMP, int64(value))
        else:
            at = skip_field(data, at, end, tag, 1)
    return at


@inlined
def place_record(state: Span, seq_num: int) -> int:
    """Note where a record stands: 0, 1 where it is not wanted any more, or a fault."""
    if load_word(state, END_SET) != 0 and seq_num >= uint64(load_word(state, END)):
        store_word(state, IS_PAST, 1)
        return int64(1)
    if load_word(state, FROM_SET) != 0:
        expected = uint64(load_word(state, FROM))
        if seq_num < expected:
            return int64(NOT_ASCENDING)
        if seq_num > expected and load_word(state, GAP_SET) == 0:
            store_word(state, GAP_SET, 1)
            store_word(state, GAP_FROM, int64(expected))
            store_word(state, GAP_END, int64(seq_num))
    store_word(state, FROM_SET, 1)
    store_word(state, FROM, int64(seq_num + uint64(1)))
    return int64(0)


def scan_read(data_array: Bytes, state_array: Words) -> int:
    """Check a whole ReadBatch and add what it holds to the sums; 0, or a fault."""
    data, state = span(data_array), span(state_array)
    end = data[1]
    at = int64(0)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag == _RECORDS:
            record_at, _, record_end = read_bytes(data, at, end)
            seq_num, _, headers, pairs, names, _, body_bytes, at = measure_record(
                data, record_at, record_end
            )
            if at < 0 or load_word(state, IS_PAST) != 0:
                continue
            placed = place_record(state, seq_num)
            if placed < 0:
                return placed
            if placed == 0:
                add(state, ROWS, 1)
                add(state, HEADER_SUM, headers)
                add(state, NAME_SUM, names)
                add(state, VALUE_SUM, pairs - names)
                add(state, BODY_SUM, body_bytes)
                add(state, METERED_SUM, 8 + 2 * headers + pairs + body_bytes)
        elif tag == _TAIL:
            tail_at, _, tail_end = read_bytes(data, at, end)
            at = read_tail(data, tail_at, tail_end, state)
        else:
            at = skip_field(data, at, end, tag, 0)
    return min(at, int64(0))


@inlined
def fill_headers(
    data: Span,
    at: int,
    end: int,
    names: Span,
    name_data: Span,
    values: Span,
    value_data: Span,
    header: int,
) -> int:
    """Copy the headers of a measured record behind the `header` that are there; return how many."""
    name_to, value_to = load_little_u32(names, 4 * header), load_little_u32(values, 4 * header)
    while 0 <= at < end:
        tag, at = read_tag(data, at, end)
        if tag != _HEADERS:
            at = skip_field(data, at, end, tag, 1)
            continue
        header_at, _, header_end = read_bytes(data, at, end)
        name_at, name_bytes, value_at, value_bytes, at = read_header(data, header_at, header_end)
        header += 1
        copy(name_data, name_to, data, name_at, name_bytes)
        name_to += name_bytes
        store_little_u32(names, 4 * header, name_to)
        copy(value_data, value_to, data, value_at, value_bytes)
        value_to += value_bytes
        store_little_u32(values, 4 * header, value_to)
    return header


def fill_read(
    data_array: Bytes,
    count: int,
    wanted: int,
    seq_nums_array: Words,
    stamps_array: Words,
    metered_array: Bytes,
    headers_array: Bytes,
    names_array: Bytes,
    name_array: Bytes,
    values_array: Bytes,
    value_array: Bytes,
    bodies_array: Bytes,
    body_array: Bytes,
) -> int:
    """Copy the first `count` records of scanned messages, joined; return how many there were."""
    data, seq_nums, stamps = span(data_array), span(seq_nums_array), span(stamps_array)
    metered_sizes, headers = span(metered_array), span(headers_array)
    names, name_data = span(names_array), span(name_array)
    values, value_data = span(values_array), span(value_array)
    bodies, body_data = span(bodies_array), span(body_array)
    at = row = header = body_to = int64(0)
    if wanted & WANTS_HEADERS:
        store_little_u32(headers, 0, 0)
        store_little_u32(names, 0, 0)
        store_little_u32(values, 0, 0)
    if wanted & WANTS_BODY:
        store_little_u32(bodies, 0, 0)
    while 0 <= at < data[1] and row < count:
        tag, at = read_tag(data, at, data[1])
        if tag != _RECORDS:
            at = skip_field(data, at, data[1], tag, 0)
            continue
        record_at, _, end = read_bytes(data, at, data[1])
        seq_num, stamp, header_count, pairs, _, body_at, body_bytes, at = measure_record(
            data, record_at, end
        )
        if at < 0:
            return at
        store_word(seq_nums, row, int64(seq_num))
        store_word(stamps, row, int64(stamp))
        if wanted & WANTS_METERED:
            metered = 8 + 2 * header_count + pairs + body_bytes
            store_little_u32(metered_sizes, 4 * row, metered)
        row += 1
        if wanted & WANTS_BODY:
            copy(body_data, body_to, data, body_at, body_bytes)
            body_to += body_bytes
            store_little_u32(bodies, 4 * row, body_to)
        if wanted & WANTS_HEADERS:
            if header_count > 0:
                header = fill_headers(
                    data, record_at, end, names, name_data, values, value_data, header
                )
            store_little_u32(headers, 4 * row, header)
    return row if at >= 0 else at


_INT: Final = types.int64

KERNELS: Final = {
    "scan_read": (scan_read, _INT(BYTES, WORDS)),
    "fill_read": (
        fill_read,
        _INT(
            BYTES,
            _INT,
            _INT,
            WORDS,
            WORDS,
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
