"""Stored records to a ReadBatch in JSON, byte for byte as `wire/json.py` has it.

A read batch is a row of parts, each some records of one stored batch. What a kernel takes:

    data     the payloads of the parts, back to back
    parts    for each part PART_WORDS numbers, u64 little endian: where its payload lies and how
             long it is, count, first sequence number, the first record wanted and the one behind
             the last, the timestamp of all, and where in `stamps` their own are, or NO_STAMPS
    words    WORDS: the text around the values
    plain    a byte for each record wanted: `survey_json` notes 1 where the body is text that is
             copied as it is, for `write_json`, which looks for itself where it is given none
    ending   what stands behind the records

A fault is as in `sequenced.py`, by the record's place in its part.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.facts import (
    BAD_COLUMNS,
    FENCE_OP_BYTES,
    MAGIC_WIDE,
    OP_FENCE,
    RECORD_FAULT_BASE,
    TRIM_OP_BYTES,
    TYPE_COMMAND,
)
from bourn.layout.kernels.json_facts import (
    BODY_AT,
    BODY_BYTES,
    FENCE_AT,
    GROWTH_MAX,
    HEADERS_AT,
    HEADERS_BYTES,
    NO_NAME_AT,
    NO_NAME_BYTES,
    NO_STAMPS,
    PART_BYTES,
    SEQ_NUM_AT,
    SEQ_NUM_BYTES,
    START_AT,
    START_BYTES,
    TIMESTAMP_AT,
    TIMESTAMP_BYTES,
    TRIM_AT,
)
from bourn.layout.kernels.json_text import base64_size, is_plain, write_base64, write_escaped
from bourn.layout.kernels.memory import (
    BYTES,
    Span,
    called,
    check,
    copy,
    inlined,
    int64,
    load_big,
    load_byte,
    load_little_u64,
    span,
    store_byte,
    uint64,
)
from bourn.layout.kernels.sequenced import columns_fit, load_stamp, locate, measure

HELPERS_CHECKSUM: Final = "4ec7da0065fe605c"  # see the package

Bytes = npt.NDArray[np.uint8]

Part = tuple[Span, int, int, int, int, int, Span]


@inlined
def load_part(data: Span, parts: Span, at: int, stamps: Span) -> Part:
    """Return the part at `at`: payload, count, first, start, stop, timestamp of all, timestamps."""
    payload_at = int64(load_little_u64(parts, at))
    payload_size = int64(load_little_u64(parts, at + 8))
    check(data, payload_at, payload_size)
    count = int64(load_little_u64(parts, at + 16))
    stamps_at = load_little_u64(parts, at + 56)
    own = (stamps[0], int64(0))
    if stamps_at != uint64(NO_STAMPS):
        check(stamps, int64(stamps_at), 8 * count)
        own = (stamps[0] + int64(stamps_at), 8 * count)
    return (
        (data[0] + payload_at, payload_size),
        count,
        load_little_u64(parts, at + 24),
        int64(load_little_u64(parts, at + 32)),
        int64(load_little_u64(parts, at + 40)),
        load_little_u64(parts, at + 48),
        own,
    )


@inlined
def digits(value: int) -> int:
    """Return how many digits a number has."""
    found = int64(1)
    rest = uint64(value)
    while rest >= uint64(10000):
        rest //= uint64(10000)
        found += 4
    if rest >= uint64(1000):
        return found + 3
    if rest >= uint64(100):
        return found + 2
    return found + 1 if rest >= uint64(10) else found


@inlined
def store_number(out: Span, at: int, value: int) -> int:
    """Write a number, and return the place behind it."""
    end = at + digits(value)
    check(out, at, end - at)
    rest = uint64(value)
    place = end
    while place > at:
        place -= 1
        store_byte(out, place, 48 + int64(rest % uint64(10)))
        rest //= uint64(10)
    return end


@inlined
def text_size(payload: Span, at: int, end: int, is_base64: int) -> tuple[int, bool]:
    """Return how long a text gets and that this is exact, or how long at most."""
    if is_base64:
        return base64_size(end - at), True
    if is_plain(payload, at, end):
        return end - at, True
    return GROWTH_MAX * (end - at), False


@called
def headers_size(payload: Span, at: int, is_base64: int) -> tuple[int, bool]:
    """As `text_size`, for the headers of a record that has some, with all around them."""
    magic = load_byte(payload, at)
    at += 1 + (magic >> 3 & 3)
    size = int64(HEADERS_BYTES)
    if magic & 7 == TYPE_COMMAND:
        op_bytes = FENCE_OP_BYTES if load_byte(payload, at) == OP_FENCE else TRIM_OP_BYTES
        return size + 8 + (base64_size(op_bytes) if is_base64 else op_bytes), True
    field = 4 if magic & MAGIC_WIDE else 2
    is_exact = True
    for _ in range(2 * load_big(payload, at, field)):
        at += field
        text_bytes = load_big(payload, at, field)
        found, is_known = text_size(payload, at + field, at + field + text_bytes, is_base64)
        size += 4 + found  # its quotes, a bracket, a comma
        is_exact &= is_known
        at += text_bytes
    return size, is_exact


@called
def store_string(
    out: Span, to: int, data: Span, at: int, end: int, words: Span, is_base64: int
) -> int:
    """Write a string with its quotes."""
    store_byte(out, to, 34)
    if is_base64:
        to = write_base64(out, to + 1, data, at, end, words)
    else:
        to = write_escaped(out, to + 1, data, at, end)
    store_byte(out, to, 34)
    return to + 1


@called
def write_headers(out: Span, to: int, payload: Span, at: int, words: Span, is_base64: int) -> int:
    """Write the headers of a record that has some."""
    copy(out, to, words, HEADERS_AT, HEADERS_BYTES)
    to += HEADERS_BYTES
    magic = load_byte(payload, at)
    at += 1 + (magic >> 3 & 3)
    if magic & 7 == TYPE_COMMAND:
        is_fence = load_byte(payload, at) == OP_FENCE
        word_at = FENCE_AT if is_fence else TRIM_AT
        word_end = word_at + (FENCE_OP_BYTES if is_fence else TRIM_OP_BYTES)
        copy(out, to, words, NO_NAME_AT, NO_NAME_BYTES)
        to += NO_NAME_BYTES
        to = store_string(out, to, words, word_at, word_end, words, is_base64)
        store_byte(out, to, 93)
        store_byte(out, to + 1, 93)
        return to + 2
    field = 4 if magic & MAGIC_WIDE else 2
    count = load_big(payload, at, field)
    at += field
    for _ in range(count):
        name_end = at + field + load_big(payload, at, field)
        value_end = name_end + field + load_big(payload, name_end, field)
        store_byte(out, to, 91)
        to = store_string(out, to + 1, payload, at + field, name_end, words, is_base64)
        store_byte(out, to, 44)
        to = store_string(out, to + 1, payload, name_end + field, value_end, words, is_base64)
        store_byte(out, to, 93)
        store_byte(out, to + 1, 44)
        to += 2
        at = value_end
    store_byte(out, to - 1, 93)
    return to


def survey_json(
    data_array: Bytes, parts_array: Bytes, stamps_array: Bytes, is_base64: int, plain_array: Bytes
) -> tuple[int, int]:
    """Return the size of all records with a comma behind each, and 1; or how much it is at most.

    The first is a fault where a record is none.
    """
    data, parts, stamps = span(data_array), span(parts_array), span(stamps_array)
    plain = span(plain_array)
    size = seen = int64(0)
    is_exact = True
    for part_at in range(0, parts[1], PART_BYTES):
        payload, count, first, start, stop, stamp_of_all, own = load_part(
            data, parts, part_at, stamps
        )
        if not columns_fit(payload, count):
            return -BAD_COLUMNS, 0
        for index in range(start, stop):
            at, body_at, end = locate(payload, count, index)
            if at < 0:
                return at - RECORD_FAULT_BASE * index, 0
            metered, headers = measure(payload, at, body_at, end)
            if metered < 0:
                return metered - RECORD_FAULT_BASE * index, 0
            size += SEQ_NUM_BYTES + digits(first + uint64(index))
            size += TIMESTAMP_BYTES + digits(load_stamp(own, stamp_of_all, index)) + 2
            if headers > 0:
                found, is_known = headers_size(payload, at, is_base64)
                size += found
                is_exact &= is_known
            found, is_known = text_size(payload, body_at, end, is_base64)
            store_byte(plain, seen, 1 if is_known and not is_base64 else 0)
            size += BODY_BYTES + found + 1 if end > body_at else 0
            is_exact &= is_known
            seen += 1
    return size, 1 if is_exact else 0


@inlined
def write_body(
    out: Span, to: int, payload: Span, at: int, end: int, words: Span, is_base64: int, is_plain: int
) -> int:
    """Write the body of a record that has one."""
    copy(out, to, words, BODY_AT, BODY_BYTES)
    to += BODY_BYTES
    if is_plain:
        copy(out, to, payload, at, end - at)
        to += end - at
    elif is_base64:
        to = write_base64(out, to, payload, at, end, words)
    else:
        to = write_escaped(out, to, payload, at, end)
    store_byte(out, to, 34)
    return to + 1


def write_json(
    data_array: Bytes,
    parts_array: Bytes,
    stamps_array: Bytes,
    is_base64: int,
    words_array: Bytes,
    plain_array: Bytes,
    ending_array: Bytes,
    fresh: Bytes,
) -> int:
    """Write the batch; return its size, or a fault."""
    data, parts, stamps = span(data_array), span(parts_array), span(stamps_array)
    words, plain, ending = span(words_array), span(plain_array), span(ending_array)
    out = span(fresh)
    copy(out, 0, words, START_AT, START_BYTES)
    to, seen = int64(START_BYTES), int64(0)
    for part_at in range(0, parts[1], PART_BYTES):
        payload, count, first, start, stop, stamp_of_all, own = load_part(
            data, parts, part_at, stamps
        )
        if not columns_fit(payload, count):
            return -BAD_COLUMNS
        for index in range(start, stop):
            at, body_at, end = locate(payload, count, index)
            if at < 0:
                return at - RECORD_FAULT_BASE * index
            metered, headers = measure(payload, at, body_at, end)
            if metered < 0:
                return metered - RECORD_FAULT_BASE * index
            copy(out, to, words, SEQ_NUM_AT, SEQ_NUM_BYTES)
            to = store_number(out, to + SEQ_NUM_BYTES, first + uint64(index))
            copy(out, to, words, TIMESTAMP_AT, TIMESTAMP_BYTES)
            stamp = load_stamp(own, stamp_of_all, index)
            to = store_number(out, to + TIMESTAMP_BYTES, stamp)
            if headers > 0:
                to = write_headers(out, to, payload, at, words, is_base64)
            if end > body_at:
                known = load_byte(plain, seen) if plain[1] > 0 else 0
                to = write_body(out, to, payload, body_at, end, words, is_base64, known)
            store_byte(out, to, 125)
            store_byte(out, to + 1, 44)
            to += 2
            seen += 1
    to -= 1 if seen else 0  # the last comma
    copy(out, to, ending, 0, ending[1])
    return to + ending[1]


_INT: Final = types.int64
_INTS: Final[Callable[..., Any]] = types.UniTuple

KERNELS: Final = {
    "survey_json": (survey_json, _INTS(_INT, 2)(BYTES, BYTES, BYTES, _INT, BYTES)),
    "write_json": (write_json, _INT(BYTES, BYTES, BYTES, _INT, BYTES, BYTES, BYTES, BYTES)),
}
