"""The server's own HTTP: httpunk (hyper as asyncio protocols), HTTP/1.1 and HTTP/2 on one port.

Nothing but this module, `native_connection`, `native_exchange`, `parting`, `pushing`,
`quick_http2`, `taking`, `tuning` and `way_back` knows the library.
Found by test: a client that resets an HTTP/1.1 connection in the middle of a response is seen at
the next write, so every write yields to the loop, and a response that waits watches for the
client's end as well (`gone`).
"""

import asyncio
import ssl
from functools import partial

from bourn.http.app import App
from bourn.http.backlog import Backlog
from bourn.http.draining import ADVICE_SHARE
from bourn.http.laned_connection import LanedConnection
from bourn.http.lanes import Lanes
from bourn.http.listening import Listener
from bourn.http.native_connection import Connection
from bourn.http.pushing import Flushes
from bourn.http.quick import QuickConnection
from bourn.http.tuning import make_builder
from bourn.http.way_back import WayBack
from bourn.limits import HEAD_READ_SECS


class NativeServer:
    """Listens, serves connections, and lets them go in order."""

    def __init__(self, app: App, *, head_secs: float = HEAD_READ_SECS) -> None:
        self.app = app
        self.head_secs = head_secs
        self.builder = make_builder(head_secs)
        self.heavy_ones = asyncio.Lock()  # connections whose input costs much, one at a time
        self.connections: set[Connection] = set()
        self._quick_ones: set[QuickConnection] = set()
        self.lanes = Lanes()
        self.fed = 0  # connections over HTTP/1.1 that serve an append session
        self.flushes = Flushes()
        self.backlog = Backlog(lambda: asyncio.get_running_loop().time())
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Begin to serve; returns the port."""
        self._listener = Listener(self.protocol, tls)
        return await self._listener.listen(host, port)

    def protocol(self, way_back: WayBack | None = None) -> asyncio.Protocol:
        """Who serves a connection, from its first byte or from rest on."""
        quick = self.app.quick
        if quick is None:
            return Connection(self)
        ordinary = partial(Connection, self)
        return LanedConnection(
            quick, self._quick_ones, self.backlog, ordinary, self.lanes, way_back
        )

    async def stop(self, timeout_secs: float) -> None:
        """Stop accepting, let clients move and answers finish within the time, then close."""
        if self._listener is not None:
            self._listener.close()
        self.app.draining.begin()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_secs
        await self._until_served(timeout_secs * ADVICE_SHARE)
        self.app.draining.end()
        await self._until_served(end - loop.time())
        left: list[QuickConnection | Connection] = [*self._quick_ones, *self.connections]
        for connection in left:
            connection.cut()
        await self._until_served(None)
        self.lanes.close()

    async def _until_served(self, timeout_secs: float | None) -> None:
        """Have every connection end behind what it serves; wait for that, or for the time."""
        served: list[QuickConnection | Connection] = [*self._quick_ones, *self.connections]
        ends = [asyncio.ensure_future(connection.leave()) for connection in served]
        if ends:
            _, pending = await asyncio.wait(ends, timeout=timeout_secs)
            for end in pending:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
