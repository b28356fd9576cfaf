"""Batches to columns of the history, in two walks over the records.

The first walk checks and measures, the second one copies. A fault is `-(16 * index + code)`: which
record of all, and what is wrong with it. Columns are Arrow's: offsets have 32 bits, and are one
more than there are values. Only what `from_rows.py` gives back bit for bit is taken.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.facts import (
    BAD_BODY_START,
    BAD_COLUMNS,
    BAD_COMMAND,
    BAD_METERED,
    BYTE_MAX,
    FENCE_BODY_BYTES_MAX,
    FENCE_OP_BYTES,
    MAGIC_WIDE,
    NARROW_MAX,
    OP_FENCE,
    OP_TRIM,
    RECORD_CUT_SHORT,
    RECORD_FAULT_BASE,
    TRIM_BODY_BYTES,
    TRIM_OP_BYTES,
    TYPE_COMMAND,
    TYPE_ENVELOPE,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    copy,
    inlined,
    int64,
    load_big,
    load_byte,
    load_little_u32,
    load_word,
    span,
    store_byte,
    store_little_u32,
    store_word,
)
from bourn.layout.kernels.rows_facts import (
    BATCH_AT,
    BATCH_BYTES,
    BATCH_COUNT,
    BATCH_WORDS,
    BODY_SUM,
    HEADER_SUM,
    KIND_COMMAND,
    KIND_ENCRYPTED,
    KIND_ENVELOPE,
    NAME_SUM,
    NONCE_BYTES_1,
    NONCE_BYTES_2,
    NOT_NARROWEST,
    VALUE_SUM,
)
from bourn.layout.kernels.sequenced import columns_fit, locate, read_prefix

HELPERS_CHECKSUM: Final = "62cf9ad3599d1e64"  # see the package

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_FENC: Final = 0x636E6566  # little endian
_E: Final = 0x65
_TRIM: Final = 0x6D697274


@inlined
def metered_width(metered: int) -> int:
    """Return how many bytes hold a metered size."""
    return 1 if metered <= BYTE_MAX else (2 if metered <= NARROW_MAX else 3)


@inlined
def nonce_bytes(algorithm: int) -> int:
    """Return how long a nonce is, or -1 where there is no such algorithm."""
    return NONCE_BYTES_1 if algorithm == 1 else (NONCE_BYTES_2 if algorithm == 2 else -1)  # noqa: PLR2004


@inlined
def slice_of(payloads: Span, at: int, size: int) -> Span:
    """Return a part of a span, or an empty one where it is not inside."""
    if at < 0 or size < 0 or at > payloads[1] - size:
        return payloads[0], int64(0)
    return payloads[0] + at, size


@inlined
def measure_headers(payload: Span, at: int, end: int, field: int) -> tuple[int, int, int, int]:
    """Walk headers from their count on: how many or a fault, bytes of names and values, the end."""
    if end - at < field:
        return -RECORD_CUT_SHORT, 0, 0, 0
    count = load_big(payload, at, field)
    at += field
    names = values = widest = int64(0)
    for _ in range(count):
        if end - at < field:
            return -RECORD_CUT_SHORT, 0, 0, 0
        name_bytes = load_big(payload, at, field)
        at += field
        if end - at < name_bytes + field:
            return -RECORD_CUT_SHORT, 0, 0, 0
        at += name_bytes
        value_bytes = load_big(payload, at, field)
        at += field
        if end - at < value_bytes:
            return -RECORD_CUT_SHORT, 0, 0, 0
        at += value_bytes
        names += name_bytes
        values += value_bytes
        widest = max(widest, name_bytes, value_bytes)
    if field == 4 and max(widest, count) <= NARROW_MAX:  # noqa: PLR2004  bytes
        return -NOT_NARROWEST, 0, 0, 0
    return count, names, values, at


@inlined
def measure_envelope(
    payload: Span, at: int, body_at: int, end: int, field: int, metered: int
) -> tuple[int, int, int]:
    """Judge an envelope from its header count on: headers or a fault, bytes of names, of values."""
    count, names, values, found_at = measure_headers(payload, at, end, field)
    if count < 0:
        return count, 0, 0
    if found_at != body_at:
        return -BAD_BODY_START, 0, 0
    if metered != 8 + 2 * count + names + values + end - body_at:
        return -BAD_METERED, 0, 0
    return count, names, values


@inlined
def measure_command(payload: Span, at: int, body_at: int, end: int, metered: int) -> int:
    """Judge a command from its op on: the size of the op's name, or a fault."""
    if at == end:
        return -RECORD_CUT_SHORT
    if body_at != at + 1:
        return -BAD_BODY_START
    op = load_byte(payload, at)
    body_bytes = end - body_at
    size = int64(0)
    if op == OP_FENCE and body_bytes <= FENCE_BODY_BYTES_MAX:
        size = int64(FENCE_OP_BYTES)
    elif op == OP_TRIM and body_bytes == TRIM_BODY_BYTES:
        size = int64(TRIM_OP_BYTES)
    if size == 0:
        return -BAD_COMMAND
    return size if metered == 10 + size + body_bytes else -BAD_METERED


@inlined
def measure_encrypted(payload: Span, at: int, body_at: int, end: int) -> int:
    """Judge an encrypted record from its algorithm on: 0, or a fault."""
    if at == end:
        return -RECORD_CUT_SHORT
    nonce = nonce_bytes(load_byte(payload, at))
    return int64(0) if nonce > 0 and body_at == at + 1 + nonce else -BAD_BODY_START


@inlined
def measure(payload: Span, at: int, body_at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Judge a record: headers or a fault, bytes of names, of values, of body; kind, metered size.

    The body of an encrypted record is all behind the metered size.
    """
    magic, metered, after = read_prefix(payload, at, end)
    if after < 0:
        return after, 0, 0, 0, 0, 0
    if magic >> 3 & 3 != metered_width(metered):
        return -NOT_NARROWEST, 0, 0, 0, 0, 0
    if magic & 7 == TYPE_ENVELOPE:
        field = 4 if magic & MAGIC_WIDE else 2
        count, names, values = measure_envelope(payload, after, body_at, end, field, metered)
        return count, names, values, end - body_at, int64(KIND_ENVELOPE), metered
    if magic & 7 == TYPE_COMMAND:
        size = measure_command(payload, after, body_at, end, metered)
        return min(size, 1), int64(0), size, end - body_at, int64(KIND_COMMAND), metered
    fault = measure_encrypted(payload, after, body_at, end)
    return fault, int64(0), int64(0), end - after, int64(KIND_ENCRYPTED), metered


def scan_batches(
    payloads_array: Bytes,
    batches_array: Words,
    batch_count: int,
    kinds_array: Bytes,
    metered_array: Bytes,
    headers_array: Bytes,
    bodies_array: Bytes,
    sums_array: Words,
) -> int:
    """Judge all records; fill in kinds, metered sizes and the offsets of headers and bodies."""
    payloads, batches, sums = span(payloads_array), span(batches_array), span(sums_array)
    kinds, metered_sizes = span(kinds_array), span(metered_array)
    headers, bodies = span(headers_array), span(bodies_array)
    row = header_sum = name_sum = value_sum = body_sum = int64(0)
    store_little_u32(headers, 0, 0)
    store_little_u32(bodies, 0, 0)
    for batch in range(batch_count):
        word = BATCH_WORDS * batch
        count = load_word(batches, word + BATCH_COUNT)
        payload = slice_of(
            payloads, load_word(batches, word + BATCH_AT), load_word(batches, word + BATCH_BYTES)
        )
        if not columns_fit(payload, count):
            return -BAD_COLUMNS - RECORD_FAULT_BASE * row
        for index in range(count):
            at, body_at, end = locate(payload, count, index)
            if at < 0:
                return at - RECORD_FAULT_BASE * row
            count_or_fault, names, values, size, kind, metered = measure(payload, at, body_at, end)
            if count_or_fault < 0:
                return count_or_fault - RECORD_FAULT_BASE * row
            header_sum += count_or_fault
            name_sum += names
            value_sum += values
            body_sum += size
            store_byte(kinds, row, kind)
            store_little_u32(metered_sizes, 4 * row, metered)
            row += 1
            store_little_u32(headers, 4 * row, header_sum)
            store_little_u32(bodies, 4 * row, body_sum)
    store_word(sums, HEADER_SUM, header_sum)
    store_word(sums, NAME_SUM, name_sum)
    store_word(sums, VALUE_SUM, value_sum)
    store_word(sums, BODY_SUM, body_sum)
    return row


@inlined
def fill_value_of_op(op: int, values: Span, at: int) -> int:
    """Write a command's op as clients see it; return the position behind it."""
    if op == OP_FENCE:
        store_little_u32(values, at, _FENC)
        store_byte(values, at + 4, _E)
        return at + FENCE_OP_BYTES
    store_little_u32(values, at, _TRIM)
    return at + TRIM_OP_BYTES


def fill_columns(
    payloads_array: Bytes,
    batches_array: Words,
    batch_count: int,
    bodies_array: Bytes,
    body_array: Bytes,
    names_array: Bytes,
    name_array: Bytes,
    values_array: Bytes,
    value_array: Bytes,
) -> int:
    """Copy names, values and bodies of scanned batches; return the number of rows.

    `bodies` are offsets, and are there; those of names and values are filled in, too.
    """
    payloads, batches = span(payloads_array), span(batches_array)
    bodies, body_data = span(bodies_array), span(body_array)
    names, name_data = span(names_array), span(name_array)
    values, value_data = span(values_array), span(value_array)
    row = header = name_to = value_to = int64(0)
    store_little_u32(names, 0, 0)
    store_little_u32(values, 0, 0)
    for batch in range(batch_count):
        word = BATCH_WORDS * batch
        count = load_word(batches, word + BATCH_COUNT)
        payload = slice_of(
            payloads, load_word(batches, word + BATCH_AT), load_word(batches, word + BATCH_BYTES)
        )
        for index in range(count):
            at, _, end = locate(payload, count, index)
            magic = load_byte(payload, at)
            at += 1 + (magic >> 3 & 3)
            if magic & 7 == TYPE_ENVELOPE:
                field = 4 if magic & MAGIC_WIDE else 2
                header_count = load_big(payload, at, field)
                at += field
                for _ in range(header_count):
                    size = load_big(payload, at, field)
                    copy(name_data, name_to, payload, at + field, size)
                    name_to += size
                    at += field + size
                    size = load_big(payload, at, field)
                    copy(value_data, value_to, payload, at + field, size)
                    value_to += size
                    at += field + size
                    header += 1
                    store_little_u32(names, 4 * header, name_to)
                    store_little_u32(values, 4 * header, value_to)
            elif magic & 7 == TYPE_COMMAND:
                value_to = fill_value_of_op(load_byte(payload, at), value_data, value_to)
                at += 1
                header += 1
                store_little_u32(names, 4 * header, name_to)
                store_little_u32(values, 4 * header, value_to)
            copy(body_data, load_little_u32(bodies, 4 * row), payload, at, end - at)
            row += 1
    return row


_INT: Final = types.int64

KERNELS: Final = {
    "scan_batches": (scan_batches, _INT(BYTES, WORDS, _INT, BYTES, BYTES, BYTES, BYTES, WORDS)),
    "fill_columns": (
        fill_columns,
        _INT(BYTES, WORDS, _INT, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES),
    ),
}
