"""Clients that go away, stop reading or stop sending: what they held is freed, nothing is torn."""

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from bourn.limits import MIB
from tests.http.clients import (
    EVENTS,
    JSON,
    SESSION,
    Api,
    Broken,
    H1Call,
    H1Client,
    H2Client,
    head_of,
    reply_of,
)
from tests.http.conftest import BASIN
from tests.http.edges import IS_ASGI, native_only
from tests.http.frames import Frames, append
from tests.http.server import CLOCK, Server, eventually
from tests.support import batch

STREAMS = "/v1/streams"
WAYS = {
    "read session": ("seq_num=0", SESSION),
    "events": ("seq_num=0", EVENTS),
    "unary read that waits": ("seq_num=0&wait=60", {}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leave", ["orderly", "abruptly"])
def test_a_reader_that_goes_away_frees_the_stream(
    server: Server, api: Api, stream: str, way: str, leave: str
) -> None:
    query, headers = WAYS[way]
    call: Any = api.begin("GET", f"{STREAMS}/{stream}/records?{query}", headers, body=b"")
    eventually(lambda: server.users(BASIN, stream) == 1)
    client: Any = api.client
    if leave == "abruptly" and isinstance(client, H2Client):
        client.drop()  # the connection, with all its streams
    else:
        if leave == "abruptly":
            call._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        call.abort()
    eventually(lambda: server.users(BASIN, stream) == 0)
    eventually(lambda: server.app.telemetry.open_sessions == 0)


@pytest.mark.parametrize("version", ["h2"])
def test_one_reader_of_a_connection_may_leave_and_the_others_stay(
    server: Server, api: Api, another: Callable[[], Api], stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    first, second = (api.open("GET", path, SESSION, body=b"") for _ in range(2))
    eventually(lambda: server.users(BASIN, stream) == 2)
    first.abort()
    eventually(lambda: server.users(BASIN, stream) == 1)
    frames = Frames(second)
    assert not frames.take().batch.records
    another().append(stream, "x")
    assert [record.body for record in frames.take().batch.records] == [b"x"]


@pytest.mark.parametrize("version", ["h1"])
def test_a_reader_that_has_closed_its_side_is_gone(server: Server, api: Api, stream: str) -> None:
    call: Any = api.open("GET", f"{STREAMS}/{stream}/records?seq_num=0", SESSION, body=b"")
    eventually(lambda: server.users(BASIN, stream) == 1)
    call._sock.shutdown(socket.SHUT_WR)
    eventually(lambda: server.users(BASIN, stream) == 0)


def test_a_writer_that_goes_away_frees_the_stream_and_what_was_admitted_stays(
    server: Server, api: Api, another: Callable[[], Api], stream: str
) -> None:
    call = api.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    frames = Frames(call)
    call.send(append(b"a"))
    assert frames.take().ack.end.seq_num == 1
    call.send(append(b"b") + append(b"never whole")[:7])
    eventually(lambda: server.call(lambda: server.stream(BASIN, stream).tail.seq_num) == 2)
    call.abort()
    eventually(lambda: server.users(BASIN, stream) == 0)
    assert another().get(f"{STREAMS}/{stream}/records/tail").json["tail"]["seq_num"] == 2


# Half of a request


@pytest.mark.parametrize("sent", ['{"records":[{"bo', '{"records":[{"body":"x"}]}'])
def test_a_unary_append_whose_client_leaves_in_the_middle_of_its_body_applies_nothing(
    server: Server, api: Api, another: Callable[[], Api], stream: str, sent: str
) -> None:
    call = api.begin("POST", f"{STREAMS}/{stream}/records", JSON)
    call.send(sent.encode())
    assert another().get(f"{STREAMS}/{stream}/records/tail").status == 200
    call.abort()
    assert another().append(stream, "y").json["start"]["seq_num"] == 0
    assert another().get(f"{STREAMS}/{stream}/records/tail").json["tail"]["seq_num"] == 1


@pytest.mark.parametrize("version", ["h1"])
def test_a_body_shorter_than_it_said_applies_nothing(server: Server, stream: str) -> None:
    client = H1Client(server.port)
    try:
        sock = client.connect()
        fields = [("host", "x"), ("s2-basin", BASIN), ("content-length", "99"), *JSON.items()]
        path = f"{STREAMS}/{stream}/records"
        sock.sendall(head_of("POST", path, fields) + b'{"records":[{"body":"x"}]}')
        sock.shutdown(socket.SHUT_WR)
        if IS_ASGI:  # granian puts something in the place of the answer that is not there
            assert reply_of(H1Call(None, sock)).status == 500
        else:
            with pytest.raises(Broken):
                H1Call(None, sock).head()
        assert Api(client, BASIN).append(stream, "y").json["start"]["seq_num"] == 0
    finally:
        client.close()


@native_only("takes a closed side for a client that has gone")
@pytest.mark.parametrize("version", ["h1"])
def test_a_client_that_has_said_all_and_closed_its_side_is_still_answered(
    server: Server, stream: str
) -> None:
    client = H1Client(server.port)
    try:
        path = f"{STREAMS}/{stream}/records"
        body = b'{"records":[{"body":"x"}]}'
        fields = [("host", "x"), ("s2-basin", BASIN)]
        sock = client.connect()
        length = ("content-length", str(len(body)))
        sock.sendall(head_of("POST", path, [*fields, *JSON.items(), length]) + body)
        sock.shutdown(socket.SHUT_WR)
        assert reply_of(H1Call(None, sock)).json["end"]["seq_num"] == 1

        sock = client.connect()
        chunked = ("transfer-encoding", "chunked")
        sock.sendall(head_of("POST", path, [*fields, *SESSION.items(), chunked]))
        call = H1Call(None, sock)
        for _ in range(3):
            call.send(append(b"x"))
        call.end()
        sock.shutdown(socket.SHUT_WR)
        call.head()
        assert [found.ack.end.seq_num for found in Frames(call).rest()] == [2, 3, 4]
    finally:
        client.close()


# Clients that do not read

HISTORY_MIB = 48
HELD_MIB_MAX = 24  # buffers of the kernel, of HTTP/2, and one batch


@pytest.mark.parametrize("kind", ["frames", "events"])
def test_a_reader_that_does_not_read_is_sent_no_more_than_buffers_hold(
    server: Server, api: Api, stream: str, kind: str
) -> None:
    async def fill() -> None:
        for _ in range(HISTORY_MIB):
            await server.node.append(BASIN, stream, batch(b"x" * (MIB - 8)))

    server.run(fill())
    before = delivered = server.app.telemetry.bytes_delivered
    headers = SESSION if kind == "frames" else EVENTS
    path = f"{STREAMS}/{stream}/records?seq_num=0&count={HISTORY_MIB}"
    call = api.open("GET", path, headers, body=b"")
    eventually(lambda: server.app.telemetry.bytes_delivered > before)
    while True:
        server.run(CLOCK.sleep(0.2))
        if delivered == server.app.telemetry.bytes_delivered:
            break
        delivered = server.app.telemetry.bytes_delivered
    assert delivered - before <= HELD_MIB_MAX * MIB
    assert server.users(BASIN, stream) == 1
    if kind == "frames":
        records = [len(frame.batch.records) for frame in Frames(call).rest()]
        assert records == [1] * HISTORY_MIB
    else:
        call.abort()
    eventually(lambda: server.users(BASIN, stream) == 0)


@pytest.mark.parametrize("version", ["h2"])
def test_a_stalled_reader_does_not_hold_up_the_others_of_its_connection(
    server: Server, api: Api, stream: str
) -> None:
    async def fill() -> None:
        for _ in range(12):
            await server.node.append(BASIN, stream, batch(b"x" * (MIB - 8)))

    server.run(fill())
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    stalled = api.open("GET", path, SESSION, body=b"")
    server.run(CLOCK.sleep(0.1))
    for _ in range(20):
        assert api.get(f"{STREAMS}/{stream}/records/tail").status == 200
    stalled.abort()
    eventually(lambda: server.users(BASIN, stream) == 0)
