"""A checkpoint of the table's log: every action in force at a version, as one Parquet file.

```
one row an action; each column is a struct, null but for the kind that the row is
    protocol · metaData · txn · add · remove · …
```

Others write it (deltalake does it for us); here it is only read. A checkpoint that is split, or
that refers to further files, is none of ours and is refused.
"""

from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bourn.errors import Damaged
from bourn.layout.history.delta import Actions, Add, MetaData, Protocol, Txn

_COLUMNS: Final[tuple[str, ...]] = ("protocol", "metaData", "txn", "add", "sidecar")
_MAPS: Final = frozenset({"partitionValues", "tags", "configuration", "options"})


def decode_checkpoint(data: bytes, key: str) -> Actions:
    """Return what is in force; Damaged, naming `key`, where the object is no checkpoint."""
    try:
        with pq.ParquetFile(pa.BufferReader(data), memory_map=False) as file:
            names = [name for name in _COLUMNS if name in file.schema_arrow.names]
            table = file.read(columns=names)
        rows = {name: _present(table.column(name)) for name in names}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise Damaged(key, f"it is no Parquet file: {error}") from None
    if rows.get("sidecar"):
        raise Damaged(key, "it refers to further files, which ours never does")
    protocols = _typed(rows, "protocol", Protocol, key)
    metadata = _typed(rows, "metaData", MetaData, key)
    if len(protocols) != 1 or len(metadata) != 1:
        raise Damaged(key, "it does not say what the table is")
    return Actions(
        protocol=protocols[0],
        metadata=metadata[0],
        txns=tuple(_typed(rows, "txn", Txn, key)),
        adds=tuple(_typed(rows, "add", Add, key)),
    )


def _present(column: "pa.ChunkedArray[Any]") -> list[dict[str, Any]]:
    return [row for row in column.drop_null().to_pylist() if row is not None]


def _typed(rows: dict[str, list[dict[str, Any]]], name: str, kind: Any, key: str) -> list[Any]:
    try:
        return [msgspec.convert(_without_pairs(row), kind) for row in rows.get(name, [])]
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Damaged(key, f"its {name} is none: {error}") from None


def _without_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Arrow hands maps out as lists of pairs."""
    return {
        name: _without_pairs(value)
        if isinstance(value, dict)
        else dict(value)
        if name in _MAPS and value is not None
        else value
        for name, value in row.items()
        if value is not None
    }
