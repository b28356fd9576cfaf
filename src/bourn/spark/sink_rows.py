"""What a sink takes: the columns of a DataFrame, checked once, and their values, checked all.

    stream      string, where the option `stream` does not name the one for all rows
    body        binary or string
    headers     array<struct<name, value>>, each binary or string; null or absent: none
    timestamp   bigint, milliseconds since 1970, or timestamp; null or absent: the time of arrival

`basin`, `seq_num` and `metered_bytes`, which the source has, are passed over. An integer timestamp
is 64 unsigned bits in a signed number, as the source gives it.
"""

from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bourn.errors import BadName
from bourn.layout.arrow import HEADERS
from bourn.limits import RECORD_METERED_BYTES_MAX
from bourn.model.names import stream_name
from bourn.spark.sink_parts import BODY, HEADS, STAMP, STREAM, metered_sizes

_PASSED_OVER: Final = frozenset({"basin", "seq_num", "metered_bytes"})
_TEXTS: Final = (StringType, BinaryType)  # varchar and char are strings here
_INTEGERS: Final = (LongType, IntegerType, ShortType, ByteType)
_TIMES: Final = (TimestampType, TimestampNTZType)
_COLUMNS: Final = "stream, body, headers and timestamp"


class BadColumns(ValueError):
    """The DataFrame has not the columns that a sink takes."""


class BadRow(ValueError):
    """A row cannot become a record; the text names it."""


class Shape(NamedTuple):
    """Which columns there are, and the stream of all rows where there is no column for it."""

    stream: str
    has_headers: bool
    has_timestamp: bool
    has_times: bool  # of Spark's own type


def check_columns(schema: StructType, stream: str) -> Shape:
    """Return the shape of a DataFrame; BadColumns says which column is wrong, and how."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if STREAM not in kinds and not stream:
        raise BadColumns("there is no column `stream`: add one, or set the option stream")
    if STREAM in kinds and stream:
        raise BadColumns("there is a column `stream` and an option stream: drop one of them")
    if BODY not in kinds:
        raise BadColumns("there is no column `body`: a sink takes " + _COLUMNS)
    known = {STREAM, BODY, HEADS, STAMP} | _PASSED_OVER
    for name in kinds:
        if name not in known:
            raise BadColumns(f"column `{name}` has no place in a record: a sink takes {_COLUMNS}")
    if STREAM in kinds:
        _check_kind(STREAM, kinds[STREAM], (StringType,), "string")
    _check_kind(BODY, kinds[BODY], _TEXTS, "binary or string")
    if STAMP in kinds:
        _check_kind(STAMP, kinds[STAMP], _INTEGERS + _TIMES, "bigint or timestamp")
    if HEADS in kinds:
        _check_headers(kinds[HEADS])
    return Shape(stream, HEADS in kinds, STAMP in kinds, isinstance(kinds.get(STAMP), _TIMES))


def _check_kind(name: str, kind: DataType, kinds: tuple[type[DataType], ...], words: str) -> None:
    if not isinstance(kind, kinds):
        raise BadColumns(f"column `{name}` is {kind.simpleString()}, not {words}")


def _check_headers(kind: DataType) -> None:
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    fields = pair.fields if isinstance(pair, StructType) else []
    if [field.name for field in fields] != ["name", "value"] or not all(
        isinstance(field.dataType, _TEXTS) for field in fields
    ):
        raise BadColumns(
            f"column `headers` is {kind.simpleString()}, not "
            "array<struct<name:binary,value:binary>>"
        )


class RowCheck:
    """Makes the rows of one task plain, and names those that no stream can take."""

    def __init__(self, shape: Shape, partition: int) -> None:
        self._shape = shape
        self._partition = partition
        self._seen = 0
        self._names: set[str] = set()

    def plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as `stream`, `body` and, where there are any, `headers`, `timestamp`."""
        count = rows.num_rows
        shape = self._shape
        streams: Any = (
            pa.repeat(pa.scalar(shape.stream, pa.string()), count)
            if shape.stream
            else rows.column(STREAM).cast(pa.string())
        )
        body: Any = rows.column(BODY).cast(pa.binary())
        self._refuse_nulls(streams, streams, "a null `stream`")
        self._check_names(streams)
        self._refuse_nulls(body, streams, "a null `body`: an empty one is coalesce(body, '')")
        columns: dict[str, Any] = {STREAM: streams, BODY: body}
        if shape.has_headers:
            columns[HEADS] = self._headers(rows.column(HEADS), streams)
        if shape.has_timestamp:
            columns[STAMP] = self._stamps(rows.column(STAMP), streams)
        made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        sizes = metered_sizes(made)
        if len(sizes) and int(sizes.max()) > RECORD_METERED_BYTES_MAX:
            at = int(np.argmax(sizes > RECORD_METERED_BYTES_MAX))
            raise self._bad(
                at,
                streams,
                f"a record of {int(sizes[at])} metered bytes: at most {RECORD_METERED_BYTES_MAX} "
                "may be appended",
            )
        self._seen += count
        return made

    def _headers(self, column: Any, streams: Any) -> Any:
        headers = cast("pa.ListArray[Any]", column.cast(HEADERS))
        pairs: Any = headers.flatten()
        names = pairs.field("name") if len(pairs) else pa.array([], pa.binary())
        sizes: Any = pc.binary_length(names)
        empty: Any = pc.fill_null(pc.equal(sizes, pa.scalar(0)), True)
        if pc.any(empty).as_py():
            owners: Any = pc.list_parent_indices(headers)
            at = owners[pc.index(empty, True).as_py()].as_py()
            raise self._bad(
                at,
                streams,
                "a header without a name: that would make it a command (fence, trim), which a sink "
                "does not append; leave such rows out",
            )
        return headers

    def _stamps(self, column: Any, streams: Any) -> Any:
        if not self._shape.has_times:
            return column.cast(pa.int64())
        kind = pa.timestamp("ms", column.type.tz)
        stamps: Any = column.cast(kind, safe=False).cast(pa.int64())
        early: Any = pc.fill_null(pc.less(stamps, pa.scalar(0)), False)
        if pc.any(early).as_py():
            raise self._bad(pc.index(early, True).as_py(), streams, "a timestamp before 1970")
        return stamps

    def _refuse_nulls(self, column: Any, streams: Any, what: str) -> None:
        if column.null_count:
            raise self._bad(pc.index(column.is_null(), True).as_py(), streams, what)

    def _check_names(self, streams: Any) -> None:
        for name in streams.unique().to_pylist():
            if name in self._names:
                continue
            try:
                self._names.add(stream_name(name))
            except BadName as error:
                at = pc.index(streams, name).as_py()
                raise self._bad(at, streams, f"no name of a stream: {error.message}") from None

    def _bad(self, at: int, streams: Any, what: str) -> BadRow:
        stream = streams[at].as_py()
        return BadRow(
            f"row {self._seen + at} of partition {self._partition}, for stream {stream!r}, "
            f"has {what}"
        )
