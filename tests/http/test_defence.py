"""Clients that mean ill, or were written ill: refused early, and at little cost."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bourn.limits import HEAD_BYTES_MAX, HEADERS_MAX, MIB, UNARY_BODY_BYTES_MAX
from tests.http.clients import (
    JSON,
    SESSION,
    Api,
    Broken,
    H1Call,
    H1Client,
    H2Client,
    Reply,
    head_of,
    reply_of,
)
from tests.http.conftest import BASIN
from tests.http.edges import native_only
from tests.http.frames import Frames, append
from tests.http.server import PATIENCE_SECS, LoopThread, Server, eventually

STREAMS = "/v1/streams"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def raw(server: Server) -> Iterator[H1Client]:
    client = H1Client(server.port)
    yield client
    client.close()


def said(client: H1Client, data: bytes) -> tuple[Reply, H1Call]:
    """Send raw bytes on a new connection, and return what is answered."""
    sock = client.connect()
    sock.sendall(data)
    call = H1Call(None, sock)
    return reply_of(call), call


# Heads


def test_more_headers_than_anybody_needs_are_refused(api: Api) -> None:
    bare = api.of(None)
    own = 1 if api.version == "h1" else 0  # the host, which HTTP/2 has no header for
    for number, status in ((HEADERS_MAX, 200), (HEADERS_MAX + 1, 431)):
        headers = [(f"x-{index}", "y") for index in range(number - own)]
        reply = bare.get("/health", headers)
        assert (reply.status, reply.body) == (status, b"OK" if status == 200 else b"")
    assert bare.get("/health").status == 200


def test_a_head_without_an_end_is_refused_when_it_is_too_long(raw: H1Client) -> None:
    for start in (b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: ", b"GET /health?", b"G"):
        sock = raw.connect()
        with suppress(ConnectionError):  # refused before all of it was sent
            sock.sendall(start + b"a" * (HEAD_BYTES_MAX + 100_000))
        call = H1Call(None, sock)
        call.head()
        assert call.status == 431
        assert call.at_end()


def test_a_flood_of_headers_ends_the_connection_and_no_other(
    server: Server, client_thread: LoopThread
) -> None:
    client, other = (H2Client(server.port, client_thread) for _ in range(2))
    try:
        assert Api(other, None).get("/health").status == 200
        flood = [(f"x-{index}", "y" * 1000) for index in range(1000)]
        with pytest.raises(Broken):
            Api(client, None).get("/health", flood)
        assert client.connection.closed
        assert Api(other, None).get("/health").status == 200
        assert not other.connection.closed
    finally:
        client.close()
        other.close()


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    )


def test_a_client_may_send_its_largest_frame_together_with_the_ack_of_the_settings(
    server: Server, raw: H1Client
) -> None:
    sock = raw.connect()
    sock.sendall(PREFACE + h2_frame(4, 0, 0, b""))
    data = sock.recv(9)
    settings = sock.recv(int.from_bytes(data[:3], "big"), socket.MSG_WAITALL)
    values = dict(struct.iter_unpack(">HI", settings))
    largest = values.get(5, 16_384)
    fields = {
        ":method": "PUT",
        ":scheme": "http",
        ":path": "/v1/basins/frame-basin",
        ":authority": "x",
        "content-type": "application/json",
    }
    block = b"".join(
        b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())
        for name, value in fields.items()
    )
    # The first is more than any config may be, and refused; the connection goes on.
    sock.sendall(
        h2_frame(4, 1, 0, b"")
        + b"".join(
            h2_frame(1, 4, number, block) + h2_frame(0, 1, number, body)
            for number, body in ((1, b"{}".ljust(largest)), (3, b"{}"))
        )
    )
    eventually(lambda: server.call(lambda: "frame-basin" in server.basins()))


@pytest.mark.parametrize(
    "head",
    [
        b"GET\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/3.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /health HTTP/1.1\r\n: nameless\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /health HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: a\x00b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(raw: H1Client, head: bytes) -> None:
    reply, call = said(raw, head)
    assert (reply.status, reply.body) == (400, b"")
    assert call.at_end()


# Bodies


@pytest.mark.parametrize(
    ("media", "code"), [("application/json", "bad_json"), ("application/protobuf", "bad_proto")]
)
def test_a_body_that_says_it_is_too_large_is_refused_before_any_of_it_is_sent(
    api: Api, stream: str, media: str, code: str
) -> None:
    if isinstance(api.client, H1Client):
        sock = api.client.connect()
        length = ("content-length", str(UNARY_BODY_BYTES_MAX + 1))
        fields = [("host", "x"), ("s2-basin", BASIN), ("content-type", media), length]
        expects = ("expect", "100-continue")
        sock.sendall(head_of("POST", f"{STREAMS}/{stream}/records", [*fields, expects]))
        call = H1Call(None, sock)
        reply = reply_of(call)
        assert reply.header("connection") == "close"
        assert call.at_end()
    else:
        headers = {"content-type": media, "content-length": str(UNARY_BODY_BYTES_MAX + 1)}
        begun = api.begin("POST", f"{STREAMS}/{stream}/records", headers)
        reply = reply_of(begun)
        begun.abort()
    assert reply.error == (400, code)


def test_a_body_that_turns_out_too_large_is_refused_while_the_client_still_sends(
    api: Api, stream: str
) -> None:
    call = api.begin("POST", f"{STREAMS}/{stream}/records", JSON)
    chunk = b" " * (UNARY_BODY_BYTES_MAX // 4)
    for _ in range(4):
        call.send(chunk)
    call.send(b"x")
    reply = reply_of(call)
    assert reply.error == (400, "bad_json")
    call.abort()


@pytest.mark.parametrize("version", ["h1"])
@pytest.mark.parametrize("size", [3 * MIB, 6 * MIB])
def test_a_client_that_sends_all_of_it_first_still_reads_the_answer(
    raw: H1Client, stream: str, size: int
) -> None:
    fields = [("host", "x"), ("s2-basin", BASIN), ("content-length", str(size)), *JSON.items()]
    data = head_of("POST", f"{STREAMS}/{stream}/records", fields) + b" " * size
    reply, call = said(raw, data)
    assert reply.error == (400, "bad_json")
    assert call.at_end()


@pytest.mark.parametrize("version", ["h1"])
def test_a_client_that_never_stops_sending_is_cut_off(raw: H1Client, stream: str) -> None:
    sock = raw.connect()
    fields = [("host", "x"), ("s2-basin", BASIN), ("transfer-encoding", "chunked"), *JSON.items()]
    sock.sendall(head_of("POST", f"{STREAMS}/{stream}/records", fields))
    chunk = b"%x\r\n%b\r\n" % (MIB, b" " * MIB)
    with pytest.raises(ConnectionError):
        sock.sendall(chunk * 100)


@pytest.mark.parametrize("version", ["h1"])
def test_a_client_is_told_to_go_on_where_its_body_is_welcome(raw: H1Client, stream: str) -> None:
    body = b'{"records":[{}]}'
    fields = [("host", "x"), ("s2-basin", BASIN), ("content-length", str(len(body)))]
    sock = raw.connect()
    expects = ("expect", "100-continue")
    path = f"{STREAMS}/{stream}/records"
    sock.sendall(head_of("POST", path, [*fields, *JSON.items(), expects]))
    assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sock.sendall(body)
    assert reply_of(H1Call(None, sock)).status == 200


# Time


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A server that waits for heads a short time only."""
    with Server(cors=False, head_secs=0.3) as running:
        yield running


WAITS = native_only("waits for the version of HTTP for ever: see docs/settings.md")


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"", marks=WAITS, id="silence"),
        pytest.param(b"G", id="a letter"),
        pytest.param(b"GET /health HTTP/1.1\r\nhost: x\r\n", id="half a head"),
        pytest.param(PREFACE[:1], marks=WAITS, id="one byte of a preface"),
        pytest.param(PREFACE[:20], marks=WAITS, id="most of a preface"),
    ],
)
def test_a_head_that_does_not_come_closes_the_connection(hasty: Server, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), PATIENCE_SECS) as sock:
        sock.sendall(start)
        assert sock.recv(100) == b""
    eventually(lambda: not hasty.call(hasty.edge.busy))


def test_a_head_that_drips_closes_the_connection(hasty: Server) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port), PATIENCE_SECS) as sock:
        sock.settimeout(0.05)
        answer = None
        while answer is None:
            try:
                sock.sendall(b"a")
                answer = sock.recv(100)
            except TimeoutError:
                continue  # it is still open
            except ConnectionError:
                break
        assert not answer


def test_an_idle_connection_is_closed_and_a_session_is_not(
    hasty: Server, client_thread: LoopThread
) -> None:
    client = H1Client(hasty.port)
    try:
        api = Api(client, BASIN)
        api.put(f"/v1/basins/{BASIN}")
        api.put(f"{STREAMS}/s")
        call = api.open("POST", f"{STREAMS}/s/records", SESSION)
        idle = client.connect()
        idle.sendall(head_of("GET", "/health", [("host", "x")]))
        assert reply_of(H1Call(None, idle)).status == 200
        assert idle.recv(100) == b"", "the idle one is closed when its time is over"
        frames = Frames(call)
        call.send(append(b"x"))
        assert frames.take().ack.end.seq_num == 1
        call.end()
        assert frames.next() is None
    finally:
        client.close()
    multiplexed = H2Client(hasty.port, client_thread)
    try:
        other = Api(multiplexed, BASIN)
        assert other.get("/health").status == 200
        connection = multiplexed.connection
        with socket.create_connection(("127.0.0.1", hasty.port), PATIENCE_SECS) as sock:
            sock.sendall(b"G")
            assert sock.recv(100) == b"", "an unfinished one, to let the time pass"
        assert other.get("/health").status == 200
        assert multiplexed.connection is connection
    finally:
        multiplexed.close()
