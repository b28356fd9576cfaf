"""Bodies on the quick way: in one piece or in many, and none that is too large for it."""

import re
from collections.abc import Iterator
from random import Random

import pytest

from bourn.http.native import NativeServer
from bourn.http.quick import QuickConnection
from bourn.limits import JSON_INLINE_BYTES_MAX, KIB, QUICK_BODY_BYTES_MAX
from bourn.model.record import Record
from bourn.wire.protobuf import encode_append_input
from tests.http.edges import native_only
from tests.http.server import Server, eventually
from tests.http.test_quick import BASIN, NAMES, Wire, append, ask, quick_count, read, request

pytestmark = native_only("it has no quick way")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}"))
        yield running


@pytest.fixture
def stream(server: Server) -> str:
    name = f"b-{next(NAMES)}"
    assert b" 201 " in ask(server.port, request("PUT", f"/v1/streams/{name}"))
    return name


def in_protobuf(stream: str, size: int) -> bytes:
    """An append of one record whose message is so large."""
    body = bytes(size)
    while len(message := encode_append_input([Record(body)])) > size:
        body = body[: size - len(message)]
    assert len(message) == size
    return append(stream, message).replace(b"application/json", b"application/protobuf")


def in_json(stream: str, size: int) -> bytes:
    empty = b'{"records":[{"body":""}]}'
    return append(stream, empty.replace(b'""', b'"%b"' % (b"x" * (size - len(empty)))))


def connection(server: Server) -> QuickConnection:
    edge = server.edge
    assert isinstance(edge, NativeServer)
    eventually(lambda: len(edge._quick_ones) == 1)  # those before it have gone
    return server.call(lambda: next(iter(edge._quick_ones)))


@pytest.mark.parametrize("size", [100 * KIB, QUICK_BODY_BYTES_MAX, QUICK_BODY_BYTES_MAX + 1])
def test_large_bodies_are_quick_up_to_a_bound(server: Server, stream: str, size: int) -> None:
    before = quick_count(server)
    with Wire(server.port) as wire:
        for number in range(3):
            answer = wire.ask(in_protobuf(stream, size))
            assert b'"start":{"seq_num":%d,' % number in answer
    assert quick_count(server) == before + 3 * (size <= QUICK_BODY_BYTES_MAX)


@pytest.mark.parametrize("size", [JSON_INLINE_BYTES_MAX, 300 * KIB, QUICK_BODY_BYTES_MAX])
def test_a_large_text_is_quick_where_it_is_an_ordinary_one(
    server: Server, stream: str, size: int
) -> None:
    before = quick_count(server)
    assert b" 200 OK" in ask(server.port, in_json(stream, size))
    assert quick_count(server) == before + 1


@pytest.mark.parametrize("size", [JSON_INLINE_BYTES_MAX, JSON_INLINE_BYTES_MAX + 1, 300 * KIB])
def test_a_text_that_may_take_long_to_read_goes_the_ordinary_way(
    server: Server, stream: str, size: int
) -> None:
    before = quick_count(server)
    odd = in_json(stream, size).replace(b'"body"', b'"odd"')  # as long, and with no such key
    assert b" 200 OK" in ask(server.port, odd.replace(b'"odd":', b'"odd": '))
    assert quick_count(server) == before + (size <= JSON_INLINE_BYTES_MAX)


@pytest.mark.parametrize("seed", range(8))
def test_a_body_may_come_in_any_pieces(server: Server, stream: str, seed: int) -> None:
    rng = Random(seed)
    bodies = [rng.randbytes(rng.choice([10, 5_000, 60_000, 200_000])) for _ in range(4)]
    data = b""
    for body in bodies:
        message = encode_append_input([Record(body)])
        one = append(stream, message).replace(b"application/json", b"application/protobuf")
        data += one
    before, at = quick_count(server), 0
    with Wire(server.port) as wire:
        while at < len(data):
            piece = rng.choice([1, 100, 4_000, 70_000])
            wire.sock.sendall(data[at : at + piece])
            at += piece
        answers = [wire.answer() for _ in bodies]
    assert [b" 200 OK" in answer for answer in answers] == [True] * 4
    assert quick_count(server) == before + 4
    for number, body in enumerate(bodies):
        fields = ("accept: application/protobuf",)
        assert body in ask(server.port, read(stream, f"seq_num={number}&count=1", *fields))


def test_a_body_in_many_pieces_is_put_together_once(server: Server, stream: str) -> None:
    data = in_protobuf(stream, 400 * KIB)
    with Wire(server.port) as wire:
        assert b" 200 OK" in wire.ask(append(stream))
        found = connection(server)
        half = len(data) // 2
        for at in range(0, half, 4_000):
            wire.sock.sendall(data[at : min(at + 4_000, half)])
        eventually(lambda: server.call(lambda: len(found._part)) == half)
        assert server.call(lambda: found._buffer) == b""
        part = found._part
        wire.sock.sendall(data[half:-1])
        eventually(lambda: server.call(lambda: len(found._part)) == len(data) - 1)
        assert found._part is part
        assert b" 200 OK" in wire.ask(data[-1:] + append(stream))
        assert server.call(lambda: len(found._part)) == 0
        assert b'"start":{"seq_num":2,' in wire.answer()


def test_a_body_that_stays_half_said_is_taken_up_by_the_ordinary_way(
    server: Server, stream: str
) -> None:
    data = in_protobuf(stream, 300 * KIB)
    edge = server.edge
    assert isinstance(edge, NativeServer)
    eventually(lambda: server.call(lambda: len(edge.connections)) == 0)
    before = quick_count(server)
    with Wire(server.port) as wire:
        for at in range(0, 200_000, 50_000):
            wire.sock.sendall(data[at : at + 50_000])
        eventually(lambda: server.call(lambda: len(edge.connections)) == 1)
        answer = wire.ask(data[200_000:])
    assert re.search(rb'"end":{"seq_num":1,', answer)
    assert quick_count(server) == before


def test_an_answer_that_is_read_late_holds_no_body_up(server: Server, stream: str) -> None:
    """A client may send the next request, in pieces, before it has read the last answer."""
    data = in_protobuf(stream, 300 * KIB)
    with Wire(server.port) as wire:
        wire.sock.sendall(append(stream) + data[:1000])
        assert b'"start":{"seq_num":0,' in wire.answer()
        wire.sock.sendall(data[1000:])
        assert b'"start":{"seq_num":1,' in wire.answer()
