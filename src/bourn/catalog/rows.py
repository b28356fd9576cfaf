"""A basin and a stream as the catalog keeps them, and their bytes.

A row is a MessagePack array of its fields in order, nested configs being arrays too:

    basin    id · name · config · location · created_at_ms · deleted_at_ms · idempotency_key
    stream   id · basin_id · name · config · cipher · created_at_ms · deleted_at_ms
             · idempotency_key

Rows carry no version of their own: what holds them does (`changes.py`, the snapshot). Fields are
only ever appended, with a default, so that older rows stay readable.
"""

import hashlib
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from bourn.errors import Undecodable
from bourn.limits import CONFIG_POOL_ENTRIES_MAX, STREAM_NAME_BYTES_MAX
from bourn.model.config import BasinConfig, Cipher, ResolvedStreamConfig, StreamConfig
from bourn.model.instants import MS_MAX
from bourn.model.resource import basin_config_shape, stream_config_shape

IDEMPOTENCY_KEY_BYTES: Final = 16

Id = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1
Name = Annotated[str, Meta(min_length=1, max_length=STREAM_NAME_BYTES_MAX)]
InstantMs = Annotated[int, Meta(ge=0, le=MS_MAX)]
IdempotencyKey = Annotated[
    bytes, Meta(min_length=IDEMPOTENCY_KEY_BYTES, max_length=IDEMPOTENCY_KEY_BYTES)
]
T = TypeVar("T")


class BasinRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A basin; `deleted_at_ms` is set while it is being deleted."""

    id: Id
    name: Name
    config: BasinConfig
    location: str | None
    created_at_ms: InstantMs
    deleted_at_ms: InstantMs | None = None
    idempotency_key: IdempotencyKey | None = None


class StreamRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One incarnation of a stream; a stream created again under the name has another id."""

    id: Id
    basin_id: Id
    name: Name
    config: ResolvedStreamConfig
    cipher: Cipher | None
    created_at_ms: InstantMs
    deleted_at_ms: InstantMs | None = None
    idempotency_key: IdempotencyKey | None = None


class ConfigPool:
    """Lets rows of equal configs share one object: a million streams have a handful of configs.

    Holds at most CONFIG_POOL_ENTRIES_MAX configs and starts afresh when full: sharing saves
    memory and means nothing else.
    """

    __slots__ = ("_configs",)

    def __init__(self) -> None:
        self._configs: dict[ResolvedStreamConfig, ResolvedStreamConfig] = {}

    def share(self, row: StreamRow) -> StreamRow:
        """Return an equal row whose config is the shared one."""
        config = self.intern(row.config)
        return row if config is row.config else msgspec.structs.replace(row, config=config)

    def intern(self, config: ResolvedStreamConfig) -> ResolvedStreamConfig:
        """Return the shared config that equals this one."""
        shared = self._configs.get(config)
        if shared is not None:
            return shared
        if len(self._configs) >= CONFIG_POOL_ENTRIES_MAX:
            self._configs.clear()
        self._configs[config] = config
        return config

    def __len__(self) -> int:
        return len(self._configs)


_ENCODER: Final = msgspec.msgpack.Encoder()
_BASIN_ROW: Final = msgspec.msgpack.Decoder(BasinRow)
_STREAM_ROW: Final = msgspec.msgpack.Decoder(StreamRow)


def encode_basin_row(row: BasinRow) -> bytes:
    """Return the row's bytes."""
    return _ENCODER.encode(row)


def decode_basin_row(data: bytes | memoryview) -> BasinRow:
    """Return the row that the bytes hold, or raise Undecodable."""
    return decode_with(_BASIN_ROW, data, "a basin row")


def encode_stream_row(row: StreamRow) -> bytes:
    """Return the row's bytes."""
    return _ENCODER.encode(row)


def decode_stream_row(data: bytes | memoryview) -> StreamRow:
    """Return the row that the bytes hold, or raise Undecodable."""
    return decode_with(_STREAM_ROW, data, "a stream row")


def decode_with(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview, what: str) -> T:
    """Decode, turning every way in which MessagePack can fail into Undecodable."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise Undecodable(f"these bytes are not {what}: {error}") from None


def idempotency_key(request_token: str, config: BasinConfig | StreamConfig) -> bytes:
    """Return what a create leaves behind so that its repetition is known.

    The config counts as requested: no default of a basin or of the system is in it. Members that
    are not set are left out of the hash, so that a member added later changes no key of today.
    """
    if isinstance(config, BasinConfig):
        shape = msgspec.to_builtins(basin_config_shape(config))
        members = {name: value for name, value in shape.items() if value is not False}
    else:
        members = msgspec.to_builtins(stream_config_shape(config))
    return hashlib.blake2b(
        msgspec.json.encode(_without_nulls(members), order="sorted"),
        digest_size=IDEMPOTENCY_KEY_BYTES,
        key=request_token.encode(),
        person=b"bourn create 1",
    ).digest()


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: _without_nulls(member) for name, member in value.items() if member is not None
        }
    return value
