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
subsequence); `base64` is the standard alphabet, padded. What comes in is `json_input`'s.
"""

import binascii
import enum
from collections.abc import Sequence
from typing import Any, Final

import orjson

from bourn.errors import BadHeader
from bourn.limits import JSON_DUMP_BYTES
from bourn.model.record import AppendAck, SequencedRecord, StreamPosition


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


def encode_read_batch(
    records: Sequence[SequencedRecord], tail: StreamPosition | None, fmt: Format
) -> bytes:
    """Return a ReadBatch."""
    text = _lossy_text if fmt is Format.RAW else _base64_text
    parts: list[bytes] = []
    items: list[dict[str, Any]] = []
    size_bytes = 0
    for seq_num, timestamp, body, headers in records:
        item: dict[str, Any] = {"seq_num": seq_num, "timestamp": timestamp}
        if headers:
            item["headers"] = [(text(name), text(value)) for name, value in headers]
        if len(body) > JSON_DUMP_BYTES:
            items.append(item)
            parts.append(orjson.dumps(items)[1:-2] + b',"body":' + _large_string(text(body)) + b"}")
            items, size_bytes = [], 0
            continue
        if body:
            item["body"] = text(body)
        items.append(item)
        size_bytes += len(body)
        if size_bytes >= JSON_DUMP_BYTES:
            parts.append(orjson.dumps(items)[1:-1])
            items, size_bytes = [], 0
    if items:
        parts.append(orjson.dumps(items)[1:-1])
    end = b"]}" if tail is None else b'],"tail":%b}' % encode_position(tail)
    return b'{"records":[' + b",".join(parts) + end


def _large_string(text: str) -> bytes:
    """Return a string of JSON, made in parts: escapes can take ten milliseconds."""
    parts = [
        orjson.dumps(text[at : at + JSON_DUMP_BYTES])[1:-1]
        for at in range(0, len(text), JSON_DUMP_BYTES)
    ]
    return b'"' + b"".join(parts) + b'"'


def _lossy_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _base64_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def encode_seq_num_mismatch(next_seq_num: int) -> bytes:
    """Return the body of a failed `match_seq_num` (412)."""
    return b'{"seq_num_mismatch":%d}' % next_seq_num


def encode_fencing_token_mismatch(fencing_token: str) -> bytes:
    """Return the body of a failed `fencing_token` (412)."""
    return orjson.dumps({"fencing_token_mismatch": fencing_token})


def encode_error(code: str, message: str) -> bytes:
    """Return the body of any other error."""
    return orjson.dumps({"code": code, "message": message})
