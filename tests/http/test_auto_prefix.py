"""A token that puts its prefix before every stream's name: applied in, stripped out, everywhere."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.http.access import ROOT, TokenApi, prefix
from tests.http.clients import EVENTS, SESSION, Connected
from tests.http.conftest import BASIN
from tests.http.frames import Frames, append
from tests.http.server import LoopThread, Server

STREAMS = "/v1/streams"
PREFIX = "tenant/é/"
QUOTED = "tenant%2F%C3%A9%2F"
NUMBERS = count(1)
GROUPS = {name: {"read": True, "write": True} for name in ("account", "basin", "stream")}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=False, root_token=ROOT) as running:
        yield running


@pytest.fixture
def root(server: Server, version: str, client_thread: LoopThread) -> Iterator[TokenApi]:
    with Connected(version, server.port, client_thread) as connected:
        api = TokenApi(connected.client, BASIN, ROOT)
        config = {"create_stream_on_append": True, "create_stream_on_read": True}
        created = api.send_json("PUT", f"/v1/basins/{BASIN}", {"config": config})
        assert created.status in {200, 201}
        yield api


@pytest.fixture
def tenant(root: TokenApi) -> TokenApi:
    scope = {"basins": prefix(""), "streams": prefix(PREFIX), "op_groups": GROUPS}
    secret = root.issued(f"tenant-{next(NUMBERS)}", scope, auto_prefix_streams=True)
    return root.with_token(secret)


@pytest.fixture
def name() -> str:
    return f"s{next(NUMBERS):03}"


def names(api: TokenApi, query: str = "") -> list[str]:
    return [item["name"] for item in api.get(f"{STREAMS}?{query}").json["streams"]]


def exists(root: TokenApi, quoted: str) -> bool:
    return root.get(f"{STREAMS}/{quoted}").status == 200


def test_a_stream_that_is_created_has_the_prefix_and_is_shown_without(
    root: TokenApi, tenant: TokenApi, name: str
) -> None:
    created = tenant.post(STREAMS, {"stream": name})
    assert (created.status, created.json["name"]) == (201, name)
    assert exists(root, QUOTED + name)
    assert not exists(root, name)
    again = tenant.post(STREAMS, {"stream": name})
    assert again.error == (409, "resource_already_exists")


def test_a_stream_that_is_ensured_has_the_prefix_and_is_shown_without(
    root: TokenApi, tenant: TokenApi, name: str
) -> None:
    for status in (201, 200):
        ensured = tenant.put(f"{STREAMS}/{name}")
        assert (ensured.status, ensured.json["name"]) == (status, name)
    assert exists(root, QUOTED + name)
    assert not exists(root, name)


def test_every_call_on_a_stream_means_the_one_with_the_prefix(
    root: TokenApi, tenant: TokenApi, name: str
) -> None:
    tenant.put(f"{STREAMS}/{name}")
    path, whole = f"{STREAMS}/{name}", f"{STREAMS}/{QUOTED}{name}"
    assert tenant.append(name, "one", "two").json["end"]["seq_num"] == 2
    records: Any = root.get(f"{whole}/records?seq_num=0").json["records"]
    assert [record["body"] for record in records] == ["one", "two"]
    assert tenant.get(f"{path}/records?seq_num=0").json["records"] == records
    assert tenant.get(f"{path}/records/tail").json["tail"]["seq_num"] == 2
    alias = f"/v1/basins/{BASIN}{STREAMS.removeprefix('/v1')}/{name}"
    assert tenant.get(f"{alias}/read?seq_num=0").json["records"] == records
    assert tenant.post(f"{alias}/append", {"records": [{}]}).json["end"]["seq_num"] == 3
    patched = tenant.send_json("PATCH", path, {"storage_class": "standard"})
    assert patched.json["storage_class"] == "standard"
    assert root.get(whole).json == tenant.get(path).json == patched.json
    assert tenant.delete(path).status == 202
    assert root.get(whole).status in {404, 409}


def test_sessions_and_events_mean_the_one_with_the_prefix(
    root: TokenApi, tenant: TokenApi, name: str
) -> None:
    call = tenant.open("POST", f"{STREAMS}/{name}/records", SESSION)
    call.send(append(b"x"))
    call.end()
    assert [found.ack.end.seq_num for found in Frames(call).rest()] == [1]
    assert root.get(f"{STREAMS}/{QUOTED}{name}/records/tail").json["tail"]["seq_num"] == 1
    path = f"{STREAMS}/{name}/records?seq_num=0&count=1"
    call = tenant.open("GET", path, SESSION, body=b"")
    assert [record.body for record in Frames(call).take().batch.records] == [b"x"]
    assert b'"body":"x"' in tenant.get(path, EVENTS).body


def test_lists_are_of_what_is_behind_the_prefix(root: TokenApi, tenant: TokenApi) -> None:
    basin = f"list-basin-{next(NUMBERS)}"
    assert root.put(f"/v1/basins/{basin}").status == 201
    own, all_ = tenant.of(basin), root.of(basin)
    for stream in ("a", "b1", "b2", "c"):
        assert own.put(f"{STREAMS}/{stream}").status == 201
        assert all_.put(f"{STREAMS}/{stream}").status == 201
    assert all_.put(f"{STREAMS}/{QUOTED}").status == 201  # to the tenant, it would have no name
    assert names(own) == ["a", "b1", "b2", "c"]
    assert names(own, "prefix=b") == ["b1", "b2"]
    assert names(own, "prefix=tenant") == []
    assert names(own, "start_after=b1") == ["b2", "c"]
    assert names(own, "prefix=b&start_after=a") == ["b1", "b2"]
    first = own.get(f"{STREAMS}?limit=3").json
    assert ([item["name"] for item in first["streams"]], first["has_more"]) == (
        ["a", "b1", "b2"],
        True,
    )
    rest = own.get(f"{STREAMS}?limit=3&start_after=b2").json
    assert ([item["name"] for item in rest["streams"]], rest["has_more"]) == (["c"], False)
    assert own.get(f"{STREAMS}?prefix={'x' * 512}").json["streams"] == []
    assert [name.removeprefix(PREFIX) for name in names(all_, f"prefix={QUOTED}")] == [
        "",
        "a",
        "b1",
        "b2",
        "c",
    ]


def test_the_whole_name_is_at_most_512_bytes(tenant: TokenApi) -> None:
    room = 512 - len(PREFIX.encode())
    longest, longer = "x" * room, "x" * (room + 1)
    assert tenant.put(f"{STREAMS}/{longest}").status in {200, 201}
    assert tenant.put(f"{STREAMS}/{longer}").error == (400, "bad_path")
    assert tenant.post(STREAMS, {"stream": longer}).error == (400, "bad_json")
    assert tenant.append(longer, "x").error == (400, "bad_path")


@pytest.mark.parametrize("given", [".", ".."])
def test_a_name_that_is_none_is_none_behind_a_prefix(tenant: TokenApi, given: str) -> None:
    assert tenant.post(STREAMS, {"stream": given}).error == (400, "bad_json")
    assert tenant.put(f"{STREAMS}/{given}").error == (400, "bad_path")


def test_there_is_no_way_out_of_the_prefix(root: TokenApi, tenant: TokenApi, name: str) -> None:
    root.append(name, "of somebody else")
    assert root.append(f"{QUOTED}{name}-own", "mine").status == 200
    for path in (name, f"..%2F{name}", f"%2F{name}", f"{QUOTED}{name}"):
        reply = tenant.get(f"{STREAMS}/{path}/records?seq_num=0")
        assert reply.status != 200
        assert b"somebody" not in reply.body


def test_a_metrics_path_means_the_stream_with_the_prefix(tenant: TokenApi, name: str) -> None:
    tenant.put(f"{STREAMS}/{name}")
    reply = tenant.get(f"/v1/metrics/{BASIN}/{name}?set=storage&start=0&end=60")
    assert reply.status not in {401, 403, 500}
