"""From a raw path to a route, by hand: there are two dozen.

The path is split on raw slashes before anything is decoded, because a stream's name may hold
encoded ones. No trailing-slash equivalence. Aliases: `/streams…` without `/v1`, and the session
paths `/v1/basins/{basin}/streams/{stream}/read` and `…/append`.
"""

import enum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from bourn.errors import BadPath


class Route(enum.Enum):
    """What a path names, whatever the method."""

    HEALTH = enum.auto()
    METRICS = enum.auto()
    OPENAPI = enum.auto()
    BASINS = enum.auto()
    BASIN = enum.auto()
    STREAMS = enum.auto()
    STREAM = enum.auto()
    RECORDS = enum.auto()
    TAIL = enum.auto()
    READ_ALIAS = enum.auto()
    APPEND_ALIAS = enum.auto()
    ACCESS_TOKENS = enum.auto()
    ACCESS_TOKEN = enum.auto()
    LOCATIONS = enum.auto()
    DEFAULT_LOCATION = enum.auto()
    USAGE_ACCOUNT = enum.auto()
    USAGE_BASIN = enum.auto()
    USAGE_STREAM = enum.auto()


METHODS: Final[dict[Route, tuple[str, ...]]] = {
    Route.HEALTH: ("GET",),
    Route.METRICS: ("GET",),
    Route.OPENAPI: ("GET",),
    Route.BASINS: ("GET", "POST"),
    Route.BASIN: ("GET", "PUT", "PATCH", "DELETE"),
    Route.STREAMS: ("GET", "POST"),
    Route.STREAM: ("GET", "PUT", "PATCH", "DELETE"),
    Route.RECORDS: ("GET", "POST"),
    Route.TAIL: ("GET",),
    Route.READ_ALIAS: ("GET",),
    Route.APPEND_ALIAS: ("POST",),
    Route.ACCESS_TOKENS: ("GET", "POST"),
    Route.ACCESS_TOKEN: ("DELETE",),
    Route.LOCATIONS: ("GET",),
    Route.DEFAULT_LOCATION: ("GET", "PUT"),
    Route.USAGE_ACCOUNT: ("GET",),
    Route.USAGE_BASIN: ("GET",),
    Route.USAGE_STREAM: ("GET",),
}


class Match(NamedTuple):
    """A route and the raw segments that stand for names."""

    route: Route
    segments: tuple[str, ...] = ()


_PLAIN: Final = {
    "/health": Match(Route.HEALTH),
    "/ping": Match(Route.HEALTH),
    "/metrics": Match(Route.METRICS),
    "/openapi.json": Match(Route.OPENAPI),
    "/v1/basins": Match(Route.BASINS),
    "/v1/streams": Match(Route.STREAMS),
    "/streams": Match(Route.STREAMS),
    "/v1/access-tokens": Match(Route.ACCESS_TOKENS),
    "/v1/locations": Match(Route.LOCATIONS),
    "/v1/locations/default": Match(Route.DEFAULT_LOCATION),
    "/v1/metrics": Match(Route.USAGE_ACCOUNT),
}


def match_path(path: str) -> Match | None:  # noqa: C901, PLR0911  one case a route
    """Return the route of a raw path, or None for a path that names nothing."""
    found = _PLAIN.get(path)
    if found is not None:
        return found
    segments = path.split("/")[1:]
    if segments and segments[0] == "v1":
        del segments[0]
    elif not segments or segments[0] != "streams":
        return None
    match segments:
        case ["streams", stream] if stream:
            return Match(Route.STREAM, (stream,))
        case ["streams", stream, "records"] if stream:
            return Match(Route.RECORDS, (stream,))
        case ["streams", stream, "records", "tail"] if stream:
            return Match(Route.TAIL, (stream,))
        case ["basins", basin] if basin:
            return Match(Route.BASIN, (basin,))
        case ["basins", basin, "streams", stream, "read"] if basin and stream:
            return Match(Route.READ_ALIAS, (basin, stream))
        case ["basins", basin, "streams", stream, "append"] if basin and stream:
            return Match(Route.APPEND_ALIAS, (basin, stream))
        case ["access-tokens", token] if token:
            return Match(Route.ACCESS_TOKEN, (token,))
        case ["metrics", basin] if basin:
            return Match(Route.USAGE_BASIN, (basin,))
        case ["metrics", basin, stream] if basin and stream:
            return Match(Route.USAGE_STREAM, (basin, stream))
    return None


def decode_segment(segment: str) -> str:
    """Percent-decode a raw segment once; BadPath where it is not UTF-8."""
    if "%" not in segment and segment.isascii():
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeError:
        raise BadPath("Invalid URL: a path segment is not valid UTF-8") from None
