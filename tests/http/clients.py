"""One client over HTTP/1.1 by raw socket and over HTTP/2 by prior knowledge.

Tests are written against `Client` and `Call`, and so run over both.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from httpunk import HTTPunkError
from httpunk.asyncio import H2ClientProtocol
from httpunk.h2.client import H2Connection
from httpunk.h2.share import H2ResponseBody
from httpunk.http import HeaderMap

from tests.http.server import PATIENCE_SECS, LoopThread

HeadersInput = Mapping[str, str] | Iterable[tuple[str, str | bytes]]

JSON = {"content-type": "application/json"}
PROTO = {"content-type": "application/protobuf", "accept": "application/protobuf"}
SESSION = {"content-type": "s2s/proto"}
EVENTS = {"accept": "text/event-stream"}


class Broken(Exception):
    """The server ended the response or the connection before its end."""


@dataclass(frozen=True)
class Reply:
    """A whole response."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The one value of a header, or None."""
        values = self.values(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else None

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.fields if found == name]

    @property
    def named(self) -> dict[str, str]:
        """Every header but the date and the server's name, none of them twice."""
        found = dict(self.fields)
        assert len(found) == len(self.fields), self.fields
        assert found.pop("date", None), "every response is dated"
        assert found.pop("server", "bourn") == "bourn"
        return found

    @property
    def json(self) -> Any:
        assert self.header("content-type") == "application/json", self
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of an error of the standard form."""
        found = self.json
        assert set(found) == {"code", "message"}, found
        assert isinstance(found["message"], str)
        return self.status, found["code"]


class Call(Protocol):
    """A request under way: both bodies may still be open."""

    status: int
    fields: list[tuple[str, str]]

    def head(self) -> None:
        """Wait for the head of the response; until then there is no status."""
        ...

    def send(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def receive(self) -> bytes:
        """The next bytes of the response's body, b"" at its proper end; else Broken."""
        ...

    def abort(self) -> None:
        """Go away in the middle."""
        ...


class Client(Protocol):
    """A connection, opened when it is needed."""

    version: str

    def begin(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> Call:
        """Send a head, and a body if one is given; without one the body stays open."""
        ...

    def close(self) -> None: ...


def pairs(headers: HeadersInput) -> list[tuple[str, str | bytes]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def rest_of(call: Call) -> bytes:
    """Everything that the response's body still has, to its proper end."""
    parts = []
    while part := call.receive():
        parts.append(part)
    return b"".join(parts)


def reply_of(call: Call) -> Reply:
    """Wait for the whole response."""
    call.head()
    body = rest_of(call)
    return Reply(call.status, call.fields, body)


class Api:
    """Whole requests over a client; the basin goes with each unless it is None."""

    def __init__(self, client: Client, basin: str | None) -> None:
        self.client = client
        self.basin = basin

    @property
    def version(self) -> str:
        return self.client.version

    def of(self, basin: str | None) -> "Api":
        return Api(self.client, basin)

    def begin(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> Call:
        """Send a request and wait for nothing."""
        fields = pairs(headers)
        if self.basin is not None and all(name != "s2-basin" for name, _ in fields):
            fields.append(("s2-basin", self.basin))
        return self.client.begin(method, path, fields, body=body)

    def open(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> Call:
        """Send a request and wait for the head of its response."""
        call = self.begin(method, path, headers, body=body)
        call.head()
        return call

    def request(
        self, method: str, path: str, headers: HeadersInput = (), body: bytes | None = b""
    ) -> Reply:
        return reply_of(self.begin(method, path, headers, body=body))

    def get(self, path: str, headers: HeadersInput = ()) -> Reply:
        return self.request("GET", path, headers)

    def put(self, path: str, headers: HeadersInput = (), body: bytes = b"") -> Reply:
        return self.request("PUT", path, headers, body)

    def delete(self, path: str, headers: HeadersInput = ()) -> Reply:
        return self.request("DELETE", path, headers)

    def send_json(self, method: str, path: str, document: Any, headers: HeadersInput = ()) -> Reply:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.request(method, path, [*JSON.items(), *pairs(headers)], body)

    def post(self, path: str, document: Any, headers: HeadersInput = ()) -> Reply:
        return self.send_json("POST", path, document, headers)

    def append(self, stream: str, *bodies: str, **fields: Any) -> Reply:
        """Append each body as a record."""
        records = [{"body": body} for body in bodies]
        return self.post(f"/v1/streams/{stream}/records", {"records": records, **fields})


# HTTP/1.1


FICKLE = "h1-first"


class H1Client:
    """Raw bytes over a socket; a connection is kept as long as the server keeps it, if at all.

    A connection's first requests may go the quick way (`bourn.http.quick`), those behind any
    other request never do: `is_fickle` makes every request a first one.
    """

    version = "h1"

    def __init__(self, port: int, *, is_fickle: bool = False) -> None:
        self._port = port
        self._is_fickle = is_fickle
        self._idle: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        """A new connection, which `close` closes at the latest."""
        found = socket.create_connection(("127.0.0.1", self._port), PATIENCE_SECS)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(found)
        return found

    def begin(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> "H1Call":
        sock, self._idle = self._idle or self.connect(), None
        fields = pairs(headers)
        if all(name != "host" for name, _ in fields):
            fields.insert(0, ("host", "localhost"))
        if body is None:
            fields.append(("transfer-encoding", "chunked"))
        elif body or method in {"POST", "PUT", "PATCH"}:
            fields.append(("content-length", str(len(body))))
        sock.sendall(head_of(method, path, fields) + (body or b""))
        return H1Call(self, sock, is_head=method == "HEAD", is_open=body is None)

    def keep(self, sock: socket.socket) -> None:
        if self._is_fickle:
            sock.close()
        else:
            self._idle = sock

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def head_of(method: str, path: str, fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1".encode()]
    for name, value in fields:
        lines.append(name.encode() + b": " + (value.encode() if isinstance(value, str) else value))
    return b"\r\n".join([*lines, b"", b""])


class H1Call:
    """One exchange on a socket."""

    def __init__(
        self,
        client: H1Client | None,
        sock: socket.socket,
        *,
        is_head: bool = False,
        is_open: bool = False,
    ) -> None:
        self._client = client
        self._sock = sock
        self._is_head = is_head
        self._is_open = is_open
        self._buffer = b""
        self._left: int | None = 0  # of the body or chunk; None: chunked
        self._chunked = False
        self._ended = False
        self.status = 0
        self.fields: list[tuple[str, str]] = []

    def head(self) -> None:
        text = self._until(b"\r\n\r\n").decode("latin-1")
        status, *lines = text.split("\r\n")
        version, code, _ = status.split(" ", 2)
        assert version == "HTTP/1.1"
        self.status = int(code)
        self.fields = [(n.lower(), v.strip()) for n, _, v in (x.partition(":") for x in lines)]
        found = dict(self.fields)
        self._chunked = found.get("transfer-encoding") == "chunked"
        assert not (self._chunked and "content-length" in found)
        self._left = 0 if self._chunked else int(found.get("content-length", "0"))
        if self._is_head:
            self._chunked, self._left = False, 0

    def send(self, data: bytes) -> None:
        if data:
            self._sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._is_open = False
        self._sock.sendall(b"0\r\n\r\n")

    def receive(self) -> bytes:
        if self._ended:
            return b""
        if self._chunked and not self._left:
            self._left = int(self._until(b"\r\n"), 16)
            if not self._left:
                assert self._until(b"\r\n") == b""
        if not self._left:
            self._finish()
            return b""
        if not self._buffer:
            self._more()
        data, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(data)
        if self._chunked and not self._left:
            assert self._until(b"\r\n") == b""
        return data

    def _finish(self) -> None:
        self._ended = True
        assert not self._buffer, "bytes behind the response"
        must_close = self._is_open or ("connection", "close") in self.fields
        if self._client is not None and not must_close:
            self._client.keep(self._sock)

    def abort(self) -> None:
        self._sock.close()

    def at_end(self) -> bool:
        """Whether the server has closed the connection, and said nothing more."""
        assert not self._buffer
        try:
            return self._sock.recv(1) == b""
        except ConnectionError:
            return True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _more(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except ConnectionError as error:
            raise Broken(str(error)) from error
        if not data:
            raise Broken("the connection has ended")
        self._buffer += data


# HTTP/2


class H2Client:
    """httpunk's client in the thread of a loop."""

    version = "h2"

    def __init__(self, port: int, thread: LoopThread) -> None:
        self._port = port
        self._thread = thread
        self._protocol: H2ClientProtocol | None = None
        self._connection: H2Connection | None = None
        self._old: list[H2ClientProtocol] = []

    @property
    def connection(self) -> H2Connection:
        assert self._connection is not None
        return self._connection

    async def _connect(self) -> H2Connection:
        if self._connection is not None and self._connection.closed:
            await self._retire()
        if self._connection is None:
            loop = asyncio.get_running_loop()
            _, protocol = await loop.create_connection(
                lambda: H2ClientProtocol(authority="localhost", scheme="http"),
                "127.0.0.1",
                self._port,
            )
            self._protocol = protocol
            ready = await protocol.ready()
            assert isinstance(ready, H2Connection)
            self._connection = ready
        return self._connection

    def begin(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> "H2Call":
        fields = pairs(headers)
        for name, value in fields:
            if name == "host":
                assert isinstance(value, str)
                path = f"http://{value}{path}"
        fields = [(name, value) for name, value in fields if name != "host"]
        if body:
            fields.append(("content-length", str(len(body))))

        async def begun() -> H2Call:
            driver = (await self._connect())._conn
            stream = await driver._open_stream(
                method, path, HeaderMap(fields), end_stream=body == b"", is_head=method == "HEAD"
            )
            call = H2Call(self._thread, driver, stream)
            if body != b"":
                driver._send_body_background(stream, call.chunks() if body is None else body)
            return call

        return self._thread.run(begun())

    async def _retire(self) -> None:
        if self._protocol is not None:
            protocol, self._protocol, self._connection = self._protocol, None, None
            await protocol.aclose()

    def drop(self) -> None:
        """Cut the connection off without a word."""

        def cut() -> None:
            assert self._protocol is not None
            assert self._protocol._transport is not None
            self._protocol._transport.abort()

        self._thread.call(cut)

    def close(self) -> None:
        self._thread.run(self._retire())


class H2Call:
    """One stream of a connection."""

    def __init__(self, thread: LoopThread, driver: Any, stream: Any) -> None:
        self._thread = thread
        self._driver = driver
        self._stream = stream
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._body = H2ResponseBody(stream, driver)
        self._chunks = self._body.aiter_bytes()
        self.status = 0
        self.fields: list[tuple[str, str]] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._input.get()) is not None:
            yield chunk

    def head(self) -> None:
        self._thread.run(self._stream.headers_evt.wait())
        if self._stream.status is None:
            raise Broken("the stream has ended without a response")
        self.status = self._stream.status
        self.fields = [(name, value.decode()) for name, value in self._stream.headers.items()]

    def send(self, data: bytes) -> None:
        self._thread.call(lambda: self._input.put_nowait(data))

    def end(self) -> None:
        self._thread.call(lambda: self._input.put_nowait(None))

    def receive(self) -> bytes:
        async def received() -> bytes:
            async for data in self._chunks:
                if data:
                    return bytes(data)
            return b""

        try:
            return self._thread.run(received())
        except HTTPunkError as error:
            raise Broken(str(error)) from error

    def abort(self) -> None:
        async def cancelled() -> None:
            await self._body.aclose()
            self._input.put_nowait(None)

        self._thread.run(cancelled())


class Connected:
    """A client of either version, closed behind a block."""

    def __init__(self, version: str, port: int, thread: LoopThread) -> None:
        self.client: Client = (
            H2Client(port, thread)
            if version == "h2"
            else H1Client(port, is_fickle=version == FICKLE)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
