"""Bytes as the inside of a JSON string: UTF-8 with escapes, or base64.

UTF-8 is lossy: each maximal part of an invalid sequence becomes U+FFFD. Escaped are the quote, the
backslash and what is below U+0020: five of these by a letter, the others by a `u` and four digits.
"""
# ruff: noqa: C901, PLR1714, PLR2004  bytes are numbers; sets would be made

from typing import Final

from bourn.layout.kernels.memory import (
    Span,
    _count_leading_zeros,
    called,
    check,
    copy,
    inlined,
    int64,
    load_byte,
    load_little_u64,
    store_byte,
    store_little_u32,
    uint64,
)

_HIGH: Final = 0x8080808080808080
_ONES: Final = 0x0101010101010101
_SPACES: Final = 0x2020202020202020
_QUOTES: Final = 0x2222222222222222
_BACKSLASHES: Final = 0x5C5C5C5C5C5C5C5C


@inlined
def odd_ones(word: int) -> int:
    """Mark bytes that are not plainly themselves: above the first one, others may be marked too."""
    ones = uint64(_ONES)
    return (
        word
        | (word - uint64(_SPACES))
        | ((word ^ uint64(_QUOTES)) - ones)
        | ((word ^ uint64(_BACKSLASHES)) - ones)
    )


@inlined
def utf8(data: Span, at: int, end: int) -> int:
    """Return the size of the character at `at`, or less than 0: the size of what is none."""
    first = load_byte(data, at)
    low, high = int64(0x80), int64(0xBF)
    if 0xC2 <= first <= 0xDF:
        more = 1
    elif 0xE0 <= first <= 0xEF:
        more = 2
        if first == 0xE0:
            low = int64(0xA0)
        elif first == 0xED:
            high = int64(0x9F)
    elif 0xF0 <= first <= 0xF4:
        more = 3
        if first == 0xF0:
            low = int64(0x90)
        elif first == 0xF4:
            high = int64(0x8F)
    else:
        return -1
    for place in range(1, more + 1):
        if at + place >= end:
            return -place
        byte = load_byte(data, at + place)
        if byte < low or byte > high:
            return -place
        low, high = int64(0x80), int64(0xBF)
    return more + 1


@inlined
def first_odd(odd: int) -> int:
    """Return which byte of a word is the first that is marked; there must be one."""
    return (63 - _count_leading_zeros(odd & (~odd + uint64(1)))) >> 3


@inlined
def is_plain(data: Span, at: int, end: int) -> bool:
    """Whether the bytes are ASCII without anything to escape."""
    check(data, at, end - at)
    while end - at >= 32:
        odd = (
            odd_ones(load_little_u64(data, at))
            | odd_ones(load_little_u64(data, at + 8))
            | odd_ones(load_little_u64(data, at + 16))
            | odd_ones(load_little_u64(data, at + 24))
        )
        if odd & uint64(_HIGH) != uint64(0):
            return False
        at += 32
    while end - at >= 8:
        if odd_ones(load_little_u64(data, at)) & uint64(_HIGH) != uint64(0):
            return False
        at += 8
    while at < end:
        byte = load_byte(data, at)
        if byte >= 0x80 or byte < 0x20 or byte == 0x22 or byte == 0x5C:
            return False
        at += 1
    return True


@inlined
def escape_letter(byte: int) -> int:
    """Return what stands behind the backslash for a byte that is escaped."""
    if byte == 0x22 or byte == 0x5C:
        return byte
    if byte == 0x0A:
        return int64(0x6E)
    if byte == 0x09:
        return int64(0x74)
    if byte == 0x0D:
        return int64(0x72)
    if byte == 0x08:
        return int64(0x62)
    return int64(0x66) if byte == 0x0C else int64(0x75)


@inlined
def store_escape(out: Span, to: int, byte: int) -> int:
    """Write the escape of a byte."""
    letter = escape_letter(byte)
    store_byte(out, to, 0x5C)
    store_byte(out, to + 1, letter)
    if letter != 0x75:
        return to + 2
    digit = byte & 15
    store_byte(out, to + 2, 48)
    store_byte(out, to + 3, 48)
    store_byte(out, to + 4, 48 + (byte >> 4))
    store_byte(out, to + 5, digit + (48 if digit < 10 else 87))
    return to + 6


@called
def write_escaped(out: Span, to: int, data: Span, at: int, end: int) -> int:
    """Write bytes as text, and return the place behind it."""
    while at < end:
        if end - at >= 8:
            # All eight are copied; what is odd, and what is behind it, is written over.
            odd = odd_ones(load_little_u64(data, at)) & uint64(_HIGH)
            copy(out, to, data, at, 8)
            plain = 8 if odd == uint64(0) else first_odd(odd)
            at += plain
            to += plain
            if plain == 8:
                continue
        byte = load_byte(data, at)
        if byte < 0x80:
            if byte < 0x20 or byte == 0x22 or byte == 0x5C:
                to = store_escape(out, to, byte)
            else:
                store_byte(out, to, byte)
                to += 1
            at += 1
            continue
        while at < end and load_byte(data, at) >= 0x80:
            size = utf8(data, at, end)
            if size < 0:
                store_byte(out, to, 0xEF)
                store_byte(out, to + 1, 0xBF)
                store_byte(out, to + 2, 0xBD)
                to += 3
                at -= size
                continue
            for place in range(size):
                store_byte(out, to + place, load_byte(data, at + place))
            to += size
            at += size
    return to


@inlined
def base64_size(size: int) -> int:
    """Return the size of so many bytes in base64."""
    return (size + 2) // 3 * 4


@called
def write_base64(out: Span, to: int, data: Span, at: int, end: int, letters: Span) -> int:
    """Write bytes in base64, padded, and return the place behind it."""
    while end - at >= 3:
        found = load_byte(data, at) << 16 | load_byte(data, at + 1) << 8 | load_byte(data, at + 2)
        four = load_byte(letters, found >> 18) | load_byte(letters, found >> 12 & 63) << 8
        four |= load_byte(letters, found >> 6 & 63) << 16 | load_byte(letters, found & 63) << 24
        store_little_u32(out, to, four)
        at += 3
        to += 4
    if at < end:
        found = load_byte(data, at) << 16
        if end - at == 2:
            found |= load_byte(data, at + 1) << 8
        store_byte(out, to, load_byte(letters, found >> 18))
        store_byte(out, to + 1, load_byte(letters, found >> 12 & 63))
        store_byte(out, to + 2, load_byte(letters, found >> 6 & 63) if end - at == 2 else 61)
        store_byte(out, to + 3, 61)
        to += 4
    return to
