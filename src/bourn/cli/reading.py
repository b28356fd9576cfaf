"""`bourn read` and `bourn tail`: read sessions as server-sent events, to standard output.

A session that breaks off is taken up again where it ended, so a follower outlives a restart of
the server. Text output asks for base64, so that bodies come out byte for byte; command records
are no text and are noted on standard error.
"""

import argparse
import base64
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import orjson

from bourn.cli import render
from bourn.cli.address import parse_stream
from bourn.cli.client import Client, ConnectionLost, Unwritten, basin_client
from bourn.cli.failures import DONE, Failed, Refused
from bourn.cli.keys import key_headers
from bourn.cli.resources import stream_path
from bourn.clock import SystemClock

RETRIES_MAX: Final = 8
RETRY_SECS: Final = 0.2
RETRY_SECS_MAX: Final = 5.0
BOUNDS: Final = frozenset({"count", "bytes", "until"})
STARTS: Final = frozenset({"seq_num", "timestamp", "tail_offset", "clamp"})
U32_MAX: Final = 2**32 - 1
_NS_PER_MS: Final = 1_000_000
# Errors inside a session that a new one may not meet.
PASSING: Final = frozenset({"unavailable", "server_draining", "storage", "other", "hot_server"})


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    id: str
    data: bytes


class EventParser:
    """Cuts a response into events, fed with its chunks as they come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next chunk and return the events that it completes."""
        # A large event comes in many chunks: they are joined once, when its end may be there.
        if b"\n" not in chunk:
            self._parts.append(chunk)
            return []
        whole = b"".join((*self._parts, chunk))
        *events, rest = whole.split(b"\n\n")
        self._parts = [rest] if rest else []
        return [_event(text) for text in events]


def _event(text: bytes) -> Event:
    fields = {"event": b"", "id": b"", "data": b""}
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name.decode("latin-1")] = value.removeprefix(b" ")
    return Event(fields["event"].decode(), fields["id"].decode(), fields["data"])


def read(arguments: argparse.Namespace) -> int:
    """`bourn read`."""
    query: dict[str, str] = {}
    if arguments.timestamp is not None:
        query["timestamp"] = str(arguments.timestamp)
    elif arguments.tail_offset is not None:
        query["tail_offset"] = str(arguments.tail_offset)
    elif arguments.ago is not None:
        now_ms = SystemClock().now_ms()
        query["timestamp"] = str(max(0, now_ms - arguments.ago // _NS_PER_MS))
        query["clamp"] = "true"
    else:
        query["seq_num"] = str(arguments.seq_num or 0)
    for name in ("count", "bytes", "until"):
        value = getattr(arguments, name)
        if value is not None:
            query[name] = str(value)
    try:
        return _session(query, arguments)
    except Unwritten as error:
        # At the tail there is nothing to read yet, which is no mistake; behind it is one.
        if (arguments.seq_num or 0) > error.tail_seq_num:
            raise
        return DONE


def tail(arguments: argparse.Namespace) -> int:
    """`bourn tail`."""
    return _session({"tail_offset": str(arguments.lines)}, arguments)


def _session(query: dict[str, str], arguments: argparse.Namespace) -> int:
    address = parse_stream(arguments.stream)
    fmt = "json" if arguments.json else arguments.format
    if not arguments.follow:
        query["wait"] = "0"
    elif query.keys() & BOUNDS:
        query["wait"] = str(U32_MAX)  # a bound without one would end the session at the tail
    headers = {"s2-format": "raw" if fmt == "json" else "base64"} | key_headers(arguments)
    path = f"{stream_path(address.stream)}/records"
    with basin_client(arguments.endpoint, address.basin) as client:
        for batch in _batches(client, path, query, headers):
            _show(batch["records"], fmt)
    return DONE


def _batches(
    client: Client, path: str, query: dict[str, str], headers: dict[str, str]
) -> Iterator[Any]:
    """Yield batches to the session's clean end, over as many connections as it takes."""
    failures = 0
    is_known = False  # whether a server has ever said something
    while True:
        try:
            for event in _events(client, f"{path}?{urlencode(query)}", headers):
                failures, is_known = 0, True
                if event.kind == "batch":
                    yield orjson.loads(event.data)
                    headers["last-event-id"] = event.id
                elif event.kind == "ping":
                    query = _from_tail(query, event.data)
                elif event.data == b"[DONE]":
                    return
        except ConnectionLost:
            failures += 1
            if not is_known or failures > RETRIES_MAX:
                raise
        pause = min(RETRY_SECS * 2**failures, RETRY_SECS_MAX)
        render.note(f"the connection is lost: trying again in {pause:.1f} s")
        client.pause(pause)


def _events(client: Client, path: str, headers: dict[str, str]) -> Iterator[Event]:
    """Yield the events of one connection; an end that nobody announced is a loss of it."""
    parser = EventParser()
    for chunk in client.events(path, headers):
        for event in parser.feed(chunk):
            if event.kind == "error":
                raise _error(event.data)
            yield event
    raise ConnectionLost("the server broke the session off: try again")


def _from_tail(query: dict[str, str], ping: bytes) -> dict[str, str]:
    """Start at the tail that a ping names: nothing before it is missing, or the id says more."""
    kept = {name: value for name, value in query.items() if name not in STARTS}
    return {**kept, "seq_num": str(orjson.loads(ping)["tail"]["seq_num"])}


def _error(data: bytes) -> Failed | Refused:
    problem = orjson.loads(data)
    text = str(problem.get("message", "the session failed"))
    return ConnectionLost(text) if problem.get("code") in PASSING else Refused(text)


def _show(records: list[Any], fmt: str) -> None:
    if fmt != "text":
        render.octets(b"".join(orjson.dumps(record) + b"\n" for record in records))
        return
    bodies: list[bytes] = []
    for record in records:
        headers = record.get("headers", ())
        body = base64.b64decode(record.get("body", ""))
        if len(headers) == 1 and not headers[0][0]:
            command = base64.b64decode(headers[0][1]).decode(errors="replace")
            value = str(int.from_bytes(body, "big")) if command == "trim" else repr(body.decode())
            render.note(f"{record['seq_num']}: {command} {value}")
        else:
            bodies.append(body)
    if bodies:
        render.octets(b"\n".join(bodies) + b"\n")
