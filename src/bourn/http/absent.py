"""The parts of the API that this server does not have yet: 501, once the request makes sense.

Access tokens and usage metrics. Names, queries and bodies are looked at all the same, so that a
client learns of its own mistakes first.
"""

import msgspec

from bourn.errors import BadJson, BadName, BadPath
from bourn.http.query import list_query
from bourn.http.request import NotImplementedHere, Request
from bourn.http.routing import decode_segment
from bourn.model import names


class AbsentParts:
    """One method per verb and resource."""

    async def list_tokens(self, request: Request) -> None:
        """GET /access-tokens."""
        list_query(request.exchange.query, names.access_token_prefix)
        raise NotImplementedHere

    async def issue_token(self, request: Request) -> None:
        """POST /access-tokens."""
        try:
            msgspec.json.decode(await request.json_body(), type=dict)
        except ValueError as error:
            raise BadJson(str(error)) from None
        raise NotImplementedHere

    async def revoke_token(self, _: Request, segment: str) -> None:
        """DELETE /access-tokens/{id}."""
        try:
            names.access_token_id(decode_segment(segment))
        except BadName as error:
            raise BadPath(f"Invalid URL: {error.message}") from None
        raise NotImplementedHere

    async def account_usage(self, _: Request) -> None:
        """GET /metrics."""
        raise NotImplementedHere

    async def basin_usage(self, request: Request, basin: str) -> None:
        """GET /metrics/{basin}."""
        request.basin_segment(basin)
        raise NotImplementedHere

    async def stream_usage(self, request: Request, basin: str, stream: str) -> None:
        """GET /metrics/{basin}/{stream}."""
        request.basin_segment(basin)
        request.stream_segment(stream)
        raise NotImplementedHere
