"""A server that stops, and clients that never confirm that they were told to go.

python-h2 is such a client, and with it the official Python SDK: GOAWAY ends its connection, so the
ping behind it has no answer, and the socket stays open until somebody looks.
"""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Self

import pytest

from bourn.http import native, native_connection
from bourn.limits import KIB
from bourn.model.resource import CreateBasin, CreateStream
from tests.hostile.wires import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    STATUS_200,
    WINDOW_MAX,
    WINDOW_UPDATE,
    frame,
    request,
)
from tests.http.conftest import BASIN
from tests.http.edges import IS_ASGI
from tests.http.server import PATIENCE_SECS, Server, eventually
from tests.support import batch

pytestmark = pytest.mark.skipif(IS_ASGI, reason="granian: its process ends, see tests/cli")

LONG_SECS = 600.0
INITIAL_WINDOW = 4
NO_LIMIT = WINDOW_MAX - 65_535  # more than the connection begins with
EVERYTHING = 2**31 - 1
RECORD = b"x" * 60 * KIB  # more than a client takes without reading, less than the sockets hold


class SilentClient:
    """HTTP/2 by hand: answers neither settings nor pings unless told to."""

    def __init__(self, server: Server, *, window: int = 65_535, buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECS)
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.connect(("127.0.0.1", server.port))
        settings = struct.pack(">HI", INITIAL_WINDOW, window)
        self.send(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, stream: int, path: str, *fields: tuple[str, str]) -> None:
        self.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, request("GET", path, *fields)))

    def take(self) -> tuple[int, int, bytes] | None:
        """The next frame: its kind, its stream and its payload; None at the end."""
        head = self._exactly(9)
        if head is None:
            return None
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        assert payload is not None
        return head[3], int.from_bytes(head[5:9], "big"), payload

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                assert not data, "the end came within a frame"
                return None
            data += part
        return data

    def until(self, kind: int) -> bytes:
        """The payload of the next frame of that kind."""
        while (found := self.take()) is not None:
            if found[0] == kind:
                return found[2]
        raise AssertionError("the connection has ended")

    def last_streams(self) -> list[int]:
        """What the GOAWAYs that come up to the end say was taken in."""
        found = []
        while (taken := self.take()) is not None:
            if taken[0] == GOAWAY:
                last, error = struct.unpack(">II", taken[2])
                assert error == 0
                found.append(last)
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(cors=False) as running:
        yield running


def stopping(server: Server) -> "Future[None]":
    return server.submit(server.edge.stop(LONG_SECS))


@pytest.mark.parametrize("requests", [0, 1])
def test_a_connection_that_serves_nothing_is_not_waited_for(server: Server, requests: int) -> None:
    with SilentClient(server) as client:
        client.until(SETTINGS)
        for number in range(requests):
            client.get(2 * number + 1, "/health")
            assert client.until(HEADERS)[0] == STATUS_200
        stopped = stopping(server)
        assert client.last_streams() == [EVERYTHING, max(2 * requests - 1, 0)]
        stopped.result(PATIENCE_SECS)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server wait until a test says that its patience is at an end."""
    monkeypatch.setattr(native_connection, "GOAWAY_ACK_SECS", LONG_SECS)


def end_patience(server: Server) -> bool:
    """Have the server look once whether it may end; returns whether it has."""

    def end() -> bool:
        for connection in connections(server):
            connection._hang_up()
        return not connections(server)

    return server.call(end)


def connections(server: Server) -> set[native_connection.Connection]:
    assert isinstance(server.edge, native.NativeServer)
    return server.edge.connections


@pytest.mark.usefixtures("patience")
def test_a_request_that_was_on_its_way_is_answered_before_the_end(server: Server) -> None:
    with SilentClient(server, window=0) as client:
        client.until(SETTINGS)
        stopped = stopping(server)
        client.until(PING)
        client.get(1, "/health")
        assert client.until(HEADERS)[0] == STATUS_200
        end_patience(server)
        client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 100)))
        assert client.until(DATA) == b"OK"
        eventually(lambda: end_patience(server))
        assert client.last_streams() == [1]
        stopped.result(PATIENCE_SECS)


@pytest.mark.usefixtures("patience")
def test_an_answer_that_is_still_on_the_wire_is_waited_for(server: Server) -> None:
    async def fill() -> None:
        await server.node.create_basin(CreateBasin(BASIN))
        await server.node.create_stream(BASIN, CreateStream("s"))
        await server.node.append(BASIN, "s", batch(RECORD))

    server.run(fill())
    with SilentClient(server, window=WINDOW_MAX, buffer_bytes=4096) as client:
        client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", NO_LIMIT)))
        proto = ("accept", "application/protobuf")
        client.get(1, "/v1/streams/s/records?seq_num=0", ("s2-basin", BASIN), proto)
        client.until(HEADERS)
        (connection,) = server.call(lambda: set(connections(server)))
        eventually(lambda: not connection._requests)
        stopped = stopping(server)
        end_patience(server)
        body = b""
        client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))  # resets what is closed
        while not body.endswith(RECORD):
            body += client.until(DATA)
        eventually(lambda: end_patience(server))
        stopped.result(PATIENCE_SECS)
