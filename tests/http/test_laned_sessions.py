"""An append session in a lane is served as any other, and is out of it when it has to be."""

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.http import lane_kernel, lanes
from bourn.http.laned_transport import LanedTransport
from bourn.limits import LANE_ANSWER_BYTES_MAX, LANE_BYTES, LANES_FROM
from tests.http.clients import SESSION, Api, Connected, H1Call
from tests.http.conftest import BASIN
from tests.http.edges import native_only
from tests.http.frames import TERMINAL, Frames, append
from tests.http.server import PATIENCE_SECS, LoopThread, Server, eventually
from tests.http.test_lanes import descriptors, joined, lanes_of, members

pytestmark = native_only("it has no lanes")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    lane_kernel.load()
    with pytest.MonkeyPatch.context() as patch, Server(cors=False) as running:
        patch.setattr(lanes, "LANES_FROM", 1)
        yield running


@pytest.fixture
def version() -> str:
    return "h1"


@pytest.fixture(autouse=True)
def nobody_in_a_lane(server: Server, api: Api) -> None:
    eventually(lambda: not lanes_of(server)._members or members(server) == 0)


def fed(server: Server) -> int:
    return server.call(lambda: server.edge.fed)  # type: ignore[attr-defined, no-any-return]


def seq_nums(server: Server, stream: str) -> int:
    return server.call(lambda: server.stream(BASIN, stream).tail.seq_num)


class Session:
    """An append session on a connection of its own, behind its first ack."""

    def __init__(self, server: Server, api: Api, stream: str) -> None:
        before = fed(server)
        call = api.open("POST", f"/v1/streams/{stream}/records", SESSION)
        assert call.status == 200
        assert isinstance(call, H1Call)
        self.call = call
        eventually(lambda: fed(server) == before + 1)
        self.frames = Frames(self.call)
        self.sock: socket.socket = self.call._sock
        self.append(b"first")

    def append(self, *bodies: bytes) -> int:
        self.call.send(append(*bodies))
        return self.acked()

    def acked(self) -> int:
        return int(self.frames.take().ack.end.seq_num)


@pytest.fixture
def laned(server: Server, api: Api, stream: str) -> Iterator[Session]:
    session = Session(server, api, stream)
    assert members(server) == 1
    yield session
    session.call.abort()
    eventually(lambda: members(server) == 0)


def test_batches_in_a_lane_are_acked_one_after_the_other(server: Server, laned: Session) -> None:
    assert [laned.append(b"x") for _ in range(50)] == list(range(2, 52))
    assert members(server) == 1


def test_batches_sent_without_waiting_are_acked_in_order(server: Server, laned: Session) -> None:
    many = 2000  # far more than a lane's memory holds
    for _ in range(many):
        laned.call.send(append(b"x"))
    assert [laned.acked() for _ in range(many)] == list(range(2, many + 2))


@pytest.mark.parametrize("cut", [1, 7, -1])
def test_a_chunk_may_come_in_parts(server: Server, laned: Session, cut: int) -> None:
    frame = append(b"z" * 40)
    chunk = b"%x\r\n%b\r\n" % (len(frame), frame)
    for number in range(2, 6):
        laned.sock.sendall(chunk[:cut])
        eventually(lambda: members(server) == 1)
        laned.sock.sendall(chunk[cut:])
        assert laned.acked() == number


@pytest.mark.parametrize("size", [LANE_BYTES - 100, LANE_BYTES, 5 * LANE_BYTES, 500_000])
def test_large_batches_are_served_too(laned: Session, size: int) -> None:
    assert laned.append(b"z" * size) == 2
    assert laned.append(b"x") == 3
    assert laned.append(b"z" * size, b"x") == 5


def test_a_large_batch_takes_a_session_out_of_its_lane_for_good(
    server: Server, laned: Session
) -> None:
    assert laned.append(b"z" * 500_000) == 2
    before = joined(server)
    assert [laned.append(b"x") for _ in range(9)] == list(range(3, 12))
    assert (members(server), joined(server)) == (0, before)


def test_a_session_that_ends_leaves_its_lane_and_the_connection_serves_on(
    server: Server, api: Api, stream: str, laned: Session
) -> None:
    laned.call.end()
    assert laned.frames.rest() == []
    eventually(lambda: members(server) == 0)
    tail = b"GET /v1/streams/%b/records/tail HTTP/1.1\r\ns2-basin: %b\r\nhost: x\r\n\r\n"
    laned.sock.sendall(tail % (stream.encode(), BASIN.encode()))
    assert b'"seq_num":1' in laned.sock.recv(4096)
    again = Session(server, api, stream)  # on the same connection, which the client has kept
    assert again.append(b"x") == 3
    again.call.abort()


def test_a_request_sent_behind_the_end_is_answered_behind_the_last_ack(
    stream: str, laned: Session
) -> None:
    tail = b"GET /v1/streams/%b/records/tail HTTP/1.1\r\ns2-basin: %b\r\nhost: x\r\n\r\n"
    frame = append(b"x")
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(frame), frame)
    laned.sock.sendall(chunk + tail % (stream.encode(), BASIN.encode()))
    assert laned.acked() == 2
    got = laned.call._buffer
    while b'"seq_num":2' not in got:
        more = laned.sock.recv(4096)
        assert more
        got += more
    assert got.startswith(b"0\r\n\r\nHTTP/1.1 200 OK")


def test_a_failure_ends_a_session_behind_the_acks_before_it(server: Server, laned: Session) -> None:
    laned.call.send(append(b"good") + append(b"bad", match_seq_num=9) + append(b"late"))
    assert laned.acked() == 2
    last = laned.frames.take()
    assert (last.flag, last.error) == (TERMINAL, (412, {"seq_num_mismatch": 2}))
    assert laned.frames.next() is None
    eventually(lambda: members(server) == 0)


def test_acks_that_a_client_does_not_read_are_sent_when_it_does(
    server: Server, api: Api, stream: str, laned: Session
) -> None:
    server.call(lambda: narrow(server))
    sent = 0
    while members(server):  # until the sockets hold no more
        for _ in range(50):
            laned.call.send(append(b"x"))
        sent += 50
        eventually(partial(is_taken, server, stream, sent))
    laned.call.end()
    assert [found.ack.end.seq_num for found in laned.frames.rest()] == list(range(2, sent + 2))


def is_taken(server: Server, stream: str, count: int) -> bool:
    return not members(server) or seq_nums(server, stream) > count


def narrow(server: Server) -> None:
    for connection in server.edge.connections:  # type: ignore[attr-defined]
        sock = connection._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)


def test_an_input_that_ends_early_is_seen_in_a_lane(
    server: Server, stream: str, laned: Session
) -> None:
    laned.call.send(append(b"x"))
    laned.sock.sendall(b"40\r\nhalf")
    laned.sock.shutdown(socket.SHUT_WR)
    assert laned.acked() == 2
    eventually(lambda: members(server) == 0)
    eventually(lambda: server.users(BASIN, stream) == 0)


def test_clients_that_go_leave_no_lane_and_no_descriptor(
    server: Server, stream: str, client_thread: LoopThread
) -> None:
    before = descriptors()
    opened = []
    for _ in range(40):
        connected = Connected("h1", server.port, client_thread)
        opened.append(Session(server, Api(connected.client, BASIN), stream))
    assert members(server) == 40
    for number, session in enumerate(opened):
        if number % 2:  # in the middle of a batch, and by force
            session.sock.sendall(b"40\r\nhalf")
            linger = (1).to_bytes(4, "little") + bytes(4)
            session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        session.call.abort()
    eventually(lambda: members(server) == 0)
    eventually(lambda: descriptors() <= before)
    assert seq_nums(server, stream) == 40


def test_few_sessions_stay_with_the_loop(
    server: Server, api: Api, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LANES_FROM", LANES_FROM)
    before = joined(server)
    session = Session(server, api, stream)
    assert session.append(b"x") == 2
    assert joined(server) == before
    session.call.abort()


def test_a_server_that_stops_ends_the_sessions_in_its_lanes_behind_their_acks(
    client_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LANES_FROM", 1)
    with Server(cors=False) as server, Connected("h1", server.port, client_thread) as connected:
        api = Api(connected.client, BASIN)
        api.put(f"/v1/basins/{BASIN}")
        api.put("/v1/streams/last")
        session = Session(server, api, "last")
        assert members(server) == 1
        stopping = server.submit(server.edge.stop(0.5))
        last = session.frames.take()
        assert last.flag == TERMINAL
        assert last.code[0] == 503
        assert session.frames.next() is None
        assert session.sock.recv(10) == b""
        stopping.result(PATIENCE_SECS)


# The order of what is written, whenever the lane is left


class Wired:
    """Lanes, a transport and a connection that note what goes out."""

    def __init__(self) -> None:
        self.sent = b""
        self.rows: list[bytes] = []  # that the lane was told to send, and has not
        self.is_short = False
        self.leaves = False
        self.is_full = False
        self.closed_at: int | None = None

    def __call__(self, *_: object) -> "Wired":
        return self

    # lanes
    def join(self, member: LanedTransport, _: int) -> int:
        self.member = member
        return 0

    def send(self, _: int, data: bytes, *, more: bool) -> None:
        assert not self.leaves, "behind the end of the lane"
        assert not more
        self.rows.append(data)

    def more(self, _: int) -> None: ...
    def leave(self, _: int) -> None:
        self.leaves = True

    def turn(self, takes: int) -> None:
        """What the thread does; it can send so many bytes before the socket is full."""
        rows, self.rows, leaves = self.rows, [], self.leaves
        for row in rows:
            sent = 0 if self.is_short else min(takes, len(row))
            takes -= sent
            self.sent += row[:sent]
            if sent < len(row):
                self.is_short = True
                self.member.was_short(row[sent:])
        if leaves:
            assert not self.rows
            self.leaves = False
            self.member.left_lane()

    # the transport
    def write(self, data: bytes) -> None:
        assert self.closed_at is None
        self.sent += data

    def fileno(self) -> int:
        return -1

    get_extra_info = __call__

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool:
        return self.closed_at is not None

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed_at = len(self.sent)

    # the connection
    def pause_writing(self) -> None:
        assert not self.is_full
        self.is_full = True

    def resume_writing(self) -> None:
        assert self.is_full
        self.is_full = False

    def left_lane(self, transport: object) -> None:
        assert transport is self


SIZES = st.sampled_from([1, 60, LANE_ANSWER_BYTES_MAX, LANE_ANSWER_BYTES_MAX + 1, 40_000])
WRITES = st.tuples(st.just("write"), SIZES)
TURNS = st.tuples(st.just("turn"), st.sampled_from([0, 1, 100, 1 << 20]))
CLOSES = st.tuples(st.just("close"), st.just(0))


@given(st.lists(WRITES | TURNS), st.booleans())
def test_whatever_leaves_the_lane_nothing_is_lost_or_overtaken(
    does: Sequence[tuple[str, int]], closes: bool
) -> None:
    wired: Any = Wired()
    laned = LanedTransport(wired, wired, wired)
    assert laned.enter()
    written, numbers = b"", count()
    for what, size in does:
        if what == "write":
            data = (b"%d," % next(numbers)).ljust(size, b".")
            laned.write(data)
            written += data
        else:
            wired.turn(size)
    if closes:
        laned.close()
        assert laned.is_closing()
    else:
        laned.leave_lane()
    for _ in range(3):
        wired.turn(1 << 20)
    assert wired.sent == written
    assert not wired.is_full
    assert laned.get_write_buffer_size() == 0
    assert wired.closed_at == (len(written) if closes else None)
