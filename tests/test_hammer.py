"""The load generator of bench/versus counts answers, whole ones, and stops at anything odd."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.versus import hammer

ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhello"


class Said:
    """How many requests a server has seen."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []


@contextmanager
def answering(*parts: bytes, closes: bool = False) -> Iterator[tuple[int, Said]]:
    """A server that answers every request with these parts, each in a packet of its own."""
    said = Said()

    def serve(link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with link:
            while request := link.recv(4096):
                while not request.endswith(b"\r\n\r\n"):
                    request += link.recv(4096)
                said.requests.append(request)
                for part in parts:
                    link.sendall(part)
                    pause.wait(0.002)
                if closes:
                    return

    def accept() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            served.append(threading.Thread(target=serve, args=(link,), daemon=True))
            served[-1].start()

    pause = threading.Event()
    served: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[1], said
        listener.shutdown(socket.SHUT_RDWR)
    accepting.join(30)
    for thread in served:
        thread.join(30)


def test_every_connection_asks_with_its_own_request_at_least_once() -> None:
    asks = [b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(40)]
    with answering(FINE) as (port, said):
        took, latencies = hammer.hammer(port, asks, 0.0)
    assert sorted(said.requests) == sorted(asks)
    assert len(latencies) == len(asks)
    assert 0 < latencies.min() <= latencies.max() <= took


def test_a_connection_asks_again_until_the_time_is_over() -> None:
    with answering(FINE) as (port, said):
        took, latencies = hammer.hammer(port, [ASK, ASK], 0.2)
    assert len(latencies) == len(said.requests) > 4
    assert took >= 0.2


def test_with_fewer_connections_each_goes_round_through_requests_of_its_own() -> None:
    asks = [b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(5)]
    with answering(FINE) as (port, said):
        _, latencies = hammer.hammer(port, asks, 0.2, connections=1)
    assert len(latencies) == len(said.requests) > len(asks)
    assert said.requests == [asks[number % 5] for number in range(len(said.requests))]
    with answering(FINE) as (port, said):
        hammer.hammer(port, asks, 0.0, connections=2)
    assert sorted(said.requests) == asks[:2]


@pytest.mark.parametrize("cut", [1, 12, FINE.index(b"5") + 1, FINE.index(b"\r\n\r\n") + 2, -6, -5])
def test_an_answer_may_come_in_parts(cut: int) -> None:
    with answering(FINE[:cut], FINE[cut:]) as (port, said):
        _, latencies = hammer.hammer(port, [ASK] * 3, 0.05)
    assert len(latencies) == len(said.requests) >= 3


def test_an_answer_may_come_byte_by_byte_and_be_empty() -> None:
    parts = [bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n"]
    with answering(*parts) as (port, said):
        _, latencies = hammer.hammer(port, [ASK], 0.0)
    assert len(latencies) == len(said.requests) == 1


def test_an_answer_may_be_longer_than_what_is_received_at_once() -> None:
    body = b"z" * (3 * hammer.RECEIVE_BYTES + 1)
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body) as (port, _):
        _, latencies = hammer.hammer(port, [ASK] * 2, 0.0)
    assert len(latencies) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FINE.replace(b"200 OK", b"503 Gone"), "not 200.*GET / HTTP/1.1.*503 Gone"),
        (FINE.replace(b"Content-Length", b"Content-Lengta"), "no length"),
        (FINE.replace(b": 5", b": "), "no length"),
        (FINE.replace(b"y", b"y" * hammer.HEAD_BYTES_MAX), "head is too long"),
        (FINE + FINE, "more came than was asked for"),
        (FINE + b"!", "more came than was asked for"),
    ],
)
def test_anything_but_one_plain_answer_ends_the_run(answer: bytes, why: str) -> None:
    with answering(answer) as (port, _), pytest.raises(hammer.HammerError, match=why):
        hammer.hammer(port, [ASK], 0.5)


def test_a_server_that_closes_ends_the_run() -> None:
    with (
        answering(FINE, closes=True) as (port, _),
        pytest.raises(hammer.HammerError, match=r"closed the connection|EPIPE|ECONNRESET"),
    ):
        hammer.hammer(port, [ASK], 0.5)
