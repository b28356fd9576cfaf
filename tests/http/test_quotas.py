"""Quotas: how many basins, streams and tokens there may be, exactly, whoever asks at once."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from bourn.clock import ManualClock
from bourn.model.instants import format_ms
from bourn.settings import EngineSettings
from tests.http.access import EVERYTHING, ROOT, TOKENS, TokenApi
from tests.http.clients import JSON, SESSION, Api, Connected, Reply, reply_of
from tests.http.server import LOCATION, LoopThread, Server, eventually

STREAMS = "/v1/streams"
QUOTA = 3
AT_ONCE = 12
NUMBERS = count(1)
AUTO = {"config": {"create_stream_on_append": True, "create_stream_on_read": True}}


class Rig:
    """A server with quotas, and clients of it that carry the root token."""

    def __init__(self, version: str, thread: LoopThread, stack: ExitStack) -> None:
        self.clock = ManualClock()
        settings = EngineSettings(
            location=LOCATION,
            quota_basins=QUOTA,
            quota_streams_per_basin=QUOTA,
            quota_tokens=QUOTA,
        )
        running = Server(cors=False, clock=self.clock, settings=settings, root_token=ROOT)
        self.server = stack.enter_context(running)
        connected = stack.enter_context(Connected(version, self.server.port, thread))
        self.api = TokenApi(connected.client, None, ROOT)

    def basin(self, **config: Any) -> TokenApi:
        """A new basin, and a client for it."""
        name = f"basin-{next(NUMBERS):04}"
        assert self.api.post("/v1/basins", {"basin": name, **config}).status == 201
        return self.api.of(name)

    def fill(self, api: Api) -> list[str]:
        """Give a basin all the streams that it may have."""
        names = [f"s{number}" for number in range(QUOTA)]
        assert [api.put(f"{STREAMS}/{name}").status for name in names] == [201] * QUOTA
        return names


@pytest.fixture
def rig(version: str, client_thread: LoopThread) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(version, client_thread, stack)


def refused(reply: Reply, what: str, remedy: str = "delete") -> None:
    """The whole answer."""
    message = f"{what}, {QUOTA}, is used up: {remedy} some first"
    body = f'{{"code":"quota_exhausted","message":"{message}"}}'.encode()
    assert (reply.status, reply.body) == (403, body)
    assert reply.named == {"content-type": "application/json", "content-length": str(len(body))}


def sorted_out(replies: list[Reply], created: int) -> None:
    """As many as there were places have one, and all others are refused."""
    assert sum(reply.status == created for reply in replies) == QUOTA
    errors = [reply.error for reply in replies if reply.status != created]
    assert errors == [(403, "quota_exhausted")] * (AT_ONCE - QUOTA)


def test_basins_up_to_the_quota_and_what_exists_is_answered_as_ever(rig: Rig) -> None:
    api = rig.api
    token = {"s2-request-token": "again"}
    names = [f"quota-basin-{number}" for number in range(QUOTA)]
    for name in names:
        assert api.post("/v1/basins", {"basin": name}, token).status == 201
    refused(api.post("/v1/basins", {"basin": "one-too-many"}), "the quota of basins")
    refused(api.put("/v1/basins/one-too-many"), "the quota of basins")
    replay = api.post("/v1/basins", {"basin": names[0]}, token)
    assert (replay.status, replay.header("s2-provision-result")) == (201, "noop")
    assert api.post("/v1/basins", {"basin": names[0]}).error == (409, "resource_already_exists")
    assert api.put(f"/v1/basins/{names[0]}").header("s2-provision-result") == "noop"
    changed = api.send_json("PUT", f"/v1/basins/{names[0]}", AUTO)
    assert (changed.status, changed.header("s2-provision-result")) == (200, "updated")
    elsewhere = {"basin": "one-too-many", "location": "nowhere"}
    assert api.post("/v1/basins", elsewhere).error == (422, "invalid")
    assert api.delete(f"/v1/basins/{names[0]}").status == 202
    eventually(lambda: api.put("/v1/basins/the-next-one").status == 201)


def test_of_many_who_create_basins_at_once_exactly_the_quota_succeeds(rig: Rig) -> None:
    calls = []
    for number in range(AT_ONCE):
        if number % 2:
            calls.append(rig.api.begin("PUT", f"/v1/basins/at-once-{number:02}", body=b""))
        else:
            body = b'{"basin":"at-once-%02d"}' % number
            calls.append(rig.api.begin("POST", "/v1/basins", JSON, body=body))
    sorted_out([reply_of(call) for call in calls], 201)
    assert len(rig.api.get("/v1/basins").json["basins"]) == QUOTA


def test_streams_up_to_the_quota_of_each_basin(rig: Rig) -> None:
    one, two = rig.basin(), rig.basin()
    names = rig.fill(one)
    what = "the basin's quota of streams"
    refused(one.put(f"{STREAMS}/more"), what)
    refused(one.post(STREAMS, {"stream": "more"}), what)
    assert one.put(f"{STREAMS}/{names[0]}").header("s2-provision-result") == "noop"
    assert one.post(STREAMS, {"stream": names[0]}).error == (409, "resource_already_exists")
    assert one.append(names[0], "a").status == 200
    assert rig.fill(two) == names
    assert one.delete(f"{STREAMS}/{names[0]}").status == 202
    eventually(lambda: one.put(f"{STREAMS}/next").status == 201)
    refused(one.put(f"{STREAMS}/more"), what)


def test_streams_that_make_themselves_count_alike(rig: Rig) -> None:
    api = rig.basin(**AUTO)
    names = rig.fill(api)
    what = "the basin's quota of streams"
    refused(api.append("more", "a"), what)
    refused(api.get(f"{STREAMS}/more/records?seq_num=0"), what)
    refused(api.get(f"{STREAMS}/more/records/tail"), what)
    refused(api.get(f"{STREAMS}/more/records", SESSION), what)
    refused(api.request("POST", f"{STREAMS}/more/records", SESSION, b""), what)
    assert api.append(names[0], "a").status == 200
    assert len(api.get(STREAMS).json["streams"]) == QUOTA


def test_of_many_who_append_to_new_streams_at_once_exactly_the_quota_succeeds(rig: Rig) -> None:
    api = rig.basin(**AUTO)
    body = b'{"records":[{"body":"a"}]}'
    calls = [
        api.begin("POST", f"{STREAMS}/s{number}/records", JSON, body=body)
        for number in range(AT_ONCE)
    ]
    sorted_out([reply_of(call) for call in calls], 200)
    assert len(api.get(STREAMS).json["streams"]) == QUOTA


def test_tokens_up_to_the_quota_beside_the_root_token(rig: Rig) -> None:
    api = rig.api
    calls = [
        api.begin("POST", TOKENS, JSON, body=b'{"id":"t%d","scope":{"ops":["read"]}}' % number)
        for number in range(AT_ONCE)
    ]
    sorted_out([reply_of(call) for call in calls], 201)
    what = "the quota of access tokens"
    refused(api.post(TOKENS, {"id": "more", "scope": EVERYTHING}), what, "revoke")
    kept = [row["id"] for row in api.get(TOKENS).json["access_tokens"] if row["id"] != "root"]
    assert len(kept) == QUOTA
    again = api.post(TOKENS, {"id": kept[0], "scope": EVERYTHING})
    assert again.error == (409, "resource_already_exists")
    assert api.delete(f"{TOKENS}/{kept[0]}").status == 204
    assert api.post(TOKENS, {"id": "more", "scope": EVERYTHING}).status == 201


def test_a_token_that_has_expired_holds_no_place(rig: Rig) -> None:
    end = format_ms(rig.clock.now_ms() + 60_000)
    for number in range(QUOTA):
        wanted = {"id": f"t{number}", "scope": EVERYTHING, "expires_at": end}
        assert rig.api.post(TOKENS, wanted).status == 201
    assert rig.api.post(TOKENS, {"id": "more", "scope": EVERYTHING}).status == 403
    rig.server.call(lambda: rig.clock.advance(61))
    for number in range(QUOTA):
        assert rig.api.post(TOKENS, {"id": f"n{number}", "scope": EVERYTHING}).status == 201
    assert rig.api.post(TOKENS, {"id": "more", "scope": EVERYTHING}).status == 403
