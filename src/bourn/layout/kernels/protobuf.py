"""Reading of protobuf's wire format, as strict and as lenient as the protobuf library.

Functions return the position behind what they took; a negative position is a fault. Faults stick:
who is given one as a position returns it, so that a parser looks for faults once per turn.
"""
# ruff: noqa: PLR2004  the numbers are those of varints, tags and UTF-8

from typing import Final

import numpy as np

from bourn.layout.kernels.facts import (
    BAD_GROUP,
    BAD_TAG,
    BAD_WIRE_TYPE,
    CUT_SHORT,
    DEEP_GROUP,
    LONG_VARINT,
)
from bourn.layout.kernels.memory import Span, called, inlined, int64, load_byte, uint64

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_GROUP: Final = 3
_GROUP_END: Final = 4
_FIXED32: Final = 5

_VARINT_BYTES_MAX: Final = 10
_SHORT_VARINT_BYTES_MAX: Final = 5
_TAG_MAX: Final = 0xFFFFFFFF
_NESTING_MAX: Final = 100


@inlined
def read_varint(data: Span, at: int, end: int) -> tuple[int, int]:
    """Take a varint of up to ten bytes; bits above the 64th fall away."""
    if at < 0:
        return uint64(0), at
    value = uint64(0)
    shift = uint64(0)
    limit = min(end, at + _VARINT_BYTES_MAX)
    while at < limit:
        byte = load_byte(data, at)
        at += 1
        value |= uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += uint64(7)
    return value, (LONG_VARINT if shift == uint64(70) else CUT_SHORT)


@inlined
def read_short_varint(data: Span, at: int, end: int) -> tuple[int, int]:
    """Take a varint of up to five bytes: tags and lengths."""
    if at < 0:
        return int64(0), at
    value = int64(0)
    shift = int64(0)
    limit = min(end, at + _SHORT_VARINT_BYTES_MAX)
    while at < limit:
        byte = load_byte(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, (LONG_VARINT if shift == 35 else CUT_SHORT)


@inlined
def read_tag(data: Span, at: int, end: int) -> tuple[int, int]:
    """Take a tag; 0, which is none, with a fault."""
    tag, at = read_short_varint(data, at, end)
    if at < 0:
        return 0, at
    if tag < 8 or tag > _TAG_MAX:
        return 0, BAD_TAG
    return tag, at


@inlined
def read_bytes(data: Span, at: int, end: int) -> tuple[int, int, int]:
    """Take a length and as many bytes: where they start, how many, and the position behind."""
    size, at = read_short_varint(data, at, end)
    if at < 0:
        return at, 0, at
    if size > end - at:
        return CUT_SHORT, 0, CUT_SHORT
    return at, size, at + size


@inlined
def skip_value(data: Span, at: int, end: int, wire_type: int) -> int:
    """Pass over a value that is no group."""
    if wire_type == _VARINT:
        _, at = read_varint(data, at, end)
        return at
    if wire_type == _BYTES:
        _, _, at = read_bytes(data, at, end)
        return at
    if wire_type == _FIXED64:
        return at + 8 if end - at >= 8 else CUT_SHORT
    if wire_type == _FIXED32:
        return at + 4 if end - at >= 4 else CUT_SHORT
    return BAD_WIRE_TYPE


@called
def skip_group(data: Span, at: int, end: int, number: int, depth_max: int) -> int:
    """Pass over a group whose start was taken; each group ends by its own number.

    Field number 0 passes in here, as the protobuf library lets it.
    """
    numbers = np.empty(_NESTING_MAX, np.int64)
    numbers[0] = number
    depth = 1
    while depth > 0:
        tag, at = read_short_varint(data, at, end)
        if at < 0:
            return at
        if tag > _TAG_MAX:
            return BAD_TAG
        if tag & 7 == _GROUP:
            if depth >= depth_max:
                return DEEP_GROUP
            numbers[depth] = tag >> 3
            depth += 1
        elif tag & 7 == _GROUP_END:
            depth -= 1
            if numbers[depth] != tag >> 3:
                return BAD_GROUP
        else:
            at = skip_value(data, at, end, tag & 7)
    return at


@called
def skip_field(data: Span, at: int, end: int, tag: int, nesting: int) -> int:
    """Pass over an unknown field of a message that lies `nesting` messages deep."""
    if at < 0:
        return at
    if tag & 7 == _GROUP:
        return skip_group(data, at, end, tag >> 3, _NESTING_MAX - nesting)
    return skip_value(data, at, end, tag & 7)


@inlined
def second_byte_range(lead: int) -> tuple[int, int]:
    """Return what may follow a lead byte of UTF-8."""
    if lead == 0xE0:
        return 0xA0, 0xBF
    if lead == 0xED:
        return 0x80, 0x9F
    if lead == 0xF0:
        return 0x90, 0xBF
    if lead == 0xF4:
        return 0x80, 0x8F
    return 0x80, 0xBF


@called
def is_utf8(data: Span, at: int, end: int) -> bool:
    """Whether the bytes are UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
    while at < end:
        lead = load_byte(data, at)
        at += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if end - at < more:
            return False
        low, high = second_byte_range(lead)
        for index in range(more):
            byte = load_byte(data, at + index)
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        at += more
    return True
