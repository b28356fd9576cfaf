"""The quick way answers as the ordinary way does, and takes nothing that is not plain."""

import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Self

import pytest

from bourn.http.native import NativeServer
from bourn.limits import QUICK_CONFIG_BYTES_MAX
from bourn.settings import EngineSettings
from tests.http.edges import native_only
from tests.http.server import PATIENCE_SECS, Server, eventually

pytestmark = native_only("it has no quick way")

BASIN = "quick-basin"
NAMES = count(1)
HEAD = re.compile(rb"content-length: ([0-9]+)\r\n")
SEQ_NUMS = re.compile(rb'"seq_num":[0-9]+')
TIMES = re.compile(rb'("timestamp":)[^,}\r]+|(date: )[^\r]+')


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}"))
        yield running


@pytest.fixture
def stream(server: Server) -> str:
    name = f"s-{next(NAMES)}"
    assert b" 201 " in ask(server.port, request("PUT", f"/v1/streams/{name}"))
    return name


def request(method: str, path: str, body: bytes = b"", *fields: str) -> bytes:
    found = [f"{method} {path} HTTP/1.1", "host: here", f"s2-basin: {BASIN}", *fields]
    if body:
        found += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*found, "", ""]).encode() + body


def append(stream: str, body: bytes = b'{"records":[{"body":"x"}]}', *fields: str) -> bytes:
    return request("POST", f"/v1/streams/{stream}/records", body, *fields)


def read(stream: str, query: str = "seq_num=0", *fields: str) -> bytes:
    return request("GET", f"/v1/streams/{stream}/records?{query}", b"", *fields)


def tail(stream: str, *fields: str) -> bytes:
    return request("GET", f"/v1/streams/{stream}/records/tail", b"", *fields)


def basin_config(basin: str, *fields: str) -> bytes:
    return request("GET", f"/v1/basins/{basin}", b"", *fields)


def ensure(stream: str, body: bytes = b"", *fields: str) -> bytes:
    return request("PUT", f"/v1/streams/{stream}", body, *fields)


def config(stream: str, *fields: str) -> bytes:
    return request("GET", f"/v1/streams/{stream}", b"", *fields)


class Wire:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE_SECS)
        self._got = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, data: bytes) -> bytes:
        self.sock.sendall(data)
        return self.answer()

    def answer(self) -> bytes:
        """The next whole answer."""
        while True:
            end = self._got.find(b"\r\n\r\n") + 4
            length = HEAD.search(self._got, 0, end) if end > 3 else None
            stop = end + int(length[1]) if length else 0
            if self._got.startswith(b"HTTP/1.1 204") and end > 3:
                found, self._got = self._got[:end], self._got[end:]
                return found
            if length and len(self._got) >= stop:
                found, self._got = self._got[:stop], self._got[stop:]
                return found
            data = self.sock.recv(65536)
            assert data, f"the connection ended behind {self._got!r}"
            self._got += data


def ask(port: int, data: bytes) -> bytes:
    with Wire(port) as wire:
        return wire.ask(data)


def quick_count(server: Server) -> int:
    return server.call(lambda: server.app.telemetry.quick_requests)


def masked(answer: bytes) -> bytes:
    return TIMES.sub(rb"\1\2-", answer)


BASE64 = "s2-format: base64"
PROTO = "accept: application/protobuf"
ORIGIN = "origin: http://elsewhere"
CODINGS = "accept-encoding: gzip, deflate, br, zstd"
PLAIN = {
    "append": append,
    "append for a page": lambda name: append(name, b'{"records":[{"body":"x"}]}', ORIGIN),
    "append in base64": lambda name: append(name, b'{"records":[{"body":"/w=="}]}', BASE64),
    "append, answered in protobuf": lambda name: append(name, b'{"records":[{}]}', PROTO),
    "read": read,
    "read for a page": lambda name: read(name, "seq_num=0", ORIGIN),
    "read in base64": lambda name: read(name, "seq_num=0", BASE64),
    "read in protobuf": lambda name: read(name, "seq_num=0", PROTO),
    "read of much": lambda name: read(name, "seq_num=0&count=3"),
    "read from the end": lambda name: read(name, "tail_offset=2&count=1"),
    "read by a client that wants no compression": lambda name: read(
        name, "seq_num=1", "accept-encoding: identity"
    ),
    "read by time": lambda name: read(name, "timestamp=1000&count=4"),
    "read of nothing": lambda name: read(name, "seq_num=0&count=0"),
    "read that may wait and need not": lambda name: read(name, "seq_num=2&wait=5"),
    "read, small, compressed": lambda name: read(name, "seq_num=1&count=1", CODINGS),
    "read, compressed": lambda name: read(name, "seq_num=0", CODINGS),
    "read, compressed for a page": lambda name: read(name, "seq_num=0", CODINGS, ORIGIN),
    "read in protobuf, compressed": lambda name: read(name, "seq_num=0", CODINGS, PROTO),
    "read, compressed by gzip": lambda name: read(name, "seq_num=0", "accept-encoding: gzip"),
    "tail": tail,
    "tail for a page": lambda name: tail(name, ORIGIN, CODINGS),
    "tail, which is never in protobuf": lambda name: tail(name, PROTO),
    "config": config,
    "config for a page": lambda name: config(name, ORIGIN, PROTO),
    "streams": lambda name: request("GET", f"/v1/streams?prefix={name}&limit=1"),
    "streams, all": lambda _: request("GET", "/v1/streams", b"", CODINGS),
    "streams behind one": lambda name: request("GET", f"/streams?start_after={name[:-1]}"),
    "basins": lambda _: request("GET", "/v1/basins"),
    "basins, wherever": lambda _: b"GET /v1/basins?limit=1 HTTP/1.1\r\nhost: here\r\n\r\n",
    "config of a basin": lambda _: basin_config(BASIN),
    "config of a basin, wherever": lambda _: (
        b"GET /v1/basins/%b HTTP/1.1\r\nhost: here\r\n\r\n" % BASIN.encode()
    ),
    "config of a basin for a page": lambda _: basin_config(BASIN, ORIGIN, PROTO, CODINGS),
    "ensured": ensure,
    "ensured, by an object": lambda name: ensure(name, b"{}"),
    "ensured, by nothing": lambda name: ensure(name, b"null"),
    "ensured, by a config": lambda name: ensure(name, b'{"retention_policy":{"age":604800}}'),
    "ensured for a page": lambda name: ensure(name, b"{}", ORIGIN, PROTO, CODINGS),
    "ensured, with no more than its kind": lambda name: ensure(
        name, b"", "content-type: application/json"
    ),
    "ensured, with a length of nothing": lambda name: ensure(name, b"", "content-length: 0"),
    "basins for a page": lambda _: request("GET", "/v1/basins?prefix=x", b"", ORIGIN, PROTO),
}
UNTOLD = {  # what is refused
    "read past the tail": lambda name: read(name, "seq_num=99"),
    "read past the tail for a page": lambda name: read(name, "seq_num=99", ORIGIN),
    "read at the tail": lambda name: read(name, "tail_offset=0"),
    "read past all time": lambda name: read(name, "timestamp=99999999999999"),
    "read of no stream": lambda _: read("none-such", "seq_num=0", PROTO),
    "read of no basin": lambda name: read(name).replace(BASIN.encode(), b"other-basin"),
    "tail of no stream": lambda _: tail("none-such"),
    "config of no stream": lambda _: config("none-such"),
    "streams of no basin": lambda _: request("GET", "/v1/streams").replace(b"quick", b"other"),
    "streams, badly asked for": lambda _: request("GET", "/v1/streams?limit=x"),
    "basins, badly asked for": lambda _: request("GET", "/v1/basins?prefix=-"),
    "config of a basin that is not there": lambda _: basin_config("other-basin", ORIGIN),
    "config of no basin": lambda name: config(name).replace(BASIN.encode(), b"other-basin"),
}
REFUSED = {
    "a position": lambda name: append(name, b'{"records":[{}],"match_seq_num":9}'),
    "a fence": lambda name: append(name, b'{"records":[{}],"fencing_token":"z"}'),
}
ODD = {
    "no stream": lambda _: append("none-such"),
    "no basin": lambda name: append(name).replace(BASIN.encode(), b"other-basin"),
    "no JSON": lambda name: append(name, b"{"),
    "too many records": lambda name: append(name, b'{"records":[' + b"{}," * 1000 + b"{}]}"),
    "a bad query": lambda name: read(name, "seq_num=x"),
    "a key": lambda name: append(name, b'{"records":[{}]}', "s2-encryption-key: abc"),
    "compressed": lambda name: append(name, b'{"records":[{}]}', "content-encoding: gzip"),
    "a wait": lambda name: read(name, "seq_num=9&clamp=true&wait=1"),
    "a basin that cannot be": lambda _: basin_config("-"),
    "a basin that is ensured": lambda _: request("PUT", f"/v1/basins/{BASIN}"),
    "ensured in no basin": lambda name: ensure(name).replace(BASIN.encode(), b"other-basin"),
    "ensured wherever": lambda name: ensure(name).replace(b"s2-basin", b"x-basin"),
    "ensured, and cannot be": lambda name: ensure(name, b'{"retention_policy":{"age":0}}'),
    "ensured by no JSON": lambda name: ensure(name, b"{"),
    "ensured by JSON that says a thing twice": lambda name: ensure(
        name, b'{"storage_class":null,"storage_class":null}'
    ),
    "ensured by another kind": lambda name: ensure(name, b"", "content-type: text/plain"),
    "ensured by a kind that nobody knows": lambda name: ensure(name, b"", "content-type: x"),
    "ensured by much": lambda name: ensure(name, b" " * QUICK_CONFIG_BYTES_MAX + b"{}"),
    "streams of whichever basin": lambda _: b"GET /v1/streams HTTP/1.1\r\nhost: here\r\n\r\n",
    "a weight": lambda name: read(name, "seq_num=0", "accept-encoding: identity;q=0"),
    "HEAD": lambda name: read(name, "tail_offset=0&clamp=true").replace(b"GET", b"PUT", 1),
    "an unknown way": lambda _: request("GET", "/v1/nothing"),
}


@pytest.mark.parametrize("what", PLAIN)
def test_it_answers_as_the_ordinary_way_does(server: Server, stream: str, what: str) -> None:
    wide = b'{"records":[{"body":"%b"},{"body":"b"},{"body":"c"}]}' % (b"a" * 1200)
    for _ in range(2):
        ask(server.port, append(stream, wide))
    before = quick_count(server)
    quick = ask(server.port, PLAIN[what](stream))
    assert quick_count(server) == before + 1
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))  # from here on it is the ordinary way
        ordinary = wire.ask(PLAIN[what](stream))
    assert quick_count(server) == before + 1
    if what.startswith("append"):
        for digits in (rb'"seq_num":', rb"content-length: "):
            quick = re.sub(digits + rb"\d+", digits, quick)
            ordinary = re.sub(digits + rb"\d+", digits, ordinary)
        if "protobuf" in what:
            quick, ordinary = (found.partition(b"\r\n\r\n")[0] for found in (quick, ordinary))
    assert masked(quick) == masked(ordinary)


@pytest.mark.parametrize("what", UNTOLD)
def test_it_says_what_is_wrong_as_the_ordinary_way_does(
    server: Server, stream: str, what: str
) -> None:
    ask(server.port, append(stream))
    before = quick_count(server)
    with Wire(server.port) as wire:
        quick = wire.ask(UNTOLD[what](stream))
        assert b" 200 OK" in wire.ask(append(stream))
    assert quick_count(server) == before + 2
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        ordinary = wire.ask(UNTOLD[what](stream))
    assert quick.split()[1] in {b"400", b"404", b"416"}
    assert SEQ_NUMS.sub(b"", masked(quick)) == SEQ_NUMS.sub(b"", masked(ordinary))


def streams(_: str) -> bytes:
    return request("GET", "/v1/streams")


def basins(_: str) -> bytes:
    return request("GET", "/v1/basins")


def config_of_basin(name: str) -> bytes:
    return basin_config(BASIN if name != "none-such" else name)


def ensured(name: str) -> bytes:
    return ensure(name, b"{}" if name != "none-such" else b"{")


@pytest.mark.parametrize("asked", [read, tail, config, streams, basins, config_of_basin, ensured])
def test_it_is_counted_as_on_the_ordinary_way(
    server: Server, stream: str, asked: Callable[[str], bytes]
) -> None:
    ask(server.port, append(stream))
    ask(server.port, append("none-such"))

    def counted() -> dict[Any, int]:
        meter, found = server.node.meter, dict[Any, int]()
        for of, counts in server.call(lambda: {**meter._pending}).items():
            for (_, label), value in counts.items():
                found[of, label] = found.get((of, label), 0) + value
        return found

    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        grown = []
        for send in (partial(ask, server.port), wire.ask):
            before = counted()
            assert b" 200 OK" in send(asked(stream))
            send(asked("none-such"))
            after = counted()
            grown.append({key: after[key] - before.get(key, 0) for key in after})
    assert grown[0] == grown[1]
    assert sum(grown[0].values())


def test_a_client_that_has_said_its_last_has_all_its_answers(server: Server, stream: str) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(append(stream) * 3 + read(stream, "tail_offset=1"))
        wire.sock.shutdown(socket.SHUT_WR)
        for number in range(3):
            assert b'"start":{"seq_num":%d,' % number in wire.answer()
        assert b'"seq_num":2,' in wire.answer()
        assert wire.sock.recv(10) == b""


def test_a_client_that_has_said_its_last_may_have_said_anything(
    server: Server, stream: str
) -> None:
    for last in (request("GET", f"/v1/streams/{stream}/records/tail"), append(stream)[:-1]):
        with Wire(server.port) as wire:
            wire.sock.sendall(append(stream) + last)
            wire.sock.shutdown(socket.SHUT_WR)
            assert b'"start":{"seq_num":' in wire.answer()
            if last.startswith(b"GET"):
                assert b'"tail":{"seq_num":1,' in wire.answer()
            assert wire.sock.recv(10) == b""


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_append_is_told_why_and_the_connection_goes_on(
    server: Server, stream: str, what: str
) -> None:
    before = quick_count(server)
    with Wire(server.port) as wire:
        quick = wire.ask(REFUSED[what](stream))
        assert b" 200 OK" in wire.ask(append(stream))
    assert quick_count(server) == before + 2
    other = f"s-{next(NAMES)}"
    ask(server.port, request("PUT", f"/v1/streams/{other}"))
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        ordinary = wire.ask(REFUSED[what](other))
    assert quick.startswith(b"HTTP/1.1 412 Precondition Failed\r\n")
    assert masked(quick) == masked(ordinary)


@pytest.mark.parametrize("what", ODD)
def test_whatever_is_odd_goes_the_ordinary_way(server: Server, stream: str, what: str) -> None:
    ask(server.port, append(stream))
    before = quick_count(server)
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        ordinary = wire.ask(ODD[what](stream))
    found = ask(server.port, ODD[what](stream))
    assert quick_count(server) == before
    assert SEQ_NUMS.sub(b"", masked(found)) == SEQ_NUMS.sub(b"", masked(ordinary))


def test_requests_in_one_piece_are_answered_in_order(server: Server, stream: str) -> None:
    before = quick_count(server)
    with Wire(server.port) as wire:
        wire.sock.sendall(append(stream) * 3 + read(stream, "seq_num=2") + append(stream))
        answers = [wire.answer() for _ in range(5)]
    assert quick_count(server) == before + 5
    ends = [b'"tail":{"seq_num":%d,' % end in answers[at] for at, end in ((0, 1), (1, 2), (2, 3))]
    assert all(ends)
    assert answers[3].count(b'"seq_num":2') == 1
    assert b'"tail":{"seq_num":4,' in answers[4]


def test_a_request_may_come_in_any_two_pieces(server: Server, stream: str) -> None:
    data = append(stream)
    before = quick_count(server)
    with Wire(server.port) as wire:
        for at in range(1, len(data)):
            wire.sock.sendall(data[:at])
            assert b" 200 OK" in wire.ask(data[at:])
    assert quick_count(server) == before + len(data) - 1


def test_a_request_that_stays_half_said_is_taken_up_by_the_ordinary_way(
    server: Server, stream: str
) -> None:
    data = append(stream)
    before = quick_count(server)
    with Wire(server.port) as wire:
        wire.sock.sendall(data[:-5])
        edge = server.edge
        assert isinstance(edge, NativeServer)
        eventually(lambda: server.call(lambda: len(edge.connections)) == 1)
        assert b" 200 OK" in wire.ask(data[-5:])
    assert quick_count(server) == before


def test_a_client_that_says_its_last_has_its_answer(server: Server, stream: str) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(append(stream))
        wire.sock.shutdown(socket.SHUT_WR)
        assert b" 200 OK" in wire.answer()
        assert wire.sock.recv(10) == b""


def test_an_append_holds_though_its_client_has_gone(server: Server, stream: str) -> None:
    with Wire(server.port) as wire:
        wire.sock.sendall(append(stream))
    eventually(lambda: server.call(lambda: server.stream(BASIN, stream).tail.seq_num) == 1)


def test_a_token_is_asked_for_at_every_request(stream: str) -> None:
    secret = "authorization: Bearer root-secret"
    with Server(root_token="root-secret") as server:
        body = b'{"records":[{}]}'
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}", b"", secret))
        ask(server.port, request("PUT", f"/v1/streams/{stream}", b"", secret))
        scope = (
            b'{"id":"t","scope":{"basins":{"prefix":""},"streams":{"prefix":""},"ops":["append"]}}'
        )
        made = ask(server.port, request("POST", "/v1/access-tokens", scope, secret))
        found = re.search(rb'"access_token":"([^"]+)"', made)
        assert found is not None, made
        mine = f"authorization: Bearer {found[1].decode()}"
        with Wire(server.port) as wire:
            assert b" 401 " in wire.ask(append(stream, body))
        ask(server.port, append(stream, body, mine))  # known from here on
        before = quick_count(server)
        with Wire(server.port) as kept, Wire(server.port) as other:
            assert b" 200 OK" in kept.ask(append(stream, body, mine))
            assert quick_count(server) == before + 1
            assert b" 403 " in other.ask(read(stream, "seq_num=0", mine))
            assert b" 403 " in other.ask(tail(stream, mine))
            assert b" 403 " in other.ask(config(stream, mine))
            ask(server.port, request("DELETE", "/v1/access-tokens/t", b"", secret))
            assert b" 401 " in kept.ask(append(stream, body, mine))
        assert quick_count(server) == before + 1


def test_a_server_that_stops_answers_what_it_has_admitted(stream: str) -> None:
    held = EngineSettings(flush_interval_ms=600)
    with Server(settings=held) as server:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(server.port, request("PUT", f"/v1/streams/{stream}"))
        with Wire(server.port) as wire:
            wire.sock.sendall(append(stream))
            eventually(lambda: quick_count(server) == 1)
            stopping = server.submit(server.edge.stop(PATIENCE_SECS))
            assert b" 200 OK" in wire.answer()
            assert wire.sock.recv(10) == b""
            stopping.result(PATIENCE_SECS)
