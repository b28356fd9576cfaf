"""Records of the benchmark, made and checked a batch at a time; compiled on first use.

A record is a body of a fixed size and one header, `hash`: 64 bits over the hash of the record
before and the body, big-endian. So a reader that has all records in order, each as it was, ends
with the writer's hash; and one that has not knows at which record.

    AppendRecord      08 timestamp · 12 10 (0a 04 hash · 12 08 value) · 1a length body
    SequencedRecord   08 seq_num · 10 timestamp · 1a header · 22 length body, in any order

Latencies go into a histogram of `BUCKETS` words: microseconds one by one up to 63, then 32 steps
to each doubling, so that a bucket is 3 % wide at most.

Everything is in this file: numba takes a kernel from its cache as long as its own file is the same.
"""
# ruff: noqa: PLR2004, C901, PLR0911, PLR0912  numbers are tags; a kernel is one loop

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit, types, uint64

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_Function = TypeVar("_Function", bound=Callable[..., Any])

BUCKETS: Final = 1280
STATE: Final = 4  # next sequence number, bytes of a body, records so far, spare
HASH_HEADER_BYTES: Final = 18  # with its own tag and length
FRAME_HEAD_BYTES: Final = 4

OK: Final = 0
MALFORMED: Final = -1
NOT_NEXT: Final = -2
OTHER_SIZE: Final = -3
NO_HASH: Final = -4
OTHER_CONTENT: Final = -5

_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_ROOM: Final = types.Array(types.uint8, 1, "C", readonly=False)
_WORDS: Final = types.Array(types.int64, 1, "C", readonly=False)
_HASHES: Final = types.Array(types.uint64, 1, "C", readonly=False)


def _compiled(signature: Any) -> Callable[[_Function], _Function]:
    """Compile at import, for one signature; without a cache where none can be written."""

    def compile_it(function: _Function) -> _Function:
        try:
            compiled = njit(signature, nogil=True, cache=True)(function)
        except (RuntimeError, OSError):
            compiled = njit(signature, nogil=True)(function)
        return cast("_Function", compiled)

    return compile_it


@njit(inline="always")
def _word(data: Bytes, at: int) -> Any:
    """Return eight bytes as a word; the compiler makes one load of it."""
    place = uint64(at)  # unsigned, or every index would be checked for being negative
    return (
        uint64(data[place])
        | uint64(data[place + uint64(1)]) << uint64(8)
        | uint64(data[place + uint64(2)]) << uint64(16)
        | uint64(data[place + uint64(3)]) << uint64(24)
        | uint64(data[place + uint64(4)]) << uint64(32)
        | uint64(data[place + uint64(5)]) << uint64(40)
        | uint64(data[place + uint64(6)]) << uint64(48)
        | uint64(data[place + uint64(7)]) << uint64(56)
    )


@njit(inline="always")
def _mixed(found: Any, word: Any) -> Any:
    found = (found ^ word) * uint64(0x9E3779B97F4A7C15)
    return found ^ found >> uint64(29)


@njit(inline="always")
def _chained(before: Any, data: Bytes, at: int, size: int) -> Any:
    """Return the hash of a body behind the hash of the record before."""
    end = at + size
    one = before ^ uint64(size)
    if size >= 64:
        # Four at a time: a multiplication need not wait for the one before.
        two, three, four = one + uint64(1), one + uint64(2), one + uint64(3)
        while at + 32 <= end:
            one = _mixed(one, _word(data, at))
            two = _mixed(two, _word(data, at + 8))
            three = _mixed(three, _word(data, at + 16))
            four = _mixed(four, _word(data, at + 24))
            at += 32
        one = _mixed(_mixed(_mixed(one, two), three), four)
    while at + 8 <= end:
        one = _mixed(one, _word(data, at))
        at += 8
    while at < end:
        one = _mixed(one, uint64(data[at]))
        at += 1
    return one


@njit(inline="always")
def _put_varint(room: Bytes, at: int, value: int) -> int:
    while value > 127:
        room[at] = value & 127 | 128
        value >>= 7
        at += 1
    room[at] = value
    return at + 1


@njit(inline="always")
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Take a varint of up to nine bytes: its value, and the position behind it or -1."""
    value = 0
    shift = 0
    while at < end and shift < 63:
        byte: int = np.int64(data[at])  # type: ignore[assignment]  # the compiler's own int
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


@njit(inline="always")
def _bucket(value: int) -> int:
    """Return the bucket of so many microseconds."""
    if value < 0:
        return 0
    shift = 0
    while value >> shift > 63:
        shift += 1
    return min(32 * shift + (value >> shift), BUCKETS - 1)


@_compiled(types.int64(_ROOM, _BYTES, _WORDS, _HASHES, types.int64, types.int64))
def fill(room: Bytes, pool: Bytes, state: Words, chain: Hashes, count: int, timestamp: int) -> int:
    """Write a frame of `count` records, an uncompressed AppendInput; returns where it ends.

    Bodies are taken from the pool, one behind the other: `state` holds where the next one is, and
    how large they all are.
    """
    pool_at, body_bytes = state[0], state[1]
    at = FRAME_HEAD_BYTES
    for _ in range(count):
        if pool_at + body_bytes > pool.size:
            pool_at = (pool_at + body_bytes) % 8191
        room[at] = 0x0A
        size_at = at + 1
        inner = 1 + HASH_HEADER_BYTES + 1 + body_bytes
        rest = timestamp
        while rest > 127:
            rest >>= 7
            inner += 1
        inner += 1
        rest = body_bytes
        while rest > 127:
            rest >>= 7
            inner += 1
        inner += 1
        at = _put_varint(room, size_at, inner)
        room[at] = 0x08
        at = _put_varint(room, at + 1, timestamp)
        room[at] = 0x12
        room[at + 1] = HASH_HEADER_BYTES - 2
        room[at + 2] = 0x0A
        room[at + 3] = 4
        room[at + 4] = 0x68
        room[at + 5] = 0x61
        room[at + 6] = 0x73
        room[at + 7] = 0x68
        room[at + 8] = 0x12
        room[at + 9] = 8
        found = _chained(chain[0], pool, pool_at, body_bytes)
        chain[0] = found
        for place in range(8):
            room[at + 10 + place] = (found >> uint64(56 - 8 * place)) & uint64(255)
        at += HASH_HEADER_BYTES
        room[at] = 0x1A
        at = _put_varint(room, at + 1, body_bytes)
        room[at : at + body_bytes] = pool[pool_at : pool_at + body_bytes]
        at += body_bytes
        pool_at += body_bytes
    state[0] = pool_at
    length = at - FRAME_HEAD_BYTES + 1
    room[0] = length >> 16
    room[1] = length >> 8 & 255
    room[2] = length & 255
    room[3] = 0
    return at


@njit(inline="always")
def _hash_in(data: Bytes, at: int, end: int) -> tuple[bool, Any]:
    """Return whether a Header is the hash, and the hash."""
    if end - at != HASH_HEADER_BYTES - 2 or data[at] != 0x0A or data[at + 1] != 4:
        return False, uint64(0)
    name = data[at + 2] == 0x68 and data[at + 3] == 0x61 and data[at + 4] == 0x73
    if not name or data[at + 5] != 0x68 or data[at + 6] != 0x12 or data[at + 7] != 8:
        return False, uint64(0)
    found = uint64(0)
    for place in range(8):
        found = found << uint64(8) | uint64(data[at + 8 + place])
    return True, found


@_compiled(types.int64(_BYTES, _WORDS, _HASHES, types.int64, _WORDS))
def check(data: Bytes, state: Words, chain: Hashes, now: int, counts: Words) -> int:
    """Check the records of a ReadBatch and count their latencies; 0, or what is wrong.

    `state` has the next sequence number and the size of a body; it is left at the bad record.
    """
    at = 0
    size = data.size
    while at < size:
        tag = data[at]
        length, at = _varint(data, at + 1, size)
        if at < 0 or tag & 7 != 2 or tag > 127 or length > size - at:
            return MALFORMED
        end = at + length
        if tag != 0x0A:
            at = end
            continue
        seq_num = timestamp = 0
        body_at = at
        body_bytes = 0
        has_hash = False
        stored = uint64(0)
        while at < end:
            field = data[at]
            value, at = _varint(data, at + 1, end)
            if at < 0:
                return MALFORMED
            if field == 0x08:
                seq_num = value
            elif field == 0x10:
                timestamp = value
            elif value > end - at or field & 7 != 2:
                return MALFORMED
            else:
                if field == 0x1A:
                    has_hash, stored = _hash_in(data, at, at + value)
                elif field == 0x22:
                    body_at, body_bytes = at, value
                at += value
        if seq_num != state[0]:
            return NOT_NEXT
        if body_bytes != state[1]:
            return OTHER_SIZE
        if not has_hash:
            return NO_HASH
        found = _chained(chain[0], data, body_at, body_bytes)
        if found != stored:
            return OTHER_CONTENT
        chain[0] = found
        state[0] += 1
        state[2] += 1
        counts[_bucket(now - timestamp)] += 1
    return OK
