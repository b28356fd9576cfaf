"""Changes to configs, in three states: UNSET leaves a member, None clears it, a value sets it.

Nested objects are changed member by member, and None for one clears all its members. A cleared
member of a stream falls back as if it had never been set (`config.resolve`). The retention policy
is one value and is replaced whole. A basin's two flags cannot be cleared.
"""

from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from bourn.model.config import (
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    MinAgeSecs,
    ResolvedStreamConfig,
    RetentionPolicy,
    StreamConfig,
    Timestamping,
    TimestampMode,
    as_requested,
    resolve,
)

T = TypeVar("T")


class TimestampingPatch(msgspec.Struct, frozen=True):
    """A change of `timestamping`."""

    mode: TimestampMode | UnsetType | None = UNSET
    uncapped: bool | UnsetType | None = UNSET


class DeleteOnEmptyPatch(msgspec.Struct, frozen=True):
    """A change of `delete_on_empty`."""

    min_age_secs: MinAgeSecs | UnsetType | None = UNSET


class StreamPatch(msgspec.Struct, frozen=True):
    """A change of a stream's config, or of a basin's default for streams."""

    storage_class: str | UnsetType | None = UNSET
    retention_policy: RetentionPolicy | UnsetType | None = UNSET
    timestamping: TimestampingPatch | UnsetType | None = UNSET
    delete_on_empty: DeleteOnEmptyPatch | UnsetType | None = UNSET


class BasinPatch(msgspec.Struct, frozen=True):
    """A change of a basin's config."""

    default_stream_config: StreamPatch | UnsetType | None = UNSET
    stream_cipher: Cipher | UnsetType | None = UNSET
    create_stream_on_append: bool | UnsetType = UNSET
    create_stream_on_read: bool | UnsetType = UNSET


def patch_stream_config(config: StreamConfig, patch: StreamPatch) -> StreamConfig:
    """Return the config with the patch applied; nothing falls back yet."""
    policy = patch.retention_policy
    return StreamConfig(
        storage_class=_patched(config.storage_class, patch.storage_class),
        retention_policy=config.retention_policy if policy is UNSET else policy,
        timestamping=_patch_timestamping(config.timestamping, patch.timestamping),
        delete_on_empty=_patch_delete_on_empty(config.delete_on_empty, patch.delete_on_empty),
    )


def reconfigure_stream(
    stored: ResolvedStreamConfig, patch: StreamPatch, basin_default: StreamConfig
) -> ResolvedStreamConfig:
    """Return a stream's config after the patch: what it clears falls back to today's defaults."""
    return resolve(patch_stream_config(as_requested(stored), patch), basin_default)


def reconfigure_basin(stored: BasinConfig, patch: BasinPatch) -> BasinConfig:
    """Return a basin's config after the patch."""
    default = patch.default_stream_config
    if default is UNSET:
        default_stream_config = stored.default_stream_config
    elif default is None:
        default_stream_config = StreamConfig()
    else:
        default_stream_config = patch_stream_config(stored.default_stream_config, default)
    on_append, on_read = patch.create_stream_on_append, patch.create_stream_on_read
    return BasinConfig(
        default_stream_config=default_stream_config,
        stream_cipher=_patched(stored.stream_cipher, patch.stream_cipher),
        create_stream_on_append=stored.create_stream_on_append if on_append is UNSET else on_append,
        create_stream_on_read=stored.create_stream_on_read if on_read is UNSET else on_read,
    )


def _patched(value: T | None, change: T | UnsetType | None) -> T | None:
    return value if isinstance(change, UnsetType) else change


def _patch_timestamping(
    value: Timestamping, change: TimestampingPatch | UnsetType | None
) -> Timestamping:
    if change is UNSET:
        return value
    if change is None:
        return Timestamping()
    return Timestamping(
        mode=_patched(value.mode, change.mode), uncapped=_patched(value.uncapped, change.uncapped)
    )


def _patch_delete_on_empty(
    value: DeleteOnEmpty | None, change: DeleteOnEmptyPatch | UnsetType | None
) -> DeleteOnEmpty | None:
    if change is UNSET:
        return value
    if change is None:
        return None
    min_age_secs = change.min_age_secs
    if min_age_secs is UNSET:
        return value
    return None if min_age_secs is None else DeleteOnEmpty(min_age_secs)
