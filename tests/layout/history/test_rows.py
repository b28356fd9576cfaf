"""Batches to rows and back: nothing is lost, and what is no batch is refused."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.layout.codec import encode_sequenced
from bourn.layout.entry import Entry
from bourn.layout.history.rows import entries_of, table_of
from bourn.layout.history.schema import HEADER, HEADERS, ROWS_SCHEMA, SCHEMA
from bourn.layout.records import RecordFormatError, encode_record, encode_records
from bourn.limits import HISTORY_ARRIVAL_MS_MAX, MIB, U64_MAX
from bourn.model.config import Cipher
from bourn.model.record import Record, fence_record, trim_record
from tests.layout.history.samples import NAMES, entry_of, histories, sealed_batch, stored_in


def there_and_back(entries: list[Entry]) -> list[Entry]:
    found: list[Entry] = []
    for stream_id in sorted({entry.stream_id for entry in entries}):
        rows = table_of([entry for entry in entries if entry.stream_id == stream_id], NAMES)
        found += entries_of(rows)
    return found


@settings(deadline=None)  # the first call may compile
@given(histories())
def test_every_record_comes_back_as_it_was_stored(entries: list[Entry]) -> None:
    found = there_and_back(entries)
    assert stored_in(found) == stored_in(entries)
    assert sum(e.metered_bytes for e in found) == sum(e.metered_bytes for e in entries)
    assert any(e.has_commands for e in found) == any(e.has_commands for e in entries)


LARGE = {
    "an empty body": [Record()],
    "a body of 1 MiB": [Record(bytes(MIB - 8))],
    "10,000 headers": [Record(b"x", ((b"name", b"value"),) * 10_000)],
    "a count that needs the wide form": [Record(b"", ((b"n", b""),) * 65_536)],
    "the largest narrow count": [Record(b"", ((b"n", b""),) * 65_535)],
    "a wide value": [Record(b"w", ((b"name", bytes(65_536)),))],
    "the largest narrow value": [Record(b"w", ((b"name", bytes(65_535)), (b"m", bytes(9))))],
    "a wide name": [Record(b"w", ((b"n" * 65_536, b""),))],
    "many large headers in the narrow form": [Record(b"w", ((b"n" * 60_000, bytes(60_000)),) * 2)],
    "the same header twice": [Record(b"d", ((b"a", b"1"), (b"a", b"1"), (b"a", b"")))],
    "bytes that are no UTF-8": [Record(b"\xff\xfe\x00", ((b"\xff", b"\x80\x00"),))],
    "commands": [fence_record("token"), fence_record(""), trim_record(U64_MAX), Record(b"x")],
    "sizes at the edges": [Record(bytes(size)) for size in (247, 248, 65_527, 65_528)],
}


@pytest.mark.parametrize("records", LARGE.values(), ids=LARGE.keys())
def test_a_record_of_an_unusual_shape_comes_back(records: list[Record]) -> None:
    entry = entry_of(encode_records(records))
    (found,) = there_and_back([entry])
    assert bytes(found.payload) == entry.payload
    assert found.header_count == entry.header_count
    assert found.has_commands == entry.has_commands


@pytest.mark.parametrize("cipher", Cipher)
def test_encrypted_records_come_back_bit_for_bit(cipher: Cipher) -> None:
    records = [Record(b"secret", ((b"a", b"b"),)), fence_record("t"), Record(bytes(70_000))]
    entry = entry_of(sealed_batch(records, cipher))
    table = table_of([entry], NAMES)
    assert table.column("kind").to_pylist() == ["encrypted", "command", "encrypted"]
    (found,) = entries_of(table)
    assert bytes(found.payload) == entry.payload
    assert found.metered_bytes == entry.metered_bytes
    assert found.header_count >= entry.header_count, "what bounds the encoded size stays a bound"


def test_the_columns_say_what_a_client_sees() -> None:
    records = [Record(b"hi", ((b"a", b"1"), (b"a", b"2"))), fence_record("tok"), trim_record(3)]
    stamps = [5, 2**63, U64_MAX]
    entry = entry_of(encode_records(records), 9, 100, stamps, 1_700_000_000_123, 60)
    table = table_of([entry], {9: ("basin-aaaa", "some/stream")}).cast(SCHEMA)
    assert table.schema.equals(SCHEMA)
    rows = table.to_pydict()
    assert rows["basin"] == ["basin-aaaa"] * 3
    assert rows["stream"] == ["some/stream"] * 3
    assert rows["stream_id"] == [9, 9, 9]
    assert rows["seq_num"] == [100, 101, 102]
    assert rows["timestamp"] == [5, -(2**63), -1]
    assert [at.timestamp() for at in rows["arrival"]] == [1_700_000_000.123] * 3
    assert rows["retention_secs"] == [60] * 3
    assert rows["kind"] == ["envelope", "command", "command"]
    assert rows["headers"] == [
        [{"name": b"a", "value": b"1"}, {"name": b"a", "value": b"2"}],
        [{"name": b"", "value": b"fence"}],
        [{"name": b"", "value": b"trim"}],
    ]
    assert rows["body"] == [b"hi", b"tok", struct.pack(">Q", 3)]
    assert rows["metered_bytes"] == [18, 18, 22]


def test_streams_without_a_name_are_left_out() -> None:
    batch = encode_records([Record(b"x")])
    entries = [entry_of(batch, 1), entry_of(batch, 2), entry_of(batch, 3)]
    table = table_of(entries, {1: ("basin-aaaa", "a"), 3: ("basin-aaaa", "c")})
    assert table.column("stream").to_pylist() == ["a", "c"]
    assert table_of(entries, {}).num_rows == 0
    assert table_of(entries, {}).schema.equals(ROWS_SCHEMA)


def test_small_batches_become_large_ones_within_the_limits() -> None:
    small = encode_records([Record(bytes(1000))])
    found = there_and_back([entry_of(small, 1, at, retention_secs=60) for at in range(2500)])
    assert [entry.count for entry in found] == [1000, 1000, 500]
    large = encode_records([Record(bytes(MIB // 2 - 8))])
    found = there_and_back([entry_of(large, 1, at) for at in range(5)])
    assert [entry.count for entry in found] == [2, 2, 1]


def test_batches_that_expire_at_different_times_stay_apart() -> None:
    batch = encode_records([Record(b"x")])
    entries = [
        entry_of(batch, 1, 0, arrival_ms=1, retention_secs=60),
        entry_of(batch, 1, 1, arrival_ms=2, retention_secs=60),
        entry_of(batch, 1, 2, arrival_ms=2, retention_secs=61),
        entry_of(batch, 1, 3, arrival_ms=2, retention_secs=0),
        entry_of(batch, 1, 4, arrival_ms=9, retention_secs=0),
    ]
    found = there_and_back(entries)
    assert [entry.count for entry in found] == [1, 1, 1, 2]
    assert [entry.expires_s for entry in found] == [e.expires_s for e in entries[:4]]


def test_rows_in_many_pieces_are_read_as_one_whole() -> None:
    entry = entry_of(encode_records([Record(bytes([n]), ((b"n", bytes(n)),)) for n in range(40)]))
    table = table_of([entry], NAMES)
    pieces = pa.concat_tables([table.slice(at, 7) for at in range(0, 40, 7)])
    assert stored_in(entries_of(pieces)) == stored_in([entry])
    plain = pieces.combine_chunks().cast(SCHEMA)
    assert stored_in(entries_of(plain)) == stored_in([entry])
    assert stored_in(entries_of(plain.slice(5, 3))) == stored_in([entry])[5:8]


def test_the_encoded_form_for_readers_is_the_same_from_the_log_and_from_the_history() -> None:
    records = [Record(bytes([n % 256]) * n, ((b"name", bytes(n)),)) for n in range(300)]
    entry = entry_of(encode_records(records), 1, 2**40, list(range(300)))
    (found,) = there_and_back([entry])
    wires = [
        encode_sequenced(e.payload, e.count, e.first_seq_num, e.timestamps, 0, e.count)
        for e in (entry, found)
    ]
    assert wires[0] == wires[1]


# What is refused


@settings(deadline=None)
@given(st.data())
def test_a_damaged_payload_is_refused_or_comes_back_as_it_is(data: st.DataObject) -> None:
    batch = encode_records([Record(b"hi", ((b"a", b"bc"),)), fence_record("x"), Record(b"")])
    damaged = bytearray(batch.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    entry = entry_of(batch)
    entry.payload = bytes(damaged)
    try:
        found = there_and_back([entry])
    except RecordFormatError:
        return
    # Metered sizes that changed in step are not noticed here; checksums are for that.
    assert stored_in(found) == stored_in([entry])


def test_a_record_in_a_form_that_no_writer_chooses_is_refused() -> None:
    wide = bytes.fromhex("2a 0a 00000000") + b"xy"  # four bytes of count, for no header at all
    long = bytes.fromhex("12 000a 0000") + b"xy"  # two bytes for a small size
    unknown = bytes.fromhex("0b 0a 03") + bytes(40)  # an algorithm that never was
    for record, body_start in ((wide, 6), (long, 5), (unknown, 15)):
        entry = entry_of(encode_records([Record(b"xy")]), 3, 70)
        entry.payload = struct.pack("<II", len(record), body_start) + record
        with pytest.raises(RecordFormatError, match="record 70 of stream 3: "):
            table_of([entry], NAMES)


def test_an_arrival_that_the_table_cannot_hold_is_refused() -> None:
    batch = encode_records([Record(b"x")])
    with pytest.raises(RecordFormatError, match="arrival"):
        table_of([entry_of(batch, arrival_ms=HISTORY_ARRIVAL_MS_MAX + 1)], NAMES)


def rows_with(**columns: list[object]) -> pa.Table:
    """Return two good rows with some columns replaced."""
    table = table_of([entry_of(encode_records([Record(b"hi"), fence_record("t")]))], NAMES)
    table = table.cast(SCHEMA)
    for name, values in columns.items():
        at = SCHEMA.get_field_index(name)
        table = table.set_column(at, name, pa.array(values, SCHEMA.field(name).type))
    return table


BAD_ROWS: dict[str, dict[str, list[object]]] = {
    "a kind that never was": {"kind": ["envelope", "letter"]},
    "a command without its header": {"headers": [[], []]},
    "a command of an unknown op": {"headers": [[], [{"name": b"", "value": b"fency"}]]},
    "a command with a name": {"headers": [[], [{"name": b"n", "value": b"fence"}]]},
    "a wrong metered size": {"metered_bytes": [11, 16]},
    "a negative metered size": {"metered_bytes": [-10, 16]},
    "sequence numbers that fall": {"seq_num": [1, 0]},
    "a sequence number twice": {"seq_num": [1, 1]},
    "two streams": {"stream_id": [1, 2]},
    "a null": {"timestamp": [None, 1]},
    "a null body": {"body": [None, b"t"]},
    "an encrypted record with nothing in it": {
        "kind": ["encrypted", "command"],
        "body": [b"", b"t"],
    },
    "an encrypted record of an unknown algorithm": {"kind": ["encrypted", "command"]},
    "a fencing token that is too long": {"body": [b"hi", b"t" * 37], "metered_bytes": [10, 52]},
}


@pytest.mark.parametrize("columns", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_no_batch_has_made_are_refused(columns: dict[str, list[object]]) -> None:
    assert len(entries_of(rows_with())) == 1
    with pytest.raises(ValueError, match=r"row|column|ascend"):
        entries_of(rows_with(**columns))


def test_columns_that_point_outside_of_their_data_are_refused() -> None:
    headers = ((b"a", b""), (b"bc", b""))
    table = table_of([entry_of(encode_records([Record(b"x", headers)]))], NAMES)
    column: Any = table.column("headers")
    pairs = column.chunk(0).values
    offsets = pa.py_buffer(np.array([0, 100, 3], np.int32).tobytes())
    names = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    pairs = pa.StructArray.from_arrays([names, pairs.field(1)], fields=list(HEADER))
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pairs, type=HEADERS)
    table = table.set_column(SCHEMA.get_field_index("headers"), SCHEMA.field("headers"), lists)
    with pytest.raises(ValueError, match="outside"):
        entries_of(table)


def test_the_smallest_record_is_the_stored_form_of_nothing() -> None:
    (found,) = there_and_back([entry_of(encode_records([Record()]))])
    assert bytes(found.payload)[8:] == encode_record((), b"")
