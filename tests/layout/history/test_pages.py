"""Columns straight from the pages of a file are those that Arrow reads from it."""

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from bourn.errors import Damaged
from bourn.layout.entry import Entry
from bourn.layout.history.index import decode_columns, decode_index, decode_row_group
from bourn.layout.history.pages import Columns, read_columns
from bourn.layout.history.rows import batches_in, columns_of, table_of
from bourn.layout.history.segment import encode_segment
from bourn.layout.records import encode_records
from bourn.limits import KIB, MIB, U64_MAX
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

FIXED = ("seq_nums", "stamps", "arrivals", "retentions", "kinds", "metered", "headers_at")


def strings(offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any], gap: int) -> list[bytes]:
    places = offsets.view(np.uint32).tolist()
    return [data[start : end - gap].tobytes() for start, end in pairwise(places)]


def texts_of(columns: Columns) -> list[list[bytes]]:
    headers = int(columns.headers_at.view(np.uint32)[-1])
    return [
        strings(columns.names_at[: 4 * headers + 4], columns.names, columns.gap),
        strings(columns.values_at[: 4 * headers + 4], columns.values, columns.gap),
        strings(columns.bodies_at[: 4 * columns.rows + 4], columns.bodies, columns.gap),
    ]


def check_all(entries: list[Entry]) -> None:
    """Compare both ways to read every row group of a segment with these batches."""
    segment = encode_segment(table_of(entries, NAMES))
    index = decode_index(segment.index, "index")
    for number in range(index.row_groups):
        group = index.row_group(number)
        data = segment.parquet[group.offset : group.offset + group.length]
        found = read_columns(data, group.rows, group.header_values, group.chunk_ends)
        assert found is not None, "our own writer makes no page that is foreign"
        wanted = columns_of(decode_row_group(index, number, data, KEY))
        for name in FIXED:
            assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes(), name
        assert texts_of(found) == texts_of(wanted)
    assert stored_in(read_back(segment, index)) == stored_in(entries)


@settings(deadline=None)
@given(histories())
def test_both_ways_find_the_same_in_any_history(entries: list[Entry]) -> None:
    check_all(entries)


def test_both_ways_find_the_same_where_a_column_has_several_pages() -> None:
    # Bodies without a byte: more rows than one page takes.
    check_all([entry_of(encode_records([Record(b"")] * 1000), 1, at * 1000) for at in range(70)])


def test_both_ways_find_the_same_in_records_as_large_as_they_may_be() -> None:
    rng = Random(1)
    largest = encode_records([Record(rng.randbytes(MIB - 8))])
    headers = tuple((b"%d" % n, b"v" * (n % 7)) for n in range(10_000))
    many = encode_records([Record(b"x", headers), Record(b""), Record(b"y", headers[:3])])
    wide = encode_records([Record(b"", ((rng.randbytes(70 * KIB), rng.randbytes(70 * KIB)),))])
    check_all([entry_of(batch, id_) for id_, batch in enumerate((largest, many, wide, largest))])


def test_both_ways_find_the_same_numbers_of_any_width() -> None:
    rng = Random(2)
    one = encode_records([Record(b"x")])
    for bits in (0, 1, 3, 8, 15, 31, 33, 62, 63, 64):
        stamps = sorted(rng.getrandbits(bits) if bits else 0 for _ in range(1000))
        entries = [
            entry_of(one, 1, seq, stamp, rng.getrandbits(40), rng.getrandbits(rng.choice((8, 64))))
            for seq, stamp in enumerate(stamps)
        ]
        check_all(entries)
    falling = [rng.getrandbits(64) for _ in range(300)]  # of one stream each
    check_all([entry_of(one, id_, U64_MAX - id_, stamp) for id_, stamp in enumerate(falling)])


@pytest.mark.parametrize(
    "options",
    [
        {"data_page_version": "1.0"},
        {"use_dictionary": False},
        {"use_dictionary": True},
        {"column_encoding": {}},
        {"compression": "zstd", "compression_level": 9, "data_page_size": 1000},
    ],
    ids=str,
)
def test_what_another_version_of_the_writer_has_made_is_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    rng = Random(3)
    records = [Record(rng.randbytes(n % 90), ((b"n", b"%d" % n),) * (n % 3)) for n in range(1000)]
    entries = [entry_of(encode_records(records), 1, at * 1000, at, 9, 60) for at in range(4)]
    ours = pq.ParquetWriter

    def other(*arguments: Any, **keywords: Any) -> pq.ParquetWriter:
        keywords |= options
        if "use_dictionary" in options:
            del keywords["column_encoding"]
        return ours(*arguments, **keywords)

    monkeypatch.setattr(pq, "ParquetWriter", other)
    segment = encode_segment(table_of(entries, NAMES))
    index = decode_index(segment.index, "index")
    assert stored_in(read_back(segment, index)) == stored_in(entries)


def test_a_row_group_that_nobody_can_read_is_damaged() -> None:
    segment = encode_segment(table_of([entry_of(encode_records([Record(b"x")]))], NAMES))
    index = decode_index(segment.index, "index")
    data = bytes(len(group_bytes(segment, index, index.block(0))))
    with pytest.raises(Damaged, match="fails its checksum"):
        decode_columns(index, 0, data, KEY)
    index._arrays["checksum"] = np.array([xxh3_64_intdigest(data)], np.uint64)
    with pytest.raises(Damaged, match="row group 0 cannot be read"):
        decode_columns(index, 0, data, KEY)


@settings(deadline=None)
@given(st.data())
def test_bytes_that_are_no_pages_are_answered_and_never_followed(data: st.DataObject) -> None:
    entries = [entry_of(encode_records([Record(b"abc", ((b"n", b"v"),))] * 40), 1, 0, 7, 9, 60)]
    segment = encode_segment(table_of(entries, NAMES))
    index = decode_index(segment.index, "index")
    group = index.row_group(0)
    damaged = bytearray(group_bytes(segment, index, index.block(0)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    found = read_columns(bytes(damaged), group.rows, group.header_values, group.chunk_ends)
    if found is not None:
        assert found.rows == group.rows
        try:
            batches_in(found, 1)
        except ValueError:
            return
