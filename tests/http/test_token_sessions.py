"""Sessions and their tokens: fences and trims, and what ends when a token does."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.http import auth
from bourn.limits import TOKEN_CHECK_SECS, TOKEN_ENDED_GRACE_SECS
from bourn.model.instants import format_ms
from tests.http.access import ROOT, TOKENS, TokenApi, exact, prefix
from tests.http.clients import EVENTS, SESSION, Api, Broken, Connected, reply_of
from tests.http.conftest import BASIN
from tests.http.frames import Frames, append, frame
from tests.http.server import LoopThread, Server, eventually
from tests.wire.schema import AppendInput

STREAMS = "/v1/streams"
NUMBERS = count(1)
FENCE = {"headers": [{"name": b"", "value": b"fence"}], "body": b"t"}
TRIM = {"headers": [{"name": b"", "value": b"trim"}], "body": bytes(8)}


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Server]:
    with Server(cors=False, root_token=ROOT, clock=clock) as running:
        yield running


@pytest.fixture
def root(server: Server, client_thread: LoopThread) -> Iterator[TokenApi]:
    with Connected("h1", server.port, client_thread) as connected:
        api = TokenApi(connected.client, BASIN, ROOT)
        assert api.put(f"/v1/basins/{BASIN}").status in {200, 201}
        yield api


@pytest.fixture
def stream(root: TokenApi) -> str:
    name = f"stream-{next(NUMBERS)}"
    assert root.put(f"{STREAMS}/{name}").status == 201
    return name


@pytest.fixture
def token(root: TokenApi, clock: ManualClock) -> tuple[str, str]:
    """A token's id and its secret; it lives for an hour."""
    token_id = f"token-{next(NUMBERS)}"
    scope = {"basins": exact(BASIN), "streams": prefix(""), "ops": ["append", "read"]}
    end = format_ms(clock.now_ms() + 3_600_000)
    return token_id, root.issued(token_id, scope, expires_at=end)


@pytest.fixture
def user(
    server: Server, version: str, client_thread: LoopThread, token: tuple[str, str]
) -> Iterator[TokenApi]:
    """A client with that token and a connection of its own."""
    with Connected(version, server.port, client_thread) as connected:
        yield TokenApi(connected.client, BASIN, token[1])


End = Callable[[str], None]


def revoked(server: Server, root: TokenApi, clock: ManualClock) -> End:
    def end(token_id: str) -> None:
        assert root.delete(f"{TOKENS}/{token_id}").status == 204

    return end


def expired(server: Server, root: TokenApi, clock: ManualClock) -> End:
    def end(token_id: str) -> None:
        # Not all at once: the timer must look at the clock, not only wait.
        for _ in range(200):
            server.call(lambda: clock.advance(20))

    return end


def revoked_unseen(server: Server, root: TokenApi, clock: ManualClock) -> End:
    def end(token_id: str) -> None:
        server.run(server.node.revoke_token(token_id))
        server.call(lambda: clock.advance(TOKEN_CHECK_SECS))

    return end


@pytest.fixture(params=[revoked, expired, revoked_unseen])
def end(request: Any, server: Server, root: TokenApi, clock: ManualClock) -> End:
    """Ends a token in one of the ways in which tokens end."""
    found: End = request.param(server, root, clock)
    return found


# Fences and trims


def records(*found: dict[str, Any]) -> bytes:
    encoded: bytes = AppendInput(records=list(found)).SerializeToString()
    return frame(encoded)


@pytest.mark.parametrize(("command", "op"), [(FENCE, "fence"), (TRIM, "trim")])
def test_a_command_without_its_operation_ends_the_session_and_is_not_applied(
    root: TokenApi, user: TokenApi, stream: str, command: dict[str, Any], op: str
) -> None:
    call = user.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    frames = Frames(call)
    call.send(append(b"first"))
    assert frames.take().ack.end.seq_num == 1
    call.send(records({"body": b"with it"}, command) + append(b"behind it"))
    assert frames.take().code == (403, "permission_denied")
    assert frames.rest() == []
    tail = root.get(f"{STREAMS}/{stream}/records/tail").json["tail"]
    assert tail["seq_num"] == 1
    scope = {"basins": exact(BASIN), "streams": exact(stream), "ops": ["append", op]}
    allowed = user.with_token(root.issued(f"{op}-{next(NUMBERS)}", scope))
    call = allowed.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    call.send(records(command))
    call.end()
    assert [found.ack.end.seq_num for found in Frames(call).rest()] == [2]


@pytest.mark.parametrize(
    ("headers", "body"), [([["", "fence"]], "t"), ([["", "trim"]], "\0" * 8)], ids=["fence", "trim"]
)
def test_a_command_without_its_operation_is_refused_and_not_applied(
    root: TokenApi, user: TokenApi, stream: str, headers: list[list[str]], body: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    reply = user.post(path, {"records": [{"body": "x"}, {"headers": headers, "body": body}]})
    assert reply.error == (403, "permission_denied")
    assert root.get(f"{path}/tail").json["tail"]["seq_num"] == 0


def test_a_session_that_is_not_allowed_does_not_begin(user: TokenApi, stream: str) -> None:
    elsewhere = user.of("other-basin")
    path = f"{STREAMS}/{stream}/records"
    for headers in (SESSION, EVENTS):
        assert elsewhere.get(path, headers).error == (403, "permission_denied")
    assert elsewhere.request("POST", path, SESSION).error == (403, "permission_denied")


# The end of a token


def test_an_append_session_ends_with_the_acks_of_all_that_was_taken(
    user: TokenApi, token: tuple[str, str], stream: str, end: End
) -> None:
    call = user.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    frames = Frames(call)
    call.send(append(b"first"))
    assert frames.take().ack.end.seq_num == 1
    end(token[0])
    assert frames.take().code == (401, "authn")
    assert frames.rest() == []
    assert user.with_token(token[1]).get(f"{STREAMS}/{stream}/records").error == (401, "authn")


def test_a_read_session_ends_at_the_tail(
    user: TokenApi, root: TokenApi, token: tuple[str, str], stream: str, end: End
) -> None:
    call = user.open("GET", f"{STREAMS}/{stream}/records?seq_num=0", SESSION, body=b"")
    frames = Frames(call)
    assert frames.take().batch.HasField("tail")
    root.append(stream, "one")
    assert [record.body for record in frames.take().batch.records] == [b"one"]
    end(token[0])
    found = frames.take()
    while found.flag != 0x80:  # a heartbeat, where time has passed
        assert not found.batch.records
        found = frames.take()
    assert found.code == (401, "authn")
    assert frames.rest() == []


def test_events_end_with_an_error_event(
    user: TokenApi, token: tuple[str, str], stream: str, end: End
) -> None:
    call = user.open("GET", f"{STREAMS}/{stream}/records?seq_num=0", EVENTS, body=b"")
    text = call.receive()
    end(token[0])
    while part := call.receive():
        text += part
    last = [event for event in text.decode().split("\n\n") if event][-1]
    assert last.startswith("event: error\n")
    assert '"code":"authn"' in last


def test_a_read_that_waits_is_answered_401(
    server: Server, user: TokenApi, root: TokenApi, token: tuple[str, str], stream: str
) -> None:
    call = user.begin("GET", f"{STREAMS}/{stream}/records?seq_num=0&wait=60", body=b"")
    eventually(lambda: server.call(lambda: server.stream(BASIN, stream).waiters is not None))
    assert root.delete(f"{TOKENS}/{token[0]}").status == 204
    assert reply_of(call).error == (401, "authn")


def test_a_read_that_waits_for_longer_than_its_token_is_good_is_answered_401(
    server: Server, user: TokenApi, root: TokenApi, stream: str, clock: ManualClock
) -> None:
    scope = {"basins": exact(BASIN), "streams": prefix(""), "ops": ["read"]}
    end = format_ms(clock.now_ms() + 10_000)
    secret = root.issued(f"short-{next(NUMBERS)}", scope, expires_at=end)
    call = user.with_token(secret).begin(
        "GET", f"{STREAMS}/{stream}/records?seq_num=0&wait=60", body=b""
    )
    eventually(lambda: server.call(lambda: server.stream(BASIN, stream).waiters is not None))
    server.call(lambda: clock.advance(10.01))
    assert reply_of(call).error == (401, "authn")


def test_sessions_of_other_tokens_go_on(
    user: TokenApi, root: TokenApi, token: tuple[str, str], stream: str
) -> None:
    scope = {"basins": exact(BASIN), "streams": prefix(""), "ops": ["append"]}
    other = user.with_token(root.issued(f"other-{next(NUMBERS)}", scope))
    call = other.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    assert root.delete(f"{TOKENS}/{token[0]}").status == 204
    call.send(append(b"still here"))
    call.end()
    assert [found.ack.end.seq_num for found in Frames(call).rest()] == [1]


def test_a_token_that_is_issued_again_does_not_keep_old_sessions_open(
    user: TokenApi, root: TokenApi, token: tuple[str, str], stream: str
) -> None:
    call = user.open("POST", f"{STREAMS}/{stream}/records", SESSION)
    assert root.delete(f"{TOKENS}/{token[0]}").status == 204
    scope = {"basins": exact(BASIN), "streams": prefix(""), "ops": ["append", "read"]}
    root.issued(token[0], scope)
    assert Frames(call).take().code == (401, "authn")


def test_a_reader_that_reads_nothing_is_cut_off(
    server: Server,
    user: TokenApi,
    root: TokenApi,
    token: tuple[str, str],
    stream: str,
    clock: ManualClock,
) -> None:
    for _ in range(24):
        assert root.append(stream, "x" * 1_000_000).status == 200
    call = user.open("GET", f"{STREAMS}/{stream}/records?seq_num=0", SESSION, body=b"")
    eventually(lambda: server.users(BASIN, stream) == 1)
    settled = threading.Event()
    settled.wait(0.2)  # the server fills what buffers there are, and then waits
    assert root.delete(f"{TOKENS}/{token[0]}").status == 204
    server.call(lambda: clock.advance(TOKEN_ENDED_GRACE_SECS))
    eventually(lambda: server.users(BASIN, stream) == 0)
    with pytest.raises((Broken, AssertionError)):
        Frames(call).rest()


def test_nothing_is_left_of_sessions_that_have_ended(
    server: Server, user: TokenApi, token: tuple[str, str], stream: str
) -> None:
    def principal() -> auth.Principal:
        found = [p for p in server.app.auth._principals.values() if p.id == token[0]]
        return found[0]

    path = f"{STREAMS}/{stream}/records"
    for _ in range(3):
        call = user.open("POST", path, SESSION)
        assert server.call(lambda: principal().has_sessions)
        call.end()
        assert Frames(call).rest() == []
        assert user.get(f"{path}?seq_num=0&wait=0", SESSION).status == 200
    eventually(lambda: not server.call(lambda: principal().has_sessions))
    assert server.call(lambda: principal()._timer) is None


def test_the_principals_that_are_kept_are_bounded(
    monkeypatch: pytest.MonkeyPatch, client_thread: LoopThread
) -> None:
    monkeypatch.setattr(auth, "PRINCIPALS_KEPT_MAX", 5)
    with (
        Server(cors=False, root_token=ROOT, bucket=MemoryBucket()) as server,
        Connected("h1", server.port, client_thread) as connected,
    ):
        api = TokenApi(connected.client, BASIN, ROOT)
        for index in range(20):
            found = api.issue(f"t-{index}", ops=["list-basins"])
            assert found.get("/v1/basins").status == 200
            assert server.call(lambda: len(server.app.auth._principals)) <= 5


def test_many_sessions_of_one_token_all_end(
    server: Server, root: TokenApi, client_thread: LoopThread, token: tuple[str, str], stream: str
) -> None:
    with Connected("h2", server.port, client_thread) as connected:
        api: Api = TokenApi(connected.client, BASIN, token[1])
        path = f"{STREAMS}/{stream}/records"
        calls = [api.open("POST", path, SESSION) for _ in range(20)]
        assert root.delete(f"{TOKENS}/{token[0]}").status == 204
        with ThreadPoolExecutor(4) as pool:
            ends = list(pool.map(lambda call: Frames(call).take().code, calls))
        assert ends == [(401, "authn")] * 20
