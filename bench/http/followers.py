"""A thousand SSE followers of one stream, 50 events a second: how long each event takes to each."""

import asyncio
import re
import resource
import time
from array import array
from typing import Any, Final

import uvloop

from bench.engine.case import Budget, Figures, latency_figures
from bench.http.asking import Asked, request
from bench.http.server import BASIN, HttpCase, Server
from bourn.clock import SystemClock

FOLLOWERS: Final = 1000
EVENTS_PER_S: Final = 50
WARM_EVENTS: Final = 25
OPEN_AT_ONCE: Final = 100
DELIVERY_SECS_MAX: Final = 10.0
P99: Final = Budget("p99_ms", 20, "ms")
_SENT: Final = re.compile(rb'"body":"([0-9]+)"')


def cases(buckets: tuple[str, ...], seconds: float) -> list[HttpCase]:
    """The same on every bucket."""
    arguments = {"followers": FOLLOWERS, "seconds": max(seconds, 2.0)}
    name = f"{FOLLOWERS:,} followers, {EVENTS_PER_S} events/s"
    return [HttpCase("followers", name, bucket, measure, arguments, (P99,)) for bucket in buckets]


def measure(server: Server, followers: int, seconds: float) -> Figures:
    """Open the followers, then append the time of sending, again and again."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with server.stream() as path:
        return uvloop.run(_measure(server, path, followers, round(seconds * EVENTS_PER_S)))


class Follower(asyncio.Protocol):
    """One follower; counts an event by the time that it carries."""

    def __init__(self, request: bytes, latencies: "array[float]") -> None:
        self._request = request
        self._latencies = latencies
        self.transport: Any = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self.transport = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take events, or the ping that says that the tail is reached."""
        now = time.perf_counter_ns()
        if not self.opened.done() and b"event: ping" in data:
            self.opened.set_result(None)
        self._latencies.extend((now - int(sent)) / 1e9 for sent in _SENT.findall(data))


async def _measure(server: Server, path: str, followers: int, events: int) -> Figures:
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    latencies = array("d")
    request = (
        f"GET /v1{path}?tail_offset=0 HTTP/1.1\r\nhost: bench\r\ns2-basin: {BASIN}\r\n"
        "accept: text/event-stream\r\n\r\n"
    ).encode()
    open_ones: list[Follower] = []
    for _ in range(0, followers, OPEN_AT_ONCE):
        made = [
            (
                await loop.create_connection(
                    lambda: Follower(request, latencies), "127.0.0.1", server.port
                )
            )[1]
            for _ in range(min(OPEN_AT_ONCE, followers))
        ]
        await asyncio.gather(*(follower.opened for follower in made))
        open_ones += made
    memory = server.memory_mb()
    await _publish(server, path, WARM_EVENTS, clock)
    await _until(lambda: len(latencies) >= WARM_EVENTS * followers, clock)
    del latencies[:]
    cpu, client, began = server.cpu_secs(), time.process_time(), time.perf_counter()
    await _publish(server, path, events, clock)
    await _until(lambda: len(latencies) >= events * followers, clock)
    took = time.perf_counter() - began
    cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    for follower in open_ones:
        follower.transport.abort()
    assert len(latencies) == events * followers, "every event came to every follower, once"
    return {
        **latency_figures(latencies),
        "deliveries_per_s": len(latencies) / took,
        "server_cpu_us_per_delivery": cpu / len(latencies) * 1e6,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "server_rss_mb": memory,
        "seconds": took,
    }


async def _publish(server: Server, path: str, events: int, clock: SystemClock) -> None:
    """Append at the pace, whether the event before has its ack or not."""
    began = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(events):
            await clock.sleep(began + number / EVENTS_PER_S - clock.monotonic())
            body = b'{"records":[{"body":"%d"}]}' % time.perf_counter_ns()
            group.create_task(_append(server, path, body))


async def _append(server: Server, path: str, body: bytes) -> None:
    asked = Asked([[request("POST", path, body)]])
    await asked.connect(server.port)
    await asked.run(None)


async def _until(is_so: Any, clock: SystemClock) -> None:
    end = clock.monotonic() + DELIVERY_SECS_MAX
    while not is_so() and clock.monotonic() < end:
        await clock.sleep(0.01)
