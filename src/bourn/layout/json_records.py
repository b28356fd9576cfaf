"""Stored records straight to a ReadBatch in JSON, without an object per record.

The text is that of `wire/json.py`, byte for byte. All parts of a read go through one call of a
compiled kernel, whatever their number; such a call lets go of the interpreter's lock.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

import numpy as np

from bourn.layout.codec import U8Array, check_range, format_error, stamps_of
from bourn.layout.entry import Entry
from bourn.layout.kernels import facts
from bourn.layout.kernels.compiled import JsonKernels, blank
from bourn.layout.kernels.json_facts import (
    GROWTH_MAX,
    NO_STAMPS,
    PART_BYTES,
    RECORD_BYTES_MAX,
    START_BYTES,
    WORDS,
)
from bourn.layout.records import Buffer

Slices = Sequence[tuple[Entry, int, int]]  # of each batch the records [start, stop)

KERNELS: Final = JsonKernels()
_PART: Final = Struct("<8Q")
_WORDS: Final = np.frombuffer(WORDS, np.uint8)
_NONE: Final = np.empty(0, np.uint8)
_SMALL_BYTES: Final = 1 << 14  # below this, room for the worst case costs less than measuring

assert _PART.size == PART_BYTES


def warm(say: Callable[[str], None]) -> None:
    """Make sure that every kernel is compiled, or loaded from the cache; say so if it takes."""
    KERNELS.warm(say)


def encode_json_batch(slices: Slices, ending: bytes, *, is_base64: bool) -> bytes:
    """Return a ReadBatch of the records of these slices, `ending` behind the last.

    Raises RecordFormatError where a payload is no batch.
    """
    data, parts, stamps, records = _one(*slices[0]) if len(slices) == 1 else _joined(slices)
    view, table = np.frombuffer(data, np.uint8), np.frombuffer(parts, np.uint8)
    last = np.frombuffer(ending, np.uint8)
    around = START_BYTES + len(ending)
    if len(data) < _SMALL_BYTES:
        room = np.empty(GROWTH_MAX * len(data) + RECORD_BYTES_MAX * records + around, np.uint8)
        written = KERNELS.write_json(view, table, stamps, is_base64, _WORDS, _NONE, last, room)
        if written < 0:
            raise format_error(written)
        return room[:written].tobytes()
    plain = np.empty(records, np.uint8)
    size, is_exact = KERNELS.survey_json(view, table, stamps, is_base64, plain)
    if size < 0:
        raise format_error(size)
    text, fresh = blank(size - 1 + around) if is_exact else (b"", np.empty(size + around, np.uint8))
    written = KERNELS.write_json(view, table, stamps, is_base64, _WORDS, plain, last, fresh)
    if written < 0 or (is_exact and written != len(text)):
        raise format_error(min(written, -facts.CHANGED))
    return text if is_exact else fresh[:written].tobytes()


def _one(entry: Entry, start: int, stop: int) -> tuple[Buffer, bytes, U8Array, int]:
    """Return data, parts and timestamps for the kernels, and how many records are wanted."""
    data, count, first = entry.payload, entry.count, entry.first_seq_num
    check_range(count, first, start, stop)
    stamps = entry.timestamps
    if isinstance(stamps, int):
        parts = _PART.pack(0, len(data), count, first, start, stop, stamps, NO_STAMPS)
        return data, parts, _NONE, stop - start
    parts = _PART.pack(0, len(data), count, first, start, stop, 0, 0)
    return data, parts, stamps_of(stamps, count)[0], stop - start


def _joined(slices: Slices) -> tuple[Buffer, bytes, U8Array, int]:
    """As `_one`, for many: their payloads one behind the other, and so their timestamps."""
    parts: list[bytes] = []
    stamps: list[U8Array] = []
    at = stamps_at = records = 0
    for entry, start, stop in slices:
        size, count, first = len(entry.payload), entry.count, entry.first_seq_num
        check_range(count, first, start, stop)
        own = entry.timestamps
        if isinstance(own, int):
            parts.append(_PART.pack(at, size, count, first, start, stop, own, NO_STAMPS))
        else:
            parts.append(_PART.pack(at, size, count, first, start, stop, 0, stamps_at))
            stamps.append(stamps_of(own, count)[0])
            stamps_at += 8 * count
        at += size
        records += stop - start
    data = b"".join([entry.payload for entry, _, _ in slices])
    return data, b"".join(parts), np.concatenate(stamps) if stamps else _NONE, records
