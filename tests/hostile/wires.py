"""HTTP/1.1 and HTTP/2 by hand on asyncio: cheap enough for thousands, and able to misbehave.

A `Body` takes the bytes of one response. Response headers of HTTP/2 are not decoded: that the
first of them is `:status 200` shows in one byte.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8),
    9,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW_MAX: Final = 2**31 - 1
STATUS_200: Final = 0x88  # in the static table of HPACK

Body = Callable[[bytes], None]
Failed = Callable[[str], None]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    )


def fields(*pairs: tuple[str, str]) -> bytes:
    """A block of literal headers; names and values are short."""
    return b"".join(
        b"\0" + _literal(name.encode()) + _literal(value.encode()) for name, value in pairs
    )


def _literal(text: bytes) -> bytes:
    """A string with its length, of seven bits or more, as HPACK has it."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, size = len(text) - 127, bytearray([127])
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    size.append(rest)
    return bytes(size) + text


def request(method: str, path: str, *pairs: tuple[str, str]) -> bytes:
    """The block of a request's headers."""
    return fields(
        (":method", method), (":scheme", "http"), (":path", path), (":authority", "x"), *pairs
    )


def head(method: str, path: str, *pairs: tuple[str, str]) -> bytes:
    """The head of an HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *(f"{n}: {v}" for n, v in pairs), "", ""]
    return "\r\n".join(lines).encode()


class H1Wire(asyncio.Protocol):
    """One connection with one response: chunked, until the end of the test."""

    def __init__(self, body: Body, failed: Failed) -> None:
        self._body = body
        self._failed = failed
        self._buffer = b""
        self._has_head = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        if not self._has_head:
            start, mark, rest = data.partition(b"\r\n\r\n")
            if not mark:
                self._buffer = data
                return
            if not start.startswith(b"HTTP/1.1 200"):
                self._failed(start[:40].decode("latin-1"))
            self._has_head, data = True, rest
        while data:
            size, mark, rest = data.partition(b"\r\n")
            length = int(size, 16) if mark else 0
            if not mark or len(rest) < length + 2:
                break
            self._body(rest[:length])
            data = rest[length + 2 :]
        self._buffer = data

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(f"the connection was lost: {exc}")

    def send(self, data: bytes) -> None:
        """Send a chunk of the request's body."""
        assert self.transport is not None
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class H2Wire(asyncio.Protocol):
    """One connection with many streams, and windows that are never used up."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._buffer = b""
        self._bodies: dict[int, Body] = {}
        self._next = 1
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HI", 4, WINDOW_MAX)
        window = struct.pack(">I", WINDOW_MAX - 65_535)
        transport.write(
            PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, window)
        )

    def open(self, block: bytes, body: Body, *, is_whole: bool) -> int:
        """Begin a request; returns its stream."""
        stream, self._next = self._next, self._next + 2
        self._bodies[stream] = body
        assert self.transport is not None
        flags = END_HEADERS | (END_STREAM if is_whole else 0)
        self.transport.write(frame(HEADERS, flags, stream, block))
        return stream

    def send(self, stream: int, data: bytes) -> None:
        """Send a part of a request's body."""
        assert self.transport is not None
        self.transport.write(frame(DATA, 0, stream, data))

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        at = 0
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._take(kind, flags, stream, data[at + 9 : at + 9 + length])
            at += 9 + length
        self._buffer = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self.transport is not None
        if kind == DATA and payload:
            self._bodies[stream](payload)
        elif kind == HEADERS and payload[0] != STATUS_200:
            self._failed("a stream was not answered by 200")
        elif kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind in {RST_STREAM, GOAWAY} or (kind == DATA and flags & END_STREAM):
            self._failed(f"the server ended stream {stream} by a frame of kind {kind}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(f"the connection was lost: {exc}")
