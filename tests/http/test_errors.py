"""Every error that a client can cause: its status, its code, its text."""

from collections.abc import Iterator
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.engine.lifecycle import NodeState
from bourn.errors import BucketRefused
from bourn.limits import MIB
from bourn.settings import EngineSettings
from tests.engine.harness import GatedBucket
from tests.http.clients import FICKLE, JSON, PROTO, Api, Connected, Reply, reply_of
from tests.http.conftest import BASIN
from tests.http.server import LOCATION, LoopThread, Server, eventually

STREAMS = "/v1/streams"
RECORD = {"records": [{"body": "x"}]}


@pytest.fixture(params=["h1", FICKLE, "h2"])
def version(request: pytest.FixtureRequest) -> str:
    """The quick way too: see H1Client."""
    found: str = request.param
    return found


def is_error(reply: Reply, status: int, code: str, message: str) -> None:
    assert (reply.status, reply.json) == (status, {"code": code, "message": message})
    length = str(len(reply.body))
    assert reply.named == {"content-type": "application/json", "content-length": length}


def command(name: str, value: str = "", body: str = "") -> dict[str, Any]:
    return {"records": [{"headers": [[name, value]], "body": body}]}


# Resources


def test_a_basin_that_is_not_there(api: Api) -> None:
    message = "basin `no-such-basin` not found"
    gone = api.of("no-such-basin")
    for reply in (
        api.get("/v1/basins/no-such-basin"),
        api.delete("/v1/basins/no-such-basin"),
        api.send_json("PATCH", "/v1/basins/no-such-basin", {}),
        gone.get(STREAMS),
        gone.post(STREAMS, {"stream": "s"}),
        gone.put(f"{STREAMS}/s"),
        gone.send_json("PATCH", f"{STREAMS}/s", {}),
        gone.append("s", "x"),
        gone.get(f"{STREAMS}/s/records?seq_num=0"),
        gone.get(f"{STREAMS}/s/records?seq_num=0", {"accept": "text/event-stream"}),
        gone.get(f"{STREAMS}/s/records?seq_num=0", {"content-type": "s2s/proto"}),
        gone.get(f"{STREAMS}/s/records/tail"),
    ):
        is_error(reply, 404, "basin_not_found", message)


def test_a_stream_that_is_not_there(api: Api) -> None:
    message = f"stream `no/such` in basin `{BASIN}` not found"
    path = f"{STREAMS}/no%2Fsuch"
    for reply in (
        api.get(path),
        api.delete(path),
        api.send_json("PATCH", path, {}),
        api.append("no%2Fsuch", "x"),
        api.request("POST", f"{path}/records", {"content-type": "s2s/proto"}),
        api.get(f"{path}/records?seq_num=0"),
        api.get(f"{path}/records?seq_num=0", {"accept": "text/event-stream"}),
        api.get(f"{path}/records?seq_num=0", {"content-type": "s2s/proto"}),
        api.get(f"{path}/records/tail"),
    ):
        is_error(reply, 404, "stream_not_found", message)


def test_a_stream_in_a_basin_that_is_not_there_is_missing_itself_where_only_it_is_asked_for(
    api: Api,
) -> None:
    gone = api.of("no-such-basin")
    message = "stream `s` in basin `no-such-basin` not found"
    is_error(gone.get(f"{STREAMS}/s"), 404, "stream_not_found", message)
    is_error(gone.delete(f"{STREAMS}/s"), 404, "stream_not_found", message)


def test_what_exists_is_not_created_again(api: Api, stream: str) -> None:
    is_error(
        api.post("/v1/basins", {"basin": BASIN}),
        409,
        "resource_already_exists",
        f"basin `{BASIN}` already exists",
    )
    is_error(
        api.post(STREAMS, {"stream": stream}),
        409,
        "resource_already_exists",
        f"stream `{stream}` in basin `{BASIN}` already exists",
    )


def test_an_error_comes_in_one_piece(api: Api) -> None:
    call = api.open("GET", f"{STREAMS}/{'x' * 500}/records", body=b"")
    first = call.receive()
    assert len(first) == int(dict(call.fields)["content-length"]) > 500
    assert call.receive() == b""


# Requests


def test_a_missing_basin_header(api: Api) -> None:
    bare = api.of(None)
    for method, path in (
        ("GET", STREAMS),
        ("POST", STREAMS),
        ("GET", f"{STREAMS}/s"),
        ("PUT", f"{STREAMS}/s"),
        ("PATCH", f"{STREAMS}/s"),
        ("DELETE", f"{STREAMS}/s"),
        ("GET", f"{STREAMS}/s/records"),
        ("POST", f"{STREAMS}/s/records"),
        ("GET", f"{STREAMS}/s/records/tail"),
    ):
        is_error(bare.request(method, path), 400, "bad_header", "Missing header `s2-basin`")


@pytest.mark.parametrize("value", ["", "X", "short", "under_score", "b" * 49])
def test_an_invalid_basin_header(api: Api, value: str) -> None:
    reply = api.of(value).get(STREAMS)
    assert reply.error == (400, "bad_header")
    assert reply.json["message"].startswith("Invalid header `s2-basin`: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s2-format", "utf16"),
        ("s2-format", "RAW"),
        ("s2-format", ""),
        ("s2-encryption-key", ""),
        ("s2-encryption-key", "A" * 45),
        ("s2-stream-config", ""),
        ("s2-stream-config", "{"),
        ("s2-stream-config", "[]"),
        ("s2-stream-config", '{"retention_policy":{"age":0}}'),
        ("s2-stream-config", '{"timestamping":{"mode":"other"}}'),
    ],
)
def test_an_invalid_header_of_appends_and_reads(
    api: Api, stream: str, name: str, value: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    replies = [api.post(path, RECORD, {name: value}), api.get(path, {name: value})]
    replies.append(api.get(path, {name: value, "accept": "text/event-stream"}))
    if name != "s2-format":
        replies.append(api.get(path, {name: value, "content-type": "s2s/proto"}))
        replies.append(api.request("POST", path, {name: value, "content-type": "s2s/proto"}))
    for reply in replies:
        assert reply.error == (400, "bad_header")
        assert reply.json["message"].startswith(f"Invalid header `{name}`: ")


def test_an_invalid_request_token(api: Api) -> None:
    token = {"s2-request-token": "t" * 37}
    for path, body in (("/v1/basins", {"basin": "token-basin"}), (STREAMS, {"stream": "s"})):
        reply = api.post(path, body, token)
        assert reply.error == (400, "bad_header")
        assert reply.json["message"].startswith("Invalid header `s2-request-token`: ")


@pytest.mark.parametrize(
    ("document", "status", "code", "message"),
    [
        ({"records": []}, 422, "invalid", "record batch must not be empty"),
        ({"records": [{}] * 1001}, 422, "invalid", "record batch must not exceed 1000 records"),
        (
            {"records": [{"body": "x" * (MIB // 2)}] * 2},
            422,
            "invalid",
            "record batch must not exceed a metered size of 1 MiB",
        ),
        (
            {"records": [{"body": "x" * (MIB - 7)}]},
            422,
            "invalid",
            "record must have metered size less than 1 MiB",
        ),
        (
            {"records": [{}], "fencing_token": "t" * 37},
            400,
            "bad_json",
            "fencing token must not exceed 36 bytes in length",
        ),
        (command("", "other"), 422, "invalid", "unknown command"),
        (
            command("", "fence", "t" * 37),
            422,
            "invalid",
            "invalid `fence` command: fencing token must not exceed 36 bytes in length",
        ),
        (
            command("", "trim", "1234567"),
            422,
            "invalid",
            "invalid `trim` command: earliest sequence number to trim to was 7 bytes, must be 8",
        ),
        (
            {"records": [{"headers": [["a", ""], ["", "fence"]]}]},
            422,
            "invalid",
            "invalid header: empty name",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_batch_against_the_rules(
    api: Api, stream: str, document: Any, status: int, code: str, message: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    is_error(api.post(path, document), status, code, message)
    assert api.get(f"{path}/tail").json == {"tail": {"seq_num": 0, "timestamp": 0}}


def test_the_largest_batch_and_the_largest_record_are_taken(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    assert api.post(path, {"records": [{}] * 1000}).json["end"]["seq_num"] == 1000
    assert api.post(path, {"records": [{"body": "x" * (MIB - 8)}]}).status == 200


def test_invalid_base64(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    for text in ("aGk", "aGk=\n", "a_-=", "aGl=", "é"):
        reply = api.post(path, {"records": [{"body": text}]}, {"s2-format": "base64"})
        is_error(reply, 422, "invalid", "invalid Base64 encoding")


def test_a_timestamp_that_is_required(api: Api) -> None:
    config = {"timestamping": {"mode": "client-require"}}
    assert api.send_json("PUT", f"{STREAMS}/strict", config).status in {200, 201}
    message = "record timestamp was required but was missing"
    is_error(api.append("strict", "x"), 422, "invalid", message)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "seq_num=1&timestamp=1",
            "only one of seq_num, timestamp, or tail_offset can be provided",
        ),
        (
            "tail_offset=1&seq_num=1&timestamp=1",
            "only one of seq_num, timestamp, or tail_offset can be provided",
        ),
        ("timestamp=5&until=5", "start `timestamp` exceeds or equal to `until`"),
        ("timestamp=6&until=5", "start `timestamp` exceeds or equal to `until`"),
    ],
)
def test_a_read_that_contradicts_itself(api: Api, stream: str, query: str, message: str) -> None:
    path = f"{STREAMS}/{stream}/records?{query}"
    for headers in ({}, {"accept": "text/event-stream"}, {"content-type": "s2s/proto"}):
        is_error(api.get(path, headers), 422, "invalid", message)


def test_a_retention_of_no_time(api: Api, stream: str) -> None:
    none = {"retention_policy": {"age": 0}}
    message = "age must be greater than 0 seconds"
    basin = {"default_stream_config": none}
    for reply in (
        api.post(STREAMS, {"stream": "new", "config": none}),
        api.send_json("PUT", f"{STREAMS}/new", none),
        api.send_json("PATCH", f"{STREAMS}/{stream}", none),
        api.post("/v1/basins", {"basin": "new-basin", "config": basin}),
        api.send_json("PUT", "/v1/basins/new-basin", {"config": basin}),
        api.send_json("PATCH", f"/v1/basins/{BASIN}", basin),
    ):
        is_error(reply, 422, "invalid", message)
    assert api.get(f"{STREAMS}/new").status == 404
    assert api.get("/v1/basins/new-basin").status == 404


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"records"',
    b'{"records":[{}]} x',
    b'{"records":[{"body":"\xff"}]}',
    b'{"records":[{"body":"\\ud800"}]}',
    b'{"records":[{"timestamp":-1}]}',
    b'{"records":[{"timestamp":1.5}]}',
    b'{"records":[{"timestamp":18446744073709551616}]}',
    b'{"records":[{"timestamp":"1"}]}',
    b'{"records":[{}],"match_seq_num":-1}',
    b'{"records":[{}],"records":[{}]}',
    b'{"records":[{"body":1}]}',
    b'{"records":[{"headers":[["a"]]}]}',
    b'{"records":{}}',
    b'{"record":[{}]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: body[:32].decode("latin-1"))
def test_a_body_that_is_no_append(api: Api, stream: str, body: bytes) -> None:
    reply = api.post(f"{STREAMS}/{stream}/records", body)
    assert reply.error == (400, "bad_json")
    assert reply.json["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"basin":1}',
        b'{"basin":"X"}',
        b'{"basin":"new-basin","config":[]}',
        b'{"basin":"new-basin","config":{"stream_cipher":"rot13"}}',
        b'{"basin":"new-basin","location":"no spaces"}',
        b'{"basin":"new-basin","basin":"new-basin"}',
        b'{"basin":"new-basin","config":{"default_stream_config":{"retention_policy":{}}}}',
    ],
    ids=lambda body: body[:48].decode(),
)
def test_a_body_that_makes_no_basin(api: Api, body: bytes) -> None:
    assert api.post("/v1/basins", body).error == (400, "bad_json")
    assert api.get("/v1/basins/new-basin").status == 404


def test_a_body_that_makes_no_stream(api: Api) -> None:
    for body in (b"", b"{}", b'{"stream":""}', b'{"stream":"."}', b'{"stream":"a\\u0000"}'):
        assert api.post(STREAMS, body).error == (400, "bad_json")
    for body in (b"1", b'{"storage_class":""}', b'{"timestamping":{"mode":"x"}}'):
        assert api.send_json("PUT", f"{STREAMS}/new", body).error == (400, "bad_json")
    assert api.get(f"{STREAMS}/new").status == 404


@pytest.mark.parametrize("body", [b"\xff", b"\x0a", b"\x0a\x05abc", b"\x1a\x01\xff"])
def test_a_body_that_is_no_protobuf(api: Api, stream: str, body: bytes) -> None:
    reply = api.request("POST", f"{STREAMS}/{stream}/records", PROTO, body)
    assert reply.error == (400, "bad_proto")


def test_a_protobuf_batch_against_the_rules(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    is_error(
        api.request("POST", path, PROTO, b""), 422, "invalid", "record batch must not be empty"
    )
    long_token = b"\x0a\x00\x1a\x25" + b"t" * 37
    message = "fencing token must not exceed 36 bytes in length"
    is_error(api.request("POST", path, PROTO, long_token), 422, "invalid", message)


@pytest.mark.parametrize("media", [None, "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_body_that_does_not_say_that_it_is_json(api: Api, stream: str, media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    for method, path in (
        ("POST", "/v1/basins"),
        ("PATCH", f"/v1/basins/{BASIN}"),
        ("POST", STREAMS),
        ("PATCH", f"{STREAMS}/{stream}"),
        ("POST", f"{STREAMS}/{stream}/records"),
        ("PUT", "/v1/locations/default"),
        ("POST", "/v1/access-tokens"),
    ):
        is_error(
            api.request(method, path, headers, b'{"records":[{}]}'),
            400,
            "bad_json",
            "Expected request with `Content-Type: application/json`",
        )


# Deletion under way


@pytest.fixture
def unpurged(server: Server) -> Iterator[None]:
    """What is deleted stays so: nothing is purged until the end of the test."""
    wanted = server.call(server.hold_purges)
    yield
    server.call(lambda: server.release_purges(wanted))


def test_a_stream_that_is_being_deleted(api: Api, stream: str, unpurged: None) -> None:
    path = f"{STREAMS}/{stream}"
    assert api.append(stream, "x").status == 200
    for _ in range(2):
        reply = api.delete(path)
        assert (reply.status, reply.named, reply.body) == (202, {"content-length": "0"}, b"")
    for reply in (
        api.get(path),
        api.put(path),
        api.post(STREAMS, {"stream": stream}),
        api.send_json("PATCH", path, {}),
        api.append(stream, "y"),
        api.request("POST", f"{path}/records", {"content-type": "s2s/proto"}),
        api.get(f"{path}/records?seq_num=0"),
        api.get(f"{path}/records?seq_num=0", {"accept": "text/event-stream"}),
        api.get(f"{path}/records?seq_num=0", {"content-type": "s2s/proto"}),
        api.get(f"{path}/records/tail"),
    ):
        is_error(reply, 409, "stream_deletion_pending", "stream deletion pending")
    (info,) = api.get(f"{STREAMS}?prefix={stream}").json["streams"]
    assert info["deleted_at"] is not None


def test_a_basin_that_is_being_deleted(api: Api, unpurged: None) -> None:
    name = f"going-basin-{api.version}"
    path = f"/v1/basins/{name}"
    flags = {"create_stream_on_append": True, "create_stream_on_read": True}
    assert api.post("/v1/basins", {"basin": name, "config": flags}).status == 201
    going = api.of(name)
    assert going.put(f"{STREAMS}/left").status == 201
    for _ in range(2):
        assert api.delete(path).status == 202
    for reply in (
        api.put(path),
        api.post("/v1/basins", {"basin": name}),
        api.send_json("PATCH", path, {}),
        going.post(STREAMS, {"stream": "new"}),
        going.put(f"{STREAMS}/new"),
        going.append("new", "x"),
        going.get(f"{STREAMS}/new/records/tail"),
    ):
        is_error(reply, 409, "basin_deletion_pending", f"basin `{name}` is being deleted")
    assert api.get(path).status == 200
    assert [info["name"] for info in going.get(STREAMS).json["streams"]] == ["left"]
    (info,) = api.get(f"/v1/basins?prefix={name}").json["basins"]
    assert (info["state"], info["deleted_at"] is None) == ("deleting", False)


# Storage


@pytest.fixture
def gated(version: str, client_thread: LoopThread) -> Iterator[tuple[GatedBucket, Server, Api]]:
    """A server on a bucket that a test can hold up and fail."""
    bucket = GatedBucket(MemoryBucket())
    settings = EngineSettings(location=LOCATION, put_deadline_secs=0.05, rebuild_wait_secs=0.05)
    with Server(bucket=bucket, settings=settings, cors=False) as server:
        with Connected(version, server.port, client_thread) as connected:
            api = Api(connected.client, BASIN)
            assert api.put(f"/v1/basins/{BASIN}").status == 201
            assert api.put(f"{STREAMS}/s").status == 201
            yield bucket, server, api
        server.call(bucket.open)


def test_an_append_whose_outcome_is_unknown_is_an_error_that_promises_nothing(
    gated: tuple[GatedBucket, Server, Api],
) -> None:
    bucket, server, api = gated
    bucket.shut = True
    call = api.begin("POST", f"{STREAMS}/s/records", JSON, body=b'{"records":[{}]}')
    eventually(lambda: bucket.held)

    def refuse() -> None:
        bucket.shut = False
        for key in bucket.held:
            bucket.let(key, BucketRefused(key, "broken"))

    server.call(refuse)
    reply = reply_of(call)
    assert reply.error == (500, "other")
    eventually(lambda: api.append("s", "y").status == 200)


def test_a_node_that_lost_its_bucket_is_unavailable_and_unhealthy(
    gated: tuple[GatedBucket, Server, Api],
) -> None:
    _, server, api = gated
    assert api.get("/health").status == 200
    server.run(server.node.close())
    assert server.node.state is NodeState.CLOSED
    is_error(api.append("s", "x"), 503, "unavailable", "the node is closed")
    is_error(api.get(f"{STREAMS}/s"), 503, "unavailable", "the node is closed")
    for path in ("/health", "/ping"):
        reply = api.get(path)
        assert (reply.status, reply.body) == (503, b"the node is closed")
        assert reply.header("content-type") == "text/plain; charset=utf-8"
    assert api.get("/metrics").status == 200


def test_what_nobody_foresaw_is_a_500_that_tells_nothing(
    gated: tuple[GatedBucket, Server, Api], caplog: pytest.LogCaptureFixture
) -> None:
    _, server, api = gated

    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    server.node.check_tail = broken  # type: ignore[assignment, method-assign]  # on purpose
    server.node.tail_now = broken  # type: ignore[assignment, method-assign]  # the same the quick way
    is_error(api.get(f"{STREAMS}/s/records/tail"), 500, "other", "internal error")
    assert "secret" in caplog.text
    assert api.get(f"{STREAMS}/s", JSON).status == 200
