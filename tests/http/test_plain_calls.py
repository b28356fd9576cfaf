"""Append sessions whose input is taken, and whose acks are pushed, without a task in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bourn.clock import SystemClock
from bourn.engine.appender import Appender
from bourn.engine.node import Node
from bourn.engine.trailing import Trailer
from bourn.http.append_session import UNACKED_INPUTS_MAX, AppendSession, Outbox
from bourn.http.auth import Principal
from bourn.http.draining import Draining
from bourn.http.exchange import Headers, Intake
from bourn.http.telemetry import Telemetry
from bourn.limits import LIVE_WAIT_SECS_MIN, MIB
from bourn.wire.frames import Frame, FrameParser, decode_terminal
from bourn.wire.protobuf import decode_append_ack
from tests.http.clients import SESSION, Api, Broken
from tests.http.frames import Frames, append
from tests.support import BASIN, STREAM, node_on, read_all, run, with_stream

CLOCK = SystemClock()
PATIENCE_SECS = 30.0


class Fed:
    """An exchange of a client that is played by hand."""

    method, path, query = "POST", "", ""
    fields: Headers = ()
    framing = ""

    def __init__(self) -> None:
        self.intake: Intake | None = None
        self.is_full = False
        self.pushes = 0
        self.output = b""
        self.ordinary: asyncio.Queue[bytes | None] = asyncio.Queue()

    def header(self, name: str) -> str | None:
        return None

    def header_values(self, name: str) -> list[str]:
        return []

    def feed(self, intake: Intake | None) -> None:
        self.intake = intake

    async def chunks(self) -> AsyncIterator[bytes]:
        while (part := await self.ordinary.get()) is not None:
            yield part

    def pusher(self) -> Any:
        return self

    def framed(self, data: bytes) -> bytes:
        return data

    def push(self, framed: bytes) -> bool:
        if not self.is_full:
            self.pushes += 1
            self.output += framed
        return not self.is_full

    async def send(self, data: bytes) -> None:
        await CLOCK.sleep(0)
        self.output += data

    async def respond(self, status: int, headers: Headers, body: bytes) -> None: ...
    async def start(self, status: int, headers: Headers) -> None: ...
    async def send_parts(self, parts: Sequence[bytes]) -> None: ...
    async def finish(self) -> None: ...
    async def gone(self) -> None: ...

    def take(self, data: bytes) -> None:
        """Have a part come, the way that a connection would choose."""
        if self.intake is not None and self.intake.is_ready and self.ordinary.empty():
            self.intake.take(data)
        else:
            self.ordinary.put_nowait(data)

    @property
    def frames(self) -> list[Frame]:
        return FrameParser().feed(self.output)

    @property
    def ends(self) -> list[int]:
        """Where the acks so far say that their batches end."""
        regular = [found for found in self.frames if not found.terminal]
        return [decode_append_ack(bytes(found.payload)).end.seq_num for found in regular]


class Unpushable(Fed):
    """An exchange that fails in a way that nobody has foreseen."""

    def push(self, framed: bytes) -> bool:
        raise RuntimeError(framed)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECS):
        while not condition():
            await CLOCK.sleep(0.001)


def session_on(
    node: Node,
    exchange: Fed,
    appender: Appender,
    draining: Draining | None = None,
    outbox: Outbox | None = None,
) -> AppendSession:
    return AppendSession(
        exchange,
        appender,
        Telemetry(node, CLOCK),
        draining or Draining(node),
        CLOCK,
        Principal(node, CLOCK, None),
        lambda _: None,
        outbox=outbox,
    )


@asynccontextmanager
async def serving(
    exchange: Fed, room_bytes: int = MIB
) -> AsyncIterator[tuple[Node, "asyncio.Task[None]", Appender]]:
    async with node_on() as node:
        node.term.room.bytes_max = room_bytes
        await with_stream(node)
        appender = await node.appender(BASIN, STREAM)
        session = session_on(node, exchange, appender)
        task = asyncio.ensure_future(session.run())
        await until(lambda: exchange.intake is not None)
        yield node, task, appender
        await task
        appender.close()


def test_input_is_submitted_before_the_loop_turns_and_acks_are_pushed() -> None:
    async def scenario() -> None:
        exchange = Fed()
        async with serving(exchange) as (node, _, _):
            found = node.term.find(BASIN, STREAM)
            assert found is not None
            exchange.take(append(b"a") + append(b"b", b"c") + append(b"d")[:7])
            assert found.state.next_seq_num == 3
            exchange.take(append(b"d")[7:])
            assert found.state.next_seq_num == 4
            await until(lambda: exchange.ends == [1, 3, 4])
            assert exchange.pushes
            exchange.ordinary.put_nowait(None)

    run(scenario())


@pytest.mark.parametrize("room_bytes", [600, 4096, MIB])
def test_nothing_is_overtaken_whatever_has_to_wait(room_bytes: int) -> None:
    async def scenario() -> None:
        exchange = Fed()
        bodies = [b"%d" % at for at in range(300)]
        async with serving(exchange, room_bytes) as (node, _, _):
            for at, body in enumerate(bodies):
                exchange.is_full = at % 5 == 2
                exchange.take(append(body))
                if at % 3 == 0:
                    await CLOCK.sleep(0)
            exchange.ordinary.put_nowait(None)
            await until(lambda: len(exchange.ends) == len(bodies))
            assert exchange.ends == list(range(1, 301))
            assert [record.body for record in await read_all(node)] == bodies

    run(scenario())


def test_what_came_before_a_malformed_frame_is_appended_even_if_it_had_to_wait() -> None:
    async def scenario() -> None:
        exchange = Fed()
        async with serving(exchange, 600) as (node, task, _):
            intake = exchange.intake
            assert intake is not None
            intake.take(append(b"a") + append(b"b") + append(b"c"))
            intake.take(append(b"d") + b"\0\0\0\0")
            intake.take(append(b"e"))
            await task
            assert exchange.ends == [1, 2, 3, 4]
            assert decode_terminal(exchange.frames[-1]).status == 400
            assert [record.body for record in await read_all(node)] == [b"a", b"b", b"c", b"d"]

    run(scenario())


def test_behind_a_refusal_nothing_has_any_effect() -> None:
    async def scenario() -> None:
        exchange = Fed()
        async with serving(exchange) as (node, task, _):
            exchange.take(append(b"a") + append(b"b", match_seq_num=7) + append(b"c"))
            exchange.take(append(b"d"))
            await task
            assert exchange.ends == [1]
            assert decode_terminal(exchange.frames[-1]).status == 412
            assert [record.body for record in await read_all(node)] == [b"a"]

    run(scenario())


def test_acks_that_are_not_taken_are_bounded() -> None:
    async def scenario() -> None:
        exchange = Fed()
        stuck = asyncio.Event()

        async def send(data: bytes) -> None:
            await stuck.wait()
            exchange.output += data

        exchange.send = send  # type: ignore[method-assign]
        exchange.is_full = True
        async with serving(exchange) as (node, _, _):
            found = node.term.find(BASIN, STREAM)
            assert found is not None
            for _ in range(3):
                for _ in range(UNACKED_INPUTS_MAX):
                    exchange.take(append(b""))
                await node.term.committer.drain()
                await CLOCK.sleep(0.01)
            assert found.state.next_seq_num <= 2 * UNACKED_INPUTS_MAX + 1
            stuck.set()
            exchange.ordinary.put_nowait(None)

    run(scenario())


def test_a_session_that_is_halted_before_it_has_begun_to_listen_ends_too() -> None:
    async def scenario() -> None:
        exchange = Fed()
        async with node_on() as node:
            await with_stream(node)
            appender, draining = await node.appender(BASIN, STREAM), Draining(node)
            session = session_on(node, exchange, appender, draining=draining)
            draining.end()
            async with asyncio.timeout(PATIENCE_SECS):
                await session.run()
            assert decode_terminal(exchange.frames[-1]).status == 503
            appender.close()

    run(scenario())


def test_a_session_whose_acks_cannot_be_pushed_takes_none_from_the_others() -> None:
    async def scenario() -> None:
        exchanges, outbox = [Unpushable(), Fed()], Outbox()
        async with node_on() as node:
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            tasks = []
            for exchange in exchanges:
                session = session_on(node, exchange, appender, outbox=outbox)
                tasks.append(asyncio.ensure_future(session.run()))
                await until(partial(getattr, exchange, "intake"))
            for exchange in exchanges:
                exchange.take(append(b"a"))
            await until(lambda: all(exchange.ends for exchange in exchanges))
            for exchange in exchanges:
                exchange.ordinary.put_nowait(None)
            await asyncio.gather(*tasks)
            appender.close()

    run(scenario())


def test_a_session_waits_for_a_live_follower_that_is_behind() -> None:
    async def scenario() -> None:
        exchange = Fed()
        async with serving(exchange) as (node, _, _):
            found = node.term.find(BASIN, STREAM)
            assert found is not None
            trailer = Trailer(found, CLOCK)
            trailer.due_at = CLOCK.monotonic() + 1000
            found.trailers = {trailer: []}
            await CLOCK.sleep(2 * LIVE_WAIT_SECS_MIN)
            exchange.take(append(b"a"))
            exchange.take(append(b"b"))
            assert found.state.next_seq_num == 0
            trailer.close()
            await until(lambda: exchange.ends == [1, 2])
            exchange.ordinary.put_nowait(None)

    run(scenario())


# On real connections: the first input goes the ordinary way, and what follows its ack does not.


def test_a_body_that_becomes_malformed_ends_the_session_and_what_came_before_stays(
    api: Api, stream: str
) -> None:
    if api.version != "h1":
        pytest.skip("chunks are of HTTP/1.1")
    call = api.open("POST", f"/v1/streams/{stream}/records", SESSION)
    frames = Frames(call)
    for end in (1, 2):
        call.send(append(b"a"))
        assert frames.take().ack.end.seq_num == end
    call._sock.sendall(b"xyz\r\n")  # type: ignore[attr-defined]
    with pytest.raises(Broken):
        frames.take()


@pytest.mark.parametrize("inputs", [1, 3])
def test_the_end_may_come_together_with_the_last_input(api: Api, stream: str, inputs: int) -> None:
    call = api.open("POST", f"/v1/streams/{stream}/records", SESSION)
    frames = Frames(call)
    for end in range(1, inputs):
        call.send(append(b"a"))
        assert frames.take().ack.end.seq_num == end
    last = append(b"b")
    if api.version == "h1":
        whole = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)
        call._sock.sendall(whole)  # type: ignore[attr-defined]
        call._is_open = False  # type: ignore[attr-defined]
    else:
        call.send(last)
        call.end()
    assert [found.ack.end.seq_num for found in frames.rest()] == [inputs]
    tail = api.get(f"/v1/streams/{stream}/records/tail").json["tail"]
    assert tail["seq_num"] == inputs, "the connection goes on"
