"""The columns of the history, plain so that every reader of Parquet understands them.

| column | type | |
|---|---|---|
| `basin`, `stream` | string | names, as they were when the row was written |
| `stream_id` | long | never used again, not even for a stream of the same name |
| `seq_num` | long | |
| `timestamp` | long | milliseconds, or whatever the client counts in |
| `arrival` | timestamp, UTC | when the record was admitted: retention counts from here |
| `retention_secs` | long | 0: never expires |
| `kind` | string | `envelope`, `command` or `encrypted` |
| `headers` | list of (name, value) | a command's only header: `("", "fence")` or `("", "trim")` |
| `body` | binary | of an encrypted record: algorithm, nonce, ciphertext and tag |
| `metered_bytes` | int | what the record weighs for its client |

No value is null. What is unsigned with 64 bits (`stream_id`, `seq_num`, `timestamp`,
`retention_secs`) keeps its bits: a value from 2**63 on reads as negative, others read as they are.
Spark would make decimals of unsigned columns.

Rows are sorted by (stream_id, seq_num), unsigned.
"""

from typing import Final

import pyarrow as pa

KINDS: Final = ("envelope", "command", "encrypted")

HEADER: Final = pa.struct(
    [pa.field("name", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
HEADERS: Final = pa.list_(pa.field("element", HEADER, nullable=False))

_TYPES: Final[dict[str, pa.DataType]] = {
    "basin": pa.string(),
    "stream": pa.string(),
    "stream_id": pa.int64(),
    "seq_num": pa.int64(),
    "timestamp": pa.int64(),
    "arrival": pa.timestamp("us", "UTC"),
    "retention_secs": pa.int64(),
    "kind": pa.string(),
    "headers": HEADERS,
    "body": pa.binary(),
    "metered_bytes": pa.int32(),
}
SCHEMA: Final = pa.schema([pa.field(name, of, nullable=False) for name, of in _TYPES.items()])

# The same as it is held in memory: long names are not repeated for every row.
_DICTIONARIES: Final = {
    "basin": pa.dictionary(pa.int32(), pa.string()),
    "stream": pa.dictionary(pa.int32(), pa.string()),
    "kind": pa.dictionary(pa.int8(), pa.string()),
}
ROWS_SCHEMA: Final = pa.schema(
    [pa.field(name, _DICTIONARIES.get(name, of), nullable=False) for name, of in _TYPES.items()]
)
