"""The port between handlers and an HTTP library: one request, and the way to answer it.

An adapter makes one `Exchange` per request. The response may begin before the request's body has
ended, on HTTP/1.1 as on HTTP/2: append sessions live on that.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Protocol

from bourn.errors import BadHeader, BournError, RequestTimeout
from bourn.limits import BODY_READ_SECS

Headers = Sequence[tuple[str, str]]


class ClientGone(BournError):
    """The client went away before it had its answer; nobody is there to be told."""

    code = "client_hangup"


class BodyTooLarge(BournError):
    """The request's body exceeds its limit; the handler says what that means for its format."""


class Pusher(Protocol):
    """Pushes parts of one response."""

    framing: str  # parts of the same framing can be shared

    def framed(self, data: bytes) -> bytes:
        """Return a part as it goes to the connection."""
        ...

    def push(self, framed: bytes) -> bool:
        """Send a part, whole; False where the client is not ready for it, and nothing was sent."""
        ...


class Intake(Protocol):
    """Takes parts of a request's body by plain calls."""

    is_ready: bool

    def take(self, chunk: bytes) -> None:
        """Take a part, whatever it is; nothing is raised."""
        ...


class Exchange(Protocol):
    """One request and its response."""

    method: str
    path: str  # raw: still percent-encoded, without the query
    query: str
    fields: Headers  # sent with the response, whatever else it has

    def header(self, name: str) -> str | None:
        """The first value of a header; BadHeader where it is not visible ASCII, space or tab."""
        ...

    def header_values(self, name: str) -> list[str]:
        """All values of a header, as they stand."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The request's body as it arrives; reading slowly slows the client. ClientGone ends it."""
        ...

    def feed(self, intake: Intake | None) -> None:
        """Hand what comes while `chunks` waits to the intake, as long as that is ready for it.

        All else comes by `chunks`, in order; where parts cannot be handed on, all of it does.
        """
        ...

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response in one piece."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of a response whose body follows by `send`; it goes out at once.

        There is no body to a HEAD: whoever answers one goes on to `finish`.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Send a part of the body; returns when there is room for more, ClientGone if nobody is."""
        ...

    async def send_parts(self, parts: Sequence[bytes]) -> None:
        """As `send` for each of them, but in as few writes as there can be."""
        ...

    def pusher(self) -> Pusher | None:
        """What sends parts of the body by a plain call, once it has begun; None where nothing can.

        `send` waits for what was pushed before it.
        """
        ...

    async def finish(self) -> None:
        """End the response's body."""
        ...

    async def gone(self) -> None:
        """Return when the client has gone; never, if the response ends first."""
        ...


async def read_body(exchange: Exchange, bytes_max: int) -> bytes:
    """Read the whole body; BodyTooLarge as soon as it exceeds its limit, or says that it will.

    A client that sends it byte by byte has RequestTimeout in the end.
    """
    declared = exchange.header_values("content-length")
    if declared and exceeds(declared[0], bytes_max):
        raise BodyTooLarge(f"the body exceeds {bytes_max} bytes")
    try:
        async with asyncio.timeout(BODY_READ_SECS):
            return await _read_chunks(exchange, bytes_max)
    except TimeoutError:
        raise RequestTimeout(f"the body took longer than {BODY_READ_SECS:.0f} seconds") from None


async def _read_chunks(exchange: Exchange, bytes_max: int) -> bytes:
    body: bytes | bytearray = b""
    async for chunk in exchange.chunks():
        if not body:
            body = chunk  # most bodies are one chunk
        elif isinstance(body, bytearray):
            body += chunk
        else:
            body = bytearray(body + chunk)  # not a list, which tiny chunks would blow up
        if len(body) > bytes_max:
            raise BodyTooLarge(f"the body exceeds {bytes_max} bytes")
    return bytes(body)


def exceeds(text: str, number: int) -> bool:
    """Whether a text of digits, however long, stands for more than the number."""
    if not (text.isascii() and text.isdigit()):
        return False
    digits = text.lstrip("0") or "0"
    return len(digits) > len(str(number)) or int(digits) > number


async def while_present(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a long answer, and drop it as soon as the client has gone."""
    loop = asyncio.get_running_loop()
    task, gone = loop.create_task(work), loop.create_task(exchange.gone())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client has gone")
        await task
    finally:
        for ended in (task, gone):
            ended.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def checked_value(name: str, value: bytes) -> str:
    """Decode a header value, trimmed; BadHeader where it holds anything but text."""
    text = value.decode("latin-1").strip(" \t")
    if not (text.isascii() and text.replace("\t", " ").isprintable()):
        raise BadHeader(f"Invalid header `{name}`: not visible ASCII")
    return text
