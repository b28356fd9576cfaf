"""Unary appends over HTTP/1.1: every connection asks again as soon as it is answered.

The client is a protocol of its own that looks for no more than the end of each answer, so that it
costs a fraction of what the server does.
"""

import asyncio
import re
import time
from array import array
from typing import Any, Final

import uvloop

from bench.engine.case import Budget, Figures, latency_figures
from bench.engine.target import append_message
from bench.http.server import BASIN, HttpCase, Server, token_header

JSON: Final = "application/json"
PROTOBUF: Final = "application/protobuf"
BODY_BYTES: Final = 100
RATE: Final = Budget("requests_per_s", 12_000, at_least=True)
P99: Final = Budget("p99_ms", 15, "ms")
_LENGTH: Final = re.compile(rb"content-length: ([0-9]+)", re.IGNORECASE)


def cases(buckets: tuple[str, ...], seconds: float) -> list[HttpCase]:
    """JSON and protobuf, one connection and many, all on one stream."""
    return [
        HttpCase(
            "unary",
            f"{name}, {connections} {'connection' if connections == 1 else 'connections'}",
            bucket,
            measure,
            {"media": media, "connections": connections, "seconds": seconds},
            (RATE, P99) if media == JSON and connections > 1 else (),
        )
        for bucket in buckets
        for name, media in (("JSON", JSON), ("protobuf", PROTOBUF))
        for connections in (1, 64)
    ]


def measure(server: Server, media: str, connections: int, seconds: float) -> Figures:
    """Append one record of 100 bytes with every request."""
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * BODY_BYTES)
    if media == PROTOBUF:
        body = append_message(1, BODY_BYTES)
    token = "".join(f"{name}: {value}\r\n" for name, value in token_header().items())
    with server.stream() as path:
        request = (
            f"POST /v1{path} HTTP/1.1\r\nhost: bench\r\ns2-basin: {BASIN}\r\n{token}"
            f"content-type: {media}\r\naccept: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body
        cpu, client = server.cpu_secs(), time.process_time()
        took, latencies = uvloop.run(_ask(server.port, request, connections, seconds))
        cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    return {
        "requests_per_s": len(latencies) / took,
        **latency_figures(latencies),
        "server_cpu_us_per_request": cpu / len(latencies) * 1e6,
        "client_cpu_us_per_request": client / len(latencies) * 1e6,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "seconds": took,
    }


class Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, until: float, latencies: "array[float]") -> None:
        self._request = request
        self._until = until
        self._latencies = latencies
        self._asked = 0.0
        self._got = b""
        self._transport: Any = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Take an answer, or a part of one."""
        got = self._got + data if self._got else data
        head_end = got.find(b"\r\n\r\n")
        length = _LENGTH.search(got, 0, head_end) if head_end >= 0 else None
        if length is None or len(got) < head_end + 4 + int(length[1]):
            self._got = got
            return
        if not got.startswith(b"HTTP/1.1 200"):
            self._end(RuntimeError(got.decode(errors="replace")))
            return
        self._got = b""
        now = time.perf_counter()
        self._latencies.append(now - self._asked)
        if now < self._until:
            self._ask()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed it, which it must not."""
        self._end(exc or RuntimeError("the server closed the connection"))

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._request)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._transport.close()


async def _ask(
    port: int, request: bytes, connections: int, seconds: float
) -> tuple[float, "array[float]"]:
    latencies = array("d")
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    askers = []
    for _ in range(connections):
        _, asker = await loop.create_connection(
            lambda: Asker(request, began + seconds, latencies), "127.0.0.1", port
        )
        askers.append(asker.ended)
    await asyncio.gather(*askers)
    return time.perf_counter() - began, latencies
