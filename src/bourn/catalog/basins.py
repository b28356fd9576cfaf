"""What becomes of a basin: one pure function per verb.

`existing` is the row of the basin's name, None where there is none. Refusals come in this order:
what is wrong with the request itself, a missing basin, one that is being deleted, then the rest.
"""

import msgspec

from bourn.catalog.changes import Decision, Provision, PutBasin
from bourn.catalog.rows import BasinRow, idempotency_key
from bourn.errors import BasinDeletionPending, BasinNotFound, Invalid, ResourceAlreadyExists
from bourn.model.config import BasinConfig
from bourn.model.instants import format_ms
from bourn.model.patch import BasinPatch, reconfigure_basin
from bourn.model.resource import CreateBasin, EnsureBasin


class BasinInfo(msgspec.Struct, frozen=True):
    """A basin as JSON shows it in lists and in answers to create and ensure."""

    name: str
    location: str | None
    created_at: str
    deleted_at: str | None
    state: str  # older clients read it; it says no more than deleted_at


def basin_info(row: BasinRow) -> BasinInfo:
    """Return what JSON shows of a basin."""
    deleted_at_ms = row.deleted_at_ms
    return BasinInfo(
        name=row.name,
        location=row.location,
        created_at=format_ms(row.created_at_ms),
        deleted_at=None if deleted_at_ms is None else format_ms(deleted_at_ms),
        state="active" if deleted_at_ms is None else "deleting",
    )


def decide_create_basin(
    existing: BasinRow | None,
    request: CreateBasin,
    *,
    request_token: str | None,
    location: str,
    now_ms: int,
    new_id: int,
) -> Decision[BasinRow]:
    """Create a basin, or know the repetition of the request that created it.

    `location` is the one that this server offers, which is also the default.
    """
    if request.location is not None and request.location != location:
        raise _unknown_location(request.location)
    key = None if request_token is None else idempotency_key(request_token, request.config)
    if existing is None:
        row = BasinRow(
            id=new_id,
            name=request.name,
            config=request.config,
            location=location,
            created_at_ms=now_ms,
            idempotency_key=key,
        )
        return Decision(row, Provision.CREATED, PutBasin(row))
    _refuse_deleting(existing)
    if key is None or existing.idempotency_key != key:
        raise ResourceAlreadyExists(f"basin `{request.name}` already exists")
    return Decision(existing, Provision.NOOP, None)


def decide_ensure_basin(
    existing: BasinRow | None,
    name: str,
    request: EnsureBasin,
    *,
    location: str,
    now_ms: int,
    new_id: int,
) -> Decision[BasinRow]:
    """Make the basin have exactly this config, creating it if need be."""
    if existing is None:
        return decide_create_basin(
            None,
            CreateBasin(name, request.config, request.location),
            request_token=None,
            location=location,
            now_ms=now_ms,
            new_id=new_id,
        )
    if request.location not in {None, location, existing.location}:
        raise _unknown_location(request.location)
    _refuse_deleting(existing)
    if request.location not in {None, existing.location}:
        raise Invalid(f"the location of basin `{name}` cannot be changed")
    return _with_config(existing, request.config)


def decide_reconfigure_basin(
    existing: BasinRow | None, name: str, patch: BasinPatch
) -> Decision[BasinRow]:
    """Change members of the basin's config; its streams keep theirs."""
    row = _present(existing, name)
    _refuse_deleting(row)
    return _with_config(row, reconfigure_basin(row.config, patch))


def decide_delete_basin(existing: BasinRow | None, name: str, now_ms: int) -> Decision[BasinRow]:
    """Begin the deletion of a basin; asking again while it goes on changes nothing."""
    row = _present(existing, name)
    if row.deleted_at_ms is not None:
        return Decision(row, Provision.NOOP, None)
    row = msgspec.structs.replace(row, deleted_at_ms=now_ms)
    return Decision(row, Provision.UPDATED, PutBasin(row))


def basin_config(existing: BasinRow | None, name: str) -> BasinConfig:
    """Return the config to show, also of a basin that is being deleted."""
    return _present(existing, name).config


def _present(existing: BasinRow | None, name: str) -> BasinRow:
    if existing is None:
        raise BasinNotFound(name)
    return existing


def _refuse_deleting(row: BasinRow) -> None:
    if row.deleted_at_ms is not None:
        raise BasinDeletionPending(row.name)


def _with_config(row: BasinRow, config: BasinConfig) -> Decision[BasinRow]:
    if config == row.config:
        return Decision(row, Provision.NOOP, None)
    row = msgspec.structs.replace(row, config=config)
    return Decision(row, Provision.UPDATED, PutBasin(row))


def _unknown_location(location: str | None) -> Invalid:
    return Invalid(f"location `{location}` is not known")
