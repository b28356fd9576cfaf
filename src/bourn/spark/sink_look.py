"""Finds out which rows of a batch a stream holds already, by reading the markers."""

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bourn.client import Client, ReadStart, Refused
from bourn.layout.arrow import Columns
from bourn.model.record import Headers, SequencedRecord
from bourn.spark.sink_parts import Marking, RowLimits, digest
from bourn.spark.sink_protocol import Look, Looked, Marker, Seen, parse_marker

_NOT_FOUND: Final = 404


def look_at(client: Client, look: Look, marking: Marking, writer: str, batch: int) -> Looked:
    """Read a stream from a position on, or only its last record where that says it all."""
    try:
        tail = client.check_tail(look.stream).seq_num
    except Refused as error:
        if error.status != _NOT_FOUND:
            raise
        tail = 0
    if tail <= look.position:
        return Looked((), tail)
    if look.is_first:
        last = client.read(look.stream, ReadStart(seq_num=tail - 1), 1)
        marker = marker_of(last[-1], marking, writer) if last else None
        if marker is not None and marker.batch >= batch:
            return Looked((Seen(last[-1].seq_num, marker),), last[-1].seq_num + 1)
    metered_max = RowLimits.with_marker(marking, writer, batch).metered_max
    session = client.read_session(
        look.stream,
        ReadStart(seq_num=look.position),
        columns=Columns(headers=True, body=True, metered_bytes=True),
        end_seq_num=tail,
    )
    seen: list[Seen] = []
    position, gap_end = look.position, 0
    for rows in session:
        numbers = rows.column("seq_num").to_numpy()
        jumps = np.flatnonzero(np.diff(numbers, prepend=position - 1) != 1)
        if len(jumps):
            gap_end = int(numbers[jumps[-1]])
        position = int(numbers[-1]) + 1
        seen += _seen(rows, marking, writer, metered_max)
    if position < tail:
        gap_end = tail
    return Looked(tuple(seen), tail, gap_end)


def marker_of(record: SequencedRecord, marking: Marking, writer: str) -> Marker | None:
    """Return the writer's own marker of a record."""
    for name, value in record.headers:
        if name == marking.name:
            marker = parse_marker(value)
            if marker is not None and marker.writer == writer:
                return marker
    return None


def _seen(rows: pa.RecordBatch, marking: Marking, writer: str, metered_max: int) -> list[Seen]:
    """Return what matters of a batch of records, in its order."""
    found: dict[int, Seen] = {}
    headers = cast("pa.ListArray[Any]", rows.column("headers"))
    numbers = rows.column("seq_num")
    pairs = cast("pa.StructArray", headers.flatten())
    if len(pairs):
        hits = np.flatnonzero(
            pc.equal(pairs.field("name"), pa.scalar(marking.name)).to_numpy(zero_copy_only=False)
        )
        owners = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        for hit in hits.tolist():
            marker = parse_marker(pairs.field("value")[hit].as_py())
            if marker is not None and marker.writer == writer:
                row = int(owners[hit])
                found[row] = Seen(numbers[row].as_py(), marker)
    metered = rows.column("metered_bytes").to_numpy()
    for row in np.flatnonzero(metered > metered_max).tolist():
        if row not in found:
            pair_list = headers[row].as_py() or ()
            own: Headers = tuple((each["name"], each["value"]) for each in pair_list)
            content = digest(own, rows.column("body")[row].as_py())
            found[row] = Seen(numbers[row].as_py(), None, content)
    return [found[row] for row in sorted(found)]
