"""Bodies of the control plane: JSON requests to values, configs to JSON shapes.

    CreateBasin   {"basin", "config"?: BasinConfig, "location"?}    `scope` is an alias of location
    EnsureBasin   {"config"?: BasinConfig, "location"?}
    CreateStream  {"stream", "config"?: StreamConfig}
    BasinConfig   {"default_stream_config": StreamConfig | null, "stream_cipher": string | null,
                   "create_stream_on_append": bool, "create_stream_on_read": bool}
    StreamConfig  {"storage_class": string, "retention_policy": {"age": secs} | {"infinite": {}},
                   "timestamping": {"mode", "uncapped"}, "delete_on_empty": {"min_age_secs"}}

Every member of a config may be absent or null. In a whole config both mean "not set", except
that `"delete_on_empty": {}` sets 0; in a patch absent leaves and null clears. Members that we do
not know are ignored; a member given twice is refused. What has the wrong shape raises BadJson,
what has the right shape and cannot be meant raises Invalid, and the first wins over the second.
"""

import json
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from bourn.errors import BadHeader, BadJson, BadName, Invalid
from bourn.limits import CONTROL_BODY_BYTES_MAX, U64_MAX
from bourn.model import names
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    RetentionPolicy,
    StreamConfig,
)
from bourn.model.patch import (
    BasinPatch,
    DeleteOnEmptyPatch,
    StreamPatch,
    TimestampingPatch,
    patch_stream_config,
    reconfigure_basin,
)

STREAM_CONFIG_HEADER: Final = "s2-stream-config"

T = TypeVar("T")


class CreateBasin(msgspec.Struct, frozen=True):
    """Make a basin of a new name."""

    name: str
    config: BasinConfig = BasinConfig()
    location: str | None = None


class EnsureBasin(msgspec.Struct, frozen=True):
    """Make the named basin be like this."""

    config: BasinConfig = BasinConfig()
    location: str | None = None


class CreateStream(msgspec.Struct, frozen=True):
    """Make a stream of a new name."""

    name: str
    config: StreamConfig = StreamConfig()


class StreamConfigShape(msgspec.Struct, frozen=True):
    """A stream config or a patch of one, as its JSON is nested."""

    storage_class: str | UnsetType | None = UNSET
    retention_policy: dict[str, object] | UnsetType | None = UNSET
    timestamping: TimestampingPatch | UnsetType | None = UNSET
    delete_on_empty: DeleteOnEmptyPatch | UnsetType | None = UNSET


class BasinConfigShape(msgspec.Struct, frozen=True):
    """A basin config or a patch of one, as its JSON is nested."""

    default_stream_config: StreamConfigShape | UnsetType | None = UNSET
    stream_cipher: Cipher | UnsetType | None = UNSET
    create_stream_on_append: bool | UnsetType | None = UNSET
    create_stream_on_read: bool | UnsetType | None = UNSET


class _EnsureBasinShape(msgspec.Struct, frozen=True):
    config: BasinConfigShape | None = None
    location: str | None = None
    scope: str | None = None


class _CreateBasinShape(_EnsureBasinShape, frozen=True, kw_only=True):
    basin: str


class _CreateStreamShape(msgspec.Struct, frozen=True):
    stream: str
    config: StreamConfigShape | None = None


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise BadJson(f"duplicate field `{key}`")
        seen.add(key)


# msgspec checks the shape and takes the last of two members of a name; this one only counts names.
_MEMBERS: Final = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_int=str)
_CREATE_BASIN: Final = msgspec.json.Decoder(_CreateBasinShape)
_ENSURE_BASIN: Final = msgspec.json.Decoder(_EnsureBasinShape | None)
_BASIN_PATCH: Final = msgspec.json.Decoder(BasinConfigShape)
_CREATE_STREAM: Final = msgspec.json.Decoder(_CreateStreamShape)
_ENSURE_STREAM: Final = msgspec.json.Decoder(StreamConfigShape | None)
_STREAM_PATCH: Final = msgspec.json.Decoder(StreamConfigShape)


def decode_create_basin(body: bytes) -> CreateBasin:
    """Read the body of `POST /basins`."""
    shape = decode_json(_CREATE_BASIN, body)
    return CreateBasin(
        name=valid_name(names.basin_name, shape.basin),
        location=_location(shape),
        config=_checked_basin_config(shape.config),
    )


def decode_ensure_basin(body: bytes) -> EnsureBasin:
    """Read the body of `PUT /basins/{basin}`; an empty body and null ask for the defaults."""
    shape = (decode_json(_ENSURE_BASIN, body) if body else None) or _EnsureBasinShape()
    return EnsureBasin(location=_location(shape), config=_checked_basin_config(shape.config))


def decode_basin_patch(body: bytes) -> BasinPatch:
    """Read the body of `PATCH /basins/{basin}`."""
    patch = _basin_patch(decode_json(_BASIN_PATCH, body))
    if isinstance(patch.default_stream_config, StreamPatch):
        _check_retention(patch.default_stream_config.retention_policy)
    return patch


def decode_create_stream(body: bytes) -> CreateStream:
    """Read the body of `POST /streams`."""
    shape = decode_json(_CREATE_STREAM, body)
    name = valid_name(names.stream_name, shape.stream)
    return CreateStream(name, _checked_stream_config(shape.config))


def decode_stream_config(body: bytes) -> StreamConfig:
    """Read the body of `PUT /streams/{stream}`; an empty body and null ask for the defaults."""
    return _checked_stream_config(decode_json(_ENSURE_STREAM, body) if body else None)


def decode_stream_patch(body: bytes) -> StreamPatch:
    """Read the body of `PATCH /streams/{stream}`."""
    patch = _stream_patch(decode_json(_STREAM_PATCH, body))
    _check_retention(patch.retention_policy)
    return patch


def decode_stream_config_header(value: str) -> StreamConfig:
    """Read the header that configures a stream which this request may create."""
    try:
        return _checked_stream_config(decode_json(_STREAM_PATCH, value.encode("ascii")))
    except UnicodeEncodeError:
        raise BadHeader(f"Invalid header `{STREAM_CONFIG_HEADER}`: it is not ASCII") from None
    except (BadJson, Invalid) as error:
        text = f"Invalid header `{STREAM_CONFIG_HEADER}`: {error.message}"
        raise BadHeader(text) from None


def stream_config_shape(config: StreamConfig | ResolvedStreamConfig) -> StreamConfigShape:
    """Return what JSON shows of a stream config: all members, null where not set."""
    policy, timestamping = config.retention_policy, config.timestamping
    empty = config.delete_on_empty
    unset = timestamping.mode is None and timestamping.uncapped is None
    return StreamConfigShape(
        storage_class=config.storage_class,
        retention_policy=None if policy is None else _retention_shape(policy),
        timestamping=None
        if unset
        else TimestampingPatch(mode=timestamping.mode, uncapped=timestamping.uncapped),
        delete_on_empty=None if empty is None else DeleteOnEmptyPatch(empty.min_age_secs),
    )


def basin_config_shape(config: BasinConfig) -> BasinConfigShape:
    """Return what JSON shows of a basin config; a default that sets nothing is null."""
    default = config.default_stream_config
    return BasinConfigShape(
        default_stream_config=None if default == StreamConfig() else stream_config_shape(default),
        stream_cipher=config.stream_cipher,
        create_stream_on_append=config.create_stream_on_append,
        create_stream_on_read=config.create_stream_on_read,
    )


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Read a body of the decoder's shape; BadJson for another one, and for members given twice."""
    if len(body) > CONTROL_BODY_BYTES_MAX:
        raise BadJson(f"the body exceeds {CONTROL_BODY_BYTES_MAX} bytes")
    try:
        shape = decoder.decode(body)
        _MEMBERS.decode(body.decode())
    except RecursionError:
        raise BadJson("the JSON is nested too deeply") from None
    except ValueError as error:  # of msgspec, of json, and of text that is not UTF-8
        raise BadJson(str(error)) from None
    return shape


def _location(shape: _EnsureBasinShape) -> str | None:
    location, scope = shape.location, shape.scope
    if location is not None and scope is not None and location != scope:
        raise BadJson("`location` and its older name `scope` differ")
    name = scope if location is None else location
    return None if name is None else valid_name(names.location_name, name)


def valid_name(grammar: Callable[[str], str], value: str) -> str:
    """Return a name of a body; BadJson where it fails its grammar."""
    try:
        return grammar(value)
    except BadName as error:
        raise BadJson(error.message) from None


def _checked_basin_config(shape: BasinConfigShape | None) -> BasinConfig:
    if shape is None:
        return BasinConfig()
    config = reconfigure_basin(BasinConfig(), _basin_patch(shape))
    if isinstance(shape.default_stream_config, StreamConfigShape):
        default = _stream_config(shape.default_stream_config)
        _check_retention(default.retention_policy)
        config = msgspec.structs.replace(config, default_stream_config=default)
    return config


def _checked_stream_config(shape: StreamConfigShape | None) -> StreamConfig:
    config = StreamConfig() if shape is None else _stream_config(shape)
    _check_retention(config.retention_policy)
    return config


def _stream_config(shape: StreamConfigShape) -> StreamConfig:
    config = patch_stream_config(StreamConfig(), _stream_patch(shape))
    if isinstance(shape.delete_on_empty, DeleteOnEmptyPatch) and config.delete_on_empty is None:
        return msgspec.structs.replace(config, delete_on_empty=DeleteOnEmpty(0))
    return config


def _basin_patch(shape: BasinConfigShape) -> BasinPatch:
    default = shape.default_stream_config
    on_append, on_read = shape.create_stream_on_append, shape.create_stream_on_read
    return BasinPatch(
        default_stream_config=_stream_patch(default)
        if isinstance(default, StreamConfigShape)
        else default,
        stream_cipher=shape.stream_cipher,
        create_stream_on_append=UNSET if on_append is None else on_append,
        create_stream_on_read=UNSET if on_read is None else on_read,
    )


def _stream_patch(shape: StreamConfigShape) -> StreamPatch:
    policy, empty = shape.retention_policy, shape.delete_on_empty
    if isinstance(shape.storage_class, str):
        valid_name(names.storage_class, shape.storage_class)
    if isinstance(empty, DeleteOnEmptyPatch) and isinstance(empty.min_age_secs, int):
        _check_u64("min_age_secs", empty.min_age_secs)
    return StreamPatch(
        storage_class=shape.storage_class,
        retention_policy=_retention_policy(policy) if isinstance(policy, dict) else policy,
        timestamping=shape.timestamping,
        delete_on_empty=empty,
    )


def _retention_shape(policy: RetentionPolicy) -> dict[str, object]:
    return {"age": policy.secs} if isinstance(policy, Age) else {"infinite": {}}


def _retention_policy(shape: dict[str, object]) -> RetentionPolicy:
    match shape:
        case {"age": int(secs)} if len(shape) == 1 and not isinstance(secs, bool):
            return Age(_check_u64("age", secs))
        case {"infinite": dict()} if len(shape) == 1:
            return Infinite()
        case _:
            raise BadJson('retention_policy must be {"age": seconds} or {"infinite": {}}')


def _check_retention(policy: RetentionPolicy | UnsetType | None) -> None:
    if isinstance(policy, Age) and policy.secs == 0:
        raise Invalid("age must be greater than 0 seconds")


def _check_u64(what: str, value: int) -> int:
    if not 0 <= value <= U64_MAX:
        raise BadJson(f"{what} must be from 0 to {U64_MAX}")
    return value
