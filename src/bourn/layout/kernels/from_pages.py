"""Pages of the history's Parquet files to columns: only what our own writer makes of them.

A page has a header, in thrift's compact protocol; then, in pages of version 2, the levels, plain;
then its values, compressed. Callers decompress, and hand in one page after the other. Whatever is
not known here gets FOREIGN, and the caller has it read by Arrow.

    hybrid   numbers of some bits, packed by eight, or one number many times: levels, dictionaries
    delta    the differences from one number to the next, packed by miniblocks: DELTA_BINARY_PACKED
    plain    strings, each behind its size
"""
# ruff: noqa: PLR2004  the numbers are those of the formats

from typing import Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    inlined,
    int64,
    load_byte,
    load_little_u32,
    load_little_u64,
    load_word,
    span,
    store_little_u32,
    store_word,
    uint64,
)
from bourn.layout.kernels.rows_facts import (
    FOREIGN,
    PAGE_AT,
    PAGE_BYTES,
    PAGE_COUNT,
    PAGE_DEFINITION_BYTES,
    PAGE_ENCODING,
    PAGE_IS_PACKED,
    PAGE_LEAF,
    PAGE_RAW_BYTES,
    PAGE_REPETITION_BYTES,
    PAGE_TYPE,
    PAGE_TYPE_DATA,
    PAGE_TYPE_DICTIONARY,
    PAGE_WORDS,
)

HELPERS_CHECKSUM: Final = "9d43daa2859e1d5a"  # see the package

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_TRUE: Final = 1
_FALSE: Final = 2
_I32: Final = 5
_I64: Final = 6
_BINARY: Final = 8
_STRUCT: Final = 12
_OF_DICTIONARY: Final = 7  # fields of a page's header
_OF_DATA: Final = 8
_DEPTH_MAX: Final = 2
_BLOCK_MAX: Final = 1 << 16


@inlined
def load_varint(data: Span, at: int) -> tuple[int, int]:
    """Return an unsigned number and the position behind it."""
    value = uint64(0)
    shift = uint64(0)
    while True:
        byte = load_byte(data, at)
        at += 1
        value |= uint64(byte & 0x7F) << shift
        if byte < 0x80 or shift > uint64(56):
            return int64(value), at
        shift += uint64(7)


@inlined
def unzigzag(value: int) -> int:
    """Return the signed number that an unsigned one stands for."""
    return int64(uint64(value) >> uint64(1)) ^ -(value & 1)


@inlined
def load_bits(data: Span, bit: int, width: int) -> int:
    """Return a number of 1 to 64 bits, lowest first, as an unsigned one."""
    at = bit >> 3
    skipped = bit & 7
    mask = uint64(0xFFFFFFFFFFFFFFFF) >> uint64(64 - width)
    if width + skipped <= 64 and at + 8 <= data[1]:
        return load_little_u64(data, at) >> uint64(skipped) & mask
    value = uint64(load_byte(data, at)) >> uint64(skipped)
    have = 8 - skipped
    while have < width:
        at += 1
        value |= uint64(load_byte(data, at)) << uint64(have)
        have += 8
    return value & mask


@inlined
def note_field(pages: Span, word: int, outer: int, inner: int, value: int) -> None:
    """Keep a number of a page's header, if it is one that counts."""
    if inner == 0:
        if outer == 1:
            store_word(pages, word + PAGE_TYPE, value)
        elif outer == 2:
            store_word(pages, word + PAGE_RAW_BYTES, value)
        elif outer == 3:
            store_word(pages, word + PAGE_BYTES, value)
    elif inner == 1:
        store_word(pages, word + PAGE_COUNT, value)
    elif (outer == _OF_DICTIONARY and inner == 2) or (outer == _OF_DATA and inner == 4):
        store_word(pages, word + PAGE_ENCODING, value)
    elif outer == _OF_DATA and inner == 5:
        store_word(pages, word + PAGE_DEFINITION_BYTES, value)
    elif outer == _OF_DATA and inner == 6:
        store_word(pages, word + PAGE_REPETITION_BYTES, value)
    elif outer == _OF_DATA and inner == 7:
        store_word(pages, word + PAGE_IS_PACKED, value)


@inlined
def read_value(data: Span, at: int, kind: int) -> tuple[int, int]:
    """Return a number of a header, and the position behind it or FOREIGN; of a text, nothing."""
    if kind in (_TRUE, _FALSE):
        return int64(kind == _TRUE), at
    if kind not in (_I32, _I64, _BINARY):
        return int64(0), int64(FOREIGN)
    number, behind = load_varint(data, at)
    if kind != _BINARY:
        return unzigzag(number), behind
    return int64(0), behind + number if number >= 0 else int64(FOREIGN)


@inlined
def read_header(data: Span, at: int, pages: Span, word: int) -> int:
    """Note what the header of a page says; return the position behind it, or FOREIGN."""
    depth = outer = inner = int64(0)
    while True:
        byte = load_byte(data, at)
        at += 1
        if byte == 0:
            depth -= 1
            if depth < 0:
                return at
            if depth == 0:
                inner = int64(0)
            continue
        if depth == 0:
            outer += byte >> 4
        elif depth == 1:
            inner += byte >> 4
        if byte & 0x0F == _STRUCT:
            depth += 1
        else:
            value, at = read_value(data, at, byte & 0x0F)
            if depth < _DEPTH_MAX:
                note_field(pages, word, outer, inner, value)
        if byte < 0x10 or depth > _DEPTH_MAX or at < 0:
            return int64(FOREIGN)


def scan_pages(data_array: Bytes, bounds_array: Words, leaves: int, pages_array: Words) -> int:
    """Find the pages of column chunks, whose bounds are given; return how many, or FOREIGN."""
    data, bounds, pages = span(data_array), span(bounds_array), span(pages_array)
    count = int64(0)
    for leaf in range(leaves):
        at, end = load_word(bounds, 2 * leaf), load_word(bounds, 2 * leaf + 1)
        while at < end:
            word = PAGE_WORDS * count
            if 8 * (word + PAGE_WORDS) > pages[1]:
                return int64(FOREIGN)
            for field in range(PAGE_WORDS):
                store_word(pages, word + field, 0)
            store_word(pages, word + PAGE_IS_PACKED, 1)
            store_word(pages, word + PAGE_LEAF, leaf)
            at = read_header(data, at, pages, word)
            if at < 0:
                return at
            store_word(pages, word + PAGE_AT, at)
            kind = load_word(pages, word + PAGE_TYPE)
            size = load_word(pages, word + PAGE_BYTES)
            if kind not in (PAGE_TYPE_DATA, PAGE_TYPE_DICTIONARY) or size < 0 or at + size > end:
                return int64(FOREIGN)
            at += size
            count += 1
    return count


def unpack_hybrid(data_array: Bytes, at: int, width: int, count: int, fresh: Bytes) -> int:
    """Write so many numbers of a hybrid, 32 bits each; return where it ends, or FOREIGN."""
    data, out = span(data_array), span(fresh)
    if width < 0 or width > 32:
        return int64(FOREIGN)
    done = int64(0)
    while done < count:
        head, at = load_varint(data, at)
        size = head >> 1
        if head & 1:
            bit = 8 * at
            values = min(8 * size, count - done)
            for index in range(values):
                number = load_bits(data, bit, width) if width > 0 else uint64(0)
                store_little_u32(out, 4 * (done + index), int64(number))
                bit += width
            at += width * size
        else:
            number = uint64(0)
            for index in range((width + 7) >> 3):
                number |= uint64(load_byte(data, at)) << uint64(8 * index)
                at += 1
            values = min(size, count - done)
            for index in range(values):
                store_little_u32(out, 4 * (done + index), int64(number))
        if values <= 0:
            return int64(FOREIGN)
        done += values
    return at


def unpack_delta(data_array: Bytes, count: int, fresh: Bytes) -> int:
    """Write so many numbers of a page, 64 bits each; return how many it has, or FOREIGN."""
    data, out = span(data_array), span(fresh)
    block, at = load_varint(data, 0)
    parts, at = load_varint(data, at)
    total, at = load_varint(data, at)
    first, at = load_varint(data, at)
    if not 0 < parts <= block <= _BLOCK_MAX or block % (8 * parts) != 0 or total != count:
        return int64(FOREIGN)
    each = block // parts
    value = uint64(unzigzag(first))
    if count > 0:
        store_word(out, 0, int64(value))
    done = int64(1)
    while done < count:
        least, at = load_varint(data, at)
        step = uint64(unzigzag(least))
        widths = at
        at += parts
        for part in range(parts):
            if done >= count:
                break
            width = load_byte(data, widths + part)
            if width > 64:
                return int64(FOREIGN)
            bit = 8 * at
            for _ in range(min(each, count - done)):
                value += step
                if width > 0:
                    value += load_bits(data, bit, width)
                    bit += width
                store_word(out, done, int64(value))
                done += 1
            at += each * width >> 3
    return total


def place_plain(data_array: Bytes, count: int, fresh: Bytes) -> int:
    """Write where each of so many strings starts, and four behind the last; return its end."""
    data, out = span(data_array), span(fresh)
    at = int64(0)
    for index in range(count):
        size = load_little_u32(data, at)
        at += 4
        store_little_u32(out, 4 * index, at)
        at += size
    store_little_u32(out, 4 * count, at + 4)
    return at


def place_lists(
    repetition_array: Bytes, definition_array: Bytes, values: int, rows: int, fresh: Bytes
) -> int:
    """Write where the list of each row starts, and where the last one ends; or FOREIGN.

    Levels are of 32 bits: 0 and 1 begin a list and go on with it; 0 and 1 are no item and an item.
    """
    repetitions, definitions = span(repetition_array), span(definition_array)
    out = span(fresh)
    row = items = int64(0)
    for index in range(values):
        if load_little_u32(repetitions, 4 * index) == 0:
            if row == rows:
                return int64(FOREIGN)
            store_little_u32(out, 4 * row, items)
            row += 1
        items += load_little_u32(definitions, 4 * index)
    store_little_u32(out, 4 * rows, items)
    return items if row == rows else int64(FOREIGN)


_INT: Final = types.int64

KERNELS: Final = {
    "scan_pages": (scan_pages, _INT(BYTES, WORDS, _INT, WORDS)),
    "unpack_hybrid": (unpack_hybrid, _INT(BYTES, _INT, _INT, _INT, BYTES)),
    "unpack_delta": (unpack_delta, _INT(BYTES, _INT, BYTES)),
    "place_plain": (place_plain, _INT(BYTES, _INT, BYTES)),
    "place_lists": (place_lists, _INT(BYTES, BYTES, _INT, _INT, BYTES)),
}
