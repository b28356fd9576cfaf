"""Records out of numbers: whoever knows the stream and the sequence number knows the record."""

import struct
from random import Random
from typing import Final

import xxhash

from bourn.limits import KIB, MIB
from bourn.model.record import Headers, Record, trim_record

TIME_BASE_MS: Final = 1_600_000_000_000  # long ago: the server takes it as it is
TIME_STEP_MS: Final = 7
TRIM_EVERY: Final = 300  # records of a stream that trims itself
TRIM_KEPT: Final = 120

_KEY: Final = struct.Struct(">QIQ")
_NOISE: Final = Random(0).randbytes(2 * MIB)
_BODY_BYTES_MAX: Final = MIB - KIB
_LARGE: Final = ((1, _BODY_BYTES_MAX), (20, 64 * KIB), (300, 8 * KIB))  # of 10,000


def timestamp_of(seq_num: int) -> int:
    """The timestamp that a record is appended with."""
    return TIME_BASE_MS + seq_num * TIME_STEP_MS


def first_at(timestamp: int) -> int:
    """The number of the first record that is not older."""
    return max(-((TIME_BASE_MS - timestamp) // TIME_STEP_MS), 0)


def trims_itself(stream: int) -> bool:
    """Whether a stream has commands that trim it."""
    return stream % 10 == 3


def trim_point(stream: int, tail: int) -> int:
    """The first record that a stream with so many records still has."""
    if not trims_itself(stream) or tail < TRIM_EVERY:
        return 0
    return tail // TRIM_EVERY * TRIM_EVERY - TRIM_KEPT


class Content:
    """All records of all streams of a run."""

    def __init__(self, seed: int, body_bytes: int = KIB) -> None:
        """Most bodies are up to twice `body_bytes`."""
        self._seed = seed
        self._body_bytes = body_bytes

    def record(self, stream: int, generation: int, seq_num: int) -> Record:
        """Return what stands, or will stand, at that place."""
        timestamp = timestamp_of(seq_num)
        if trims_itself(stream) and seq_num % TRIM_EVERY == TRIM_EVERY - 1:
            return trim_record(seq_num + 1 - TRIM_KEPT, timestamp)
        key = _KEY.pack(seq_num, stream, generation)
        number = xxhash.xxh3_64_intdigest(key, self._seed)
        size = self._size(number)
        at = number % (len(_NOISE) - size)
        headers: Headers = ()
        if number & 7 == 0:
            headers = ((b"place", key), (b"\xff\x00", b""))[: 1 + (number >> 3 & 1)]
        if size == 0:
            return Record(b"", headers, timestamp)
        return Record(key + _NOISE[at : at + size], headers, timestamp)

    def _size(self, number: int) -> int:
        share = number >> 20 & 0xFFFF_FFFF
        part = share % 10_000
        for below, size in _LARGE:
            if part < below:
                return size
        return 0 if part > 9_900 else (share // 10_000) % (2 * self._body_bytes)
