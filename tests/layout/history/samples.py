"""Batches to try, and what must be the same after their way through the history.

The golden file is written once, when a version of the format is born:

    python -m tests.layout.history.samples
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from bourn.layout.entry import Entry
from bourn.layout.history.footer import LEAVES
from bourn.layout.history.index import Block, SegmentIndex, decode_block, encode_index
from bourn.layout.history.segment import Segment
from bourn.layout.records import RecordBatch, encode_records
from bourn.layout.sealed import SealedStream, seal
from bourn.limits import HISTORY_ARRIVAL_MS_MAX, U64_MAX
from bourn.model.config import Cipher
from bourn.model.record import Record
from tests.layout.record_samples import small_records, u64s

GOLDEN = Path(__file__).parents[2] / "golden" / "history_index_v1.bin"
KEY = "history/some.parquet"
CUSTOMER_KEY = bytes(range(32))


class Stored(NamedTuple):
    """A record as the log keeps it, with everything that is known of it."""

    stream_id: int
    seq_num: int
    timestamp: int
    expires: tuple[int, int]  # retention, and the arrival it counts from
    body_start: int
    data: bytes


class Names(dict[int, tuple[str, str]]):
    """A name for every stream there may be."""

    def __missing__(self, stream_id: int) -> tuple[str, str]:
        return f"basin-of-{stream_id % 3}", f"stream/{stream_id}"

    def __contains__(self, stream_id: object) -> bool:
        return True


NAMES = Names()


def entry_of(
    batch: RecordBatch,
    stream_id: int = 1,
    first_seq_num: int = 0,
    stamps: int | list[int] = 5,
    arrival_ms: int = 1_700_000_000_123,
    retention_secs: int = 0,
) -> Entry:
    last = stamps if isinstance(stamps, int) else stamps[-1]
    return Entry(
        stream_id,
        first_seq_num,
        batch.count,
        batch.metered_bytes,
        batch.header_count,
        arrival_ms,
        retention_secs,
        last,
        stamps if isinstance(stamps, int) else np.array(stamps, np.uint64),
        batch.payload,
        bool(batch.commands),
    )


def sealed_batch(records: list[Record], cipher: Cipher, stream_id: int = 1) -> RecordBatch:
    stream = SealedStream(cipher, "basin-aaaa", "stream", stream_id)
    return seal(encode_records(records), stream, stream.aead(CUSTOMER_KEY), bytes)


def stored_in(entries: list[Entry]) -> list[Stored]:
    found = []
    for entry in entries:
        count, payload = entry.count, bytes(entry.payload)
        columns: list[int] = np.frombuffer(payload, "<u4", 2 * count).tolist()
        stamps = entry.timestamps
        assert columns[count - 1] + 8 * count == len(payload)
        assert entry.last_timestamp == (stamps if isinstance(stamps, int) else stamps[-1])
        # Where nothing expires nobody asks when it came.
        arrival = entry.arrival_ms if entry.retention_secs else 0
        start = 0
        for index in range(count):
            found.append(
                Stored(
                    entry.stream_id,
                    entry.first_seq_num + index,
                    stamps if isinstance(stamps, int) else int(stamps[index]),
                    (entry.retention_secs, arrival),
                    columns[count + index],
                    payload[8 * count + start : 8 * count + columns[index]],
                )
            )
            start = columns[index]
    return found


def group_bytes(segment: Segment, index: SegmentIndex, block: Block) -> bytes:
    offset, length = index.row_group_range(block)
    return segment.parquet[offset : offset + length]


def read_back(segment: Segment, index: SegmentIndex) -> list[Entry]:
    """Read all blocks of a segment, each from the bytes of its row group alone."""
    entries: list[Entry] = []
    for place in range(len(index)):
        block = index.block(place)
        entries += decode_block(index, block, group_bytes(segment, index, block), KEY)
    return entries


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    records = draw(st.lists(small_records, min_size=1, max_size=5))
    cipher = draw(st.sampled_from([None, None, *Cipher]))
    return encode_records(records) if cipher is None else sealed_batch(records, cipher)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Draw batches of some streams, sorted, with gaps between them."""
    entries: list[Entry] = []
    for stream_id in sorted(draw(st.sets(u64s, min_size=1, max_size=4))):
        position = draw(st.one_of(st.just(0), st.integers(0, U64_MAX - 1000)))
        stamp = draw(u64s)
        for batch in draw(st.lists(batches(), min_size=1, max_size=4)):
            stamps: int | list[int] = stamp
            if draw(st.booleans()):
                stamps = sorted(draw(st.integers(stamp, U64_MAX)) for _ in range(batch.count))
                stamp = stamps[-1]
            entries.append(
                entry_of(
                    batch,
                    stream_id,
                    position,
                    stamps,
                    draw(st.sampled_from([0, 1_700_000_000_123, HISTORY_ARRIVAL_MS_MAX])),
                    draw(st.one_of(st.sampled_from([0, 604_800]), u64s)),
                )
            )
            position += batch.count + draw(st.sampled_from([0, 0, 1, 7]))
    return entries


def golden_arrays() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an index of two row groups and three blocks, one of them over both."""
    groups = {
        "offset": np.array([4, 1000]),
        "checksum": np.array([U64_MAX, 1], np.uint64),
        "rows": np.array([10, 3]),
        "header_values": np.array([12, 3]),
        "chunk_ends": np.arange(1, 2 * LEAVES + 1),
    }
    blocks = {
        "stream_id": np.array([7, U64_MAX, U64_MAX], np.uint64),
        "first_seq_num": np.array([0, 2**63, U64_MAX - 2], np.uint64),
        "last_seq_num": np.array([5, 2**63 + 90, U64_MAX], np.uint64),
        "first_timestamp": np.array([1, 2, 3]),
        "last_timestamp": np.array([1, 3, U64_MAX], np.uint64),
        "row_group": np.array([0, 0, 1]),
        "first_row": np.array([0, 6, 0]),
        "count": np.array([6, 4, 3]),
        "metered_bytes": np.array([48, 4096, 1 << 20]),
        "expires_s": np.array([2**32 - 1, 1_700_000_000, 0]),
    }
    return groups, blocks


if __name__ == "__main__":
    GOLDEN.write_bytes(encode_index(*golden_arrays()))
