"""The newest commits in memory, as the objects that they were put as.

The unit is the commit: the oldest goes first, whole, so that the byte budget is exact and holds
over all streams. A reader finds its run by position either here or in the bucket; it never keeps
one, so a slow reader costs nothing.

There may be hundreds of thousands of batches here, and the cycle collector stops everything while
it walks over what it has to know of. So there is one object for each commit, and what lies in it is
made batches of when somebody asks, by kernels where they are many (`layout/joined`).
"""

import ctypes
from collections import OrderedDict
from typing import Final

import numpy as np
import numpy.typing as npt

from bourn.layout.codec import encode_sequenced
from bourn.layout.entry import Entry

COMMIT_OBJECT_BYTES: Final = 200  # what Python's objects around one commit weigh
WIRE_OBJECT_BYTES: Final = 256  # and around one encoded batch
WIRES_MIN: Final = 16
WIRE_BYTES_LARGE: Final = 64 * 1024
PLACES_ASKED_MAX: Final = 4096  # 256 MiB of large ones at least, behind which the next reader comes
_ROOM_AT_FIRST: Final = 256  # of commits; a power of two, as ever after

_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)


def address_of(data: bytes) -> int:
    """Where the content lies, which it does as long as the object lives."""
    address: int = _address_of(data)
    return address


class Objects:
    """Where the commits [first, end) lie: two words each, address and size, in a ring.

    A commit's place in the ring is its ordinal modulo the number of places.
    """

    def __init__(self) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros(2 * _ROOM_AT_FIRST, np.int64)
        self.first = self.end = 0


class TailCache:
    """Commits by their ordinals, which follow each other; first in, first out."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: dict[int, bytes] = {}
        self._first = self._end = 0
        self._places = Objects()
        self.bytes_held = 0

    def add(self, ordinal: int, data: bytes) -> None:
        """Keep a commit that has become durable; older ones make room."""
        if ordinal != self._end:
            self._objects.clear()
            self.bytes_held, self._first, self._places.end = 0, ordinal, 0
        self._objects[ordinal] = data
        self._end = ordinal + 1
        self.bytes_held += len(data) + COMMIT_OBJECT_BYTES
        while self.bytes_held > self._bytes_max and self._objects:
            oldest = self._objects.pop(self._first)
            self.bytes_held -= len(oldest) + COMMIT_OBJECT_BYTES
            self._first += 1

    def get(self, ordinal: int) -> bytes | None:
        """Return a commit, or None if it is not in memory."""
        return self._objects.get(ordinal)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal in self._objects

    def places(self) -> Objects:
        """Where the commits lie until the next one is added, which is never before a wait."""
        places, count = self._places, self._end - self._first
        room = len(places.words) // 2
        if count > room:
            while room < count:
                room *= 2
            places.words = np.zeros(2 * room, np.int64)
            places.end = 0
        for ordinal in range(max(places.end, self._first), self._end):
            data, place = self._objects[ordinal], ordinal & (room - 1)
            places.words[2 * place] = address_of(data)
            places.words[2 * place + 1] = len(data)
        places.first, places.end = self._first, self._end
        return places


class EncodedBatches:
    """Whole batches in the form that sessions send, kept and shared once a second reader asks.

    Most batches have one reader: live followers of a stream are served as one, and a replay comes
    alone, which would leave the whole cache full behind it. They are kept by their place, not with
    their batches: a batch that was fetched is a view of its whole run, which would stay in memory.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # Tiny ones weigh less than the objects that hold them, and are bounded by these.
        self._wires_max = max(bytes_max // WIRE_OBJECT_BYTES, WIRES_MIN)
        self._wires: OrderedDict[int, bytes] = OrderedDict()  # by their places
        # Many small ones that come between must not have the large ones be forgotten.
        self._small, self._large = _AskedOnce(), _AskedOnce()
        self.bytes_held = 0

    def wire(self, entry: Entry) -> bytes:
        """Return the batch as `records` fields of a ReadBatch message."""
        # By stream, seq_num and count: out of the table, batches begin and end elsewhere.
        place = (entry.stream_id << 64 | entry.first_seq_num) << 32 | entry.count
        wire = self._wires.get(place)
        if wire is None:
            wire = encode_sequenced(
                entry.payload, entry.count, entry.first_seq_num, entry.timestamps, 0, entry.count
            )
            asked_once = self._small if len(wire) < WIRE_BYTES_LARGE else self._large
            if asked_once.is_second(place):
                self._keep(place, wire)
        return wire

    def _keep(self, place: int, wire: bytes) -> None:
        wires = self._wires
        wires[place] = wire
        self.bytes_held += len(wire)
        while len(wires) > 1 and (
            self.bytes_held > self._bytes_max or len(wires) > self._wires_max
        ):
            self.bytes_held -= len(wires.popitem(last=False)[1])


class _AskedOnce:
    """The places that were asked for lately, each by one reader."""

    def __init__(self) -> None:
        self.places: OrderedDict[int, None] = OrderedDict()

    def is_second(self, place: int) -> bool:
        """Note that somebody asks; returns whether somebody has before, and begins anew then."""
        places = self.places
        if place in places:
            del places[place]
            return True
        places[place] = None
        if len(places) > PLACES_ASKED_MAX:
            places.popitem(last=False)
        return False
