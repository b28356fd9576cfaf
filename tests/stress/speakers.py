"""Clients of both versions on asyncio, for many at once: whole answers, and bodies as they come."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from httpunk import Request
from httpunk.asyncio import H2ClientProtocol

from bourn.clock import SystemClock

CLOCK: Final = SystemClock()
PATIENCE_SECS: Final = 60.0

Fields = tuple[tuple[str, str], ...]


class Ask(NamedTuple):
    """A request."""

    method: str
    path: str
    fields: Fields = ()
    body: bytes = b""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    fields: dict[str, str]
    body: bytes


class Incoming(Protocol):
    """An answer whose body is still coming."""

    status: int

    def parts(self) -> AsyncIterator[bytes]:
        """The body."""
        ...

    async def send(self, data: bytes) -> None:
        """Say more of the request's body."""
        ...

    async def end(self) -> None:
        """Say no more."""
        ...

    async def reset(self) -> None:
        """Go away in the middle."""
        ...


def as_http1(ask: Ask, *more: tuple[str, str]) -> bytes:
    """The bytes of a request."""
    fields = [("host", "here"), *ask.fields, *more]
    if ask.body or ask.method in {"POST", "PUT"}:
        fields.append(("content-length", str(len(ask.body))))
    lines = [f"{ask.method} {ask.path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields), "", ""]
    return "\r\n".join(lines).encode() + ask.body


class Http1:
    """One connection of HTTP/1.1, whose requests may be said in any way."""

    version = "h1"

    def __init__(self, port: int, *, rcvbuf: int | None = None) -> None:
        self._port = port
        self._rcvbuf = rcvbuf
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection, opened if need be."""
        if self._reader is None or self._writer is None:
            sock = socket.socket()
            sock.setblocking(False)
            if self._rcvbuf is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._rcvbuf)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
            self._reader, self._writer = await asyncio.open_connection(sock=sock)
        return self._reader, self._writer

    async def say(self, data: bytes, piece: int = 0) -> None:
        """Send bytes, in pieces of so many where that is asked for."""
        _, writer = await self.connect()
        for at in range(0, len(data), piece or max(len(data), 1)):
            writer.write(data[at : at + piece] if piece else data)
            if piece:
                await CLOCK.sleep(0)
        await writer.drain()

    async def ask(self, ask: Ask) -> Reply:
        """Send a request and return its answer."""
        await self.say(as_http1(ask))
        return await self.answer()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The head of the next answer."""
        reader, _ = await self.connect()
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self) -> Reply:
        """The next answer."""
        async with asyncio.timeout(PATIENCE_SECS):
            status, fields = await self.head()
            body = b""
            if status != 204 and "content-length" in fields:
                reader, _ = await self.connect()
                body = await reader.readexactly(int(fields["content-length"]))
            if fields.get("connection") == "close":
                await self.close()
            return Reply(status, fields, body)

    async def open(self, ask: Ask, *, is_whole: bool = True) -> "Http1Incoming":
        """Begin a request that is answered by and by."""
        await self.say(as_http1(ask) if is_whole else _chunked_head(ask))
        async with asyncio.timeout(PATIENCE_SECS):
            status, fields = await self.head()
        reader, writer = await self.connect()
        return Http1Incoming(status, fields, reader, writer)

    async def close(self) -> None:
        """Close; what follows is said on a new connection."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def reset(self) -> None:
        """Have the connection reset."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            _reset(writer)


def _chunked_head(ask: Ask) -> bytes:
    fields = (("host", "here"), *ask.fields, ("transfer-encoding", "chunked"))
    lines = [f"{ask.method} {ask.path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields), "", ""]
    return "\r\n".join(lines).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Http1Incoming:
    """An answer of HTTP/1.1 by and by."""

    def __init__(
        self,
        status: int,
        fields: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.status = status
        self._fields = fields
        self._reader = reader
        self._writer = writer

    async def parts(self) -> AsyncIterator[bytes]:
        if "content-length" in self._fields:
            yield await self._reader.readexactly(int(self._fields["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")

    async def send(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def reset(self) -> None:
        _reset(self._writer)


class Http2:
    """One connection of HTTP/2, by httpunk's client."""

    version = "h2"

    def __init__(self, port: int) -> None:
        self._port = port
        self._protocol: H2ClientProtocol | None = None
        self._connection: Any = None

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            loop = asyncio.get_running_loop()
            _, self._protocol = await loop.create_connection(
                lambda: H2ClientProtocol(authority="here", scheme="http"), "127.0.0.1", self._port
            )
            self._connection = await self._protocol.ready()
        return self._connection

    async def ask(self, ask: Ask) -> Reply:
        """Send a request and return its answer."""
        async with asyncio.timeout(PATIENCE_SECS):
            connection = await self._connected()
            wanted = Request(ask.method, ask.path, headers=ask.fields, body=ask.body or None)
            answer = await connection.send_request(wanted)
            body = bytes(await answer.read())
            fields = {name: value.decode() for name, value in answer.headers.items()}
            return Reply(answer.status, fields, body)

    async def open(self, ask: Ask, *, is_whole: bool = True) -> "Http2Incoming":
        """Begin a request that is answered by and by."""
        said: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def chunks() -> AsyncIterator[bytes]:
            while (chunk := await said.get()) is not None:
                yield chunk

        async with asyncio.timeout(PATIENCE_SECS):
            connection = await self._connected()
            body = None if is_whole else chunks()
            wanted = Request(ask.method, ask.path, headers=ask.fields, body=body)
            answer = await connection.send_request(wanted)
        return Http2Incoming(answer, said)

    async def close(self) -> None:
        """Close in order."""
        protocol, self._protocol, self._connection = self._protocol, None, None
        if protocol is not None:
            await protocol.aclose()

    async def reset(self) -> None:
        """Cut the connection off."""
        if self._protocol is not None and self._protocol._transport is not None:
            self._protocol._transport.abort()
        await self.close()


class Http2Incoming:
    """An answer of HTTP/2 by and by."""

    def __init__(self, answer: Any, said: "asyncio.Queue[bytes | None]") -> None:
        self.status: int = answer.status
        self._answer = answer
        self._said = said

    async def parts(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_bytes():
            yield bytes(part)

    async def send(self, data: bytes) -> None:
        self._said.put_nowait(data)

    async def end(self) -> None:
        self._said.put_nowait(None)

    async def reset(self) -> None:
        self._said.put_nowait(None)
        await self._answer.aclose()
