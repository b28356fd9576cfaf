"""Hostile payloads: every function refuses them alike, and none reads out of bounds.

The kernels check each access against the size of its array and raise IndexError; one that got
through to here would fail these tests.
"""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.layout.codec import (
    cut,
    decode_sequenced,
    encode_sequenced,
    metered_sizes,
    sequenced_size,
)
from bourn.layout.records import RecordFormatError, encode_records
from bourn.model.record import Record, fence_record, trim_record
from tests.layout.record_samples import read_batch_of, small_records

REFUSED = "refused"
u32s = st.one_of(
    st.sampled_from([0, 1, 3, 4, 5, 7, 8, 2**16, 2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 80)
)


def encoded(payload: bytes, count: int, start: int, stop: int) -> bytes | str:
    try:
        return encode_sequenced(payload, count, 3, 9, start, stop)
    except RecordFormatError:
        return REFUSED


def decoded(payload: bytes, count: int, start: int, stop: int) -> bytes | str:
    try:
        found = decode_sequenced(payload, count, 3, 9, start, stop)
    except RecordFormatError:
        return REFUSED
    return read_batch_of([(r.seq_num, r.timestamp, r.body, r.headers) for r in found])


def judge(payload: bytes, count: int, start: int, stop: int) -> None:
    """Compare what all functions say about a payload."""
    outcome = encoded(payload, count, start, stop)
    assert outcome == decoded(payload, count, start, stop)
    limits = {"records_max": stop - start, "metered_max": 2**40, "encoded_max": 2**40}
    try:
        size = sequenced_size(payload, count, 3, 9, start, stop)
        reached, metered = cut(payload, count, 9, start, until=None, first_seq_num=3, **limits)
    except RecordFormatError:
        assert outcome == REFUSED
        return
    assert (reached, size) == (stop, len(outcome))
    try:
        sizes = metered_sizes(payload, count)
    except RecordFormatError:
        # Records outside of the range may be none.
        assert (start, stop) != (0, count)
    else:
        assert metered == int(sizes[start:stop].sum())


def ranges(data: st.DataObject, count: int) -> tuple[int, int]:
    start = data.draw(st.integers(0, count))
    return start, data.draw(st.integers(start, count))


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=120), st.integers(0, 12), st.data())
def test_random_bytes_are_refused_alike(payload: bytes, count: int, data: st.DataObject) -> None:
    judge(payload, count, *ranges(data, count))


@settings(deadline=None, max_examples=500)
@given(st.lists(st.binary(max_size=24), min_size=1, max_size=4), st.data())
def test_random_records_behind_right_columns_are_refused_alike(
    items: list[bytes], data: st.DataObject
) -> None:
    count = len(items)
    ends = np.cumsum([len(item) for item in items]).tolist()
    starts = [data.draw(st.integers(0, len(item) + 1)) for item in items]
    payload = struct.pack(f"<{2 * count}I", *ends, *starts) + b"".join(items)
    judge(payload, count, *ranges(data, count))


@settings(deadline=None, max_examples=500)
@given(st.lists(small_records, min_size=1, max_size=4), st.data())
def test_changed_bytes_are_refused_alike(items: list[Record], data: st.DataObject) -> None:
    count = len(items)
    payload = bytearray(encode_records(items).payload)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    judge(bytes(payload), count, *ranges(data, count))


@settings(deadline=None, max_examples=500)
@given(st.lists(small_records, min_size=1, max_size=4), st.data())
def test_changed_columns_are_refused_alike(items: list[Record], data: st.DataObject) -> None:
    count = len(items)
    payload = bytearray(encode_records(items).payload)
    for _ in range(data.draw(st.integers(1, 3))):
        struct.pack_into(
            "<I", payload, 4 * data.draw(st.integers(0, 2 * count - 1)), data.draw(u32s)
        )
    judge(bytes(payload), count, *ranges(data, count))


@settings(deadline=None, max_examples=300)
@given(st.lists(small_records, min_size=1, max_size=4), st.integers(-3, 3), st.data())
def test_a_payload_of_another_count_or_size_is_refused_alike(
    items: list[Record], more: int, data: st.DataObject
) -> None:
    payload = encode_records(items).payload
    count = max(0, len(items) + more)
    size = data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload) + 4)))
    judge((payload + bytes(4))[:size], count, *ranges(data, count))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=6), st.data())
def test_every_start_of_a_record_is_judged_alike(starts: list[int], data: st.DataObject) -> None:
    record = bytes(starts) + data.draw(st.binary(max_size=12))
    for body_at in range(len(record) + 2):
        judge(struct.pack("<II", len(record), body_at) + record, 1, 0, 1)


def one(record: str, body_at: int) -> bytes:
    data = bytes.fromhex(record)
    return struct.pack("<II", len(data), body_at) + data


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "the columns do not fit the records"),
        (struct.pack("<II", 3, 4) + b"\x0a\x08\0\0", "the columns do not fit the records"),
        (struct.pack("<II", 5, 4) + b"\x0a\x08\0\0", "the columns do not fit the records"),
        (one("0a080000", 0), "the columns do not fit the records"),
        (one("0a080000", 5), "the columns do not fit the records"),
        (one("4a080000", 4), "unknown magic byte"),
        (one("0a0900000000", 4), "metered size is wrong"),
        (one("0a080000", 3), "the body starts elsewhere"),
        (one("0a0c000100016100ff62", 9), "record is cut short"),
        (one("0a08", 2), "record is cut short"),
        (one("0908", 2), "record is cut short"),
        (one("090f03", 3), "unknown command"),
        (one("091502" + 7 * "00", 3), "unknown command"),
        (one("093401" + 37 * "61", 3), "unknown command"),
        (one("0b0801", 2), "record is encrypted"),
    ],
)
def test_a_refusal_names_the_record_and_says_why(payload: bytes, reason: str) -> None:
    for function in (encode_sequenced, sequenced_size):
        with pytest.raises(RecordFormatError) as caught:
            function(payload, 1, 0, 0, 0, 1)
        assert caught.value.message == f"record 0: {reason}"
    with pytest.raises(RecordFormatError):
        decode_sequenced(payload, 1, 0, 0, 0, 1)


def test_the_third_record_is_named_where_it_is_the_third() -> None:
    payload = bytearray(encode_records([Record(b"a"), Record(b"b"), Record(b"c")]).payload)
    payload[24 + 10] = 0xFF
    for function in (encode_sequenced, decode_sequenced):
        with pytest.raises(RecordFormatError, match="record 2: unknown magic byte"):
            function(bytes(payload), 3, 0, 0, 0, 3)
        assert function(bytes(payload), 3, 0, 0, 0, 2)
    with pytest.raises(RecordFormatError, match="record 2: unknown magic byte"):
        metered_sizes(bytes(payload), 3)


def test_an_encrypted_record_has_a_metered_size_but_nothing_else() -> None:
    items = [fence_record("t"), Record(b"hidden"), trim_record(1)]
    payload = bytearray(encode_records(items).payload)
    payload[24 + 4] = payload[24 + 4] & ~0b111 | 3
    assert metered_sizes(bytes(payload), 3).tolist() == [16, 14, 22]
    for function in (encode_sequenced, decode_sequenced, sequenced_size):
        with pytest.raises(RecordFormatError, match="record 1: record is encrypted"):
            function(bytes(payload), 3, 0, 0, 0, 3)


@pytest.mark.parametrize("size", [2**16, 2**20, 2**24 + 100])
def test_a_body_larger_than_any_record_is_refused_alike(size: int) -> None:
    head = bytes.fromhex("1a") + (8 + size & 0xFFFFFF).to_bytes(3, "big") + b"\0\0"
    payload = struct.pack("<II", len(head) + size, len(head)) + head + bytes(size)
    assert encoded(payload, 1, 0, 1) == decoded(payload, 1, 0, 1)
    assert (encoded(payload, 1, 0, 1) == REFUSED) == (size > 2**24)
