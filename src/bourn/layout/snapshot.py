"""The snapshot object: the whole state before one commit, as one Parquet file.

```
"PAR1"
one row group      the streams, columns.py; zstd level 1, a CRC in every page
seal        8 B    magic "BOURNSNP"
            u64    xxh3-64 of the whole object without these 8 bytes, little endian
footer             Parquet's own; its key-value metadata holds `bourn`: base64 of
                       u64      xxh3-64 of what follows, little endian
                       msgpack  [version, xxh3-64 of the columns' values, SnapshotMeta]
u32 "PAR1"         length of the footer
```

Any Parquet reader opens it: a gap before the footer is where others keep their indexes, and the
metadata is text because Parquet says so. Our own reader proves the seal before Parquet's parser
sees a byte, so a flipped bit is found wherever it stands; it proves the values after that
parser, so another version of it cannot give us other ones. The checksum around SnapshotMeta
serves a reader that fetches the footer alone.

The seal stays what it is in every version.
"""

import struct
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64, xxh3_64_intdigest

from bourn.errors import Damaged, NewerFormat
from bourn.layout.columns import SCHEMA, StreamColumns, StreamImage
from bourn.layout.keys import LogPosition, parse_snapshot_key

__all__ = [
    "Snapshot",
    "SnapshotMeta",
    "StreamColumns",
    "StreamImage",
    "decode_snapshot",
    "encode_snapshot",
]

VERSION: Final = 1
SEAL_MAGIC: Final = b"BOURNSNP"
META_KEY: Final = "bourn"

_PARQUET_MAGIC: Final = b"PAR1"
_TRAILER: Final = struct.Struct("<I4s")
_U64: Final = struct.Struct("<Q")
_SEAL_BYTES: Final = len(SEAL_MAGIC) + _U64.size
_COMPRESSION_LEVEL: Final = 1
# Where few values repeat a dictionary is small; elsewhere it only slows encoding and decoding.
_DICTIONARY_COLUMNS: Final = ["basin_id", "fencing_token", "trim_point"]

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]


class SnapshotMeta(msgspec.Struct, frozen=True):
    """What the state holds besides streams, and where in the log it stands."""

    position: LogPosition  # the first commit that the state does not include
    next_ordinal: _Unsigned  # its dense ordinal over all epochs
    bases: list[tuple[_Unsigned, _Unsigned]]  # (epoch, ordinal of its commit 0), ascending
    next_resource_id: _Unsigned
    created_at_ms: _Unsigned
    basins: list[bytes] = []  # packed catalog rows
    extra: dict[str, bytes] = {}  # parts that later versions of the catalog add


class Snapshot(NamedTuple):
    """A decoded snapshot: every value checked."""

    meta: SnapshotMeta
    columns: StreamColumns


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    version: int
    columns_checksum: int
    meta: msgspec.Raw


def encode_snapshot(meta: SnapshotMeta, columns: StreamColumns) -> bytes:
    """Return the object."""
    envelope = msgspec.msgpack.encode(
        _Envelope(VERSION, columns.checksum(), msgspec.Raw(msgspec.msgpack.encode(meta)))
    )
    table = pa.Table.from_arrays(list(columns.arrays), schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_DICTIONARY_COLUMNS,  # type: ignore[arg-type]  # the stubs know no list
        write_page_checksum=True,
    ) as writer:
        if len(columns):
            writer.write_table(table, row_group_size=len(columns))
        writer.add_key_value_metadata({META_KEY: b64encode(_checksummed(envelope)).decode()})
    data = _sealed(memoryview(sink.getvalue()))
    del sink, table
    pool = pa.default_memory_pool()
    if pool.backend_name != "system":  # whose heap is everybody's, and has given it back
        pool.release_unused()  # or it keeps what encoding took until the next one
    return data


def decode_snapshot(data: bytes, key: str) -> Snapshot:
    """Return the snapshot; Damaged, naming `key`, where the object is not what was written.

    NewerFormat, where it is whole and too new: an older snapshot must not stand in for it. The
    result keeps nothing of `data`.
    """
    _check_seal(data, key)
    try:
        with pq.ParquetFile(pa.BufferReader(data), memory_map=False) as file:
            meta, columns_checksum = _decode_meta(file, key)
            table = file.read()
        columns = _columns_of(table, key)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
    ) as error:  # all that pyarrow throws at bad files
        raise Damaged(key, f"it is no Parquet file: {error}") from None
    if columns.checksum() != columns_checksum:
        raise Damaged(key, "the streams fail their checksum")
    fault = columns.fault()
    if fault is not None:
        raise Damaged(key, fault)
    position = parse_snapshot_key(key)
    if position not in {None, meta.position}:
        raise Damaged(key, f"it holds the state at {meta.position}")
    return Snapshot(meta, columns)


def _sealed(parquet: memoryview) -> bytes:
    (footer_bytes, _) = _TRAILER.unpack_from(parquet, len(parquet) - _TRAILER.size)
    footer_at = len(parquet) - _TRAILER.size - footer_bytes
    pages, footer = parquet[:footer_at], parquet[footer_at:]
    return b"".join([pages, SEAL_MAGIC, _U64.pack(_seal_of(pages, footer)), footer])


def _seal_of(pages: memoryview, footer: memoryview) -> int:
    digest = xxh3_64(pages)
    digest.update(SEAL_MAGIC)
    digest.update(footer)
    return digest.intdigest()


def _check_seal(data: bytes, key: str) -> None:
    view = memoryview(data)
    shortest = len(_PARQUET_MAGIC) + _SEAL_BYTES + _TRAILER.size
    if len(view) < shortest or not data.startswith(_PARQUET_MAGIC):
        raise Damaged(key, "it is no snapshot, or only a part of one")
    footer_bytes, magic = _TRAILER.unpack_from(view, len(view) - _TRAILER.size)
    footer_at = len(view) - _TRAILER.size - footer_bytes
    seal_at = footer_at - _SEAL_BYTES
    if magic != _PARQUET_MAGIC or seal_at < len(_PARQUET_MAGIC):
        raise Damaged(key, "it is no snapshot, or only a part of one")
    if not data.startswith(SEAL_MAGIC, seal_at):
        raise Damaged(key, "it has no seal")
    (seal,) = _U64.unpack_from(view, seal_at + len(SEAL_MAGIC))
    if seal != _seal_of(view[:seal_at], view[footer_at:]):
        raise Damaged(key, "it fails its checksum")


def _checksummed(payload: bytes) -> bytes:
    return _U64.pack(xxh3_64_intdigest(payload)) + payload


def _decode_meta(file: pq.ParquetFile, key: str) -> tuple[SnapshotMeta, int]:
    """Return the metadata and the checksum of the columns."""
    try:
        stored = b64decode((file.metadata.metadata or {})[META_KEY.encode()], validate=True)
    except (KeyError, ValueError):
        raise Damaged(key, "it is a Parquet file, but no snapshot") from None
    payload = stored[_U64.size :]
    if stored != _checksummed(payload):
        raise Damaged(key, "its metadata fails its checksum")
    try:
        envelope = msgspec.msgpack.decode(payload, type=_Envelope)
        if envelope.version > VERSION:
            raise NewerFormat(key, envelope.version, VERSION)
        if envelope.version != VERSION:
            raise Damaged(key, f"it has version {envelope.version}, which never was")
        meta = msgspec.msgpack.decode(envelope.meta, type=SnapshotMeta)
    except msgspec.MsgspecError as error:
        raise Damaged(key, f"its metadata cannot be read: {error}") from None
    if meta.bases != sorted(meta.bases):
        raise Damaged(key, "its epochs are out of order")
    return meta, envelope.columns_checksum


def _columns_of(table: pa.Table, key: str) -> StreamColumns:
    if not table.schema.equals(SCHEMA):
        raise Damaged(key, f"its columns are {', '.join(table.schema.names)}")
    arrays = [_one_array(column) for column in table.columns]
    try:
        return StreamColumns(arrays)
    except ValueError as error:
        raise Damaged(key, str(error)) from None


def _one_array(column: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    if column.num_chunks == 1:  # the usual case, one row group: no copy
        return column.chunks[0]
    return pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])
