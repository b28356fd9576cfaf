"""`bourn append`, `bourn trim`, `bourn fence`: batches of records by unary JSON appends.

What is read is sent as it comes: a line that is alone goes alone, a flood goes in full batches.
Bytes travel as base64, so that they arrive as they were.

    text         a line is a record's body, without its line end
    json         {"body"?: text, "headers"?: [[name, value]…], "timestamp"?: ms} a line
    json-base64  the same, with bodies, names and values in base64
"""

import argparse
import base64
import binascii
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from bourn.cli import render
from bourn.cli.address import StreamAddress, parse_stream
from bourn.cli.client import Client, Unreachable, basin_client
from bourn.cli.failures import DONE, CommandError, Failed, Misused
from bourn.cli.keys import key_headers
from bourn.cli.resources import stream_path
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    FENCING_TOKEN_BYTES_MAX,
    KIB,
    MIB,
    RECORD_METERED_BYTES_MAX,
    TRIM_BODY_BYTES,
    U64_MAX,
    UNARY_BODY_BYTES_MAX,
)

FORMATS: Final = ("text", "json", "json-base64")
READ_BYTES: Final = MIB
LINE_BYTES_MAX: Final = 4 * MIB  # of JSON, which is longer than what it says
RECORD_OVERHEAD_BYTES: Final = 8
HEADER_OVERHEAD_BYTES: Final = 2
ENVELOPE_BYTES: Final = KIB  # of the request's body around its records
MEMBERS: Final = frozenset({"body", "headers", "timestamp", "seq_num"})


class Encoded(NamedTuple):
    """A record as the request's JSON, and what it weighs."""

    json: bytes
    metered_bytes: int


class Batch:
    """Records for one append, as many as it may hold."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.metered_bytes = 0
        self._json_bytes = ENVELOPE_BYTES

    def add(self, record: Encoded) -> bool:
        """Take a record in; False where it must go into the next batch."""
        metered = self.metered_bytes + record.metered_bytes
        size = self._json_bytes + len(record.json) + 1
        full = metered > BATCH_METERED_BYTES_MAX or size > UNARY_BODY_BYTES_MAX
        if self.records and (full or len(self.records) == BATCH_RECORDS_MAX):
            return False
        self.records.append(record.json)
        self.metered_bytes, self._json_bytes = metered, size
        return True


class Appender:
    """Appends to one stream under its conditions, and keeps count."""

    def __init__(self, client: Client, stream: str, arguments: argparse.Namespace) -> None:
        self._client = client
        self._path = f"{stream_path(stream)}/records"
        self._headers = {"s2-format": "base64"} | key_headers(arguments)
        self._fencing_token: str | None = arguments.fencing_token
        self._next: int | None = arguments.match_seq_num
        self.records = 0
        self.bytes = 0
        self.start: int | None = None
        self.end = 0

    def append(self, batch: Batch) -> Any:
        """Append a batch; returns the ack."""
        conditions: dict[str, Any] = {}
        if self._next is not None:
            conditions["match_seq_num"] = self._next
        if self._fencing_token is not None:
            conditions["fencing_token"] = self._fencing_token
        tail = orjson.dumps(conditions)[1:] if conditions else b"}"
        body = b'{"records":[' + b",".join(batch.records) + (b"]," if conditions else b"]") + tail
        try:
            ack = self._client.call("POST", self._path, body, self._headers).body
            start, end = ack["start"]["seq_num"], ack["end"]["seq_num"]
        except CommandError as error:
            error.args = (f"{error}{self._so_far(error)}",)
            raise
        self.start = start if self.start is None else self.start
        self.end = end
        if self._next is not None:
            self._next = end
        self.records += len(batch.records)
        self.bytes += batch.metered_bytes
        return ack

    def _so_far(self, error: CommandError) -> str:
        done = f"{self.records} records up to {self.end - 1} are appended" if self.records else ""
        if isinstance(error, Failed) and not isinstance(error, Unreachable):
            doubt = "whether the next ones are, `bourn tail` shows"
            return f" ({done}; {doubt})" if done else f" ({doubt})"
        return f" ({done}, no more)" if done else ""


def append(arguments: argparse.Namespace) -> int:
    """`bourn append`."""
    address = parse_stream(arguments.stream)
    with ExitStack() as stack:
        source = _source(arguments.file, stack)
        client = stack.enter_context(basin_client(arguments.endpoint, address.basin))
        appender = Appender(client, address.stream, arguments)
        try:
            for batch in _batches(source, arguments.format):
                ack = appender.append(batch)
                if arguments.json:
                    render.json_line(ack)
                render.progress(f"{appender.records} records, {appender.bytes / MIB:.1f} MiB")
        finally:
            render.progress("")
    if appender.start is None:
        render.note("nothing to append: the input is empty")
    else:
        render.note(
            f"appended {appender.records} records to {address}, "
            f"{appender.start} to {appender.end - 1}"
        )
    return DONE


def trim(arguments: argparse.Namespace) -> int:
    """`bourn trim`."""
    address = parse_stream(arguments.stream)
    point = arguments.seq_num
    body = point.to_bytes(TRIM_BODY_BYTES, "big")
    said = f"records of {address} before {point} are trimmed"
    return _command(address, b"trim", body, said, arguments)


def fence(arguments: argparse.Namespace) -> int:
    """`bourn fence`."""
    address = parse_stream(arguments.stream)
    token = arguments.new_token.encode()
    if len(token) > FENCING_TOKEN_BYTES_MAX:
        raise Misused(f"a fencing token has at most {FENCING_TOKEN_BYTES_MAX} bytes: shorten it")
    said = f"{address} is fenced by {arguments.new_token!r}" if token else f"{address} is unfenced"
    return _command(address, b"fence", token, said, arguments)


def _command(
    address: StreamAddress, name: bytes, body: bytes, said: str, arguments: argparse.Namespace
) -> int:
    batch = Batch()
    batch.add(_encoded(body, [(b"", name)], None))
    with basin_client(arguments.endpoint, address.basin) as client:
        ack = Appender(client, address.stream, arguments).append(batch)
    if arguments.json:
        render.json_line(ack)
    else:
        render.line(render.printable(said))
    return DONE


# Input


def _source(name: str, stack: ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(name).open("rb"))
    except OSError as error:
        raise Misused(f"cannot read {name}: {error.strerror}: name another file") from None


def _batches(source: BinaryIO, fmt: str) -> Iterator[Batch]:
    """Yield what can be read at once, cut into as few batches as hold it."""
    encode = _ENCODERS[fmt]
    number = 0
    for lines in _lines(source):
        batch = Batch()
        for line in lines:
            number += 1
            try:
                record = encode(line)
            except ValueError as error:
                raise Misused(f"line {number}: {error}") from None
            if not batch.add(record):
                yield batch
                batch = Batch()
                batch.add(record)
        yield batch


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines that each read completes; the last one may lack its line end."""
    parts: list[bytes] = []
    size = 0
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    while chunk := read(READ_BYTES):
        whole, end, rest = chunk.rpartition(b"\n")
        if end:
            lines = b"".join((*parts, whole)).split(b"\n")
            parts, size = ([rest] if rest else []), len(rest)
            yield lines
        else:
            parts.append(rest)
            size += len(rest)
        if size > LINE_BYTES_MAX:
            raise Misused("a line is longer than any record: split it")
    if parts:
        yield [b"".join(parts)]


def _text_record(line: bytes) -> Encoded:
    return _encoded(line, (), None)


def _json_record(line: bytes) -> Encoded:
    return _from_json(line, str.encode)


def _base64_record(line: bytes) -> Encoded:
    return _from_json(line, _from_base64)


_ENCODERS: Final = {"text": _text_record, "json": _json_record, "json-base64": _base64_record}


def _from_json(line: bytes, decode: Callable[[str], bytes]) -> Encoded:
    try:
        value = orjson.loads(line)
    except ValueError:
        raise ValueError("is no JSON: write one object a line") from None
    if not isinstance(value, dict) or not value.keys() <= MEMBERS:
        raise ValueError('is no record: write {"body": …, "headers": [[name, value]…]}')
    body, pairs, timestamp = value.get("body"), value.get("headers"), value.get("timestamp")
    try:
        headers = [(decode(name), decode(given)) for name, given in pairs or ()]
        data = decode(body) if body else b""
    except (TypeError, AttributeError, ValueError):
        raise ValueError("is no record: bodies, names and values are text of the format") from None
    if timestamp is not None and (type(timestamp) is not int or not 0 <= timestamp <= U64_MAX):
        raise ValueError("is no record: a timestamp is a number of milliseconds")
    return _encoded(data, headers, timestamp)


def _from_base64(text: str) -> bytes:
    return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)


def _encoded(body: bytes, headers: Iterable[tuple[bytes, bytes]], timestamp: int | None) -> Encoded:
    record: dict[str, Any] = {}
    metered = RECORD_OVERHEAD_BYTES + len(body)
    if timestamp is not None:
        record["timestamp"] = timestamp
    pairs = [(_base64(name), _base64(value)) for name, value in headers]
    if pairs:
        record["headers"] = pairs
        metered += sum(HEADER_OVERHEAD_BYTES + len(n) + len(v) for n, v in headers)
    if body:
        record["body"] = _base64(body)
    if metered > RECORD_METERED_BYTES_MAX:
        limit = RECORD_METERED_BYTES_MAX - RECORD_OVERHEAD_BYTES
        raise ValueError(f"is too large: a record holds at most {limit} bytes")
    return Encoded(orjson.dumps(record), metered)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
