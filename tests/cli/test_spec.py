"""The resource spec: what it says, what it refuses, what applying it does."""

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.changes import Provision
from bourn.cli.failures import Misused
from bourn.cli.spec import apply_spec, parse_spec, read_spec
from bourn.errors import BasinDeletionPending
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    StreamConfig,
    Timestamping,
    TimestampMode,
)
from bourn.model.patch import StreamPatch
from tests.support import node_on, run

FULL = {
    "$schema": "https://example.com/spec.json",
    "basins": [
        {
            "name": "my-basin",
            "config": {
                "create_stream_on_append": True,
                "create_stream_on_read": False,
                "stream_cipher": "aegis-256",
                "default_stream_config": {
                    "storage_class": "express",
                    "retention_policy": "7days",
                    "timestamping": {"mode": "client-prefer", "uncapped": False},
                    "delete_on_empty": {"min_age": "1day"},
                },
            },
            "streams": [{"name": "events", "config": {"retention_policy": "infinite"}}],
        }
    ],
}


def parse(value):
    return parse_spec(json.dumps(value).encode())


def with_stream_config(config):
    return {"basins": [{"name": "my-basin", "streams": [{"name": "s", "config": config}]}]}


def test_every_member_is_read():
    (basin,) = parse(FULL)
    assert basin.name == "my-basin"
    assert basin.config == BasinConfig(
        default_stream_config=StreamConfig(
            storage_class="express",
            retention_policy=Age(604_800),
            timestamping=Timestamping(TimestampMode.CLIENT_PREFER, uncapped=False),
            delete_on_empty=DeleteOnEmpty(86_400),
        ),
        stream_cipher=Cipher.AEGIS_256,
        create_stream_on_append=True,
        create_stream_on_read=False,
    )
    (stream,) = basin.streams
    assert stream.name == "events"
    assert stream.config == StreamConfig(retention_policy=Infinite())


def test_only_names_are_required_and_null_is_as_absent():
    assert parse({}) == parse({"basins": None}) == parse({"basins": []}) == []
    bare = parse({"basins": [{"name": "my-basin"}]})
    assert bare == parse({"basins": [{"name": "my-basin", "config": None, "streams": None}]})
    assert bare == parse({"basins": [{"name": "my-basin", "config": {"stream_cipher": None}}]})
    assert bare[0].config == BasinConfig()


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([], "array"),
        ({"basins": [{}]}, "missing required field `name` - at `$.basins[0]`"),
        ({"basins": [{"name": "my-basin", "region": 1}]}, "unknown field `region`"),
        ({"basins": [{"name": "my-basin", "config": {"cipher": 1}}]}, "unknown field `cipher`"),
        (with_stream_config({"age": 1}), "unknown field `age`"),
        (with_stream_config({"timestamping": {"node": 1}}), "unknown field `node`"),
        (with_stream_config({"delete_on_empty": {"min_age_secs": 1}}), "unknown field"),
        (with_stream_config({"retention_policy": {"age": 1}}), "$.basins[0].streams[0]"),
        (with_stream_config({"retention_policy": 60}), "Expected `str | null`, got `int`"),
        (with_stream_config({"retention_policy": "soon"}), "'soon' is no duration"),
        (with_stream_config({"retention_policy": "0s"}), "greater than 0 seconds"),
        (with_stream_config({"retention_policy": "500ms"}), "must be whole seconds"),
        (with_stream_config({"storage_class": ""}), "storage class must not be empty"),
        (with_stream_config({"timestamping": {"mode": "mine"}}), "Invalid enum value 'mine'"),
        ({"basins": [{"name": "Short"}]}, "at `$.basins[0].name`"),
        ({"basins": [{"name": "my-basin"}] * 2}, "basin 'my-basin' is there 2 times"),
        (
            {"basins": [{"name": "my-basin", "streams": [{"name": "s"}, {"name": "s"}]}]},
            "stream of my-basin 's' is there 2 times",
        ),
        ({"basins": [{"name": "my-basin", "streams": [{"name": ".."}]}]}, "streams[0].name"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_place(value, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        parse(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff", "invalid"),
        (b'{"basins":[],"basins":[]}', "member 'basins' is there 2 times"),
        (b'{"x":{"a":1,"a":2}}', "member 'a' is there 2 times"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    ],
)
def test_text_that_is_no_json_or_ambiguous_is_refused(text, line):
    with pytest.raises(ValueError, match=line):
        parse_spec(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_spec_or_refused_as_none(text):
    with suppress(ValueError):
        assert isinstance(parse_spec(text), list)


def test_a_file_is_named_in_its_refusal(tmp_path):
    path = tmp_path / "spec.json"
    with pytest.raises(Misused, match=r"cannot read .*spec\.json: No such file"):
        read_spec(path)
    path.write_text("[]")
    with pytest.raises(Misused, match=r"spec\.json is no resource spec"):
        read_spec(path)
    path.write_text(json.dumps(FULL))
    assert read_spec(path) == parse(FULL)


def test_applying_creates_then_leaves_alone_then_puts_back_what_was_changed():
    basins = parse(FULL)

    async def scenario():
        async with node_on() as node:
            first = [applied async for applied in apply_spec(node, basins)]
            second = [applied async for applied in apply_spec(node, basins)]
            await node.ensure_stream("my-basin", "other")
            patch = StreamPatch(retention_policy=Age(60), storage_class="standard")
            await node.reconfigure_stream("my-basin", "events", patch)
            third = [applied async for applied in apply_spec(node, basins)]
            config = await node.stream_config("my-basin", "events")
            others = await node.list_streams("my-basin")
            return first, second, third, config, [row.name for row in others.rows]

    first, second, third, config, names = run(scenario())
    assert first == [("my-basin", Provision.CREATED), ("my-basin/events", Provision.CREATED)]
    assert second == [("my-basin", Provision.NOOP), ("my-basin/events", Provision.NOOP)]
    assert third == [("my-basin", Provision.NOOP), ("my-basin/events", Provision.UPDATED)]
    assert config.retention_policy == Infinite()
    assert config.storage_class == "express"
    assert config.delete_on_empty == DeleteOnEmpty(86_400)
    assert names == ["events", "other"]


def test_applying_stops_at_what_cannot_be():
    async def scenario():
        async with node_on() as node:
            await node.ensure_basin("my-basin")
            await node.ensure_stream("my-basin", "keeps-it-from-going-at-once")
            await node.delete_basin("my-basin")
            async for _ in apply_spec(node, parse(FULL)):
                pass

    with pytest.raises(BasinDeletionPending):
        run(scenario())
