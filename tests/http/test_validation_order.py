"""Which of several mistakes a client is told of: the earlier one in the order of validation.

Every call is described by its mistakes in that order; each pair that one request can make at once
is tried, and all that it can make at once.
"""

from itertools import combinations
from typing import NamedTuple

import pytest

from tests.http.clients import FICKLE, Api


@pytest.fixture(params=["h1", FICKLE, "h2"])
def version(request: pytest.FixtureRequest) -> str:
    """The quick way too: see H1Client."""
    found: str = request.param
    return found


class Mistake(NamedTuple):
    """Wrong parts of a request, and what the client is told if nothing else is wrong before."""

    told: str
    parts: dict[str, str]


TOKEN = Mistake("400 bad_header `s2-request-token`", {"token": "t" * 37})
BASIN = Mistake("400 bad_header `s2-basin`", {"basin": "X"})
NO_BASIN = Mistake("400 bad_header Missing header `s2-basin`", {"basin": ""})
PATH = Mistake("400 bad_path Invalid URL", {"path": "%FF"})
QUERY = Mistake("400 bad_query", {"query": "seq_num=x"})
LIST_QUERY = Mistake("400 bad_query", {"query": "limit=x"})
MEDIA = Mistake("400 bad_json Expected request", {"media": "text/plain"})
KEY = Mistake("400 bad_header `s2-encryption-key`", {"key": "A" * 45})
CONFIG = Mistake("400 bad_header `s2-stream-config`", {"config": "{"})
FORMAT = Mistake("400 bad_header `s2-format`", {"format": "X"})
RESUME = Mistake("400 bad_header `last-event-id`", {"resume": "X"})
JSON_BODY = Mistake("400 bad_json", {"body": "{"})
PROTO_BODY = Mistake("400 bad_proto", {"body": "\x7f"})
EMPTY_BATCH = Mistake("422 invalid record batch", {"body": '{"records":[]}'})
EMPTY_PROTO = Mistake("422 invalid record batch", {"body": ""})
RANGE = Mistake("422 invalid only one of", {"query": "seq_num=1&timestamp=1"})
RETENTION = Mistake("422 invalid age", {"body": '{"stream":"x","retention_policy":{"age":0}}'})
LOST_BASIN = Mistake("404 basin_not_found", {"basin": "no-such-basin"})
LOST_STREAM = Mistake("404 stream_not_found", {"path": "missing"})
CONDITION = Mistake("412 seq_num_mismatch", {"body": '{"records":[{}],"match_seq_num":9}'})
PROTO_CONDITION = Mistake("412 seq_num_mismatch", {"body": "\x0a\x00\x10\x09"})
UNWRITTEN = Mistake("416 tail", {"query": "seq_num=9"})


class Endpoint(NamedTuple):
    """A call that succeeds, and its mistakes in order."""

    method: str
    path: str
    parts: dict[str, str]
    mistakes: list[Mistake]


JSON = "application/json"
RECORDS = "/v1/streams/{}/records"
LOOKUP = [LOST_STREAM]
ENDPOINTS = {
    "append, JSON": Endpoint(
        "POST",
        RECORDS,
        {"media": JSON, "body": '{"records":[{}]}'},
        [BASIN, PATH, MEDIA, KEY, CONFIG, FORMAT, JSON_BODY, EMPTY_BATCH, *LOOKUP, CONDITION],
    ),
    "append, protobuf": Endpoint(
        "POST",
        RECORDS,
        {"media": "application/protobuf", "body": "\x0a\x00"},
        [NO_BASIN, PATH, KEY, CONFIG, PROTO_BODY, EMPTY_PROTO, *LOOKUP, PROTO_CONDITION],
    ),
    "append session": Endpoint(
        "POST", RECORDS, {"media": "s2s/proto"}, [BASIN, PATH, KEY, CONFIG, LOST_BASIN, *LOOKUP]
    ),
    "read": Endpoint(
        "GET",
        RECORDS,
        {"query": "count=0"},
        [BASIN, PATH, QUERY, KEY, CONFIG, FORMAT, RANGE, *LOOKUP, UNWRITTEN],
    ),
    "read session": Endpoint(
        "GET",
        RECORDS,
        {"query": "count=0", "media": "s2s/proto"},
        [NO_BASIN, PATH, QUERY, KEY, CONFIG, RANGE, *LOOKUP],
    ),
    "events": Endpoint(
        "GET",
        RECORDS,
        {"query": "count=0", "accept": "text/event-stream"},
        [BASIN, PATH, QUERY, KEY, CONFIG, FORMAT, RESUME, RANGE, *LOOKUP],
    ),
    "check of the tail": Endpoint("GET", RECORDS + "/tail", {}, [BASIN, PATH, *LOOKUP]),
    "list of streams": Endpoint("GET", "/v1/streams", {}, [BASIN, LIST_QUERY, LOST_BASIN]),
    "create a stream": Endpoint(
        "POST",
        "/v1/streams",
        {"media": JSON, "body": '{"stream":"new"}'},
        [TOKEN, BASIN, MEDIA, JSON_BODY, LOST_BASIN],
    ),
    "ensure a stream": Endpoint(
        "PUT",
        "/v1/streams/{}",
        {"media": JSON, "body": "{}"},
        [NO_BASIN, PATH, MEDIA, JSON_BODY, RETENTION, LOST_BASIN],
    ),
    "reconfigure a stream": Endpoint(
        "PATCH",
        "/v1/streams/{}",
        {"media": JSON, "body": "{}"},
        [BASIN, PATH, MEDIA, JSON_BODY, RETENTION, *LOOKUP],
    ),
    "configuration of a stream": Endpoint("GET", "/v1/streams/{}", {}, [BASIN, PATH, *LOOKUP]),
    "delete a stream": Endpoint("DELETE", "/v1/streams/{}", {}, [NO_BASIN, PATH, *LOOKUP]),
}
HEADERS = {
    "token": "s2-request-token",
    "basin": "s2-basin",
    "media": "content-type",
    "accept": "accept",
    "key": "s2-encryption-key",
    "config": "s2-stream-config",
    "format": "s2-format",
    "resume": "last-event-id",
}


def asked(api: Api, endpoint: Endpoint, parts: dict[str, str]) -> str:
    """Make the call with these parts and say what came back."""
    path = endpoint.path.replace("{}", parts.get("path", "there"))
    if "query" in parts:
        path += "?" + parts["query"]
    headers = {HEADERS[name]: value for name, value in parts.items() if name in HEADERS}
    if not headers["s2-basin"]:
        del headers["s2-basin"]
    body = parts.get("body", "").encode("latin-1")
    reply = api.of(None).request(endpoint.method, path, headers, body)
    if "code" not in reply.json:
        return f"{reply.status} {' '.join(reply.json)}"
    return f"{reply.status} {reply.json['code']} {reply.json['message']}"


def is_told(told: str, mistake: Mistake) -> bool:
    return all(word in told for word in mistake.told.split())


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_earlier_mistake_is_told(api: Api, name: str) -> None:
    endpoint = ENDPOINTS[name]
    api.put("/v1/streams/there")
    right = {"basin": api.basin or "", **endpoint.parts}
    for mistake in endpoint.mistakes:
        told = asked(api, endpoint, {**right, **mistake.parts})
        assert is_told(told, mistake), (mistake, told)
    for first, second in combinations(endpoint.mistakes, 2):
        if not first.parts.keys() & second.parts.keys():
            told = asked(api, endpoint, {**right, **first.parts, **second.parts})
            assert is_told(told, first), (first, second, told)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_of_all_mistakes_at_once_the_first_is_told_and_mending_it_tells_the_next(
    api: Api, name: str
) -> None:
    endpoint = ENDPOINTS[name]
    api.put("/v1/streams/there")
    for index, mistake in enumerate(endpoint.mistakes):
        parts = {"basin": api.basin or "", **endpoint.parts}
        for later in reversed(endpoint.mistakes[index:]):
            parts.update(later.parts)
        told = asked(api, endpoint, parts)
        assert is_told(told, mistake), (mistake, told)


def test_a_malformed_request_creates_nothing_even_where_streams_are_created_by_use(
    api: Api,
) -> None:
    flags = {"create_stream_on_append": True, "create_stream_on_read": True}
    auto = api.of("auto-basin-order")
    auto.send_json("PUT", "/v1/basins/auto-basin-order", {"config": flags})
    for name in ("append, JSON", "append, protobuf", "read", "read session", "events"):
        endpoint = ENDPOINTS[name]
        right = {"basin": auto.basin or "", **endpoint.parts, "path": "unborn"}
        for mistake in endpoint.mistakes:
            if mistake.told.startswith(("400", "422")):
                told = asked(auto, endpoint, {**right, **mistake.parts})
                assert is_told(told, mistake)
    assert auto.get("/v1/streams").json == {"streams": [], "has_more": False}


@pytest.mark.parametrize("name", ["append, JSON", "read", "ensure a stream", "delete a stream"])
def test_an_unknown_content_coding_is_told_before_everything_but_the_route(
    api: Api, name: str
) -> None:
    endpoint = ENDPOINTS[name]
    path = endpoint.path.replace("{}", "%FF")
    headers = {"content-encoding": "br", "s2-basin": "X"}
    reply = api.of(None).request(endpoint.method, path, headers)
    assert (reply.status, reply.named, reply.body) == (415, {"content-length": "0"}, b"")
    headers = {"accept-encoding": "identity;q=0", "s2-basin": "X"}
    reply = api.of(None).request(endpoint.method, path, headers)
    assert (reply.status, reply.named, reply.body) == (406, {"content-length": "0"}, b"")
