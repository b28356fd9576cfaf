"""The usage table: what was used by whom, in periods that are over. An open Delta table at usage/.

```
usage/{of}-{interval}-{until minute:012d}-{16 hex digits}.parquet    rows of one interval
usage/_delta_log/…                                                   as delta.py draws it
of        basins: what the server counted; streams: what the history's rows add up to
the digits: Unix time in seconds as it was written, and as many at random
```

| column | type | |
|---|---|---|
| `interval` | string | how long the period is: `minute`, `hour` or `day`, in UTC |
| `start` | timestamp, UTC | where it begins |
| `basin` | string | empty for the account |
| `stream_id` | long | 0 for the basin's own figures; by id, so that a name can be forgotten |
| `metric` | string | as below |
| `label` | string | what the metric is told apart by: an operation, a storage class, … |
| `value` | long | a sum over the period; of `storage`, what was held at its end |

| metric | of | intervals | label |
|---|---|---|---|
| `account-ops`, `basin-ops` | account, basin | minute, hour, day | the operation |
| `append-ops`, `append-throughput` | basin | minute, hour, day | the storage class |
| `read-ops` | basin | minute, hour, day | `unary`, `streaming` |
| `read-throughput` | basin | minute, hour, day | `metered_bytes` |
| `storage` | basin, stream | hour | `metered_size` |
| `active-basins` | basin | hour | empty: the basin had a stream; the value is 1 |
| `append-records`, `append-bytes` | stream | minute, hour, day | empty |

Each period is written once, when it is over and nothing more is expected for it. Each interval is
complete in itself: minutes are not to be added to hours. Rows are sorted by basin, stream, metric,
label and start.

Tags of an `add`, whole numbers as text: `bourn.interval` in seconds, `bourn.streams` 1 for figures
of streams, `bourn.rows`, `bourn.from_s` and `bourn.until_s`: the first and the last start.
Transactions: `bourn-usage` and `bourn-usage-streams`, the minutes up to which basins and streams
are written.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bourn.errors import Damaged
from bourn.layout.history.delta import (
    READER_VERSION,
    WRITER_VERSION,
    Add,
    Format,
    MetaData,
    Protocol,
    TableState,
)

USAGE_PREFIX: Final = "usage/"
BASINS_APP_ID: Final = "bourn-usage"
STREAMS_APP_ID: Final = "bourn-usage-streams"
INTERVALS: Final = {60: "minute", 3600: "hour", 86_400: "day"}
VALUE_MAX: Final = 2**63 - 1

_TYPES: Final[dict[str, tuple[pa.DataType, str]]] = {
    "interval": (pa.string(), "string"),
    "start": (pa.timestamp("us", "UTC"), "timestamp"),
    "basin": (pa.string(), "string"),
    "stream_id": (pa.int64(), "long"),
    "metric": (pa.string(), "string"),
    "label": (pa.string(), "string"),
    "value": (pa.int64(), "long"),
}
SCHEMA: Final = pa.schema([pa.field(name, of, nullable=False) for name, (of, _) in _TYPES.items()])
SORTED_BY: Final = ("basin", "stream_id", "metric", "label", "start")
_WORDS: Final = ["interval", "basin", "metric", "label"]
_FILE: Final = re.compile(
    r"usage/(basins|streams)-(minute|hour|day)-(\d{12,})-([0-9a-f]{16})\.parquet"
)
_US: Final = 1_000_000


class UsageRow(NamedTuple):
    """A row, its start in Unix seconds."""

    start_s: int
    basin: str
    stream_id: int
    metric: str
    label: str
    value: int


class UsageFile(NamedTuple):
    """What the name of a file says."""

    of: str
    interval: str
    until_minute: int
    written_s: int


def file_name(of: str, secs: int, until_minute: int, now_ms: int, random_bits: int) -> str:
    """Name a file below USAGE_PREFIX."""
    nonce = (now_ms // 1000 & 0xFFFF_FFFF) << 32 | random_bits & 0xFFFF_FFFF
    return f"{of}-{INTERVALS[secs]}-{until_minute:012d}-{nonce:016x}.parquet"


def parse_usage_key(key: str) -> UsageFile | None:
    """Return what the key of a file says, or None for a foreign key."""
    match = _FILE.fullmatch(key)
    if match is None:
        return None
    return UsageFile(match[1], match[2], int(match[3]), int(match[4][:8], 16))


def rows_table(secs: int, rows: Iterable[UsageRow]) -> pa.Table:
    """Return rows of one interval as a table."""
    found = list(rows)
    columns: dict[str, list[Any]] = {
        "interval": [INTERVALS[secs]] * len(found),
        "start": [row.start_s * _US for row in found],
        "basin": [row.basin for row in found],
        "stream_id": [row.stream_id for row in found],
        "metric": [row.metric for row in found],
        "label": [row.label for row in found],
        "value": [min(row.value, VALUE_MAX) for row in found],
    }
    return pa.table({name: pa.array(columns[name], of) for name, (of, _) in _TYPES.items()}).cast(
        SCHEMA
    )


def encode_usage(table: pa.Table) -> bytes:
    """Return the file of some rows, in the order of the format."""
    ordered = table.sort_by([(name, "ascending") for name in SORTED_BY])
    sink = pa.BufferOutputStream()
    pq.write_table(
        ordered.cast(SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=_WORDS,  # type: ignore[arg-type]  # the stubs know no list
        write_page_checksum=True,
        store_schema=False,
    )
    return sink.getvalue().to_pybytes()


def decode_usage(data: bytes, key: str, filters: Any = None) -> pa.Table:
    """Return the rows of a file, or some of them; Damaged, naming `key`, where it is none.

    Words come as dictionaries, so that they are not repeated for every row.
    """
    try:
        with pq.ParquetFile(
            pa.BufferReader(data), page_checksum_verification=True, read_dictionary=_WORDS
        ) as file:
            if file.schema_arrow.names != SCHEMA.names:
                raise Damaged(key, f"its columns are {', '.join(file.schema_arrow.names)[:200]}")
            table = file.read()
        if any(column.null_count for column in table.columns):
            raise Damaged(key, "a column has nulls")
        return table if filters is None else table.filter(filters)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Damaged(key, f"it is no Parquet file: {error}") from None


def add_of(name: str, table: pa.Table, size: int, now_ms: int) -> Add:
    """Return the action that puts a file's rows, which are of one interval, into the table."""
    starts = table.column("start").cast(pa.int64()).to_numpy()
    of, interval, *_ = name.split("-")
    secs = next(secs for secs, word in INTERVALS.items() if word == interval)
    tags = {
        "interval": secs,
        "streams": int(of == "streams"),
        "rows": len(table),
        "from_s": int(starts.min()) // _US,
        "until_s": int(starts.max()) // _US,
    }
    return Add(
        path=name,
        partition_values={},
        size=size,
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps({"numRecords": len(table)}),
        tags={f"bourn.{tag}": str(value) for tag, value in tags.items()},
    )


def usage_key(add: Add) -> str:
    """Name the object of a file of the table."""
    return USAGE_PREFIX + add.path


def closed_minutes(state: TableState) -> tuple[int, int]:
    """Return up to which minutes the figures of basins and of streams are in the table."""
    return state.txns.get(BASINS_APP_ID, 0), state.txns.get(STREAMS_APP_ID, 0)


def first_actions(table_id: str, now_ms: int) -> tuple[Protocol, MetaData]:
    """Return what the first version of the table says."""
    fields = [
        {"name": name, "type": word, "nullable": False, "metadata": {}}
        for name, (_, word) in _TYPES.items()
    ]
    schema = {"type": "struct", "fields": fields}
    return (
        Protocol(min_reader_version=READER_VERSION, min_writer_version=WRITER_VERSION),
        MetaData(
            id=table_id,
            name="usage",
            description="What was used, by minutes, hours and days",
            format=Format(),
            schema_string=json.dumps(schema, separators=(",", ":")),
            partition_columns=[],
            configuration={"delta.dataSkippingNumIndexedCols": "0"},
            created_time=now_ms,
        ),
    )
