"""The way back: a connection at rest on the ordinary way may try the quick one again.

Clients keep their connections: one of them creates a stream, rests, and appends for hours. Going to
and fro costs as much as some requests do, though. So a connection that had hardly been on the quick
way before it had to leave it stays on the ordinary one for a while, twice as long each time.
"""

import asyncio
from typing import Any

from httpunk.asyncio import AutoServerProtocol

from bourn.http.quick_shared import Quick
from bourn.limits import WAY_BACK_SKIPS_MAX, WAY_BACK_WORTH


class WayBack:
    """What a client's connection has come to on the quick way."""

    def __init__(self) -> None:
        self._skips = 0  # requests that stay on the ordinary way
        self._skipped = 0

    def close(self, served: int) -> None:
        """Something came that the quick way is not for, behind so many requests that it was for."""
        is_worth_it = served >= WAY_BACK_WORTH
        self._skips = 0 if is_worth_it else min(2 * self._skips + 1, WAY_BACK_SKIPS_MAX)
        self._skipped = 0

    def is_open(self) -> bool:
        """Whether the request that has come may go back; if not, it is one of those that stay."""
        is_open = self._skipped >= self._skips
        self._skipped += not is_open
        return is_open


class Returning(AutoServerProtocol):
    """A connection of the library, which lets go of its client where nothing is begun."""

    def __init__(self, way_back: WayBack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        self.way_back = way_back
        self.is_http1 = False
        self.is_heard = asyncio.Event()  # the client takes what it is sent
        self.is_heard.set()
        self._is_new = True  # nothing has come

    def let_go(self, quick: Quick, data: bytes) -> asyncio.Transport | None:
        """The transport, where this is the first of a request that the quick way may be for.

        The library is ended then, as if nothing had come; without its transport it cannot end the
        client's connection.
        """
        server, is_new, self._is_new = self._server, self._is_new, False
        is_idle = is_new if server is None else self.is_http1 and _is_at_rest(server._conn)  # noqa: SLF001  no other way
        transport: asyncio.Transport | None = self._transport
        task = self._serve_task
        if (
            not is_idle
            or self._read_waiter is None  # it has not begun to wait
            or self._buffered
            or self._eof
            or self._graceful_requested
            or not self.is_heard.is_set()
            or transport is None
            or task is None
            or not self.way_back.is_open()
            or not quick.is_plain(data)
        ):
            return None
        self._transport = None
        task.cancel()
        return transport


def _is_at_rest(driver: Any) -> bool:
    """Whether the library waits for the first byte of a request over HTTP/1.1."""
    return not (
        driver.codec.buffered() or driver.has_watcher or driver.closed or driver.shutdown_requested
    )
