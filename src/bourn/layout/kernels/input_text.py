"""The inside of a JSON string as the bytes that it stands for: UTF-8 with escapes, or base64.

What a text is measured by is what it is written by, so that a size that was found is never
exceeded. A negative position says that the text is none, or none that is read here.
"""
# ruff: noqa: PLR0911, PLR1714, PLR2004  bytes are numbers; sets would be made

from typing import Final

from bourn.layout.kernels.input_facts import NO_DIGIT, PLACE_BYTES
from bourn.layout.kernels.json_text import utf8
from bourn.layout.kernels.memory import (
    BLOCK_BYTES,
    Span,
    called,
    copy_block,
    first_mark,
    inlined,
    int64,
    load_byte,
    load_little_u32,
    load_little_u64,
    mark_backslashes,
    mark_odd,
    marks_from,
    store_byte,
    store_little_u32,
    uint64,
)

_ROOM: Final = 2 * BLOCK_BYTES  # for what a block holds, copied from any place in it


@called
def hex4(data: Span, at: int) -> int:
    """Return the number of four hex digits, or -1."""
    if data[1] - at < 4:
        return -1
    found = int64(0)
    for place in range(at, at + 4):
        byte = load_byte(data, place)
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        found = found << 4 | digit
    return found


@called
def wide_escape(data: Span, at: int) -> tuple[int, int]:
    r"""Return the character of the `\u` at `at`, or of two that are a pair, and where it ends."""
    found = hex4(data, at + 2)
    if found < 0xD800 or found > 0xDFFF:
        return found, at + 6
    if found > 0xDBFF or data[1] - at < 12:
        return -1, at
    if load_byte(data, at + 6) != 92 or load_byte(data, at + 7) != 117:
        return -1, at
    low = hex4(data, at + 8)
    if low < 0xDC00 or low > 0xDFFF:
        return -1, at
    return 0x10000 + ((found - 0xD800) << 10) + (low - 0xDC00), at + 12


@inlined
def escaped(data: Span, at: int) -> tuple[int, int]:
    """Return the character of the escape at `at`, or -1, and where it ends."""
    byte = load_byte(data, at + 1) if data[1] - at >= 2 else int64(0)
    if byte == 34 or byte == 92 or byte == 47:
        return byte, at + 2
    if byte == 110:
        return int64(10), at + 2
    if byte == 117:
        return wide_escape(data, at)
    if byte == 116:
        return int64(9), at + 2
    if byte == 114:
        return int64(13), at + 2
    if byte == 98:
        return int64(8), at + 2
    if byte == 102:
        return int64(12), at + 2
    return int64(-1), at


@inlined
def utf8_size(character: int) -> int:
    """Return how many bytes a character takes."""
    if character < 0x80:
        return 1
    if character < 0x800:
        return 2
    return 3 if character < 0x10000 else 4


@called
def past_characters(data: Span, at: int) -> int:
    """Return where a run of characters above ASCII ends; -1 where it is none, or no UTF-8."""
    start = at
    while at < data[1] and load_byte(data, at) >= 0x80:
        size = utf8(data, at, data[1])
        if size < 0:
            return -1
        at += size
    return at if at > start else -1


@inlined
def past_odd(data: Span, at: int) -> tuple[int, int]:
    """Take an escape, or a run of characters: where it ends, and how many bytes it spares.

    A negative end says that it is neither.
    """
    if load_byte(data, at) != 92:
        return past_characters(data, at), int64(0)
    character, end = escaped(data, at)
    if character < 0:
        return int64(-1), int64(0)
    return end, end - at - utf8_size(character)


@called
def past_text(data: Span, at: int) -> tuple[int, int]:
    """Return where the quote is that ends the text at `at`, and how many bytes it stands for.

    Every escape is longer than its character: with one or more, the size is below the distance.
    """
    start = at
    spared = int64(0)
    while data[1] - at >= BLOCK_BYTES:
        block_at = at
        marks = mark_odd(data, at)
        while marks != uint64(0):
            place = block_at + first_mark(marks)
            if load_byte(data, place) == 34:
                return place, place - start - spared
            at, less = past_odd(data, place)
            if at < 0:
                return -1, 0
            spared += less
            marks = marks_from(marks, at - block_at)
        at = max(at, block_at + BLOCK_BYTES)
    while at < data[1]:
        byte = load_byte(data, at)
        if byte == 34:
            return at, at - start - spared
        if 0x20 <= byte < 0x80 and byte != 92:
            at += 1
        else:
            at, less = past_odd(data, at)
            if at < 0:
                return -1, 0
            spared += less
    return -1, 0


@called
def store_utf8(out: Span, to: int, character: int) -> int:
    """Write a character, and return the place behind it."""
    if character < 0x80:
        store_byte(out, to, character)
        return to + 1
    if character < 0x800:
        store_byte(out, to, 0xC0 | character >> 6)
        store_byte(out, to + 1, 0x80 | character & 63)
        return to + 2
    if character < 0x10000:
        store_byte(out, to, 0xE0 | character >> 12)
        store_byte(out, to + 1, 0x80 | character >> 6 & 63)
        store_byte(out, to + 2, 0x80 | character & 63)
        return to + 3
    store_byte(out, to, 0xF0 | character >> 18)
    store_byte(out, to + 1, 0x80 | character >> 12 & 63)
    store_byte(out, to + 2, 0x80 | character >> 6 & 63)
    store_byte(out, to + 3, 0x80 | character & 63)
    return to + 4


@called
def write_unescaped(out: Span, to: int, data: Span, at: int, end: int) -> int:
    """Write what a text stands for that `past_text` has passed; return the place behind it."""
    # Whole blocks are copied; what is behind a backslash is written over.
    while at < end - BLOCK_BYTES and data[1] - at >= _ROOM and out[1] - to >= _ROOM:
        marks = mark_backslashes(data, at)
        block_end = at + BLOCK_BYTES
        block_at = at
        while marks != uint64(0):
            place = block_at + first_mark(marks)
            copy_block(out, to, data, at)
            to += place - at
            character, at = escaped(data, place)
            if character < 0:
                return -1
            to = store_utf8(out, to, character)
            marks = marks_from(marks, at - block_at)
        if at < block_end:
            copy_block(out, to, data, at)
            to += block_end - at
            at = block_end
    while at < end:
        byte = load_byte(data, at)
        if byte == 92:
            character, at = escaped(data, at)
            if character < 0:
                return -1
            to = store_utf8(out, to, character)
        else:
            store_byte(out, to, byte)
            at += 1
            to += 1
    return to


@inlined
def base64_bytes(data: Span, at: int, end: int) -> int:
    """Return how many bytes the digits in [at, end) stand for; -1 where their number is odd."""
    size = end - at
    if size & 3:
        return -1
    if size == 0:
        return 0
    spare = 0
    if load_byte(data, end - 1) == 61:
        spare = 2 if load_byte(data, end - 2) == 61 else 1
    return (size >> 2) * 3 - spare


@inlined
def digits(data: Span, at: int, table: Span, count: int) -> int:
    """Return the bytes of up to four digits, the first byte lowest; NO_DIGIT if one is none."""
    found = int64(0)
    for place in range(count):
        byte = load_byte(data, at + place)
        found |= load_little_u32(table, PLACE_BYTES * place + 4 * byte)
    return found


@inlined
def four_digits(word: int, table: Span) -> int:
    """Return the bytes of the four digits in the low half of a word."""
    return (
        load_little_u32(table, (word & 0xFF) << 2)
        | load_little_u32(table, PLACE_BYTES + (word >> 6 & 0x3FC))
        | load_little_u32(table, 2 * PLACE_BYTES + (word >> 14 & 0x3FC))
        | load_little_u32(table, 3 * PLACE_BYTES + (word >> 22 & 0x3FC))
    )


@called
def write_from_base64(out: Span, to: int, data: Span, at: int, end: int, table: Span) -> int:
    """Write the bytes that digits stand for; -1 where these are not what we would write."""
    size = base64_bytes(data, at, end)
    if size < 0:
        return -1
    last = to + size
    found = int64(0)
    while end - at > 8 and out[1] - to >= 8:
        word = int64(load_little_u64(data, at))
        low, high = four_digits(word, table), four_digits(word >> 32, table)
        found |= low | high
        store_little_u32(out, to, low)
        store_little_u32(out, to + 3, high)
        at += 8
        to += 6
    while to < last:
        more = min(last - to, 3)
        three = digits(data, at, table, more + 1)
        found |= three
        for place in range(more):
            store_byte(out, to + place, three >> 8 * place)
        if more < 3 and three >> 8 * more & 0xFF:
            return -1  # bits that stand for nothing
        at += 4
        to += more
    return -1 if found & NO_DIGIT else to
