"""The text of a read batch, made record by record: what the compiled writer is held against."""

import binascii
from collections.abc import Sequence
from typing import Any

import orjson

from bourn.model.record import SequencedRecord, StreamPosition
from bourn.wire.json import Format


def encode_read_batch(
    records: Sequence[SequencedRecord], tail: StreamPosition | None, fmt: Format
) -> bytes:
    """Return a ReadBatch."""
    text = _lossy_text if fmt is Format.RAW else _base64_text
    items: list[dict[str, Any]] = []
    for seq_num, timestamp, body, headers in records:
        item: dict[str, Any] = {"seq_num": seq_num, "timestamp": timestamp}
        if headers:
            item["headers"] = [(text(name), text(value)) for name, value in headers]
        if body:
            item["body"] = text(body)
        items.append(item)
    whole: dict[str, Any] = {"records": items}
    if tail is not None:
        whole["tail"] = tail._asdict()
    return orjson.dumps(whole)


def _lossy_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _base64_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
