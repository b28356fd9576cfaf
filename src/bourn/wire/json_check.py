"""Whether a text is JSON throughout, however large or odd it is, without holding anybody up.

The work is done by a compiled walk (`json_kernel`) that needs neither the interpreter's lock nor an
object per value: a parser that makes a million lists of `[[],[],…]` would stop the whole process
for half a second. numba is imported on first use, as a client never needs it.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from bourn.errors import BadJson
from bourn.limits import JSON_DEPTH_MAX

_KEY_BYTES_MIN: Final = 5  # of a text, for each key: `"":0,`
_KEY_SHOWN_MAX: Final = 64
_BLANKS: Final = b" \t\r\n"
_HASH_PRIME: Final = 2**31 - 1
# Drawn anew by every process, and nothing that a client could know.
_SECRET: Final = hash(b"where the hash of keys is taken") % (_HASH_PRIME - 1) + 1
_WRONG: Final = (
    "",
    "unexpected end of data",
    "expected a value",
    "expected `,` or `]`",
    "expected `,` or `}`",
    "expected a key in quotes",
    "expected `:`",
    "control character in a string",
    "invalid escape in a string",
    "lone surrogate in a string",
    "malformed number",
    "nested too deep",
    "unexpected text behind the document",
)


class Checked(NamedTuple):
    """A text that is JSON, in which every integer that is no u64 has become -1."""

    text: bytearray
    records: int  # in the array of that name, if there is one
    values: int


def check(body: bytes) -> Checked:
    """Return the text; BadJson where it is none, or where an object gives a key twice."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadJson(f"invalid UTF-8{_place(body, error.start)}") from None
    if not body.strip(_BLANKS):
        raise BadJson(f"the text is empty{_place(body, 0)}")
    keys_max = min(body.count(b":"), len(body) // _KEY_BYTES_MIN + 1)
    text = bytearray(body)
    names = np.empty(len(body) if keys_max else 0, np.uint8)
    starts, owners = np.zeros(keys_max + 1, np.int32), np.empty(keys_max, np.int32)
    table = np.zeros(1 << (2 * keys_max).bit_length(), np.int32)
    facts = np.zeros(5, np.int64)
    wrong = _kernel("check")(
        np.frombuffer(text, np.uint8),
        np.empty(JSON_DEPTH_MAX, np.int32),
        names,
        starts,
        owners,
        table,
        _SECRET,
        facts,
    )
    place, records, values, twice_at, twice_size = facts.tolist()
    if wrong == len(_WRONG):
        key = names[twice_at : twice_at + twice_size].tobytes().decode()
        raise BadJson(f"duplicate field `{key[:_KEY_SHOWN_MAX]}`")
    if wrong:
        raise BadJson(_WRONG[wrong] + _place(body, place))
    return Checked(text, records, values)


def pieces(array: bytes, piece_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield an array that was checked in smaller ones, each with the index of its first element."""
    cuts = np.empty(2 * (len(array) // piece_bytes + 2), np.int64)
    data = np.frombuffer(array, np.uint8).copy()
    count = _kernel("split")(data, piece_bytes, cuts)
    start = index = 0
    for end, elements in cuts[: 2 * count].reshape(-1, 2).tolist():
        yield index, b"[" + array[start + 1 : end] + b"]"
        start, index = end, index + elements


def _place(body: bytes, at: int) -> str:
    line_start = body.rfind(b"\n", 0, at) + 1
    line = body.count(b"\n", 0, at) + 1
    return f" at line {line} column {len(body[line_start:at].decode(errors='replace')) + 1}"


def warm(say: Callable[[str], None]) -> None:
    """Make sure that the walk is compiled, and has been called; say so where it takes its time."""
    if not all(_kernel(name).stats.cache_hits for name in ("check", "split")):
        say("the check of JSON is compiled")
    check(b'{"":0}')


@cache
def _kernel(name: str) -> Any:
    from numba import njit  # noqa: PLC0415  see the module

    from bourn.wire import json_kernel  # noqa: PLC0415  it imports numba

    function, signature = json_kernel.KERNELS[name]
    try:
        return njit(signature, nogil=True, cache=True)(function)
    except (RuntimeError, OSError):  # numba has no place for its cache
        return njit(signature, nogil=True)(function)
