"""A segment: what goes in comes out, from the whole file and from every row group alone."""

from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.errors import Damaged
from bourn.layout.entry import NEVER_S, Entry
from bourn.layout.history.index import decode_block, decode_index
from bourn.layout.history.rows import entries_of, table_of
from bourn.layout.history.schema import SCHEMA
from bourn.layout.history.segment import _cuts, encode_segment
from bourn.layout.records import encode_records
from bourn.limits import (
    HISTORY_ROW_BYTES,
    HISTORY_ROW_GROUP_BYTES_MAX,
    HISTORY_ROW_GROUP_BYTES_MIN,
    HISTORY_ROW_GROUP_BYTES_SHARED_MAX,
    KIB,
    MIB,
    U64_MAX,
)
from bourn.model.record import Record
from tests.layout.history.samples import (
    KEY,
    NAMES,
    entry_of,
    group_bytes,
    histories,
    read_back,
    stored_in,
)


def batch_of(size: int, count: int = 1) -> list[Record]:
    return [Record(bytes([n % 256]) * size) for n in range(count)]


def stream_of(stream_id: int, batches: int, size: int, count: int = 1) -> list[Entry]:
    batch = encode_records(batch_of(size, count))
    return [entry_of(batch, stream_id, at * count) for at in range(batches)]


@settings(deadline=None)
@given(histories())
def test_every_record_comes_back_from_its_row_group(entries: list[Entry]) -> None:
    segment = encode_segment(table_of(entries, NAMES))
    found = read_back(segment, decode_index(segment.index, "index"))
    assert stored_in(found) == stored_in(entries)
    assert segment.rows == len(stored_in(entries))
    assert segment.metered_bytes == sum(entry.metered_bytes for entry in entries)


def test_many_streams_share_a_row_group_and_a_large_one_takes_several() -> None:
    entries = [entry for id_ in range(50) for entry in stream_of(id_, 2, 100, 3)]
    entries += stream_of(50, 60, 100 * KIB)
    entries += [entry for id_ in range(51, 60) for entry in stream_of(id_, 1, 5)]
    segment = encode_segment(table_of(entries, NAMES))
    index = decode_index(segment.index, "index")
    assert stored_in(read_back(segment, index)) == stored_in(entries)
    assert {index.blocks_of(id_)[0].row_group for id_ in range(50)} == {0}
    assert len(index.blocks_of(50)) >= 4
    assert len({block.row_group for block in index.blocks_of(50)}) == len(index.blocks_of(50))


def test_a_row_group_ends_with_its_stream_where_it_is_large_enough() -> None:
    entries = stream_of(1, 6, 100 * KIB) + stream_of(2, 6, 100 * KIB) + stream_of(3, 3, 300 * KIB)
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, "index")
    assert [index.block(place).row_group for place in range(len(index))] == [0, 1, 2]
    # A small one does not: it would be a request of its own.
    entries = stream_of(1, 1, KIB) + stream_of(2, 20, 100 * KIB)
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, "index")
    assert index.blocks_of(2)[0].row_group == 0


def test_a_row_group_exceeds_its_size_only_for_one_record() -> None:
    entries = stream_of(1, 3, MIB - 8) + stream_of(2, 5000, 0)
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, "index")
    for place in range(len(index)):
        block = index.block(place)
        assert block.count == 1 or block.metered_bytes <= HISTORY_ROW_GROUP_BYTES_MAX


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(8, 80 * KIB)), min_size=1, max_size=30))
def test_row_groups_of_one_stream_may_be_larger_than_those_that_are_shared(
    streams: list[tuple[int, int]],
) -> None:
    metered = np.concatenate([np.full(count, size) for count, size in streams])
    counts = np.array([count for count, _ in streams])
    of_row = np.repeat(np.arange(len(streams)), counts)
    cuts = list(_cuts(metered, np.cumsum(counts) - counts))
    assert cuts[-1] == len(metered)
    sizes = []
    for start, end in pairwise([0, *cuts]):
        assert start < end
        is_shared = of_row[start] != of_row[end - 1]
        weight = int((metered[start:end] + HISTORY_ROW_BYTES).sum())
        assert weight <= (
            HISTORY_ROW_GROUP_BYTES_SHARED_MAX if is_shared else HISTORY_ROW_GROUP_BYTES_MAX
        )
        sizes.append(weight)
    # Of two neighbours one at least is no request for little.
    assert all(a + b > HISTORY_ROW_GROUP_BYTES_MIN for a, b in pairwise(sizes))


def test_a_segment_without_rows_is_one() -> None:
    segment = encode_segment(table_of([], NAMES))
    assert (segment.rows, segment.metered_bytes, segment.seq_num_max) == (0, 0, 0)
    assert len(decode_index(segment.index, "index")) == 0
    assert pq.read_table(pa.BufferReader(segment.parquet)).num_rows == 0


def test_plain_readers_find_the_columns_of_the_contract() -> None:
    entries = stream_of(1, 30, 90 * KIB) + stream_of(2, 3, 10)
    segment = encode_segment(table_of(entries, NAMES))
    file = pq.ParquetFile(pa.BufferReader(segment.parquet))
    assert file.metadata.num_row_groups > 1
    table = file.read()
    assert table.schema.equals(SCHEMA)
    assert table.column("stream").to_pylist() == ["stream/1"] * 30 + ["stream/2"] * 3
    assert table.column("basin").to_pylist() == ["basin-of-1"] * 30 + ["basin-of-2"] * 3
    assert stored_in(entries_of(table.slice(0, 30))) == stored_in(entries[:30])
    chosen = pq.read_table(
        pa.BufferReader(segment.parquet), filters=[("stream", "=", "stream/2"), ("seq_num", ">", 0)]
    )
    assert chosen.column("seq_num").to_pylist() == [1, 2]


def test_no_row_group_repeats_the_names_of_streams_that_are_not_in_it() -> None:
    rng = Random(1)
    names = {id_: ("basin-aaaa", rng.randbytes(250).hex()) for id_ in range(40)}
    entries = [entry for id_ in range(40) for entry in stream_of(id_, 1, 600 * KIB)]
    segment = encode_segment(table_of(entries, names))
    found = pq.read_metadata(pa.BufferReader(segment.parquet))
    assert found.num_row_groups == 40
    assert all(found.row_group(at).column(1).total_compressed_size < 4 * KIB for at in range(40))


def test_a_table_that_was_read_becomes_the_same_segment() -> None:
    entries = stream_of(1, 30, 90 * KIB) + stream_of(2, 3, 10)
    segment = encode_segment(table_of(entries, NAMES))
    table = pq.read_table(pa.BufferReader(segment.parquet))
    again = encode_segment(table)
    assert stored_in(read_back(again, decode_index(again.index, "index"))) == stored_in(entries)
    assert again.index == segment.index
    halves = pa.concat_tables([table.slice(0, 11), table.slice(11)])
    assert encode_segment(halves).parquet == again.parquet


def test_rows_may_be_missing_in_the_middle() -> None:
    entries = stream_of(1, 30, 90 * KIB)
    table = table_of(entries, NAMES)
    kept = [row for row in range(30) if row not in {0, 7, 8, 9, 29}]
    segment = encode_segment(table.take(kept))
    index = decode_index(segment.index, "index")
    found = stored_in(read_back(segment, index))
    assert found == [stored_in(entries)[row] for row in kept]
    block = index.find(1, 8)
    assert block is not None
    assert block.first_seq_num < 7
    assert block.last_seq_num >= 10


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 0, 1], [2, 1, 0]])
def test_rows_that_are_not_sorted_are_refused(order: list[int]) -> None:
    table = table_of(stream_of(1, 2, 5) + stream_of(2, 1, 5), NAMES)
    with pytest.raises(ValueError, match="not sorted"):
        encode_segment(table.take(order))


def test_the_bounds_are_those_of_the_columns() -> None:
    batch = encode_records(batch_of(5))
    entries = [
        entry_of(batch, 1, 3, 7, 1000, 60),
        entry_of(batch, 1, 4, U64_MAX, 5001, 1),
        entry_of(batch, 2, U64_MAX, 2, 2000, 0),
    ]
    segment = encode_segment(table_of(entries, NAMES))
    assert (segment.seq_num_min, segment.seq_num_max) == (-1, 4)
    assert (segment.timestamp_min, segment.timestamp_max) == (-1, 7)
    assert (segment.arrival_min_us, segment.arrival_max_us) == (1_000_000, 5_001_000)
    assert (segment.expires_s_min, segment.expires_s_max) == (7, NEVER_S)
    index = decode_index(segment.index, "index")
    assert [index.block(at).expires_s for at in range(2)] == [61, NEVER_S]


@settings(deadline=None)
@given(histories())
def test_a_block_expires_with_the_last_of_its_batches(entries: list[Entry]) -> None:
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, "index")
    for stream_id in {entry.stream_id for entry in entries}:
        expected = max(entry.expires_s for entry in entries if entry.stream_id == stream_id)
        assert max(block.expires_s for block in index.blocks_of(stream_id)) == expected


SMALL = encode_segment(table_of(stream_of(1, 3, 20) + stream_of(2, 1, 5), NAMES))


@settings(deadline=None)
@given(st.data())
def test_a_damaged_row_group_is_named(data: st.DataObject) -> None:
    index = decode_index(SMALL.index, "index")
    block = index.block(data.draw(st.integers(0, len(index) - 1)))
    good = group_bytes(SMALL, index, block)
    damaged = bytearray(good)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), good[:at], good + b"\0", b""):
        with pytest.raises(Damaged, match=f"{KEY} is damaged: ") as caught:
            decode_block(index, block, bad, KEY)
        assert caught.value.key == KEY


def test_rows_that_are_not_what_the_index_says_are_damage() -> None:
    entries = stream_of(1, 3, 20)
    segment = encode_segment(table_of(entries, NAMES))
    index = decode_index(segment.index, "index")
    block = index.block(0)
    data = group_bytes(segment, index, block)
    assert stored_in(decode_block(index, block, memoryview(data), KEY)) == stored_in(entries)
    for change in (
        {"first_seq_num": 1},
        {"last_seq_num": 1},
        {"count": 2},
        {"metered_bytes": 1},
        {"first_row": 1},
    ):
        with pytest.raises(Damaged, match="holds other rows than its index says"):
            decode_block(index, block._replace(**change), data, KEY)


def test_what_parquet_cannot_read_is_damage_though_its_checksum_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = decode_index(SMALL.index, "index")
    block = index.block(0)
    data = bytearray(group_bytes(SMALL, index, block))
    rng = np.random.default_rng(1)
    found = 0
    checksum = index.row_group(0).checksum
    monkeypatch.setattr("bourn.layout.history.index.xxh3_64_intdigest", lambda _: checksum)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        try:
            decode_block(index, block, bytes(damaged), KEY)
        except Damaged as error:
            found += error.key == KEY
    assert found > 100, "the rest hits what nobody reads"
