"""Records, acks, conditions and errors as JSON: what the server sends.

    StreamPosition   {"seq_num":u64,"timestamp":u64}
    AppendAck        {"start":StreamPosition,"end":StreamPosition,"tail":StreamPosition}
    ReadBatch        {"records":[SequencedRecord…],"tail"?:StreamPosition}
    SequencedRecord  {"seq_num":u64,"timestamp":u64,"headers"?:[[name,value]…],"body"?:string}
    tail, unwritten  {"tail":StreamPosition}
    conditions       {"seq_num_mismatch":u64} or {"fencing_token_mismatch":string}
    error            {"code":string,"message":string}

Compact, fields in this order, what is empty or absent left out. Names, values and bodies are text
as the `s2-format` header says: `raw` is UTF-8, lossy (U+FFFD for each maximal invalid
subsequence); `base64` is the standard alphabet, padded. What comes in is `json_input`'s; batches
of records are written by `layout/json_records`, straight from their stored form.
"""

import enum
from typing import Final

import orjson

from bourn.errors import BadHeader
from bourn.model.record import AppendAck, StreamPosition


class Format(enum.Enum):
    """How JSON strings stand for the bytes of names, values and bodies."""

    RAW = "raw"
    BASE64 = "base64"


_FORMATS: Final = {
    "raw": Format.RAW,
    "json": Format.RAW,
    "utf8": Format.RAW,
    "utf-8": Format.RAW,
    "base64": Format.BASE64,
    "json-binsafe": Format.BASE64,
}


def parse_format(value: str | None) -> Format:
    """Read an `s2-format` header; None where the request has none."""
    if value is None:
        return Format.RAW
    try:
        return _FORMATS[value.strip(" \t")]
    except KeyError:
        raise BadHeader("Invalid header `s2-format`: expected raw or base64") from None


def encode_position(position: StreamPosition) -> bytes:
    """Return a StreamPosition."""
    return b'{"seq_num":%d,"timestamp":%d}' % position


def encode_tail(tail: StreamPosition) -> bytes:
    """Return the answer to a check of the tail, and the body of an unwritten read (416)."""
    return b'{"tail":{"seq_num":%d,"timestamp":%d}}' % tail


def encode_append_ack(ack: AppendAck) -> bytes:
    """Return an AppendAck."""
    start, end, tail = ack
    return (
        b'{"start":{"seq_num":%d,"timestamp":%d},'
        b'"end":{"seq_num":%d,"timestamp":%d},'
        b'"tail":{"seq_num":%d,"timestamp":%d}}' % (*start, *end, *tail)
    )


def encode_ending(tail: StreamPosition | None) -> bytes:
    """Return what stands behind the records of a ReadBatch."""
    return b"]}" if tail is None else b'],"tail":%b}' % encode_position(tail)


def encode_seq_num_mismatch(next_seq_num: int) -> bytes:
    """Return the body of a failed `match_seq_num` (412)."""
    return b'{"seq_num_mismatch":%d}' % next_seq_num


def encode_fencing_token_mismatch(fencing_token: str) -> bytes:
    """Return the body of a failed `fencing_token` (412)."""
    return orjson.dumps({"fencing_token_mismatch": fencing_token})


def encode_error(code: str, message: str) -> bytes:
    """Return the body of any other error."""
    return orjson.dumps({"code": code, "message": message})
