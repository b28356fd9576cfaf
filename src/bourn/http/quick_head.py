"""Heads of HTTP/1.1 that can be answered the quick way: told by their bytes, and by nothing odd.

Whatever is not plainly one of the few requests meant here is None, and goes the ordinary way,
which knows every rule. So nothing is refused here, and nothing is read in two ways.
"""

import re
from typing import Final, NamedTuple

from bourn.catalog.tokens import digest_of
from bourn.errors import BournError
from bourn.http.cors import origin_fields
from bourn.http.data_plane import checked, parse_read_query
from bourn.http.media import Media, media_of
from bourn.http.routing import Route, decode_segment, match_path
from bourn.limits import QUICK_HEAD_BYTES_MAX
from bourn.log.cursor import ReadRequest, unary
from bourn.model import names
from bourn.wire.compression import Compression, choose_response_encoding
from bourn.wire.json import Format, parse_format

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH: Final = re.compile(r"[0-9]{1,7}")
_TARGET: Final = re.compile(r"/[!$%&'()*+,./0-9:;=?@A-Z_a-z~-]*")
_LINES_MIN: Final = 4  # the request, one field, and the two empty ones behind the last
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
    """An append of one batch, or a read of one: all that its head says."""

    basin: str
    stream: str  # as the client names it
    length: int  # of the body
    wanted: ReadRequest | None  # None for an append
    body_is_protobuf: bool
    answer_is_protobuf: bool
    format: Format
    digest: bytes  # of the token's secret; empty where there is none
    small: bytes  # the answer's head up to its length
    large: bytes  # the same for a body that others would want compressed


def parse_quick_head(data: bytes, *, cors: bool) -> QuickHead | None:
    """Read a head with the empty line that ends it; None where it must go the ordinary way."""
    fields = _fields(data)
    if fields is None:
        return None
    first = fields.pop("")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if version != "HTTP/1.1" or _TARGET.fullmatch(target) is None:
        return None
    path, _, query = target.partition("?")
    match = match_path(path)
    if match is None or match.route is not Route.RECORDS or "s2-basin" not in fields:
        return None
    try:
        if method == "POST":
            return _append(fields, match.segments[0], cors=cors)
        if method == "GET":
            return _read(fields, match.segments[0], query, cors=cors)
    except BournError:
        pass  # the ordinary way says what is wrong
    return None


def _fields(data: bytes) -> dict[str, str] | None:
    """The fields by lower-case name, and the first line by the empty one."""
    if len(data) > QUICK_HEAD_BYTES_MAX or not data.isascii():
        return None
    text = data.decode("ascii")
    lines = text.split("\r\n")
    breaks = len(lines) - 1
    if text.count("\r") != breaks or text.count("\n") != breaks or len(lines) < _LINES_MIN:
        return None
    fields = {"": lines[0]}
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


def _append(fields: dict[str, str], segment: str, *, cors: bool) -> QuickHead | None:
    kind = media_of([fields.get("content-type", "")])
    length = fields.get("content-length", "")
    if kind not in {Media.JSON, Media.PROTOBUF} or _LENGTH.fullmatch(length) is None:
        return None
    return _made(fields, segment, int(length), None, cors=cors, kind=kind)


def _read(fields: dict[str, str], segment: str, query: str, *, cors: bool) -> QuickHead | None:
    if "content-length" in fields or "content-type" in fields:
        return None
    accepted = fields.get("accept-encoding")
    if accepted and choose_response_encoding([accepted]) is not Compression.NONE:
        return None
    wanted = unary(checked(parse_read_query(query)))
    if wanted.wait_secs:
        return None
    return _made(fields, segment, 0, wanted, cors=cors)


def _made(
    fields: dict[str, str],
    segment: str,
    length: int,
    wanted: ReadRequest | None,
    *,
    cors: bool,
    kind: Media = Media.ABSENT,
) -> QuickHead | None:
    accept = media_of([fields["accept"]] if "accept" in fields else [])
    if accept in {Media.SESSION, Media.EVENTS} or ";" in fields.get("accept-encoding", ""):
        return None
    authorization = fields.get("authorization", "")
    if authorization and not authorization.lower().startswith(_BEARER):
        return None
    secret = authorization[len(_BEARER) :].strip(" \t")
    media = Media.PROTOBUF if accept is Media.PROTOBUF else Media.JSON
    more = origin_fields(fields.get("origin")) if cors else []
    kinds = [("content-type", media.value)]
    small, large = _lines([*kinds, *more]), _lines([*kinds, ("vary", "accept-encoding"), *more])
    return QuickHead(
        names.basin_name(fields["s2-basin"]),
        names.stream_name(decode_segment(segment)),
        length,
        wanted,
        kind is Media.PROTOBUF,
        media is Media.PROTOBUF,
        parse_format(fields.get("s2-format")),
        digest_of(secret.encode("ascii")) if secret else b"",
        f"HTTP/1.1 200 OK\r\n{small}content-length: ".encode(),
        f"HTTP/1.1 200 OK\r\n{large}content-length: ".encode(),
    )


def _lines(fields: list[tuple[str, str]]) -> str:
    """The fields of an answer, those of one name behind each other, as the library has them."""
    order = list(dict.fromkeys(name for name, _ in fields))
    ordered = sorted(fields, key=lambda field: order.index(field[0]))
    return "".join(f"{name}: {value}\r\n" for name, value in ordered)
