"""Hostile messages: accepted and refused as the protobuf library does, with the same values."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bourn.errors import BadProto, Invalid
from bourn.layout.codec import decode_append_input
from bourn.layout.records import encode_records
from bourn.model.record import Record
from tests.layout.record_samples import any_headers, message_of, records_in, small_records, stamps
from tests.wire.schema import AppendInput

REFUSED = "refused"


def varint(value: int, size: int = 1) -> bytes:
    """A varint of at least `size` bytes."""
    out = bytearray()
    while value > 0x7F or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, wire_type: int, content: bytes) -> bytes:
    return varint(number << 3 | wire_type) + content


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def by_library(data: bytes) -> Any:
    """What the protobuf library and the plain Python path make of a message."""
    try:
        message = AppendInput.FromString(data)
    except DecodeError:
        return REFUSED
    token = message.fencing_token if message.HasField("fencing_token") else None
    match = message.match_seq_num if message.HasField("match_seq_num") else None
    try:
        payload = encode_records(records_in(message)).payload
    except Invalid as error:
        return error.message
    if token is not None and len(token.encode()) > 36:
        return "fencing token must not exceed 36 bytes in length"
    return payload, match, token


def by_codec(data: bytes) -> Any:
    try:
        batch, match, token = decode_append_input(data)
    except BadProto:
        return REFUSED
    except Invalid as error:
        return error.message
    return batch.payload, match, token


# Fields as nobody sensible writes them: padded numbers, wrong wire types, wrong lengths, groups.
padded = st.builds(
    varint,
    st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1), st.integers(2**64, 2**70 - 1)),
    st.sampled_from([1, 1, 1, 2, 5, 6, 9, 10, 11]),
)
field_numbers = st.sampled_from([1, 1, 1, 2, 2, 3, 3, 4, 7, 15, 16, 2**29 - 1, 2**29, 0])
tags = st.builds(
    lambda number, wire_type, size: varint(number << 3 | wire_type, size),
    field_numbers,
    st.sampled_from([0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7]),
    st.sampled_from([1, 1, 1, 1, 2, 5, 6]),
)
loose_fields = st.builds(bytes.__add__, tags, st.one_of(padded, st.binary(max_size=12)))


def lengthen(content: bytes, change: int, size: int) -> bytes:
    return varint(max(0, len(content) + change), size) + content


def nest(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Fields that hold fields: submessages, mostly of the right length, and groups."""
    several = st.lists(inner, max_size=3).map(b"".join)
    submessages = st.builds(
        lambda number, content, change, size: field(number, 2, lengthen(content, change, size)),
        st.sampled_from([1, 2, 3, 7]),
        several,
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
        st.sampled_from([1, 1, 1, 2, 5, 6]),
    )
    groups = st.builds(
        lambda number, content, end: field(number, 3, content) + field(end or number, 4, b""),
        st.sampled_from([1, 2, 3, 7, 100]),
        several,
        st.sampled_from([0, 0, 0, 0, 9]),
    )
    return st.one_of(submessages, groups)


scalars = st.one_of(
    st.builds(lambda number, value: field(number, 0, value), st.sampled_from([1, 2, 3, 7]), padded),
    st.builds(
        lambda number, content: field(number, 2, sized(content)),
        st.sampled_from([1, 2, 3, 7]),
        st.binary(max_size=40),
    ),
)
fields = st.recursive(st.one_of(scalars, scalars, loose_fields), nest, max_leaves=8)
messages = st.lists(fields, max_size=5).map(b"".join)
whole_records = st.builds(
    lambda body, headers, stamp: field(
        1, 2, sized(message_of([Record(body, headers, stamp)]).records[0].SerializeToString())
    ),
    st.binary(max_size=20),
    any_headers,
    stamps,
)


@settings(deadline=None, max_examples=400)
@given(messages)
@example(b"")
def test_odd_fields_are_taken_and_refused_as_the_library_does(data: bytes) -> None:
    assert by_codec(data) == by_library(data)


@settings(deadline=None, max_examples=500)
@given(st.lists(st.one_of(whole_records, whole_records, fields), min_size=1, max_size=6))
def test_records_among_odd_fields_decode_as_the_library_does(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert by_codec(data) == by_library(data)


@settings(deadline=None, max_examples=500)
@given(st.lists(small_records, min_size=1, max_size=4), st.data())
def test_a_changed_message_decodes_as_the_library_does(
    items: list[Record], data: st.DataObject
) -> None:
    message = bytearray(message_of(items, 7, "token").SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(message)), st.integers(0, len(message))))
    changed = bytes(message[:cut])
    assert by_codec(changed) == by_library(changed)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=64))
def test_random_bytes_decode_as_the_library_does(data: bytes) -> None:
    assert by_codec(data) == by_library(data)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=10), st.text(max_size=40).map(str.encode)), st.data())
def test_a_token_is_utf8_exactly_where_the_library_says_so(
    token: bytes, data: st.DataObject
) -> None:
    if token and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(token) - 1))
        token = token[:place] + bytes([data.draw(st.integers(0x80, 0xFF))]) + token[place + 1 :]
    message = bytes.fromhex("0a00") + field(3, 2, sized(token))
    assert by_codec(message) == by_library(message)


@pytest.mark.parametrize("lead", range(0x80, 0x100))
def test_every_second_byte_of_utf8_is_judged_as_the_library_does(lead: int) -> None:
    for second in range(0x70, 0x100):
        token = bytes([lead, second]) + b"\x80" * max(0, (lead >= 0xE0) + (lead >= 0xF0))
        message = bytes.fromhex("0a00") + field(3, 2, sized(token))
        assert by_codec(message) == by_library(message)


@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_padded_tags_lengths_and_values_are_taken_as_the_library_does(
    number: int, size: int
) -> None:
    record = bytes.fromhex("0a00")
    for message in (
        varint(number << 3, size) + b"\x05",
        varint(number << 3 | 2, size) + b"\x00",
        field(number, 0, varint(5, size)),
        field(number, 0, b"\xff" * (size - 1) + b"\x7f"),
        field(number, 2, varint(2, size) + b"\x08\x05"),
        field(7, 3, varint(number << 3, size) + b"\x05" + varint(7 << 3 | 4)),
        field(7, 3, field(number, 2, varint(2, size) + b"ab") + varint(7 << 3 | 4, size)),
        field(1, 2, sized(field(number, 2, varint(1, size) + b"X"))),
        field(1, 2, sized(field(2, 2, sized(field(number, 2, varint(1, size) + b"X"))))),
    ):
        assert by_codec(record + message) == by_library(record + message)


@pytest.mark.parametrize("depth", [1, 2, 97, 98, 99, 100, 101, 150])
def test_groups_nest_as_deep_as_the_library_lets_them(depth: int) -> None:
    groups = field(7, 3, b"") * depth + field(7, 4, b"") * depth
    record = bytes.fromhex("0a00")
    in_record = field(1, 2, sized(groups))
    in_header = field(1, 2, sized(field(2, 2, sized(bytes.fromhex("0a016e") + groups))))
    for message in (record + groups, in_record, in_header):
        assert by_codec(message) == by_library(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0a", "it ends inside of a field"),
        ("0a05", "it ends inside of a field"),
        ("0a021a01", "it ends inside of a field"),
        ("1080", "it ends inside of a field"),
        ("10" + 10 * "80" + "00", "a varint has too many bytes"),
        ("0a" + 5 * "80" + "00", "a varint has too many bytes"),
        ("0000", "a tag is no field number"),
        ("f8ffffff1f00", "a tag is no field number"),
        ("3e", "a field has a wire type that is none"),
        ("3f", "a field has a wire type that is none"),
        ("3c", "a field has a wire type that is none"),
        ("3b44", "a group ends that is not open"),
        (101 * "3b" + 101 * "3c", "groups are nested too deeply"),
        ("1a01ff", "the fencing token is not UTF-8"),
        ("1a01ff1a0161", "the fencing token is not UTF-8"),
    ],
)
def test_a_refusal_says_why(message: str, reason: str) -> None:
    data = bytes.fromhex(message)
    assert by_library(data) == REFUSED
    with pytest.raises(BadProto) as caught:
        decode_append_input(data)
    assert caught.value.message == f"Failed to decode protobuf: {reason}"


@pytest.mark.parametrize(
    "message",
    [
        "0a061a01611a0162",  # two bodies: the last one
        "0a0408010802",  # two timestamps
        "0a09 10011a0161",  # a length beyond the end
        "0a0a1a01611203" + "0a016e" + "0800",  # headers behind the body, a timestamp behind them
        "0a02080010011002",  # two match_seq_num
        "0a001a01611a0162",  # two tokens
        "0a0012" + "00",  # match_seq_num as bytes
        "0a0011" + 8 * "00",
        "0a0008" + "00",  # records as a number
        "0a030d" + 4 * "00",
        "0a00" + "0b0c",  # records as a group
        "0a08 1206 0a016e 0a016d",  # two names of a header
        "0a0b 1209 0a016e 120176 120177",  # two values
        "0a0e 1203 0a016e 1a0162 3801 1203 0a016f",  # headers around the body and an unknown field
    ],
)
def test_repeated_fields_and_foreign_types_decode_as_the_library_does(message: str) -> None:
    data = bytes.fromhex(message)
    assert by_codec(data) == by_library(data)


def test_a_group_of_field_number_zero_passes_where_the_library_lets_it() -> None:
    inside = bytes.fromhex("0a003b 0005 0203616263 0304 3c")
    assert by_codec(inside) == by_library(inside) != REFUSED
    outside = bytes.fromhex("0a000304")
    assert by_codec(outside) == by_library(outside) == REFUSED
