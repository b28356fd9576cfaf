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
    fields = _origin_fields(exchange)
    return fields if len(fields) == 1 else [*fields, _EXPOSED]


def preflight_fields(exchange: Exchange) -> Headers:
    """The headers that say: the request that you announce may be made as you announce it."""
    mirrored = [
        (answer, values[0])
        for asked, answer in _MIRRORED
        if (values := exchange.header_values(asked)) and values[0].isascii()
    ]
    return [*_origin_fields(exchange), *mirrored]


def _origin_fields(exchange: Exchange) -> list[tuple[str, str]]:
    origins = exchange.header_values("origin")
    if not origins or not origins[0].isascii():
        return [_VARY]
    return [("access-control-allow-origin", origins[0]), _CREDENTIALS, _VARY]
