"""The words of a JSON text, for the walk of `json_kernel`: strings, numbers, true, false, null.

A helper takes the text and a place in it, and returns the place behind what it has read, and 0; or
the place of what is wrong, and what that is.
"""
# ruff: noqa: C901, PLR0911, PLR1714, PLR2004  bytes are numbers; sets would be made

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types

_Function = TypeVar("_Function", bound=Callable[..., Any])

Bytes = npt.NDArray[np.uint8]

int64: Final = cast("Callable[[int], int]", types.int64)

# What can be wrong
END, VALUE, ARRAY, OBJECT, KEY, COLON, CONTROL, ESCAPE, SURROGATE, NUMBER, DEEP, SURPLUS, TWICE = (
    range(1, 14)
)

_U64_DIGITS_MAX: Final = 20
_U64_MAX_HIGH: Final = 1844674407  # its first ten digits
_U64_MAX_LOW: Final = 3709551615  # and the others
_WORD_TRUE: Final = int.from_bytes(b"true", "big")
_WORD_ALSE: Final = int.from_bytes(b"alse", "big")
_WORD_NULL: Final = int.from_bytes(b"null", "big")


def called(function: _Function) -> _Function:
    """Make a helper that stays a call."""
    return cast("_Function", njit(function))


def inlined(function: _Function) -> _Function:
    """Make a helper that leaves no call in the machine code: one costs more than a short word."""
    return cast("_Function", njit(inline="always")(function))


@inlined
def past_blanks(data: Bytes, at: int) -> int:
    """Return the place of the next word."""
    while at < data.size and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@called
def _hex4(data: Bytes, at: int) -> int:
    """Return the number of four hex digits, or -1."""
    if at + 4 > data.size:
        return -1
    found = 0
    for place in range(at, at + 4):
        byte = int64(data[place])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte | 32 <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        found = found << 4 | digit
    return found


@called
def _escape(data: Bytes, at: int) -> tuple[int, int]:
    """Return the character of the escape behind the backslash at `at`, and where it ends.

    Instead of a character, what is wrong, negative.
    """
    if at + 1 >= data.size:
        return -END, data.size
    byte = int64(data[at + 1])
    if byte == 34 or byte == 92 or byte == 47:
        return byte, at + 2
    if byte == 98:
        return 8, at + 2
    if byte == 102:
        return 12, at + 2
    if byte == 110:
        return 10, at + 2
    if byte == 114:
        return 13, at + 2
    if byte == 116:
        return 9, at + 2
    if byte != 117:
        return -ESCAPE, at
    found = _hex4(data, at + 2)
    if found < 0:
        return -ESCAPE, at
    if found < 0xD800 or found > 0xDFFF:
        return found, at + 6
    if found > 0xDBFF or at + 7 >= data.size or data[at + 6] != 92 or data[at + 7] != 117:
        return -SURROGATE, at
    low = _hex4(data, at + 8)
    if low < 0xDC00 or low > 0xDFFF:
        return -SURROGATE, at
    return 0x10000 + ((found - 0xD800) << 10) + (low - 0xDC00), at + 12


@called
def _put_utf8(names: Bytes, at: int, found: int) -> int:
    """Write a character, which never takes more room than its escape did."""
    if found < 0x80:
        names[at] = found
        return at + 1
    if found < 0x800:
        names[at] = 0xC0 | found >> 6
        names[at + 1] = 0x80 | found & 63
        return at + 2
    if found < 0x10000:
        names[at] = 0xE0 | found >> 12
        names[at + 1] = 0x80 | found >> 6 & 63
        names[at + 2] = 0x80 | found & 63
        return at + 3
    names[at] = 0xF0 | found >> 18
    names[at + 1] = 0x80 | found >> 12 & 63
    names[at + 2] = 0x80 | found >> 6 & 63
    names[at + 3] = 0x80 | found & 63
    return at + 4


@inlined
def past_string(data: Bytes, at: int) -> tuple[int, int]:
    """Return where the string that begins at `at` ends, and 0; or a place, and what is wrong."""
    at += 1
    while at < data.size:
        byte = data[at]
        if byte == 34:
            return at + 1, 0
        if byte == 92:
            found, at = _escape(data, at)
            if found < 0:
                return at, -found
        elif byte < 32:
            return at, CONTROL
        else:
            at += 1
    return at, END


@called
def take_key(data: Bytes, at: int, names: Bytes, end: int) -> tuple[int, int, int]:
    """As `past_string`, and write the string to `names`; returns its end there as well."""
    at += 1
    while at < data.size:
        byte = data[at]
        if byte == 34:
            return at + 1, 0, end
        if byte == 92:
            found, at = _escape(data, at)
            if found < 0:
                return at, -found, end
            end = _put_utf8(names, end, found)
        elif byte < 32:
            return at, CONTROL, end
        else:
            names[end] = byte
            end += 1
            at += 1
    return at, END, end


@called
def _past_digits(data: Bytes, at: int) -> int:
    while at < data.size and 48 <= data[at] <= 57:
        at += 1
    return at


@called
def _number(data: Bytes, at: int, end: int) -> int:
    found = 0
    for place in range(at, end):
        found = 10 * found + int64(data[place]) - 48
    return found


@called
def word(data: Bytes, at: int, end: int) -> int:
    """Return up to seven bytes as a number."""
    found = 0
    for place in range(at, end):
        found = found << 8 | int64(data[place])
    return found


@called
def _past_number(data: Bytes, at: int) -> tuple[int, int]:
    """As `past_string`; and make -1 of an integer that is no u64."""
    start = at
    if data[at] == 45:
        at += 1
    digits = at
    at = _past_digits(data, at)
    if at == digits or (data[digits] == 48 and at > digits + 1):
        return (at, END) if at == data.size and at == digits else (start, NUMBER)
    is_integer = True
    if at < data.size and data[at] == 46:
        is_integer = False
        fraction = at + 1
        at = _past_digits(data, fraction)
        if at == fraction:
            return (at, END) if at == data.size else (start, NUMBER)
    if at < data.size and (data[at] == 101 or data[at] == 69):
        is_integer = False
        at += 1
        if at < data.size and (data[at] == 43 or data[at] == 45):
            at += 1
        exponent = at
        at = _past_digits(data, exponent)
        if at == exponent:
            return (at, END) if at == data.size else (start, NUMBER)
    if is_integer:
        is_too_large = at - start > _U64_DIGITS_MAX
        if at - start == _U64_DIGITS_MAX and start == digits:
            high = _number(data, start, start + 10)
            low = _number(data, start + 10, at)
            is_too_large = high > _U64_MAX_HIGH or (high == _U64_MAX_HIGH and low > _U64_MAX_LOW)
        is_minus_zero = start != digits and data[digits] == 48
        if is_too_large or is_minus_zero:
            data[start] = 45
            data[start + 1] = 49
            for place in range(start + 2, at):
                data[place] = 32
    return at, 0


@called
def _past_word(data: Bytes, at: int) -> tuple[int, int]:
    """As `past_string`, for true, false and null."""
    wanted = _WORD_TRUE
    start = at
    if data[at] == 110:
        wanted = _WORD_NULL
    elif data[at] == 102:
        wanted = _WORD_ALSE
        at += 1
    if at + 4 > data.size:
        return data.size, END
    return (at + 4, 0) if word(data, at, at + 4) == wanted else (start, VALUE)


@inlined
def past_scalar(data: Bytes, at: int) -> tuple[int, int]:
    """As `past_string`, for whatever is no container."""
    byte = data[at]
    if byte == 34:
        return past_string(data, at)
    if byte == 116 or byte == 102 or byte == 110:
        return _past_word(data, at)
    if byte == 45:
        return _past_number(data, at)
    if byte < 48 or byte > 57:
        return at, VALUE
    # Most numbers are short integers, for which a call would be half of the work.
    near = at + 1
    while byte > 48 and near < data.size and 48 <= data[near] <= 57:
        near += 1
    if (
        near - at >= _U64_DIGITS_MAX
        or near == data.size
        or data[near] == 46
        or data[near] | 32 == 101
        or 48 <= data[near] <= 57
    ):
        return _past_number(data, at)
    return near, 0
