"""A read batch in the making: what of the stored batches fits into it."""

from typing import Final, NamedTuple, Protocol

from bourn.engine.batch import EntrySlice, ReadBatch
from bourn.engine.tail_cache import EncodedBatches
from bourn.layout.codec import cut, metered_size, sequenced_size_bound
from bourn.layout.entry import Entry
from bourn.layout.sealed import cut_sealed
from bourn.limits import FRAME_PAYLOAD_BYTES_MAX, RECORD_METERED_BYTES_MIN
from bourn.log.cursor import Cursor, advance, budget

# Room for the tail beside the records, so that every batch fits a frame.
ENCODED_BATCH_BYTES_MAX: Final = FRAME_PAYLOAD_BYTES_MAX - 64


class HasTimestamps(Protocol):
    """A run of the log or a block of the history."""

    @property
    def first_timestamp(self) -> int:
        """The timestamp of its first record."""
        ...


class Collected(NamedTuple):
    """A batch, the cursor behind it, and whether the limits exclude the record that follows."""

    batch: ReadBatch
    cursor: Cursor
    excluded: bool


class Gather:
    """A read batch in the making."""

    def __init__(self, cursor: Cursor, position: int, end: int, *, is_sealed: bool) -> None:
        """Take records from `position` on, none at or behind `end`."""
        self._cursor = cursor
        self._end = end
        self.is_sealed = is_sealed
        self._room = budget(cursor)
        self._encoded_left = ENCODED_BATCH_BYTES_MAX
        self._slices: list[EntrySlice] = []
        self._records = 0
        self._metered_bytes = 0
        self.position = position
        self.near = 0  # which run is probably next; whoever looks there makes sure

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken yet."""
        return not self._slices

    @property
    def is_sated(self) -> bool:
        """Whether something was taken and no record at all fits any more."""
        room = self._room
        is_used_up = not room.records or room.metered_bytes < RECORD_METERED_BYTES_MIN
        return is_used_up and not self.is_empty

    @property
    def records_left(self) -> int:
        """How many records more the batch may have."""
        return self._room.records

    @property
    def metered_left(self) -> int:
        """How many metered bytes more."""
        return self._room.metered_bytes

    def wants(self, part: HasTimestamps, records: int, metered_bytes: int) -> bool:
        """Whether the read, not this batch alone, may reach what lies behind so much more."""
        cursor = self._cursor
        return (
            (cursor.count_left is None or self._records + records < cursor.count_left)
            and (
                cursor.bytes_left is None or self._metered_bytes + metered_bytes < cursor.bytes_left
            )
            and (cursor.until is None or part.first_timestamp < cursor.until)
        )

    def take_run(self, entries: list[Entry], now_ms: int) -> bool:
        """Take what fits of consecutive batches; True once something did not.

        Where numbers are left out between them, the records are gone for good.
        """
        end = self._end
        for entry in entries:
            first = entry.first_seq_num
            if first + entry.count <= self.position:
                continue
            if first > self.position:
                self.position = min(first, end)
            if self.position == end:
                break
            if entry.retention_secs and entry.is_expired(now_ms):
                self.position = min(first + entry.count, end)
            elif not (self._takes_whole(entry) or self._take(entry)):
                return True
        return False

    def _takes_whole(self, entry: Entry) -> bool:
        """Take a batch, if all of it is wanted and fits."""
        first, count, metered_bytes = entry.first_seq_num, entry.count, entry.metered_bytes
        bound = sequenced_size_bound(metered_bytes, count, entry.header_count)
        if (
            self.position != first
            or first + count > self._end
            or bound > self._encoded_left
            or not self._room.takes_whole(count, metered_bytes, entry.last_timestamp)
        ):
            return False
        self._slices.append(EntrySlice(entry, 0, count))
        self._spend(count, metered_bytes, bound)
        self.position = first + count
        return True

    def _take(self, entry: Entry) -> bool:
        """Take what fits of a batch; whether that is all that is there."""
        start = self.position - entry.first_seq_num
        count = min(entry.count, self._end - entry.first_seq_num)
        room = self._room
        most = min(room.records, count - start)
        stop = start + most
        metered_bytes = self._weight_of_piece(entry, start, stop)
        if metered_bytes < 0:
            stop, metered_bytes = self._cut(entry, start, most, self._encoded_left)
        if stop == start and not self._slices and room.records:
            # One record may encode to more than a frame; it is not the read's limits that
            # exclude it, and formats without frames can still deliver it.
            stop, metered_bytes = self._cut(entry, start, 1, 4 * ENCODED_BATCH_BYTES_MAX)
        if stop > start:
            bound = sequenced_size_bound(metered_bytes, stop - start, entry.header_count)
            self._slices.append(EntrySlice(entry, start, stop))
            self._spend(stop - start, metered_bytes, bound)
            self.position = entry.first_seq_num + stop
        return stop == count

    def _weight_of_piece(self, entry: Entry, start: int, stop: int) -> int:
        """Return what some records of a batch weigh, if all of them fit; else less than nothing.

        Whoever begins inside of a large batch has every later one cut in two. So it pays that a
        piece that no limit but the number of records ends needs no close look at each of them.
        """
        until = self._room.until
        if stop <= start or (until is not None and entry.last_timestamp >= until):
            return -1
        metered_bytes = metered_size(entry.payload, entry.count, start, stop)
        bound = sequenced_size_bound(metered_bytes, stop - start, entry.header_count)
        fits = metered_bytes <= self._room.metered_bytes and bound <= self._encoded_left
        return metered_bytes if fits else -1

    def _spend(self, records: int, metered_bytes: int, bound: int) -> None:
        self._records += records
        self._metered_bytes += metered_bytes
        self._encoded_left -= bound
        self._room = self._room.spend(records, metered_bytes)

    def _cut(
        self, entry: Entry, start: int, records_max: int, encoded_bytes_max: int
    ) -> tuple[int, int]:
        if self.is_sealed:
            return cut_sealed(
                entry.payload,
                entry.count,
                entry.timestamps,
                start,
                records_max=records_max,
                metered_max=self._room.metered_bytes,
                until=self._room.until,
                encoded_max=encoded_bytes_max,
                header_count=entry.header_count,
            )
        return cut(
            entry.payload,
            entry.count,
            entry.timestamps,
            start,
            records_max=records_max,
            metered_max=self._room.metered_bytes,
            until=self._room.until,
            encoded_max=encoded_bytes_max,
            first_seq_num=entry.first_seq_num,
        )

    def collected(self, encoded: EncodedBatches, *, full: bool) -> Collected:
        """Close the batch. One that is full and empty: the read's own limits say no."""
        after = advance(self._cursor, self._records, self._metered_bytes, self.position)
        return Collected(self.batch(encoded), after, full and not self._slices)

    def batch(self, encoded: EncodedBatches) -> ReadBatch:
        """Return what was taken."""
        return ReadBatch(tuple(self._slices), self._records, self._metered_bytes, encoded)
