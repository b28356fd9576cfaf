"""The walk through a JSON text, compiled by numba; only `json_check` imports this.

It holds no lock of the interpreter and makes no object, so that nobody waits for it, whatever the
text. numba takes a kernel from its cache as long as its own file is the same; so that a change of
the helpers (`json_words`) is never missed, their checksum stands here, and a test compares.

    check   data     the text, valid UTF-8; integers that are no u64 become -1, padded with blanks
            depths   room for the containers that are open: the number of an object, 0 for an array
            names    room for every key, unescaped, one behind the other
            starts   room for where each key begins in `names`, and one more
            owners   room for the object that each key is of
            table    zeros, a power of two, twice the keys or more
            secret   what the hash of keys is made with; unknown to clients
            facts    out: FACTS numbers
            returns  0, or what is wrong; `facts` says where
    split   where to cut an array, which `check` has passed, into pieces of some bytes
"""
# ruff: noqa: PLR1714, PLR2004  bytes are numbers; sets would be made

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.wire.json_words import (
    ARRAY,
    COLON,
    DEEP,
    END,
    KEY,
    OBJECT,
    SURPLUS,
    TWICE,
    Bytes,
    called,
    inlined,
    int64,
    past_blanks,
    past_scalar,
    past_string,
    take_key,
    word,
)

HELPERS_CHECKSUM: Final = "3d5c8d852fa7580a"

Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.int64]

# What is in `facts`
PLACE, RECORDS, VALUES, TWICE_AT, TWICE_SIZE, FACTS = 0, 1, 2, 3, 4, 5

_HASH_PRIME: Final = 2**31 - 1
_RECORDS: Final = int.from_bytes(b"records", "big")


@called
def _is_repeated(
    names: Bytes, starts: Ints, owners: Ints, table: Ints, keys: int, secret: int
) -> bool:
    """Note the newest key; True if its object had it before.

    The hash is a polynomial at a secret place, so that nobody can choose keys that meet.
    """
    begin, end = int64(starts[keys]), int64(starts[keys + 1])
    found = int64(owners[keys]) + 1
    for place in range(begin, end):
        found = found * secret + int64(names[place]) + 1
        found = (found & _HASH_PRIME) + (found >> 31)
        found = (found & _HASH_PRIME) + (found >> 31)
    if found == _HASH_PRIME:
        found = 0
    mask = table.size - 1
    slot = found & mask
    while table[slot]:
        other = table[slot] - 1
        size = int64(starts[other + 1]) - int64(starts[other])
        if owners[other] == owners[keys] and size == end - begin:
            same = 0
            while same < size and names[starts[other] + same] == names[begin + same]:
                same += 1
            if same == size:
                return True
        slot = (slot + 1) & mask
    table[slot] = keys + 1
    return False


@inlined
def _past_key(
    data: Bytes,
    at: int,
    owner: int,
    names: Bytes,
    starts: Ints,
    owners: Ints,
    table: Ints,
    keys: int,
    secret: int,
    facts: Words,
) -> tuple[int, int]:
    """As `past_string`, for a key and its colon; notes the key, and whether it was there."""
    if data[at] != 34:
        return at, KEY
    at, wrong, end = take_key(data, at, names, starts[keys])
    if wrong:
        return at, wrong
    starts[keys + 1] = end
    owners[keys] = owner
    if facts[TWICE_SIZE] < 0 and _is_repeated(names, starts, owners, table, keys, secret):
        facts[TWICE_AT] = starts[keys]
        facts[TWICE_SIZE] = end - starts[keys]
    at = past_blanks(data, at)
    if at >= data.size:
        return at, END
    return (at + 1, 0) if data[at] == 58 else (at, COLON)


@inlined
def _past_ends(data: Bytes, at: int, depths: Ints, depth: int) -> tuple[int, int, int]:
    """Close what ends behind a value, up to the next comma or to the end of the text."""
    while depth:
        at = past_blanks(data, at)
        if at >= data.size:
            return at, END, depth
        if data[at] == 44:
            return at + 1, 0, depth
        if data[at] != (125 if depths[depth - 1] else 93):
            return at, OBJECT if depths[depth - 1] else ARRAY, depth
        at += 1
        depth -= 1
    at = past_blanks(data, at)
    return at, SURPLUS if at < data.size else 0, 0


def check(
    data: Bytes,
    depths: Ints,
    names: Bytes,
    starts: Ints,
    owners: Ints,
    table: Ints,
    secret: int,
    facts: Words,
) -> int:
    """Walk through the text once; see the module."""
    at = keys = depth = objects = records = values = wrong = 0
    in_records = are_next = False  # the array of records: we are in it, or it is next
    expects_key = False
    facts[TWICE_SIZE] = -1
    while wrong == 0:
        at = past_blanks(data, at)
        if at >= data.size:
            wrong = END
            break
        if expects_key:
            owner = int64(depths[depth - 1])
            at, wrong = _past_key(
                data, at, owner, names, starts, owners, table, keys, secret, facts
            )
            begin, end = int64(starts[keys]), int64(starts[keys + 1])
            are_next = depth == 1 and end - begin == 7 and word(names, begin, end) == _RECORDS
            keys += 1
            expects_key = False
            continue
        values += 1
        records += 1 if in_records and depth == 2 else 0
        byte = data[at]
        is_open = False  # whether a container has just begun, with something in it
        if byte == 123 or byte == 91:
            if depth >= depths.size:
                wrong = DEEP
                break
            objects += 1 if byte == 123 else 0
            depths[depth] = objects if byte == 123 else 0
            in_records |= are_next and byte == 91
            depth += 1
            at = past_blanks(data, at + 1)
            is_open = at < data.size and data[at] != (125 if byte == 123 else 93)
            expects_key = is_open and byte == 123
        else:
            at, wrong = past_scalar(data, at)
        are_next = False
        if not is_open and wrong == 0:
            at, wrong, depth = _past_ends(data, at, depths, depth)
            in_records = in_records and depth >= 2
            expects_key = depth > 0 and depths[depth - 1] != 0
            if depth == 0:
                break
    facts[PLACE] = at
    facts[RECORDS] = records
    facts[VALUES] = values
    return TWICE if wrong == 0 and facts[TWICE_SIZE] >= 0 else wrong


def split(data: Bytes, piece_bytes: int, cuts: Words) -> int:
    """Write where pieces end, and how many elements each has; returns how many pieces there are."""
    depth = count = pieces = last = at = 0
    while at < data.size:
        byte = data[at]
        if byte == 34:
            at, _ = past_string(data, at)
            continue
        if byte == 91 or byte == 123:
            depth += 1
        elif byte == 93 or byte == 125:
            depth -= 1
        elif byte == 44 and depth == 1:
            count += 1
            if at - last >= piece_bytes and 2 * pieces + 3 < cuts.size:
                cuts[2 * pieces] = at
                cuts[2 * pieces + 1] = count
                pieces += 1
                last = at
                count = 0
        at += 1
    cuts[2 * pieces] = data.size - 1
    cuts[2 * pieces + 1] = count + 1
    return pieces + 1


_BYTES: Final = types.Array(types.uint8, 1, "C")
_INTS: Final = types.Array(types.int32, 1, "C")
_WORDS: Final = types.Array(types.int64, 1, "C")
_CHECK: Final[tuple[Any, ...]] = (_BYTES, _INTS, _BYTES, _INTS, _INTS, _INTS, types.int64, _WORDS)
KERNELS: Final[dict[str, tuple[Any, Any]]] = {
    "check": (check, types.int64(*_CHECK)),
    "split": (split, types.int64(_BYTES, types.int64, _WORDS)),
}
