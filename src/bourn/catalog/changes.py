"""What decisions do to the catalog, as it travels in commits.

      0         1
    +---------+---------------------------------+
    | version | MessagePack array: kind, fields |
    +---------+---------------------------------+

    kind  change       fields         since
    1     PutBasin     row            1      inserts the row or replaces the one of its id
    2     DropBasin    id             1      its last stream is gone
    3     PutStream    row            1      inserts the row or replaces the one of its id
    4     DropStream   id, basin_id   1      its records are gone
    5     PutToken     row            2      inserts the row or replaces the one of its id
    6     DropToken    id             2      it is revoked, or long expired
    7     CountUsage   number, lines, basins, streams
                                      2      adds counts, says sizes; once for each number

Changes are facts, not requests: replaying one always succeeds, and replaying it twice in a row
changes nothing. A new kind or a new field raises VERSION; a reader takes every version up to its
own (fields that are missing at the end have defaults) and refuses later ones, because dropping
what it does not understand would lose it. A writer says the first version that knows the kind, so
that a log without the new ones stays readable for those who do not know them.
"""

import enum
from typing import Final, Generic, TypeVar

import msgspec

from bourn.catalog.rows import BasinRow, Id, StreamRow, decode_with
from bourn.catalog.tokens import TokenId, TokenRow
from bourn.catalog.usage import U32, U64, UsageLine
from bourn.errors import Undecodable

VERSION: Final = 2


class PutBasin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The basin is now like this."""

    row: BasinRow


class DropBasin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The basin is gone and its name is free."""

    id: Id


class PutStream(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """The stream is now like this."""

    row: StreamRow


class DropStream(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The stream is gone and its name is free."""

    id: Id
    basin_id: Id


class PutToken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """The access token is now like this."""

    row: TokenRow


class DropToken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The access token is gone and its id is free."""

    id: TokenId


class CountUsage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """This was used: lines of counts, sizes of basins by hour and of streams by minute.

    Numbers ascend by one. A repetition is known by its number, and changes nothing.
    """

    number: Id
    lines: list[UsageLine]
    basins: list[tuple[str, U32, U64]]
    streams: list[tuple[U64, U32, U64]]


Change = PutBasin | DropBasin | PutStream | DropStream | PutToken | DropToken | CountUsage

Row = TypeVar("Row", BasinRow, StreamRow)


class Provision(enum.StrEnum):
    """What a request did, as the answer says it."""

    CREATED = "created"
    UPDATED = "updated"
    NOOP = "noop"


class Decision(msgspec.Struct, Generic[Row], frozen=True):
    """The row that holds from here on, and the change that makes it hold; a NOOP has none."""

    row: Row
    provision: Provision
    change: Change | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Change]] = msgspec.msgpack.Decoder(Change)
_SECOND: Final = b"\x02"
_SINCE: Final = dict.fromkeys((PutToken, DropToken, CountUsage), _SECOND)  # others: the first


def encode_change(change: Change) -> bytes:
    """Return the change's bytes."""
    return _SINCE.get(type(change), b"\x01") + _ENCODER.encode(change)


def decode_change(data: bytes | memoryview) -> Change:
    """Return the change that the bytes hold, or raise Undecodable."""
    if not data:
        raise Undecodable("a catalog change has no bytes")
    if not 1 <= data[0] <= VERSION:
        raise Undecodable(
            f"a catalog change has version {data[0]}; this Bourn reads up to version {VERSION}"
        )
    return decode_with(_DECODER, memoryview(data)[1:], "a catalog change")
