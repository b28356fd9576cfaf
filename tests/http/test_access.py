"""Every operation on every route, by scopes of every kind: allowed, or refused with 401 and 403."""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest

from bourn.http.operations import OPERATIONS
from bourn.http.routing import METHODS, Route
from bourn.model.access import BASIN_OPS, GROUP_OPS, STREAM_OPS, TOKEN_OPS, Op
from tests.http.access import ROOT, TOKENS, TokenApi, exact, prefix
from tests.http.clients import Api, Connected, Reply
from tests.http.server import LOCATION, LoopThread, Server

BASIN = "access-basin"
STREAM = "logs/app"
OPEN_ROUTES = {Route.HEALTH, Route.METRICS, Route.OPENAPI}
NUMBERS = count(1)


class Case(NamedTuple):
    """A request that would succeed with the root token, and what it needs."""

    route: Route
    method: str
    path: str
    document: Any = None
    ops: tuple[Op, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.method} {self.route.name.lower()} {'+'.join(self.ops)}"


QUOTED = STREAM.replace("/", "%2F")
RECORDS = f"/v1/streams/{QUOTED}/records"
WINDOW = "start=0&end=60"
PATHS: dict[Route, str] = {
    Route.BASINS: "/v1/basins",
    Route.BASIN: f"/v1/basins/{BASIN}",
    Route.STREAMS: "/v1/streams",
    Route.STREAM: f"/v1/streams/{QUOTED}",
    Route.LOCATIONS: "/v1/locations",
    Route.DEFAULT_LOCATION: "/v1/locations/default",
    Route.RECORDS: RECORDS,
    Route.TAIL: f"{RECORDS}/tail",
    Route.READ_ALIAS: f"/v1/basins/{BASIN}/streams/{QUOTED}/read",
    Route.APPEND_ALIAS: f"/v1/basins/{BASIN}/streams/{QUOTED}/append",
    Route.ACCESS_TOKENS: TOKENS,
    Route.ACCESS_TOKEN: f"{TOKENS}/svc-a",
    Route.USAGE_ACCOUNT: f"/v1/metrics?set=active-basins&{WINDOW}",
    Route.USAGE_BASIN: f"/v1/metrics/{BASIN}?set=storage&{WINDOW}",
    Route.USAGE_STREAM: f"/v1/metrics/{BASIN}/{QUOTED}?set=storage&{WINDOW}",
}
BODIES: dict[tuple[Route, str], Any] = {
    (Route.BASINS, "POST"): {"basin": BASIN},
    (Route.BASIN, "PATCH"): {},
    (Route.STREAMS, "POST"): {"stream": STREAM},
    (Route.STREAM, "PATCH"): {},
    (Route.DEFAULT_LOCATION, "PUT"): LOCATION,
    (Route.RECORDS, "POST"): {"records": [{"body": "x"}]},
    (Route.APPEND_ALIAS, "POST"): {"records": [{"body": "x"}]},
    (Route.ACCESS_TOKENS, "POST"): {"id": "svc-a", "scope": {"ops": ["issue-access-token"]}},
}
CASES = [
    Case(route, method, PATHS[route], BODIES.get((route, method)), ops)
    for (route, method), ops in OPERATIONS.items()
]
FENCE = {"records": [{"headers": [["", "fence"]], "body": "t"}]}
TRIM = {"records": [{"headers": [["", "trim"]], "body": "\0" * 8}]}
CASES += [
    Case(Route.RECORDS, "POST", RECORDS, FENCE, (Op.APPEND, Op.FENCE)),
    Case(Route.RECORDS, "POST", RECORDS, TRIM, (Op.APPEND, Op.TRIM)),
]
SETS = {
    "exact": {
        "basins": exact(BASIN),
        "streams": exact(STREAM),
        "access_tokens": exact("svc-a"),
    },
    "prefix": {
        "basins": prefix("access-"),
        "streams": prefix("logs/"),
        "access_tokens": prefix("svc-"),
    },
    "all": {"basins": prefix(""), "streams": prefix(""), "access_tokens": prefix("")},
}
OTHER_SETS = {
    "none": None,
    "another": exact("another-name"),
    "longer": prefix("longer-than-all-the-names"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=False, root_token=ROOT) as running:
        yield running


@pytest.fixture(scope="module")
def root(server: Server, client_thread: LoopThread) -> Iterator[TokenApi]:
    with Connected("h1", server.port, client_thread) as connected:
        api = TokenApi(connected.client, BASIN, ROOT)
        assert api.put(f"/v1/basins/{BASIN}").status == 201
        assert api.put(f"/v1/streams/{QUOTED}").status == 201
        yield api


def ask(api: Api, case: Case) -> Reply:
    if case.document is not None:
        return api.send_json(case.method, case.path, case.document)
    return api.request(case.method, case.path)


def was_allowed(reply: Reply) -> bool:
    """Whatever else it says, nothing was amiss with who asked."""
    return reply.status not in {401, 403}


def issue(root: TokenApi, scope: dict[str, Any]) -> TokenApi:
    return root.issue(f"case-{next(NUMBERS)}", **scope)


def refused(reply: Reply) -> bool:
    return reply.status == 403 and reply.error == (403, "permission_denied")


def test_the_table_has_every_route_and_method_that_needs_a_token() -> None:
    everything = {
        (route, method)
        for route, methods in METHODS.items()
        for method in methods
        if route not in OPEN_ROUTES
    }
    assert OPERATIONS.keys() == everything
    assert {op for ops in OPERATIONS.values() for op in ops} == set(Op) - {Op.TRIM, Op.FENCE}


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_operations_on_the_resource_suffice(root: TokenApi, case: Case, kind: str) -> None:
    assert was_allowed(ask(issue(root, {**SETS[kind], "ops": list(case.ops)}), case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_other_operations_do_not_suffice(root: TokenApi, case: Case) -> None:
    for missing in case.ops:
        others = [op for op in Op if op is not missing]
        assert refused(ask(issue(root, {**SETS["all"], "ops": others}), case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_groups_of_the_operations_suffice_and_all_other_groups_do_not(
    root: TokenApi, case: Case
) -> None:
    granting = [halves for halves, ops in GROUP_OPS.items() if set(case.ops) & ops]
    needed = {op: [halves for halves, ops in GROUP_OPS.items() if op in ops] for op in case.ops}
    assert all(needed.values())
    one_of_each = {halves[0] for halves in needed.values()}
    assert was_allowed(ask(issue(root, {**SETS["exact"], "op_groups": groups(one_of_each)}), case))
    others = set(GROUP_OPS) - set(granting)
    assert refused(ask(issue(root, {**SETS["all"], "op_groups": groups(others)}), case))


def groups(halves: set[tuple[str, str]]) -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {}
    for group, half in halves:
        found.setdefault(group, {})[half] = True
    return found


@pytest.mark.parametrize("kind", OTHER_SETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_operations_on_other_resources_do_not_suffice(
    root: TokenApi, case: Case, kind: str
) -> None:
    checked = {
        "basins": BASIN_OPS.intersection(case.ops),
        "streams": STREAM_OPS.intersection(case.ops),
        "access_tokens": TOKEN_OPS.intersection(case.ops),
    }
    for name, ops in checked.items():
        other = exact("another-basin") if name == "basins" and kind == "another" else None
        scope = {**SETS["all"], name: other or OTHER_SETS[kind], "ops": list(case.ops)}
        reply = ask(issue(root, scope), case)
        assert refused(reply) if ops else was_allowed(reply)


@pytest.mark.parametrize("version", ["h1", "h1-first", "h2"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_a_token_that_is_in_force_nothing_is_done(
    server: Server, root: TokenApi, client_thread: LoopThread, case: Case, version: str
) -> None:
    with Connected(version, server.port, client_thread) as connected:
        anybody = Api(connected.client, BASIN)
        fields = {} if case.document is None else {"content-type": "application/json"}
        for value in (None, "", "Bearer", "Bearer ", "Basic dTpw", f"Basic {ROOT}", "Bearer no"):
            named = fields if value is None else {**fields, "authorization": value}
            reply = anybody.request(case.method, case.path, named, b"{")
            assert reply.error == (401, "authn")
            assert reply.header("www-authenticate") == "Bearer"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_permission_comes_before_existence(root: TokenApi, case: Case) -> None:
    missing = case._replace(
        path=case.path.replace(BASIN, "no-such-basin").replace(QUOTED, "nothing")
    )
    others = [op for op in Op if op not in case.ops]
    allowed_to_nobody = issue(root, {**SETS["all"], "ops": others})
    assert refused(ask(allowed_to_nobody.of("no-such-basin"), missing))


@pytest.mark.parametrize("value", [f"Bearer {ROOT}", f"bearer {ROOT}", f"BEARER   {ROOT}  "])
def test_the_scheme_is_bearer_in_any_case(root: TokenApi, value: str) -> None:
    reply = Api(root.client, None).get("/v1/basins", {"authorization": value})
    assert reply.status == 200


def test_the_first_authorization_counts(root: TokenApi) -> None:
    anybody = Api(root.client, None)
    good, bad = ("authorization", f"Bearer {ROOT}"), ("authorization", "Bearer wrong")
    assert anybody.get("/v1/basins", [good, bad]).status == 200
    assert anybody.get("/v1/basins", [bad, good]).status == 401
    assert anybody.get("/v1/basins", [("authorization", b"Bearer \xff\xfe")]).status == 401


def test_what_operators_ask_needs_no_token(root: TokenApi) -> None:
    anybody = Api(root.client, None)
    for path in ("/health", "/ping", "/metrics"):
        assert anybody.get(path).status == 200
    assert anybody.get("/v1/nothing").status == 404
    assert anybody.request("TRACE", "/v1/basins").status == 405


def test_a_refusal_comes_before_everything_but_routing(root: TokenApi) -> None:
    anybody = Api(root.client, None)
    assert anybody.get("/v1/basins/X").status == 401
    assert anybody.get("/v1/streams").status == 401
    coded = {"content-encoding": "br", "content-type": "application/json"}
    assert anybody.request("POST", "/v1/basins", coded, b"x").status == 401


def test_an_append_creates_its_stream_without_the_operation_to_create_one(root: TokenApi) -> None:
    config = {"create_stream_on_append": True, "create_stream_on_read": True}
    assert root.post("/v1/basins", {"basin": "auto-create-basin", "config": config}).status == 201
    scope = {"basins": prefix("auto"), "streams": prefix("a")}
    writer = issue(root, {**scope, "ops": ["append"]}).of("auto-create-basin")
    assert writer.append("a1", "x").status == 200
    assert refused(writer.append("b1", "x"))
    reader = issue(root, {**scope, "ops": ["check-tail"]}).of("auto-create-basin")
    assert reader.get("/v1/streams/a2/records/tail").status == 200
    assert refused(reader.get("/v1/streams/b2/records/tail"))
    names = root.of("auto-create-basin").get("/v1/streams").json["streams"]
    assert [stream["name"] for stream in names] == ["a1", "a2"]
