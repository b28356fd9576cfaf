"""The small protobuf messages (proto3, package `s2.v1`), by hand.

    message          field            number  type                      tag
    StreamPosition   seq_num          1       uint64                    08
                     timestamp        2       uint64                    10
    AppendAck        start            1       StreamPosition            0a
                     end              2       StreamPosition            12
                     tail             3       StreamPosition            1a
    ReadBatch        records          1       repeated SequencedRecord  0a
                     tail             2       optional StreamPosition   12
    SequencedRecord  seq_num          1       uint64                    08
                     timestamp        2       uint64                    10
                     headers          3       repeated Header           1a
                     body             4       bytes                     22
    AppendInput      records          1       repeated AppendRecord     0a
                     match_seq_num    2       optional uint64           10
                     fencing_token    3       optional string           1a
    AppendRecord     timestamp        1       optional uint64           08
                     headers          2       repeated Header           12
                     body             3       bytes                     1a
    Header           name             1       bytes                     0a
                     value            2       bytes                     12

A zero or empty field is left out unless it is optional and given; a position {0, 0} is a message
of no bytes, and the three of an ack are always there. A heartbeat is a ReadBatch of only a tail.

The server encodes acks and tails here; appends come in and records go out by the batch codec.
The decoders, and the encoder of append inputs, are for clients.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from bourn.errors import BadProto
from bourn.limits import U64_MAX
from bourn.model.record import AppendAck, Record, SequencedRecord, StreamPosition

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_GROUP_START: Final = 3
_GROUP_END: Final = 4
_FIXED32: Final = 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}

_GROUP_DEPTH_MAX: Final = 100

_MORE_BIT: Final = 128
_VARINT_SHIFT_MAX: Final = 63
_TAG_BYTES_MAX: Final = 5

_TAG_1_VARINT: Final = 0x08
_TAG_1_BYTES: Final = 0x0A
_TAG_2_VARINT: Final = 0x10
_TAG_2_BYTES: Final = 0x12
_TAG_3_BYTES: Final = 0x1A
_TAG_4_BYTES: Final = 0x22

_LAST: Final = tuple(bytes((value,)) for value in range(128))
_MORE: Final = tuple(bytes((value | 128,)) for value in range(128))

# Acks are hot, and most of what they say was said before: a batch starts where another ended, and
# those of one flush share the millisecond.
_SEQ_NUMS_KEPT_MAX: Final = 1024
_TIMESTAMPS_KEPT_MAX: Final = 64
_POSITION_BYTES_MAX: Final = 2 * 11
APPEND_ACK_BYTES_MAX: Final = 3 * (2 + _POSITION_BYTES_MAX)
_STARTS: Final = tuple(bytes((0x0A, size)) for size in range(_POSITION_BYTES_MAX + 1))
_ENDS: Final = tuple(bytes((0x12, size)) for size in range(_POSITION_BYTES_MAX + 1))
_TAILS: Final = tuple(bytes((0x1A, size)) for size in range(_POSITION_BYTES_MAX + 1))


class ReadBatch(NamedTuple):
    """A message of a read session, or the body of a unary read."""

    records: list[SequencedRecord]
    tail: StreamPosition | None


def encode_varint(value: int) -> bytes:
    """Return an unsigned integer of up to 64 bits, seven bits a byte, low bits first."""
    if value < 1 << 7:
        return _LAST[value]
    if value < 1 << 14:
        return _MORE[value & 127] + _LAST[value >> 7]
    if value < 1 << 21:
        return _MORE[value & 127] + _MORE[value >> 7 & 127] + _LAST[value >> 14]
    return (
        _MORE[value & 127]
        + _MORE[value >> 7 & 127]
        + _MORE[value >> 14 & 127]
        + encode_varint(value >> 21)
    )


@lru_cache(maxsize=_SEQ_NUMS_KEPT_MAX)
def _seq_num_field(seq_num: int) -> bytes:
    return b"\x08" + encode_varint(seq_num) if seq_num else b""


@lru_cache(maxsize=_TIMESTAMPS_KEPT_MAX)
def _timestamp_field(timestamp: int) -> bytes:
    return b"\x10" + encode_varint(timestamp) if timestamp else b""


def encode_append_ack(ack: AppendAck) -> bytes:
    """Return an AppendAck."""
    (start_seq_num, start_timestamp), end, tail = ack
    end_seq_num, end_timestamp = end
    first = _seq_num_field(start_seq_num) + _timestamp_field(start_timestamp)
    last = _seq_num_field(end_seq_num) + _timestamp_field(end_timestamp)
    behind = last if tail is end else _seq_num_field(tail[0]) + _timestamp_field(tail[1])
    return b"".join(
        (_STARTS[len(first)], first, _ENDS[len(last)], last, _TAILS[len(behind)], behind)
    )


def encode_tail(tail: StreamPosition) -> bytes:
    """Return the tail field of a ReadBatch: alone a heartbeat, behind records' entries a batch."""
    fields = _seq_num_field(tail.seq_num) + _timestamp_field(tail.timestamp)
    return _ENDS[len(fields)] + fields


def encode_append_input(
    records: Iterable[Record],
    match_seq_num: int | None = None,
    fencing_token: str | None = None,
) -> bytes:
    """Return an AppendInput."""
    parts: list[bytes] = []
    for body, headers, timestamp in records:
        fields = [] if timestamp is None else [b"\x08", encode_varint(timestamp)]
        for name, value in headers:
            header = (_field(b"\x0a", name) if name else b"") + (
                _field(b"\x12", value) if value else b""
            )
            fields.append(_field(b"\x12", header))
        if body:
            fields += (b"\x1a", encode_varint(len(body)), body)
        parts += (b"\x0a", encode_varint(sum(map(len, fields))), *fields)
    if match_seq_num is not None:
        parts += (b"\x10", encode_varint(match_seq_num))
    if fencing_token is not None:
        parts.append(_field(b"\x1a", fencing_token.encode()))
    return b"".join(parts)


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + encode_varint(len(content)) + content


def decode_append_ack(data: bytes) -> AppendAck:
    """Read an AppendAck; BadProto if it is malformed or lacks one of its positions."""
    start = end = tail = None
    for tag, _, content in _fields(data):
        if tag == _TAG_1_BYTES:
            start = _decode_position(content, start)
        elif tag == _TAG_2_BYTES:
            end = _decode_position(content, end)
        elif tag == _TAG_3_BYTES:
            tail = _decode_position(content, tail)
    if start is None or end is None or tail is None:
        raise BadProto("an ack must carry its start, its end and the tail")
    return AppendAck(start, end, tail)


def decode_read_batch(data: bytes) -> ReadBatch:
    """Read a ReadBatch; BadProto if it is malformed."""
    records: list[SequencedRecord] = []
    tail = None
    for tag, _, content in _fields(data):
        if tag == _TAG_1_BYTES:
            records.append(_decode_record(content))
        elif tag == _TAG_2_BYTES:
            tail = _decode_position(content, tail)
    return ReadBatch(records, tail)


def _decode_position(data: bytes, earlier: StreamPosition | None) -> StreamPosition:
    """Read a position; one that came before in the same field lends what this one leaves out."""
    seq_num, timestamp = earlier or (0, 0)
    for tag, number, _ in _fields(data):
        if tag == _TAG_1_VARINT:
            seq_num = number
        elif tag == _TAG_2_VARINT:
            timestamp = number
    return StreamPosition(seq_num, timestamp)


def _decode_record(data: bytes) -> SequencedRecord:
    seq_num = timestamp = 0
    headers: list[tuple[bytes, bytes]] = []
    body = b""
    for tag, number, content in _fields(data):
        if tag == _TAG_1_VARINT:
            seq_num = number
        elif tag == _TAG_2_VARINT:
            timestamp = number
        elif tag == _TAG_3_BYTES:
            headers.append(_decode_header(content))
        elif tag == _TAG_4_BYTES:
            body = content
    return SequencedRecord(seq_num, timestamp, body, tuple(headers))


def _decode_header(data: bytes) -> tuple[bytes, bytes]:
    name = value = b""
    for tag, _, content in _fields(data):
        if tag == _TAG_1_BYTES:
            name = content
        elif tag == _TAG_2_BYTES:
            value = content
    return name, value


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (tag, number, content) of every field; a varint has no content, the rest no number."""
    position = 0
    size = len(data)
    while position < size:
        tag = data[position]
        if tag < _MORE_BIT:  # as all the tags of our messages are
            position += 1
        else:
            tag, position = _decode_tag(data, position)
        if not tag >> 3:
            raise BadProto("invalid field number")
        wire_type = tag & 7
        if wire_type == _VARINT:
            number, position = decode_varint(data, position)
            yield tag, number, b""
        elif wire_type == _BYTES:
            length, position = decode_varint(data, position)
            end = position + length
            if end > size:
                raise BadProto("truncated field")
            yield tag, 0, data[position:end]
            position = end
        else:
            position = _skip(data, tag, position)


def _decode_tag(data: bytes, start: int) -> tuple[int, int]:
    tag, position = decode_varint(data, start)
    if tag >= 1 << 32 or position - start > _TAG_BYTES_MAX:
        raise BadProto("tag of more than 32 bits")
    return tag, position


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint at `position`; return it and the position behind it."""
    shift = value = 0
    try:
        while (byte := data[position]) >= _MORE_BIT:
            value |= (byte & 127) << shift
            shift += 7
            position += 1
            if shift > _VARINT_SHIFT_MAX:
                raise BadProto("varint of more than 64 bits")
    except IndexError:
        raise BadProto("truncated varint") from None
    value |= byte << shift
    if value > U64_MAX:
        raise BadProto("varint of more than 64 bits")
    return value, position + 1


def _skip(data: bytes, tag: int, position: int) -> int:
    """Pass over a field that no message here has, be it a whole group; return what lies behind."""
    open_groups: list[int] = []
    while True:
        wire_type = tag & 7
        if wire_type == _GROUP_START:
            if len(open_groups) == _GROUP_DEPTH_MAX:
                raise BadProto("groups nested too deep")
            open_groups.append(tag >> 3)
        elif wire_type == _GROUP_END:
            if not open_groups or open_groups.pop() != tag >> 3:
                raise BadProto("end of a group that is not open")
        else:
            position = _skip_scalar(data, wire_type, position)
        if not open_groups:
            return position
        tag, position = _decode_tag(data, position)


def _skip_scalar(data: bytes, wire_type: int, position: int) -> int:
    if wire_type == _VARINT:
        return decode_varint(data, position)[1]
    if wire_type == _BYTES:
        length, position = decode_varint(data, position)
    elif wire_type in _FIXED_BYTES:
        length = _FIXED_BYTES[wire_type]
    else:
        raise BadProto("invalid wire type")
    if position + length > len(data):
        raise BadProto("truncated field")
    return position + length
