"""Cross-origin requests: every origin may call, with credentials.

What protects the server is the token in `authorization`, which a browser does not send by itself.
"""

from typing import Final

from bourn.http.exchange import Exchange, Headers

_EXPOSED: Final = ("access-control-expose-headers", "s2-provision-result, retry-after-ms")
_VARY: Final = (
    "vary",
    "origin, access-control-request-method, access-control-request-headers",
)
_CREDENTIALS: Final = ("access-control-allow-credentials", "true")
_MIRRORED: Final = (
    ("access-control-request-method", "access-control-allow-methods"),
    ("access-control-request-headers", "access-control-allow-headers"),
)


def answer_fields(exchange: Exchange) -> Headers:
    """The headers that let a page of the request's origin read the answer."""
    origins = exchange.header_values("origin")
    return origin_fields(origins[0] if origins else None)


def origin_fields(origin: str | None) -> Headers:
    """The same for an origin, or for a request that has none."""
    fields = _fields_of(origin)
    return fields if len(fields) == 1 else [*fields, _EXPOSED]


def preflight_fields(exchange: Exchange) -> Headers:
    """The headers that say: the request that you announce may be made as you announce it."""
    mirrored = [
        (answer, values[0])
        for asked, answer in _MIRRORED
        if (values := exchange.header_values(asked)) and values[0].isascii()
    ]
    origins = exchange.header_values("origin")
    return [*_fields_of(origins[0] if origins else None), *mirrored]


def _fields_of(origin: str | None) -> list[tuple[str, str]]:
    if not origin or not origin.isascii():
        return [_VARY]
    return [("access-control-allow-origin", origin), _CREDENTIALS, _VARY]
