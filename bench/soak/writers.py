"""Append sessions on both versions of HTTP and unary appends, one input on its way in each.

At full speed each sends again once it is acked. Paced, each sends when it is due, evenly spread;
who is not acked by then sends as soon as it is, and its wait counts from when it was due.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from bench.engine.target import append_message
from bench.http.asking import request
from bench.http.server import BASIN
from bench.soak.client import Window
from bourn.clock import SystemClock
from bourn.wire.frames import encode_frame
from tests.hostile.wires import DATA, WINDOW_UPDATE, H1Wire, H2Wire, frame, head
from tests.hostile.wires import request as block_of

SESSIONS: Final = 16  # of each version
UNARY: Final = 32
SESSION_RECORDS: Final = 4
SESSION_BODY_BYTES: Final = 1024
UNARY_BODY_BYTES: Final = 248
TICK_SECS: Final = 0.001
BEHIND_MAX: Final = 16  # inputs of one writer that are due and not sent; more are left out
WINDOW_BYTES: Final = 1 << 20
STREAMS: Final = tuple(
    [f"h1-{number}" for number in range(SESSIONS)]
    + [f"h2-{number}" for number in range(SESSIONS)]
    + [f"unary-{number}" for number in range(UNARY)]
)


class Writer:
    """One that appends: it is told when to, and when it was acked."""

    def __init__(self, window: Window, message: Callable[[], bytes], kind: str = "append") -> None:
        self._window = window
        self._waits = window.wait(kind)
        self._message = message
        self._due: deque[float] = deque()
        self._since: float | None = None
        self._is_full = False
        self.send: Callable[[bytes], None] = lambda _: None

    def full(self, *, is_full: bool) -> None:
        """Send without a pause from now on, or only when it is due."""
        self._is_full = is_full
        self._due.clear()
        if is_full and self._since is None:
            self._send(time.perf_counter())

    def due(self, at: float) -> None:
        """Send, now or once the one before is acked."""
        if self._since is None:
            self._send(at)
        elif len(self._due) < BEHIND_MAX:
            self._due.append(at)
        else:
            self._window.count("left_out", 1)

    def _send(self, since: float) -> None:
        self._since = since
        self.send(self._message())

    def acked(self) -> None:
        """Note the wait, and go on."""
        now = time.perf_counter()
        if self._since is None:
            self._window.failed("an ack that nobody waits for")
            return
        self._waits.append(now - self._since)
        self._since = None
        if self._is_full:
            self._send(now)
        elif self._due:
            self._send(self._due.popleft())


class Acks:
    """Frames of S2S: acks of one session."""

    def __init__(self, writer: Writer, failed: Callable[[str], None]) -> None:
        self._writer = writer
        self._failed = failed
        self._rest = b""

    def take(self, data: bytes) -> None:
        """Take bytes of the response."""
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= 4:
            end = at + 3 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            if data[at + 3]:
                self._failed(f"a session was ended: {data[at:end]!r}")
            else:
                self._writer.acked()
            at = end
        self._rest = data[at:]


class LongH2Wire(H2Wire):
    """A connection that gives its windows back, so that it lasts."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        super().__init__(failed)
        self._taken: dict[int, int] = {}

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        super()._take(kind, flags, stream, payload)
        if kind == DATA:
            self._give_back(0, len(payload))
            self._give_back(stream, len(payload))

    def _give_back(self, stream: int, size: int) -> None:
        taken = self._taken.get(stream, 0) + size
        if taken >= WINDOW_BYTES:
            assert self.transport is not None
            self.transport.write(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", taken)))
            taken = 0
        self._taken[stream] = taken


class Unary(asyncio.Protocol):
    """A connection of unary appends."""

    def __init__(self, writer: Writer, failed: Callable[[str], None]) -> None:
        self._writer = writer
        self._failed = failed
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """It can be written to."""
        self._writer.send = transport.write

    def data_received(self, data: bytes) -> None:
        """Take an answer; it is short, and comes in one piece nearly always."""
        data = self._rest + data if self._rest else data
        head_end = data.find(b"\r\n\r\n")
        if head_end < 0 or not data.endswith(b"}"):
            self._rest = data
            return
        self._rest = b""
        if data.startswith(b"HTTP/1.1 200"):
            self._writer.acked()
        else:
            self._failed(data.decode(errors="replace"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It must not."""
        self._failed(f"the connection was lost: {exc}")


class Writers:
    """All of them."""

    def __init__(self, writers: list[Writer], window: Window) -> None:
        self._writers = writers
        self._window = window
        self._pacing: asyncio.Task[None] | None = None

    def full(self) -> None:
        """As fast as acks come."""
        self._stop()
        for writer in self._writers:
            writer.full(is_full=True)

    def pace(self, per_s: float) -> None:
        """So many appends a second, all writers together."""
        self._stop()
        self._pacing = asyncio.get_running_loop().create_task(self._pace(per_s))

    def pause(self) -> None:
        """None."""
        self._stop()

    def _stop(self) -> None:
        if self._pacing is not None:
            self._pacing.cancel()
            self._pacing = None
        for writer in self._writers:
            writer.full(is_full=False)

    async def _pace(self, per_s: float) -> None:
        clock, began, sent = SystemClock(), time.perf_counter(), 0
        while True:
            now = time.perf_counter()
            while sent < (now - began) * per_s:
                self._writers[sent % len(self._writers)].due(now)
                sent += 1
            await clock.sleep(TICK_SECS)

    def close(self) -> None:
        """Leave."""
        self._stop()


async def write(port: int, window: Window, streams: Sequence[str] = STREAMS) -> Writers:
    """Connect a writer for each stream; what its name begins with says how it writes."""
    failed = window.failed
    loop = asyncio.get_running_loop()
    batch = encode_frame(append_message(SESSION_RECORDS, SESSION_BODY_BYTES))
    pairs = (("s2-basin", BASIN), ("content-type", "s2s/proto"))
    writers: list[Writer] = []
    h2: H2Wire | None = None
    for stream in streams:
        path = f"/v1/streams/{stream}/records"
        if stream.startswith("unary"):
            body = b'{"records":[{"body":"%b"}]}' % (b"x" * UNARY_BODY_BYTES)
            message = request("POST", f"/streams/{stream}/records", body)
            writer = Writer(window, partial(bytes, message))
            await loop.create_connection(partial(Unary, writer, failed), "127.0.0.1", port)
        else:
            writer = Writer(window, partial(bytes, batch))
            acks = Acks(writer, failed)
            if stream.startswith("h1"):
                _, h1 = await loop.create_connection(
                    partial(H1Wire, acks.take, failed), "127.0.0.1", port
                )
                assert h1.transport is not None
                h1.transport.write(head("POST", path, *pairs, ("transfer-encoding", "chunked")))
                writer.send = h1.send
            else:
                if h2 is None:
                    _, h2 = await loop.create_connection(
                        partial(LongH2Wire, failed), "127.0.0.1", port
                    )
                number = h2.open(block_of("POST", path, *pairs), acks.take, is_whole=False)
                writer.send = partial(h2.send, number)
        writers.append(writer)
    return Writers(writers, window)
