"""Clients that carry a token, and scopes in few words."""

from typing import Any

from tests.http.clients import Api, Call, Client, HeadersInput, pairs

ROOT = "the-root-token-of-tests"
TOKENS = "/v1/access-tokens"


class TokenApi(Api):
    """Whole requests that carry a token."""

    def __init__(self, client: Client, basin: str | None, token: str) -> None:
        super().__init__(client, basin)
        self.token = token

    def of(self, basin: str | None) -> "TokenApi":
        return TokenApi(self.client, basin, self.token)

    def with_token(self, token: str) -> "TokenApi":
        return TokenApi(self.client, self.basin, token)

    def begin(
        self, method: str, path: str, headers: HeadersInput = (), *, body: bytes | None = None
    ) -> Call:
        fields = [*pairs(headers), ("authorization", f"Bearer {self.token}")]
        return super().begin(method, path, fields, body=body)

    def issue(self, token_id: str, **scope: Any) -> "TokenApi":
        """Issue a token, and return a client that carries it."""
        return self.with_token(self.issued(token_id, scope))

    def issued(self, token_id: str, scope: dict[str, Any], **more: Any) -> str:
        """Issue a token, and return its secret."""
        reply = self.post(TOKENS, {"id": token_id, "scope": scope, **more})
        assert reply.status == 201, reply
        secret: str = reply.json["access_token"]
        return secret


def exact(name: str) -> dict[str, str]:
    return {"exact": name}


def prefix(text: str) -> dict[str, str]:
    return {"prefix": text}


EVERYTHING = {
    "basins": prefix(""),
    "streams": prefix(""),
    "access_tokens": prefix(""),
    "op_groups": {name: {"read": True, "write": True} for name in ("account", "basin", "stream")},
}
