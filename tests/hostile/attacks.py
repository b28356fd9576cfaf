"""Attacks, each a coroutine that goes on until it is cancelled.

None of them checks what it is answered: what counts is how the server serves others meanwhile,
and what it holds. They send as fast as one thread can, or as slowly as hurts most.
"""

import asyncio
import gzip
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from random import Random
from typing import Final, NamedTuple

import zstandard

from bourn.clock import SystemClock
from bourn.limits import MIB
from tests.hostile import wires
from tests.hostile.wires import frame, head, request

CLOCK: Final = SystemClock()
LARGE: Final = 2 * MIB


_OPEN: ContextVar[list[asyncio.StreamWriter]] = ContextVar("_OPEN")  # of one of the crowd


def nobody_asks() -> None:
    """Nothing is to be done."""


class Target(NamedTuple):
    """A server with a basin, a stream to write to, and one with some MiB to read."""

    port: int
    basin: str
    stream: str
    history: str
    crowd: int = 200  # connections, where an attack is made of them
    begun: Callable[[], None] = nobody_asks  # called by each, each time

    def records(self, stream: str, query: str = "") -> str:
        return f"/v1/streams/{stream}/records{query}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        _OPEN.get().append(writer)
        return reader, writer


Attack = Callable[[Target], Awaitable[None]]


async def crowd(target: Target, one: Callable[[int], Awaitable[None]]) -> None:
    """Let each of a crowd do the same, again and again, whatever becomes of it."""

    async def again(index: int) -> None:
        writers: list[asyncio.StreamWriter] = []
        _OPEN.set(writers)
        while True:
            target.begun()
            try:
                await one(index)
            except (OSError, asyncio.IncompleteReadError):
                pass  # as it deserves
            finally:
                for writer in writers:
                    writer.close()
                writers.clear()
            await CLOCK.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for index in range(target.crowd):
            tasks.create_task(again(index))


async def drip(writer: asyncio.StreamWriter, data: bytes, pause_secs: float = 0.2) -> None:
    """Send byte by byte, until the server has had enough."""
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await CLOCK.sleep(pause_secs)


def preface(window: int = wires.WINDOW_MAX) -> bytes:
    return wires.PREFACE + frame(wires.SETTINGS, 0, 0, struct.pack(">HI", 4, window))


# Slow ones


async def slow_heads(target: Target) -> None:
    async def one(index: int) -> None:
        _, writer = await target.connect()
        starts = (head("GET", "/health", ("x-slow", "y" * 1000)), preface())
        await drip(writer, starts[index % 2])

    await crowd(target, one)


async def slow_bodies(target: Target) -> None:
    async def one(index: int) -> None:
        _, writer = await target.connect()
        basin, path = ("s2-basin", target.basin), target.records(target.stream)
        media = ("content-type", ("application/json", "s2s/proto")[index % 2])
        if index % 4 < 2:
            writer.write(head("POST", path, basin, media, ("content-length", str(MIB))))
            await drip(writer, b" " * MIB)
        else:
            block = request("POST", path, basin, media)
            writer.write(preface() + frame(wires.HEADERS, wires.END_HEADERS, 1, block))
            await drip(writer, frame(wires.DATA, 0, 1, b" " * 10_000))

    await crowd(target, one)


async def half_open_sockets(target: Target) -> None:
    async def one(index: int) -> None:
        _, writer = await target.connect()
        if index % 2:
            writer.write(head("GET", target.records(target.stream), ("s2-basin", target.basin)))
            writer.write_eof()
        await CLOCK.sleep(600)

    await crowd(target, one)


async def deaf_followers(target: Target) -> None:
    """Ask for all that there is, and read nothing of it."""

    async def one(index: int) -> None:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", target.port))
            path = target.records(target.history, "?seq_num=0")
            wanted = (("accept", "text/event-stream"), ("content-type", "s2s/proto"))[index % 2]
            basin = ("s2-basin", target.basin)
            if index % 4 < 2:
                sock.send(head("GET", path, basin, wanted))
            else:
                flags = wires.END_HEADERS | wires.END_STREAM
                block = request("GET", path, basin, wanted)
                window = (0, wires.WINDOW_MAX)[index % 8 < 4]
                sock.send(preface(window) + frame(wires.HEADERS, flags, 1, block))
            await CLOCK.sleep(600)

    await crowd(target, one)


async def deaf_streams(target: Target) -> None:
    """Open windows as wide as they go, ask for all that there is a hundred times, read nothing."""
    path, basin = target.records(target.history, "?seq_num=0"), ("s2-basin", target.basin)
    kinds = (
        ("accept", "text/event-stream"),
        ("content-type", "s2s/proto"),
        ("accept", "application/json"),
    )
    flags = wires.END_HEADERS | wires.END_STREAM
    blocks = [request("GET", path, basin, kind) for kind in kinds]
    window = struct.pack(">I", wires.WINDOW_MAX - 65_535)
    streams = preface() + frame(wires.WINDOW_UPDATE, 0, 0, window)
    streams += b"".join(
        frame(wires.HEADERS, flags, 2 * at + 1, blocks[at % len(blocks)]) for at in range(100)
    )

    async def one(index: int) -> None:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", target.port))
            whole = head("GET", path, basin) * 10
            await loop.sock_sendall(sock, whole if index % 2 else streams)
            await CLOCK.sleep(5)

    await crowd(target._replace(crowd=max(2, target.crowd // 10)), one)


# Large ones


async def header_floods(target: Target) -> None:
    many = head("GET", "/health", *((f"x-{number}", "y") for number in range(5000)))
    large = head("GET", "/health", ("x", "y" * LARGE))
    endless = b"GET /health HTTP/1.1\r\nx: " + b"y" * LARGE

    async def one(index: int) -> None:
        reader, writer = await target.connect()
        writer.write((many, large, endless)[index % 3])
        await writer.drain()
        await reader.read(1000)

    await crowd(target._replace(crowd=target.crowd // 10), one)


async def header_lists(target: Target) -> None:
    """Header lists of HTTP/2 that are too long, too many, or have no end."""
    entry = wires.fields(("x-flood", "y" * 1000))
    indexed = wires.fields(("x-flood", "y" * 4000)).replace(b"\0", b"\x40", 1) + b"\xbe" * 10_000

    async def one(index: int) -> None:
        reader, writer = await target.connect()
        writer.write(preface())
        if index % 3 == 0:
            writer.write(frame(wires.HEADERS, wires.END_HEADERS, 1, request("GET", "/") + indexed))
        else:
            writer.write(frame(wires.HEADERS, 0, 1, request("GET", "/health")))
            empty = index % 3 == 1  # a frame costs, even with nothing in it
            for _ in range(10_000 if empty else 2000):
                writer.write(frame(wires.CONTINUATION, 0, 1, b"" if empty else entry))
                await writer.drain()
        await reader.read(1000)

    await crowd(target._replace(crowd=target.crowd // 10), one)


async def _post_all(target: Target, bodies: list[tuple[bytes, tuple[str, str]]]) -> None:
    async def one(index: int) -> None:
        reader, writer = await target.connect()
        body, extra = bodies[index % len(bodies)]
        media = ("content-type", "application/json")
        path = target.records(target.stream) if index % 2 else "/v1/basins"
        length = ("content-length", str(len(body)))
        writer.write(head("POST", path, ("s2-basin", target.basin), media, extra, length) + body)
        await reader.readuntil(b"\r\n\r\n")

    await crowd(target._replace(crowd=max(2, target.crowd // 20)), one)


@cache
def bombs() -> tuple[tuple[bytes, str], ...]:
    """A few hundred KiB that become a GiB."""
    zeros = bytes(64 * MIB)
    packer = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    packed = b"".join([packer.compress(zeros) for _ in range(16)]) + packer.flush()
    return ((gzip.compress(zeros, 9) * 4, "gzip"), (packed, "zstd"))


async def compression_bombs(target: Target) -> None:
    await _post_all(target, [(body, ("content-encoding", name)) for body, name in bombs()])


@cache
def junk() -> dict[str, bytes]:
    """Texts of 2 MiB that cost the most to read."""
    keys = b",".join(b'"%d":1' % number for number in range(160_000))
    texts = {
        "numbers": b"[" + b"0," * (LARGE // 2 - 10) + b"0]",
        "empty records": b'{"records":[' + b"{}," * (LARGE // 3 - 10) + b"{}]}",
        "unknown numbers": b'{"records":[{}],"x":[' + b"1," * (LARGE // 2 - 20) + b"1]}",
        "unknown objects": b'{"records":[{}],"x":[' + b'{"a":1},' * (LARGE // 8 - 10) + b"1]}",
        "unknown arrays": b'{"records":[{}],"x":[' + b"[]," * (LARGE // 3 - 20) + b"1]}",
        "unknown keys": b'{"records":[{}],' + keys + b"}",
        "a key twice": b'{"records":[{}],' + keys + b',"1":1}',
        "empty headers": b'{"records":[{"headers":[' + b'["",""],' * (LARGE // 8 - 20) + b"1]}]}",
        "brackets": b"[" * LARGE,
        "braces": b'{"a":' * (LARGE // 5),
        "no text": b'{"records":[{"body":"' + b"x" * (LARGE - 60) + b'\xff"}]}',
    }
    assert all(len(text) <= LARGE for text in texts.values())
    return texts


async def junk_json(target: Target) -> None:
    await _post_all(target, [(text, ("x", "y")) for text in junk().values()])


# Quick ones


async def resets(target: Target) -> None:
    """Connections that are reset in the middle of something."""
    path, basin = target.records(target.history, "?seq_num=0"), ("s2-basin", target.basin)
    starts = (
        b"",
        b"GET /hea",
        head("GET", path, basin),
        head("GET", path, basin, ("accept", "text/event-stream")),
        head("POST", path, basin, ("content-type", "s2s/proto"), ("content-length", "9")),
    )
    loop = asyncio.get_running_loop()

    async def one(index: int) -> None:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await loop.sock_connect(sock, ("127.0.0.1", target.port))
            sock.send(starts[index % len(starts)])
            await CLOCK.sleep(0.001 * (index % 7))

    await crowd(target._replace(crowd=max(5, target.crowd // 10)), one)


async def rapid_resets(target: Target) -> None:
    """Streams that are begun and reset by the thousand, on a few connections."""
    path, basin = target.records(target.stream), ("s2-basin", target.basin)
    blocks = (
        request("GET", path + "?seq_num=0&wait=60", basin),
        request("GET", path, basin, ("accept", "text/event-stream")),
        request("POST", path, basin, ("content-type", "s2s/proto")),
    )

    async def one(index: int) -> None:
        reader, writer = await target.connect()
        reading = asyncio.ensure_future(reader.read())
        try:
            writer.write(preface())
            for number in range(100_000):
                if writer.is_closing():  # asyncio would write a line for each further write
                    return
                stream = 2 * number + 1
                block = blocks[number % 3]
                writer.write(
                    frame(wires.HEADERS, wires.END_HEADERS, stream, block)
                    + frame(wires.RST_STREAM, 0, stream, struct.pack(">I", 8))
                )
                if number % 50 == 0:
                    await writer.drain()
                    await CLOCK.sleep(0)
                if reading.done():
                    return
        finally:
            reading.cancel()

    await crowd(target._replace(crowd=2), one)


async def bursts(target: Target) -> None:
    """Requests by the hundred, all at once."""
    path = target.records(target.stream, "?seq_num=0&count=1&clamp=true")
    block = request("GET", path, ("s2-basin", target.basin))
    flags = wires.END_HEADERS | wires.END_STREAM
    burst = b"".join(frame(wires.HEADERS, flags, 2 * at + 1, block) for at in range(900))

    async def one(index: int) -> None:
        reader, writer = await target.connect()
        writer.write(preface() + burst)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while await reader.read(65536):
                    pass

    await crowd(target._replace(crowd=4), one)


async def control_floods(target: Target) -> None:
    """Settings and pings, each of which wants an answer, and nobody reads those."""
    flood = (frame(wires.SETTINGS, 0, 0) + frame(wires.PING, 0, 0, b"\0" * 8)) * 500

    async def one(index: int) -> None:
        _, writer = await target.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a real transport
        writer.write(preface())
        for _ in range(200):
            writer.write(flood)
            await writer.drain()

    await crowd(target._replace(crowd=2), one)


async def garbage(target: Target) -> None:
    random = Random(4)

    async def one(index: int) -> None:
        reader, writer = await target.connect()
        start = (b"", preface(), b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")[
            index % 3
        ]
        writer.write(start + random.randbytes(random.randrange(1, 20_000)))
        await writer.drain()
        async with asyncio.timeout(1):
            await reader.read(1000)

    async def patient(index: int) -> None:
        with suppress(TimeoutError):
            await one(index)

    await crowd(target._replace(crowd=max(3, target.crowd // 10)), patient)


ATTACKS: Final[dict[str, Attack]] = {
    found.__name__: found
    for found in (
        slow_heads,
        slow_bodies,
        half_open_sockets,
        deaf_followers,
        deaf_streams,
        header_floods,
        header_lists,
        compression_bombs,
        junk_json,
        resets,
        rapid_resets,
        bursts,
        control_floods,
        garbage,
    )
}
