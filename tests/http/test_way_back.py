"""A connection that rests on the ordinary way comes back to the quick one, and nothing is lost."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.http.native import NativeServer
from bourn.http.way_back import WayBack
from bourn.limits import WAY_BACK_SKIPS_MAX, WAY_BACK_WORTH
from tests.http.edges import native_only
from tests.http.server import Server, eventually
from tests.http.test_quick import BASIN, Wire, append, ask, quick_count, read, request

pytestmark = native_only("it has no quick way")

HEALTH = request("GET", "/health")
STREAM = "kept"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(running.port, request("PUT", f"/v1/streams/{STREAM}"))
        yield running


def wait_for_rest(server: Server) -> None:
    """Return when the library has all connections."""
    edge = server.edge
    assert isinstance(edge, NativeServer)
    eventually(lambda: server.call(lambda: len(edge.connections)) == 1)


def used(wire: Wire) -> Wire:
    """Be on the quick way for long enough."""
    for _ in range(WAY_BACK_WORTH):
        wire.ask(append(STREAM))
    return wire


def tail(server: Server) -> int:
    return server.call(lambda: server.stream(BASIN, STREAM).tail.seq_num)


def test_a_connection_that_has_rested_comes_back(server: Server) -> None:
    with Wire(server.port) as wire:
        for count in range(1, 4):
            assert b" 200 OK" in wire.ask(append(STREAM))
            assert quick_count(server) == count
            wait_for_rest(server)
    assert tail(server) == 3


def test_a_connection_that_said_nothing_at_first_comes_back(server: Server) -> None:
    with Wire(server.port) as wire:
        wait_for_rest(server)
        assert b" 200 OK" in wire.ask(append(STREAM))
        assert quick_count(server) == 1


def test_a_connection_comes_back_behind_any_other_request(server: Server) -> None:
    with Wire(server.port) as wire:
        used(wire)
        assert b" 200 OK" in wire.ask(HEALTH)
        assert b" 200 OK" in wire.ask(append(STREAM))
        assert b" 200 OK" in wire.ask(read(STREAM))
    assert quick_count(server) == WAY_BACK_WORTH + 2
    assert tail(server) == WAY_BACK_WORTH + 1


def test_a_connection_that_goes_to_and_fro_stays_longer_each_time(server: Server) -> None:
    rounds = 100
    with Wire(server.port) as wire:
        for _ in range(rounds):
            assert b" 200 OK" in wire.ask(HEALTH)
            assert b" 200 OK" in wire.ask(append(STREAM))
    assert 1 <= quick_count(server) <= 10
    assert tail(server) == rounds


def test_what_came_with_another_request_is_not_lost(server: Server) -> None:
    """Half of an append lies with the library, so the other half goes there too."""
    data = append(STREAM)
    for cut in (1, 20, data.index(b"\r\n\r\n") + 4, len(data) - 1):
        with Wire(server.port) as wire:
            used(wire)
            before = quick_count(server), tail(server)
            wire.sock.sendall(HEALTH + data[:cut])
            assert b" 200 OK" in wire.answer()
            assert b" 200 OK" in wire.ask(data[cut:])
            assert (quick_count(server), tail(server)) == (before[0], before[1] + 1)
            assert b" 200 OK" in wire.ask(append(STREAM))
            assert (quick_count(server), tail(server)) == (before[0] + 1, before[1] + 2)


def test_requests_behind_the_one_that_comes_back_are_answered_in_order(server: Server) -> None:
    with Wire(server.port) as wire:
        used(wire)
        wire.ask(HEALTH)
        start = tail(server)
        wire.sock.sendall(append(STREAM) + HEALTH + append(STREAM) + read(STREAM, "tail_offset=1"))
        answers = [wire.answer() for _ in range(4)]
    assert f'"tail":{{"seq_num":{start + 1},'.encode() in answers[0]
    assert b"seq_num" not in answers[1]
    assert f'"tail":{{"seq_num":{start + 2},'.encode() in answers[2]
    assert f'"seq_num":{start + 1},'.encode() in answers[3]


def test_a_body_may_come_behind_its_head(server: Server) -> None:
    data = append(STREAM)
    end = data.index(b"\r\n\r\n") + 4
    with Wire(server.port) as wire:
        used(wire)
        wire.ask(HEALTH)
        wire.sock.sendall(data[:end])
        wait_for_rest(server)  # of the rest of it, for too long
        assert b" 200 OK" in wire.ask(data[end:])
    assert tail(server) == WAY_BACK_WORTH + 1


def test_a_client_that_has_come_back_may_say_its_last(server: Server) -> None:
    with Wire(server.port) as wire:
        used(wire)
        wire.ask(HEALTH)
        wire.sock.sendall(append(STREAM))
        wire.sock.shutdown(socket.SHUT_WR)
        assert b" 200 OK" in wire.answer()
        assert wire.sock.recv(10) == b""


def test_the_library_is_rid_of_a_connection_that_has_gone_back(server: Server) -> None:
    edge = server.edge
    assert isinstance(edge, NativeServer)
    with Wire(server.port) as wire:
        used(wire)
        wire.ask(HEALTH)
        assert server.call(lambda: len(edge.connections)) == 1
        wire.ask(append(STREAM))
        assert server.call(lambda: len(edge.connections)) == 0
        wire.ask(append(STREAM))  # a turn later, and open still
    assert tail(server) == WAY_BACK_WORTH + 2


@given(st.lists(st.one_of(st.none(), st.integers(0, 2 * WAY_BACK_WORTH)), max_size=300))
def test_the_way_back_is_open_again_at_the_latest_behind_as_many_requests(
    said: list[int | None],
) -> None:
    way_back = WayBack()
    refused = 0
    for served in said:
        if served is not None:
            way_back.close(served)
            refused = 0
            if served >= WAY_BACK_WORTH:
                assert way_back.is_open()
        elif way_back.is_open():
            refused = 0
        else:
            refused += 1
        assert refused <= WAY_BACK_SKIPS_MAX
