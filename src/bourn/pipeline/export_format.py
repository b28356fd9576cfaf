"""What an export holds, and its bytes: Parquet, Delta, or JSON lines.

    part-{number:06d}.parquet   records, sorted by basin, stream and sequence number over all parts
    part-{number:06d}.jsonl     the same as JSON lines
    _delta_log/{0:020d}.json    of a Delta table: put last, so it is there whole or not at all
    _SUCCESS                    of the others: put last, empty

The columns are those of the history that a reader of the stream knows: `basin`, `stream`,
`seq_num`, `timestamp`, `kind`, `headers`, `body`, `metered_bytes`; numbers of 64 bits keep their
bits (layout/history/schema). A line of JSON has the first seven, and numbers as they are:

    {"basin": "b", "stream": "s", "seq_num": 0, "timestamp": 1700000000000, "kind": "envelope",
     "headers": [["name", "value"]], "body": "text"}

Where a name, a value or the body is no UTF-8, all are base64, and `"base64": true` says so.
"""

import io
import json
from base64 import b64encode
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from bourn.layout.history.delta import (
    READER_VERSION,
    WRITER_VERSION,
    Actions,
    Add,
    Format,
    MetaData,
    Protocol,
    encode_actions,
)
from bourn.layout.history.facts import schema_string
from bourn.layout.history.schema import SCHEMA as HISTORY_SCHEMA
from bourn.limits import U64_MAX

FORMATS: Final = ("parquet", "delta", "jsonl")
COLUMNS: Final = (
    "basin",
    "stream",
    "seq_num",
    "timestamp",
    "kind",
    "headers",
    "body",
    "metered_bytes",
)
SCHEMA: Final = pa.schema([HISTORY_SCHEMA.field(name) for name in COLUMNS])
NAMES: Final = pa.dictionary(pa.int32(), pa.string())
KINDS: Final = pa.dictionary(pa.int8(), pa.string())
# As it is held in memory: long names are not repeated for every row.
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field(field.name, {"basin": NAMES, "stream": NAMES, "kind": KINDS}.get(field.name))
        if field.name in {"basin", "stream", "kind"}
        else field
        for field in SCHEMA
    ]
)

SUCCESS: Final = "_SUCCESS"
STARTED: Final = "_started.json"
DELTA_LOG: Final = "_delta_log/00000000000000000000.json"
_ROW_GROUP_ROWS: Final = 65_536
_COMPRESSION_LEVEL: Final = 1


def part_name(number: int, of: str) -> str:
    """Name a part; names ascend as the records do."""
    return f"part-{number:06d}.{'jsonl' if of == 'jsonl' else 'parquet'}"


def encode_part(rows: pa.Table, of: str) -> bytes:
    """Return the bytes of a part; `rows` are of ROWS_SCHEMA."""
    return _encode_lines(rows) if of == "jsonl" else _encode_parquet(rows)


def _encode_parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=["basin", "stream", "kind"],  # type: ignore[arg-type]  # the stubs know no list
        write_statistics=["basin", "stream", "seq_num", "timestamp"],
        store_schema=False,
    ) as writer:
        for at in range(0, rows.num_rows, _ROW_GROUP_ROWS):
            writer.write_table(rows.slice(at, _ROW_GROUP_ROWS).cast(SCHEMA))
    return sink.getvalue()


def _encode_lines(rows: pa.Table) -> bytes:
    lines: list[bytes] = []
    for batch in rows.to_batches(max_chunksize=_ROW_GROUP_ROWS // 16):
        columns = [batch.column(name).to_pylist() for name in COLUMNS[:-1]]
        lines += [_line(*values) for values in zip(*columns, strict=True)]
    return b"".join(lines)


def _line(
    basin: str,
    stream: str,
    seq_num: int,
    timestamp: int,
    kind: str,
    headers: list[dict[str, bytes]],
    body: bytes,
) -> bytes:
    shape: dict[str, Any] = {
        "basin": basin,
        "stream": stream,
        "seq_num": seq_num & U64_MAX,
        "timestamp": timestamp & U64_MAX,
        "kind": kind,
    }
    pairs = [(pair["name"], pair["value"]) for pair in headers]
    try:
        shape["headers"] = [(name.decode(), value.decode()) for name, value in pairs]
        shape["body"] = body.decode()
    except UnicodeDecodeError:
        shape["headers"] = [(_base64(name), _base64(value)) for name, value in pairs]
        shape["body"] = _base64(body)
        shape["base64"] = True
    return orjson.dumps(shape, option=orjson.OPT_APPEND_NEWLINE)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def encode_delta(parts: list[tuple[str, int, int]], table_id: str, now_ms: int) -> bytes:
    """Return the first version of a table of these parts, each (name, rows, bytes)."""
    adds = [
        Add(
            path=name,
            partition_values={},
            size=size,
            modification_time=now_ms,
            data_change=True,
            stats=json.dumps({"numRecords": rows}),
        )
        for name, rows, size in parts
    ]
    return encode_actions(
        Actions(
            protocol=Protocol(min_reader_version=READER_VERSION, min_writer_version=WRITER_VERSION),
            metadata=MetaData(
                id=table_id,
                name="export",
                description="Records, sorted by basin, stream and sequence number over all files",
                format=Format(),
                schema_string=schema_string(SCHEMA),
                partition_columns=[],
                configuration={"delta.dataSkippingNumIndexedCols": "0"},
                created_time=now_ms,
            ),
            adds=tuple(adds),
            info={"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}},
        )
    )
