"""The quick way over HTTP/2 answers as the ordinary way does, and loses nothing on the way."""

import re
import socket
from collections.abc import Iterator
from itertools import count

import pytest

from bourn.http import native_connection, quick_http2
from bourn.http.native import NativeServer
from bourn.limits import BACKLOG_PIECE_BYTES_MIN, CONNECTION_WINDOW_BYTES, QUICK_BODY_BYTES_MAX
from tests.hostile import wires
from tests.hostile.attacks import preface
from tests.http.clients import Api, Connected, Reply, reply_of
from tests.http.edges import native_only
from tests.http.server import LoopThread, Server, eventually
from tests.http.test_quick import quick_count

pytestmark = native_only("it has no quick way")

BASIN = "quick-basin"
NAMES = count(1)
ODD = ("x-odd", "1")  # a field that the quick way does not know
JSON = ("content-type", "application/json")
PROTO = ("accept", "application/protobuf")
ORIGIN = ("origin", "http://elsewhere")
BASE64 = ("s2-format", "base64")
ONE = b'{"records":[{"body":"x"}]}'
CHANGES = re.compile(rb'("timestamp"|"seq_num"):[0-9]+')
RESETS = 2 * CONNECTION_WINDOW_BYTES // QUICK_BODY_BYTES_MAX


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine makes late goes the ordinary way, as it should: it would not count."""
    monkeypatch.setattr(native_connection, "QUICK_TURN_SECS", 3600.0)


@pytest.fixture(scope="module")
def api(server: Server) -> Iterator[Api]:
    thread = LoopThread()
    with Connected("h2", server.port, thread) as connected:
        api = Api(connected.client, BASIN)
        assert api.put(f"/v1/basins/{BASIN}").status == 201
        yield api
    thread.close()


@pytest.fixture
def stream(api: Api) -> str:
    name = f"s-{next(NAMES)}"
    assert api.put(f"/v1/streams/{name}").status == 201
    return name


def path(stream: str, query: str = "") -> str:
    return f"/v1/streams/{stream}/records{query}"


def unfinished(server: Server) -> int:
    edge = server.edge
    assert isinstance(edge, NativeServer)

    def counted() -> int:
        found = [connection._quick_streams for connection in edge.connections]
        return sum(len(streams.unfinished) for streams in found if streams is not None)

    return server.call(counted)


def shown(reply: Reply) -> tuple[int, list[tuple[str, str]], bytes]:
    """What may not differ."""
    fields = [(name, "-" if name == "date" else value) for name, value in reply.fields]
    return reply.status, fields, CHANGES.sub(rb"\1:-", reply.body)


APPENDS = {
    "plain": (ONE, ()),
    "for a page": (ONE, (ORIGIN,)),
    "in base64": (b'{"records":[{"body":"/w=="}]}', (BASE64,)),
    "with headers": (b'{"records":[{"headers":[["a","b"]],"body":"c"}]}', ()),
}
REFUSED = {
    "a position": b'{"records":[{}],"match_seq_num":99}',
    "a fence": b'{"records":[{}],"fencing_token":"z"}',
}
READS = {
    "all": ("?seq_num=0", ()),
    "for a page": ("?seq_num=0", (ORIGIN,)),
    "in base64": ("?seq_num=0", (BASE64,)),
    "in protobuf": ("?seq_num=0", (PROTO,)),
    "one": ("?seq_num=0&count=1", ()),
    "the last": ("?tail_offset=1", ()),
}

GZIP = ("accept-encoding", "gzip, deflate")
QUESTIONS: dict[str, tuple[str, tuple[tuple[str, str], ...], int]] = {
    "the tail": ("/v1/streams/{}/records/tail", (), 200),
    "the tail for a page": ("/v1/streams/{}/records/tail", (ORIGIN,), 200),
    "the config": ("/v1/streams/{}", (), 200),
    "the config of a basin": (f"/v1/basins/{BASIN}", (ORIGIN,), 200),
    "a list": ("/v1/streams?prefix={}", (), 200),
    "a list, compressed": ("/v1/streams?limit=1000", (GZIP,), 200),
    "basins": ("/v1/basins", (), 200),
    "the config of no basin": ("/v1/basins/other-basin", (ORIGIN,), 404),
    "compressed": ("/v1/streams/{}/records?seq_num=0", (GZIP,), 200),
    "not worth compressing": ("/v1/streams/{}/records?seq_num=2", (GZIP,), 200),
    "from a time on": ("/v1/streams/{}/records?timestamp=1&count=2", (), 200),
    "past the tail": ("/v1/streams/{}/records?seq_num=99", (), 416),
    "no such stream": ("/v1/streams/not-{}/records?seq_num=0", (ORIGIN,), 404),
    "the tail of none": ("/v1/streams/not-{}/records/tail", (), 404),
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_a_question_is_answered_as_on_the_ordinary_way(
    server: Server, api: Api, stream: str, what: str
) -> None:
    api.append(stream, "a" * 1200, "b")
    api.append(stream, "c")
    target, fields, status = QUESTIONS[what]
    before = quick_count(server)
    quick = api.get(target.format(stream), fields)
    assert quick_count(server) == before + 1
    ordinary = api.get(target.format(stream), [*fields, ODD])
    assert quick_count(server) == before + 1
    assert quick.status == status
    assert quick.body == ordinary.body
    assert shown(quick) == shown(ordinary)


@pytest.mark.parametrize("what", APPENDS)
def test_an_append_is_answered_as_on_the_ordinary_way(
    server: Server, api: Api, stream: str, what: str
) -> None:
    body, fields = APPENDS[what]
    before = quick_count(server)
    quick = api.request("POST", path(stream), [JSON, *fields], body)
    assert quick_count(server) == before + 1
    ordinary = api.request("POST", path(stream), [JSON, *fields, ODD], body)
    assert quick_count(server) == before + 1
    assert quick.status == 200
    assert shown(quick) == shown(ordinary)


def test_an_append_may_be_answered_in_protobuf(server: Server, api: Api, stream: str) -> None:
    before = quick_count(server)
    quick = api.request("POST", path(stream), [JSON, PROTO], ONE)
    assert quick_count(server) == before + 1
    ordinary = api.request("POST", path(stream), [JSON, PROTO, ODD], ONE)
    assert [name for name, _ in quick.fields] == [name for name, _ in ordinary.fields]
    assert quick.header("content-type") == "application/protobuf"


@pytest.mark.parametrize("what", READS)
def test_a_read_is_answered_as_on_the_ordinary_way(
    server: Server, api: Api, stream: str, what: str
) -> None:
    api.append(stream, "a" * 1200, "b")
    api.append(stream, "c")
    query, fields = READS[what]
    before = quick_count(server)
    quick = api.get(path(stream, query), fields)
    assert quick_count(server) == before + 1
    ordinary = api.get(path(stream, query), [*fields, ODD])
    assert quick_count(server) == before + 1
    assert quick.status == 200
    assert quick.body == ordinary.body
    assert shown(quick) == shown(ordinary)


def test_a_large_read_is_whole(server: Server, api: Api, stream: str) -> None:
    for _ in range(3):
        api.append(stream, "a" * BACKLOG_PIECE_BYTES_MIN)
    before = quick_count(server)
    quick = api.get(path(stream, "?seq_num=0"))
    assert quick_count(server) == before + 1
    assert shown(quick) == shown(api.get(path(stream, "?seq_num=0"), [ODD]))
    assert len(quick.body) > 3 * BACKLOG_PIECE_BYTES_MIN


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_append_is_told_why(server: Server, api: Api, stream: str, what: str) -> None:
    before = quick_count(server)
    quick = api.request("POST", path(stream), [JSON, ORIGIN], REFUSED[what])
    assert quick_count(server) == before + 1
    ordinary = api.request("POST", path(stream), [JSON, ORIGIN, ODD], REFUSED[what])
    assert quick.status == 412
    assert shown(quick) == shown(ordinary)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"records":[]}', 422),
        (b'{"records":[' + b"{}," * 1000 + b"{}]}", 422),
        (b'{"records":[{"body":"%b"}]}' % (b"x" * QUICK_BODY_BYTES_MAX), 200),
    ],
)
def test_what_is_not_for_it_goes_the_ordinary_way_with_all_that_has_come(
    server: Server, api: Api, stream: str, body: bytes, status: int
) -> None:
    before = quick_count(server)
    found = api.request("POST", path(stream), [JSON], body)
    assert quick_count(server) == before
    assert found.status == status
    assert shown(found) == shown(api.request("POST", path(stream), [JSON, ODD], body))
    assert unfinished(server) == 0


def test_an_append_without_a_body_is_refused_as_ever(api: Api, stream: str) -> None:
    assert api.request("POST", path(stream), [JSON]).status == 400


@pytest.mark.parametrize("cut", [1, 10, len(ONE)])
def test_a_body_in_parts_is_one_append(server: Server, api: Api, stream: str, cut: int) -> None:
    before = quick_count(server)
    call = api.begin("POST", path(stream), [JSON])
    call.send(ONE[:cut])
    call.send(ONE[cut:])
    call.end()
    assert reply_of(call).status == 200
    assert quick_count(server) == before + 1
    assert api.get(path(stream, "?seq_num=0")).json["records"][0]["body"] == "x"


def test_a_body_that_lets_itself_be_waited_for_goes_the_ordinary_way(
    server: Server, api: Api, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick_http2, "QUICK_IDLE_SECS", 0.02)
    before = quick_count(server)
    call = api.begin("POST", path(stream), [JSON])
    call.send(ONE[:10])
    eventually(lambda: unfinished(server) == 1)
    eventually(lambda: unfinished(server) == 0)
    call.send(ONE[10:])
    call.end()
    assert reply_of(call).status == 200
    assert quick_count(server) == before
    assert api.get(path(stream, "?seq_num=0")).json["records"][0]["body"] == "x"


def test_an_append_that_is_taken_back_before_its_end_is_none_and_its_windows_come_back(
    server: Server, api: Api, stream: str
) -> None:
    part = b'{"records":[{"body":"' + b"x" * (QUICK_BODY_BYTES_MAX - 100)
    for _ in range(RESETS):
        call = api.begin("POST", path(stream), [JSON])
        call.send(part)
        eventually(lambda: unfinished(server) == 1)
        call.abort()
        eventually(lambda: unfinished(server) == 0)
    assert api.append(stream, "y").status == 200
    assert api.get(path(stream, "/tail")).json["tail"]["seq_num"] == 1


def test_bodies_that_are_half_sent_never_take_the_whole_window_of_their_connection(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch, client_thread: LoopThread
) -> None:
    monkeypatch.setattr(quick_http2, "QUICK_IDLE_SECS", 3600.0)
    part = b'{"records":[{"body":"' + b"x" * (QUICK_BODY_BYTES_MAX // 2)
    with Connected("h2", server.port, client_thread) as connected:
        own = Api(connected.client, BASIN)
        calls = []
        for _ in range(2 * CONNECTION_WINDOW_BYTES // len(part)):
            calls.append(own.begin("POST", path(stream), [JSON]))
            calls[-1].send(part)
        for call in calls:
            call.send(b'"}]}')
            call.end()
        assert {reply_of(call).status for call in calls} == {200}
    assert unfinished(server) == 0


def test_many_appends_and_reads_side_by_side_have_each_their_answer(
    server: Server, api: Api, stream: str
) -> None:
    before = quick_count(server)
    bodies = [b'{"records":[{"body":"%d"}]}' % number for number in range(100)]
    calls = [api.begin("POST", path(stream), [JSON], body=body) for body in bodies]
    ends = [reply_of(call).json["end"]["seq_num"] for call in calls]
    assert sorted(ends) == list(range(1, 101))
    reads = [
        api.begin("GET", path(stream, f"?seq_num={at}&count=1"), body=b"") for at in range(100)
    ]
    found = {ends.index(at + 1): reply_of(call).json["records"] for at, call in enumerate(reads)}
    assert {number: records[0]["body"] for number, records in found.items()} == {
        number: str(number) for number in range(100)
    }
    assert quick_count(server) == before + 200


def test_what_comes_when_the_turn_is_over_goes_the_ordinary_way(
    server: Server, api: Api, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_connection, "QUICK_TURN_SECS", 0.0)
    before = quick_count(server)
    assert api.append(stream, "x").status == 200
    assert api.get(path(stream, "?seq_num=0")).json["records"][0]["body"] == "x"
    assert quick_count(server) == before


def test_a_path_with_other_than_ascii_is_not_read_as_another(
    server: Server, api: Api, stream: str
) -> None:
    api.append(stream, "x")
    before, flags = quick_count(server), wires.END_HEADERS | wires.END_STREAM
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(preface())
        for number, mark in enumerate(("\u4e00", "?")):
            block = wires.request("GET", path(stream, f"{mark}seq_num=0"), ("s2-basin", BASIN))
            sock.sendall(wires.frame(wires.HEADERS, flags, 2 * number + 1, block))
        eventually(lambda: quick_count(server) > before)
        assert quick_count(server) == before + 1


def test_a_connection_that_is_lost_under_way_leaves_nothing_behind(server: Server) -> None:
    thread = LoopThread()
    with Connected("h2", server.port, thread) as connected:
        api = Api(connected.client, BASIN)
        assert api.put("/v1/streams/lost").status in {200, 201}
        api.begin("POST", path("lost"), [JSON]).send(ONE[:10])
        eventually(lambda: unfinished(server) == 1)
        connected.client.drop()  # type: ignore[attr-defined]  # of HTTP/2
        eventually(lambda: unfinished(server) == 0)
    thread.close()
    eventually(lambda: server.users(BASIN, "lost") == 0)
