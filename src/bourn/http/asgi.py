"""The second adapter of the port: the same API as an ASGI application, made for granian.

Found by test with granian: the head goes out with the first part of the body, so an empty part
follows it at once; a send waits while the client does not read; a send to a client that has gone
does nothing, so somebody must be waiting in `receive` to see it go; an answer that is not finished
when the application returns breaks the connection off, as it must; and the server tells the
application to end only when every connection has ended, so a stop has to be begun by `stop`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Final

from bourn.http.app import App
from bourn.http.draining import ADVICE_SHARE
from bourn.http.exchange import ClientGone, Headers, Intake, checked_value, exceeds
from bourn.limits import HEADERS_MAX, LINGER_BYTES_MAX, LINGER_SECS, UNARY_BODY_BYTES_MAX

log = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

SERVER: Final = (b"server", b"bourn")  # granian would name itself


class AsgiExchange:
    """An `Exchange` over one ASGI call."""

    __slots__ = (
        "_headers",
        "_is_ended",
        "_is_gone",
        "_is_http1",
        "_is_read",
        "_is_started",
        "_receive",
        "_send",
        "client",
        "fields",
        "method",
        "path",
        "query",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        # What is no UTF-8 is found where it is decoded again, and refused there.
        self.path: str = scope["raw_path"].decode("utf-8", "surrogateescape")
        self.query: str = scope["query_string"].decode("utf-8", "surrogateescape")
        self.fields: Headers = ()
        self.client: str = ":".join(map(str, scope.get("client") or ()))
        self._is_http1: bool = scope["http_version"].startswith("1")
        self._headers: dict[str, list[bytes]] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name.decode("latin-1"), []).append(value)
        self._is_read = False
        self._is_started = False
        self._is_ended = False
        self._is_gone = False

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        values = self._headers.get(name)
        return None if values is None else checked_value(name, values[0])

    def header_values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value.decode("latin-1") for value in self._headers.get(name, ())]

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while not self._is_read:
            chunk = await self._next()
            if chunk:
                yield chunk

    async def _next(self) -> bytes:
        """The next part of the body; behind its end, only ClientGone can come."""
        event = await self._receive()
        if event["type"] == "http.disconnect":
            self._is_gone = True
            raise ClientGone("the client has gone")
        self._is_read = not event.get("more_body", False)
        found: bytes = event.get("body", b"")
        return found

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        if self._is_started:
            self._is_ended = True  # the head is out: returning without an end breaks it off
            return
        fields = [*headers, ("content-length", str(len(body)))]
        if self._is_http1 and not self._is_read and not self._will_be_heard_out():
            fields.append(("connection", "close"))
        await self._start(status, fields)
        await self._part(b"" if self.method == "HEAD" else body, is_last=True)
        await self._linger()

    def _will_be_heard_out(self) -> bool:
        """Whether the body, if there is one, is on its way and small enough to be dropped."""
        if "transfer-encoding" in self._headers or "expect" in self._headers:
            return False
        lengths = self.header_values("content-length")
        return not lengths or not exceeds(lengths[0], UNARY_BODY_BYTES_MAX)

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        await self._start(status, headers)
        await self._part(b"", is_last=False)

    async def _start(self, status: int, headers: Headers) -> None:
        self._is_started = True
        fields = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        fields += [(name.encode(), value.encode("latin-1")) for name, value in self.fields]
        fields.append(SERVER)
        await self._send({"type": "http.response.start", "status": status, "headers": fields})

    async def send(self, data: bytes) -> None:
        """Send a part of the body."""
        if data:
            await self._part(data, is_last=False)
        # A writer that never waits would not let the loop see that the client has gone.
        await asyncio.sleep(0)  # noqa: TID251  a bare yield

    async def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send parts of the body."""
        for part in parts:
            await self.send(part)

    def feed(self, intake: Intake | None) -> None:
        """ASGI has no call that hands a part on without a wait."""

    def pusher(self) -> None:
        """ASGI has no call that sends without a wait."""
        return

    async def finish(self) -> None:
        """End the body."""
        await self._part(b"", is_last=True)
        if self.method == "POST":
            await self._linger()

    async def _part(self, data: bytes, *, is_last: bool) -> None:
        if self._is_gone:
            raise ClientGone("the client has gone")
        self._is_ended = is_last
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def _linger(self) -> None:
        """Hear an HTTP/1.1 client out a little that still sends: a reset might take the answer."""
        if self._is_read or not self._is_http1:
            return
        dropped = 0
        with suppress(ClientGone, TimeoutError):
            async with asyncio.timeout(LINGER_SECS):
                while not self._is_read and dropped <= LINGER_BYTES_MAX:
                    dropped += len(await self._next())

    async def gone(self) -> None:
        """Return when the client has gone."""
        with suppress(ClientGone):
            while True:
                await self._next()
        if self._is_ended:
            await asyncio.get_running_loop().create_future()  # the response ended first


class AsgiApp:
    """The application: its lifespan opens the API and closes it, in the order that `stop` keeps.

    `opened` opens the node and all that it needs.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractAsyncContextManager[App]],
        *,
        stop_secs: float,
    ) -> None:
        self._opened = opened
        self._stop_secs = stop_secs
        self._app: App | None = None
        self._stack = AsyncExitStack()
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopping: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, receive, send)
        task = asyncio.current_task()
        if self._app is None or task is None:
            await exchange.respond(503, [], b"")
            return
        self._calls.add(task)
        try:
            # HTTP/2 has no header for the host; the server makes one of what it has.
            own = scope["http_version"].startswith("2") and exchange.header_values("host")
            if len(scope["headers"]) - bool(own) > HEADERS_MAX:
                await exchange.respond(431, [], b"")
            else:
                await self._app.handle(exchange)
        except ClientGone:
            log.debug("a client has gone")
        except asyncio.CancelledError:
            log.debug("a call was cut off")  # the server would log what the end of time is
        finally:
            self._calls.discard(task)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._app = await self._stack.enter_async_context(self._opened())
        except Exception as error:  # noqa: BLE001  whatever it is, the server is told
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def stop(self, timeout_secs: float | None = None) -> None:
        """Let clients move and answers finish within the time, then close; once for all callers."""
        if self._stopping is None:
            limit = self._stop_secs if timeout_secs is None else timeout_secs
            self._stopping = asyncio.get_running_loop().create_task(self._stop(limit))
        await asyncio.shield(self._stopping)

    async def _stop(self, timeout_secs: float) -> None:
        if self._app is not None:
            await self.drain(self._app, timeout_secs)
        await self._stack.aclose()

    async def drain(self, app: App, timeout_secs: float) -> None:
        """Advise clients to move, then insist, then cut off who is left."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_secs
        app.draining.begin()
        await self._until_served(timeout_secs * ADVICE_SHARE)
        app.draining.end()
        await self._until_served(end - loop.time())
        for call in list(self._calls):
            call.cancel()
        await self._until_served(None)

    async def _until_served(self, timeout_secs: float | None) -> None:
        calls = list(self._calls)
        if calls:
            await asyncio.wait(calls, timeout=timeout_secs)
