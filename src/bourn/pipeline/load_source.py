"""What an import reads: an export, or Parquet and JSON lines of others.

    body        binary or text; the only one that must be there
    headers     list of (name, value), binary or text
    timestamp   integer, the bits of an unsigned one, or a time; without it, the server's
    stream      text; where it is missing, all is for one stream
    kind        `command`: left out;  `encrypted`: refused, for nobody else could open it

Other columns are passed over. Files are taken in the order of their names, rows in that of the
file. A line of JSON is an object with these members (export_format draws it). Objects of a remote
bucket are fetched one by one into a file that is gone afterwards.
"""

import base64
import binascii
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from bourn.layout.arrow import HEADERS
from bourn.limits import (
    IMPORT_CHUNK_BYTES,
    IMPORT_LINE_BYTES_MAX,
    IMPORT_READ_ROWS_MAX,
    U64_MAX,
)
from bourn.pipeline.export_format import FORMATS, STARTED
from bourn.pipeline.load_stream import TransferRefused

SUFFIXES: Final = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
NAMES: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("stream", NAMES),  # null: there is no such column
        pa.field("timestamp", pa.int64()),
        pa.field("headers", HEADERS),
        pa.field("body", pa.binary()),
    ]
)
DELTA_READER_VERSION: Final = 1
_COLUMNS: Final = ("stream", "timestamp", "headers", "body", "kind")
_MEMBERS: Final = frozenset({*_COLUMNS, "basin", "seq_num", "base64", "metered_bytes"})

Open = Callable[[], Any]  # a context manager of a local path


class SourceFile(NamedTuple):
    """A file of the source: its name for people, and what makes it a local one."""

    name: str
    open: Open


class Source(NamedTuple):
    """Files of one format, in order."""

    format: str
    files: list[SourceFile]

    def tables(self) -> Iterator[pa.Table]:
        """Yield all records, in columns as SCHEMA says, a few MiB at a time."""
        read = _lines_in if self.format == "jsonl" else _rows_in
        for file in self.files:
            with file.open() as path:
                yield from read(path, file.name)

    def streams(self) -> set[str | None]:
        """Return the names of the streams; None where there is no such column."""
        found: set[str | None] = set()
        for file in self.files:
            with file.open() as path:
                if self.format == "jsonl":
                    for table in _lines_in(path, file.name):
                        found.update(_distinct(table.column("stream")))
                else:
                    found |= _streams_in(path, file.name)
        return found


def _distinct(column: "pa.ChunkedArray[Any]") -> list[str | None]:
    found: list[str | None] = column.unique().to_pylist()
    return found


@contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """Hand out a file that is local already."""
    yield path


@contextmanager
def fetched_file(write: Callable[[int], None]) -> Iterator[Path]:
    """Hand out a file that `write` fills, by its descriptor; it is gone afterwards."""
    descriptor, name = tempfile.mkstemp(prefix="bourn-import-")
    try:
        try:
            write(descriptor)
        finally:
            os.close(descriptor)
        yield Path(name)
    finally:
        Path(name).unlink()


def choose(names: list[str], of: str | None, shown: str) -> tuple[str, list[str]]:
    """Return the format, and the names of the files that are read, of all that there are.

    `delta` says that the table's log must be asked.
    """
    if STARTED in names:
        raise TransferRefused(f"{shown} is an export that has not come to its end: make it anew")
    plain = [name for name in names if not any(part[:1] in "_." for part in name.split("/"))]
    has_log = any(name.startswith("_delta_log/") for name in names)
    if of is None:
        kinds = {SUFFIXES[suffix] for name in plain if (suffix := Path(name).suffix) in SUFFIXES}
        if has_log:
            of = "delta"
        elif len(kinds) == 1:
            of = kinds.pop()
        else:
            raise TransferRefused(
                f"{shown} does not tell what it is: say --format {', '.join(FORMATS)}"
            )
    if of == "delta" and not has_log:
        raise TransferRefused(f"{shown} is no Delta table: it has no _delta_log")
    suffixes = {suffix for suffix, kind in SUFFIXES.items() if kind == of}
    named = [name for name in plain if Path(name).suffix in suffixes]
    if len(plain) == 1 and not named:
        named = plain  # a file that was named itself, whatever its suffix
    if of != "delta" and not named:
        raise TransferRefused(f"{shown} holds no file of format {of}")
    return of, sorted(named)


def delta_files(uri: str, options: dict[str, str]) -> list[str]:
    """Return the names of the files that are in a Delta table now, below its root."""
    from deltalake import DeltaTable  # noqa: PLC0415  not everybody has it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  as above

    try:
        table = DeltaTable(uri, storage_options=options or None)
        if table.protocol().min_reader_version > DELTA_READER_VERSION:
            raise TransferRefused(f"{uri} is a Delta table of a kind that an import cannot read")
        if table.metadata().partition_columns:
            raise TransferRefused(f"{uri} has partitions: write it without them first")
        root = table.table_uri.removeprefix("file://").rstrip("/") + "/"
        files = [name.removeprefix("file://") for name in table.file_uris()]
    except DeltaError as error:
        raise TransferRefused(f"{uri} is no Delta table: {error}") from None
    if not all(name.startswith(root) for name in files):
        raise TransferRefused(f"{uri} has files outside of itself, which an import cannot read")
    return sorted(name.removeprefix(root) for name in files)


# Parquet


def _rows_in(path: Path, name: str) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(path) as file:
            present = [column for column in _COLUMNS if column in file.schema_arrow.names]
            if "body" not in present:
                raise TransferRefused(f"{name} has no column `body`")
            for batch in file.iter_batches(batch_size=_batch_rows(file), columns=present):
                yield _normal(pa.Table.from_batches([batch]), name)
    except (pa.ArrowException, OSError) as error:
        raise TransferRefused(f"{name} cannot be read as Parquet: {error}") from None


def _batch_rows(file: pq.ParquetFile) -> int:
    """Return how many rows to read at once, by the row group with the largest ones."""
    groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
    largest = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
    return min(max(IMPORT_CHUNK_BYTES // 4 // max(largest, 1), 1), IMPORT_READ_ROWS_MAX)


def _streams_in(path: Path, name: str) -> set[str | None]:
    try:
        with pq.ParquetFile(path) as file:
            if "stream" not in file.schema_arrow.names:
                return {None} if file.metadata.num_rows else set()
            found: set[str | None] = set()
            for batch in file.iter_batches(columns=["stream"]):
                found.update(batch.column(0).unique().to_pylist())
            return found
    except (pa.ArrowException, OSError) as error:
        raise TransferRefused(f"{name} cannot be read as Parquet: {error}") from None


def _normal(table: pa.Table, name: str) -> pa.Table:
    """Bring the columns of others into ours; encrypted records and other types are refused."""
    if "kind" in table.column_names and "encrypted" in _distinct(table.column("kind")):
        raise TransferRefused(
            f"{name} holds encrypted records, which no other stream can hold: export them from an "
            "endpoint, with the key"
        )
    columns: list[pa.ChunkedArray[Any] | pa.Array[Any]] = []
    for field in SCHEMA:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if field.name == "timestamp":
            column = _timestamps(column, name)
        try:
            columns.append(_cast(column, field.type))
        except pa.ArrowException:
            raise TransferRefused(
                f"{name}: column `{field.name}` is {column.type}, which cannot be taken"
            ) from None
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _cast(column: "pa.ChunkedArray[Any]", to: pa.DataType) -> "pa.ChunkedArray[Any]":
    if to == pa.binary() and not _is_binary(column.type):
        raise pa.ArrowTypeError("a body is bytes or text")
    if to == NAMES:
        return column.cast(pa.string()).dictionary_encode()
    return column.cast(to)


def _is_binary(of: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_binary(of)
        or types.is_large_binary(of)
        or (types.is_string(of) or types.is_large_string(of))
    )


def _timestamps(column: "pa.ChunkedArray[Any]", name: str) -> "pa.ChunkedArray[Any]":
    of = column.type
    if pa.types.is_timestamp(of):
        return column.cast(pa.timestamp("ms", of.tz), safe=False).cast(pa.int64())
    if pa.types.is_uint64(of):
        return column.cast(pa.int64(), safe=False)
    if not pa.types.is_integer(of):
        raise TransferRefused(f"{name}: column `timestamp` is {of}, neither integer nor time")
    return column


# JSON lines


def _lines_in(path: Path, name: str) -> Iterator[pa.Table]:
    rows: list[tuple[str | None, int | None, list[Any], bytes]] = []
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(_bounded(file, name), 1):
            if not line.strip():
                continue
            try:
                rows.append(_row_of(line))
            except ValueError as error:
                raise TransferRefused(f"{name}, line {number}: {error}") from None
            size += len(line)
            if size >= IMPORT_CHUNK_BYTES // 4:
                yield _table_of(rows)
                rows, size = [], 0
    if rows:
        yield _table_of(rows)


def _bounded(file: Any, name: str) -> Iterator[bytes]:
    while line := file.readline(IMPORT_LINE_BYTES_MAX + 1):
        if len(line) > IMPORT_LINE_BYTES_MAX:
            raise TransferRefused(f"{name} has a line of more than {IMPORT_LINE_BYTES_MAX} bytes")
        yield line


def _row_of(line: bytes) -> tuple[str | None, int | None, list[Any], bytes]:
    """Read a line; ValueError says what is wrong with it."""
    shape = orjson.loads(line)
    if not isinstance(shape, dict) or "body" not in shape:
        raise ValueError("a line is a JSON object with `body`")
    unknown = shape.keys() - _MEMBERS
    if unknown:
        raise ValueError(f"a record has no {min(unknown)!r}")
    if shape.get("kind") == "encrypted":
        raise ValueError("it is encrypted, and no other stream can hold it")
    decode = _from_base64 if shape.get("base64") is True else _from_text
    timestamp = shape.get("timestamp")
    if timestamp is not None:
        if type(timestamp) is not int or not 0 <= timestamp <= U64_MAX:
            raise ValueError("`timestamp` is a whole number of 64 bits")
        timestamp -= (timestamp >> 63) << 64
    stream = shape.get("stream")
    if stream is not None and not isinstance(stream, str):
        raise ValueError("`stream` is text")
    try:
        headers = [(decode(key), decode(value)) for key, value in shape.get("headers") or ()]
    except TypeError:
        raise ValueError("`headers` is a list of [name, value]") from None
    return stream, timestamp, headers, decode(shape["body"])


def _from_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("bodies, names and values are text")  # noqa: TRY004  a line's fault
    return value.encode()


def _from_base64(value: object) -> bytes:
    try:
        return base64.b64decode(_from_text(value), validate=True)
    except binascii.Error:
        raise ValueError("it is no base64") from None


def _table_of(rows: list[tuple[str | None, int | None, list[Any], bytes]]) -> pa.Table:
    streams, timestamps, headers, bodies = zip(*rows, strict=True)
    pairs = [[{"name": key, "value": value} for key, value in some] for some in headers]
    return pa.Table.from_arrays(
        [
            pa.array(streams, pa.string()).dictionary_encode(),
            pa.array(timestamps, pa.int64()),
            pa.array(pairs, HEADERS),
            pa.array(bodies, pa.binary()),
        ],
        schema=SCHEMA,
    )
