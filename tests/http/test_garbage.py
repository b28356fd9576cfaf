"""Connections that have ended are gone at once: the collector of a server runs seldom."""

import gc
from collections.abc import Iterator

import pytest

from bourn.http.native_connection import Connection
from tests.hostile.attacks import preface
from tests.hostile.wires import END_HEADERS, END_STREAM, HEADERS, frame, head, request
from tests.http.clients import H1Client
from tests.http.edges import native_only
from tests.http.server import Server, eventually

pytestmark = native_only("its connections are not objects of ours")

FLAGS = END_HEADERS | END_STREAM
STARTS = {
    "h1 answered": head("GET", "/health"),
    "h1 garbage": b"GARBAGE\r\n\r\n",
    "h2 silent": preface(),
    "h2 answered": preface() + frame(HEADERS, FLAGS, 1, request("GET", "/health")),
    "h2 garbage": preface() + b"\xff" * 100,
    "h2 settings": preface() + frame(4, 0, 0) * 100,
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections_in_memory() -> int:
    return sum(isinstance(found, Connection) for found in gc.get_objects())


@pytest.mark.parametrize("start", STARTS)
def test_a_connection_that_has_ended_does_not_wait_for_the_collector(
    server: Server, start: str, uncollected: None
) -> None:
    before = connections_in_memory()  # of other tests
    client = H1Client(server.port)
    sock = client.connect()
    sock.sendall(STARTS[start])
    assert sock.recv(1), "the server says something to each of them"
    client.close()
    eventually(lambda: connections_in_memory() <= before)
