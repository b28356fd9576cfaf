"""The newest commits in memory, as the batches that they were made of.

The unit is the commit: the oldest goes first, whole, so that the byte budget is exact and holds
over all streams. A reader finds a batch by position either here or in the bucket; it never keeps
one, so a slow reader costs nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

from bourn.layout.codec import encode_sequenced
from bourn.layout.entry import Entry

ENTRY_OBJECT_BYTES: Final = 400  # what Python's objects around one batch weigh
WIRE_OBJECT_BYTES: Final = 256  # and around one encoded batch
WIRES_MIN: Final = 16
WIRE_BYTES_LARGE: Final = 64 * 1024
PLACES_ASKED_MAX: Final = 4096  # 256 MiB of large ones at least, behind which the next reader comes

Place = tuple[int, int, int]


class HasEntries(Protocol):
    """What a commit knows of one stream."""

    entries: list[Entry]


class TailCache:
    """Batches by commit ordinal and stream id, first in, first out."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._commits: OrderedDict[int, tuple[int, dict[int, list[Entry]]]] = OrderedDict()
        self.bytes_held = 0

    def add(self, ordinal: int, size_bytes: int, groups: Iterable[tuple[int, HasEntries]]) -> None:
        """Keep a commit that has become durable; older ones make room."""
        entries = {stream_id: group.entries for stream_id, group in groups}
        size_bytes += ENTRY_OBJECT_BYTES * sum(map(len, entries.values()))
        self._commits[ordinal] = (size_bytes, entries)
        self.bytes_held += size_bytes
        while self.bytes_held > self._bytes_max and self._commits:
            self.bytes_held -= self._commits.popitem(last=False)[1][0]

    def get(self, ordinal: int, stream_id: int) -> list[Entry] | None:
        """Return a stream's batches of one commit, or None if they are not in memory."""
        commit = self._commits.get(ordinal)
        return None if commit is None else commit[1].get(stream_id)


class EncodedBatches:
    """Whole batches in the form that sessions send, encoded once and shared by all readers.

    They are kept by their place, not with their batches: a batch that was fetched is a view of
    its whole run, which would stay in memory with it. A large one is kept when it is asked for
    again: most streams have one reader at a time, which would leave the whole cache full behind it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # Tiny ones weigh less than the objects that hold them, and are bounded by these.
        self._wires_max = max(bytes_max // WIRE_OBJECT_BYTES, WIRES_MIN)
        # By stream, seq_num and count: out of the table, batches begin and end elsewhere.
        self._wires: OrderedDict[Place, bytes] = OrderedDict()
        self._asked_once: OrderedDict[Place, None] = OrderedDict()  # of the large ones
        self.bytes_held = 0

    def wire(self, entry: Entry) -> bytes:
        """Return the batch as `records` fields of a ReadBatch message."""
        place = (entry.stream_id, entry.first_seq_num, entry.count)
        wire = self._wires.get(place)
        if wire is None:
            wire = encode_sequenced(
                entry.payload, entry.count, entry.first_seq_num, entry.timestamps, 0, entry.count
            )
            if len(wire) < WIRE_BYTES_LARGE or self._was_asked_for(place):
                self._keep(place, wire)
        return wire

    def _was_asked_for(self, place: Place) -> bool:
        asked = self._asked_once
        if place in asked:
            del asked[place]
            return True
        asked[place] = None
        if len(asked) > PLACES_ASKED_MAX:
            asked.popitem(last=False)
        return False

    def _keep(self, place: Place, wire: bytes) -> None:
        wires = self._wires
        wires[place] = wire
        self.bytes_held += len(wire)
        while len(wires) > 1 and (
            self.bytes_held > self._bytes_max or len(wires) > self._wires_max
        ):
            self.bytes_held -= len(wires.popitem(last=False)[1])
