"""Rows: their bytes, what is shared between them, and the key of a create."""

import hashlib
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.rows import (
    BasinRow,
    ConfigPool,
    StreamRow,
    decode_basin_row,
    decode_stream_row,
    encode_basin_row,
    encode_stream_row,
    idempotency_key,
)
from bourn.errors import Undecodable
from bourn.limits import CONFIG_POOL_ENTRIES_MAX
from bourn.model.config import (
    Age,
    BasinConfig,
    DeleteOnEmpty,
    ResolvedStreamConfig,
    StreamConfig,
    Timestamping,
)
from bourn.model.resource import decode_ensure_basin, decode_stream_config
from tests.catalog.samples import NOW_MS, basin_rows, stream_rows
from tests.model.configs import basin_configs, stream_configs

ROW = StreamRow(7, 1, "events", ResolvedStreamConfig(), cipher=None, created_at_ms=NOW_MS)


@given(basin_rows)
def test_a_basin_row_survives_its_bytes(row: BasinRow) -> None:
    assert decode_basin_row(encode_basin_row(row)) == row


@given(stream_rows)
def test_a_stream_row_survives_its_bytes(row: StreamRow) -> None:
    assert decode_stream_row(memoryview(encode_stream_row(row))) == row


@given(stream_rows, st.data())
def test_a_truncated_row_is_undecodable(row: StreamRow, data: st.DataObject) -> None:
    encoded = encode_stream_row(row)
    with pytest.raises(Undecodable):
        decode_stream_row(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.binary(max_size=200))
def test_random_bytes_are_a_row_or_undecodable(data: bytes) -> None:
    with suppress(Undecodable):
        decode_basin_row(data)
    with suppress(Undecodable):
        decode_stream_row(data)


@given(stream_rows, basin_rows, st.data())
def test_altered_bytes_are_a_row_or_undecodable(
    stream: StreamRow, basin: BasinRow, data: st.DataObject
) -> None:
    altered = bytearray(encode_stream_row(stream))
    altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Undecodable):
        assert isinstance(decode_stream_row(bytes(altered)), StreamRow)
    altered = bytearray(encode_basin_row(basin))
    altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Undecodable):
        assert isinstance(decode_basin_row(bytes(altered)), BasinRow)


CONFIG = ["express", [1, 604_800], ["client-prefer", False], [0]]


@pytest.mark.parametrize(
    "fields",
    [
        [-1, 1, "s", CONFIG, None, 0],
        [1, 1, "", CONFIG, None, 0],
        [1, 1, "x" * 513, CONFIG, None, 0],
        [1, 1, "s", CONFIG, "rot13", 0],
        [1, 1, "s", CONFIG, None, -1],
        [1, 1, "s", CONFIG, None, 253_402_300_800_000],
        [1, 1, "s", CONFIG, None, 0, None, b"short"],
        [1, 1, "s", ["express", [1, 0], ["client-prefer", False], [0]], None, 0],
        [1, 1, "s", ["express", [2], ["client-prefer", False], [0]], None, 0],
        [1, 1, "s", ["express", [0], ["client-prefer", False], [-1]], None, 0],
        [1, 1, "s", ["express", [0], ["server", False], [0]], None, 0],
        [1, 1, "s", CONFIG, None],
        {"id": 1},
        None,
    ],
)
def test_a_row_of_impossible_values_is_undecodable(fields: object) -> None:
    with pytest.raises(Undecodable):
        decode_stream_row(msgspec.msgpack.encode(fields))


def test_the_values_around_the_impossible_ones_decode() -> None:
    row = decode_stream_row(msgspec.msgpack.encode([1, 1, "s", CONFIG, None, 0]))
    assert row == StreamRow(1, 1, "s", ResolvedStreamConfig(), None, 0)


def test_nesting_without_end_is_undecodable() -> None:
    deep = msgspec.Raw(b"\x91" * 100_000 + b"\xc0")
    fields = [1, 1, "s", CONFIG, None, 0, None, None, deep]
    with pytest.raises(Undecodable):
        decode_stream_row(msgspec.msgpack.encode(fields))


def test_rows_of_equal_configs_share_one() -> None:
    pool = ConfigPool()
    rows = [pool.share(decode_stream_row(encode_stream_row(ROW))) for _ in range(3)]
    assert rows == [ROW] * 3
    assert rows[0].config is rows[1].config
    assert rows[1].config is rows[2].config
    assert len(pool) == 1


@given(st.lists(stream_rows, max_size=8))
def test_sharing_changes_no_row(rows: list[StreamRow]) -> None:
    pool = ConfigPool()
    shared = [pool.share(row) for row in rows]
    assert shared == rows
    assert len({id(row.config) for row in shared}) == len({row.config for row in rows})


def test_the_pool_stays_bounded_and_keeps_sharing() -> None:
    pool = ConfigPool()
    for secs in range(1, 2 * CONFIG_POOL_ENTRIES_MAX + 2):
        pool.intern(ResolvedStreamConfig(retention_policy=Age(secs)))
        assert len(pool) <= CONFIG_POOL_ENTRIES_MAX
    assert pool.intern(ResolvedStreamConfig()) is pool.intern(ResolvedStreamConfig())


def test_keys_of_creates_are_what_they_have_always_been() -> None:
    full = decode_stream_config(
        b'{"storage_class":"standard","retention_policy":{"infinite":{}},'
        b'"timestamping":{"mode":"arrival","uncapped":false},"delete_on_empty":{}}'
    )
    basin = decode_ensure_basin(
        b'{"config":{"stream_cipher":"aegis-256","create_stream_on_read":true,'
        b'"default_stream_config":{"retention_policy":{"age":60}}}}'
    ).config
    for token, config, canonical in (
        ("", StreamConfig(), b"{}"),
        (
            "token-1",
            full,
            (
                b'{"delete_on_empty":{"min_age_secs":0},"retention_policy":{"infinite":{}},'
                b'"storage_class":"standard","timestamping":{"mode":"arrival","uncapped":false}}'
            ),
        ),
        (
            "token-1",
            basin,
            (
                b'{"create_stream_on_read":true,"default_stream_config":'
                b'{"retention_policy":{"age":60}},"stream_cipher":"aegis-256"}'
            ),
        ),
    ):
        digest = hashlib.blake2b(
            canonical, key=token.encode(), digest_size=16, person=b"bourn create 1"
        )
        assert idempotency_key(token, config) == digest.digest()


@given(st.lists(stream_configs | basin_configs, min_size=2, max_size=2), st.data())
def test_keys_differ_exactly_where_the_token_or_the_requested_config_differs(
    configs: list[StreamConfig | BasinConfig], data: st.DataObject
) -> None:
    tokens = [data.draw(st.sampled_from(["", "a", "b", "a" * 36])) for _ in configs]
    keys = [idempotency_key(t, c) for t, c in zip(tokens, configs, strict=True)]
    if type(configs[0]) is type(configs[1]):
        assert (keys[0] == keys[1]) == (tokens[0] == tokens[1] and configs[0] == configs[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (StreamConfig(), StreamConfig(delete_on_empty=DeleteOnEmpty(0))),
        (StreamConfig(), StreamConfig(timestamping=Timestamping(uncapped=False))),
        (StreamConfig(), StreamConfig(retention_policy=Age(604_800))),
        (StreamConfig(), StreamConfig(storage_class="express")),
    ],
)
def test_asking_for_the_default_is_not_the_same_as_not_asking(
    one: StreamConfig, other: StreamConfig
) -> None:
    assert idempotency_key("t", one) != idempotency_key("t", other)


def test_a_missing_config_counts_as_an_empty_one() -> None:
    written = [b"", b"null", b'{"config":null}', b'{"config":{"create_stream_on_read":false}}']
    configs = {decode_ensure_basin(body).config for body in written}
    assert {idempotency_key("t", config) for config in configs} == {
        idempotency_key("t", BasinConfig())
    }
