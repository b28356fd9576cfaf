"""The relay that makes a store look far away: every byte passes, answers come later."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from bench.versus.delay import delayed

DELAY_SECS = 0.05
PATIENCE_SECS = 60.0


class Mirror(socketserver.BaseRequestHandler):
    """Takes as many bytes as eight digits say, and sends them back; of none: closes."""

    def handle(self) -> None:
        while size := int(taken(self.request, 8) or b"0"):
            self.request.sendall(taken(self.request, size))


class Mirrors(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


def taken(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or what came before the end."""
    found = bytearray()
    while len(found) < size and (piece := connection.recv(size - len(found))):
        found += piece
    return bytes(found)


def asked(connection: socket.socket, body: bytes) -> bytes:
    connection.sendall(b"%08d" % len(body) + body)
    return taken(connection, len(body))


@contextmanager
def mirrors() -> Iterator[str]:
    with Mirrors(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with mirrors() as far, delayed(far, DELAY_SECS) as near:
        yield near


def connected(endpoint: str) -> socket.socket:
    address = ("127.0.0.1", urlsplit(endpoint).port or 0)
    return socket.create_connection(address, timeout=PATIENCE_SECS)


def test_every_answer_comes_late_and_whole(endpoint: str) -> None:
    with connected(endpoint) as connection:
        for body in (b"x", b"another", bytes(range(256)) * 40_000):
            began = time.perf_counter()
            assert asked(connection, body) == body
            assert time.perf_counter() - began >= DELAY_SECS


def test_many_connections_wait_side_by_side(endpoint: str) -> None:
    connections = [connected(endpoint) for _ in range(300)]
    try:
        for number, connection in enumerate(connections):
            body = b"%03d" % number
            connection.sendall(b"%08d" % len(body) + body)
        for number, connection in enumerate(connections):
            assert taken(connection, 3) == b"%03d" % number
    finally:
        for connection in connections:
            connection.close()


def test_an_end_is_passed_on(endpoint: str) -> None:
    with connected(endpoint) as connection:
        assert asked(connection, b"x") == b"x"
        connection.sendall(b"%08d" % 0)  # the server closes
        assert connection.recv(1) == b""
    with connected(endpoint) as connection:
        connection.shutdown(socket.SHUT_WR)  # the client closes, and the server behind it
        assert connection.recv(1) == b""


def test_the_relay_ends_with_its_block() -> None:
    with mirrors() as far:
        with delayed(far, 0.0) as near, connected(near) as connection:
            assert asked(connection, b"x") == b"x"
        with pytest.raises(ConnectionRefusedError):
            connected(near)
