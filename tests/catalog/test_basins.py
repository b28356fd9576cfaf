"""Basins: every outcome of create, ensure, reconfigure and delete."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.basins import (
    basin_config,
    basin_info,
    decide_create_basin,
    decide_delete_basin,
    decide_ensure_basin,
    decide_reconfigure_basin,
)
from bourn.catalog.changes import Decision, Provision, PutBasin
from bourn.catalog.rows import BasinRow
from bourn.errors import BasinDeletionPending, BasinNotFound, Invalid, ResourceAlreadyExists
from bourn.model.config import Age, BasinConfig, Cipher, StreamConfig
from bourn.model.patch import BasinPatch
from bourn.model.resource import CreateBasin, EnsureBasin, decode_basin_patch
from tests.catalog.samples import NOW_MS, basin_rows
from tests.model.configs import basin_configs

NAME = "my-basin"
CUSTOM = BasinConfig(
    StreamConfig(retention_policy=Age(60)), Cipher.AEGIS_256, create_stream_on_append=True
)
tokens = st.none() | st.sampled_from(["", "t", "u"])


def create(
    existing: BasinRow | None = None,
    config: BasinConfig = CUSTOM,
    token: str | None = None,
    asked: str | None = None,
    location: str = "local",
    at_ms: int = NOW_MS,
    new_id: int = 1,
) -> Decision[BasinRow]:
    return decide_create_basin(
        existing,
        CreateBasin(NAME, config, asked),
        request_token=token,
        location=location,
        now_ms=at_ms,
        new_id=new_id,
    )


def ensure(
    existing: BasinRow | None = None,
    config: BasinConfig = CUSTOM,
    asked: str | None = None,
    location: str = "local",
    at_ms: int = NOW_MS + 5,
) -> Decision[BasinRow]:
    request = EnsureBasin(config, asked)
    return decide_ensure_basin(existing, NAME, request, location=location, now_ms=at_ms, new_id=2)


def deleting(row: BasinRow) -> BasinRow:
    return decide_delete_basin(row, NAME, NOW_MS + 9).row


def test_creating_an_absent_basin_makes_its_row() -> None:
    row = BasinRow(1, NAME, CUSTOM, "local", NOW_MS)
    assert create() == Decision(row, Provision.CREATED, PutBasin(row))


def test_creating_a_basin_that_is_being_deleted_is_refused() -> None:
    row = create(token="t").row
    with pytest.raises(BasinDeletionPending, match=r"^basin `my-basin` is being deleted$"):
        create(deleting(row), token="t")


def test_repeating_a_create_with_its_token_answers_as_the_first_time() -> None:
    row = create(token="t").row
    again = create(row, token="t", at_ms=NOW_MS + 1_000, new_id=2)
    assert again == Decision(row, Provision.NOOP, None)


def test_an_empty_token_is_a_token() -> None:
    row = create(token="").row
    assert create(row, token="").provision is Provision.NOOP


@pytest.mark.parametrize(
    ("first", "second", "config"),
    [
        (None, None, CUSTOM),
        (None, "t", CUSTOM),
        ("t", None, CUSTOM),
        ("t", "u", CUSTOM),
        ("t", "t", BasinConfig()),
        ("", None, CUSTOM),
    ],
)
def test_any_other_create_of_an_existing_basin_is_refused(
    first: str | None, second: str | None, config: BasinConfig
) -> None:
    row = create(token=first).row
    with pytest.raises(ResourceAlreadyExists, match=r"^basin `my-basin` already exists$"):
        create(row, token=second, config=config)


@given(basin_configs, basin_configs, tokens, tokens)
def test_a_create_is_repeated_exactly_with_its_own_token_and_config(
    first: BasinConfig, second: BasinConfig, token: str | None, other: str | None
) -> None:
    row = create(config=first, token=token).row
    if token is not None and token == other and first == second:
        assert create(row, config=second, token=other).row is row
    else:
        with pytest.raises(ResourceAlreadyExists):
            create(row, config=second, token=other)


def test_the_token_still_counts_after_ensure_and_reconfigure() -> None:
    row = create(token="t").row
    row = ensure(row, config=BasinConfig()).row
    row = decide_reconfigure_basin(row, NAME, BasinPatch(create_stream_on_read=True)).row
    again = create(row, token="t")
    assert again == Decision(row, Provision.NOOP, None)
    assert again.row.config == BasinConfig(create_stream_on_read=True)
    with pytest.raises(ResourceAlreadyExists):
        create(row, token="t", config=row.config)


def test_a_basin_made_by_ensure_can_never_be_replayed_by_create() -> None:
    row = ensure().row
    for token in (None, "", "t"):
        with pytest.raises(ResourceAlreadyExists):
            create(row, token=token)


def test_a_basin_gets_the_servers_location_asked_for_or_not() -> None:
    assert create(location="aws:eu-north-1").row.location == "aws:eu-north-1"
    assert create(asked="local").row.location == "local"


def test_an_unknown_location_is_invalid_whatever_exists() -> None:
    row = create(token="t").row
    for existing in (None, row, deleting(row)):
        with pytest.raises(Invalid, match="location `mars`"):
            create(existing, token="t", asked="mars")
        with pytest.raises(Invalid, match="location `mars`"):
            ensure(existing, asked="mars")


def test_ensuring_an_absent_basin_creates_it() -> None:
    row = BasinRow(2, NAME, CUSTOM, "local", NOW_MS + 5)
    assert ensure() == Decision(row, Provision.CREATED, PutBasin(row))


def test_ensuring_what_holds_already_writes_nothing() -> None:
    row = create(token="t").row
    assert ensure(row) == Decision(row, Provision.NOOP, None)


def test_ensuring_another_config_replaces_it_whole_and_keeps_the_rest() -> None:
    row = create(token="t").row
    wanted = BasinConfig(create_stream_on_read=True)
    updated = msgspec.structs.replace(row, config=wanted)
    assert ensure(row, config=wanted) == Decision(updated, Provision.UPDATED, PutBasin(updated))
    assert ensure(row, config=BasinConfig()).row.config == BasinConfig()


def test_ensuring_a_basin_that_is_being_deleted_is_refused() -> None:
    with pytest.raises(BasinDeletionPending):
        ensure(deleting(create().row))


def test_ensuring_may_name_the_basins_own_location_and_no_other() -> None:
    row = create(location="aws:us-east-1").row
    assert ensure(row, asked="aws:us-east-1").provision is Provision.NOOP
    with pytest.raises(Invalid, match="cannot be changed"):
        ensure(row, asked="local")


@given(st.none() | basin_rows, basin_configs)
def test_ensuring_twice_does_nothing_the_second_time(
    existing: BasinRow | None, config: BasinConfig
) -> None:
    if existing is not None:
        existing = msgspec.structs.replace(existing, deleted_at_ms=None)
    first = ensure(existing, config=config)
    assert first.row.config == config
    assert ensure(first.row, config=config) == Decision(first.row, Provision.NOOP, None)


def test_reconfiguring_changes_only_what_the_patch_names() -> None:
    row = create(token="t").row
    patch = decode_basin_patch(b'{"stream_cipher":null,"default_stream_config":null}')
    updated = msgspec.structs.replace(row, config=BasinConfig(create_stream_on_append=True))
    decision = decide_reconfigure_basin(row, NAME, patch)
    assert decision == Decision(updated, Provision.UPDATED, PutBasin(updated))


@given(basin_rows)
def test_an_empty_patch_writes_nothing(row: BasinRow) -> None:
    row = msgspec.structs.replace(row, deleted_at_ms=None)
    assert decide_reconfigure_basin(row, row.name, BasinPatch()) == Decision(
        row, Provision.NOOP, None
    )


def test_reconfiguring_needs_a_basin_that_stays() -> None:
    with pytest.raises(BasinNotFound, match=r"^basin `my-basin` not found$"):
        decide_reconfigure_basin(None, NAME, BasinPatch())
    with pytest.raises(BasinDeletionPending):
        decide_reconfigure_basin(deleting(create().row), NAME, BasinPatch())


def test_deleting_marks_the_basin_once() -> None:
    row = create(token="t").row
    marked = msgspec.structs.replace(row, deleted_at_ms=NOW_MS + 9)
    decision = decide_delete_basin(row, NAME, NOW_MS + 9)
    assert decision == Decision(marked, Provision.UPDATED, PutBasin(marked))
    assert decide_delete_basin(marked, NAME, NOW_MS + 99) == Decision(marked, Provision.NOOP, None)


def test_deleting_what_is_not_there_is_not_found() -> None:
    with pytest.raises(BasinNotFound):
        decide_delete_basin(None, NAME, NOW_MS)


def test_the_config_shows_also_while_the_basin_is_being_deleted() -> None:
    row = create().row
    assert basin_config(row, NAME) == CUSTOM
    assert basin_config(deleting(row), NAME) == CUSTOM
    with pytest.raises(BasinNotFound):
        basin_config(None, NAME)


def test_the_info_of_a_basin_says_whether_it_is_being_deleted() -> None:
    row = create().row
    assert msgspec.json.encode(basin_info(row)) == (
        b'{"name":"my-basin","location":"local","created_at":"2023-11-14T22:13:20.123Z",'
        b'"deleted_at":null,"state":"active"}'
    )
    assert msgspec.json.encode(basin_info(deleting(row))) == (
        b'{"name":"my-basin","location":"local","created_at":"2023-11-14T22:13:20.123Z",'
        b'"deleted_at":"2023-11-14T22:13:20.132Z","state":"deleting"}'
    )


@given(basin_rows)
def test_every_row_has_an_info(row: BasinRow) -> None:
    info = basin_info(row)
    assert (info.deleted_at is None) == (info.state == "active") == (row.deleted_at_ms is None)
