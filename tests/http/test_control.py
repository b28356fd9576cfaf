"""Basins, streams and locations, end to end."""

import re
from itertools import count
from typing import Any

import pytest

from tests.http.clients import Api, Reply
from tests.http.conftest import BASIN
from tests.http.server import LOCATION, eventually

BASINS = "/v1/basins"
STREAMS = "/v1/streams"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
NUMBERS = count(1)
DEFAULTS = {
    "storage_class": "express",
    "retention_policy": {"age": 604_800},
    "timestamping": {"mode": "client-prefer", "uncapped": False},
    "delete_on_empty": {"min_age_secs": 0},
}
EMPTY_BASIN = {
    "default_stream_config": None,
    "stream_cipher": None,
    "create_stream_on_append": False,
    "create_stream_on_read": False,
}


@pytest.fixture
def basin(api: Api) -> str:
    """The name of a basin that is not there yet."""
    return f"basin-{api.version}-{next(NUMBERS):04}"


@pytest.fixture
def name() -> str:
    """The name of a stream that is not there yet."""
    return f"new-{next(NUMBERS)}"


def outcome(reply: Reply) -> tuple[int, str | None]:
    assert reply.named.keys() == {"content-type", "content-length", "s2-provision-result"}
    return reply.status, reply.header("s2-provision-result")


# Create


def test_a_basin_is_created_and_shown(api: Api, basin: str) -> None:
    reply = api.post(BASINS, {"basin": basin})
    assert outcome(reply) == (201, "created")
    created_at = reply.json["created_at"]
    assert INSTANT.fullmatch(created_at)
    info = {
        "name": basin,
        "location": LOCATION,
        "created_at": created_at,
        "deleted_at": None,
        "state": "active",
    }
    assert reply.json == info
    assert api.get(f"{BASINS}?prefix={basin}").json == {"basins": [info], "has_more": False}
    reply = api.get(f"{BASINS}/{basin}")
    assert (reply.status, reply.json) == (200, EMPTY_BASIN)


def test_a_stream_is_created_and_shown(api: Api, name: str) -> None:
    reply = api.post(STREAMS, {"stream": name, "config": None})
    assert outcome(reply) == (201, "created")
    created_at = reply.json["created_at"]
    assert INSTANT.fullmatch(created_at)
    info = {"name": name, "created_at": created_at, "deleted_at": None, "cipher": None}
    assert reply.json == info
    assert api.get(f"{STREAMS}?prefix={name}").json == {"streams": [info], "has_more": False}
    reply = api.get(f"{STREAMS}/{name}")
    assert (reply.status, reply.json) == (200, DEFAULTS)


def test_a_create_is_replayed_for_the_same_token_and_config_only(
    api: Api, basin: str, name: str
) -> None:
    for path, key, value in ((BASINS, "basin", basin), (STREAMS, "stream", name)):
        config: dict[str, Any] = (
            {"create_stream_on_append": True} if key == "basin" else {"storage_class": "standard"}
        )
        body = {key: value, "config": config}
        token = {"s2-request-token": "token-1"}
        first = api.post(path, body, token)
        assert outcome(first) == (201, "created")
        again = api.post(path, body, token)
        assert outcome(again) == (201, "noop")
        assert again.json == first.json
        for other, sent in ((body, {"s2-request-token": "token-2"}), ({key: value}, token)):
            assert api.post(path, other, sent).error == (409, "resource_already_exists")
        assert api.post(path, body).error == (409, "resource_already_exists")
        assert api.send_json("PATCH", f"{path}/{value}", {}).status == 200
        assert outcome(api.post(path, body, token)) == (201, "noop")


def test_the_empty_token_is_a_token_and_36_bytes_are_not_too_many(api: Api) -> None:
    for token in ("", "t" * 36):
        headers = {"s2-request-token": token}
        body = {"stream": f"token-{next(NUMBERS)}"}
        assert outcome(api.post(STREAMS, body, headers)) == (201, "created")
        assert outcome(api.post(STREAMS, body, headers)) == (201, "noop")


def test_the_location_of_a_basin(api: Api, basin: str) -> None:
    for key in ("location", "scope"):
        body = {"basin": f"{basin}-{key}", key: LOCATION}
        assert api.post(BASINS, body).json["location"] == LOCATION
    reply = api.post(BASINS, {"basin": basin, "location": "aws:us-east-1"})
    assert reply.error == (422, "invalid")
    assert api.put(f"{BASINS}/{basin}").status == 201
    reply = api.send_json("PUT", f"{BASINS}/{basin}", {"location": "aws:us-east-1"})
    assert reply.error == (422, "invalid")


# Ensure


def test_a_basin_is_ensured(api: Api, basin: str) -> None:
    path = f"{BASINS}/{basin}"
    config = {"create_stream_on_append": True, "default_stream_config": {"storage_class": "slow"}}
    created = api.send_json("PUT", path, {"config": config})
    assert outcome(created) == (201, "created")
    assert created.json["name"] == basin
    for result in ("noop", "noop"):
        again = api.send_json("PUT", path, {"config": config}, {"s2-request-token": "ignored"})
        assert outcome(again) == (200, result)
        assert again.json == created.json
    assert api.get(path).json == {
        "default_stream_config": {
            "storage_class": "slow",
            "retention_policy": None,
            "timestamping": None,
            "delete_on_empty": None,
        },
        "stream_cipher": None,
        "create_stream_on_append": True,
        "create_stream_on_read": False,
    }
    reset = api.put(path)
    assert outcome(reset) == (200, "updated")
    assert reset.json == created.json
    assert api.get(path).json == EMPTY_BASIN


def test_a_stream_is_ensured(api: Api, name: str) -> None:
    path = f"{STREAMS}/{name}"
    config = {"retention_policy": {"infinite": {}}, "timestamping": {"uncapped": True}}
    created = api.send_json("PUT", path, config)
    assert outcome(created) == (201, "created")
    assert outcome(api.send_json("PUT", path, config)) == (200, "noop")
    assert api.get(path).json == DEFAULTS | {
        "retention_policy": {"infinite": {}},
        "timestamping": {"mode": "client-prefer", "uncapped": True},
    }
    updated = api.send_json("PUT", path, {"delete_on_empty": {}})
    assert outcome(updated) == (200, "updated")
    assert updated.json == created.json
    assert api.get(path).json == DEFAULTS
    assert outcome(api.put(path)) == (200, "noop")


def test_a_stream_takes_what_it_lacks_from_its_basin_when_it_is_made_or_ensured(
    api: Api, basin: str
) -> None:
    default = {"retention_policy": {"age": 60}, "timestamping": {"mode": "arrival"}}
    api.send_json("PUT", f"{BASINS}/{basin}", {"config": {"default_stream_config": default}})
    inside = api.of(basin)
    inside.send_json("PUT", f"{STREAMS}/s", {"timestamping": {"uncapped": True}})
    expected = DEFAULTS | {
        "retention_policy": {"age": 60},
        "timestamping": {"mode": "arrival", "uncapped": True},
    }
    assert inside.get(f"{STREAMS}/s").json == expected
    api.put(f"{BASINS}/{basin}")
    assert inside.get(f"{STREAMS}/s").json == expected
    assert outcome(inside.put(f"{STREAMS}/s")) == (200, "updated")
    assert inside.get(f"{STREAMS}/s").json == DEFAULTS


# Reconfigure


def test_a_patch_of_a_stream_leaves_clears_and_sets(api: Api, name: str) -> None:
    path = f"{STREAMS}/{name}"
    config = {
        "storage_class": "standard",
        "retention_policy": {"age": 60},
        "timestamping": {"mode": "arrival", "uncapped": True},
        "delete_on_empty": {"min_age_secs": 9},
    }
    api.send_json("PUT", path, config)
    assert api.get(path).json == config
    for patch, changed in (
        ({}, {}),
        ({"unknown": 1}, {}),
        ({"timestamping": {}}, {}),
        ({"timestamping": {"mode": None}}, {"timestamping": {"mode": "client-prefer"}}),
        ({"timestamping": None}, {"timestamping": {"uncapped": False}}),
        ({"timestamping": {"uncapped": True}}, {"timestamping": {"uncapped": True}}),
        ({"retention_policy": {"infinite": {}}}, {"retention_policy": {"infinite": {}}}),
        ({"retention_policy": None}, {"retention_policy": {"age": 604_800}}),
        ({"storage_class": None}, {"storage_class": "express"}),
        ({"delete_on_empty": {"min_age_secs": None}}, {"delete_on_empty": {"min_age_secs": 0}}),
        ({"delete_on_empty": {"min_age_secs": 3}}, {"delete_on_empty": {"min_age_secs": 3}}),
        ({"delete_on_empty": None}, {"delete_on_empty": {"min_age_secs": 0}}),
    ):
        for key, value in changed.items():
            merged = key == "timestamping"
            config[key] = config[key] | value if merged else value  # type: ignore[operator]
        reply = api.send_json("PATCH", path, patch)
        assert (reply.status, reply.json) == (200, config), patch
        assert reply.header("s2-provision-result") is None
        assert api.get(path).json == config


def test_a_patch_of_a_basin_leaves_clears_and_sets(api: Api, basin: str) -> None:
    path = f"{BASINS}/{basin}"
    api.put(path)
    config: dict[str, Any] = dict(EMPTY_BASIN)
    unset = {
        "storage_class": None,
        "retention_policy": None,
        "timestamping": None,
        "delete_on_empty": None,
    }
    for patch, changed in (
        ({}, {}),
        ({"create_stream_on_append": True}, {"create_stream_on_append": True}),
        ({"create_stream_on_append": None}, {}),
        ({"create_stream_on_read": True}, {"create_stream_on_read": True}),
        ({"create_stream_on_append": False}, {"create_stream_on_append": False}),
        ({"stream_cipher": "aes-256-gcm"}, {"stream_cipher": "aes-256-gcm"}),
        ({"stream_cipher": None}, {"stream_cipher": None}),
        (
            {"default_stream_config": {"retention_policy": {"age": 86_400}}},
            {"default_stream_config": unset | {"retention_policy": {"age": 86_400}}},
        ),
        (
            {"default_stream_config": {"timestamping": {"mode": "arrival"}}},
            {
                "default_stream_config": unset
                | {
                    "retention_policy": {"age": 86_400},
                    "timestamping": {"mode": "arrival", "uncapped": None},
                }
            },
        ),
        ({"default_stream_config": {}}, {}),
        ({"default_stream_config": None}, {"default_stream_config": None}),
    ):
        config |= changed
        reply = api.send_json("PATCH", path, patch)
        assert (reply.status, reply.json) == (200, config), patch
        assert api.get(path).json == config


# Delete


def test_a_deleted_stream_goes_and_its_name_starts_anew(api: Api, name: str) -> None:
    path = f"{STREAMS}/{name}"
    first = api.put(path).json["created_at"]
    api.post(f"{path}/records", {"records": [{"headers": [["", "fence"]], "body": "mine"}]})
    reply = api.delete(path)
    assert (reply.status, reply.named, reply.body) == (202, {"content-length": "0"}, b"")
    eventually(lambda: api.get(path).error == (404, "stream_not_found"))
    assert api.delete(path).error == (404, "stream_not_found")
    again = api.put(path)
    assert outcome(again) == (201, "created")
    assert again.json["created_at"] != first
    assert api.get(f"{path}/records/tail").json == {"tail": {"seq_num": 0, "timestamp": 0}}
    assert api.append(name, "x", fencing_token="").status == 200


def test_a_deleted_basin_goes_with_its_streams(api: Api, basin: str) -> None:
    path = f"{BASINS}/{basin}"
    api.put(path)
    inside = api.of(basin)
    for index in range(3):
        inside.put(f"{STREAMS}/s{index}")
    reply = api.delete(path)
    assert (reply.status, reply.named, reply.body) == (202, {"content-length": "0"}, b"")
    eventually(lambda: api.get(path).status == 404)
    assert inside.get(STREAMS).error == (404, "basin_not_found")
    assert api.delete(path).error == (404, "basin_not_found")
    assert outcome(api.put(path)) == (201, "created")
    assert inside.get(STREAMS).json == {"streams": [], "has_more": False}


# Lists


def names_of(reply: Reply, kind: str) -> list[str]:
    return [info["name"] for info in reply.json[kind]]


def test_a_list_is_in_the_order_of_bytes_and_goes_on_where_it_ended(api: Api, basin: str) -> None:
    api.put(f"{BASINS}/{basin}")
    inside = api.of(basin)
    made = ["B", "a", "a/b", "a0", "b", "é", "～", "🙂"]  # noqa: RUF001  above the BMP comes last
    for stream in reversed(made):
        inside.post(STREAMS, {"stream": stream})
    reply = inside.get(STREAMS)
    assert (names_of(reply, "streams"), reply.json["has_more"]) == (made, False)
    seen: list[str] = []
    more = True
    while more:
        after = seen[-1] if seen else ""
        reply = inside.get(f"{STREAMS}?limit=3&start_after={after}")
        seen += names_of(reply, "streams")
        more = reply.json["has_more"]
        assert len(reply.json["streams"]) == (3 if more else 2)
    assert seen == made


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ("limit=2", ["l-a", "l-a-1"], True),
        ("limit=4", ["l-a", "l-a-1", "l-b", "l-c"], False),
        ("limit=0", ["l-a", "l-a-1", "l-b", "l-c"], False),
        ("limit=18446744073709551615", ["l-a", "l-a-1", "l-b", "l-c"], False),
        ("prefix=l-a", ["l-a", "l-a-1"], False),
        ("prefix=l-a&limit=1", ["l-a"], True),
        ("prefix=l-a&start_after=l-a", ["l-a-1"], False),
        ("prefix=l-b&start_after=l-a", ["l-b"], False),
        ("prefix=l-a&start_after=l-b", [], False),
        ("start_after=l-c", [], False),
        ("start_after=l-a-0", ["l-a-1", "l-b", "l-c"], False),
        ("prefix=none", [], False),
    ],
)
def test_prefix_start_and_limit_of_a_list(
    api: Api, query: str, names: list[str], has_more: bool
) -> None:
    lists = api.of("list-of-streams")
    api.put(f"{BASINS}/list-of-streams")
    for stream in ("l-a", "l-a-1", "l-b", "l-c"):
        lists.put(f"{STREAMS}/{stream}")
    reply = lists.get(f"{STREAMS}?{query}")
    assert (names_of(reply, "streams"), reply.json["has_more"]) == (names, has_more)


def test_basins_are_listed_by_prefix_a_page_at_a_time(api: Api) -> None:
    for number in range(5):
        api.put(f"{BASINS}/paged-basin-{number}")
    found: list[tuple[list[str], bool]] = []
    for after in ("", "paged-basin-1", "paged-basin-3", "paged-basin-4"):
        reply = api.get(f"{BASINS}?prefix=paged-&limit=2&start_after={after}")
        found.append(([name[-1] for name in names_of(reply, "basins")], reply.json["has_more"]))
    assert found == [(["0", "1"], True), (["2", "3"], True), (["4"], False), ([], False)]


# Auto-creation


def test_streams_are_created_by_use_where_the_basin_says_so(api: Api, basin: str) -> None:
    config = {"create_stream_on_append": True, "default_stream_config": {"storage_class": "b"}}
    api.send_json("PUT", f"{BASINS}/{basin}", {"config": config})
    inside = api.of(basin)
    assert inside.get(f"{STREAMS}/read/records/tail").error == (404, "stream_not_found")
    assert inside.append("append", "x").status == 200
    assert inside.get(f"{STREAMS}/append").json == DEFAULTS | {"storage_class": "b"}
    api.send_json("PATCH", f"{BASINS}/{basin}", {"create_stream_on_read": True})
    assert inside.get(f"{STREAMS}/read/records?seq_num=0").status == 416
    assert inside.get(f"{STREAMS}/tail/records/tail").json["tail"] == {
        "seq_num": 0,
        "timestamp": 0,
    }
    session = {"content-type": "s2s/proto"}
    events = {"accept": "text/event-stream"}
    assert inside.request("POST", f"{STREAMS}/session/records", session).status == 200
    assert inside.get(f"{STREAMS}/events/records?count=0", events).status == 200
    assert inside.get(f"{STREAMS}/frames/records?count=0", session).status == 200
    listed = names_of(inside.get(STREAMS), "streams")
    assert listed == ["append", "events", "frames", "read", "session", "tail"]


def test_a_request_may_say_how_the_stream_is_made_that_it_creates(api: Api, basin: str) -> None:
    flags = {"create_stream_on_append": True, "create_stream_on_read": True}
    api.send_json("PUT", f"{BASINS}/{basin}", {"config": flags})
    inside = api.of(basin)
    header = {"s2-stream-config": '{"retention_policy":{"infinite":{}}}'}
    kinds: dict[str, Reply] = {
        "append": inside.post(f"{STREAMS}/append/records", {"records": [{}]}, header),
        "read": inside.get(f"{STREAMS}/read/records?count=0", header),
        "events": inside.get(
            f"{STREAMS}/events/records?count=0", header | {"accept": "text/event-stream"}
        ),
        "s2s": inside.get(f"{STREAMS}/s2s/records?count=0", header | {"content-type": "s2s/proto"}),
        "session": inside.request(
            "POST", f"{STREAMS}/session/records", header | {"content-type": "s2s/proto"}
        ),
    }
    for stream, reply in kinds.items():
        assert reply.status == 200
        config = inside.get(f"{STREAMS}/{stream}").json
        assert config == DEFAULTS | {"retention_policy": {"infinite": {}}}
    other = {"s2-stream-config": '{"retention_policy":{"age":5}}'}
    assert inside.post(f"{STREAMS}/append/records", {"records": [{}]}, other).status == 200
    config = inside.get(f"{STREAMS}/append").json
    assert config["retention_policy"] == {"infinite": {}}
    assert inside.get(f"{STREAMS}/tail/records/tail", header).status == 200
    assert inside.get(f"{STREAMS}/tail").json == DEFAULTS


# Locations


def test_there_is_one_location(api: Api) -> None:
    here = {
        "name": LOCATION,
        "is_private": False,
        "storage_classes": ["standard", "express"],
        "default_storage_class": "express",
    }
    assert api.get("/v1/locations").json == [here]
    assert api.get("/v1/locations/default").json == here
    reply = api.send_json("PUT", "/v1/locations/default", LOCATION)
    assert (reply.status, reply.json) == (200, here)


def test_the_default_location_can_be_set_to_itself_only(api: Api) -> None:
    path = "/v1/locations/default"
    assert api.send_json("PUT", path, "aws:us-east-1").error == (422, "invalid")
    for body in (b"", b"x", b"{}", b"null", b'""', b'"no spaces"', b'"' + b"x" * 65 + b'"'):
        assert api.send_json("PUT", path, body).error == (400, "bad_json")


def test_the_token_in_authorization_is_not_asked_for(api: Api) -> None:
    for value in ("Bearer x", "Basic eDp5", ""):
        assert api.get(f"{BASINS}/{BASIN}", {"authorization": value}).status == 200
