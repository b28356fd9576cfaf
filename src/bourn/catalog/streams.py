"""What becomes of a stream: one pure function per verb.

A verb that may create a stream looks at the basin first; one that only needs the stream (get
config, delete) answers for a missing basin as for a missing stream. Streams of a basin that is
being deleted can still be appended to, read and deleted, but not created or configured.
"""

import enum
from typing import NamedTuple

import msgspec

from bourn.catalog.changes import Decision, Provision, PutStream
from bourn.catalog.rows import BasinRow, StreamRow, idempotency_key
from bourn.errors import (
    BasinDeletionPending,
    BasinNotFound,
    ResourceAlreadyExists,
    StreamDeletionPending,
    StreamNotFound,
)
from bourn.model.config import ResolvedStreamConfig, StreamConfig, resolve
from bourn.model.instants import format_ms
from bourn.model.patch import StreamPatch, reconfigure_stream


class Lookup(NamedTuple):
    """What the catalog holds under the two names of a request, None where nothing."""

    basin_name: str
    basin: BasinRow | None
    stream_name: str
    stream: StreamRow | None


class AutoCreateOn(enum.Enum):
    """The data calls that may create the stream they name; the tail counts as a read."""

    APPEND = "append"
    READ = "read"


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as JSON shows it in lists and in answers to create and ensure."""

    name: str
    created_at: str
    deleted_at: str | None
    cipher: str | None


def stream_info(row: StreamRow) -> StreamInfo:
    """Return what JSON shows of a stream."""
    return StreamInfo(
        name=row.name,
        created_at=format_ms(row.created_at_ms),
        deleted_at=None if row.deleted_at_ms is None else format_ms(row.deleted_at_ms),
        cipher=row.cipher,
    )


def decide_create_stream(
    found: Lookup,
    config: StreamConfig,
    *,
    request_token: str | None,
    now_ms: int,
    new_id: int,
) -> Decision[StreamRow]:
    """Create a stream, or know the repetition of the request that created it."""
    basin = _open_basin(found)
    key = None if request_token is None else idempotency_key(request_token, config)
    if found.stream is None:
        return _create(basin, found.stream_name, config, key, now_ms, new_id)
    existing = _not_deleting(found.stream)
    if key is None or existing.idempotency_key != key:
        raise ResourceAlreadyExists(
            f"stream `{found.stream_name}` in basin `{found.basin_name}` already exists"
        )
    return Decision(existing, Provision.NOOP, None)


def decide_ensure_stream(
    found: Lookup, config: StreamConfig, *, now_ms: int, new_id: int
) -> Decision[StreamRow]:
    """Make the stream have exactly this config over today's defaults, creating it if need be."""
    basin = _open_basin(found)
    if found.stream is None:
        return _create(basin, found.stream_name, config, None, now_ms, new_id)
    existing = _not_deleting(found.stream)
    return _with_config(existing, resolve(config, basin.config.default_stream_config))


def decide_reconfigure_stream(found: Lookup, patch: StreamPatch) -> Decision[StreamRow]:
    """Change members of the stream's config; what is cleared takes today's defaults."""
    basin = _open_basin(found)
    existing = _not_deleting(_present(found))
    default = basin.config.default_stream_config
    return _with_config(existing, reconfigure_stream(existing.config, patch, default))


def decide_delete_stream(found: Lookup, now_ms: int) -> Decision[StreamRow]:
    """Begin the deletion of a stream; asking again while it goes on changes nothing."""
    row = _present(found)
    if row.deleted_at_ms is not None:
        return Decision(row, Provision.NOOP, None)
    row = msgspec.structs.replace(row, deleted_at_ms=now_ms)
    return Decision(row, Provision.UPDATED, PutStream(row))


def decide_auto_create(
    found: Lookup,
    call: AutoCreateOn,
    override: StreamConfig | None,
    *,
    now_ms: int,
    new_id: int,
) -> Decision[StreamRow]:
    """Return the stream that a data call works on, created where the basin says so.

    `override` is the config that the request carries for a stream it creates; an existing stream
    is not changed by it.
    """
    if found.stream is not None:
        return Decision(_not_deleting(found.stream), Provision.NOOP, None)
    if found.basin is None:
        raise BasinNotFound(found.basin_name)
    config = found.basin.config
    allowed = {
        AutoCreateOn.APPEND: config.create_stream_on_append,
        AutoCreateOn.READ: config.create_stream_on_read,
    }
    if not allowed[call]:
        raise StreamNotFound(found.basin_name, found.stream_name)
    basin = _open_basin(found)
    requested = StreamConfig() if override is None else override
    return _create(basin, found.stream_name, requested, None, now_ms, new_id)


def stream_config(found: Lookup) -> ResolvedStreamConfig:
    """Return the config to show."""
    return _not_deleting(_present(found)).config


def _create(
    basin: BasinRow,
    name: str,
    config: StreamConfig,
    key: bytes | None,
    now_ms: int,
    new_id: int,
) -> Decision[StreamRow]:
    row = StreamRow(
        id=new_id,
        basin_id=basin.id,
        name=name,
        config=resolve(config, basin.config.default_stream_config),
        cipher=basin.config.stream_cipher,
        created_at_ms=now_ms,
        idempotency_key=key,
    )
    return Decision(row, Provision.CREATED, PutStream(row))


def _with_config(row: StreamRow, config: ResolvedStreamConfig) -> Decision[StreamRow]:
    if config == row.config:
        return Decision(row, Provision.NOOP, None)
    row = msgspec.structs.replace(row, config=config)
    return Decision(row, Provision.UPDATED, PutStream(row))


def _open_basin(found: Lookup) -> BasinRow:
    if found.basin is None:
        raise BasinNotFound(found.basin_name)
    if found.basin.deleted_at_ms is not None:
        raise BasinDeletionPending(found.basin_name)
    return found.basin


def _present(found: Lookup) -> StreamRow:
    if found.stream is None:
        raise StreamNotFound(found.basin_name, found.stream_name)
    return found.stream


def _not_deleting(row: StreamRow) -> StreamRow:
    if row.deleted_at_ms is not None:
        raise StreamDeletionPending
    return row
