"""Heads of HTTP/1.1 that can be answered the quick way: told by their bytes, and by nothing odd.

Whatever is not plainly one of the few requests meant here is None, and goes the ordinary way,
which knows every rule. So nothing is refused here, and nothing is read in two ways.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from bourn.catalog.tokens import digest_of
from bourn.errors import BournError
from bourn.http.cors import origin_fields
from bourn.http.data_plane import checked, parse_read_query
from bourn.http.media import Media, media_of
from bourn.http.request import ENCODING_NAMES
from bourn.http.routing import Route, decode_segment, match_path
from bourn.limits import (
    QUICK_CONFIG_BYTES_MAX,
    QUICK_HEAD_BYTES_MAX,
    QUICK_HEADS_KEPT,
    QUICK_QUERIES_KEPT,
)
from bourn.log.cursor import ReadRequest, make_request, unary
from bourn.model import names
from bourn.model.access import Op
from bourn.wire.compression import Compression, choose_response_encoding
from bourn.wire.json import Format, parse_format

HEAD_END: Final = b"\r\n\r\n"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH: Final = re.compile(r"[0-9]{1,7}")
_STATED_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,7})(?=\r\n)")
_TARGET: Final = re.compile(r"/[!$%&'()*+,./0-9:;=?@A-Z_a-z~-]*")
_LINES_MIN: Final = 4  # what is before, one field, and the two empty ones behind the last
_GETS: Final = {
    Route.RECORDS: Op.READ,
    Route.TAIL: Op.CHECK_TAIL,
    Route.STREAM: Op.GET_STREAM_CONFIG,
    Route.STREAMS: Op.LIST_STREAMS,
    Route.BASINS: Op.LIST_BASINS,
    Route.BASIN: Op.GET_BASIN_CONFIG,
}
_RECORDS: Final = frozenset({Op.APPEND, Op.READ})  # which come in protobuf too
_NOTHING_MORE: Final = unary(make_request())  # what is wanted by those that say nothing of records
_BODIES: Final = frozenset({Media.JSON, Media.PROTOBUF})
_HARMLESS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "authorization",
        "cache-control",
        "connection",
        "content-length",
        "content-type",
        "host",
        "origin",
        "pragma",
        "priority",
        "referer",
        "s2-basin",
        "s2-format",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
        "traceparent",
        "tracestate",
        "user-agent",
    }
)
_BEARER: Final = "bearer "


class QuickHead(NamedTuple):
    """An append of one batch, a read of one, or another question: all that its head says.

    To ask that a stream be there and have a config is such a question, as long as it has.
    """

    basin: str  # empty where the question is about all
    stream: str  # as the client names it
    length: int  # of the body
    wanted: ReadRequest | None  # None for an append
    body_is_protobuf: bool
    answer_is_protobuf: bool
    format: Format
    digest: bytes  # of the token's secret; empty where there is none
    small: bytes  # the answer's head up to its length
    large: bytes  # the same for a body that others would want compressed
    op: Op
    coding: Compression  # that the client wants for a large body
    coded: bytes  # the same as `large`, for a body in that coding
    query: str  # of a list


class QuickFields(NamedTuple):
    """What the fields say, whatever stream the request is about and however long its body is."""

    basin: str  # empty where none is named
    length: int | None  # of the body, where it stood in a way that is not cut out
    kind: Media
    may_read: bool
    answer_is_protobuf: bool
    format: Format
    digest: bytes
    small: bytes
    large: bytes
    coding: Compression
    coded: bytes


def parse_quick_head(
    data: bytes, *, cors: bool, known: dict[bytes, QuickFields] | None = None
) -> QuickHead | None:
    """Read a head with the empty line that ends it; None where it must go the ordinary way.

    A client says the same fields again and again, and another stream or length each time: `known`
    keeps the last few fields.
    """
    if len(data) > QUICK_HEAD_BYTES_MAX:
        return None
    line_end = data.find(b"\r\n")
    text = data[line_end:]
    stated = _STATED_LENGTH.search(text)
    if stated is not None:
        text = text[: stated.start()] + text[stated.end() :]
    try:
        fields = None if known is None else known.get(text)
        if fields is None:
            fields = _parse_fields(text, cors=cors)
            if fields is None:
                return None
            if known is not None:
                if len(known) >= QUICK_HEADS_KEPT:
                    known.clear()
                known[text] = fields
        length = fields.length
        if stated is not None:
            if length is not None:
                return None
            length = int(stated[1])
        return _parse_line(data[:line_end], fields, length)
    except BournError:
        return None  # the ordinary way says what is wrong


def _parse_line(line: bytes, fields: QuickFields, length: int | None) -> QuickHead | None:
    method, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    if version != "HTTP/1.1" or _TARGET.fullmatch(target) is None:
        return None
    path, _, query = target.partition("?")
    match = match_path(path)
    op = None if match is None else _op(method, match.route, fields, length)
    if match is None or op is None:
        return None
    wanted = None
    if op is not Op.APPEND:
        wanted = _wanted(query) if op is Op.READ else _NOTHING_MORE
    name = decode_segment(match.segments[0]) if match.segments else ""
    basin, stream = fields.basin, ""
    if op is Op.LIST_BASINS:
        basin = ""
    elif op is Op.GET_BASIN_CONFIG:
        basin = names.basin_name(name)
    elif not basin:
        return None
    elif op is not Op.LIST_STREAMS:
        stream = names.stream_name(name)
    small, large, coded = fields.small, fields.large, fields.coded
    is_protobuf = fields.answer_is_protobuf
    if is_protobuf and op not in _RECORDS:
        is_protobuf = False
        small, large, coded = _as_json(small), _as_json(large), _as_json(coded)
    return QuickHead(
        basin,
        stream,
        length or 0,
        wanted,
        fields.kind is Media.PROTOBUF,
        is_protobuf,
        fields.format,
        fields.digest,
        small,
        large,
        op,
        fields.coding,
        coded,
        "" if match.segments else query,
    )


def _op(method: str, route: Route, fields: QuickFields, length: int | None) -> Op | None:
    """The operation, where it is one of those meant here and its body is as it should be."""
    if method == "GET":
        return _GETS.get(route) if length is None and fields.may_read else None
    if method == "POST":
        is_meant = route is Route.RECORDS and length is not None and fields.kind in _BODIES
        return Op.APPEND if is_meant else None
    if method == "PUT" and route is Route.STREAM and (length or 0) <= QUICK_CONFIG_BYTES_MAX:
        is_meant = fields.kind is Media.JSON or (fields.may_read and not length)
        return Op.CREATE_STREAM if is_meant else None
    return None


def _as_json(start: bytes) -> bytes:
    """The start of an answer in JSON, whatever the client would rather have."""
    return start.replace(Media.PROTOBUF.value.encode(), Media.JSON.value.encode(), 1)


@lru_cache(QUICK_QUERIES_KEPT)
def _wanted(query: str) -> ReadRequest:
    return unary(checked(parse_read_query(query)))


def _fields(data: bytes) -> dict[str, str] | None:
    """The fields by lower-case name; the text begins with the end of the line before them."""
    if not data.isascii():
        return None
    text = data.decode("ascii")
    lines = text.split("\r\n")
    breaks = len(lines) - 1
    if text.count("\r") != breaks or text.count("\n") != breaks or len(lines) < _LINES_MIN:
        return None
    fields: dict[str, str] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if (
            not colon
            or name not in _HARMLESS
            or name in fields
            or not value.isprintable()
            or _NAME.fullmatch(name) is None
        ):
            return None
        fields[name] = value
    if "host" not in fields or fields.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    return fields


def _parse_fields(data: bytes, *, cors: bool) -> QuickFields | None:
    fields = _fields(data)
    if fields is None:
        return None
    length = fields.get("content-length")
    if length is not None and _LENGTH.fullmatch(length) is None:
        return None
    accepted = fields.get("accept-encoding", "")
    accept = media_of([fields["accept"]] if "accept" in fields else [])
    if accept in {Media.SESSION, Media.EVENTS} or ";" in accepted:
        return None
    authorization = fields.get("authorization", "")
    if authorization and not authorization.lower().startswith(_BEARER):
        return None
    secret = authorization[len(_BEARER) :].strip(" \t")
    media = Media.PROTOBUF if accept is Media.PROTOBUF else Media.JSON
    more = origin_fields(fields.get("origin")) if cors else []
    kinds, varies = [("content-type", media.value)], [("vary", "accept-encoding"), *more]
    coding = choose_response_encoding([accepted]) if accepted else Compression.NONE
    codings = [("content-encoding", ENCODING_NAMES[coding])] if coding else []
    return QuickFields(
        names.basin_name(fields["s2-basin"]) if "s2-basin" in fields else "",
        None if length is None else int(length),
        media_of([fields.get("content-type", "")]),
        "content-type" not in fields,
        media is Media.PROTOBUF,
        parse_format(fields.get("s2-format")),
        digest_of(secret.encode("ascii")) if secret else b"",
        _start([*kinds, *more]),
        _start([*kinds, *varies]),
        coding,
        _start([*kinds, *codings, *varies]),
    )


def _start(fields: list[tuple[str, str]]) -> bytes:
    """The head of an answer up to its length."""
    return f"HTTP/1.1 200 OK\r\n{_lines(fields)}content-length: ".encode()


def _lines(fields: list[tuple[str, str]]) -> str:
    """The fields of an answer, those of one name behind each other, as the library has them."""
    order = list(dict.fromkeys(name for name, _ in fields))
    ordered = sorted(fields, key=lambda field: order.index(field[0]))
    return "".join(f"{name}: {value}\r\n" for name, value in ordered)
