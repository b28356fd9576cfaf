"""Followers of one stream by SSE and by S2S, the writer that they wait for, and catch-up reads.

A record of the followed stream says when it was sent; a follower looks for no more than that in
what comes. A catch-up read takes the newest records of a stream that others write, by a session.
"""

import asyncio
import re
import time
from array import array
from functools import partial
from typing import Any, Final

from bench.http.asking import request
from bench.http.server import BASIN
from bench.soak.client import Window
from bench.soak.writers import STREAMS, Unary, Writer
from bourn.clock import SystemClock
from tests.hostile.wires import head

FOLLOWED: Final = "followed"
FOLLOWERS: Final = 40  # of each kind
EVENTS_PER_S: Final = 50
CATCH_UPS_PER_S: Final = 1.0
CATCH_UP_RECORDS: Final = 2000
CATCH_UP_SECS_MAX: Final = 30.0
READ_BYTES_AHEAD: Final = 1 << 20
_SENT: Final = re.compile(rb"t=([0-9]+);")
_SENT_BYTES_MAX: Final = 64


class Follower(asyncio.Protocol):
    """One follower; counts every record by the time that it carries."""

    def __init__(self, start: bytes, waits: "array[float]", window: Window) -> None:
        self._start = start
        self._waits = waits
        self._window = window
        self._rest = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Ask for the stream."""
        transport.write(self._start)

    def data_received(self, data: bytes) -> None:
        """Look for records."""
        now = time.perf_counter_ns()
        if not self.opened.done():
            if data.startswith(b"HTTP/1.1 200"):
                self.opened.set_result(None)
            else:
                self.opened.set_exception(RuntimeError(data.decode(errors="replace")))
        data = self._rest + data if self._rest else data
        end = 0
        for found in _SENT.finditer(data):
            self._waits.append((now - int(found[1])) / 1e9)
            end = found.end()
        self._rest = data[max(end, len(data) - _SENT_BYTES_MAX) :]

    def connection_lost(self, exc: Exception | None) -> None:
        """It must not."""
        self._window.failed(f"a follower was left: {exc}")


class Readers:
    """All of them."""

    def __init__(self, port: int, window: Window) -> None:
        self._port = port
        self._window = window
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect the followers, begin to write what they wait for, and to catch up."""
        loop = asyncio.get_running_loop()
        waits = self._window.wait("delivery")
        path = f"/v1/streams/{FOLLOWED}/records?tail_offset=0"
        basin = ("s2-basin", BASIN)
        starts = (
            head("GET", path, basin, ("accept", "text/event-stream")),
            head("GET", path, basin, ("content-type", "s2s/proto")),
        )
        followers = []
        for start in starts:
            for _ in range(FOLLOWERS):
                _, follower = await loop.create_connection(
                    partial(Follower, start, waits, self._window), "127.0.0.1", self._port
                )
                followers.append(follower)
        await asyncio.gather(*(follower.opened for follower in followers))
        event = Writer(self._window, _event, "event")
        await loop.create_connection(
            partial(Unary, event, self._window.failed), "127.0.0.1", self._port
        )
        self._tasks = [
            loop.create_task(self._publish(event)),
            loop.create_task(self._catch_up()),
        ]

    async def _publish(self, event: Writer) -> None:
        clock, began, sent = SystemClock(), time.perf_counter(), 0
        while True:
            await clock.sleep(max(0.0, began + sent / EVENTS_PER_S - time.perf_counter()))
            event.due(time.perf_counter())
            sent += 1

    async def _catch_up(self) -> None:
        clock, turn = SystemClock(), 0
        waits = self._window.wait("catch_up")
        query = f"tail_offset={CATCH_UP_RECORDS}&count={CATCH_UP_RECORDS}&wait=0"
        while True:
            await clock.sleep(1.0 / CATCH_UPS_PER_S)
            stream = STREAMS[turn % len(STREAMS)]
            turn += 1
            began = time.perf_counter()
            try:
                async with asyncio.timeout(CATCH_UP_SECS_MAX):
                    size = await catch_up(self._port, stream, query)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, RuntimeError) as error:
                self._window.failed(f"a catch-up read failed: {error!r}")
            else:
                waits.append(time.perf_counter() - began)
                self._window.count("catch_up_bytes", size)

    def close(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()


async def catch_up(port: int, stream: str, query: str) -> int:
    """Read by a session that ends at the tail; how many bytes came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES_AHEAD)
    path = f"/v1/streams/{stream}/records?{query}"
    writer.write(head("GET", path, ("s2-basin", BASIN), ("content-type", "s2s/proto")))
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode(errors="replace"))
        size = 0
        while chunk := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(chunk + 2)
            size += chunk
        return size
    finally:
        writer.close()


def _event() -> bytes:
    body = b'{"records":[{"body":"t=%d;"}]}' % time.perf_counter_ns()
    return request("POST", f"/streams/{FOLLOWED}/records", body)


async def read(port: int, window: Window) -> Readers:
    """Connect all readers."""
    readers = Readers(port, window)
    await readers.open()
    return readers
