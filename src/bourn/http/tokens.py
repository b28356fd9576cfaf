"""Access tokens: JSON in, JSON out. A secret is shown once, in the answer that issues it."""

import secrets
from typing import Final

import msgspec

from bourn.catalog.tokens import digest_of
from bourn.engine.node import Node
from bourn.errors import BadName, BadPath
from bourn.http.auth import Authenticator
from bourn.http.listing import narrowed
from bourn.http.query import list_query
from bourn.http.request import Request
from bourn.http.routing import decode_segment
from bourn.model import names
from bourn.model.access_json import decode_issue_token, token_info

SECRET_PREFIX: Final = "bourn_"  # noqa: S105  for those who look for secrets where none belong
SECRET_BYTES: Final = 32

_encode: Final = msgspec.json.Encoder().encode


class Tokens:
    """One method per verb."""

    def __init__(self, node: Node, authenticator: Authenticator) -> None:
        self._node = node
        self._authenticator = authenticator

    async def list_tokens(self, request: Request) -> None:
        """GET /access-tokens."""
        request.permit()
        wanted = list_query(request.exchange.query, names.access_token_prefix)
        part = narrowed(request.principal.grant.scope.access_tokens, wanted)
        rows, has_more = part.cut(await self._node.list_tokens(*part.query), lambda row: row.id)
        body = {"access_tokens": [token_info(row.issued()) for row in rows], "has_more": has_more}
        await request.answer(200, _encode(body))

    async def issue_token(self, request: Request) -> None:
        """POST /access-tokens."""
        wanted = decode_issue_token(await request.json_body())
        request.permit(token_id=wanted.id)
        secret = new_secret()
        issuer = request.principal.grant
        await self._node.issue_token(wanted, digest_of(secret.encode()), issuer)
        await request.answer(201, _encode({"access_token": secret}))

    async def revoke_token(self, request: Request, segment: str) -> None:
        """DELETE /access-tokens/{id}."""
        try:
            token_id = names.access_token_id(decode_segment(segment))
        except BadName as error:
            raise BadPath(f"Invalid URL: {error.message}") from None
        request.permit(token_id=token_id)
        await self._node.revoke_token(token_id)
        self._authenticator.check(token_id)
        await request.answer_empty(204)


def new_secret() -> str:
    """Draw a secret: visible ASCII, nothing that a header or a shell would mind."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
