"""One request of the library's, and the way to answer it: the `Exchange` of `native`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from httpunk import HTTPunkError

from bourn.http.backlog import Waiting
from bourn.http.exchange import ClientGone, Headers, Intake, Pusher, checked_value
from bourn.http.pushing import Http2Burst, Http2Pusher, http1_pusher
from bourn.http.taking import Http1Taker, Http2Taker
from bourn.limits import BACKLOG_PIECE_BYTES_MIN, SEND_PIECE_BYTES

if TYPE_CHECKING:
    from bourn.http.native_connection import Connection

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
        "_taker",
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
        self._taker: Http1Taker | Http2Taker | None = None
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
                if self._taker is None:
                    yield chunk
                    continue
                self._taker.is_waiting = False
                yield chunk
                if self._taker is not None:
                    self._taker.is_waiting = True  # without a pause, or for more
        except GONE as error:
            raise _gone(error) from error
        self._is_read = True

    def feed(self, intake: Intake | None) -> None:
        """Hand what comes while `chunks` waits to the intake."""
        if isinstance(self._taker, Http2Taker):
            self._taker.close()
        if intake is None:
            self._taker = None
            self._connection.feed(None)
        elif self._connection.is_http1:
            self._taker = Http1Taker(intake, self._request._decoder)  # noqa: SLF001  no call says it
            self._connection.feed(self._taker)
        else:
            stream = self._request._stream  # noqa: SLF001
            self._taker = Http2Taker(intake, self._request._conn, stream)  # noqa: SLF001

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
            if len(body) < BACKLOG_PIECE_BYTES_MIN or content is None:
                await self._request.respond(status, headers=fields, body=content)
            else:
                self._sending = await self._request.send_response(
                    status, headers=fields, detect_eof=False
                )
                await self._send_large([body], is_last=True)
        except GONE as error:
            raise _gone(error) from error

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head. Whoever wants to know that the client has gone asks for it by `gone`."""
        self._is_started = True
        fields = [*headers, *self.fields]
        try:
            self._sending = await self._request.send_response(
                status, headers=fields, detect_eof=False
            )
        except GONE as error:
            raise _gone(error) from error

    def pusher(self) -> Pusher | None:
        """What pushes parts of the response, which has begun."""
        if self._connection.is_http1:
            return http1_pusher(self._connection, self._sending._codec.serialize_data)  # noqa: SLF001  no call says it
        self._pusher = Http2Pusher(self._sending)
        return self._pusher

    async def send(self, data: bytes) -> None:
        """Send a part of the body."""
        try:
            if len(data) < BACKLOG_PIECE_BYTES_MIN:
                await self._ready()
                await self._sending.send_data(data)
            else:
                await self._send_large([data])
        except GONE as error:
            raise _gone(error) from error
        # A writer that never waits would not let the loop see that the client has gone.
        await asyncio.sleep(0)  # noqa: TID251  a bare yield

    async def send_parts(self, parts: Sequence[bytes]) -> None:
        """Send parts of the body, small ones with their neighbours."""
        try:
            await self._send_large(parts)
        except GONE as error:
            raise _gone(error) from error
        await asyncio.sleep(0)  # noqa: TID251  a bare yield

    async def _ready(self) -> None:
        """Return when what was pushed is out, and the client reads."""
        if self._pusher is not None:
            await self._pusher.settle()
        if not self._connection.is_http1:
            await self._connection.is_heard.wait()

    async def _send_large(self, parts: Sequence[bytes], *, is_last: bool = False) -> None:
        """Send parts of the body that count until the client takes them.

        They go in pieces, because the library makes a copy of what it is given. On HTTP/2 that
        copy is put by as far as the client's windows go, so the streams of a connection take turns.
        """
        connection = self._connection
        with connection.backlog.held(sum(map(len, parts)), connection.cut) as waiting:
            await self._ready()
            if not connection.is_http1:
                await self._put_by(parts, waiting, is_last=is_last)
                return
            for part in parts:
                for at in range(0, len(part), SEND_PIECE_BYTES):
                    connection.backlog.took(waiting)
                    end = at + SEND_PIECE_BYTES
                    is_end = is_last and part is parts[-1] and end >= len(part)
                    await self._sending.send_data(part[at:end], end_stream=is_end)

    async def _put_by(self, parts: Sequence[bytes], waiting: Waiting, *, is_last: bool) -> None:
        """Have a stream of HTTP/2 send parts, about so much in each of its turns."""
        connection, sending = self._connection, self._sending
        if is_last:
            sending._done = True  # noqa: SLF001  as the library does
        burst = Http2Burst(connection, sending)
        room_bytes = 0
        with burst:
            for part in parts:
                burst.is_end = is_last and part is parts[-1]
                at = 0
                while at < len(part):
                    if room_bytes <= 0:
                        burst.write()
                        await connection.turn()
                        connection.backlog.took(waiting)
                        room_bytes = SEND_PIECE_BYTES
                    reached = burst.put_by(part, at, room_bytes)
                    if reached == at:
                        reached = await burst.put_by_later(part, at, room_bytes)
                    room_bytes -= reached - at
                    at = reached

    async def finish(self) -> None:
        """End the body."""
        is_duplex = self._connection.is_http1 and self.method == "POST"
        self._connection.lingers = is_duplex and not self._is_read
        try:
            if self._pusher is not None:
                await self._pusher.settle()
            await self._sending.send_data(b"", end_stream=True)
        except GONE as error:
            raise _gone(error) from error

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


def _gone(error: Exception) -> ClientGone:
    """Say that the client has gone.

    The library's error refers to itself by its traceback, and by that to all that was being sent.
    """
    error.__traceback__ = None
    return ClientGone(str(error))
