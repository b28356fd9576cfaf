"""One request of the library's, and the way to answer it: the `Exchange` of `native`."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from httpunk import HTTPunkError

from bourn.http.exchange import ClientGone, Headers, Pusher, checked_value
from bourn.http.pushing import Http2Pusher, http1_pusher
from bourn.limits import BACKLOG_PIECE_BYTES_MIN

if TYPE_CHECKING:
    from bourn.http.native import Connection

GONE: Final = (HTTPunkError, OSError)  # a reset reaches us as it is


class NativeExchange:
    """An `Exchange` over httpunk's request."""

    __slots__ = (
        "_connection",
        "_is_read",
        "_is_started",
        "_pusher",
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
        self._pusher: Http2Pusher | None = None
        self._is_started = False
        self._is_read = False

    @property
    def client(self) -> str:
        """The address at the other end."""
        return self._connection.client

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
        except GONE as error:
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
        except GONE as error:
            raise ClientGone(str(error)) from error

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head. Whoever wants to know that the client has gone asks for it by `gone`."""
        self._is_started = True
        fields = [*headers, *self.fields]
        try:
            self._sending = await self._request.send_response(
                status, headers=fields, detect_eof=False
            )
        except GONE as error:
            raise ClientGone(str(error)) from error

    def pusher(self) -> Pusher | None:
        """What pushes parts of the response, which has begun."""
        if self._connection.is_http1:
            return http1_pusher(self._connection, self._sending._codec.serialize_data)  # noqa: SLF001  no call says it
        self._pusher = Http2Pusher(self._sending)
        return self._pusher

    async def send(self, data: bytes) -> None:
        """Send a part of the body."""
        try:
            if self._pusher is not None:
                await self._pusher.settle()
            if len(data) < BACKLOG_PIECE_BYTES_MIN:
                await self._sending.send_data(data)
            else:
                with self._connection.backlog.held(len(data), self._connection.cut):
                    await self._sending.send_data(data)
        except GONE as error:
            raise ClientGone(str(error)) from error
        # A writer that never waits would not let the loop see that the client has gone.
        await asyncio.sleep(0)  # noqa: TID251  a bare yield

    async def finish(self) -> None:
        """End the body."""
        is_duplex = self._connection.is_http1 and self.method == "POST"
        self._connection.lingers = is_duplex and not self._is_read
        try:
            if self._pusher is not None:
                await self._pusher.settle()
            await self._sending.send_data(b"", end_stream=True)
        except GONE as error:
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
        except GONE:
            return
