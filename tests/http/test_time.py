"""What happens by the clock: heartbeats, idle budgets, expiry. The clock is moved by hand."""

from collections.abc import Callable, Iterator

import pytest

from bourn.clock import ManualClock
from tests.http.clients import EVENTS, SESSION, Api
from tests.http.conftest import BASIN
from tests.http.frames import Frame, Frames
from tests.http.server import Server, eventually

STREAMS = "/v1/streams"
HEARTBEAT_SECS_MIN, HEARTBEAT_SECS_MAX = 5, 15


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Server]:
    with Server(cors=False, clock=clock) as running:
        yield running


@pytest.fixture
def pass_time(server: Server, clock: ManualClock) -> Callable[[float], None]:
    def passed(seconds: float) -> None:
        server.call(lambda: clock.advance(seconds))

    return passed


def is_heartbeat(frame: Frame) -> bool:
    return not frame.batch.records and frame.batch.HasField("tail")


def waits(server: Server, stream: str) -> bool:
    """Whether the one reader has delivered everything and waits at the tail."""
    return server.call(lambda: server.stream(BASIN, stream).waiters is not None)


def test_an_idle_session_lives_for_ever_by_a_heartbeat_every_5_to_15_seconds(
    server: Server, api: Api, stream: str, pass_time: Callable[[float], None]
) -> None:
    frames = Frames(api.open("GET", f"{STREAMS}/{stream}/records", SESSION, body=b""))
    assert is_heartbeat(frames.take())
    before = server.app.telemetry.requests
    for _ in range(250):  # an hour, at the most
        eventually(lambda: waits(server, stream))
        pass_time(HEARTBEAT_SECS_MAX)
        assert is_heartbeat(frames.take())
    eventually(lambda: waits(server, stream))
    pass_time(HEARTBEAT_SECS_MIN - 0.1)
    pass_time(HEARTBEAT_SECS_MAX)
    assert is_heartbeat(frames.take())
    assert server.app.telemetry.requests == before
    frames.call.abort()


def test_a_heartbeat_comes_no_sooner_than_5_seconds_behind_the_last_frame(
    server: Server,
    api: Api,
    another: Callable[[], Api],
    stream: str,
    pass_time: Callable[[float], None],
) -> None:
    frames = Frames(api.open("GET", f"{STREAMS}/{stream}/records", SESSION, body=b""))
    assert is_heartbeat(frames.take())
    for index in range(20):
        eventually(lambda: waits(server, stream))
        pass_time(HEARTBEAT_SECS_MIN - 0.1)
        another().append(stream, f"{index}")
        assert [record.body for record in frames.take().batch.records] == [b"%d" % index]
    frames.call.abort()


def test_events_are_pinged_alike(
    server: Server, api: Api, stream: str, pass_time: Callable[[float], None]
) -> None:
    call = api.open("GET", f"{STREAMS}/{stream}/records", EVENTS, body=b"")
    for _ in range(3):
        text = b""
        while not text.endswith(b"\n\n"):
            text += call.receive()
        assert text.startswith(b"event: ping\ndata: ")
        assert text.count(b"event:") == 1
        eventually(lambda: waits(server, stream))
        pass_time(HEARTBEAT_SECS_MAX)
    call.abort()


def test_a_wait_is_a_budget_that_batches_renew_and_heartbeats_do_not(
    server: Server,
    api: Api,
    another: Callable[[], Api],
    stream: str,
    pass_time: Callable[[float], None],
) -> None:
    query = f"{STREAMS}/{stream}/records?seq_num=0&wait=40"
    frames = Frames(api.open("GET", query, SESSION, body=b""))
    assert is_heartbeat(frames.take())
    eventually(lambda: waits(server, stream))
    pass_time(HEARTBEAT_SECS_MAX)
    assert is_heartbeat(frames.take())
    another().append(stream, "x")
    assert len(frames.take().batch.records) == 1
    for _ in range(2):  # 30 seconds of the 40 behind the batch
        eventually(lambda: waits(server, stream))
        pass_time(HEARTBEAT_SECS_MAX)
        assert is_heartbeat(frames.take())
    eventually(lambda: waits(server, stream))
    pass_time(10.01)  # a hair more: the hands of the clock have been moved by tenths
    assert all(is_heartbeat(frame) for frame in frames.rest()), "and then a clean end"


def test_a_unary_read_waits_a_minute_at_the_most(
    server: Server, api: Api, stream: str, pass_time: Callable[[float], None]
) -> None:
    path = f"{STREAMS}/{stream}/records?seq_num=0&wait=4294967295"
    call = api.begin("GET", path, body=b"")
    eventually(lambda: waits(server, stream))
    pass_time(60)
    call.head()
    assert (call.status, call.receive()) == (200, b'{"records":[]}')
    assert call.receive() == b""


def test_what_has_expired_is_hidden_at_once_and_the_tail_stays(
    api: Api, stream: str, pass_time: Callable[[float], None]
) -> None:
    path = f"{STREAMS}/{stream}"
    api.send_json("PATCH", path, {"retention_policy": {"age": 10}})
    tail = api.append(stream, "x").json["tail"]
    assert len(api.get(f"{path}/records?seq_num=0").json["records"]) == 1
    pass_time(11)
    assert api.get(f"{path}/records?seq_num=0").body == b'{"records":[]}'
    assert api.get(f"{path}/records/tail").json == {"tail": tail}
