"""The resource spec: a file that says which basins and streams there shall be.

    {"$schema"?: string,
     "basins"?: [{"name": string,
       "config"?: {"create_stream_on_append"?: bool, "create_stream_on_read"?: bool,
                   "stream_cipher"?: "aegis-256" | "aes-256-gcm",
                   "default_stream_config"?: StreamConfig},
       "streams"?: [{"name": string, "config"?: StreamConfig}]}]}

    StreamConfig  {"storage_class"?: string, "retention_policy"?: "infinite" | duration,
                   "timestamping"?: {"mode"?: string, "uncapped"?: bool},
                   "delete_on_empty"?: {"min_age"?: duration}}

Durations are text (`"7days"`, `"1h 30m"`), unlike in the API. An optional member may be null.
Unknown members are errors except at the top level; so is a member, basin or stream given twice.
Applying it means what PUT means: a member that is left out gets its default, and what is not
named is left alone.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from bourn.catalog.changes import Provision
from bourn.cli.failures import Misused
from bourn.cli.units import parse_duration_secs
from bourn.engine.node import Node
from bourn.errors import BadName
from bourn.model import names
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    RetentionPolicy,
    StreamConfig,
    Timestamping,
    TimestampMode,
)
from bourn.model.resource import EnsureBasin

SPEC_BYTES_MAX: Final = 64 << 20
INFINITE: Final = "infinite"

T = TypeVar("T")


class StreamSpec(NamedTuple):
    """A stream that shall be."""

    name: str
    config: StreamConfig


class BasinSpec(NamedTuple):
    """A basin that shall be, with its streams."""

    name: str
    config: BasinConfig
    streams: list[StreamSpec]


class Applied(NamedTuple):
    """What applying did to one resource."""

    name: str
    provision: Provision


class _Timestamping(msgspec.Struct, forbid_unknown_fields=True):
    mode: TimestampMode | None = None
    uncapped: bool | None = None


class _DeleteOnEmpty(msgspec.Struct, forbid_unknown_fields=True):
    min_age: str | None = None


class _StreamConfig(msgspec.Struct, forbid_unknown_fields=True):
    storage_class: str | None = None
    retention_policy: str | None = None
    timestamping: _Timestamping | None = None
    delete_on_empty: _DeleteOnEmpty | None = None


class _BasinConfig(msgspec.Struct, forbid_unknown_fields=True):
    create_stream_on_append: bool | None = None
    create_stream_on_read: bool | None = None
    stream_cipher: Cipher | None = None
    default_stream_config: _StreamConfig | None = None


class _Stream(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    config: _StreamConfig | None = None


class _Basin(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    config: _BasinConfig | None = None
    streams: list[_Stream] | None = None


class _Spec(msgspec.Struct):
    basins: list[_Basin] | None = None


def read_spec(path: Path) -> list[BasinSpec]:
    """Read a file; Misused, with the file and the place in it, where it is no spec."""
    try:
        with path.open("rb") as file:
            text = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or "unreadable"
        raise Misused(f"init_file: cannot read {path}: {why}: name another file") from None
    if len(text) > SPEC_BYTES_MAX:
        raise Misused(f"{path} is larger than {SPEC_BYTES_MAX} bytes: split it")
    try:
        return parse_spec(text)
    except ValueError as error:
        raise Misused(f"{path} is no resource spec: {error}") from None


def parse_spec(text: bytes) -> list[BasinSpec]:
    """Return what a spec says; ValueError where it is none."""
    try:
        shape = msgspec.json.decode(text, type=_Spec)
        json.loads(text, object_pairs_hook=_refuse_duplicates, parse_int=str)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    basins = [_basin(basin, f"$.basins[{at}]") for at, basin in enumerate(shape.basins or ())]
    _refuse_twice("basin", [basin.name for basin in basins])
    for basin in basins:
        _refuse_twice(f"stream of {basin.name}", [stream.name for stream in basin.streams])
    return basins


async def apply_spec(node: Node, basins: list[BasinSpec]) -> AsyncIterator[Applied]:
    """Make every basin, then each of its streams, be as the spec says."""
    for basin in basins:
        made = await node.ensure_basin(basin.name, EnsureBasin(basin.config))
        yield Applied(basin.name, made.provision)
        for stream in basin.streams:
            there = await node.ensure_stream(basin.name, stream.name, stream.config)
            yield Applied(f"{basin.name}/{stream.name}", there.provision)


def _basin(shape: _Basin, at: str) -> BasinSpec:
    config = shape.config or _BasinConfig()
    return BasinSpec(
        _at(f"{at}.name", names.basin_name, shape.name),
        BasinConfig(
            default_stream_config=_stream_config(
                config.default_stream_config, f"{at}.config.default_stream_config"
            ),
            stream_cipher=config.stream_cipher,
            create_stream_on_append=bool(config.create_stream_on_append),
            create_stream_on_read=bool(config.create_stream_on_read),
        ),
        [_stream(stream, f"{at}.streams[{n}]") for n, stream in enumerate(shape.streams or ())],
    )


def _stream(shape: _Stream, at: str) -> StreamSpec:
    name = _at(f"{at}.name", names.stream_name, shape.name)
    return StreamSpec(name, _stream_config(shape.config, f"{at}.config"))


def _stream_config(shape: _StreamConfig | None, at: str) -> StreamConfig:
    if shape is None:
        return StreamConfig()
    timestamping = shape.timestamping or _Timestamping()
    policy, empty, storage = shape.retention_policy, shape.delete_on_empty, shape.storage_class
    return StreamConfig(
        storage_class=None
        if storage is None
        else _at(f"{at}.storage_class", names.storage_class, storage),
        retention_policy=None
        if policy is None
        else _at(f"{at}.retention_policy", parse_retention, policy),
        timestamping=Timestamping(timestamping.mode, timestamping.uncapped),
        delete_on_empty=None
        if empty is None
        else DeleteOnEmpty(
            _at(f"{at}.delete_on_empty.min_age", parse_duration_secs, empty.min_age or "0s")
        ),
    )


def parse_retention(text: str) -> RetentionPolicy:
    """Return how long records stay: `infinite`, or a duration of at least a second."""
    if text == INFINITE:
        return Infinite()
    seconds = parse_duration_secs(text)
    if not seconds:
        raise ValueError("retention must be greater than 0 seconds, or infinite")
    return Age(seconds)


def _at(place: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except BadName as error:
        raise ValueError(f"{error.message} - at `{place}`") from None
    except ValueError as error:
        raise ValueError(f"{error} - at `{place}`") from None


def _refuse_twice(what: str, given: list[str]) -> None:
    for name, count in Counter(given).items():
        if count > 1:
            raise ValueError(f"{what} {name!r} is there {count} times: keep one")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    counts = Counter(key for key, _ in pairs)
    for key, count in counts.items():
        if count > 1:
            raise ValueError(f"member {key!r} is there {count} times in one object: keep one")
