"""Connections over HTTP/1.1 that ask through lists of requests, each behind its own answer."""

import asyncio
import resource
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import uvloop

from bench.engine.case import Figures, latency_figures
from bench.http.server import BASIN, Server, token_header
from bench.versus import hammer

JSON: Final = "application/json"
PROTOBUF: Final = "application/protobuf"
CONNECT_AT_ONCE: Final = 100
_LENGTH: Final = b"content-length: "


def request(method: str, path: str, body: bytes = b"", media: str = JSON) -> bytes:
    """The bytes of a request, with the environment's token where there is one."""
    token = "".join(f"{name}: {value}\r\n" for name, value in token_header().items())
    accept = "" if media == JSON else f"accept: {media}\r\n"
    kind = f"content-type: {media}\r\ncontent-length: {len(body)}\r\n" if body else ""
    return (
        f"{method} /v1{path} HTTP/1.1\r\nhost: bench\r\ns2-basin: {BASIN}\r\n"
        f"{token}{accept}{kind}\r\n"
    ).encode() + body


class Asker(asyncio.Protocol):
    """One connection that goes through its requests in turn: once, or round and round."""

    def __init__(self, requests: Sequence[bytes], latencies: "array[float]") -> None:
        self._requests = requests
        self._latencies = latencies
        self._at = 0
        self._until: float | None = None
        self._asked = 0.0
        self._got = b""
        self._transport: Any = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait."""
        self._transport = transport

    def begin(self, until_s: float | None) -> None:
        """Ask: until that time, or each request once."""
        self._until = until_s
        self._ask()

    def stop(self) -> None:
        """Do not ask again."""
        self._until = 0.0

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._requests[self._at])
        self._at += 1

    def data_received(self, data: bytes) -> None:
        """Take an answer, or a part of one."""
        got = self._got + data if self._got else data
        head_end = got.find(b"\r\n\r\n")
        at = got.find(_LENGTH, 0, head_end)
        if head_end < 0 or at < 0:
            self._got = got
            return
        at += len(_LENGTH)
        if len(got) < head_end + 4 + int(got[at : got.index(b"\r\n", at)]):
            self._got = got
            return
        if got[9:10] != b"2":
            self._end(RuntimeError(got.decode(errors="replace")))
            return
        self._got = b""
        now = time.perf_counter()
        self._latencies.append(now - self._asked)
        if self._until is None:
            is_over = self._at == len(self._requests)
        else:
            is_over = now >= self._until
            self._at %= len(self._requests)
        if is_over:
            self._end(None)
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed it, which it must not."""
        self._end(exc or RuntimeError("the server closed the connection"))

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
        self._transport.close()


class Asked:
    """What some connections are told to do together, and what they waited for."""

    def __init__(self, shares: Sequence[Sequence[bytes]]) -> None:
        """Each share is one connection's; those without requests are left out."""
        self._shares = [share for share in shares if share]
        self.latencies = array("d")
        self._askers: list[Asker] = []

    async def connect(self, port: int) -> None:
        """Open the connections, some at a time."""
        loop = asyncio.get_running_loop()
        for start in range(0, len(self._shares), CONNECT_AT_ONCE):
            made = await asyncio.gather(
                *(
                    loop.create_connection(
                        lambda share=share: Asker(share, self.latencies),  # type: ignore[misc]
                        "127.0.0.1",
                        port,
                    )
                    for share in self._shares[start : start + CONNECT_AT_ONCE]
                )
            )
            self._askers += [asker for _, asker in made]

    async def run(self, until_s: float | None) -> None:
        """Let all ask, and wait for the last answer."""
        self.begin(until_s)
        await asyncio.gather(*(asker.ended for asker in self._askers))

    def begin(self, until_s: float | None) -> None:
        """Let all ask."""
        for asker in self._askers:
            asker.begin(until_s)

    async def finish(self) -> None:
        """Let none ask again, and wait for the last answer."""
        for asker in self._askers:
            asker.stop()
        await asyncio.gather(*(asker.ended for asker in self._askers))


def ask(server: Server, shares: Sequence[Sequence[bytes]], seconds: float | None) -> Figures:
    """Ask for so long, or through each share once; what that took of both sides."""
    raise_files()
    return _figures(server, lambda: uvloop.run(_ask(server.port, shares, seconds)))


def hammered(
    server: Server, requests: Sequence[bytes], connections: int, seconds: float
) -> Figures:
    """Ask round and round for so long by a client of machine code; 200 alone will do.

    With fewer requests than connections, several connections ask the same.
    """
    hammer.warm()
    enough = [*requests] * -(-connections // len(requests))
    return _figures(server, lambda: hammer.hammer(server.port, enough, seconds, connections))


def _figures(server: Server, work: Callable[[], tuple[float, Iterable[float]]]) -> Figures:
    cpu, client = server.cpu_secs(), time.process_time()
    took, found = work()
    cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    latencies = np.fromiter(found, np.float64)
    return {
        "requests": float(len(latencies)),
        "requests_per_s": len(latencies) / took,
        **latency_figures(latencies),
        "server_cpu_us_per_request": cpu / len(latencies) * 1e6,
        "client_cpu_us_per_request": client / len(latencies) * 1e6,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "server_cpus": cpu / took,
        "client_cpus": client / took,
        "seconds": took,
    }


async def _ask(
    port: int, shares: Sequence[Sequence[bytes]], seconds: float | None
) -> tuple[float, "array[float]"]:
    asked = Asked(shares)
    await asked.connect(port)
    began = time.perf_counter()
    await asked.run(None if seconds is None else began + seconds)
    return time.perf_counter() - began, asked.latencies


def raise_files() -> None:
    """Let this process open as many files as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
