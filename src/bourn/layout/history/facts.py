"""What is known of a segment once it lies in the bucket, and how the table's log says it.

An `add` has the statistics by which every reader of Delta passes files over, and tags of our own,
all of them whole numbers as text:

| tag | |
|---|---|
| `bourn.first_ordinal`, `bourn.end_ordinal` | the commits of the log that its rows come from |
| `bourn.index_bytes` | the size of its sidecar |
| `bourn.rows`, `bourn.metered_bytes` | its records, and what they weigh |
| `bourn.expires_from_s`, `bourn.expires_until_s` | when its first and its last record expire |
| `bourn.level` | 1: a run of the log as it was tiered; more: merged |
"""

import datetime as dt
import json
from typing import Any, Final

import msgspec
import pyarrow as pa

from bourn.layout.history.delta import (
    READER_VERSION,
    WRITER_VERSION,
    Add,
    Format,
    MetaData,
    Protocol,
    Remove,
    SegmentName,
)
from bourn.layout.history.schema import SCHEMA
from bourn.layout.history.segment import Segment
from bourn.model.instants import MS_MAX

_PRIMITIVES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.timestamp("us", "UTC"): "timestamp",
}
_US_PER_MS: Final = 1000
# The table says that its files have bounds of these alone: deltalake takes the bounds of other
# columns for null ones where only some are there, and then finds no row by them.
STATS_COLUMNS: Final = ("stream_id", "seq_num", "timestamp", "arrival")
_STATS_PROPERTY: Final = "delta.dataSkippingStatsColumns"


class SegmentFacts(msgspec.Struct, frozen=True, array_like=True):
    """A segment in the bucket. Bounds are signed, as the columns are."""

    name: str
    first_ordinal: int
    end_ordinal: int
    parquet_bytes: int
    index_bytes: int
    rows: int
    metered_bytes: int
    stream_ids: tuple[int, int]
    seq_nums: tuple[int, int]
    timestamps: tuple[int, int]
    arrivals_us: tuple[int, int]
    expires_s: tuple[int, int]
    level: int = 1


def facts_of(
    name: SegmentName, segment: Segment, stream_ids: tuple[int, int], level: int = 1
) -> SegmentFacts:
    """Describe a segment; `stream_ids` are the least and the greatest in it."""
    return SegmentFacts(
        str(name),
        name.first_ordinal,
        name.end_ordinal,
        len(segment.parquet),
        len(segment.index),
        segment.rows,
        segment.metered_bytes,
        stream_ids,
        (segment.seq_num_min, segment.seq_num_max),
        (segment.timestamp_min, segment.timestamp_max),
        (segment.arrival_min_us, segment.arrival_max_us),
        (segment.expires_s_min, segment.expires_s_max),
        level,
    )


def add_of(facts: SegmentFacts, now_ms: int, *, data_change: bool = True) -> Add:
    """Return the action that puts a segment's rows into the table."""
    tags = {
        "first_ordinal": facts.first_ordinal,
        "end_ordinal": facts.end_ordinal,
        "index_bytes": facts.index_bytes,
        "rows": facts.rows,
        "metered_bytes": facts.metered_bytes,
        "expires_from_s": facts.expires_s[0],
        "expires_until_s": facts.expires_s[1],
        "level": facts.level,
    }
    return Add(
        path=f"{facts.name}.parquet",
        partition_values={},
        size=facts.parquet_bytes,
        modification_time=now_ms,
        data_change=data_change,
        stats=json.dumps(_stats(facts), separators=(",", ":")),
        tags={f"bourn.{name}": str(value) for name, value in tags.items()},
    )


def remove_of(add: Add, now_ms: int, *, data_change: bool = True) -> Remove:
    """Return the action that takes a file's rows out of the table."""
    return Remove(
        path=add.path,
        deletion_timestamp=now_ms,
        data_change=data_change,
        extended_file_metadata=True,
        partition_values=add.partition_values,
        size=add.size,
        tags=add.tags,
    )


def _stats(facts: SegmentFacts) -> dict[str, Any]:
    bounds: dict[str, tuple[Any, Any]] = {
        "stream_id": facts.stream_ids,
        "seq_num": facts.seq_nums,
        "timestamp": facts.timestamps,
    }
    arrivals_ms = [us // _US_PER_MS for us in facts.arrivals_us]
    if 0 <= arrivals_ms[0] <= arrivals_ms[1] <= MS_MAX:
        bounds["arrival"] = (_instant(arrivals_ms[0]), _instant(arrivals_ms[1]))
    return {
        "numRecords": facts.rows,
        "minValues": {name: least for name, (least, _) in bounds.items()},
        "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }


def _instant(ms: int) -> str:
    seconds, rest_ms = divmod(ms, 1000)
    instant = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{rest_ms:03d}Z".zfill(24)


def first_actions(table_id: str, now_ms: int) -> tuple[Protocol, MetaData]:
    """Return what the first version of the table says."""
    return (
        Protocol(min_reader_version=READER_VERSION, min_writer_version=WRITER_VERSION),
        MetaData(
            id=table_id,
            name="history",
            description="Every record of every stream, sorted by stream_id and seq_num",
            format=Format(),
            schema_string=schema_string(SCHEMA),
            partition_columns=[],
            configuration={_STATS_PROPERTY: ",".join(STATS_COLUMNS)},
            created_time=now_ms,
        ),
    )


def mended(metadata: MetaData) -> MetaData | None:
    """Return what a table should say of itself; None where it does not lack anything.

    The first tables did not say which columns their files have bounds of, and queries for a stream
    found nothing in them.
    """
    if _STATS_PROPERTY in metadata.configuration:
        return None
    configuration = {**metadata.configuration, _STATS_PROPERTY: ",".join(STATS_COLUMNS)}
    return msgspec.structs.replace(metadata, configuration=configuration)


def schema_string(schema: pa.Schema) -> str:
    """Return columns as Delta writes them down."""
    shape = {"type": "struct", "fields": [_field(field) for field in schema]}
    return json.dumps(shape, separators=(",", ":"))


def _field(field: "pa.Field[Any]") -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _type(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


def _type(of: pa.DataType) -> Any:
    if isinstance(of, pa.ListType):
        inner = of.value_field
        return {
            "type": "array",
            "elementType": _type(inner.type),
            "containsNull": inner.nullable,
        }
    if isinstance(of, pa.StructType):
        return {"type": "struct", "fields": [_field(of.field(i)) for i in range(of.num_fields)]}
    return _PRIMITIVES[of]
