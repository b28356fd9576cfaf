"""A server that stops: clients are told to move, what was admitted is acked, nothing hangs."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.limits import MIB
from tests.engine.harness import GatedBucket
from tests.http.clients import EVENTS, JSON, SESSION, Api, Broken, Connected, Reply, reply_of
from tests.http.conftest import BASIN
from tests.http.edges import native_only
from tests.http.frames import RECONNECT, Frames, append
from tests.http.server import LoopThread, Server, eventually
from tests.support import batch

RECORDS = "/v1/streams/s/records"
MESSAGE = {"code": "server_draining", "message": "the server is about to stop"}


class Stopping:
    """A server that a test stops, on a bucket that a test may hold up."""

    def __init__(self, server: Server, bucket: GatedBucket) -> None:
        self.server = server
        self.bucket = bucket
        self._stopped: Future[None] | None = None

    def advise(self) -> None:
        self.server.call(self.server.app.draining.begin)

    def stop(self, timeout_secs: float = 60.0) -> None:
        """Begin to stop; the first half of the time is for clients that move by themselves."""
        self._stopped = self.server.submit(self.server.edge.stop(timeout_secs))
        eventually(lambda: self.server.app.draining.wanted)

    def insist(self) -> None:
        self.server.call(self.server.app.draining.end)

    def wait(self) -> None:
        assert self._stopped is not None
        self._stopped.result(20)

    @property
    def is_stopped(self) -> bool:
        return self._stopped is not None and self._stopped.done()


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    bucket = GatedBucket(MemoryBucket())
    with Server(bucket=bucket, cors=False) as server:
        yield Stopping(server, bucket)
        server.call(bucket.open)


@pytest.fixture
def connect(
    stopping: Stopping, version: str, client_thread: LoopThread
) -> Iterator[Callable[[], Api]]:
    made: list[Connected] = []

    def connected() -> Api:
        made.append(Connected(version, stopping.server.port, client_thread))
        return Api(made[-1].client, BASIN)

    yield connected
    for found in made:
        found.client.close()


@pytest.fixture
def api(connect: Callable[[], Api]) -> Api:
    found = connect()
    assert found.put(f"/v1/basins/{BASIN}").status == 201
    assert found.put("/v1/streams/s").status == 201
    return found


# Advice


def test_new_requests_are_told_to_go_elsewhere(stopping: Stopping, api: Api) -> None:
    stopping.advise()
    replies: list[Reply] = [
        api.get("/v1/basins"),
        api.get("/v1/streams/s"),
        api.append("s", "x"),
        api.get(f"{RECORDS}?seq_num=0"),
        api.get(f"{RECORDS}?seq_num=0", EVENTS),
        api.get(f"{RECORDS}?seq_num=0", SESSION),
        api.request("POST", RECORDS, SESSION),
        api.get("/v1/streams/%FF"),
    ]
    for reply in replies:
        assert (reply.status, reply.json) == (503, MESSAGE)
    assert api.get("/health").status == 200
    assert api.get("/metrics").status == 200
    assert api.get("/nowhere").status == 404
    assert stopping.server.stream(BASIN, "s").tail.seq_num == 0


def test_acks_carry_the_advice_and_the_session_goes_on(stopping: Stopping, api: Api) -> None:
    call = api.open("POST", RECORDS, SESSION)
    frames = Frames(call)
    call.send(append(b"a"))
    assert frames.take().flag == 0
    stopping.advise()
    for index in range(3):
        call.send(append(b"b"))
        found = frames.take()
        assert (found.flag, found.ack.end.seq_num) == (RECONNECT, index + 2)
    call.end()
    assert frames.next() is None


def test_a_reader_at_the_tail_is_advised_at_once_and_later_batches_carry_it_too(
    stopping: Stopping, api: Api
) -> None:
    frames = Frames(api.open("GET", RECORDS, SESSION, body=b""))
    assert frames.take().flag == 0
    stopping.advise()
    heartbeat = frames.take()
    assert (heartbeat.flag, heartbeat.payload) == (RECONNECT, b"\x12\x00")
    server = stopping.server
    server.run(server.node.append(BASIN, "s", batch(b"x")))
    live = frames.take()
    assert live.flag == RECONNECT
    assert [record.body for record in live.batch.records] == [b"x"]


# The end


@native_only("says GOAWAY as soon as it stops")
@pytest.mark.parametrize("version", ["h2"])
def test_a_connection_is_told_to_go_away_only_behind_its_last_session(
    stopping: Stopping, api: Api
) -> None:
    call = api.open("POST", RECORDS, SESSION)
    frames = Frames(call)
    client: Any = api.client
    stopping.stop()
    call.send(append(b"x"))
    assert frames.take().ack.end.seq_num == 1
    assert not client.connection.closed
    assert not stopping.is_stopped
    call.end()
    assert frames.next() is None
    eventually(lambda: client.connection.closed)
    stopping.wait()


@pytest.mark.parametrize("version", ["h1"])
def test_an_idle_connection_is_closed_and_one_with_a_session_behind_it(
    stopping: Stopping, api: Api, connect: Callable[[], Api]
) -> None:
    busy = connect()
    call: Any = busy.open("POST", RECORDS, SESSION)
    idle: Any = api.client
    sock = idle._idle
    stopping.stop()
    assert sock.recv(10) == b""
    frames = Frames(call)
    call.send(append(b"x"))
    assert frames.take().ack.end.seq_num == 1
    call.end()
    assert frames.next() is None
    assert call.at_end()
    stopping.wait()


def test_nobody_is_accepted_any_more(stopping: Stopping, api: Api) -> None:
    stopping.stop()
    stopping.wait()
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", stopping.server.port), 5)


def test_a_unary_append_under_way_is_finished(stopping: Stopping, api: Api) -> None:
    stopping.bucket.shut = True
    call = api.begin("POST", RECORDS, JSON, body=b'{"records":[{"body":"x"}]}')
    eventually(lambda: stopping.bucket.held)
    stopping.stop()
    stopping.insist()
    assert not stopping.is_stopped
    stopping.server.call(stopping.bucket.open)
    assert reply_of(call).json["end"]["seq_num"] == 1
    stopping.wait()


def test_an_append_session_gets_the_acks_of_what_was_admitted_and_then_the_reason(
    stopping: Stopping, api: Api
) -> None:
    call = api.open("POST", RECORDS, SESSION)
    frames = Frames(call)
    stopping.bucket.shut = True
    call.send(append(b"a") + append(b"b"))
    server = stopping.server
    eventually(lambda: server.call(lambda: server.stream(BASIN, "s").state.next_seq_num) == 2)
    stopping.stop()
    stopping.insist()
    call.send(append(b"c"))
    server.call(stopping.bucket.open)
    assert [frames.take().ack.end.seq_num for _ in range(2)] == [1, 2]
    assert frames.take().error == (503, MESSAGE)
    assert frames.next() is None
    assert server.call(lambda: server.stream(BASIN, "s").state.next_seq_num) == 2
    stopping.wait()


def test_an_append_session_that_waits_for_room_is_halted_without_effect(
    stopping: Stopping, api: Api
) -> None:
    server = stopping.server
    call = api.open("POST", RECORDS, SESSION)
    frames = Frames(call)
    room = server.node.term.room
    server.call(lambda: room.try_take(room.bytes_max))
    call.send(append(b"a"))
    eventually(lambda: room.waiting)
    stopping.stop()
    stopping.insist()
    assert frames.take().error == (503, MESSAGE)
    assert frames.next() is None
    server.call(lambda: room.give_back(room.bytes_max))
    stopping.wait()
    assert (room.bytes_taken, room.waiting) == (0, 0)
    assert server.stream(BASIN, "s").state.next_seq_num == 0


def test_readers_are_ended_with_the_reason(
    stopping: Stopping, api: Api, connect: Callable[[], Api]
) -> None:
    frames = Frames(api.open("GET", RECORDS, SESSION, body=b""))
    events = connect().open("GET", RECORDS, EVENTS, body=b"")
    waiting = connect().begin("GET", f"{RECORDS}?seq_num=0&wait=60", body=b"")
    eventually(lambda: stopping.server.users(BASIN, "s") == 3)
    assert frames.take().flag == 0
    stopping.stop()
    assert frames.take().flag == RECONNECT
    stopping.insist()
    assert frames.take().error == (503, MESSAGE)
    assert frames.next() is None
    text = b""
    while data := events.receive():
        text += data
    assert text.endswith(
        b'event: error\ndata: {"code":"server_draining",'
        b'"message":"the server is about to stop"}\n\n'
    )
    reply = reply_of(waiting)
    assert (reply.status, reply.json) == (503, MESSAGE)
    stopping.wait()


def test_sessions_that_do_not_move_are_ended_in_the_time_given(
    stopping: Stopping, api: Api
) -> None:
    call = api.open("POST", RECORDS, SESSION)
    stopping.stop(0.4)
    assert Frames(call).take().error == (503, MESSAGE)
    stopping.wait()


def test_a_client_that_does_not_read_is_cut_off_at_the_end_of_the_time(
    stopping: Stopping, api: Api
) -> None:
    server = stopping.server

    async def fill() -> None:
        for _ in range(40):
            await server.node.append(BASIN, "s", batch(b"x" * (MIB - 8)))

    server.run(fill())
    call = api.open("GET", f"{RECORDS}?seq_num=0", SESSION, body=b"")
    eventually(lambda: server.users(BASIN, "s") == 1)
    stopping.stop(0.4)
    stopping.wait()
    eventually(lambda: server.users(BASIN, "s") == 0)
    assert not server.edge.busy()
    frames = Frames(call)
    with pytest.raises(Broken):
        frames.rest()


def test_stopping_twice_and_without_clients_is_harmless(stopping: Stopping) -> None:
    for _ in range(2):
        stopping.stop(0.1)
        stopping.wait()
