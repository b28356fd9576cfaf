"""AppendInput in JSON to stored records, in two walks over the text.

`scan_json_append` takes the texts that clients write: the known keys, each once and without
escapes, in any order; pairs for headers; blanks anywhere. It checks every byte of these, weighs the
records and leaves a row of facts for each; `write_json_append` writes the stored form. For anything
else it is not sure: a key that is unknown or given twice, an odd number, a header without a name,
a text that is no JSON. Then the readers of `wire/json_input` say what it is, or what is wrong.

Functions return the position behind what they took, or a negative one where they are not sure.
"""
# ruff: noqa: PLR1714, PLR2004  bytes are numbers; sets would be made

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.append import count_record, metered_width
from bourn.layout.kernels.facts import (
    BODY_AT,
    BODY_BYTES,
    FACTS,
    FENCE_BODY_BYTES_MAX,
    FLAG_STAMPED,
    FLAG_WIDE,
    FLAGS,
    FLAWED,
    HEADER_COUNT,
    MAGIC_WIDE,
    MATCH,
    MATCH_SET,
    METERED,
    NARROW_MAX,
    RECORD_AT,
    STAMP,
    TOKEN_AT,
    TOKEN_BYTES,
    TYPE_ENVELOPE,
)
from bourn.layout.kernels.input_facts import BODY_TEXT_BYTES, NOT_SURE
from bourn.layout.kernels.input_text import write_from_base64, write_unescaped
from bourn.layout.kernels.input_words import (
    KEY_BODY,
    KEY_HEADERS,
    KEY_MATCH,
    KEY_RECORDS,
    KEY_TIMESTAMP,
    KEY_TOKEN,
    KEY_UNKNOWN,
    NULL,
    is_four,
    next_byte,
    take_header,
    take_key,
    take_number,
    take_text,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    called,
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

HELPERS_CHECKSUM: Final = "c5b982da3908f454"  # see the package

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


@called
def scan_headers(data: Span, at: int, is_base64: int) -> tuple[int, int, int, int]:
    """Take an array of headers behind its bracket: the place behind it, count, bytes, flags."""
    count = total = flags = int64(0)
    byte, found = next_byte(data, at)
    if byte == 93:
        return found + 1, count, total, flags
    while True:
        _, _, name_bytes, _, _, value_bytes, at = take_header(data, at, is_base64)
        if at < 0 or name_bytes == 0:
            return int64(NOT_SURE), count, total, flags
        if name_bytes > NARROW_MAX or value_bytes > NARROW_MAX:
            flags |= FLAG_WIDE
        count += 1
        total += name_bytes + value_bytes
        byte, at = next_byte(data, at)
        if byte == 93:
            break
        if byte != 44:
            return int64(NOT_SURE), count, total, flags
        at += 1
    if count > NARROW_MAX:
        flags |= FLAG_WIDE
    return at + 1, count, total, flags


@called
def scan_record(data: Span, at: int, is_base64: int, rows: Span, row: int) -> int:
    """Take an AppendRecord and leave its facts at `row`."""
    headers_at = body_at = body_end = body_bytes = int64(0)
    header_count = header_bytes = stamp = flags = seen = int64(0)
    byte, at = next_byte(data, at)
    if byte != 123:
        return NOT_SURE
    byte, place = next_byte(data, at + 1)
    at = place if byte == 125 else at + 1
    while byte != 125:
        key, at = take_key(data, at, seen, KEY_BODY | KEY_HEADERS | KEY_TIMESTAMP)
        if key == KEY_UNKNOWN:
            return NOT_SURE
        seen |= key
        if is_four(data, at, NULL):
            at += 4
        elif key == KEY_BODY:
            body_at, body_end, body_bytes = take_text(data, at, is_base64)
            at = body_end + 1 if body_end >= 0 else int64(NOT_SURE)
        elif key == KEY_TIMESTAMP:
            stamp, at = take_number(data, at)
            flags |= FLAG_STAMPED
        else:
            byte, at = next_byte(data, at)
            if byte != 91:
                return NOT_SURE
            headers_at = at + 1
            at, header_count, header_bytes, wide = scan_headers(data, headers_at, is_base64)
            flags |= wide
        byte, at = next_byte(data, at)
        if at < 0 or (byte != 44 and byte != 125):
            return NOT_SURE
        at += 0 if byte == 125 else 1
    store_word(rows, row + RECORD_AT, headers_at)
    store_word(rows, row + BODY_AT, body_at)
    store_word(rows, row + BODY_BYTES, body_bytes)
    store_word(rows, row + BODY_TEXT_BYTES, body_end - body_at)
    store_word(rows, row + HEADER_COUNT, header_count)
    store_word(rows, row + METERED, 8 + 2 * header_count + header_bytes + body_bytes)
    store_word(rows, row + STAMP, stamp)
    store_word(rows, row + FLAGS, flags)
    return at + 1


@called
def scan_records(data: Span, at: int, is_base64: int, rows: Span, state: Span) -> tuple[int, int]:
    """Take the array of records, and their sums: how many there are, and the position behind."""
    byte, at = next_byte(data, at)
    if byte != 91:
        return 0, NOT_SURE
    count = int64(0)
    byte, place = next_byte(data, at + 1)
    if byte == 93:
        return count, place + 1
    while True:
        row = FACTS * count
        if rows[1] < 8 * (row + FACTS):
            return count, NOT_SURE
        at = scan_record(data, at + 1, is_base64, rows, row)
        if at < 0:
            return count, at
        count_record(rows, row, count, state)
        count += 1
        byte, at = next_byte(data, at)
        if byte == 93:
            return count, at + 1
        if byte != 44:
            return count, NOT_SURE


@called
def scan_token(data: Span, at: int, state: Span) -> int:
    """Take a fencing token that is written as it is."""
    token_at, end, size = take_text(data, at, 0)
    if end < 0 or size != end - token_at or size > FENCE_BODY_BYTES_MAX:
        return NOT_SURE
    store_word(state, TOKEN_AT, token_at)
    store_word(state, TOKEN_BYTES, size)
    return end + 1


def scan_json_append(
    data_array: Bytes, is_base64: int, rows_array: Words, state_array: Words
) -> int:
    """Take a whole text; return the number of rows filled, or NOT_SURE."""
    data, rows, state = span(data_array), span(rows_array), span(state_array)
    seen = count = int64(0)
    store_word(state, FLAWED, -1)
    byte, at = next_byte(data, int64(0))
    if byte != 123:
        return NOT_SURE
    while byte != 125:
        key, at = take_key(data, at + 1, seen, KEY_RECORDS | KEY_MATCH | KEY_TOKEN)
        if key == KEY_UNKNOWN:
            return NOT_SURE
        seen |= key
        if key == KEY_RECORDS:
            count, at = scan_records(data, at, is_base64, rows, state)
        elif is_four(data, at, NULL):
            at += 4
        elif key == KEY_MATCH:
            match, at = take_number(data, at)
            store_word(state, MATCH_SET, 1)
            store_word(state, MATCH, match)
        else:
            at = scan_token(data, at, state)
        byte, at = next_byte(data, at)
        if at < 0 or (byte != 44 and byte != 125):
            return NOT_SURE
    _, at = next_byte(data, at + 1)
    if at != data[1] or not seen & KEY_RECORDS or load_word(state, FLAWED) >= 0:
        return NOT_SURE
    return count


@inlined
def write_text(out: Span, to: int, data: Span, at: int, end: int, size: int, table: Span) -> int:
    """Write what a text stands for; `table` is empty where that is its UTF-8."""
    if table[1]:
        return write_from_base64(out, to, data, at, end, table)
    if size != end - at:
        return write_unescaped(out, to, data, at, end)
    copy(out, to, data, at, size)
    return to + size


@called
def write_headers(
    out: Span, to: int, data: Span, at: int, count: int, field: int, table: Span
) -> int:
    """Write the headers of a scanned record, in their order."""
    is_base64 = 1 if table[1] else 0
    for _ in range(count):
        name_at, name_end, name_bytes, value_at, value_end, value_bytes, at = take_header(
            data, at, is_base64
        )
        if at < 0:
            return NOT_SURE
        store_big(out, to, name_bytes, field)
        to = write_text(out, to + field, data, name_at, name_end, name_bytes, table)
        if to < 0:
            return NOT_SURE
        store_big(out, to, value_bytes, field)
        to = write_text(out, to + field, data, value_at, value_end, value_bytes, table)
        if to < 0:
            return NOT_SURE
        _, at = next_byte(data, at)
        at += 1
    return to


def write_json_append(
    data_array: Bytes, rows_array: Words, count: int, table_array: Bytes, fresh: Bytes
) -> int:
    """Write the stored form of `count` scanned rows; return its size, or NOT_SURE.

    The table is that of digits, or empty: then texts are not base64.
    """
    data, rows, out, table = span(data_array), span(rows_array), span(fresh), span(table_array)
    at = area = 8 * count
    for index in range(count):
        row = FACTS * index
        start = at
        metered = load_word(rows, row + METERED)
        wide = load_word(rows, row + FLAGS) & FLAG_WIDE
        headers = load_word(rows, row + HEADER_COUNT)
        width = metered_width(metered)
        field = 4 if wide else 2
        store_byte(out, at, TYPE_ENVELOPE | width << 3 | (MAGIC_WIDE if wide else 0))
        store_big(out, at + 1, metered, width)
        store_big(out, at + 1 + width, headers, field)
        at += 1 + width + field
        if headers > 0:
            headers_at = load_word(rows, row + RECORD_AT)
            at = write_headers(out, at, data, headers_at, headers, field, table)
            if at < 0:
                return NOT_SURE
        store_little_u32(out, 4 * (count + index), at - start)
        body_at = load_word(rows, row + BODY_AT)
        body_end = body_at + load_word(rows, row + BODY_TEXT_BYTES)
        body_bytes = load_word(rows, row + BODY_BYTES)
        at = write_text(out, at, data, body_at, body_end, body_bytes, table)
        if at < 0:
            return NOT_SURE
        store_little_u32(out, 4 * index, at - area)
    return at


KERNELS: Final[dict[str, tuple[Any, Any]]] = {
    "scan_json_append": (scan_json_append, types.int64(BYTES, types.int64, WORDS, WORDS)),
    "write_json_append": (
        write_json_append,
        types.int64(BYTES, WORDS, types.int64, BYTES, BYTES),
    ),
}
