"""The server's own HTTP: httpunk (hyper as asyncio protocols), HTTP/1.1 and HTTP/2 on one port.

Nothing but this module knows the library. Found by test: a client that resets an HTTP/1.1
connection in the middle of a response is seen at the next write, so every write yields to the
loop, and a response that waits watches for the client's end as well (`gone`).
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

from httpunk import Backend, ConnectionClosedError, HTTPunkError
from httpunk.asyncio import AutoServerProtocol
from httpunk.h1.server import H1Server
from httpunk.util import auto

from bourn.http.app import App
from bourn.http.exchange import ClientGone, Headers, checked_value
from bourn.limits import KIB, MIB

log = logging.getLogger(__name__)

STREAM_WINDOW_BYTES: Final = 4 * MIB
CONNECTION_WINDOW_BYTES: Final = 16 * MIB
# Larger frames would spare some CPU, but a client may send one together with its ack of our
# settings, and the library takes frames apart before it has seen the ack: it ends the connection.
FRAME_BYTES_MAX: Final = 16 * KIB
HEAD_BYTES_MAX: Final = 64 * KIB
HEADERS_MAX: Final = 100
CONCURRENT_STREAMS_MAX: Final = 1000
SEND_BUFFER_BYTES_MAX: Final = 2 * MIB
HEAD_READ_SECS: Final = 30.0  # also how long an idle HTTP/1.1 connection is kept
LINGER_SECS: Final = 1.0
LINGER_BYTES_MAX: Final = 8 * MIB
BACKLOG: Final = 4096
ADVICE_SHARE: Final = 0.5  # of the time to stop: so long clients may move by themselves
KEEPALIVE: Final = {  # a client that vanished without a word is noticed within two minutes
    option: value
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if (option := getattr(socket, name, None)) is not None
}


class NativeExchange:
    """An `Exchange` over httpunk's request."""

    __slots__ = (
        "_connection",
        "_is_read",
        "_is_started",
        "_request",
        "_sending",
        "fields",
        "method",
        "path",
        "query",
    )

    def __init__(self, request: Any, connection: "Connection") -> None:
        self._request = request
        self._connection = connection
        self.method: str = request.method
        target: str = request.target or "/"
        if not target.startswith("/"):  # absolute form, which proxies send
            target = "/" + target.split("://", 1)[-1].partition("/")[2]
        self.path, _, self.query = target.partition("?")
        self.fields: Headers = ()
        self._sending: Any = None
        self._is_started = False
        self._is_read = False

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        value = self._request.headers.get(name)
        if value is None:
            if name == "host":
                return getattr(self._request, "authority", None)
            return None
        return checked_value(name, value)

    def header_values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value.decode("latin-1") for value in self._request.headers.get_all(name)]

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        try:
            async for chunk in self._request.aiter_bytes():
                yield chunk
        except HTTPunkError as error:
            raise ClientGone(str(error)) from error
        self._is_read = True

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        if self._is_started:
            # The head is out: all that is left is to break the connection off.
            await self._abort()
            return
        self._is_started = True
        fields = [*headers, *self.fields, ("content-length", str(len(body)))]
        if self._connection.is_http1 and not self._is_read and not self._drain():
            self._connection.lingers = True
            fields.append(("connection", "close"))
        content = None if self.method == "HEAD" else body or None
        try:
            await self._request.respond(status, headers=fields, body=content)
        except HTTPunkError as error:
            raise ClientGone(str(error)) from error

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head. Whoever wants to know that the client has gone asks for it by `gone`."""
        self._is_started = True
        fields = [*headers, *self.fields]
        try:
            self._sending = await self._request.send_response(
                status, headers=fields, detect_eof=False
            )
        except HTTPunkError as error:
            raise ClientGone(str(error)) from error

    async def send(self, data: bytes) -> None:
        """Send a part of the body."""
        try:
            await self._sending.send_data(data)
        except HTTPunkError as error:
            raise ClientGone(str(error)) from error
        # A writer that never waits would not let the loop see that the client has gone.
        await asyncio.sleep(0)  # noqa: TID251  a bare yield

    async def finish(self) -> None:
        """End the body."""
        is_duplex = self._connection.is_http1 and self.method == "POST"
        self._connection.lingers = is_duplex and not self._is_read
        try:
            await self._sending.send_data(b"", end_stream=True)
        except HTTPunkError as error:
            raise ClientGone(str(error)) from error

    def _drain(self) -> bool:
        """Drop what has come of a body that nobody read; True if that was all of it.

        If it was not, nothing that follows on the connection could be told from the rest of it.
        """
        decoder = self._request._decoder  # noqa: SLF001  the library drains too, but behind the head
        try:
            while not decoder.is_complete:
                if decoder.decode() is None and not decoder.is_complete:
                    arrived = self._connection.read_nowait()  # type: ignore[no-untyped-call]  # untyped
                    if not arrived:
                        return False
                    decoder.feed(arrived)
        except HTTPunkError:
            return False
        return True

    async def _abort(self) -> None:
        if self._sending is not None:
            await self._sending.send_reset()

    async def gone(self) -> None:
        """Return when the client has gone."""
        watch = getattr(self._request, "reset_received", None)
        try:
            if watch is not None:
                await watch()
            elif not await self._request.peer_closed():
                await asyncio.get_running_loop().create_future()  # the response ended first
        except HTTPunkError:
            return


class Connection(AutoServerProtocol):
    """One connection, whichever version of HTTP its first bytes turn out to be."""

    def __init__(self, server: "NativeServer") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        self._owner = server
        self.is_http1 = False
        self.lingers = False
        self._discarded_bytes: int | None = None  # None until the end

    def connection_made(self, transport: Any) -> None:
        """Begin to serve."""
        found = transport.get_extra_info("socket")
        if found is not None and found.family in {socket.AF_INET, socket.AF_INET6}:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                found.setsockopt(socket.IPPROTO_TCP, option, value)
        super().connection_made(transport)  # type: ignore[no-untyped-call]  # untyped
        self._owner.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._owner.connections.discard(self)
        super().connection_lost(exc)  # type: ignore[no-untyped-call]  # untyped

    async def _make_server(self) -> Any:
        """Tell the version by the first bytes, which must come soon."""
        timer = self._loop.call_later(self._owner.head_secs, self._sniff_cancel.set)
        try:
            server = await self._owner.builder.serve_connection(self, cancel=self._sniff_cancel)
        finally:
            timer.cancel()
        self.is_http1 = isinstance(server, H1Server)
        return server

    async def handle(self, request: Any) -> None:
        """Answer one request."""
        exchange = NativeExchange(request, self)
        try:
            if len(request.headers) > HEADERS_MAX:
                await exchange.respond(431, [], b"")
            else:
                await self._owner.app.handle(exchange)
        except ClientGone:
            log.debug("a client has gone")
        except ConnectionClosedError:
            log.debug("a connection has closed")

    # The end. Closing on a client that still sends would reset the connection and might take the
    # answer with it, so such a client is told that nothing more comes, and heard out a little.

    def close(self) -> None:
        """End the connection in order."""
        transport = self._transport
        if not self.lingers or self._eof or transport is None or not transport.can_write_eof():
            super().close()  # type: ignore[no-untyped-call]  # untyped
        elif self._discarded_bytes is None and not transport.is_closing():
            self._discarded_bytes = 0
            transport.write_eof()
            self._loop.call_later(LINGER_SECS, transport.close)
            self._eof = True  # for whoever reads on our side
            self._wake_reader()  # type: ignore[no-untyped-call]  # untyped
            if self._reading_paused:
                self._reading_paused = False
                transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes in, or drop those that come too late."""
        if self._discarded_bytes is None:
            super().data_received(data)  # type: ignore[no-untyped-call]  # untyped
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > LINGER_BYTES_MAX:
            super().close()  # type: ignore[no-untyped-call]  # untyped

    def eof_received(self) -> bool:
        """The client has said its last."""
        if self._discarded_bytes is None:
            return bool(super().eof_received())  # type: ignore[no-untyped-call]  # untyped
        return False

    def cut(self) -> None:
        """End the connection at once, whatever it serves."""
        transport, task = self._transport, self._serve_task
        if transport is not None and task is not None:
            transport.abort()
            task.cancel()


class NativeServer:
    """Listens, serves connections, and lets them go in order."""

    def __init__(self, app: App, *, head_secs: float = HEAD_READ_SECS) -> None:
        self.app = app
        self.head_secs = head_secs
        self.builder = _builder(head_secs)
        self.connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Begin to serve; returns the port."""
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), host, port, ssl=tls, backlog=BACKLOG
        )
        return int(self._listener.sockets[0].getsockname()[1])

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
        for connection in list(self.connections):
            connection.cut()
        await self._until_served(None)

    async def _until_served(self, timeout_secs: float | None) -> None:
        """Ask every connection to end behind what it serves, and wait for that, or for the time."""
        connections = list(self.connections)
        await asyncio.gather(
            *(connection.graceful_shutdown() for connection in connections), return_exceptions=True
        )
        ends = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
        if ends:
            _, pending = await asyncio.wait(ends, timeout=timeout_secs)
            for end in pending:
                end.cancel()


def _builder(head_secs: float) -> auto.Builder:
    builder = auto.Builder(backend=Backend.asyncio.create())
    http2 = builder.http2()
    http2.max_concurrent_streams(CONCURRENT_STREAMS_MAX)
    http2.initial_stream_window_size(STREAM_WINDOW_BYTES)
    http2.initial_connection_window_size(CONNECTION_WINDOW_BYTES)
    http2.max_frame_size(FRAME_BYTES_MAX)
    http2.max_header_list_size(HEAD_BYTES_MAX)
    http2.max_send_buf_size(SEND_BUFFER_BYTES_MAX)
    http1 = builder.http1()
    http1.max_headers(HEADERS_MAX)
    http1.max_buf_size(HEAD_BYTES_MAX)
    http1.header_read_timeout(head_secs)
    return builder
