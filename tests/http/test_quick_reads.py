"""Reads on the quick way: kept answers are never given when they do not hold any more."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from bourn.clock import ManualClock
from bourn.errors import BournError
from bourn.http.native import NativeServer
from bourn.http.problems import STATUS
from bourn.layout.entry import BATCH_OVERHEAD_BYTES
from bourn.limits import ANSWER_BYTES_KEPT_MAX, ANSWERS_KEPT, JSON_WRITTEN_INLINE_BYTES_MAX
from tests.http.edges import native_only
from tests.http.server import Server, eventually
from tests.http.test_quick import (
    BASIN,
    NAMES,
    Wire,
    append,
    ask,
    masked,
    quick_count,
    read,
    request,
    tail,
)

pytestmark = native_only("it has no quick way")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}"))
        yield running


@pytest.fixture
def stream(server: Server) -> str:
    name = f"r-{next(NAMES)}"
    assert b" 201 " in ask(server.port, request("PUT", f"/v1/streams/{name}"))
    return name


def bodies(answer: bytes) -> list[bytes]:
    return re.findall(rb'"body":"([^"]*)"', answer)


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def record(text: str) -> bytes:
    return b'{"records":[{"body":"%b"}]}' % text.encode()


def kept(server: Server) -> dict[bytes, bytes]:
    quick = server.app.quick
    assert quick is not None
    return server.call(
        lambda: {head: kept.reply.body for head, kept in quick._reads._answers.items()}
    )


def counted(server: Server) -> tuple[int, int]:
    """Records and metered bytes that were delivered."""
    telemetry = server.app.telemetry
    return server.call(lambda: (telemetry.records_delivered, telemetry.bytes_delivered))


def test_the_same_read_gives_the_same_answer_to_everybody(server: Server, stream: str) -> None:
    ask(server.port, append(stream, record("a")))
    before, delivered = quick_count(server), counted(server)
    answers = {body_of(ask(server.port, read(stream))) for _ in range(3)}
    assert len(answers) == 1
    assert quick_count(server) == before + 3
    assert counted(server) == (delivered[0] + 3, delivered[1] + 3 * len("metered:a"))
    assert read(stream) in kept(server)


@pytest.mark.parametrize("fields", [(), ("accept: application/protobuf",)])
def test_what_is_appended_is_read_at_once(
    server: Server, stream: str, fields: tuple[str, ...]
) -> None:
    with Wire(server.port) as wire:
        for number in range(4):
            assert b" 200 " in wire.ask(append(stream, record(f"n{number}")))
            for _ in range(2):
                found = wire.ask(read(stream, "seq_num=0", *fields))
                assert [b"n%d" % n in found for n in range(5)] == [n <= number for n in range(5)]


def test_what_is_trimmed_is_read_no_more(server: Server, stream: str) -> None:
    for text in "abc":
        ask(server.port, append(stream, record(text)))
    assert bodies(ask(server.port, read(stream, "seq_num=0&count=2"))) == [b"a", b"b"]
    cut = b'{"records":[{"headers":[["","dHJpbQ=="]],"body":"AAAAAAAAAAE="}]}'
    assert b" 200 " in ask(server.port, append(stream, cut, "s2-format: base64"))
    assert bodies(ask(server.port, read(stream, "seq_num=0&count=2"))) == [b"b", b"c"]


def test_a_stream_that_is_deleted_is_read_no_more(server: Server, stream: str) -> None:
    ask(server.port, append(stream, record("a")))
    for _ in range(2):
        assert b" 200 " in ask(server.port, read(stream))
    ask(server.port, request("DELETE", f"/v1/streams/{stream}"))
    answer = ask(server.port, read(stream))
    assert answer.split()[1] in {b"404", b"409"}


def test_a_read_in_another_form_is_another_answer(server: Server, stream: str) -> None:
    ask(server.port, append(stream, record("abc")))
    for _ in range(2):
        assert b'"body":"abc"' in ask(server.port, read(stream))
        assert b'"body":"YWJj"' in ask(server.port, read(stream, "seq_num=0", "s2-format: base64"))
        proto = ask(server.port, read(stream, "seq_num=0", "accept: application/protobuf"))
        assert body_of(proto).endswith(b"\x22\x03abc")
        assert b" 416 " in ask(server.port, read(stream, "seq_num=1"))


def test_answers_are_dated_anew(stream: str) -> None:
    clock = ManualClock()
    with Server(clock=clock) as server:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(server.port, request("PUT", f"/v1/streams/{stream}"))
        ask(server.port, append(stream, record("a")))
        first = ask(server.port, read(stream))
        server.call(lambda: clock.set_wall(clock.now_ms() + 61_000))
        second = ask(server.port, read(stream))
    assert body_of(first) == body_of(second)
    assert first != second


def test_what_expires_is_read_no_more(stream: str) -> None:
    clock = ManualClock()
    with Server(clock=clock) as server:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        config = b'{"retention_policy":{"age":10}}'
        ask(server.port, request("PUT", f"/v1/streams/{stream}", config))
        ask(server.port, append(stream, record("a")))
        for _ in range(2):
            assert bodies(ask(server.port, read(stream))) == [b"a"]
        server.call(lambda: clock.set_wall(clock.now_ms() + 10_000))
        assert bodies(ask(server.port, read(stream))) == []


def test_few_and_small_answers_are_kept(server: Server, stream: str) -> None:
    large = "x" * (ANSWER_BYTES_KEPT_MAX // 2)
    for text in ("a", large, large):
        ask(server.port, append(stream, record(text)))
    with Wire(server.port) as wire:
        for count in range(1, 2 * ANSWERS_KEPT):
            wire.ask(read(stream, f"seq_num=0&count=1&bytes={100 + count}"))
        assert len(wire.ask(read(stream))) > ANSWER_BYTES_KEPT_MAX
    found = kept(server)
    assert len(found) == ANSWERS_KEPT
    assert read(stream) not in found
    assert read(stream, f"seq_num=0&count=1&bytes={99 + 2 * ANSWERS_KEPT}") in found
    assert max(map(len, found.values())) <= ANSWER_BYTES_KEPT_MAX


@pytest.mark.parametrize("fields", [(), ("accept: application/protobuf",)])
def test_records_that_cannot_be_told_are_refused_the_ordinary_way(
    server: Server, stream: str, fields: tuple[str, ...]
) -> None:
    ask(server.port, append(stream, record("a")))

    def damage() -> None:
        found, term = server.stream(BASIN, stream), server.node.term
        run, cache = found.runs.row(0), term.tail_cache
        data = bytearray(cache.get(run.commit) or b"")
        data[run.offset + BATCH_OVERHEAD_BYTES : run.offset + run.length] = b"\xff" * (
            run.length - BATCH_OVERHEAD_BYTES
        )
        cache._objects[run.commit] = bytes(data)

    server.call(damage)
    before = quick_count(server)
    assert b" 500 " in ask(server.port, read(stream, "seq_num=0", *fields))
    assert quick_count(server) == before


def test_an_answer_that_is_made_anew_takes_no_place_of_another(server: Server, stream: str) -> None:
    ask(server.port, append(stream, record("a")))
    asked = [read(stream, f"seq_num=0&count=1&bytes={100 + at}") for at in range(ANSWERS_KEPT)]
    with Wire(server.port) as wire:
        for data in asked:
            wire.ask(data)
        wire.ask(append(stream, record("b")))
        wire.ask(asked[1])
    assert list(kept(server)) == [asked[0], *asked[2:], asked[1]]


@pytest.mark.parametrize("records", [1, 3, 4, 5])
@pytest.mark.parametrize("fields", [(), ("s2-format: base64",), ("accept: application/protobuf",)])
def test_large_reads_are_quick_up_to_a_bound_and_whole_beyond(
    server: Server, stream: str, records: int, fields: tuple[str, ...]
) -> None:
    size = 60_000
    for at in range(records):
        ask(server.port, append(stream, record(chr(ord("a") + at) * size)))
    before = quick_count(server)
    quick = ask(server.port, read(stream, "seq_num=0", *fields))
    is_quick = records * (size + 8) <= JSON_WRITTEN_INLINE_BYTES_MAX
    assert quick_count(server) == before + is_quick
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        assert body_of(wire.ask(read(stream, "seq_num=0", *fields))) == body_of(quick)
    if not fields:
        expected = [bytes([ord("a") + at]) * size for at in range(records)]
        assert bodies(quick) == expected


class Watched:
    """A transport, and by which calls it was written to."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("write"):
            self.calls.append(name)
        return getattr(self._transport, name)


def test_a_large_answer_is_written_with_its_head_by_one_call(server: Server, stream: str) -> None:
    text = "y" * 60_000
    ask(server.port, append(stream, record(text)))
    assert isinstance(server.edge, NativeServer)
    connections = server.edge._quick_ones

    def watch() -> Watched:
        (connection,) = connections
        connection._transport = watched = Watched(connection._transport)
        return watched

    with Wire(server.port) as wire:
        wire.ask(read(stream, "seq_num=0&count=1&bytes=1"))
        eventually(lambda: len(connections) == 1)  # those before it have gone
        watched = server.call(watch)
        assert bodies(wire.ask(read(stream))) == [text.encode()]
        assert watched.calls == ["writelines"]


def test_large_answers_to_a_client_that_reads_late_are_whole_and_in_order(
    server: Server, stream: str
) -> None:
    texts = [letter * 60_000 for letter in "abc"]
    for text in texts:
        ask(server.port, append(stream, record(text)))
    order = [at % 3 for at in range(90)]
    with Wire(server.port) as wire:
        wire.sock.sendall(b"".join(read(stream, f"seq_num={at}&count=1") for at in order))
        for at in order:
            assert bodies(wire.answer()) == [texts[at].encode()]


@pytest.mark.parametrize("code", STATUS)
def test_every_refusal_is_the_same_bytes_both_ways(code: str) -> None:
    raised = type("Raised", (BournError,), {"code": code})

    def refuse(*_: object) -> None:
        raise raised("why")

    with Server() as server:
        server.node.tail_now = refuse  # type: ignore[assignment, method-assign]  # on purpose
        server.node.check_tail = refuse  # type: ignore[assignment, method-assign]
        quick = ask(server.port, tail("s"))
        assert quick_count(server) == 1
        with Wire(server.port) as wire:
            wire.ask(request("GET", "/v1/locations"))
            assert masked(wire.ask(tail("s"))) == masked(quick)
        assert quick_count(server) == 1
