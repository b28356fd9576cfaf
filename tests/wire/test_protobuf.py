from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from bourn.errors import BadProto
from bourn.limits import U64_MAX
from bourn.model.record import AppendAck, Record, SequencedRecord, StreamPosition
from bourn.wire import protobuf
from bourn.wire.protobuf import (
    APPEND_ACK_BYTES_MAX,
    ReadBatch,
    decode_append_ack,
    decode_read_batch,
    decode_varint,
    encode_append_ack,
    encode_append_input,
    encode_tail,
    encode_varint,
)
from tests.wire import schema

ZERO = StreamPosition(0, 0)

edges = [0, 1, 127, 128, *(2**bits + step for bits in range(14, 64, 7) for step in (-1, 0))]
u64 = st.one_of(st.sampled_from(edges), st.integers(0, U64_MAX))
positions = st.builds(StreamPosition, u64, u64)
acks = st.builds(AppendAck, positions, positions, positions)
octets = st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=140))
headers = st.lists(st.tuples(octets, octets), max_size=3).map(tuple)
records = st.builds(Record, octets, headers, st.none() | u64)
sequenced = st.builds(SequencedRecord, u64, u64, octets, headers)


def google_position(position: StreamPosition) -> Any:
    return schema.StreamPosition(seq_num=position.seq_num, timestamp=position.timestamp)


def google_ack(ack: AppendAck) -> bytes:
    message = schema.AppendAck(
        start=google_position(ack.start),
        end=google_position(ack.end),
        tail=google_position(ack.tail),
    )
    return bytes(message.SerializeToString())


def google_batch(batch: list[SequencedRecord], tail: StreamPosition | None) -> bytes:
    message = schema.ReadBatch()
    for record in batch:
        item = message.records.add(
            seq_num=record.seq_num, timestamp=record.timestamp, body=record.body
        )
        for name, value in record.headers:
            item.headers.add(name=name, value=value)
    if tail is not None:
        message.tail.CopyFrom(google_position(tail))
    return bytes(message.SerializeToString())


def google_input(batch: list[Record], match: int | None, token: str | None) -> bytes:
    message = schema.AppendInput(match_seq_num=match, fencing_token=token)
    for record in batch:
        item = message.records.add(timestamp=record.timestamp, body=record.body)
        for name, value in record.headers:
            item.headers.add(name=name, value=value)
    return bytes(message.SerializeToString())


def read_by_google(data: bytes) -> ReadBatch:
    message = schema.ReadBatch.FromString(data)
    return ReadBatch(
        [
            SequencedRecord(
                item.seq_num,
                item.timestamp,
                item.body,
                tuple((header.name, header.value) for header in item.headers),
            )
            for item in message.records
        ],
        StreamPosition(message.tail.seq_num, message.tail.timestamp)
        if message.HasField("tail")
        else None,
    )


# The vectors of the specification


def test_the_append_input_of_one_record() -> None:
    assert encode_append_input([Record(b"hi")]).hex() == "0a041a026869"


def test_an_empty_fencing_token_and_a_match_of_zero_are_present() -> None:
    assert encode_append_input([], 0, "").hex() == "10001a00"
    assert encode_append_input([]) == b""


def test_the_ack_of_a_first_record() -> None:
    ack = AppendAck(StreamPosition(0, 5), StreamPosition(1, 5), StreamPosition(1, 5))
    assert encode_append_ack(ack).hex() == "0a021005" + "120408011005" + "1a0408011005"


def test_a_zero_position_is_an_empty_message_that_is_there() -> None:
    assert encode_append_ack(AppendAck(ZERO, ZERO, ZERO)).hex() == "0a00" + "1200" + "1a00"


def test_a_heartbeat_is_a_tail_alone() -> None:
    assert encode_tail(ZERO).hex() == "1200"
    assert encode_tail(StreamPosition(7, 9)).hex() == "120408071009"


# Against the reference implementation


@given(acks)
def test_an_ack_has_the_bytes_of_the_reference(ack: AppendAck) -> None:
    data = encode_append_ack(ack)
    assert data == google_ack(ack)
    assert decode_append_ack(data) == ack


@given(positions)
def test_a_tail_has_the_bytes_of_the_reference(tail: StreamPosition) -> None:
    data = encode_tail(tail)
    assert data == google_batch([], tail)
    assert decode_read_batch(data) == ReadBatch([], tail)


@given(st.lists(records, max_size=5), st.none() | u64, st.none() | st.text(max_size=36))
def test_an_append_input_has_the_bytes_of_the_reference(
    batch: list[Record], match: int | None, token: str | None
) -> None:
    assert encode_append_input(batch, match, token) == google_input(batch, match, token)


@given(st.lists(sequenced, max_size=5), st.none() | positions)
def test_a_read_batch_of_the_reference_is_understood(
    batch: list[SequencedRecord], tail: StreamPosition | None
) -> None:
    assert decode_read_batch(google_batch(batch, tail)) == ReadBatch(batch, tail)


@given(st.lists(sequenced, min_size=1, max_size=3), positions)
def test_a_tail_behind_the_entries_of_records_makes_a_batch(
    batch: list[SequencedRecord], tail: StreamPosition
) -> None:
    assert google_batch(batch, None) + encode_tail(tail) == google_batch(batch, tail)


@given(st.lists(sequenced, max_size=3), st.none() | positions, st.data())
def test_altered_batches_are_read_like_the_reference_reads_them(
    batch: list[SequencedRecord], tail: StreamPosition | None, data: st.DataObject
) -> None:
    message = bytearray(google_batch(batch, tail) or b"\x12\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    altered = bytes(message)
    try:
        reference = read_by_google(altered)
    except DecodeError:
        with pytest.raises(BadProto):
            decode_read_batch(altered)
        return
    try:
        ours = decode_read_batch(altered)
    except BadProto as error:
        # The reference drops the bits of a varint that do not fit; that is no number of ours.
        if error.message != "varint of more than 64 bits":
            raise
    else:
        assert ours == reference


# Acks remember what they said


def test_remembered_fields_are_bounded_and_never_mixed_up() -> None:
    bound = protobuf._SEQ_NUMS_KEPT_MAX
    for seq_num in range(3 * bound):
        ack = AppendAck(*(StreamPosition(seq_num + step, seq_num % 71) for step in range(3)))
        assert encode_append_ack(ack) == google_ack(ack)
    assert protobuf._seq_num_field.cache_info().currsize == bound
    assert protobuf._timestamp_field.cache_info().currsize == protobuf._TIMESTAMPS_KEPT_MAX


def test_the_longest_ack_is_as_long_as_said() -> None:
    far = StreamPosition(U64_MAX, U64_MAX)
    ack = AppendAck(far, far, far)
    assert encode_append_ack(ack) == google_ack(ack)
    assert len(encode_append_ack(ack)) == APPEND_ACK_BYTES_MAX


@given(positions, positions)
def test_a_tail_that_is_the_end_itself_is_said_as_any_other(
    start: StreamPosition, end: StreamPosition
) -> None:
    other = StreamPosition(*end)
    assert other is not end
    expected = encode_append_ack(AppendAck(start, end, other))
    assert encode_append_ack(AppendAck(start, end, end)) == expected


# Hostile bytes


@given(u64)
def test_a_varint_comes_back(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(b"\xff" + data, 1) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "truncated varint"),
        ("80", "truncated varint"),
        ("ffffffffffffffffff", "truncated varint"),
        ("ffffffffffffffffff02", "more than 64 bits"),
        ("ffffffffffffffffffff01", "more than 64 bits"),
        ("80808080808080808080", "more than 64 bits"),
    ],
)
def test_a_varint_that_is_none_is_refused(data: str, message: str) -> None:
    with pytest.raises(BadProto, match=message):
        decode_varint(bytes.fromhex(data), 0)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_ack_without_one_of_its_positions_is_refused(missing: int) -> None:
    parts = [b"\x0a\x00", b"\x12\x00", b"\x1a\x00"]
    assert decode_append_ack(b"".join(parts)) == AppendAck(ZERO, ZERO, ZERO)
    del parts[missing]
    with pytest.raises(BadProto, match="must carry"):
        decode_append_ack(b"".join(parts))


def test_unknown_fields_are_passed_over() -> None:
    unknown = bytes.fromhex(
        "2001"  # 4: varint
        "29"
        + "00"
        * 8  # 5: fixed64
        + "3203616263"  # 6: bytes
        "3d"
        + "00" * 4  # 7: fixed32
        + "43"
        + "0800"
        + "4b"
        + "4c"
        + "120161"
        + "15"
        + "00" * 4
        + "44"  # 8: group with another
    )
    ack = encode_append_ack(AppendAck(ZERO, StreamPosition(1, 2), StreamPosition(3, 4)))
    assert decode_append_ack(unknown + ack + unknown) == decode_append_ack(ack)
    assert schema.AppendAck.FromString(unknown + ack).end.timestamp == 2


def test_a_position_given_twice_is_merged() -> None:
    data = bytes.fromhex("12020805" + "12021007")
    assert decode_read_batch(data).tail == StreamPosition(5, 7)
    assert read_by_google(data).tail == StreamPosition(5, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("08", "truncated varint"),
        ("0000", "invalid field number"),
        ("0200", "invalid field number"),
        ("888080808000", "tag of more than 32 bits"),
        ("8880808010", "tag of more than 32 bits"),
        ("0a05ab", "truncated field"),
        ("29000000", "truncated field"),
        ("3d0000", "truncated field"),
        ("0e", "invalid wire type"),
        ("0f", "invalid wire type"),
        ("0c", "not open"),
        ("0b14", "not open"),
        ("0b", "truncated varint"),
        ("0b1205ab", "truncated field"),
        ("0b888080808000", "tag of more than 32 bits"),
        ("0b" * 101 + "0c" * 101, "too deep"),
        ("0a020805" + "0a0108", "truncated varint"),
    ],
)
def test_a_malformed_message_is_refused(data: str, message: str) -> None:
    with pytest.raises(BadProto, match=message):
        decode_read_batch(bytes.fromhex(data))


@given(st.binary(max_size=80))
@example(b"\x0b" * 5000)
def test_any_bytes_give_a_message_or_bad_proto(data: bytes) -> None:
    for decode in (decode_append_ack, decode_read_batch):
        with suppress(BadProto):
            decode(data)


@given(st.lists(sequenced, min_size=1, max_size=2), positions, st.data())
def test_a_truncated_batch_is_refused_or_a_shorter_batch(
    batch: list[SequencedRecord], tail: StreamPosition, data: st.DataObject
) -> None:
    message = google_batch(batch, tail)
    end = data.draw(st.integers(0, len(message) - 1))
    try:
        shorter = decode_read_batch(message[:end])
    except BadProto:
        return
    assert shorter in [ReadBatch(batch[:count], None) for count in range(len(batch) + 1)]
