"""What a read delivers: slices of stored batches, encoded only when somebody asks for the bytes."""

from typing import NamedTuple

from bourn.engine.tail_cache import EncodedBatches
from bourn.layout.codec import decode_sequenced, encode_sequenced
from bourn.layout.entry import Entry
from bourn.model.record import SequencedRecord, StreamPosition


class EntrySlice(NamedTuple):
    """Records [start, stop) of one stored batch."""

    entry: Entry
    start: int
    stop: int


class ReadBatch:
    """Up to 1,000 records or 1 MiB, in order. `tail` is set where the read is caught up.

    Without records and with a tail it is a heartbeat. Without `encoded` nothing of it is shared.
    """

    __slots__ = ("_encoded", "kept", "metered_bytes", "records_count", "slices", "tail")

    def __init__(
        self,
        slices: tuple[EntrySlice, ...],
        records_count: int,
        metered_bytes: int,
        encoded: EncodedBatches | None,
        tail: StreamPosition | None = None,
    ) -> None:
        self.slices = slices
        self.records_count = records_count
        self.metered_bytes = metered_bytes
        self._encoded = encoded
        self.tail = tail
        self.kept: dict[object, bytes] = {}  # what it was made into, for all who were given it

    @property
    def is_heartbeat(self) -> bool:
        """Whether this only says where the tail is."""
        return not self.slices and self.tail is not None

    @property
    def last_seq_num(self) -> int:
        """The sequence number of the last record; there must be one."""
        entry, _, stop = self.slices[-1]
        return entry.first_seq_num + stop - 1

    @property
    def place(self) -> tuple[int, int, int, int] | None:
        """What its content is known by to all who may read it; None where nothing is shared."""
        if self._encoded is None or not self.slices:
            return None
        entry, start, _ = self.slices[0]
        return entry.stream_id, entry.first_seq_num + start, self.last_seq_num, self.records_count

    def wire(self) -> list[bytes]:
        """The `records` fields of a ReadBatch message, in pieces to be sent one after the other."""
        encoded = self._encoded
        return [
            encoded.wire(entry)
            if encoded is not None and stop - start == entry.count
            else encode_sequenced(
                entry.payload, entry.count, entry.first_seq_num, entry.timestamps, start, stop
            )
            for entry, start, stop in self.slices
        ]

    def records(self) -> list[SequencedRecord]:
        """The records one by one, for whoever looks at them singly."""
        return [
            record
            for entry, start, stop in self.slices
            for record in decode_sequenced(
                entry.payload, entry.count, entry.first_seq_num, entry.timestamps, start, stop
            )
        ]
