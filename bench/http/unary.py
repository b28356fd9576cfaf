"""Unary appends over HTTP/1.1: every connection asks again as soon as it is answered.

The client is machine code (see bench/versus/hammer.py), so that it costs a fraction of what the
server does.
"""

from typing import Final

from bench.engine.case import Budget, Figures
from bench.engine.target import append_message
from bench.http.asking import JSON, PROTOBUF, hammered, request
from bench.http.server import HttpCase, Server

BODY_BYTES: Final = 100
RATE: Final = Budget("requests_per_s", 12_000, at_least=True)
P99: Final = Budget("p99_ms", 15, "ms")


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
    with server.stream() as path:
        return hammered(server, [request("POST", path, body, media)], connections, seconds)
