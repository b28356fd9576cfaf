"""Crowds of well-behaved clients: followers of one stream, and append sessions, on both versions.

Followers check that they see every record once and in order; sessions that every input is acked
in order. What goes wrong is noted, not raised: one list tells it all in the end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bourn.clock import SystemClock
from tests.hostile.wires import H1Wire, H2Wire, head, request

CLOCK: Final = SystemClock()
STREAMS_PER_CONNECTION: Final = 100
OPENED_AT_ONCE: Final = 50
SAMPLED: Final = 20  # one follower of so many measures how late events are
ACK_BYTES_MAX: Final = 64


@dataclass
class Notes:
    """What a crowd has seen."""

    errors: list[str] = field(default_factory=list)
    events: int = 0
    acks: int = 0
    late: int = 0  # inputs that were not sent, because the one before had no ack yet
    delays: list[float] = field(default_factory=list)
    is_over: bool = False
    transports: list[asyncio.Transport] = field(default_factory=list)

    async def close(self) -> None:
        """Leave; the connections' ends are no errors."""
        self.is_over = True
        for transport in self.transports:
            transport.abort()
        await CLOCK.sleep(0)

    def failed(self, why: str) -> None:
        if not self.is_over:
            self.errors.append(why)


class Follower:
    """One reader of server-sent events; a record's body is when it was sent."""

    def __init__(self, notes: Notes, *, is_sampled: bool) -> None:
        self._notes = notes
        self._is_sampled = is_sampled
        self._buffer = b""
        self.next_seq_num = 0
        self.is_there = False

    def take(self, data: bytes) -> None:
        *events, self._buffer = (self._buffer + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"event: batch\nid: "):
                self._batch(event)
            elif event.startswith(b"event: ping\n"):
                self.is_there = True
            else:
                self._notes.failed(event.decode())

    def _batch(self, event: bytes) -> None:
        self.is_there = True
        self._notes.events += 1
        last, count, _ = event[17 : event.index(b"\n", 17)].split(b",")
        self.next_seq_num += event.count(b'"seq_num":') - event.count(b'"tail":')
        if self.next_seq_num != int(last) + 1 or int(count) != self.next_seq_num:
            self._notes.failed(f"a follower is at {self.next_seq_num}, the server at {last!r}")
        if self._is_sampled:
            _, _, rest = event.partition(b'"body":"')
            self._notes.delays.append(CLOCK.monotonic() - float(rest.partition(b'"')[0]))


class Session:
    """One append session: at most one input on its way."""

    def __init__(self, notes: Notes, *, is_h1: bool) -> None:
        self._notes = notes
        self._is_h1 = is_h1
        self._buffer = b""
        self._sent_at: float | None = None
        self._again: tuple[bytes, float] | None = None
        self.send: Callable[[bytes], None] = lambda _: None

    def append(self, message: bytes) -> None:
        if self._sent_at is not None:
            self._notes.late += 1
            return
        self._sent_at = CLOCK.monotonic()
        self.send((len(message) + 1).to_bytes(3, "big") + b"\0" + message)

    def repeat(self, message: bytes, until_s: float) -> None:
        """Append the same again and again, each behind the ack of the one before, until then."""
        self._again = (message, until_s)
        self.append(message)

    @property
    def is_idle(self) -> bool:
        return self._sent_at is None

    def take(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 3 + length:
                return
            flag, self._buffer = self._buffer[3], self._buffer[3 + length :]
            if flag or length > ACK_BYTES_MAX or self._sent_at is None:
                self._notes.failed(f"a session was sent a frame with flag {flag:#x}")
                continue
            self._notes.acks += 1
            self._notes.delays.append(CLOCK.monotonic() - self._sent_at)
            self._sent_at = None
            if self._again is not None and CLOCK.monotonic() < self._again[1]:
                self.append(self._again[0])


def message_of(body: bytes) -> bytes:
    """An AppendInput with one record of a short body."""
    record = b"\x1a" + bytes([len(body)]) + body
    return b"\x0a" + bytes([len(record)]) + record


async def _h1(port: int, notes: Notes, start: bytes, body: Callable[[bytes], None]) -> H1Wire:
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: H1Wire(body, notes.failed), "127.0.0.1", port)
    assert wire.transport is not None
    notes.transports.append(wire.transport)
    wire.transport.write(start)
    return wire


async def _h2(port: int, notes: Notes) -> H2Wire:
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: H2Wire(notes.failed), "127.0.0.1", port)
    assert wire.transport is not None
    notes.transports.append(wire.transport)
    return wire


async def _in_groups(count: int, one: Callable[[int], asyncio.Future[None]]) -> None:
    for start in range(0, count, OPENED_AT_ONCE):
        await asyncio.gather(*map(one, range(start, min(count, start + OPENED_AT_ONCE))))


async def open_followers(
    port: int, basin: str, stream: str, count: int
) -> tuple[Notes, list[Follower]]:
    """Open followers, half of them on each version; returns when each has heard of the tail."""
    notes = Notes()
    followers = [Follower(notes, is_sampled=index % SAMPLED == 0) for index in range(count)]
    path = f"/v1/streams/{stream}/records?seq_num=0"
    pairs = (("s2-basin", basin), ("accept", "text/event-stream"))

    def on_h1(index: int) -> asyncio.Future[None]:
        start = head("GET", path, *pairs)
        return asyncio.ensure_future(_forget(_h1(port, notes, start, followers[index].take)))

    half = count // 2
    await _in_groups(half, on_h1)
    for start in range(half, count, STREAMS_PER_CONNECTION):
        wire = await _h2(port, notes)
        for follower in followers[start : start + STREAMS_PER_CONNECTION]:
            wire.open(request("GET", path, *pairs), follower.take, is_whole=True)
    await until(lambda: all(follower.is_there for follower in followers) or bool(notes.errors))
    return notes, followers


async def open_sessions(
    port: int, basin: str, streams: list[str], count: int
) -> tuple[Notes, list[Session]]:
    """Open append sessions, half of them on each version, spread over the streams."""
    notes = Notes()
    sessions = [Session(notes, is_h1=index < count // 2) for index in range(count)]
    pairs = (("s2-basin", basin), ("content-type", "s2s/proto"))

    def path_of(index: int) -> str:
        return f"/v1/streams/{streams[index % len(streams)]}/records"

    async def on_h1(index: int) -> None:
        start = head("POST", path_of(index), *pairs, ("transfer-encoding", "chunked"))
        wire = await _h1(port, notes, start, sessions[index].take)
        sessions[index].send = wire.send

    half = count // 2
    await _in_groups(half, lambda index: asyncio.ensure_future(on_h1(index)))
    wire = None
    for index in range(half, count):
        if wire is None or (index - half) % STREAMS_PER_CONNECTION == 0:
            wire = await _h2(port, notes)
        block = request("POST", path_of(index), *pairs)
        number = wire.open(block, sessions[index].take, is_whole=False)
        sessions[index].send = _sender(wire, number)
    return notes, sessions


def _sender(wire: H2Wire, stream: int) -> Callable[[bytes], None]:
    return lambda data: wire.send(stream, data)


async def _forget(work: "asyncio.Future[H1Wire] | object") -> None:
    await work  # type: ignore[misc]  # a coroutine whose result nobody wants


async def until(condition: Callable[[], bool], patience_secs: float = 60.0) -> None:
    """Wait for it, but not for ever."""
    end = CLOCK.monotonic() + patience_secs
    while not condition() and CLOCK.monotonic() < end:
        await CLOCK.sleep(0.01)


async def settled(notes: Notes, condition: Callable[[], bool]) -> None:
    """Wait until the last is there; note it if it is not."""
    await until(condition)
    if not condition():
        notes.failed("not everything arrived")


def percentiles(values: list[float]) -> dict[str, float]:
    """Milliseconds: the median, the 99th of a hundred, the worst."""
    if not values:
        return {}
    ordered = sorted(values)
    picked = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {name: round(1000 * ordered[round(share * last)], 2) for name, share in picked.items()}
