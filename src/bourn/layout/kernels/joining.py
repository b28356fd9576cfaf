"""Many small runs of one stream's entries to the payload and the timestamps of one batch.

Where a run lies is two words: address and size; 0 where it is not at hand. What lies there is what
`layout/entry.py` draws. A run that is no whole entries of the stream, or does not follow the one
before it, or does not expire as long after its arrival, ends what is joined: whoever reads it
alone finds out why.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.layout.kernels.join_facts import (
    ARRIVAL,
    COMMANDS,
    HEADERS,
    LAST_TIMESTAMP,
    METERED,
    RECORDS,
    RETENTION,
    STORED,
)
from bourn.layout.kernels.memory import (
    BYTES,
    WORDS,
    Span,
    check,
    copy,
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

HELPERS_CHECKSUM: Final = "fe60674166db9df0"  # see the package

_HEAD: Final = 72  # an entry's, and where its fields are
_LENGTH_AT: Final = 8
_KIND_AT: Final = 12
_FLAGS_AT: Final = 13
_STREAM_AT: Final = 16
_FIRST_AT: Final = 24
_ARRIVAL_AT: Final = 32
_RETENTION_AT: Final = 40
_LAST_TIMESTAMP_AT: Final = 48
_COUNT_AT: Final = 56
_METERED_AT: Final = 60
_HEADERS_AT: Final = 64
_BATCH: Final = 1
_ONE_TIMESTAMP: Final = 1
_HAS_COMMANDS: Final = 2

# A row of the run index: the commit, where the run lies in it, and when it expires
_ROW: Final = 56
_ROW_COMMIT_AT: Final = 24
_ROW_OFFSET_AT: Final = 32
_ROW_LENGTH_AT: Final = 36

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]


def locate_runs(
    rows: Bytes, objects: Words, first: int, end: int, length_max: int, places: Words
) -> int:
    """Say where each small run lies, of those in the commits [first, end); how many there are.

    An object is two words, address and size; its place is its ordinal modulo their number.
    """
    index, ring, found = span(rows), span(objects), span(places)
    mask = (ring[1] >> 4) - 1
    there = 0
    for row in range(index[1] // _ROW):
        commit = int64(load_little_u64(index, _ROW * row + _ROW_COMMIT_AT))
        offset = load_little_u32(index, _ROW * row + _ROW_OFFSET_AT)
        length = load_little_u32(index, _ROW * row + _ROW_LENGTH_AT)
        address = size = 0
        if first <= commit < end and length <= length_max:
            place = commit & mask
            if offset + length <= load_word(ring, 2 * place + 1):
                address, size = load_word(ring, 2 * place) + offset, length
                there += 1
        store_word(found, 2 * row, address)
        store_word(found, 2 * row + 1, size)
    return there


@inlined
def _records_at(entry: Span, at: int, count: int) -> int:
    """Where the columns of an entry's records begin."""
    stamps = 1 if load_byte(entry, at + _FLAGS_AT) & _ONE_TIMESTAMP else count
    return at + _HEAD + 8 * stamps


@inlined
def _area(run: Span, at: int) -> int:
    """How long an entry's records are."""
    length, count = load_little_u32(run, at + _LENGTH_AT), load_little_u32(run, at + _COUNT_AT)
    return length - (_records_at(run, at, count) - at) - 8 * count


@inlined
def _is_whole(run: Span, at: int) -> bool:
    """Whether a batch begins there that ends within the run, and its records where it ends."""
    if run[1] - at < _HEAD or load_byte(run, at + _KIND_AT) != _BATCH:
        return False
    length, count = load_little_u32(run, at + _LENGTH_AT), load_little_u32(run, at + _COUNT_AT)
    area = _area(run, at)
    if count == 0 or area < 0 or length > run[1] - at:
        return False
    last = _records_at(run, at, count) + 4 * (count - 1)
    return load_little_u32(run, last) == area


@inlined
def _goes_with(
    run: Span, at: int, stream_id: int, seq_num: int, kept_secs: int, now_ms: int
) -> bool:
    """Whether a batch of the stream begins there, by this number, that is kept so long."""
    if not _is_whole(run, at):
        return False
    came_ms = int64(load_little_u64(run, at + _ARRIVAL_AT))
    return (
        load_little_u64(run, at + _STREAM_AT) == stream_id
        and load_little_u64(run, at + _FIRST_AT) == seq_num
        and int64(load_little_u64(run, at + _RETENTION_AT)) == kept_secs
        and kept_secs >= 0  # what is longer than a signed word can say is read alone
        and (kept_secs == 0 or now_ms < came_ms + kept_secs * 1000)
    )


def survey_runs(
    places: Words,
    stream_id: int,
    position: int,
    now_ms: int,
    records_max: int,
    metered_max: int,
    found: Words,
) -> int:
    """Return how many runs, from the first on, make one batch, and what it weighs.

    Those that are at hand, follow each other from the position on, and have not expired, up to
    the first that reaches one of the limits.
    """
    table, sums = span(places), span(found)
    records = stored = metered = headers = 0
    retention = arrival = last_timestamp = commands = int64(0)
    taken = 0
    following = uint64(position)
    for row in range(table[1] >> 4):
        run = (load_word(table, 2 * row), load_word(table, 2 * row + 1))
        if run[0] == 0 or run[1] < _HEAD:
            break
        at, more, area, weight, names, flags = 0, 0, 0, 0, 0, 0
        expected = following
        if taken == 0:
            retention = int64(load_little_u64(run, _RETENTION_AT))
            arrival = int64(load_little_u64(run, _ARRIVAL_AT))
        while at < run[1]:
            if not _goes_with(run, at, uint64(stream_id), expected, retention, now_ms):
                break
            arrival = min(arrival, int64(load_little_u64(run, at + _ARRIVAL_AT)))
            last_timestamp = int64(load_little_u64(run, at + _LAST_TIMESTAMP_AT))
            expected += uint64(load_little_u32(run, at + _COUNT_AT))
            more += load_little_u32(run, at + _COUNT_AT)
            area += _area(run, at)
            weight += load_little_u32(run, at + _METERED_AT)
            names += load_little_u32(run, at + _HEADERS_AT)
            flags |= load_byte(run, at + _FLAGS_AT) & _HAS_COMMANDS
            at += load_little_u32(run, at + _LENGTH_AT)
        if at != run[1]:
            break
        following = expected
        records += more
        stored += area
        metered += weight
        headers += names
        commands |= flags
        taken += 1
        if records >= records_max or metered >= metered_max:
            break
    store_word(sums, RECORDS, records)
    store_word(sums, STORED, stored)
    store_word(sums, METERED, metered)
    store_word(sums, HEADERS, headers)
    store_word(sums, RETENTION, retention)
    store_word(sums, ARRIVAL, arrival)
    store_word(sums, LAST_TIMESTAMP, last_timestamp)
    store_word(sums, COMMANDS, commands)
    return taken


def join_runs(places: Words, runs: int, payload: Bytes, stamps: Words) -> int:
    """Write the batch that `survey_runs` has found; returns how long its payload is."""
    table, target, times = span(places), span(payload), span(stamps)
    records = times[1] >> 3
    starts_at, base = 4 * records, 8 * records
    done = filled = 0
    for row in range(runs):
        run = (load_word(table, 2 * row), load_word(table, 2 * row + 1))
        at = 0
        while at < run[1]:
            count, area = load_little_u32(run, at + _COUNT_AT), _area(run, at)
            columns = _records_at(run, at, count)
            step = 0 if load_byte(run, at + _FLAGS_AT) & _ONE_TIMESTAMP else 8
            check(times, 8 * done, 8 * count)
            for index in range(count):
                end = load_little_u32(run, columns + 4 * index)
                store_little_u32(target, 4 * (done + index), filled + end)
                stamp = load_little_u64(run, at + _HEAD + step * index)
                store_word(times, done + index, int64(stamp))
            copy(target, starts_at + 4 * done, run, columns + 4 * count, 4 * count)
            copy(target, base + filled, run, columns + 8 * count, area)
            done += count
            filled += area
            at = columns + 8 * count + area
    return base + filled if done == records else -1


_INT: Final = types.int64
_UINT: Final = types.uint64
_KernelTable = dict[str, tuple[Callable[..., Any], Any]]

KERNELS: Final[_KernelTable] = {
    "locate_runs": (locate_runs, _INT(BYTES, WORDS, _INT, _INT, _INT, WORDS)),
    "survey_runs": (survey_runs, _INT(WORDS, _UINT, _UINT, _INT, _INT, _INT, WORDS)),
    "join_runs": (join_runs, _INT(WORDS, _INT, BYTES, WORDS)),
}
