"""Streams: every outcome of create, ensure, reconfigure, delete and of a first data call."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.changes import Decision, Provision, PutStream
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.catalog.streams import (
    AutoCreateOn,
    Lookup,
    decide_auto_create,
    decide_create_stream,
    decide_delete_stream,
    decide_ensure_stream,
    decide_reconfigure_stream,
    stream_config,
    stream_info,
)
from bourn.errors import (
    BasinDeletionPending,
    BasinNotFound,
    BournError,
    ResourceAlreadyExists,
    StreamDeletionPending,
    StreamNotFound,
)
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    StreamConfig,
    resolve,
)
from bourn.model.patch import StreamPatch
from bourn.model.resource import decode_stream_patch
from tests.catalog.samples import NOW_MS, stream_rows
from tests.model.configs import resolved_configs, stream_configs

DEFAULT = StreamConfig(storage_class="standard", retention_policy=Age(60))
BASIN = BasinRow(4, "my-basin", BasinConfig(DEFAULT, Cipher.AEGIS_256), "local", NOW_MS)
DYING = msgspec.structs.replace(BASIN, deleted_at_ms=NOW_MS)
ASKED = StreamConfig(retention_policy=Infinite())
RESOLVED = ResolvedStreamConfig(storage_class="standard", retention_policy=Infinite())
STREAM = StreamRow(7, 4, "s", RESOLVED, Cipher.AEGIS_256, NOW_MS)
GOING = msgspec.structs.replace(STREAM, deleted_at_ms=NOW_MS)

NO_CHANGE = StreamPatch()

Verb = Callable[[Lookup], object]


def at(stream: StreamRow | None, basin: BasinRow | None = BASIN) -> Lookup:
    return Lookup("my-basin", basin, "s", stream)


def create(
    found: Lookup, config: StreamConfig = ASKED, token: str | None = None
) -> Decision[StreamRow]:
    return decide_create_stream(found, config, request_token=token, now_ms=NOW_MS, new_id=7)


def ensure(found: Lookup, config: StreamConfig = ASKED) -> Decision[StreamRow]:
    return decide_ensure_stream(found, config, now_ms=NOW_MS, new_id=7)


def patch(found: Lookup, change: StreamPatch = NO_CHANGE) -> Decision[StreamRow]:
    return decide_reconfigure_stream(found, change)


def delete(found: Lookup) -> Decision[StreamRow]:
    return decide_delete_stream(found, NOW_MS)


def touch(
    found: Lookup, call: AutoCreateOn = AutoCreateOn.APPEND, override: StreamConfig | None = None
) -> Decision[StreamRow]:
    return decide_auto_create(found, call, override, now_ms=NOW_MS, new_id=7)


def test_creating_an_absent_stream_resolves_its_config_and_copies_the_cipher() -> None:
    assert create(at(None)) == Decision(STREAM, Provision.CREATED, PutStream(STREAM))


def test_creating_in_a_basin_without_a_cipher_makes_a_plain_stream() -> None:
    plain = msgspec.structs.replace(BASIN, config=BasinConfig())
    row = create(at(None, plain), StreamConfig()).row
    assert row.cipher is None
    assert row.config == ResolvedStreamConfig()


def test_repeating_a_create_with_its_token_answers_as_the_first_time() -> None:
    row = create(at(None), token="t").row
    again = decide_create_stream(at(row), ASKED, request_token="t", now_ms=NOW_MS + 1_000, new_id=8)
    assert again == Decision(row, Provision.NOOP, None)


@pytest.mark.parametrize(
    ("first", "second", "config"),
    [
        (None, None, ASKED),
        (None, "t", ASKED),
        ("t", None, ASKED),
        ("t", "u", ASKED),
        ("t", "t", StreamConfig()),
        ("t", "t", StreamConfig(storage_class="standard", retention_policy=Infinite())),
    ],
)
def test_any_other_create_of_an_existing_stream_is_refused(
    first: str | None, second: str | None, config: StreamConfig
) -> None:
    row = create(at(None), token=first).row
    text = r"^stream `s` in basin `my-basin` already exists$"
    with pytest.raises(ResourceAlreadyExists, match=text):
        create(at(row), config, token=second)


def test_a_create_is_known_again_after_the_basins_default_has_changed() -> None:
    row = create(at(None), token="t").row
    other = msgspec.structs.replace(BASIN, config=BasinConfig())
    assert create(at(row, other), token="t") == Decision(row, Provision.NOOP, None)


def test_the_token_still_counts_after_ensure_and_reconfigure() -> None:
    row = create(at(None), token="t").row
    row = ensure(at(row), StreamConfig()).row
    row = patch(at(row), StreamPatch(storage_class="express")).row
    assert row.config != RESOLVED
    assert create(at(row), token="t") == Decision(row, Provision.NOOP, None)


@pytest.mark.parametrize("make", [ensure, create])
def test_a_stream_made_without_a_token_can_never_be_replayed(
    make: Callable[[Lookup], Decision[StreamRow]],
) -> None:
    row = make(at(None)).row
    for token in (None, "", "t"):
        with pytest.raises(ResourceAlreadyExists):
            create(at(row), token=token)


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (create, BasinNotFound),
        (ensure, BasinNotFound),
        (patch, BasinNotFound),
        (touch, BasinNotFound),
        (delete, StreamNotFound),
        (stream_config, StreamNotFound),
    ],
)
def test_a_missing_basin_is_named_by_each_verb_in_its_way(
    verb: Verb, error: type[BournError]
) -> None:
    with pytest.raises(error):
        verb(at(None, None))


@pytest.mark.parametrize("verb", [create, ensure, patch])
@pytest.mark.parametrize("stream", [None, STREAM, GOING])
def test_nothing_is_made_or_configured_in_a_basin_that_is_being_deleted(
    verb: Verb, stream: StreamRow | None
) -> None:
    with pytest.raises(BasinDeletionPending, match=r"^basin `my-basin` is being deleted$"):
        verb(at(stream, DYING))


def test_streams_of_a_basin_that_is_being_deleted_stay_usable_until_they_are_marked() -> None:
    assert touch(at(STREAM, DYING)).row is STREAM
    assert stream_config(at(STREAM, DYING)) == RESOLVED
    assert delete(at(STREAM, DYING)).provision is Provision.UPDATED


@pytest.mark.parametrize("verb", [create, ensure, patch, touch, stream_config])
def test_a_stream_that_is_being_deleted_refuses_everything_but_deletion(verb: Verb) -> None:
    with pytest.raises(StreamDeletionPending, match=r"^stream deletion pending$"):
        verb(at(GOING))


@pytest.mark.parametrize("verb", [patch, delete, stream_config, touch])
def test_a_missing_stream_is_not_found(verb: Verb) -> None:
    with pytest.raises(StreamNotFound, match=r"^stream `s` in basin `my-basin` not found$"):
        verb(at(None))


def test_ensuring_an_absent_stream_creates_it() -> None:
    assert ensure(at(None)) == Decision(STREAM, Provision.CREATED, PutStream(STREAM))


def test_ensuring_what_holds_already_writes_nothing() -> None:
    assert ensure(at(STREAM)) == Decision(STREAM, Provision.NOOP, None)
    spelled_out = StreamConfig(storage_class="standard", retention_policy=Infinite())
    assert ensure(at(STREAM), spelled_out).provision is Provision.NOOP


def test_ensuring_another_config_replaces_it_over_the_defaults_of_now() -> None:
    row = create(at(None), token="t").row
    basin = msgspec.structs.replace(
        BASIN, config=BasinConfig(StreamConfig(delete_on_empty=DeleteOnEmpty(5)))
    )
    wanted = ResolvedStreamConfig(delete_on_empty=DeleteOnEmpty(5))
    updated = msgspec.structs.replace(row, config=wanted)
    decision = ensure(at(row, basin), StreamConfig())
    assert decision == Decision(updated, Provision.UPDATED, PutStream(updated))
    assert decision.row.cipher is Cipher.AEGIS_256


@given(st.none() | stream_rows, stream_configs, stream_configs)
def test_ensuring_twice_does_nothing_the_second_time(
    existing: StreamRow | None, config: StreamConfig, default: StreamConfig
) -> None:
    if existing is not None:
        existing = msgspec.structs.replace(existing, deleted_at_ms=None)
    basin = msgspec.structs.replace(BASIN, config=BasinConfig(default))
    first = ensure(at(existing, basin), config)
    assert first.row.config == resolve(config, default)
    assert ensure(at(first.row, basin), config) == Decision(first.row, Provision.NOOP, None)


def test_reconfiguring_changes_what_the_patch_names_and_clears_to_the_defaults_of_now() -> None:
    change = decode_stream_patch(b'{"retention_policy":null,"delete_on_empty":{"min_age_secs":9}}')
    wanted = ResolvedStreamConfig(
        storage_class="standard", retention_policy=Age(60), delete_on_empty=DeleteOnEmpty(9)
    )
    updated = msgspec.structs.replace(STREAM, config=wanted)
    assert patch(at(STREAM), change) == Decision(updated, Provision.UPDATED, PutStream(updated))


@given(resolved_configs)
def test_an_empty_patch_writes_nothing(config: ResolvedStreamConfig) -> None:
    row = msgspec.structs.replace(STREAM, config=config)
    assert patch(at(row)) == Decision(row, Provision.NOOP, None)


def test_deleting_marks_the_stream_once() -> None:
    marked = msgspec.structs.replace(STREAM, deleted_at_ms=NOW_MS + 9)
    decision = decide_delete_stream(at(STREAM), NOW_MS + 9)
    assert decision == Decision(marked, Provision.UPDATED, PutStream(marked))
    assert decide_delete_stream(at(marked), NOW_MS + 99) == Decision(marked, Provision.NOOP, None)


@pytest.mark.parametrize("on_append", [False, True])
@pytest.mark.parametrize("on_read", [False, True])
@pytest.mark.parametrize("call", AutoCreateOn)
def test_a_data_call_creates_a_missing_stream_exactly_if_its_flag_is_on(
    call: AutoCreateOn, on_append: bool, on_read: bool
) -> None:
    config = BasinConfig(
        DEFAULT,
        Cipher.AEGIS_256,
        create_stream_on_append=on_append,
        create_stream_on_read=on_read,
    )
    basin = msgspec.structs.replace(BASIN, config=config)
    if on_append if call is AutoCreateOn.APPEND else on_read:
        row = msgspec.structs.replace(STREAM, config=resolve(StreamConfig(), DEFAULT))
        assert touch(at(None, basin), call) == Decision(row, Provision.CREATED, PutStream(row))
    else:
        with pytest.raises(StreamNotFound):
            touch(at(None, basin), call)


AUTO = msgspec.structs.replace(
    BASIN, config=BasinConfig(DEFAULT, create_stream_on_append=True, create_stream_on_read=True)
)


@given(st.sampled_from(AutoCreateOn), stream_configs)
def test_a_config_in_the_request_wins_over_the_basins_default(
    call: AutoCreateOn, override: StreamConfig
) -> None:
    row = touch(at(None, AUTO), call, override).row
    assert row.config == resolve(override, DEFAULT)
    assert row.idempotency_key is None


def test_a_config_in_the_request_does_not_change_an_existing_stream() -> None:
    override = StreamConfig(retention_policy=Age(1))
    assert touch(at(STREAM, AUTO), override=override) == Decision(STREAM, Provision.NOOP, None)


def test_nothing_is_auto_created_in_a_basin_that_is_being_deleted() -> None:
    dying = msgspec.structs.replace(AUTO, deleted_at_ms=NOW_MS)
    with pytest.raises(BasinDeletionPending):
        touch(at(None, dying))
    with pytest.raises(StreamNotFound):
        touch(at(None, DYING))  # its flags are off: the deletion is not what stands in the way


def test_the_info_of_a_stream_names_its_cipher_and_its_deletion() -> None:
    assert msgspec.json.encode(stream_info(STREAM)) == (
        b'{"name":"s","created_at":"2023-11-14T22:13:20.123Z","deleted_at":null,'
        b'"cipher":"aegis-256"}'
    )
    plain = msgspec.structs.replace(GOING, cipher=None, deleted_at_ms=NOW_MS + 877)
    assert msgspec.json.encode(stream_info(plain)) == (
        b'{"name":"s","created_at":"2023-11-14T22:13:20.123Z",'
        b'"deleted_at":"2023-11-14T22:13:21Z","cipher":null}'
    )
