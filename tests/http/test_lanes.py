"""A connection in a lane is served as any other, in order, and is out of it when it has to be."""

import errno
import fcntl
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bourn.http import lane_kernel, laned_connection, lanes, quick
from bourn.http.native import NativeServer
from bourn.limits import LANE_BYTES, LANES_FROM, LANES_MAX
from bourn.settings import EngineSettings
from tests.http.edges import native_only
from tests.http.server import PATIENCE_SECS, Server, eventually
from tests.http.test_quick import (
    BASIN,
    NAMES,
    SEQ_NUMS,
    Wire,
    append,
    ask,
    masked,
    quick_count,
    read,
    request,
)

pytestmark = native_only("it has no quick way")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    lane_kernel.load()
    with pytest.MonkeyPatch.context() as patch, Server() as running:
        patch.setattr(lanes, "LANES_FROM", 1)
        patch.setattr(quick, "QUICK_IDLE_SECS", 3600.0)
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}"))
        yield running


@pytest.fixture
def stream(server: Server) -> str:
    name = f"lane-{next(NAMES)}"
    assert b" 201 " in ask(server.port, request("PUT", f"/v1/streams/{name}"))
    return name


def lanes_of(server: Server) -> lanes.Lanes:
    assert isinstance(server.edge, NativeServer)
    return server.edge.lanes


def joined(server: Server) -> int:
    return server.call(lambda: lanes_of(server).joined)


def members(server: Server) -> int:
    return server.call(lambda: LANES_MAX - len(lanes_of(server)._free))


@pytest.fixture
def laned(server: Server, stream: str) -> Iterator[Wire]:
    """A connection that is in a lane, behind the first record of the stream."""
    eventually(lambda: not lanes_of(server)._members or members(server) == 0)
    with Wire(server.port) as wire:
        assert b" 200 OK" in wire.ask(append(stream))
        assert members(server) == 1
        yield wire
    eventually(lambda: members(server) == 0)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def seq_nums(server: Server, stream: str) -> int:
    return server.call(lambda: server.stream(BASIN, stream).tail.seq_num)


def test_appends_in_a_lane_are_answered_one_after_the_other(
    server: Server, stream: str, laned: Wire
) -> None:
    for number in range(1, 50):
        answer = laned.ask(append(stream))
        assert b'"start":{"seq_num":%d,' % number in answer
    assert members(server) == 1
    assert seq_nums(server, stream) == 50


def test_an_answer_is_the_same_in_a_lane_and_outside(
    server: Server, stream: str, laned: Wire
) -> None:
    outside = f"lane-{next(NAMES)}"
    ask(server.port, request("PUT", f"/v1/streams/{outside}"))
    ask(server.port, append(outside))
    for asked in (append, read, lambda name: append(name, b'{"records":[],"match_seq_num":9}')):
        assert masked(laned.ask(asked(stream))) == masked(ask(server.port, asked(outside)))


def test_many_requests_at_once_are_answered_in_order(
    server: Server, stream: str, laned: Wire
) -> None:
    count = 400  # far more than a lane's memory holds
    laned.sock.sendall(append(stream) * count)
    for number in range(1, count + 1):
        assert b'"start":{"seq_num":%d,' % number in laned.answer()
    assert seq_nums(server, stream) == count + 1


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_request_may_come_in_parts(server: Server, stream: str, laned: Wire, cut: int) -> None:
    for number in range(1, 4):
        whole = append(stream)
        laned.sock.sendall(whole[:cut])
        eventually(lambda: members(server) == 1)
        laned.sock.sendall(whole[cut:])
        assert b'"start":{"seq_num":%d,' % number in laned.answer()


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_part_of_a_request_may_come_behind_another(stream: str, laned: Wire, cut: int) -> None:
    whole = append(stream)
    laned.sock.sendall(whole + whole[:cut])
    assert b'"start":{"seq_num":1,' in laned.answer()
    laned.sock.sendall(whole[cut:] + whole + whole[:cut])
    assert b'"start":{"seq_num":2,' in laned.answer()
    assert b'"start":{"seq_num":3,' in laned.answer()
    laned.sock.sendall(whole[cut:])
    assert b'"start":{"seq_num":4,' in laned.answer()


@pytest.mark.parametrize("size", [LANE_BYTES - 400, LANE_BYTES, 5 * LANE_BYTES, 200_000])
def test_large_requests_are_served_too(stream: str, laned: Wire, size: int) -> None:
    body = b'{"records":[{"body":"%b"}]}' % (b"z" * size)
    assert b" 200 OK" in laned.ask(append(stream, body))
    assert b" 200 OK" in laned.ask(append(stream))
    assert b'"tail":{"seq_num":3,' in laned.ask(
        request("GET", f"/v1/streams/{stream}/records/tail")
    )


def test_a_request_that_is_not_quick_goes_the_ordinary_way(
    server: Server, stream: str, laned: Wire
) -> None:
    assert b" 200 OK" in laned.ask(request("GET", "/v1/locations"))
    assert members(server) == 0
    assert b" 200 OK" in laned.ask(append(stream))


def test_what_the_catalog_says_is_told_in_a_lane(server: Server, stream: str, laned: Wire) -> None:
    for _ in range(3):
        assert b'"default_stream_config":' in laned.ask(request("GET", f"/v1/basins/{BASIN}"))
        ensured = laned.ask(request("PUT", f"/v1/streams/{stream}", b"{}"))
        assert b"s2-provision-result: noop" in ensured
        listed = laned.ask(request("GET", f"/v1/streams?prefix={stream}&limit=1"))
        assert b'"name":"%b"' % stream.encode() in listed
    assert members(server) == 1


def test_a_refusal_is_told_in_a_lane(server: Server, stream: str, laned: Wire) -> None:
    body = b'{"records":[{"body":"x"}],"match_seq_num":7}'
    assert b" 412 " in laned.ask(append(stream, body))
    assert b'"start":{"seq_num":1,' in laned.ask(append(stream))
    assert members(server) == 1


def is_served(server: Server, requests: int) -> bool:
    return not members(server) or quick_count(server) >= requests


def test_large_answers_take_a_connection_out_of_its_lane_for_good(
    server: Server, stream: str, laned: Wire
) -> None:
    laned.ask(append(stream, b'{"records":[{"body":"%b"}]}' % (b"z" * 15_000)))
    assert members(server) == 1
    laned.sock.sendall(read(stream) * 40)
    first = laned.answer().partition(b"\r\n\r\n")[2]
    for _ in range(39):
        assert laned.answer().partition(b"\r\n\r\n")[2] == first
    assert b'"start":{"seq_num":2,' in laned.ask(append(stream))
    assert members(server) == 0


def test_what_a_client_does_not_read_is_sent_when_it_does(
    server: Server, stream: str, laned: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laned_connection, "LANE_ANSWER_BYTES_MAX", 1 << 20)
    laned.ask(append(stream, b'{"records":[{"body":"%b"}]}' % (b"z" * 15_000)))
    asked = 0
    while members(server):  # until the sockets hold no more
        goal = quick_count(server) + 20
        laned.sock.sendall(read(stream) * 20)
        asked += 20
        eventually(partial(is_served, server, goal))
    first = laned.answer().partition(b"\r\n\r\n")[2]
    for _ in range(asked - 1):
        assert laned.answer().partition(b"\r\n\r\n")[2] == first
    assert b'"start":{"seq_num":2,' in laned.ask(append(stream))


def test_what_many_clients_do_not_read_at_once_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pipes that are full in both directions: neither the loop nor the thread may wait for ever."""
    lane_kernel.load()
    monkeypatch.setattr(lanes, "LANES_FROM", 1)
    monkeypatch.setattr(lanes, "PIPE_BYTES", 4096)
    with Server() as server, ExitStack() as opened:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(server.port, request("PUT", "/v1/streams/last"))
        ask(server.port, append("last", b'{"records":[{"body":"%b"}]}' % (b"z" * 600)))
        wires = [opened.enter_context(Narrow(server.port)) for _ in range(16)]
        for wire in wires:
            wire.ask(append("last"))
        assert members(server) == len(wires)
        server.call(lambda: shrink_buffers(server))
        gate = threading.Event()
        server.submit(gated(gate))
        asked = read("last", "seq_num=0&count=1")
        count = (LANE_BYTES - 1) // len(asked)
        for wire in wires:
            wire.sock.sendall(asked * count)
        gate.set()
        for wire in wires:
            for _ in range(count):
                assert b"zzz" in wire.answer()


class Narrow(Wire):
    """A connection that takes little before it is read from."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sock.close()
        self.sock = socket.socket()
        self.sock.settimeout(PATIENCE_SECS)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", port))


async def gated(gate: threading.Event) -> None:
    """Hold the loop up until so much has come that it is served in one turn."""
    gate.wait(PATIENCE_SECS)


def shrink_buffers(server: Server) -> None:
    assert isinstance(server.edge, NativeServer)
    for connection in server.edge._quick_ones:
        sock = connection._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def test_a_client_that_has_said_its_last_is_answered_and_let_go(
    server: Server, stream: str, laned: Wire
) -> None:
    laned.sock.sendall(append(stream) * 3)
    laned.sock.shutdown(socket.SHUT_WR)
    for number in range(1, 4):
        assert b'"start":{"seq_num":%d,' % number in laned.answer()
    assert laned.sock.recv(10) == b""
    eventually(lambda: members(server) == 0)


def test_clients_that_go_leave_no_lane_and_no_descriptor(server: Server, stream: str) -> None:
    eventually(lambda: members(server) == 0)
    before = descriptors()
    wires = [Wire(server.port) for _ in range(60)]
    for wire in wires:
        wire.sock.sendall(append(stream))
    for wire in wires:
        assert b" 200 OK" in wire.answer()
    assert members(server) == 60
    for number, wire in enumerate(wires):
        if number % 2:  # in the middle of a request, and by force
            wire.sock.sendall(append(stream)[:-3])
            linger = (1).to_bytes(4, "little") + bytes(4)
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wire.sock.close()
    eventually(lambda: members(server) == 0)
    eventually(lambda: descriptors() <= before)
    assert seq_nums(server, stream) == 60


def test_few_connections_stay_with_the_loop(server: Server, stream: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "LANES_FROM", LANES_FROM)
        before = joined(server)
        with Wire(server.port) as wire:
            assert b" 200 OK" in wire.ask(append(stream))
        assert joined(server) == before


def test_a_server_that_stops_answers_what_its_lanes_have_brought() -> None:
    lane_kernel.load()
    held = EngineSettings(flush_interval_ms=600)
    with pytest.MonkeyPatch.context() as patch, Server(settings=held) as server:
        patch.setattr(lanes, "LANES_FROM", 1)
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(server.port, request("PUT", "/v1/streams/last"))
        with Wire(server.port) as wire, Wire(server.port) as idle:
            wire.ask(append("last"))
            idle.ask(append("last"))
            wire.sock.sendall(append("last"))
            eventually(lambda: seq_nums_admitted(server) == 3)
            stopping = server.submit(server.edge.stop(PATIENCE_SECS))
            assert SEQ_NUMS.search(wire.answer()) is not None
            assert wire.sock.recv(10) == b""
            assert idle.sock.recv(10) == b""
            stopping.result(PATIENCE_SECS)


def seq_nums_admitted(server: Server) -> int:
    return server.call(lambda: server.stream(BASIN, "last").state.next_seq_num)


def test_a_system_without_room_for_lanes_is_served_by_the_loop_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EPERM, "too many pages in pipes")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    before = descriptors()
    made = lanes.Lanes()
    assert not made.is_wanted(LANES_FROM)
    assert not made.is_wanted(LANES_FROM)
    assert descriptors() == before
    made.close()
