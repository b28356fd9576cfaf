"""What a batch takes of the stored ones: as much as its limits allow, to the record."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.engine.gather import Gather
from bourn.engine.tail_cache import EncodedBatches
from bourn.layout.codec import metered_sizes
from bourn.layout.entry import Entry
from bourn.layout.records import RecordBatch, encode_records
from bourn.limits import READ_BATCH_METERED_BYTES_MAX, READ_BATCH_RECORDS_MAX
from bourn.log.cursor import Cursor, finished
from bourn.model.record import Record

FIRST = 70
COUNTS = st.lists(st.sampled_from([1, 3, 300, 749, 750, 999, 1000]), min_size=1, max_size=5)
RECORD_METERED_BYTES = 9
SLICES = list[tuple[int, int, int]]


@cache
def records(count: int, body: bytes) -> RecordBatch:
    """So many records of one body."""
    return encode_records([Record(body)] * count)


def stored(counts: Sequence[int], body: bytes = b"x") -> list[Entry]:
    """Consecutive batches; their records' timestamps are a thousand for each batch."""
    entries: list[Entry] = []
    position = FIRST
    for number, count in enumerate(counts, 1):
        batch = records(count, body)
        stamp = 1000 * number
        entries.append(
            Entry(
                1, position, count, batch.metered_bytes, 0, 0, 0, stamp, stamp, batch.payload, False
            )
        )
        position += count
    return entries


def gathered(entries: list[Entry], cursor: Cursor) -> tuple[list[SLICES], bool]:
    """Take batch by batch to the end; returns their slices, and whether the limits ended it."""
    end = entries[-1].end_seq_num
    batches: list[SLICES] = []
    while cursor.position < end and not finished(cursor):
        gather = Gather(cursor, cursor.position, end, is_sealed=False)
        full = gather.take_run(entries, 0)
        batch, cursor, excluded = gather.collected(EncodedBatches(0), full=full)
        if excluded:
            return batches, True
        assert batch.records_count <= READ_BATCH_RECORDS_MAX
        assert batch.metered_bytes <= READ_BATCH_METERED_BYTES_MAX
        assert batch.metered_bytes == sum(
            int(metered_sizes(entry.payload, entry.count)[start:stop].sum())
            for entry, start, stop in batch.slices
        )
        batches.append([(entry.first_seq_num, start, stop) for entry, start, stop in batch.slices])
    return batches, finished(cursor)


def numbers(batches: list[SLICES]) -> list[int]:
    """The sequence numbers in some batches."""
    return [
        first + at for batch in batches for first, start, stop in batch for at in range(start, stop)
    ]


@settings(deadline=None)
@given(COUNTS, st.data())
def test_a_read_delivers_all_from_any_start_within_any_limits(
    counts: list[int], data: st.DataObject
) -> None:
    entries = stored(counts)
    end = entries[-1].end_seq_num
    start = data.draw(st.integers(FIRST, end - 1))
    count = data.draw(st.none() | st.integers(1, end - FIRST + 5))
    size = data.draw(st.none() | st.integers(1, RECORD_METERED_BYTES * (end - FIRST + 5)))
    until = data.draw(st.none() | st.sampled_from([1, 1000, 1001, 2000, 3500, 9000]))
    cursor = Cursor(start, count, size, until)

    wanted = [
        entry.first_seq_num + at
        for entry in entries
        for at in range(entry.count)
        if entry.first_seq_num + at >= start and (until is None or entry.last_timestamp < until)
    ][: min(end if count is None else count, end if size is None else size // RECORD_METERED_BYTES)]
    weight = RECORD_METERED_BYTES * len(wanted)
    found, was_ended = gathered(entries, cursor)

    assert numbers(found) == wanted
    assert was_ended == (len(wanted) < end - start or count == len(wanted) or size == weight)
    assert all(found)


def test_behind_a_start_inside_a_stored_batch_every_batch_is_full() -> None:
    found, was_ended = gathered(stored([1000] * 4), Cursor(FIRST + 300))
    assert found == [
        [(FIRST, 300, 1000), (FIRST + 1000, 0, 300)],
        [(FIRST + 1000, 300, 1000), (FIRST + 2000, 0, 300)],
        [(FIRST + 2000, 300, 1000), (FIRST + 3000, 0, 300)],
        [(FIRST + 3000, 300, 1000)],
    ]
    assert not was_ended


def test_a_piece_that_is_too_heavy_ends_before_the_record_that_is() -> None:
    entries = stored([100, 100], b"x" * 9_992)  # which weighs 10,000
    found, _ = gathered(entries, Cursor(FIRST + 1, bytes_left=1_500_000))
    assert [len(numbers([batch])) for batch in found] == [104, 46]


def test_a_piece_ends_before_the_first_record_that_is_too_late() -> None:
    entries = stored([900, 900])
    entries[1].timestamps = np.arange(900, dtype=np.uint64) + np.uint64(5000)
    entries[1].last_timestamp = 5899
    found, was_ended = gathered(entries, Cursor(FIRST + 1, until=5050))
    assert numbers(found) == list(range(FIRST + 1, FIRST + 950))
    assert was_ended
