"""The catalog on the quick way: an answer is given again until anything that it tells changes."""

import datetime as dt
import re
from collections.abc import Iterator
from itertools import count

import pytest

from bourn.clock import ManualClock
from bourn.errors import StorageFailed
from bourn.http.quick_catalog import QuickCatalog
from bourn.limits import (
    CATALOG_ANSWER_BYTES_KEPT_MAX,
    CATALOG_ANSWERS_BYTES,
    CATALOG_ANSWERS_KEPT,
    STREAM_NAME_BYTES_MAX,
)
from tests.http.edges import native_only
from tests.http.server import Server, eventually
from tests.http.test_audit import Lines, lines
from tests.http.test_quick import (
    BASIN,
    CODINGS,
    ORIGIN,
    Wire,
    append,
    ask,
    basin_config,
    config,
    ensure,
    masked,
    quick_count,
    request,
)

pytestmark = native_only("it has no quick way")

NUMBERS = count(1)
SECRET = "root-secret"
ROOT = f"authorization: Bearer {SECRET}"
STREAMS = request("GET", "/v1/streams")
BASINS = request("GET", "/v1/basins")

__all__ = ["lines"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        made = b'{"config":{"create_stream_on_append":true}}'
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}", made))
        ask(running.port, ensure("a"))
        yield running


@pytest.fixture
def guarded() -> Iterator[Server]:
    """One that asks for a token."""
    with Server(root_token=SECRET) as running:
        ask(running.port, request("PUT", f"/v1/basins/{BASIN}", b"", ROOT))
        for name in ("a", "b-1", "b-2"):
            assert b" 201 " in ask(running.port, ensure(name, b"", ROOT))
        yield running


def catalog(server: Server) -> QuickCatalog:
    assert server.app.quick is not None
    return server.app.quick._catalog


def ordinary(server: Server, data: bytes) -> bytes:
    """The answer of the ordinary way."""
    before = quick_count(server)
    with Wire(server.port) as wire:
        wire.ask(request("GET", "/v1/locations"))
        found = wire.ask(data)
    assert quick_count(server) == before
    return found


def quick(server: Server, data: bytes) -> bytes:
    """The answer of the quick way."""
    before = quick_count(server)
    found = ask(server.port, data)
    assert quick_count(server) == before + 1, found
    return found


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def issue(server: Server, scope: bytes, more: bytes = b"") -> str:
    """Issue a token that is known from here on; the field that carries it."""
    made = b'{"id":"t-%d","scope":%b%b}' % (next(NUMBERS), scope, more)
    issued = ask(server.port, request("POST", "/v1/access-tokens", made, ROOT))
    found = re.search(rb'"access_token":"([^"]+)"', issued)
    assert found is not None, issued
    field = f"authorization: Bearer {found[1].decode()}"
    ask(server.port, request("GET", "/v1/streams", b"", field))
    return field


CHANGES = {
    "a stream is made": ensure("b"),
    "a stream is made by an append": append("c"),
    "a stream is configured": request("PATCH", "/v1/streams/a", b'{"storage_class":"standard"}'),
    "a stream is ensured to be another": ensure("a", b'{"retention_policy":{"age":60}}'),
    "a stream is deleted": request("DELETE", "/v1/streams/a"),
    "a basin is made": request("PUT", "/v1/basins/another-basin"),
    "a basin is configured": request(
        "PATCH", f"/v1/basins/{BASIN}", b'{"default_stream_config":{"storage_class":"standard"}}'
    ),
    "a basin is deleted": request("DELETE", f"/v1/basins/{BASIN}"),
}
QUESTIONS = [
    STREAMS,
    request("GET", "/v1/streams?limit=1&start_after=a"),
    BASINS,
    basin_config(BASIN),
    basin_config("another-basin"),
    config("a"),
    config("b"),
]


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_told_changes_with_the_catalog(server: Server, what: str) -> None:
    server.call(server.hold_purges)
    before = [masked(quick(server, data)) for data in QUESTIONS]
    assert [masked(quick(server, data)) for data in QUESTIONS] == before
    assert ask(server.port, CHANGES[what])[9:12] in {b"200", b"201", b"202"}
    told = [masked(quick(server, data)) for data in QUESTIONS]
    assert told == [masked(ordinary(server, data)) for data in QUESTIONS]
    assert told != before


@pytest.mark.parametrize("path", ["/v1/streams/a", f"/v1/basins/{BASIN}"])
def test_what_is_purged_is_told_no_more(server: Server, path: str) -> None:
    wanted = server.call(server.hold_purges)
    assert b" 202 " in ask(server.port, request("DELETE", path))
    going = [quick(server, data) for data in (STREAMS, BASINS)]
    assert b'"deleted_at":"2' in b"".join(going)
    server.call(lambda: server.release_purges(wanted))
    eventually(lambda: b'"deleted_at":"2' not in b"".join(ask(server.port, q) for q in QUESTIONS))
    assert b" 404 " in quick(server, config("a"))
    told = [masked(quick(server, data)) for data in QUESTIONS]
    assert told == [masked(ordinary(server, data)) for data in QUESTIONS]


def test_a_list_is_made_once_and_counted_each_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    found = server.node.streams_now

    def streams_now(*query: object) -> object:
        made.append(query)
        return found(*query)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(server.node, "streams_now", streams_now)
    answers = {masked(quick(server, STREAMS)) for _ in range(5)}
    assert len(answers) == len(made) == 1
    counts = server.call(lambda: dict(server.node.meter._pending[BASIN, "basin-ops"]))
    assert sum(n for (_, label), n in counts.items() if label == "list-streams") == 5


def test_a_new_term_tells_what_is_there_now(server: Server) -> None:
    told = quick(server, STREAMS)
    for name in ("b", "c", "d"):
        assert b" 201 " in ask(server.port, ensure(name))  # and nobody asks before the new term
        rebuild(server)
        before, told = told, quick(server, STREAMS)
        assert masked(told) == masked(ordinary(server, STREAMS))
        assert told != before
        assert masked(quick(server, config(name))) == masked(ordinary(server, config(name)))


def rebuild(server: Server) -> None:
    """Have the node begin a new term."""
    epoch = server.node.term.epoch
    server.call(lambda: server.node._on_failed(StorageFailed("by the test")))
    eventually(lambda: server.node._term is not None and server.node.term.epoch > epoch)


def test_an_answer_is_dated_anew_and_says_the_same_at_any_time() -> None:
    clock = ManualClock()
    with Server(clock=clock) as server:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}"))
        ask(server.port, ensure("a"))
        asked = (STREAMS, BASINS, config("a"), basin_config(BASIN), ensure("a"))
        before = [quick(server, data) for data in asked]
        server.call(lambda: clock.set_wall(clock.now_ms() + 1_000_000))
        later = [quick(server, data) for data in asked]
        assert list(map(body_of, later)) == list(map(body_of, before))
        assert all(new != old for new, old in zip(later, before, strict=True))
        assert list(map(masked, later)) == [masked(ordinary(server, data)) for data in asked]


def test_few_answers_are_kept_and_the_newest(server: Server) -> None:
    with Wire(server.port) as wire:
        for limit in range(CATALOG_ANSWERS_KEPT + 10):
            wire.ask(request("GET", f"/v1/streams?limit={limit}"))
    kept = catalog(server)._answers
    assert len(kept) == CATALOG_ANSWERS_KEPT
    assert next(iter(kept)) == request("GET", "/v1/streams?limit=10")
    assert sizes(server) == catalog(server)._size
    ask(server.port, ensure("b"))
    quick(server, STREAMS)
    assert list(kept) == [STREAMS]
    assert sizes(server) == catalog(server)._size


def sizes(server: Server) -> int:
    kept = catalog(server)._answers
    return sum(len(data) + len(start) + len(body) for data, (start, body) in kept.items())


def test_long_answers_are_kept_up_to_a_bound_and_take_no_more_than_all_may(
    server: Server,
) -> None:
    with Wire(server.port) as wire:
        for number in range(700):
            name = f"{number:04d}-{'x' * (STREAM_NAME_BYTES_MAX - 5)}"
            assert b" 201 " in wire.ask(ensure(name))
    with Wire(server.port) as wire:
        for limit in range(340, 380):
            wire.ask(request("GET", f"/v1/streams?limit={limit}"))
    kept = catalog(server)._answers
    assert CATALOG_ANSWERS_BYTES * 0.9 < sizes(server) <= CATALOG_ANSWERS_BYTES
    assert sizes(server) == catalog(server)._size
    assert request("GET", "/v1/streams?limit=379") in kept
    assert request("GET", "/v1/streams?limit=340") not in kept
    whole = quick(server, STREAMS)
    assert len(body_of(whole)) > CATALOG_ANSWER_BYTES_KEPT_MAX
    assert STREAMS not in kept
    assert masked(whole) == masked(ordinary(server, STREAMS))


def test_everybody_is_told_what_their_token_allows(guarded: Server) -> None:
    narrow = issue(
        guarded,
        b'{"basins":{"prefix":""},"streams":{"prefix":"b"},"ops":["list-streams"]}',
    )
    none = issue(guarded, b'{"basins":{"prefix":""},"ops":["list-streams","get-basin-config"]}')
    elsewhere = issue(
        guarded,
        b'{"basins":{"exact":"other-basin"},"streams":{"prefix":""},'
        b'"ops":["list-streams","list-basins","get-basin-config"]}',
    )

    def asked(path: str, field: str) -> bytes:
        return request("GET", path, b"", field)

    for _ in range(2):
        for field, names in (
            (ROOT, [b"a", b"b-1", b"b-2"]),
            (narrow, [b"b-1", b"b-2"]),
            (none, []),
        ):
            found = quick(guarded, asked("/v1/streams", field))
            assert re.findall(rb'"name":"([^"]+)"', found) == names
        assert b" 403 " in ask(guarded.port, asked("/v1/streams", elsewhere))
        assert b'"basins":[]' in quick(guarded, asked("/v1/basins", elsewhere))
        assert b" 200 " in quick(guarded, asked(f"/v1/basins/{BASIN}", none))
        for field in (narrow, elsewhere):
            refused = ask(guarded.port, asked(f"/v1/basins/{BASIN}", field))
            assert b" 403 " in refused
        assert b" 401 " in ask(guarded.port, STREAMS)


def test_an_answer_is_not_given_again_to_a_token_that_has_ended() -> None:
    clock = ManualClock()
    scope = b'{"basins":{"prefix":""},"streams":{"prefix":""},"ops":["list-streams"]}'
    with Server(clock=clock, root_token=SECRET) as server:
        ask(server.port, request("PUT", f"/v1/basins/{BASIN}", b"", ROOT))
        revoked = issue(server, scope)
        until = clock.now_ms() // 1000 + 100
        shown = dt.datetime.fromtimestamp(until, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        expired = issue(server, scope, b',"expires_at":"%b"' % shown.encode())
        asked = [request("GET", "/v1/streams", b"", field) for field in (revoked, expired)]
        for data in [*asked, *asked]:
            assert b" 200 " in quick(server, data)
        token_id = f"t-{next(NUMBERS) - 2}"
        ask(server.port, request("DELETE", f"/v1/access-tokens/{token_id}", b"", ROOT))
        assert b" 401 " in ask(server.port, asked[0])
        assert b" 200 " in quick(server, asked[1])
        server.call(lambda: clock.set_wall((until + 1) * 1000))
        assert b" 401 " in ask(server.port, asked[1])


def test_a_server_that_is_about_to_stop_gives_no_answer_again(server: Server) -> None:
    asked = (STREAMS, ensure("a"), basin_config(BASIN))
    for data in asked:
        quick(server, data)
    server.call(server.app.draining.begin)
    for data in asked:
        assert b" 503 " in ask(server.port, data)


# Streams that are ensured


def test_a_stream_that_is_as_it_should_be_is_ensured_without_a_change(server: Server) -> None:
    change = server.call(lambda: server.node.term.last_change)
    for body in (b"", b"{}", b"null", b'{"retention_policy":{"age":604800}}'):
        told = quick(server, ensure("a", body))
        assert b"\r\ns2-provision-result: noop\r\n" in told
        assert masked(quick(server, ensure("a", body))) == masked(told)
        assert masked(ordinary(server, ensure("a", body))) == masked(told)
    assert server.call(lambda: server.node.term.last_change) == change


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (ensure("b"), b" 201 Created\r\n"),
        (ensure("a", b'{"storage_class":"standard"}'), b"s2-provision-result: updated\r\n"),
    ],
)
def test_what_is_to_be_done_is_done_once_the_ordinary_way_and_is_nothing_then(
    server: Server, data: bytes, result: bytes
) -> None:
    before = quick_count(server)
    assert result in ask(server.port, data)
    assert quick_count(server) == before
    assert b"\r\ns2-provision-result: noop\r\n" in quick(server, data)
    assert masked(quick(server, data)) == masked(ordinary(server, data))


@pytest.mark.parametrize("change", [*CHANGES][2:])
def test_a_stream_is_not_as_it_should_be_for_longer_than_it_is(server: Server, change: str) -> None:
    server.call(server.hold_purges)
    quick(server, ensure("a"))
    ask(server.port, CHANGES[change])
    before = quick_count(server)
    found = ask(server.port, ensure("a"))
    if b" 409 " in found:
        assert b"deletion_pending" in found
        assert "is deleted" in change
    else:
        is_noop = b"s2-provision-result: noop" in found
        assert is_noop == (change == "a basin is made")
        assert quick_count(server) == before + is_noop
    assert masked(ask(server.port, ensure("a"))) == masked(ordinary(server, ensure("a")))


@pytest.mark.parametrize("fields", [(), (CODINGS,), (CODINGS, ORIGIN), (ORIGIN,)])
def test_a_stream_of_a_long_name_is_told_as_the_ordinary_way_does(
    server: Server, fields: tuple[str, ...]
) -> None:
    name = "%22" * STREAM_NAME_BYTES_MAX
    assert b" 201 " in ask(server.port, ensure(name))
    told = quick(server, ensure(name, b"{}", *fields))
    assert (b"\r\ncontent-encoding: " in told) == (CODINGS in fields)
    assert b"\r\nvary: accept-encoding\r\n" in told
    assert masked(told) == masked(ordinary(server, ensure(name, b"{}", *fields)))


def test_a_body_may_come_behind_its_head_and_with_other_requests(server: Server) -> None:
    data, before = ensure("a", b'{"storage_class":"express"}'), quick_count(server)
    with Wire(server.port) as wire:
        for at in range(1, len(data)):
            wire.sock.sendall(data[:at])
            assert b"s2-provision-result: noop" in wire.ask(data[at:])
        wire.sock.sendall(data + config("a") + ensure("a") + append("a") + data)
        answers = [wire.answer() for _ in range(5)]
    assert [b"s2-provision-result: noop" in one for one in answers] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert b'"seq_num":1,' in answers[3]
    assert quick_count(server) == before + len(data) - 1 + 5


def test_who_ensures_a_stream_may_make_it_and_change_it(guarded: Server) -> None:
    scope = b'{"basins":{"prefix":""},"streams":{"prefix":"b-"},"ops":["list-streams",%b]}'
    both = issue(guarded, scope % b'"create-stream","reconfigure-stream"')
    assert b"s2-provision-result: noop" in quick(guarded, ensure("b-1", b"{}", both))
    for one in (b'"create-stream"', b'"reconfigure-stream"'):
        field = issue(guarded, scope % one)
        before = quick_count(guarded)
        assert b" 403 " in ask(guarded.port, ensure("b-1", b"{}", field))
        assert quick_count(guarded) == before
    assert b" 403 " in ask(guarded.port, ensure("a", b"{}", both))


def test_a_prefix_that_a_token_puts_before_names_is_the_ordinary_ways(guarded: Server) -> None:
    scope = b'{"basins":{"prefix":""},"streams":{"prefix":"b-"},'
    scope += b'"op_groups":{"basin":{"read":true,"write":true}}}'
    tenant = issue(guarded, scope, b',"auto_prefix_streams":true')
    before = quick_count(guarded)
    found = ask(guarded.port, ensure("1", b"{}", tenant))
    assert b"s2-provision-result: noop" in found
    assert b'"name":"1"' in found
    listed = ask(guarded.port, request("GET", "/v1/streams", b"", tenant))
    assert re.findall(rb'"name":"([^"]+)"', listed) == [b"1", b"2"]
    assert quick_count(guarded) == before


def test_the_audit_log_hears_of_it_the_ordinary_way(server: Server, lines: Lines) -> None:
    data, before = ensure("a", b"{}"), quick_count(server)
    for _ in range(2):
        assert b"s2-provision-result: noop" in ask(server.port, data)
    assert lines.about() == [("control", "", "create-stream", 200, "")] * 2
    assert quick_count(server) == before
