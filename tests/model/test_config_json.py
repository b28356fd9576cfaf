"""The JSON of the control plane: what is read, what is refused and how, what is shown."""

import json
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadHeader, BadJson, Invalid
from bourn.limits import U64_MAX
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    StreamConfig,
    Timestamping,
    TimestampMode,
    resolve,
)
from bourn.model.patch import BasinPatch, StreamPatch
from bourn.model.resource import (
    CreateBasin,
    CreateStream,
    EnsureBasin,
    basin_config_shape,
    decode_basin_patch,
    decode_create_basin,
    decode_create_stream,
    decode_ensure_basin,
    decode_stream_config,
    decode_stream_config_header,
    decode_stream_patch,
    stream_config_shape,
)
from tests.model.configs import basin_configs, resolved_configs, stream_config_json, stream_configs

Decode = Callable[[bytes], object]

DECODERS: tuple[Decode, ...] = (
    decode_create_basin,
    decode_ensure_basin,
    decode_basin_patch,
    decode_create_stream,
    decode_stream_config,
    decode_stream_patch,
)


def show_stream(config: StreamConfig | ResolvedStreamConfig) -> bytes:
    return msgspec.json.encode(stream_config_shape(config))


def show_basin(config: BasinConfig) -> bytes:
    return msgspec.json.encode(basin_config_shape(config))


def test_a_resolved_stream_config_shows_every_member() -> None:
    assert show_stream(resolve(StreamConfig(), StreamConfig())) == (
        b'{"storage_class":"express","retention_policy":{"age":604800},'
        b'"timestamping":{"mode":"client-prefer","uncapped":false},'
        b'"delete_on_empty":{"min_age_secs":0}}'
    )


def test_an_infinite_retention_shows_as_an_empty_object() -> None:
    config = resolve(StreamConfig(retention_policy=Infinite()), StreamConfig())
    assert b'"retention_policy":{"infinite":{}}' in show_stream(config)


def test_a_basin_config_that_sets_nothing_shows_a_null_default() -> None:
    assert show_basin(BasinConfig()) == (
        b'{"default_stream_config":null,"stream_cipher":null,'
        b'"create_stream_on_append":false,"create_stream_on_read":false}'
    )


def test_a_basins_default_shows_null_where_it_sets_nothing() -> None:
    config = BasinConfig(
        StreamConfig(retention_policy=Age(86_400)), Cipher.AEGIS_256, create_stream_on_append=True
    )
    assert show_basin(config) == (
        b'{"default_stream_config":{"storage_class":null,"retention_policy":{"age":86400},'
        b'"timestamping":null,"delete_on_empty":null},"stream_cipher":"aegis-256",'
        b'"create_stream_on_append":true,"create_stream_on_read":false}'
    )


def test_half_a_timestamping_shows_null_for_the_other_half() -> None:
    config = StreamConfig(timestamping=Timestamping(uncapped=False))
    assert b'"timestamping":{"mode":null,"uncapped":false}' in show_stream(config)


@given(stream_configs)
def test_a_stream_config_survives_its_json(config: StreamConfig) -> None:
    assert decode_stream_config(show_stream(config)) == config


@given(resolved_configs)
def test_a_resolved_config_survives_its_json(config: ResolvedStreamConfig) -> None:
    assert resolve(decode_stream_config(show_stream(config)), StreamConfig()) == config


@given(basin_configs)
def test_a_basin_config_survives_its_json(config: BasinConfig) -> None:
    assert decode_ensure_basin(b'{"config":%b}' % show_basin(config)).config == config


@given(stream_config_json)
def test_a_header_says_what_a_body_says(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert decode_stream_config_header(text) == decode_stream_config(text.encode())


def test_a_create_basin_request_is_read() -> None:
    body = (
        b'{"basin":"my-basin","location":"aws:us-east-1","config":{"stream_cipher":"aegis-256",'
        b'"create_stream_on_read":true,"default_stream_config":{"delete_on_empty":{}}}}'
    )
    assert decode_create_basin(body) == CreateBasin(
        "my-basin",
        BasinConfig(
            StreamConfig(delete_on_empty=DeleteOnEmpty(0)),
            Cipher.AEGIS_256,
            create_stream_on_read=True,
        ),
        "aws:us-east-1",
    )


@pytest.mark.parametrize(
    "members",
    [
        b"",
        b',"config":null,"location":null',
        b',"config":{}',
        b',"config":{"default_stream_config":{}}',
        b',"config":{"default_stream_config":{"timestamping":{},"storage_class":null}}',
        b',"config":{"create_stream_on_append":null,"create_stream_on_read":false}',
        b',"config":{"stream_cipher":null},"scope":null,"future":{"a":[{}]}',
    ],
)
def test_a_basin_request_that_sets_nothing_is_the_same_however_it_is_written(
    members: bytes,
) -> None:
    assert decode_create_basin(b'{"basin":"my-basin"%b}' % members) == CreateBasin("my-basin")


def test_scope_is_an_older_name_of_location() -> None:
    assert decode_ensure_basin(b'{"scope":"local"}') == EnsureBasin(location="local")
    assert decode_ensure_basin(b'{"scope":"local","location":"local"}').location == "local"
    assert decode_create_basin(b'{"basin":"my-basin","scope":"x"}').location == "x"
    with pytest.raises(BadJson, match="differ"):
        decode_ensure_basin(b'{"scope":"a","location":"b"}')


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b' {"config":null}\n'])
def test_an_ensure_without_a_config_asks_for_the_defaults(body: bytes) -> None:
    assert decode_ensure_basin(body) == EnsureBasin()


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"retention_policy":null}'])
def test_an_ensured_stream_without_a_config_asks_for_the_defaults(body: bytes) -> None:
    assert decode_stream_config(body) == StreamConfig()


def test_a_create_stream_request_is_read() -> None:
    body = b'{"stream":"a/\xc3\xa9","config":{"timestamping":{"mode":"arrival"}}}'
    config = StreamConfig(timestamping=Timestamping(TimestampMode.ARRIVAL))
    assert decode_create_stream(body) == CreateStream("a/é", config)
    assert decode_create_stream(b'{"stream":"s"}') == CreateStream("s")


@pytest.mark.parametrize("inner", [b"{}", b'{"min_age_secs":null}', b'{"min_age_secs":0}'])
def test_an_empty_delete_on_empty_is_an_explicit_zero(inner: bytes) -> None:
    body = b'{"delete_on_empty":%b}' % inner
    assert decode_stream_config(body).delete_on_empty == DeleteOnEmpty(0)


def test_numbers_keep_the_full_64_bits() -> None:
    body = b'{"retention_policy":{"age":%d},"delete_on_empty":{"min_age_secs":%d}}'
    config = decode_stream_config(body % (U64_MAX, U64_MAX))
    assert config.retention_policy == Age(U64_MAX)
    assert config.delete_on_empty == DeleteOnEmpty(U64_MAX)
    for bad in ((U64_MAX + 1, 0), (1, U64_MAX + 1), (-1, 0), (1, -1)):
        with pytest.raises(BadJson):
            decode_stream_config(body % bad)


@pytest.mark.parametrize(
    "policy",
    [
        b"{}",
        b'{"age":1,"infinite":{}}',
        b'{"age":1,"more":1}',
        b'{"forever":{}}',
        b'{"age":null}',
        b'{"age":"1"}',
        b'{"age":1.0}',
        b'{"age":1e3}',
        b'{"age":true}',
        b'{"infinite":null}',
        b'{"infinite":1}',
        b'{"age":1,"age":2}',
        b'"infinite"',
        b"7",
        b"[]",
    ],
)
def test_a_retention_policy_is_an_object_of_exactly_one_known_member(policy: bytes) -> None:
    for decode in (decode_stream_config, decode_stream_patch):
        with pytest.raises(BadJson):
            decode(b'{"retention_policy":%b}' % policy)


@pytest.mark.parametrize(
    "body",
    [
        b'{"timestamping":{"mode":"server"}}',
        b'{"timestamping":{"mode":"CLIENT-PREFER"}}',
        b'{"timestamping":{"uncapped":1}}',
        b'{"timestamping":"arrival"}',
        b'{"delete_on_empty":{"min_age_secs":"1"}}',
        b'{"delete_on_empty":{"min_age_secs":1.5}}',
        b'{"delete_on_empty":5}',
        b'{"storage_class":""}',
        b'{"storage_class":"%b"}' % (b"x" * 65),
        b'{"storage_class":7}',
        b'{"storage_class":"a","storage_class":"b"}',
        b'{"storage_class":"\\ud800"}',
        b'{"storage_class":"\xff"}',
        b'{"ignored":"\xff"}',
        b'{"ignored":"\\udc00"}',
        b'{"ignored":{"a":1,"a":1}}',
        b'{"ignored":NaN}',
        b"[]",
        b'"x"',
        b"{",
        b"{}{}",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"[" * 100_000,
        b'{"ignored":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"storage_class":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)
def test_a_stream_config_of_the_wrong_shape_is_bad_json(body: bytes) -> None:
    for decode in (decode_stream_config, decode_stream_patch):
        with pytest.raises(BadJson):
            decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b'{"basin":null}',
        b'{"basin":7}',
        b'{"basin":"short"}',
        b'{"basin":"my-basin","location":"a b"}',
        b'{"basin":"my-basin","scope":""}',
        b'{"basin":"my-basin","config":[]}',
        b'{"basin":"my-basin","config":{"stream_cipher":"rot13"}}',
        b'{"basin":"my-basin","config":{"create_stream_on_append":"true"}}',
        b'{"basin":"my-basin","config":{"default_stream_config":{"storage_class":""}}}',
        b'{"basin":"my-basin","basin":"my-basin"}',
    ],
)
def test_a_create_basin_request_of_the_wrong_shape_is_bad_json(body: bytes) -> None:
    with pytest.raises(BadJson):
        decode_create_basin(body)


@pytest.mark.parametrize("name", ["", ".", "..", "a\\u0000b", "x" * 513])
def test_a_stream_name_against_the_grammar_is_bad_json(name: str) -> None:
    with pytest.raises(BadJson):
        decode_create_stream(b'{"stream":"%b"}' % name.encode())


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"stream_cipher":1}'])
def test_a_patch_needs_an_object(body: bytes) -> None:
    with pytest.raises(BadJson):
        decode_basin_patch(body)
    with pytest.raises(BadJson):
        decode_stream_patch(b"null" if body.startswith(b"{") else body)


ZERO_AGE = b'{"retention_policy":{"age":0}}'


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (decode_create_basin, b'{"basin":"my-basin","config":{"default_stream_config":%b}}'),
        (decode_ensure_basin, b'{"config":{"default_stream_config":%b}}'),
        (decode_basin_patch, b'{"default_stream_config":%b}'),
        (decode_create_stream, b'{"stream":"s","config":%b}'),
        (decode_stream_config, b"%b"),
        (decode_stream_patch, b"%b"),
    ],
)
def test_a_retention_age_of_zero_is_invalid(decode: Decode, body: bytes) -> None:
    with pytest.raises(Invalid, match=r"^age must be greater than 0 seconds$"):
        decode(body % ZERO_AGE)


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (decode_create_basin, b'{"basin":"-","config":{"default_stream_config":%b}}'),
        (decode_ensure_basin, b'{"location":"","config":{"default_stream_config":%b}}'),
        (decode_ensure_basin, b'{"config":{"default_stream_config":%b,"stream_cipher":1}}'),
        (decode_create_stream, b'{"stream":"..","config":%b}'),
        (decode_stream_config, b'{"retention_policy":{"age":0},"storage_class":""}'),
        (decode_stream_patch, b'{"retention_policy":{"age":0},"delete_on_empty":1}'),
    ],
)
def test_a_wrong_shape_wins_over_a_wrong_value(decode: Decode, body: bytes) -> None:
    with pytest.raises(BadJson):
        decode(body.replace(b"%b", ZERO_AGE))


@pytest.mark.parametrize(
    "value", ["", "null", "[]", "{", '{"retention_policy":{"age":0}}', '{"storage_class":"é"}']
)
def test_a_bad_stream_config_header_is_a_bad_header_and_is_named(value: str) -> None:
    with pytest.raises(BadHeader, match=r"^Invalid header `s2-stream-config`: "):
        decode_stream_config_header(value)


def test_a_patch_tells_absent_from_null() -> None:
    assert decode_stream_patch(b"{}") == StreamPatch()
    assert decode_stream_patch(b'{"storage_class":null}') == StreamPatch(storage_class=None)
    assert decode_basin_patch(b'{"create_stream_on_read":null}') == BasinPatch()
    assert decode_basin_patch(b'{"stream_cipher":null}') == BasinPatch(stream_cipher=None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "basin",
                    "stream",
                    "config",
                    "location",
                    "default_stream_config",
                    "retention_policy",
                    "age",
                    "timestamping",
                    "delete_on_empty",
                    "storage_class",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode(errors="replace")))
def test_any_body_is_read_or_refused_as_the_requests_fault(body: bytes) -> None:
    for decode in DECODERS:
        with suppress(BadJson, Invalid):
            decode(body)
