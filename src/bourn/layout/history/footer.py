"""A Parquet footer for one row group alone, of the columns that make batches.

The footer of a whole segment tells of every row group, and takes longer to parse than one row group
takes to read. So the sidecar says only where the column chunks of each row group end, and this
module makes of it, when a row group is read, the footer of a file that has no other: thrift's
compact protocol, by hand, with the fields that Parquet requires and none besides.

Offsets count from the start of the row group, and `arrival` is a plain integer.
"""

from collections.abc import Sequence
from typing import Final

# Thrift's compact protocol
_I32: Final = 5
_I64: Final = 6
_BINARY: Final = 8
_LIST: Final = 9
_STRUCT: Final = 12
_LONG_LIST: Final = 15
_MORE: Final = 0x80

# Parquet
_INT32: Final = 1
_INT64: Final = 2
_BYTE_ARRAY: Final = 6
_REQUIRED: Final = 0
_REPEATED: Final = 2
_UTF8: Final = 0
_LIST_OF: Final = 3
_PLAIN: Final = 0
_ZSTD: Final = 6
_TRAILER: Final = b"PAR1"

# The leaves of the table in their order; the ones with a type are read.
_LEAVES: Final[tuple[tuple[tuple[str, ...], int | None], ...]] = (
    (("basin",), None),
    (("stream",), None),
    (("stream_id",), None),
    (("seq_num",), _INT64),
    (("timestamp",), _INT64),
    (("arrival",), _INT64),
    (("retention_secs",), _INT64),
    (("kind",), _BYTE_ARRAY),
    (("headers", "list", "element", "name"), _BYTE_ARRAY),
    (("headers", "list", "element", "value"), _BYTE_ARRAY),
    (("body",), _BYTE_ARRAY),
    (("metered_bytes",), _INT32),
)
LEAF_PATHS: Final = tuple(".".join(path) for path, _ in _LEAVES)
LEAVES: Final = len(_LEAVES)
HEADER_LEAF: Final = LEAF_PATHS.index("headers.list.element.name")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _MORE:
        out.append(value & 0x7F | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def _struct(*fields: tuple[int, int, int | bytes]) -> bytes:
    """Return a struct of (field id, type, value), ascending; bytes are taken as they are."""
    parts: list[bytes] = []
    before = 0
    for number, kind, value in fields:
        parts += (
            bytes(((number - before) << 4 | kind,)),
            value if isinstance(value, bytes) else _varint(value << 1),
        )
        before = number
    return b"".join([*parts, b"\0"])


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    size = len(items)
    short = size < _LONG_LIST
    head = bytes((size << 4 | kind,)) if short else bytes((0xF0 | kind,)) + _varint(size)
    return head + b"".join(items)


def _binary(text: str) -> bytes:
    return _varint(len(text)) + text.encode()


def _leaf(name: str, kind: int) -> bytes:
    fields: list[tuple[int, int, int | bytes]] = [
        (1, _I32, kind),
        (3, _I32, _REQUIRED),
        (4, _BINARY, _binary(name)),
    ]
    return _struct(*fields, *([(6, _I32, _UTF8)] if name == "kind" else []))


def _group(name: str, children: int, repetition: int = _REQUIRED, *more: int) -> bytes:
    fields: list[tuple[int, int, int | bytes]] = [
        (3, _I32, repetition),
        (4, _BINARY, _binary(name)),
        (5, _I32, children),
    ]
    return _struct(*fields, *((6, _I32, converted) for converted in more))


def _schema() -> bytes:
    """Return the schema of the columns that are read, depth first."""
    elements: list[bytes] = []
    columns = 0
    for path, kind in _LEAVES:
        if kind is None:
            continue
        if path == ("headers", "list", "element", "name"):
            elements += (
                _group("headers", 1, _REQUIRED, _LIST_OF),
                _group("list", 1, _REPEATED),
                _group("element", 2),
            )
        columns += path[-1] != "value"
        elements.append(_leaf(path[-1], kind))
    return _list(_STRUCT, [_group("schema", columns), *elements])


def _chunk_head(path: Sequence[str], kind: int) -> bytes:
    """Return the fields of a column's metadata that are the same in every row group."""
    fields = _struct(
        (1, _I32, kind),
        (2, _LIST, _list(_I32, [_varint(_PLAIN)])),
        (3, _LIST, _list(_BINARY, [_binary(name) for name in path])),
        (4, _I32, _ZSTD),
    )
    return fields[:-1]


_SCHEMA: Final = _schema()
_READ: Final = tuple(
    (at, len(path) > 1, _chunk_head(path, kind))
    for at, (path, kind) in enumerate(_LEAVES)
    if kind is not None
)


def footer_of(rows: int, header_values: int, chunk_ends: Sequence[int]) -> bytes:
    """Return a file of nothing but the footer, for `pyarrow.parquet.read_metadata`.

    `header_values` is how many values the columns of names and values have: one for every header,
    and one for every row without headers. `chunk_ends` has the end of every leaf's chunk.
    """
    chunks: list[bytes] = []
    for at, is_header, head in _READ:
        start = chunk_ends[at - 1] if at else 0
        size = _varint((chunk_ends[at] - start) << 1)
        place = _varint(start << 1)
        values = _varint((header_values if is_header else rows) << 1)
        # The chunk's field 2, and 3: the metadata with its fields 5, 6, 7 and 9
        numbers = (b"\x16", values, b"\x16", size, b"\x16", size, b"\x26", place)
        chunks.append(b"".join((b"\x26", place, b"\x1c", head, *numbers, b"\0\0")))
    group = _struct((1, _LIST, _list(_STRUCT, chunks)), (2, _I64, chunk_ends[-1]), (3, _I64, rows))
    footer = _struct(
        (1, _I32, 2), (2, _LIST, _SCHEMA), (3, _I64, rows), (4, _LIST, _list(_STRUCT, [group]))
    )
    return b"".join((_TRAILER, footer, len(footer).to_bytes(4, "little"), _TRAILER))
