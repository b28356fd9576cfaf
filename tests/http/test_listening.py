import asyncio
import errno
import logging
import socket
import struct

import pytest

from bourn.http import listening
from bourn.http.listening import Listener

HOST = "127.0.0.1"


class Greeting(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeting.made += 1
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def reset(port: int) -> None:
    """Make a connection and reset it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.connect((HOST, port))
        sock.send(b"GET / HTTP/1.1\r\n\r\n")


async def heard(port: int) -> bytes:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(HOST, port)
        said = await reader.read()
        writer.close()
        return said


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    Greeting.made = 0


def test_connections_that_were_reset_before_they_were_taken_in_are_never_served() -> None:
    async def check() -> None:
        listener = Listener(Greeting, None)
        port = await listener.listen(HOST, 0)
        for _ in range(100):
            reset(port)  # nothing is taken in meanwhile: this is the loop's own thread
        assert await heard(port) == b"hello"
        assert Greeting.made == 1
        assert listener.dead_count == 100
        listener.close()

    asyncio.run(check())


def test_every_connection_of_a_crowd_is_served() -> None:
    async def check() -> None:
        listener = Listener(Greeting, None)
        port = await listener.listen(HOST, 0)
        said = await asyncio.gather(*(heard(port) for _ in range(200)))
        assert said == [b"hello"] * 200
        listener.close()

    asyncio.run(check())


def test_nobody_is_taken_in_once_it_is_closed() -> None:
    async def check() -> None:
        listener = Listener(Greeting, None)
        port = await listener.listen(HOST, 0)
        listener.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await heard(port)

    asyncio.run(check())


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    async def check() -> None:
        with socket.create_server((HOST, 0)) as taken, pytest.raises(OSError, match="in use"):
            await Listener(Greeting, None).listen(HOST, taken.getsockname()[1])

    asyncio.run(check())


def test_without_room_for_another_connection_it_pauses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_PAUSE_SECS", 0.05)
    refusals: list[None] = []
    accept = socket.socket.accept

    def full_at_first(sock: socket.socket) -> tuple[socket.socket, object]:
        if len(refusals) < 3:
            refusals.append(None)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", full_at_first)

    async def check() -> None:
        listener = Listener(Greeting, None)
        port = await listener.listen(HOST, 0)
        assert await heard(port) == b"hello"
        listener.close()

    with caplog.at_level(logging.WARNING, "bourn"):
        asyncio.run(check())
    assert len(refusals) == 3
    assert "no connection can be taken in" in caplog.text
