"""Access tokens over HTTP: issue, list, revoke, and lists that show no more than they may."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.model.instants import format_ms
from tests.http.access import EVERYTHING, ROOT, TOKENS, TokenApi, exact, prefix
from tests.http.clients import Api, Connected
from tests.http.conftest import BASIN
from tests.http.server import LoopThread, Server

NUMBERS = count(1)
READ = {"basins": prefix(""), "streams": prefix(""), "ops": ["read"]}
FULL_HALF = {"read": True, "write": True}


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Server]:
    with Server(cors=False, root_token=ROOT, clock=clock) as running:
        yield running


@pytest.fixture
def root(server: Server, version: str, client_thread: LoopThread) -> Iterator[TokenApi]:
    with Connected(version, server.port, client_thread) as connected:
        api = TokenApi(connected.client, BASIN, ROOT)
        assert api.put(f"/v1/basins/{BASIN}").status in {200, 201}
        yield api


def new_id() -> str:
    return f"token-{next(NUMBERS):04}"


def ids(api: TokenApi, query: str = "") -> list[str]:
    return [item["id"] for item in api.get(f"{TOKENS}?{query}").json["access_tokens"]]


# Issue


def test_a_token_works_from_its_answer_on_until_it_is_revoked(root: TokenApi) -> None:
    token_id = new_id()
    reply = root.post(TOKENS, {"id": token_id, "scope": READ})
    assert (reply.status, list(reply.json)) == (201, ["access_token"])
    secret = reply.json["access_token"]
    assert len(secret) > 40
    assert all("!" <= c <= "~" for c in secret)
    user = root.with_token(secret)
    assert user.get("/v1/streams/nothing/records").error == (404, "stream_not_found")
    revoked = root.delete(f"{TOKENS}/{token_id}")
    assert (revoked.status, revoked.body) == (204, b"")
    assert revoked.named in ({}, {"content-length": "0"})  # HTTP/1.1 has none with a 204
    assert user.get("/v1/streams/nothing/records").error == (401, "authn")
    assert root.delete(f"{TOKENS}/{token_id}").error == (404, "access_token_not_found")


def test_a_token_is_listed_as_it_was_asked_for(root: TokenApi) -> None:
    token_id = new_id()
    scope = {
        "basins": exact("one-basin"),
        "streams": prefix("é/"),
        "op_groups": {"stream": {"read": True}},
        "ops": ["append"],
    }
    end = "2030-01-01T00:00:00.123456789Z"
    root.issued(token_id, scope, expires_at=end, auto_prefix_streams=True)
    none = {"read": False, "write": False}
    assert root.get(f"{TOKENS}?prefix={token_id}").json == {
        "access_tokens": [
            {
                "id": token_id,
                "expires_at": end,
                "auto_prefix_streams": True,
                "scope": {
                    "basins": {"exact": "one-basin"},
                    "streams": {"prefix": "é/"},
                    "access_tokens": None,
                    "op_groups": {
                        "account": none,
                        "basin": none,
                        "stream": {"read": True, "write": False},
                    },
                    "ops": ["append"],
                },
            }
        ],
        "has_more": False,
    }


def test_the_root_token_is_listed_and_cannot_be_taken_or_revoked(root: TokenApi) -> None:
    (shown,) = root.get(f"{TOKENS}?prefix=root").json["access_tokens"]
    assert shown["id"] == "root"
    assert shown["expires_at"] is None
    assert shown["scope"]["op_groups"] == dict.fromkeys(("account", "basin", "stream"), FULL_HALF)
    assert root.delete(f"{TOKENS}/root").error == (422, "invalid")
    taken = root.post(TOKENS, {"id": "root", "scope": READ})
    assert taken.error == (409, "resource_already_exists")
    assert root.get("/v1/basins").status == 200


def test_no_secret_is_issued_twice(root: TokenApi) -> None:
    assert root.issued(new_id(), READ) != root.issued(new_id(), READ)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"id": "x", "scope": {}}, (422, "invalid")),
        ({"id": "x", "scope": {"op_groups": {"stream": {"read": False}}}}, (422, "invalid")),
        ({"id": "x", "scope": READ, "expires_at": "2020-01-01T00:00:00Z"}, (422, "invalid")),
        (
            {
                "id": "x",
                "scope": {"streams": exact("s"), "ops": ["read"]},
                "auto_prefix_streams": True,
            },
            (422, "invalid"),
        ),
        ({"id": "x", "scope": {"ops": ["fly"]}}, (400, "bad_json")),
        ({"id": "..", "scope": READ}, (400, "bad_json")),
        ({"id": "x"}, (400, "bad_json")),
    ],
)
def test_what_cannot_be_issued(root: TokenApi, document: Any, expected: tuple[int, str]) -> None:
    assert root.post(TOKENS, document).error == expected
    assert "x" not in ids(root)


def test_an_id_is_taken_while_its_token_is_in_force(
    server: Server, root: TokenApi, clock: ManualClock
) -> None:
    token_id = new_id()
    end = format_ms(clock.now_ms() + 10_000)
    first = root.issued(token_id, READ, expires_at=end)
    taken = root.post(TOKENS, {"id": token_id, "scope": READ})
    assert taken.error == (409, "resource_already_exists")
    server.call(lambda: clock.advance(10))
    path = "/v1/streams/nothing/records"
    assert root.with_token(first).get(path).error == (401, "authn")
    assert token_id not in ids(root)
    assert root.delete(f"{TOKENS}/{token_id}").error == (404, "access_token_not_found")
    second = root.issued(token_id, READ)
    assert root.with_token(first).get(path).error == (401, "authn")
    assert root.with_token(second).get(path).error == (404, "stream_not_found")


def test_what_is_wrong_with_the_request_comes_first(root: TokenApi) -> None:
    assert root.get(f"{TOKENS}?limit=x").error == (400, "bad_query")
    assert root.get(f"{TOKENS}?prefix={'x' * 97}").error == (400, "bad_query")
    assert root.delete(f"{TOKENS}/{'x' * 97}").error == (400, "bad_path")
    assert root.delete(f"{TOKENS}/..").error == (400, "bad_path")
    assert root.post(TOKENS, b"[]").error == (400, "bad_json")
    assert root.post(TOKENS, b"{").error == (400, "bad_json")


# No escalation


@pytest.mark.parametrize(
    "wider",
    [
        {"ops": ["read", "append"]},
        {"op_groups": {"stream": {"read": True}}},
        {"basins": prefix("")},
        {"streams": prefix("t")},
        {"streams": prefix("u/")},
        {"streams": exact("t")},
        {"access_tokens": prefix("token-")},
    ],
)
def test_a_token_issues_nothing_wider_than_itself(root: TokenApi, wider: dict[str, Any]) -> None:
    own = {"basins": exact(BASIN), "streams": prefix("t/"), "access_tokens": prefix("token-0")}
    issuer = root.issue(new_id(), **own, ops=["read", "issue-access-token"])
    narrow = {"basins": exact(BASIN), "streams": prefix("t/u"), "ops": ["read"]}
    assert issuer.post(TOKENS, {"id": new_id(), "scope": narrow}).status == 201
    refused = issuer.post(TOKENS, {"id": new_id(), "scope": narrow | wider})
    assert refused.error == (403, "permission_denied")
    other_id = issuer.post(TOKENS, {"id": f"x-{new_id()}", "scope": narrow})
    assert other_id.error == (403, "permission_denied")


def test_a_token_ends_no_later_than_its_issuer(root: TokenApi) -> None:
    scope = EVERYTHING
    issuer = root.with_token(root.issued(new_id(), scope, expires_at="2030-01-01T00:00:00Z"))
    later = {"id": new_id(), "scope": READ, "expires_at": "2030-01-01T00:00:00.000000001Z"}
    assert issuer.post(TOKENS, later).error == (403, "permission_denied")
    inherited = new_id()
    issuer.issued(inherited, READ)
    (shown,) = root.get(f"{TOKENS}?prefix={inherited}").json["access_tokens"]
    assert shown["expires_at"] == "2030-01-01T00:00:00Z"


def test_what_a_token_that_prefixes_issues_stays_inside_its_prefix(root: TokenApi) -> None:
    scope = {"basins": prefix(""), "streams": prefix("p/"), "access_tokens": prefix("token-")}
    secret = root.issued(
        new_id(), {**scope, "ops": ["read", "issue-access-token"]}, auto_prefix_streams=True
    )
    issuer = root.with_token(secret)
    for streams in (prefix(""), prefix("q/"), prefix("p"), exact("q")):
        wider = {"basins": prefix(""), "streams": streams, "ops": ["read"]}
        for auto in (False, True):
            body = {"id": new_id(), "scope": wider, "auto_prefix_streams": auto}
            if auto and "exact" in streams:
                continue
            assert issuer.post(TOKENS, body).error == (403, "permission_denied")
    inside = {"basins": prefix(""), "streams": prefix("p/q/"), "ops": ["read"]}
    assert issuer.post(TOKENS, {"id": new_id(), "scope": inside}).status == 201


def test_a_token_may_revoke_itself_if_it_may_revoke(root: TokenApi) -> None:
    token_id = new_id()
    own = root.issue(token_id, access_tokens=exact(token_id), ops=["revoke-access-token"])
    assert own.delete(f"{TOKENS}/root").error == (403, "permission_denied")
    assert own.delete(f"{TOKENS}/{token_id}").status == 204
    assert own.delete(f"{TOKENS}/{token_id}").error == (401, "authn")


# Lists


def pages(api: TokenApi, path: str, member: str, name: str, limit: int) -> list[str]:
    """All names of a list, by its pages, none of which may be empty and not the last."""
    found: list[str] = []
    start_after = ""
    while True:
        page = api.get(f"{path}?limit={limit}&start_after={start_after}").json
        found += [item[name] for item in page[member]]
        assert len(page[member]) == limit or not page["has_more"]
        if not page["has_more"]:
            return found
        start_after = found[-1]


@pytest.fixture(scope="module")
def crowded(server: Server, client_thread: LoopThread) -> None:
    """Ten basins, ten streams and ten tokens, of two kinds."""
    with Connected("h1", server.port, client_thread) as connected:
        api = TokenApi(connected.client, "crowd-a-0", ROOT)
        for kind in "ab":
            for index in range(5):
                assert api.put(f"/v1/basins/crowd-{kind}-{index}").status == 201
        for kind in "ab":
            for index in range(5):
                assert api.put(f"/v1/streams/{kind}-{index}").status == 201
                api.issued(f"crowd-{kind}-{index}", READ)


CROWD = {
    "none": (None, []),
    "exact": (exact("crowd-b-2"), ["crowd-b-2"]),
    "missing": (exact("crowd-c-2"), []),
    "prefix": (prefix("crowd-b"), [f"crowd-b-{index}" for index in range(5)]),
    "nothing": (prefix("crowd-x"), []),
}


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize("kind", CROWD)
def test_lists_of_basins_and_tokens_show_what_is_allowed_page_by_page(
    root: TokenApi, crowded: None, kind: str, limit: int
) -> None:
    allowed, expected = CROWD[kind]
    ops = ["list-basins", "list-access-tokens"]
    user = root.issue(new_id(), basins=allowed, access_tokens=allowed, ops=ops)
    assert pages(user, "/v1/basins", "basins", "name", limit) == expected
    assert pages(user, TOKENS, "access_tokens", "id", limit) == expected


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, []),
        (exact("b-2"), ["b-2"]),
        (exact("b"), []),
        (prefix("b-"), [f"b-{index}" for index in range(5)]),
        (prefix("x"), []),
    ],
)
def test_lists_of_streams_show_what_is_allowed_page_by_page(
    root: TokenApi, crowded: None, allowed: Any, expected: list[str], limit: int
) -> None:
    user = root.issue(new_id(), basins=prefix(""), streams=allowed, ops=["list-streams"])
    user = user.of("crowd-a-0")
    assert pages(user, "/v1/streams", "streams", "name", limit) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("prefix=crowd", ["crowd-b-0", "crowd-b-1"]),
        ("prefix=crowd-b-1", ["crowd-b-1"]),
        ("prefix=crowd-a", []),
        ("start_after=crowd-b-0", ["crowd-b-1", "crowd-b-2"]),
        ("start_after=crowd-a", ["crowd-b-0", "crowd-b-1"]),
        ("start_after=z", []),
    ],
)
def test_what_is_wanted_and_what_is_allowed_meet(
    root: TokenApi, crowded: None, query: str, expected: list[str]
) -> None:
    user = root.issue(new_id(), basins=prefix("crowd-b"), ops=["list-basins"])
    page = user.get(f"/v1/basins?limit=2&{query}").json
    assert [item["name"] for item in page["basins"]] == expected
    one = root.issue(new_id(), basins=exact("crowd-b-1"), ops=["list-basins"])
    page = one.get(f"/v1/basins?{query}").json
    expected_one = [name for name in expected if name == "crowd-b-1"]
    assert ([item["name"] for item in page["basins"]], page["has_more"]) == (expected_one, False)


def test_a_list_of_streams_of_a_basin_that_is_not_allowed_is_refused(root: TokenApi) -> None:
    user = root.issue(new_id(), basins=exact("crowd-a-1"), streams=prefix(""), ops=["list-streams"])
    assert user.get("/v1/streams").error == (403, "permission_denied")


def test_active_basins_are_those_that_may_be_known(
    root: TokenApi, crowded: None, clock: ManualClock
) -> None:
    for basin in ("crowd-a-0", "crowd-b-0"):
        assert root.of(basin).put("/v1/streams/active").status in {200, 201}
    now = clock.now_ms() // 1000
    path = f"/v1/metrics?set=active-basins&start={now - 3600}&end={now + 1}"

    def active(api: TokenApi) -> list[str]:
        (metric,) = api.get(path).json["values"]
        names: list[str] = metric["label"]["values"]
        return names

    assert {"crowd-a-0", "crowd-b-0"} <= set(active(root))
    user = root.issue(new_id(), basins=prefix("crowd-b"), ops=["account-metrics"])
    assert active(user) == ["crowd-b-0"]


# Restarts


def test_tokens_live_on_behind_a_restart_and_revoked_ones_stay_so(
    version: str, client_thread: LoopThread
) -> None:
    bucket = MemoryBucket()
    with (
        Server(cors=False, root_token=ROOT, bucket=bucket) as before,
        Connected(version, before.port, client_thread) as connected,
    ):
        api = TokenApi(connected.client, BASIN, ROOT)
        kept, gone = api.issued("kept", READ), api.issued("gone", READ)
        assert api.delete(f"{TOKENS}/gone").status == 204
    for root in (ROOT, "another-root-token"):
        with (
            Server(cors=False, root_token=root, bucket=bucket) as again,
            Connected(version, again.port, client_thread) as connected,
        ):
            api = TokenApi(connected.client, BASIN, root)
            assert ids(api) == ["kept", "root"]
            path = "/v1/streams/nothing/records"
            assert api.with_token(kept).get(path).status == 404
            assert api.with_token(gone).get(path).status == 401
            other = ({ROOT, "another-root-token"} - {root}).pop()
            assert api.with_token(other).get("/v1/basins").status == 401


def test_in_open_mode_any_token_will_do_and_tokens_can_be_issued(
    client_thread: LoopThread, version: str
) -> None:
    with (
        Server(cors=False) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        anybody = Api(connected.client, BASIN)
        assert anybody.get("/v1/basins").status == 200
        assert TokenApi(connected.client, BASIN, "anything").get("/v1/basins").status == 200
        issued = anybody.post(TOKENS, {"id": "t", "scope": READ})
        assert issued.status == 201
        narrow = TokenApi(connected.client, BASIN, issued.json["access_token"])
        assert narrow.put(f"/v1/basins/{BASIN}").status == 201
        assert ids(narrow) == ["t"]
        assert narrow.delete(f"{TOKENS}/t").status == 204
