"""Records that were never appended, as a read finds them stored."""

import struct
from collections.abc import Iterable

import numpy as np

from bourn.errors import Invalid
from bourn.layout.entry import Entry
from bourn.layout.json_records import encode_json_batch
from bourn.layout.records import encode_record
from bourn.model.record import Headers, SequencedRecord, StreamPosition
from bourn.wire.json import Format, encode_ending


def stored(headers: Headers, body: bytes) -> bytes:
    """A record in storage form, also one that no client may append."""
    try:
        return encode_record(headers, body)
    except Invalid:
        fields = [struct.pack(">I", len(headers))]
        for name, value in headers:
            fields += (struct.pack(">I", len(name)), name, struct.pack(">I", len(value)), value)
        metered = 8 + 2 * len(headers) + sum(map(len, sum(headers, ()))) + len(body)
        return struct.pack(">I", 0x3A << 24 | metered) + b"".join(fields) + body


def entry_of(records: Iterable[SequencedRecord]) -> Entry:
    """A batch of records whose numbers follow each other."""
    found = list(records)
    ends: list[int] = []
    starts: list[int] = []
    parts: list[bytes] = []
    for _, _, body, headers in found:
        part = stored(headers, body)
        parts.append(part)
        ends.append((ends[-1] if ends else 0) + len(part))
        starts.append(len(part) - len(body))
    columns = struct.pack(f"<{2 * len(found)}I", *ends, *starts)
    stamps = [record.timestamp for record in found]
    one = len(set(stamps)) == 1
    return Entry(
        stream_id=1,
        first_seq_num=found[0].seq_num,
        count=len(found),
        metered_bytes=0,
        header_count=0,
        arrival_ms=0,
        retention_secs=0,
        last_timestamp=stamps[-1],
        timestamps=stamps[0] if one else np.array(stamps, np.uint64),
        payload=b"".join((columns, *parts)),
        has_commands=False,
    )


def encode_read_batch(
    records: Iterable[SequencedRecord], tail: StreamPosition | None, fmt: Format
) -> bytes:
    """The text of records, each of which is a batch of its own."""
    slices = [(entry_of([record]), 0, 1) for record in records]
    return encode_json_batch(slices, encode_ending(tail), is_base64=fmt is Format.BASE64)
