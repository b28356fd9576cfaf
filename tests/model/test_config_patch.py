"""Patches: leave, clear and set, member by member, against a model of plain dicts."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given

from bourn.model.config import (
    BasinConfig,
    ResolvedStreamConfig,
    StreamConfig,
    as_requested,
    resolve,
)
from bourn.model.patch import (
    BasinPatch,
    StreamPatch,
    patch_stream_config,
    reconfigure_basin,
    reconfigure_stream,
)
from bourn.model.resource import (
    basin_config_shape,
    decode_basin_patch,
    decode_stream_config,
    decode_stream_patch,
    stream_config_shape,
)
from tests.model.configs import (
    basin_config_json,
    basin_configs,
    resolved_configs,
    stream_config_json,
    stream_configs,
)

Json = dict[str, Any]

CLEAR_ALL = StreamPatch(None, None, None, None)


def shown(config: BasinConfig | StreamConfig | ResolvedStreamConfig) -> Json:
    if isinstance(config, BasinConfig):
        return msgspec.json.decode(msgspec.json.encode(basin_config_shape(config)), type=Json)
    return msgspec.json.decode(msgspec.json.encode(stream_config_shape(config)), type=Json)


def as_bytes(value: Json) -> bytes:
    return msgspec.json.encode(value)


def flat(tree: Json | None) -> Json:
    """The set members of a stream config's JSON, by dotted name."""
    members = dict(tree or {})
    out = {name: members.get(name) for name in ("storage_class", "retention_policy")}
    for outer, inner in (
        ("timestamping", "mode"),
        ("timestamping", "uncapped"),
        ("delete_on_empty", "min_age_secs"),
    ):
        out[f"{outer}.{inner}"] = (members.get(outer) or {}).get(inner)
    return out


def naive_stream_patch(state: Json, patch: Json) -> Json:
    state = copy.deepcopy(state)
    for name in state:
        outer, _, inner = name.partition(".")
        if outer not in patch:
            continue
        if patch[outer] is None:
            state[name] = None
        elif not inner:
            state[name] = patch[outer]
        elif inner in patch[outer]:
            state[name] = patch[outer][inner]
    return state


SYSTEM = {
    "storage_class": "express",
    "retention_policy": {"age": 604_800},
    "timestamping.mode": "client-prefer",
    "timestamping.uncapped": False,
    "delete_on_empty.min_age_secs": 0,
}


@given(resolved_configs, stream_config_json, stream_configs)
def test_a_stream_is_reconfigured_as_the_naive_model_says(
    stored: ResolvedStreamConfig, patch: Json, basin_default: StreamConfig
) -> None:
    got = reconfigure_stream(stored, decode_stream_patch(as_bytes(patch)), basin_default)
    patched = naive_stream_patch(flat(shown(stored)), patch)
    basin = flat(shown(basin_default))
    expected = {
        name: next(v for v in (patched[name], basin[name], SYSTEM[name]) if v is not None)
        for name in SYSTEM
    }
    assert flat(shown(got)) == expected


@given(basin_configs, basin_config_json)
def test_a_basin_is_reconfigured_as_the_naive_model_says(stored: BasinConfig, patch: Json) -> None:
    got = shown(reconfigure_basin(stored, decode_basin_patch(as_bytes(patch))))
    before = shown(stored)
    default = flat(before["default_stream_config"])
    if "default_stream_config" in patch:
        change = patch["default_stream_config"]
        default = dict.fromkeys(SYSTEM) if change is None else naive_stream_patch(default, change)
    assert flat(got["default_stream_config"]) == default
    assert (got["default_stream_config"] is None) == all(v is None for v in default.values())
    assert got["stream_cipher"] == patch.get("stream_cipher", before["stream_cipher"])
    for flag in ("create_stream_on_append", "create_stream_on_read"):
        value = patch.get(flag)
        assert got[flag] == (before[flag] if value is None else value)


@given(stream_configs, resolved_configs, basin_configs)
def test_an_empty_patch_changes_nothing(
    asked: StreamConfig, resolved: ResolvedStreamConfig, basin: BasinConfig
) -> None:
    assert patch_stream_config(asked, StreamPatch()) == asked
    assert reconfigure_stream(resolved, StreamPatch(), asked) == resolved
    assert reconfigure_basin(basin, BasinPatch()) == basin


@given(resolved_configs, stream_configs)
def test_clearing_everything_gives_what_a_new_stream_would_get(
    stored: ResolvedStreamConfig, basin_default: StreamConfig
) -> None:
    cleared = reconfigure_stream(stored, CLEAR_ALL, basin_default)
    assert cleared == resolve(StreamConfig(), basin_default)


@given(resolved_configs, stream_config_json, stream_configs)
def test_a_patch_applied_twice_is_a_patch_applied_once(
    stored: ResolvedStreamConfig, patch: Json, basin_default: StreamConfig
) -> None:
    decoded = decode_stream_patch(as_bytes(patch))
    once = reconfigure_stream(stored, decoded, basin_default)
    assert reconfigure_stream(once, decoded, basin_default) == once


@given(basin_configs, basin_config_json)
def test_a_basin_patch_applied_twice_is_a_patch_applied_once(
    stored: BasinConfig, patch: Json
) -> None:
    decoded = decode_basin_patch(as_bytes(patch))
    once = reconfigure_basin(stored, decoded)
    assert reconfigure_basin(once, decoded) == once


@given(resolved_configs, resolved_configs)
def test_a_patch_that_sets_everything_replaces_the_config(
    stored: ResolvedStreamConfig, wanted: ResolvedStreamConfig
) -> None:
    patch = decode_stream_patch(as_bytes(shown(wanted)))
    assert reconfigure_stream(stored, patch, StreamConfig()) == wanted


CUSTOM = decode_stream_config(
    b'{"storage_class":"standard","retention_policy":{"age":60},'
    b'"timestamping":{"mode":"arrival","uncapped":true},"delete_on_empty":{"min_age_secs":9}}'
)
CUSTOM_FLAT = {
    "storage_class": "standard",
    "retention_policy": {"age": 60},
    "timestamping.mode": "arrival",
    "timestamping.uncapped": True,
    "delete_on_empty.min_age_secs": 9,
}


@pytest.mark.parametrize(
    ("patch", "changes"),
    [
        (b"{}", {}),
        (b'{"timestamping":{"uncapped":null}}', {"timestamping.uncapped": False}),
        (
            b'{"timestamping":null}',
            {"timestamping.mode": "client-prefer", "timestamping.uncapped": False},
        ),
        (b'{"timestamping":{}}', {}),
        (b'{"timestamping":{"mode":"client-require"}}', {"timestamping.mode": "client-require"}),
        (b'{"retention_policy":null}', {"retention_policy": {"age": 604_800}}),
        (b'{"retention_policy":{"infinite":{}}}', {"retention_policy": {"infinite": {}}}),
        (b'{"storage_class":null}', {"storage_class": "express"}),
        (b'{"delete_on_empty":null}', {"delete_on_empty.min_age_secs": 0}),
        (b'{"delete_on_empty":{}}', {}),
        (b'{"delete_on_empty":{"min_age_secs":null}}', {"delete_on_empty.min_age_secs": 0}),
        (b'{"delete_on_empty":{"min_age_secs":0}}', {"delete_on_empty.min_age_secs": 0}),
    ],
)
def test_a_stream_patch_leaves_clears_and_sets(patch: bytes, changes: Json) -> None:
    stored = resolve(CUSTOM, StreamConfig())
    got = reconfigure_stream(stored, decode_stream_patch(patch), StreamConfig())
    assert flat(shown(got)) == CUSTOM_FLAT | changes


def test_a_cleared_member_takes_the_basins_default_of_now() -> None:
    stored = resolve(StreamConfig(), StreamConfig())
    got = reconfigure_stream(stored, CLEAR_ALL, CUSTOM)
    assert as_requested(got) == CUSTOM


@pytest.mark.parametrize(
    ("patch", "changes"),
    [
        (b"{}", {}),
        (b'{"stream_cipher":null}', {"stream_cipher": None}),
        (b'{"stream_cipher":"aes-256-gcm"}', {"stream_cipher": "aes-256-gcm"}),
        (b'{"create_stream_on_append":null,"create_stream_on_read":null}', {}),
        (b'{"create_stream_on_append":false}', {"create_stream_on_append": False}),
        (b'{"create_stream_on_read":true}', {"create_stream_on_read": True}),
        (b'{"default_stream_config":null}', {"default_stream_config": None}),
        (b'{"default_stream_config":{}}', {}),
        (b'{"default_stream_config":{"storage_class":null}}', {"default_stream_config": None}),
    ],
)
def test_a_basin_patch_leaves_clears_and_sets(patch: bytes, changes: Json) -> None:
    stored = reconfigure_basin(
        BasinConfig(),
        decode_basin_patch(
            b'{"default_stream_config":{"storage_class":"standard"},'
            b'"stream_cipher":"aegis-256","create_stream_on_append":true}'
        ),
    )
    got = reconfigure_basin(stored, decode_basin_patch(patch))
    assert shown(got) == shown(stored) | changes
