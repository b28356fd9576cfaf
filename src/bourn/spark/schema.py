"""The columns of a source, and how a reader's own choice of them is checked.

    column          type
    basin           string
    stream          string
    seq_num         long
    timestamp       long    milliseconds, or what the client gave
    headers         array<struct<name: binary, value: binary>>
    body            binary
    metered_bytes   int     with includeMetered

Sequence numbers and timestamps are unsigned in S2: one above 2^63 - 1 appears as a negative number
of the same bits, and nothing is lost.
"""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from bourn.layout.arrow import Columns
from bourn.spark.options import OptionError

_HEADER: Final = StructType(
    [StructField("name", BinaryType(), True), StructField("value", BinaryType(), True)]
)
_ALL: Final = {
    "basin": StringType(),
    "stream": StringType(),
    "seq_num": LongType(),
    "timestamp": LongType(),
    "headers": ArrayType(_HEADER, True),
    "body": BinaryType(),
    "metered_bytes": IntegerType(),
}


def source_schema(*, has_headers: bool, has_metered: bool) -> StructType:
    """Return the columns of a source."""
    left_out = {"headers": not has_headers, "metered_bytes": not has_metered}
    return StructType(
        [StructField(name, kind, True) for name, kind in _ALL.items() if not left_out.get(name)]
    )


class Shape:
    """What a reader wants: some of the columns, in its own order."""

    def __init__(self, schema: StructType) -> None:
        if not schema.fields:
            raise OptionError("schema", f"has no columns: take from {', '.join(_ALL)}")
        for field in schema.fields:
            expected = _ALL.get(field.name)
            if expected is None:
                raise OptionError("schema", f"has {field.name!r}: take from {', '.join(_ALL)}")
            if _plain(field.dataType) != _plain(expected):
                raise OptionError(
                    "schema",
                    f"says that {field.name} is {field.dataType.simpleString()}: write "
                    f"{expected.simpleString()}, and cast it in the query",
                )
        self.names = tuple(schema.fieldNames())
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        self.columns = Columns(
            headers="headers" in self.names,
            body="body" in self.names,
            metered_bytes="metered_bytes" in self.names,
        )

    def batch(self, rows: pa.RecordBatch, basin: str, stream: str) -> pa.RecordBatch:
        """Return the rows of a stream as Spark wants them."""
        texts = {"basin": basin, "stream": stream}
        arrays: list[pa.Array[Any]] = []
        for name, field in zip(self.names, self.arrow, strict=True):
            if name in texts:
                arrays.append(pa.repeat(pa.scalar(texts[name], pa.string()), rows.num_rows))
            else:
                column = rows.column(name)
                arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


def _plain(kind: Any) -> str:
    """Return a type without whether its parts may be null."""
    text: str = kind.simpleString()
    return text
