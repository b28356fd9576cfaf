"""Messages to columns and back, held against the protobuf library's own messages."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bourn.errors import BadProto, Invalid
from bourn.layout.arrow import HEADERS, Columns, Gap, ReadRows, encode_inputs
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    FRAME_PAYLOAD_BYTES_MAX,
    MIB,
    U64_MAX,
)
from bourn.model.record import Record, SequencedRecord, metered_bytes
from tests.layout.record_samples import blobs, plain_headers, records, stamps, u64s
from tests.wire.schema import AppendInput, ReadBatch

ALL = Columns(headers=True, body=True, metered_bytes=True)
sequenced = st.builds(SequencedRecord, u64s, u64s, blobs, plain_headers)


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def message_of(found: list[SequencedRecord], tail: tuple[int, int] | None = None) -> bytes:
    message = ReadBatch()
    for seq_num, timestamp, body, headers in found:
        record = message.records.add(seq_num=seq_num, timestamp=timestamp, body=body)
        for name, value in headers:
            record.headers.add(name=name, value=value)
    if tail is not None:
        message.tail.seq_num, message.tail.timestamp = tail
        message.tail.SetInParent()
    return bytes(message.SerializeToString())


def rows_of(found: list[SequencedRecord]) -> list[dict[str, Any]]:
    return [
        {
            "seq_num": signed(seq_num),
            "timestamp": signed(timestamp),
            "headers": [{"name": name, "value": value} for name, value in headers],
            "body": body,
            "metered_bytes": metered_bytes(headers, body),
        }
        for seq_num, timestamp, body, headers in found
    ]


def ascending(found: list[SequencedRecord]) -> list[SequencedRecord]:
    by_number = {record.seq_num: record for record in found}
    return [by_number[number] for number in sorted(by_number)]


@settings(deadline=None)
@given(st.lists(st.lists(sequenced, max_size=5), max_size=4), st.booleans(), st.booleans())
def test_messages_become_rows_of_the_columns_that_are_wanted(batches, headers, body):
    found = ascending([record for batch in batches for record in batch])
    cuts = [0, len(found) // 3, len(found) // 2, len(found)]
    gathered = ReadRows(Columns(headers=headers, body=body, metered_bytes=headers))
    for start, end in pairwise(cuts):
        gathered.take(message_of(found[start:end], (end, 5)))
    assert gathered.rows == len(found)
    assert gathered.metered_bytes == sum(metered_bytes(r.headers, r.body) for r in found)
    assert gathered.tail == (len(found), 5)
    batch = gathered.flush()
    batch.validate(full=True)
    left_out = {"headers": headers, "body": body, "metered_bytes": headers}
    assert batch.to_pylist() == [
        {name: value for name, value in row.items() if left_out.get(name, True)}
        for row in rows_of(found)
    ]
    if found:
        assert gathered.next_seq_num == (found[-1].seq_num + 1) & U64_MAX
    assert gathered.flush().num_rows == 0


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda data, cut: data[:cut],
        st.builds(
            lambda found: message_of(ascending(found), (1, 2)), st.lists(sequenced, max_size=3)
        ),
        st.integers(0, 200),
    )
)
@example(b"\x0a\x02\x22\x05ab")
@example(b"\x0a\x00" * 1500)
def test_any_bytes_are_judged_as_the_protobuf_library_does(data):
    gathered = ReadRows(ALL)
    try:
        expected = ReadBatch.FromString(data)
    except DecodeError:
        with pytest.raises(BadProto):
            gathered.take(data)
        assert gathered.flush().num_rows == 0
        return
    numbers = [record.seq_num for record in expected.records]
    if any(second <= first for first, second in pairwise(numbers)):
        with pytest.raises(BadProto, match="do not ascend"):
            gathered.take(data)
        assert (gathered.rows, gathered.next_seq_num) == (0, None)
        return
    gathered.take(data)
    found = gathered.flush()
    found.validate(full=True)
    assert found.column("seq_num").to_pylist() == [signed(number) for number in numbers]
    assert found.column("body").to_pylist() == [record.body for record in expected.records]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(0, 30), st.integers(0, 30)
)
def test_what_is_not_wanted_is_left_and_what_is_missing_is_told(numbers, start, end):
    numbers = [number for number in numbers if number >= start]
    gathered = ReadRows(Columns(), start, end)
    gathered.take(message_of([SequencedRecord(number, 7, b"x") for number in numbers]))
    wanted = [number for number in numbers if number < end]
    assert gathered.flush().column("seq_num").to_pylist() == wanted
    assert gathered.is_past_end == (len(wanted) < len(numbers))
    walked = [start - 1, *wanted]
    gaps = [Gap(a + 1, b) for a, b in pairwise(walked) if b > a + 1]
    assert gathered.gap == (gaps[0] if gaps else None)
    assert gathered.next_seq_num == (wanted[-1] + 1 if wanted else start)


def test_a_record_before_the_start_is_an_error_and_changes_nothing():
    gathered = ReadRows(Columns(), 5)
    gathered.take(message_of([SequencedRecord(5, 0, b"x")]))
    with pytest.raises(BadProto, match="do not ascend"):
        gathered.take(message_of([SequencedRecord(6, 0, b"y"), SequencedRecord(5, 0, b"z")]))
    assert gathered.next_seq_num == 6
    assert gathered.flush().column("body").to_pylist() == [b"x"]


def columns_of(found: list[Record]) -> tuple[Any, Any, Any]:
    """Columns with rows in front and behind that a slice leaves out."""
    padded = [Record(b"front", ((b"k", b"v"),), 1), *found, Record(b"behind")]
    body = pa.array([record.body for record in padded], pa.binary())
    headers = pa.array(
        [[{"name": n, "value": v} for n, v in record.headers] for record in padded], HEADERS
    )
    timestamp = pa.array([record.timestamp for record in padded], pa.uint64())
    size = len(found)
    return body.slice(1, size), headers.slice(1, size), timestamp.slice(1, size)


@settings(deadline=None)
@given(st.lists(records, max_size=6), st.integers(1, 4), st.integers(2**20, 2 * 2**20))
def test_rows_become_messages_that_the_protobuf_library_reads(found, records_max, metered_max):
    taken = list(
        encode_inputs(*columns_of(found), records_max=records_max, metered_max=metered_max)
    )
    seen: list[Record] = []
    for each in taken:
        message = AppendInput.FromString(each.message)
        assert bytes(message.SerializeToString()) == each.message
        assert each.first_row == len(seen)
        assert len(message.records) == each.records <= records_max
        batch = [
            Record(
                record.body,
                tuple((header.name, header.value) for header in record.headers),
                record.timestamp if record.HasField("timestamp") else None,
            )
            for record in message.records
        ]
        assert each.metered_bytes == sum(metered_bytes(r.headers, r.body) for r in batch)
        assert each.metered_bytes <= metered_max or each.records == 1
        seen += batch
    assert seen == found


def test_a_batch_is_as_full_as_the_limits_allow():
    small = list(encode_inputs(pa.array([b"x"] * 2500)))
    assert [each.records for each in small] == [1000, 1000, 500]
    large = list(
        encode_inputs(pa.array([bytes(2**20 - 8), b"", bytes(2**19 - 8), bytes(2**19 - 8)]))
    )
    assert [each.metered_bytes for each in large] == [MIB, 8 + 2**19, 2**19]
    assert BATCH_RECORDS_MAX == 1000
    assert BATCH_METERED_BYTES_MAX == MIB


def test_headers_that_outgrow_a_frame_make_smaller_batches():
    tiny = [{"name": b"n", "value": b"v"}] * 131_070
    taken = list(encode_inputs(pa.array([b""] * 2), pa.array([tiny] * 2, HEADERS)))
    assert [each.metered_bytes for each in taken] == [2**19, 2**19], "as one they would weigh 1 MiB"
    assert sum(len(each.message) for each in taken) > FRAME_PAYLOAD_BYTES_MAX - 64
    with pytest.raises(Invalid, match="row 0: with so many headers it does not fit a frame"):
        list(encode_inputs(pa.array([b""]), pa.array([(2 * tiny)[:262_139] + tiny[:2]], HEADERS)))


def test_a_record_that_is_too_large_is_named_before_anything_is_made():
    body = pa.array([b"x", bytes(2**20 - 7)])
    with pytest.raises(Invalid, match="row 1: record must have metered size less than 1 MiB"):
        next(encode_inputs(body))


def test_text_nulls_and_other_widths_are_taken():
    body = pa.array(["a", None, "é"], pa.large_string())
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
    headers = pa.array([None, [{"name": "k", "value": None}], []], kind)
    timestamp = pa.array([5, None, 0], pa.int32())
    (only,) = encode_inputs(body, headers, timestamp)
    found = AppendInput.FromString(only.message).records
    assert [record.body for record in found] == [b"a", b"", "é".encode()]
    assert [[(h.name, h.value) for h in record.headers] for record in found] == [
        [],
        [(b"k", b"")],
        [],
    ]
    assert [record.HasField("timestamp") for record in found] == [True, False, True]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="different numbers of rows"):
        list(encode_inputs(pa.array([b"a"]), None, pa.array([1, 2])))
    assert list(encode_inputs(pa.array([], pa.binary()))) == []


@settings(deadline=None)
@given(st.lists(stamps, min_size=1, max_size=9))
def test_signed_timestamps_keep_all_their_bits(given_stamps):
    column = pa.array([None if s is None else signed(s) for s in given_stamps], pa.int64())
    (only,) = encode_inputs(pa.array([b""] * len(given_stamps)), None, column)
    found = AppendInput.FromString(only.message).records
    assert [r.timestamp if r.HasField("timestamp") else None for r in found] == given_stamps
