"""Parts of a response sent by a plain call, where that needs no wait.

A thousand followers of one stream are sent the same bytes. What they cost each is then little more
than the write itself: the bytes are made, and framed for the connection, once for all of them, and
there is neither a task to wake nor a wait. A client that does not read is not pushed anything: its
session waits for it, as any other does.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Self

from httpunk import HTTPunkError
from httpunk._httpunk import H2_FLAG_WAKE

log = logging.getLogger(__name__)

PROBE: Final = b"x"
CHUNKED: Final = "chunked"
PLAIN: Final = "plain"
FRAMED: Final = "http2"


class Http1Pusher:
    """Pushes into an HTTP/1.1 connection."""

    __slots__ = ("_connection", "framing")

    def __init__(self, connection: Any, framing: str) -> None:
        self._connection = connection
        self.framing = framing

    def framed(self, data: bytes) -> bytes:
        """Return a part as it goes to the connection."""
        return data if self.framing == PLAIN else b"%x\r\n%b\r\n" % (len(data), data)

    def push(self, framed: bytes) -> bool:
        """Send a part, whole; False where the client is not ready for it, and nothing was sent."""
        connection = self._connection
        if connection._writing_paused or connection._conn_lost:  # noqa: SLF001  no call says it
            return False
        connection._transport.write(framed)  # noqa: SLF001  as the library does
        return True


class Http2Pusher:
    """Pushes into a stream of HTTP/2; what the windows do not take at once follows by itself."""

    __slots__ = ("_rest", "_sending", "framing", "line")

    def __init__(self, sending: Any) -> None:
        self._sending = sending
        self.line = id(sending._conn)  # noqa: SLF001  which streams of one connection share
        self._rest: asyncio.Task[None] | None = None
        self.framing = FRAMED

    def framed(self, data: bytes) -> bytes:
        """Return a part as it goes to the connection."""
        return data

    def push(self, framed: bytes) -> bool:
        """Send a part, whole; False where the client is not ready for it, and nothing was sent."""
        if self._rest is not None and not self._rest.done():
            return False
        connection, stream = self._sending._conn, self._sending._stream  # noqa: SLF001  no call waits not
        if connection._transport._writing_paused:  # noqa: SLF001  windows or not, nothing is put by
            return False
        try:
            sent = connection._try_send_data(stream, framed, 0, False)  # noqa: SLF001
        except (HTTPunkError, OSError):
            return False
        if sent is not None:
            if sent == 0:
                return False
            rest = connection._send_data(stream, framed, False, sent)  # noqa: SLF001
            self._rest = asyncio.get_running_loop().create_task(rest)
            self._rest.add_done_callback(_heard)
        return True

    def flush(self) -> None:
        """Send what was pushed to any stream of the connection now, not when its task has a turn.

        Where something is being sent already, or the client does not read, that task does it.
        """
        flush(self._sending._conn)  # noqa: SLF001  no call says it

    async def settle(self) -> None:
        """Return when all that was pushed is on its way."""
        if self._rest is not None:
            await asyncio.wait([self._rest])
            self._rest = None


def flush(driver: Any) -> bool:
    """Write what was put by, as the library's own task does; False where that has to be its."""
    connection = driver._transport  # noqa: SLF001  as it does
    if driver._send_lock.locked() or connection._writing_paused or connection._conn_lost:  # noqa: SLF001
        return False
    data, _ = driver.take_pending()
    if data:
        connection._transport.write(data)  # noqa: SLF001
    data.release()
    for stream in driver.credit_written():
        stream.window_evt.set()
    return True


class Flushes:
    """Connections of HTTP/2 with answers put by: one write for each, a moment from now.

    The library has a task for it, which would have to be woken for every connection.
    """

    def __init__(self) -> None:
        self._drivers: dict[int, Any] = {}

    def add(self, driver: Any) -> None:
        """Have a connection write what it has put by."""
        if not self._drivers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._drivers[id(driver)] = driver

    def _flush(self) -> None:
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            try:
                if not flush(driver):
                    driver._after(H2_FLAG_WAKE)  # noqa: SLF001  its task, then
            except Exception:  # which is this connection's, and must not reach the next one
                log.exception("answers could not be sent at once")


class Http2Burst:
    """Sends much on a stream of HTTP/2, in few writes and without a copy of it on the way.

    Where a connection has other streams, the library puts by no more than 64 KiB of one between two
    writes, and would write that much at a time: one large segment and one tiny one. So what it has
    put by is taken out of it, and all that was taken is written at once.
    """

    __slots__ = ("_connection", "_driver", "_stream", "_taken", "is_end")

    def __init__(self, connection: Any, sending: Any) -> None:
        self._connection = connection
        self._driver = sending._conn  # noqa: SLF001  no call waits not
        self._stream = sending._stream  # noqa: SLF001
        self._taken: list[memoryview] = []
        self.is_end = False  # whether the response ends with the part that is being sent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.write()

    def put_by(self, part: bytes, at: int, room_bytes: int) -> int:
        """Put by about so many bytes from a place on, as far as the client's windows go.

        Returns the place behind them.
        """
        end = min(at + room_bytes, len(part))
        while at < end:
            at, is_held_up = self._offer(part, at, end)
            if is_held_up and not self._take():
                break
        return at

    def _offer(self, part: bytes, at: int, end: int) -> tuple[int, bool]:
        """Give the library what it takes; returns how far that is, and whether it was too much."""
        driver, stream = self._driver, self._stream
        while at < end:
            verdict = driver.send_data(stream.id, part, at, self.is_end)
            if verdict.stopped is not None:
                raise driver._stopped_error(stream, verdict.stopped)  # noqa: SLF001
            if verdict.flags:
                driver._after(verdict.flags)  # noqa: SLF001  as the library does
            if verdict.done:
                if verdict.handle is not None:
                    driver._notify_reset(verdict.handle, verdict.reader_stop)  # noqa: SLF001
                return len(part), False
            if not verdict.sent:
                return at, True
            at += verdict.sent
        return at, False

    def _take(self) -> bool:
        """Take what was put by, of all streams; False where there is nothing, or others write."""
        driver, connection = self._driver, self._connection
        if driver._send_lock.locked() or connection._writing_paused or connection._conn_lost:  # noqa: SLF001
            return False
        batch, _ = driver.take_pending()
        if not batch:
            return False
        self._taken.append(batch)
        for handle in driver.credit_written():
            handle.window_evt.set()
        return True

    async def put_by_later(self, part: bytes, at: int, room_bytes: int) -> int:
        """As `put_by`, once the client takes more."""
        self.write()
        changed = self._stream.window_evt
        changed.clear()
        reached = self.put_by(part, at, room_bytes)
        if reached == at:
            self.write()  # what others had put by meanwhile
            await changed.wait()
        return reached

    def write(self) -> None:
        """Write what was taken."""
        taken, self._taken = self._taken, []
        transport = self._connection._transport  # noqa: SLF001
        if taken and transport is not None:
            transport.writelines(taken)


def _heard(task: "asyncio.Task[None]") -> None:
    """Take note of a failure, which whoever sends next will meet by itself."""
    if not task.cancelled():
        task.exception()


def http1_pusher(connection: Any, serialize: Callable[[bytes], bytes]) -> Http1Pusher | None:
    """Find out how a response is framed; None where its length was said before."""
    framed = serialize(PROBE)
    if framed == PROBE:
        return Http1Pusher(connection, PLAIN)
    return Http1Pusher(connection, CHUNKED) if framed == b"1\r\nx\r\n" else None
