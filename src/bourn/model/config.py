"""What a basin and a stream can be told, and what holds where they were told nothing.

A member of a `StreamConfig` that is not set falls back to the basin's default, then to the
system's; the two members of `timestamping` do so one by one:

    member                        system default
    storage_class                 "express"
    retention_policy              Age(604,800 s)
    timestamping.mode             client-prefer
    timestamping.uncapped         false
    delete_on_empty.min_age_secs  0, which is off

A stream keeps the outcome (`ResolvedStreamConfig`), so that later changes of the basin's default
do not touch it. The structs are stored as MessagePack arrays in the order of their fields:
fields are only ever appended, with a default. JSON shapes are in `resource.py`.
"""

import enum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from bourn.limits import RETENTION_AGE_SECS_DEFAULT

T = TypeVar("T")

AgeSecs = Annotated[int, Meta(ge=1)]
MinAgeSecs = Annotated[int, Meta(ge=0)]


class TimestampMode(enum.StrEnum):
    """Whose timestamp a record gets."""

    CLIENT_PREFER = "client-prefer"
    CLIENT_REQUIRE = "client-require"
    ARRIVAL = "arrival"


class Cipher(enum.StrEnum):
    """The algorithms that encrypt records under the customer's key."""

    AEGIS_256 = "aegis-256"
    AES_256_GCM = "aes-256-gcm"


class Infinite(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Records stay until they are trimmed."""


class Age(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Records go when they are older than `secs`, which is at least 1."""

    secs: AgeSecs


RetentionPolicy = Age | Infinite


class Timestamping(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How timestamps are chosen, where None is not set."""

    mode: TimestampMode | None = None
    uncapped: bool | None = None


class ResolvedTimestamping(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How timestamps are chosen; `uncapped` lets them be ahead of arrival."""

    mode: TimestampMode = TimestampMode.CLIENT_PREFER
    uncapped: bool = False


class DeleteOnEmpty(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long after its last write an empty stream is deleted; 0 keeps it."""

    min_age_secs: MinAgeSecs = 0


class StreamConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream's config as asked for, or a basin's default: None is not set."""

    storage_class: str | None = None
    retention_policy: RetentionPolicy | None = None
    timestamping: Timestamping = Timestamping()
    delete_on_empty: DeleteOnEmpty | None = None


class ResolvedStreamConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream's config as it holds; without arguments, the system's defaults."""

    storage_class: str = "express"
    retention_policy: RetentionPolicy = Age(RETENTION_AGE_SECS_DEFAULT)
    timestamping: ResolvedTimestamping = ResolvedTimestamping()
    delete_on_empty: DeleteOnEmpty = DeleteOnEmpty()


class BasinConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What new streams of a basin start with, and whether data calls create them."""

    default_stream_config: StreamConfig = StreamConfig()
    stream_cipher: Cipher | None = None
    create_stream_on_append: bool = False
    create_stream_on_read: bool = False


SYSTEM_DEFAULT: Final = ResolvedStreamConfig()


def resolve(requested: StreamConfig, basin_default: StreamConfig) -> ResolvedStreamConfig:
    """Settle every member: as requested, else the basin's default, else the system's."""
    mine, basin, system = requested, basin_default, SYSTEM_DEFAULT
    return ResolvedStreamConfig(
        storage_class=_first(mine.storage_class, basin.storage_class, system.storage_class),
        retention_policy=_first(
            mine.retention_policy, basin.retention_policy, system.retention_policy
        ),
        timestamping=ResolvedTimestamping(
            mode=_first(mine.timestamping.mode, basin.timestamping.mode, system.timestamping.mode),
            uncapped=_first(
                mine.timestamping.uncapped,
                basin.timestamping.uncapped,
                system.timestamping.uncapped,
            ),
        ),
        delete_on_empty=_first(mine.delete_on_empty, basin.delete_on_empty, system.delete_on_empty),
    )


def as_requested(config: ResolvedStreamConfig) -> StreamConfig:
    """Return the request that resolves to `config` whatever the defaults are."""
    return StreamConfig(
        storage_class=config.storage_class,
        retention_policy=config.retention_policy,
        timestamping=Timestamping(config.timestamping.mode, config.timestamping.uncapped),
        delete_on_empty=config.delete_on_empty,
    )


def _first(requested: T | None, basin: T | None, system: T) -> T:
    if requested is not None:
        return requested
    return basin if basin is not None else system
