"""The words of an append in JSON: blanks, keys, strings, numbers, and headers, which are pairs.

Functions return the position behind what they took, or a negative one where they are not sure.
"""
# ruff: noqa: PLR0911, PLR1714, PLR2004  bytes are numbers; sets would be made

from typing import Final

from bourn.layout.kernels.input_facts import NOT_SURE
from bourn.layout.kernels.input_text import base64_bytes, past_text
from bourn.layout.kernels.memory import Span, called, inlined, int64, load_byte, load_little_u32

_DIGITS_MAX: Final = 19  # of a number that surely is a u64


def _four(text: bytes) -> int:
    return int.from_bytes(text, "little")


NULL: Final = _four(b"null")
_BODY: Final = _four(b"body")
_HEAD, _DERS = _four(b"head"), _four(b"ders")
_TIME, _STAM, _TAMP = _four(b"time"), _four(b"stam"), _four(b"tamp")
_RECO, _ORDS = _four(b"reco"), _four(b"ords")
_MATC, _H_SE, _Q_NU, _NUM = _four(b"matc"), _four(b"h_se"), _four(b"q_nu"), _four(b"_num")
_FENC, _ING, _TOKE, _OKEN = _four(b"fenc"), _four(b"ing_"), _four(b"toke"), _four(b"oken")

# Keys, and which of them an object has had
KEY_BODY, KEY_HEADERS, KEY_TIMESTAMP = 1, 2, 4
KEY_RECORDS, KEY_MATCH, KEY_TOKEN = 8, 16, 32
KEY_UNKNOWN: Final = 0


@inlined
def next_byte(data: Span, at: int) -> tuple[int, int]:
    """Return the next byte that is no blank, and where it is; 0 at the end of the text."""
    while 0 <= at < data[1]:
        byte = load_byte(data, at)
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            return byte, at
        at += 1
    return int64(0), at


@inlined
def is_four(data: Span, at: int, four: int) -> bool:
    """Whether these four bytes stand at `at`."""
    return data[1] - at >= 4 and load_little_u32(data, at) == four


@inlined
def key_of(data: Span, at: int, size: int) -> int:
    """Return which key a text is."""
    if size == 4:
        return KEY_BODY if is_four(data, at, _BODY) else KEY_UNKNOWN
    if size == 7:
        if is_four(data, at, _HEAD) and is_four(data, at + 3, _DERS):
            return KEY_HEADERS
        if is_four(data, at, _RECO) and is_four(data, at + 3, _ORDS):
            return KEY_RECORDS
    elif size == 9:
        if is_four(data, at, _TIME) and is_four(data, at + 4, _STAM):
            return KEY_TIMESTAMP if is_four(data, at + 5, _TAMP) else KEY_UNKNOWN
    elif size == 13:
        if is_four(data, at, _MATC) and is_four(data, at + 4, _H_SE):
            is_match = is_four(data, at + 8, _Q_NU) and is_four(data, at + 9, _NUM)
            return KEY_MATCH if is_match else KEY_UNKNOWN
        if is_four(data, at, _FENC) and is_four(data, at + 4, _ING):
            is_token = is_four(data, at + 8, _TOKE) and is_four(data, at + 9, _OKEN)
            return KEY_TOKEN if is_token else KEY_UNKNOWN
    return KEY_UNKNOWN


@called
def take_key(data: Span, at: int, seen: int, known: int) -> tuple[int, int]:
    """Take a key, one of `known` that was not `seen`, and its colon; 0 and a place for any other.

    The position is that of the value.
    """
    byte, at = next_byte(data, at)
    if byte != 34:
        return KEY_UNKNOWN, at
    end, size = past_text(data, at + 1)
    if end < 0 or end - at - 1 != size:
        return KEY_UNKNOWN, at
    key = key_of(data, at + 1, size)
    byte, at = next_byte(data, end + 1)
    if byte != 58 or not key & known or key & seen:
        return KEY_UNKNOWN, at
    _, at = next_byte(data, at + 1)
    return key, at


@called
def take_text(data: Span, at: int, is_base64: int) -> tuple[int, int, int]:
    """Take a string: where its text starts and ends, and how many bytes it stands for."""
    byte, at = next_byte(data, at)
    if byte != 34:
        return 0, NOT_SURE, 0
    at += 1
    end, size = past_text(data, at)
    if end < 0:
        return 0, NOT_SURE, 0
    if is_base64:
        size = base64_bytes(data, at, end) if size == end - at else -1
        if size < 0:
            return 0, NOT_SURE, 0
    return at, end, size


@called
def take_number(data: Span, at: int) -> tuple[int, int]:
    """Take a number of digits alone, and the position behind it."""
    start = at
    value = int64(0)
    while at < data[1]:
        byte = load_byte(data, at)
        if byte < 48 or byte > 57:
            break
        value = value * 10 + (byte - 48)
        at += 1
        if at - start > _DIGITS_MAX:
            return 0, NOT_SURE
    if at == start or (load_byte(data, start) == 48 and at - start > 1):
        return 0, NOT_SURE
    return value, at


@inlined
def take_header(data: Span, at: int, is_base64: int) -> tuple[int, int, int, int, int, int, int]:
    """Take a pair: of name and of value where it starts, ends, and its bytes; the place behind."""
    byte, at = next_byte(data, at)
    if byte != 91:
        return 0, 0, 0, 0, 0, 0, NOT_SURE
    name_at, name_end, name_bytes = take_text(data, at + 1, is_base64)
    if name_end < 0:
        return 0, 0, 0, 0, 0, 0, NOT_SURE
    byte, at = next_byte(data, name_end + 1)
    if byte != 44:
        return 0, 0, 0, 0, 0, 0, NOT_SURE
    value_at, value_end, value_bytes = take_text(data, at + 1, is_base64)
    if value_end < 0:
        return 0, 0, 0, 0, 0, 0, NOT_SURE
    byte, at = next_byte(data, value_end + 1)
    if byte != 93:
        return 0, 0, 0, 0, 0, 0, NOT_SURE
    return name_at, name_end, name_bytes, value_at, value_end, value_bytes, at + 1
