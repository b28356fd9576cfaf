"""The newest commits in memory, as the batches that they were made of.

The unit is the commit: the oldest goes first, whole, so that the byte budget is exact and holds
over all streams. A reader finds a batch by position either here or in the bucket; it never keeps
one, so a slow reader costs nothing.

There may be hundreds of thousands of batches here, and the cycle collector stops everything while
it walks over what it has to know of. So caches hold what it need not know of: numbers as keys,
batches themselves, and a list only around several.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, Protocol

from bourn.layout.codec import encode_sequenced
from bourn.layout.entry import Entry

ENTRY_OBJECT_BYTES: Final = 400  # what Python's objects around one batch weigh
WIRE_OBJECT_BYTES: Final = 256  # and around one encoded batch
WIRES_MIN: Final = 16
WIRE_BYTES_LARGE: Final = 64 * 1024
PLACES_ASKED_MAX: Final = 4096  # 256 MiB of large ones at least, behind which the next reader comes

Batches = Entry | list[Entry]  # one, or several


class HasEntries(Protocol):
    """What a commit knows of one stream."""

    entries: list[Entry]


def packed(entries: list[Entry]) -> Batches:
    """What a cache keeps of batches."""
    return entries[0] if len(entries) == 1 else entries


def unpacked(kept: Batches) -> list[Entry]:
    """What was packed."""
    return kept if isinstance(kept, list) else [kept]


class TailCache:
    """Batches by commit ordinal and stream id, first in, first out."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._commits: OrderedDict[int, dict[int, Batches]] = OrderedDict()
        self._sizes: deque[int] = deque()  # of these, in their order
        self.bytes_held = 0

    def add(self, ordinal: int, size_bytes: int, groups: Iterable[tuple[int, HasEntries]]) -> None:
        """Keep a commit that has become durable; older ones make room."""
        kept: dict[int, Batches] = {}
        for stream_id, group in groups:
            entries = group.entries
            kept[stream_id] = packed(entries)
            size_bytes += ENTRY_OBJECT_BYTES * len(entries)
        self._commits[ordinal] = kept
        self._sizes.append(size_bytes)
        self.bytes_held += size_bytes
        while self.bytes_held > self._bytes_max and self._commits:
            self._commits.popitem(last=False)
            self.bytes_held -= self._sizes.popleft()

    def get(self, ordinal: int, stream_id: int) -> list[Entry] | None:
        """Return a stream's batches of one commit, or None if they are not in memory."""
        commit = self._commits.get(ordinal)
        kept = None if commit is None else commit.get(stream_id)
        return None if kept is None else unpacked(kept)


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
        self._wires: OrderedDict[int, bytes] = OrderedDict()  # by their places
        self._asked_once: OrderedDict[int, None] = OrderedDict()  # of the large ones
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
            if len(wire) < WIRE_BYTES_LARGE or self._was_asked_for(place):
                self._keep(place, wire)
        return wire

    def _was_asked_for(self, place: int) -> bool:
        asked = self._asked_once
        if place in asked:
            del asked[place]
            return True
        asked[place] = None
        if len(asked) > PLACES_ASKED_MAX:
            asked.popitem(last=False)
        return False

    def _keep(self, place: int, wire: bytes) -> None:
        wires = self._wires
        wires[place] = wire
        self.bytes_held += len(wire)
        while len(wires) > 1 and (
            self.bytes_held > self._bytes_max or len(wires) > self._wires_max
        ):
            self.bytes_held -= len(wires.popitem(last=False)[1])
