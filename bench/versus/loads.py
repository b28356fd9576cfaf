"""The workloads. Each gives its figures; which of them are compared stands beside it."""

import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import uvloop

from bench.engine.case import Figures, latency_figures
from bench.engine.target import append_message
from bench.http import benches, followers
from bench.http.asking import JSON, PROTOBUF
from bench.http.server import BASIN, Server
from bench.versus import hammer, http2
from tests.hostile.crowd import open_sessions, until

RECORD_BYTES: Final = 256
REPLAY_RECORDS: Final = 200
REPLAY_BODY: Final = 1024
SESSIONS: Final = 500
BATCH_RECORDS: Final = 100
SOME_CONNECTIONS: Final = 16
SAME_WORK: Final = (("8 KiB", 8192, 30), ("256 B", 256, 10))  # records, and MiB/s that both keep
SAME_SECS: Final = 20.0
SET_UP_AT_ONCE: Final = 32  # where every call waits for a store far away, minutes otherwise


class Compared(msgspec.Struct, frozen=True):
    """A figure of a workload that makes a row."""

    figure: str
    name: str
    more_is_better: bool = False
    goal: float = 1.0


class Load(msgspec.Struct, frozen=True):
    """One workload."""

    group: str
    name: str
    work: Callable[..., Figures]
    arguments: dict[str, Any]
    compared: tuple[Compared, ...]


def _bench(goal: float) -> tuple[Compared, ...]:
    return (
        Compared("write_mib_per_s", "write MiB/s", more_is_better=True, goal=goal),
        Compared("e2e_p50_ms", "end-to-end p50 ms"),
        Compared("e2e_p99_ms", "end-to-end p99 ms"),
        Compared("catchup_mib_per_s", "catch-up MiB/s", more_is_better=True, goal=2.0),
        Compared("peak_mb", "peak memory MB", goal=2.0),
    )


RATES: Final = (
    Compared("requests_per_s", "ops/s", more_is_better=True),
    Compared("p50_ms", "p50 ms"),
    Compared("p99_ms", "p99 ms"),
)


def loads(seconds: float, long_seconds: float) -> list[Load]:
    """All of them, in the order of the issue's letters."""
    return [
        *_full_speed(seconds),
        *_same_work(),
        *_streams(long_seconds),
        *_fan_out(seconds),
        *_replays(),
        *_unary(seconds),
        *_batches(seconds),
        *_unary_http2(seconds),
        Load(
            "sessions",
            f"{SESSIONS} append sessions on {SESSIONS} streams",
            sessions,
            {"seconds": seconds},
            RATES,
        ),
    ]


def _full_speed(seconds: float) -> list[Load]:
    acks = (Compared("ack_p50_ms", "ack p50 ms", goal=2.0), Compared("ack_p99_ms", "ack p99 ms"))
    return [
        Load(
            group,
            f"{tool}, {name}",
            benches.measure,
            {"tool": tool, "size": size, "rate": rate, "seconds": seconds},
            compared,
        )
        for group, tool, name, size, rate, compared in (
            ("bench", "s2 bench", "8 KiB, full speed", 8192, benches.FULL_SPEED, _bench(2.0)),
            ("bench", "s2 bench", "1 KiB, full speed", 1024, benches.FULL_SPEED, _bench(1.0)),
            ("bench", "s2 bench", "256 B, full speed", 256, benches.FULL_SPEED, _bench(2.0)),
            # The same shape by a client that costs less: where the other one is the limit.
            ("light", "bourn bench", "8 KiB, full speed", 8192, benches.FULL_SPEED, _bench(2.0)),
            ("light", "bourn bench", "256 B, full speed", 256, benches.FULL_SPEED, _bench(2.0)),
            ("ack", "s2 bench", "8 KiB, 1 MiB/s", 8192, "1", acks),
        )
    ]


def _same_work() -> list[Load]:
    """As much for both, at a rate that both keep: what that takes, and what it leaves in memory."""
    return [
        Load(
            "same",
            f"s2 bench, {name}, {rate} MiB/s for {SAME_SECS:.0f} s",
            benches.measure,
            {"tool": "s2 bench", "size": size, "rate": str(rate), "seconds": SAME_SECS},
            (
                Compared("ack_p50_ms", "ack p50 ms"),
                Compared("ack_p99_ms", "ack p99 ms"),
                Compared("catchup_mib_per_s", "catch-up MiB/s", more_is_better=True, goal=2.0),
                Compared("peak_mb", "peak memory MB", goal=2.0),
            ),
        )
        for name, size, rate in SAME_WORK
    ]


def _streams(seconds: float) -> list[Load]:
    twice = tuple(msgspec.structs.replace(one, goal=2.0) for one in RATES)
    return [
        Load(
            "streams",
            f"{streams:,} streams, a writer each, {RECORD_BYTES} B",
            writers,
            {"streams": streams, "seconds": seconds},
            compared,
        )
        for streams, compared in ((100, RATES), (500, RATES), (2000, twice))
    ]


def _fan_out(seconds: float) -> list[Load]:
    return [
        Load(
            "followers",
            f"{count:,} SSE followers, {followers.EVENTS_PER_S} events/s",
            followers.measure,
            {"followers": count, "seconds": seconds},
            (Compared("p50_ms", "delivery p50 ms"), Compared("p99_ms", "delivery p99 ms")),
        )
        for count in (50, 200, 1000)
    ]


def _replays() -> list[Load]:
    compared = (Compared("p99_ms", "p99 ms"), Compared("p50_ms", "p50 ms"))
    what = f"clients read {REPLAY_RECORDS} x 1 KiB at once"
    return [
        *(
            Load("replay", f"{clients:,} {what}", replay, {"clients": clients}, compared)
            for clients in (100, 500, 1000)
        ),
        Load(
            "replay", f"100 {what}, appended one by one", replay_singles, {"clients": 100}, compared
        ),
    ]


def _unary(seconds: float) -> list[Load]:
    return [
        Load(
            "unary",
            f"unary {what}, {name}, {connections} connection{'' if connections == 1 else 's'}",
            work,
            {"media": media, "connections": connections, "seconds": seconds},
            RATES[:1],
        )
        for what, work in (("append", unary_append), ("read", unary_read))
        for name, media in (("JSON", JSON), ("protobuf", PROTOBUF))
        for connections in (1, 64)
    ]


def _batches(seconds: float) -> list[Load]:
    """What applications ask for besides: batches, and where a stream ends."""
    batch = f"unary append of {BATCH_RECORDS} x 1 KiB"
    some = {"connections": SOME_CONNECTIONS, "seconds": seconds}
    return [
        *(
            Load(
                "batches",
                f"{batch}, {name}, {SOME_CONNECTIONS} connections",
                append_batches,
                {"media": media, **some},
                RATES[:1],
            )
            for name, media in (("JSON", JSON), ("protobuf", PROTOBUF))
        ),
        Load(
            "batches", f"check of the tail, {SOME_CONNECTIONS} connections", tails, some, RATES[:1]
        ),
        Load(
            "batches",
            f"unary read by timestamp, JSON, {SOME_CONNECTIONS} connections",
            read_by_time,
            some,
            RATES[:1],
        ),
    ]


def _unary_http2(seconds: float) -> list[Load]:
    return [
        Load(
            "http2",
            f"unary {what}, {name}, HTTP/2, {shape}",
            work,
            {"media": media, "connections": connections, "streams": streams, "seconds": seconds},
            RATES[:1],
        )
        for what, work in (("append", append_http2), ("read", read_http2))
        for name, media in (("JSON", JSON), ("protobuf", PROTOBUF))
        for shape, connections, streams in (
            ("64 connections", 64, 1),
            ("64 streams of one connection", 1, 64),
        )
    ]


def writers(server: Server, streams: int, seconds: float) -> Figures:
    """One writer a stream, each behind its own ack."""
    _raise_files()
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * (RECORD_BYTES - 8))
    paths = [f"/streams/w-{number}" for number in range(streams)]
    _at_once(lambda path: server.request("PUT", path, {}), paths)
    requests = [_request("POST", f"{path}/records", JSON, body) for path in paths]
    return _asked(server, requests, seconds)


def unary_append(server: Server, media: str, connections: int, seconds: float) -> Figures:
    """One record of 256 B with every request, all to one stream."""
    with server.stream() as path:
        request = _request("POST", path, media, _appended(media, 1, RECORD_BYTES - 8))
        return _asked(server, [request] * connections, seconds)


def append_http2(
    server: Server, media: str, connections: int, streams: int, seconds: float
) -> Figures:
    """As `unary_append`, over HTTP/2."""
    with server.stream() as path:
        body = _appended(media, 1, RECORD_BYTES - 8)
        return http2.h2load(server, path, media, body, connections, streams, seconds)


def append_batches(server: Server, media: str, connections: int, seconds: float) -> Figures:
    """Many records of 1 KiB with every request, all to one stream."""
    with server.stream() as path:
        request = _request("POST", path, media, _appended(media, BATCH_RECORDS, REPLAY_BODY))
        return _asked(server, [request] * connections, seconds)


def tails(server: Server, connections: int, seconds: float) -> Figures:
    """Where a stream ends."""
    with server.stream() as path:
        server.request("POST", path, {"records": [{"body": "x"}]})
        return _asked(server, [_request("GET", f"{path}/tail", JSON, b"")] * connections, seconds)


def read_by_time(server: Server, connections: int, seconds: float) -> Figures:
    """Ten records of 256 B from a time on, of 1,000 that came in ten batches."""
    with server.stream() as path:
        for _ in range(10):
            server.request("POST", path, {"records": [{"body": "x" * (RECORD_BYTES - 8)}] * 100})
        request = _request("GET", f"{path}?timestamp=1000&count=10", JSON, b"")
        return _asked(server, [request] * connections, seconds)


def unary_read(server: Server, media: str, connections: int, seconds: float) -> Figures:
    """Ten records of 256 B with every request, all of one stream."""
    with server.stream() as path:
        request = _request("GET", _ten_records(server, path), media, b"")
        return _asked(server, [request] * connections, seconds)


def read_http2(
    server: Server, media: str, connections: int, streams: int, seconds: float
) -> Figures:
    """As `unary_read`, over HTTP/2."""
    with server.stream() as path:
        target = _ten_records(server, path)
        return http2.h2load(server, target, media, b"", connections, streams, seconds)


def _ten_records(server: Server, path: str) -> str:
    """Append them; what asks for them."""
    server.request("POST", path, {"records": [{"body": "x" * (RECORD_BYTES - 8)}] * 10})
    return f"{path}?seq_num=0&count=10"


def _appended(media: str, records: int, body_bytes: int) -> bytes:
    """What appends so many records."""
    if media == PROTOBUF:
        return append_message(records, body_bytes)
    record = b'{"body":"%b"}' % (b"x" * body_bytes)
    return b'{"records":[%b]}' % b",".join([record] * records)


def replay(server: Server, clients: int) -> Figures:
    """Every client reads a stream of its own, all at once, each on a connection of its own."""
    _raise_files()
    shape = {"records": [{"body": "x" * REPLAY_BODY}] * REPLAY_RECORDS}
    paths = [f"/streams/r-{number}" for number in range(clients)]
    _at_once(lambda path: server.request("PUT", path, {}), paths)
    _at_once(lambda path: server.request("POST", f"{path}/records", shape), paths)
    return _replayed(server, paths)


def replay_singles(server: Server, clients: int) -> Figures:
    """As `replay`, of records that came one by one, by turns with those of all other streams."""
    _raise_files()
    paths = [f"/streams/o-{number}" for number in range(clients)]
    _at_once(lambda path: server.request("PUT", path, {}), paths)
    record = _appended(JSON, 1, REPLAY_BODY)
    appends = [_request("POST", f"{path}/records", JSON, record) for path in paths]
    for _ in range(REPLAY_RECORDS):
        hammer.hammer(server.port, appends, 0.0)
    return _replayed(server, paths)


def _replayed(server: Server, paths: list[str]) -> Figures:
    query = f"?seq_num=0&count={REPLAY_RECORDS}"
    requests = [_request("GET", f"{path}/records{query}", JSON, b"") for path in paths]
    return _asked(server, requests, 0.0)


def sessions(server: Server, seconds: float) -> Figures:
    """Append sessions, half of them on each version of HTTP, each behind its own ack."""
    _raise_files()
    streams = [f"t-{number}" for number in range(SESSIONS)]
    _at_once(lambda stream: server.request("PUT", f"/streams/{stream}", {}), streams)
    cpu, client = server.cpu_secs(), time.process_time()
    took, delays = uvloop.run(_sessions(server.port, streams, seconds))
    cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    return {
        "requests_per_s": len(delays) / took,
        **latency_figures(delays),
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "seconds": took,
    }


async def _sessions(port: int, streams: list[str], seconds: float) -> tuple[float, list[float]]:
    notes, opened = await open_sessions(port, BASIN, streams, SESSIONS)
    message = append_message(1, RECORD_BYTES - 8)
    began = time.perf_counter()
    for session in opened:
        session.repeat(message, began + seconds)
    await until(lambda: all(session.is_idle for session in opened) or bool(notes.errors), 120.0)
    took = time.perf_counter() - began
    await notes.close()
    if notes.errors:
        raise RuntimeError(notes.errors[0])
    return took, notes.delays


def _request(method: str, path: str, media: str, body: bytes) -> bytes:
    kind = f"content-type: {media}\r\ncontent-length: {len(body)}\r\n" if body else ""
    return (
        f"{method} /v1{path} HTTP/1.1\r\nhost: bench\r\ns2-basin: {BASIN}\r\n"
        f"accept: {media}\r\n{kind}\r\n"
    ).encode() + body


def _asked(server: Server, requests: list[bytes], seconds: float) -> Figures:
    hammer.warm()
    cpu, client = server.cpu_secs(), time.process_time()
    took, latencies = hammer.hammer(server.port, requests, seconds)
    cpu, client = server.cpu_secs() - cpu, time.process_time() - client
    return {
        "requests_per_s": len(latencies) / took,
        **latency_figures(latencies),
        "server_cpu_us_per_request": cpu / len(latencies) * 1e6,
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "client_cpu_share": client / (client + cpu or 1.0),
        "seconds": took,
    }


def _at_once(call: Callable[[str], object], names: Iterable[str]) -> None:
    """Set many things up side by side."""
    with ThreadPoolExecutor(SET_UP_AT_ONCE) as threads:
        for _ in threads.map(call, names):
            pass


def _raise_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
