"""Parts of a response sent by a plain call, where that needs no wait.

A thousand followers of one stream are sent the same bytes. What they cost each is then little more
than the write itself: the bytes are made, and framed for the connection, once for all of them, and
there is neither a task to wake nor a wait. A client that does not read is not pushed anything: its
session waits for it, as any other does.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from httpunk import HTTPunkError

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

    __slots__ = ("_rest", "_sending", "framing")

    def __init__(self, sending: Any) -> None:
        self._sending = sending
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

    async def settle(self) -> None:
        """Return when all that was pushed is on its way."""
        if self._rest is not None:
            await asyncio.wait([self._rest])
            self._rest = None


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
