"""The stored form of records, written and read in plain Python."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.errors import Invalid, Undecodable
from bourn.layout.records import (
    RecordFormatError,
    decode_record,
    encode_record,
    encode_records,
    plain_payload,
)
from bourn.limits import BATCH_METERED_BYTES_MAX, U64_MAX
from bourn.model.record import (
    Fence,
    Headers,
    Record,
    Trim,
    fence_record,
    metered_bytes,
    trim_record,
)
from tests.layout.record_samples import (
    GOLDEN,
    GOLDEN_BATCH,
    any_records,
    blobs,
    golden_text,
    records,
    small_records,
)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (Record(), "0a 08 0000"),
        (Record(b"hi"), "0a 0a 0000 6869"),
        (
            Record(b"xyz", ((b"a", b"bc"), (b"d", b""))),
            "0a 13 0002 000161 00026263 000164 0000 78797a",
        ),
        (fence_record("abc"), "09 12 01 616263"),
        (fence_record(""), "09 0f 01"),
        (trim_record(100), "09 16 02 0000000000000064"),
    ],
)
def test_a_stored_record_has_the_bytes_that_are_drawn(record: Record, stored: str) -> None:
    data = bytes.fromhex(stored)
    assert encode_record(record.headers, record.body) == data
    assert decode_record(data) == (record.headers, record.body)


@pytest.mark.parametrize(
    ("body_bytes", "prefix"),
    [
        (247, "0aff"),
        (248, "120100"),
        (65_527, "12ffff"),
        (65_528, "1a010000"),
        (2**20 - 8, "1a100000"),
    ],
)
def test_the_metered_size_takes_as_few_bytes_as_it_needs(body_bytes: int, prefix: str) -> None:
    stored = encode_record((), bytes(body_bytes))
    assert stored.startswith(bytes.fromhex(prefix) + b"\0\0")
    assert len(stored) == len(prefix) // 2 + 2 + body_bytes


@pytest.mark.parametrize(
    "headers",
    [
        ((b"n" * 65_536, b""),),
        ((b"n", b"v" * 65_536),),
        ((b"n", b""),) * 65_536,
    ],
)
def test_counts_and_sizes_above_two_bytes_take_the_wide_form(headers: Headers) -> None:
    stored = encode_record(headers, b"body")
    assert stored[0] & 0b100000
    assert stored[4:8] == len(headers).to_bytes(4, "big")
    assert decode_record(stored) == (headers, b"body")


@pytest.mark.parametrize("headers", [((b"n" * 65_535, b"v" * 65_535),), ((b"n", b""),) * 65_535])
def test_the_largest_counts_and_sizes_of_two_bytes_stay_narrow(headers: Headers) -> None:
    assert not encode_record(headers, b"")[0] & 0b100000


@settings(deadline=None)
@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    stored = encode_record(record.headers, record.body)
    assert decode_record(stored) == (record.headers, record.body)
    assert decode_record(memoryview(stored)) == (record.headers, record.body)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("", "unknown magic byte"),
        ("08", "unknown magic byte"),  # type 0
        ("0c08", "unknown magic byte"),  # type 4
        ("02", "unknown magic byte"),  # no width
        ("4a080000", "unknown magic byte"),  # bit 6
        ("8a080000", "unknown magic byte"),  # bit 7
        ("2916020000000000000064", "unknown magic byte"),  # a wide command
        ("0b08", "record is encrypted"),
        ("12", "record is cut short"),
        ("0a0800", "record is cut short"),
        ("0a080001", "record is cut short"),
        ("0a0c0001000161", "record is cut short"),
        ("0a0c00010001610001", "record is cut short"),
        ("0908", "record is cut short"),
        ("0a090000", "metered size is wrong"),
        ("09110161", "metered size is wrong"),
        ("090f03", "unknown command"),
        ("090e02", "unknown command"),
        ("091502" + 7 * "00", "unknown command"),
        ("093401" + 37 * "61", "unknown command"),
    ],
)
def test_what_is_no_record_is_refused(stored: str, message: str) -> None:
    with pytest.raises(RecordFormatError) as caught:
        decode_record(bytes.fromhex(stored))
    assert caught.value.message == message
    assert isinstance(caught.value, Undecodable)


def test_readers_take_wider_fields_than_writers_make() -> None:
    assert decode_record(bytes.fromhex("3a 00000a 00000000 6869")) == ((), b"hi")
    assert decode_record(bytes.fromhex("11 0012 01 616263")) == (((b"", b"fence"),), b"abc")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_random_bytes_are_a_record_or_refused(data: bytes) -> None:
    try:
        headers, body = decode_record(data)
    except RecordFormatError:
        return
    assert int.from_bytes(data[1 : 1 + (data[0] >> 3 & 3)], "big") == metered_bytes(headers, body)


@settings(deadline=None, max_examples=200)
@given(small_records, st.data())
def test_a_damaged_record_is_another_record_or_refused(record: Record, data: st.DataObject) -> None:
    stored = bytearray(encode_record(record.headers, record.body))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(stored)))
    for damaged in (bytes(stored), bytes(stored[:cut])):
        try:
            decode_record(damaged)
        except RecordFormatError:
            continue


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=6))
def test_a_batch_is_columns_and_records(items: list[Record]) -> None:
    metered = sum(metered_bytes(record.headers, record.body) for record in items)
    if metered > BATCH_METERED_BYTES_MAX:
        with pytest.raises(Invalid):
            encode_records(items)
        return
    batch = encode_records(items)
    count = len(items)
    stored = [encode_record(record.headers, record.body) for record in items]
    ends = np.cumsum([len(data) for data in stored])
    starts = [len(data) - len(record.body) for data, record in zip(stored, items, strict=True)]
    columns = struct.pack(f"<{2 * count}I", *ends, *starts)
    assert batch.payload == columns + b"".join(stored)
    assert batch.count == count
    assert batch.header_count == sum(len(record.headers) for record in items)
    assert batch.metered_bytes == metered


def test_commands_are_named_with_their_places() -> None:
    batch = encode_records([Record(b"a"), fence_record("t"), Record(b"b"), trim_record(U64_MAX)])
    assert batch.commands == ((1, Fence("t")), (3, Trim(U64_MAX)))


def test_timestamps_are_columns_only_where_there_are_any() -> None:
    none = encode_records([Record(b"a"), Record(b"b")])
    assert none.timestamps is None
    assert none.missing is None
    every = encode_records([Record(b"a", (), 0), Record(b"b", (), U64_MAX)])
    assert every.timestamps is not None
    assert every.timestamps.dtype == np.uint64
    assert every.timestamps.tolist() == [0, U64_MAX]
    assert every.missing is None
    some = encode_records([Record(b"a"), Record(b"b", (), 7)])
    assert some.timestamps is not None
    assert some.missing is not None
    assert some.timestamps.tolist() == [0, 7]
    assert some.missing.tolist() == [True, False]
    one = encode_records([Record(b"a", (), U64_MAX)])
    assert one.timestamps is not None
    assert one.timestamps.tolist() == [U64_MAX]


LARGEST = Record(bytes(2**20 - 8))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "record batch must not be empty"),
        ([Record()] * 1001, "record batch must not exceed 1000 records"),
        ([LARGEST, Record()], "record batch must not exceed a metered size of 1 MiB"),
        ([LARGEST] * 1001, "record batch must not exceed 1000 records"),
        ([Record(bytes(2**20 - 7))], "record must have metered size less than 1 MiB"),
        (
            [Record(b"", ((b"n", bytes(2**20 - 10)),))],
            "record must have metered size less than 1 MiB",
        ),
        ([Record(b"", ((b"", b"stop"),))], "unknown command"),
        ([Record(b"", ((b"a", b""), (b"", b"")))], "invalid header: empty name"),
        ([Record()] * 1001 + [Record(b"", ((b"", b"stop"),))], "unknown command"),
        (
            [Record(bytes(2**20)), Record(b"", ((b"", b"stop"),))],
            "record must have metered size less than 1 MiB",
        ),
        (
            [Record(bytes(7), ((b"", b"trim"),)), Record(bytes(2**20))],
            "invalid `trim` command: earliest sequence number to trim to was 7 bytes, must be 8",
        ),
        (
            [Record(bytes(37), ((b"", b"fence"),))],
            "invalid `fence` command: fencing token must not exceed 36 bytes in length",
        ),
        (
            [Record(b"\xff", ((b"", b"fence"),))],
            "invalid `fence` command: fencing token must be valid UTF-8",
        ),
    ],
)
def test_the_first_rule_that_is_broken_is_named(items: list[Record], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        encode_records(items)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "items",
    [
        [LARGEST],
        [Record()] * 1000,
        [Record(bytes(2**20 - 16)), Record()],
        [Record(bytes(1040))] * 1000,
    ],
)
def test_a_batch_at_its_limits_is_taken(items: list[Record]) -> None:
    batch = encode_records(items)
    assert batch.metered_bytes == sum(8 + len(record.body) for record in items)


def test_a_batch_of_one_record_too_heavy_is_refused_by_the_record_alone() -> None:
    with pytest.raises(Invalid, match="record must have"):
        encode_record((), bytes(2**20 - 7))


@settings(deadline=None)
@given(any_records)
def test_encode_record_refuses_what_a_batch_of_it_refuses(record: Record) -> None:
    by_record: bytes | str
    by_batch: bytes | str
    try:
        by_record = encode_record(record.headers, record.body)
    except Invalid as error:
        by_record = error.message
    try:
        by_batch = encode_records([record]).payload[8:]
    except Invalid as error:
        by_batch = error.message
    assert by_record == by_batch


@settings(deadline=None)
@given(blobs)
def test_the_payload_of_one_plain_record_is_that_of_its_batch(body: bytes) -> None:
    general = encode_records([Record(body), Record()]).payload
    stored = general[16:-4]
    assert plain_payload(body) == struct.pack("<II", len(stored), len(stored) - len(body)) + stored
    assert plain_payload(memoryview(body)) == plain_payload(body)
    assert encode_records([Record(body)]).payload == plain_payload(body)


def test_the_format_is_what_the_golden_files_say() -> None:
    assert golden_text() == (GOLDEN / "records_v1.txt").read_text()
    assert encode_records(GOLDEN_BATCH).payload == (GOLDEN / "records_v1.bin").read_bytes()
