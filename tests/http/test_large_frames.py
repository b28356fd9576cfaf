"""Large frames of HTTP/2, in either direction: taken from the first moment, sent in few writes."""

import socket
import struct
from contextlib import suppress
from typing import Any

import pytest

from bourn.http import native, native_connection
from bourn.http.pushing import Http2Burst
from bourn.http.settling import PREFACE_BYTES, Settling
from bourn.http.tuning import FRAME_BYTES_MAX
from bourn.limits import KIB, MIB
from tests.http.clients import SESSION, Api, H2Client
from tests.http.conftest import BASIN
from tests.http.edges import native_only
from tests.http.frames import Frames, append
from tests.http.server import PATIENCE_SECS, LoopThread, Server, eventually

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_HEADERS, ACK = 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_SIZE = 5


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def field(name: str, value: str) -> bytes:
    """A header as HPACK's plainest literal."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def request(method: str, path: str, *more: tuple[str, str]) -> bytes:
    pseudo = ((":method", method), (":scheme", "http"), (":authority", "here"), (":path", path))
    return b"".join(field(*pair) for pair in (*pseudo, ("s2-basin", BASIN), *more))


BEFORE = PREFACE + frame(SETTINGS, 0, 0, bytes(6)) + frame(HEADERS, END_HEADERS, 1, b"x" * 40)
BEHIND = frame(DATA, 0, 1, b"y" * 50) + frame(SETTINGS, ACK, 0)


@pytest.mark.parametrize("size", range(1, len(BEFORE + BEHIND) + 30))
def test_everything_up_to_the_ack_is_handed_over_and_nothing_behind_it(size: int) -> None:
    ack = frame(SETTINGS, ACK, 0)
    data = BEFORE + ack + BEHIND
    settling = Settling()
    handed = 0
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        end = settling.end(piece)
        handed += end
        if settling.is_over:
            break
        assert end == len(piece)
    assert handed == len(BEFORE + ack)


def test_a_client_that_never_acks_is_heard_all_the_same() -> None:
    settling = Settling()
    data = BEFORE + frame(DATA, ACK, 1, bytes(300)) * 5
    assert settling.end(data[:PREFACE_BYTES]) == PREFACE_BYTES
    assert settling.end(data[PREFACE_BYTES:]) == len(data) - PREFACE_BYTES
    assert not settling.is_over


class Raw:
    """A connection of HTTP/2 taken apart by hand."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECS)
        self._buffer = b""

    def next(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, payload."""
        size = 9 + int.from_bytes(self._some(9)[:3], "big")
        data = self._some(size)
        self._buffer = self._buffer[size:]
        return data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:size]

    def _some(self, size: int) -> bytes:
        while len(self._buffer) < size:
            more = self.socket.recv(64 * KIB)
            assert more, "the server has closed the connection"
            self._buffer += more
        return self._buffer

    def body(self, stream: int, size: int) -> bytes:
        """So much of a response's body."""
        found = b""
        while len(found) < size:
            kind, _, number, payload = self.next()
            if kind == DATA and number == stream:
                found += payload
        return found


@native_only("it has limits of its own")
def test_a_large_frame_may_come_in_one_write_with_the_ack_of_our_settings(
    server: Server, api: Api, stream: str
) -> None:
    if api.version == "h1":
        pytest.skip("frames are of HTTP/2")
    body = b"z" * (MIB - 100)
    raw = Raw(server.port)
    with raw.socket:
        head = request("POST", f"/v1/streams/{stream}/records", ("content-type", "s2s/proto"))
        raw.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        kind, flags, _, settings = raw.next()
        assert (kind, flags) == (SETTINGS, 0)
        allowed = {
            int.from_bytes(settings[at : at + 2], "big"): int.from_bytes(
                settings[at + 2 : at + 6], "big"
            )
            for at in range(0, len(settings), 6)
        }
        assert allowed[MAX_FRAME_SIZE] == FRAME_BYTES_MAX
        raw.socket.sendall(
            frame(SETTINGS, ACK, 0)
            + frame(HEADERS, END_HEADERS, 1, head)
            + frame(DATA, 0, 1, append(body))
        )
        ack = raw.body(1, 4)
        assert ack[:3] != b"\0\0\0"
        assert ack[3] == 0, "no terminal frame"
    assert api.get(f"/v1/streams/{stream}/records/tail").json["tail"]["seq_num"] == 1


@native_only("it buffers by itself")
def test_what_a_lost_connection_has_sent_and_nobody_has_looked_at_is_dropped(
    server: Server,
) -> None:
    assert isinstance(server.edge, native.NativeServer)
    connections = server.edge.connections

    def waiting() -> list[native_connection.Connection]:
        return [one for one in connections if one._reading_paused]

    pings = frame(PING, 0, 0, bytes(8)) * 4000
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)  # its pongs fill it soon
        client.connect(("127.0.0.1", server.port))
        client.settimeout(0.2)
        client.sendall(PREFACE + frame(SETTINGS, 0, 0))
        with suppress(TimeoutError):
            while True:
                client.sendall(pings)
        eventually(lambda: server.call(waiting))
        (connection,) = server.call(waiting)
        assert connection._buffered > 0
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: connection not in connections)
    assert connection._buffered == 0


@native_only("it has limits of its own")
def test_large_batches_come_whole_on_streams_that_share_a_connection(
    server: Server, api: Api, stream: str, client_thread: LoopThread
) -> None:
    if api.version == "h1":
        pytest.skip("frames are of HTTP/2")
    client = H2Client(server.port, client_thread)
    api = Api(client, BASIN)
    body = bytes(range(256)) * (3 * KIB)
    path = f"/v1/streams/{stream}/records"
    try:
        session = api.open("POST", path, SESSION)
        frames = Frames(session)
        for _ in range(6):
            session.send(append(body))
            frames.next()
        followers = [Frames(api.open("GET", f"{path}?seq_num=0", SESSION)) for _ in range(3)]
        for follower in followers:
            found: list[bytes] = []
            while len(found) < 6:
                following = follower.next()
                assert following is not None
                found += [record.body for record in following.batch.records]
            assert found == [body] * 6
        session.end()
    finally:
        client.close()


class Verdict:
    def __init__(self, sent: int, *, done: bool) -> None:
        self.sent, self.done = sent, done
        self.stopped = self.handle = None
        self.flags = 0


class Lock:
    is_held = False

    def locked(self) -> bool:
        return self.is_held


class Driver:
    """The library's side: frames of 16 KiB, so many bytes between two writes, one window."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.put_by = bytearray()
        self._send_lock = Lock()

    def send_data(self, _: int, data: bytes, at: int, _is_end: bool) -> Verdict:
        size = min(16 * KIB, len(data) - at, self.window_bytes, 64 * KIB - len(self.put_by))
        self.put_by += data[at : at + size]
        self.window_bytes -= size
        return Verdict(size, done=at + size == len(data))

    def take_pending(self) -> tuple[memoryview, bool]:
        batch, self.put_by = self.put_by, bytearray()
        return memoryview(batch), False

    def credit_written(self) -> list[Any]:
        return []


class Connection:
    """Our side of it, as far as a burst looks."""

    _conn_lost = False

    def __init__(self) -> None:
        self._writing_paused = False
        self._transport = self
        self.writes: list[bytes] = []

    def writelines(self, pieces: list[memoryview]) -> None:
        self.writes.append(b"".join(pieces))


class Sending:
    def __init__(self, driver: Driver) -> None:
        self._conn = driver
        self._stream = self
        self.id = 1


def test_what_the_library_would_write_in_many_pieces_is_one_write() -> None:
    driver, connection = Driver(MIB), Connection()
    data = bytes(range(256)) * (2 * KIB)
    with Http2Burst(connection, Sending(driver)) as burst:
        assert burst.put_by(b"head", 0, MIB) == 4
        assert burst.put_by(data, 0, MIB) == len(data)
        assert connection.writes == []
    assert len(connection.writes) == 1
    assert connection.writes[0] + driver.put_by == b"head" + data, "the rest is for the library"


def test_a_burst_stops_at_the_clients_window_and_what_it_took_is_written() -> None:
    driver, connection = Driver(100 * KIB), Connection()
    data = bytes(512 * KIB)
    with Http2Burst(connection, Sending(driver)) as burst:
        assert burst.put_by(data, 0, MIB) == 100 * KIB
        assert burst.put_by(data, 100 * KIB, MIB) == 100 * KIB
    assert sum(map(len, connection.writes)) + len(driver.put_by) == 100 * KIB


@pytest.mark.parametrize("is_held", [True, False])
def test_nothing_is_taken_from_a_connection_that_is_being_written_or_not_read(
    *, is_held: bool
) -> None:
    driver, connection = Driver(MIB), Connection()
    if is_held:
        driver._send_lock.is_held = True
    else:
        connection._writing_paused = True
    with Http2Burst(connection, Sending(driver)) as burst:
        assert burst.put_by(bytes(MIB), 0, MIB) == 64 * KIB
    assert connection.writes == []
    assert len(driver.put_by) == 64 * KIB
