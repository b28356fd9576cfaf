"""Where documents about the API differ, both kinds of clients are served, or the newer one wins."""

from collections.abc import Iterator

import pytest

from tests.http.clients import EVENTS, FICKLE, PROTO, SESSION, Api, Connected, reply_of
from tests.http.conftest import BASIN
from tests.http.frames import RECONNECT, Frames, append
from tests.http.server import LoopThread, Server
from tests.wire.schema import ReadBatch

STREAMS = "/v1/streams"


@pytest.fixture(params=["h1", FICKLE, "h2"])
def version(request: pytest.FixtureRequest) -> str:
    """The quick way too: see H1Client."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    suffixes = ("b.example.test", "B.Other.Test.")
    with Server(cors=False, basin_suffixes=suffixes) as running:
        yield running


# Paths and hosts


def test_the_session_paths_name_the_basin_in_the_path(api: Api, stream: str) -> None:
    bare = api.of(None)
    path = f"/v1/basins/{BASIN}/streams/{stream}"
    assert bare.post(f"{path}/append", {"records": [{"body": "a"}]}).status == 200
    call = bare.open("POST", f"{path}/append", SESSION)
    frames = Frames(call)
    call.send(append(b"b"))
    assert frames.take().ack.end.seq_num == 2
    call.end()
    assert frames.next() is None
    read = bare.get(f"{path}/read?seq_num=0")
    assert [record["body"] for record in read.json["records"]] == ["a", "b"]
    found = reply_of(bare.begin("GET", f"{path}/read?seq_num=0&count=1", SESSION, body=b""))
    assert (found.status, found.header("content-type")) == (200, "s2s/proto")
    assert bare.get(f"{path}/read?seq_num=0&count=1", EVENTS).body.endswith(b"data: [DONE]\n\n")


def test_the_path_wins_over_the_header_on_the_session_paths(api: Api, stream: str) -> None:
    other = api.of("other-basin")
    path = f"/v1/basins/{BASIN}/streams/{stream}"
    assert other.post(f"{path}/append", {"records": [{}]}).status == 200
    assert api.of("X").get(f"{path}/read?seq_num=0").status == 200
    assert other.get(f"/v1/basins/X/streams/{stream}/read").error == (400, "bad_path")
    assert other.get(f"/v1/basins/{BASIN}/streams/%FF/read").error == (400, "bad_path")
    assert other.get(f"/v1/basins/no-such-basin/streams/{stream}/read").error == (
        404,
        "basin_not_found",
    )


def test_paths_of_streams_need_no_version(api: Api, stream: str) -> None:
    assert api.put(f"/streams/{stream}").status == 200
    assert api.get(f"/streams?prefix={stream}").json["streams"][0]["name"] == stream
    assert api.post(f"/streams/{stream}/records", {"records": [{"body": "a"}]}).status == 200
    assert api.get(f"/streams/{stream}/records/tail").json["tail"]["seq_num"] == 1
    assert api.get(f"/streams/{stream}/records?seq_num=0").status == 200
    assert api.get(f"/streams/{stream}").status == 200
    assert api.delete(f"/streams/{stream}").status == 202


def test_other_paths_need_it(api: Api) -> None:
    assert api.get("/basins").status == 404
    assert api.get("/locations").status == 404
    assert b"# TYPE" in api.get("/metrics").body
    assert api.get("/v1/metrics").error == (400, "bad_query")


@pytest.mark.parametrize(
    "host",
    [f"{BASIN}.b.example.test", f"{BASIN.upper()}.B.Example.Test:8080", f"{BASIN}.b.other.test"],
)
def test_a_basin_may_be_named_by_the_host(api: Api, stream: str, host: str) -> None:
    bare = api.of(None)
    assert bare.get(f"{STREAMS}/{stream}", {"host": host}).status == 200


def test_the_header_wins_over_the_host(api: Api, stream: str) -> None:
    headers = {"host": "other-basin.b.example.test", "s2-basin": BASIN}
    assert api.of(None).get(f"{STREAMS}/{stream}", headers).status == 200
    headers = {"host": f"{BASIN}.b.example.test", "s2-basin": "no-such-basin"}
    assert api.of(None).get(STREAMS, headers).error == (404, "basin_not_found")


@pytest.mark.parametrize(
    "host", ["localhost", "b.example.test", "a.s2.dev", "aws.s2.dev:443", "api.s2.dev", "[::1]:80"]
)
def test_any_host_will_do_with_the_header_and_names_nothing_without(
    api: Api, stream: str, host: str
) -> None:
    assert api.get(f"{STREAMS}/{stream}", {"host": host}).status == 200
    reply = api.of(None).get(f"{STREAMS}/{stream}", {"host": host})
    assert reply.json == {"code": "bad_header", "message": "Missing header `s2-basin`"}


def test_a_host_whose_label_is_no_basin_is_a_bad_header(api: Api) -> None:
    reply = api.of(None).get(STREAMS, {"host": "x.b.example.test"})
    assert reply.error == (400, "bad_header")


# Records in JSON


def test_headers_come_as_objects_or_pairs_and_go_as_pairs(api: Api, stream: str) -> None:
    headers = [{"name": "a", "value": "b"}, ["c", "d"]]
    path = f"{STREAMS}/{stream}/records"
    assert api.post(path, {"records": [{"headers": headers}]}).status == 200
    (record,) = api.get(f"{path}?seq_num=0").json["records"]
    assert record["headers"] == [["a", "b"], ["c", "d"]]


def test_what_is_empty_is_left_out(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    api.post(path, {"records": [{"headers": [], "body": ""}]})
    (record,) = api.get(f"{path}?seq_num=0").json["records"]
    assert record.keys() == {"seq_num", "timestamp"}


def test_text_that_looks_like_base64_is_text_unless_the_header_says_otherwise(
    api: Api, stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    api.append(stream, "aGk=")
    for name in ("raw", "json", "utf8", "utf-8"):
        api.post(path, {"records": [{"body": "aGk="}]}, {"s2-format": name})
        (*_, record) = api.get(f"{path}?seq_num=0", {"s2-format": name}).json["records"]
        assert record["body"] == "aGk="
    bodies = [
        record.body
        for record in ReadBatch.FromString(api.get(f"{path}?seq_num=0", PROTO).body).records
    ]
    assert bodies == [b"aGk="] * 5


# Commands


def test_a_fencing_token_has_36_bytes_at_most(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    for token, status in (("t" * 36, 200), ("t" * 37, 422), ("t" * 48, 422), ("é" * 19, 422)):
        fence = {"records": [{"headers": [["", "fence"]], "body": token}]}
        assert api.post(path, fence).status == status


def test_fencing_binds_only_those_who_give_a_token(api: Api, stream: str) -> None:
    fence = {"records": [{"headers": [["", "fence"]], "body": "mine"}]}
    api.post(f"{STREAMS}/{stream}/records", fence)
    assert api.append(stream, "x").status == 200
    assert api.append(stream, "x", fencing_token="yours").status == 412


def test_a_trim_may_trim_itself_and_its_number_is_big_endian(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    coded = {"s2-format": "base64"}
    api.append(stream, *["x"] * 120)
    trim = {"headers": [["", "dHJpbQ=="]], "body": "AAAAAAAAAGQ="}
    assert api.post(path, {"records": [trim]}, coded).json["end"]["seq_num"] == 121
    first, *_, last = api.get(f"{path}?seq_num=0", coded).json["records"]
    assert first["seq_num"] == 100
    assert last == {"seq_num": 120, "timestamp": last["timestamp"], **trim}
    everything = {"headers": [["", "dHJpbQ=="]], "body": "//////////8="}
    assert api.post(path, {"records": [everything]}, coded).status == 200
    assert api.get(f"{path}?seq_num=0").json == {"records": []}


# Sessions


def test_a_read_session_may_be_asked_for_by_accept(api: Api, stream: str) -> None:
    api.append(stream, "x")
    path = f"{STREAMS}/{stream}/records"
    reply = api.get(f"{path}?seq_num=0&count=1", {"accept": "s2s/proto"})
    assert (reply.status, reply.header("content-type")) == (200, "s2s/proto")
    reply = api.post(path, {"records": [{}]}, {"accept": "s2s/proto"})
    assert reply.json["end"]["seq_num"] == 2


def test_a_session_is_never_coded_and_its_frames_advise_nothing(api: Api, stream: str) -> None:
    api.append(stream, "x" * 3000)
    headers = SESSION | {"accept-encoding": "zstd"}
    call = api.open("GET", f"{STREAMS}/{stream}/records?seq_num=0&wait=0", headers, body=b"")
    assert "content-encoding" not in dict(call.fields)
    frames = Frames(call).rest()
    assert frames
    assert not any(frame.flag & RECONNECT for frame in frames)


def test_a_bounded_session_without_a_wait_does_not_wait(api: Api, stream: str) -> None:
    api.append(stream, "x")
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    for bound in ("count=10", "bytes=1000", "until=99999999999999"):
        call = api.open("GET", f"{path}&{bound}", SESSION, body=b"")
        assert len(Frames(call).rest()) == 1


def test_a_batch_of_history_has_no_tail(api: Api, stream: str) -> None:
    api.append(stream, "x")
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    assert api.get(path).json.keys() == {"records"}
    assert not ReadBatch.FromString(api.get(path, PROTO).body).HasField("tail")


# The control plane


def test_older_names_and_values_of_basins_and_streams(api: Api, server: Server) -> None:
    name = f"older-basin-{api.version}"
    body = {"basin": name, "scope": "local:test", "config": {}}
    token = {"s2-request-token": "t"}
    created = api.post("/v1/basins", body, token)
    assert (created.status, created.json["location"]) == (201, "local:test")
    assert created.json["state"] == "active"
    replayed = api.post("/v1/basins", body, token)
    assert (replayed.status, replayed.header("s2-provision-result")) == (201, "noop")
    config = {"storage_class": "glacial"}
    assert api.send_json("PUT", f"{STREAMS}/classy", config).status in {200, 201}
    assert api.get(f"{STREAMS}/classy").json["storage_class"] == "glacial"


def test_metrics_carry_the_names_of_the_reference(
    server: Server, version: str, client_thread: LoopThread
) -> None:
    with Connected(version, server.port, client_thread) as connected:
        text = Api(connected.client, None).get("/metrics").body.decode()
    assert "s2_append_ack_latency_seconds_count" in text
    assert "\nappend_ack_latency" not in text
