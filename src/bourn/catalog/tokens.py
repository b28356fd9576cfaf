"""Access tokens: their rows, one pure function per verb, and the table of all.

A row is a MessagePack array of its fields in order, sets and groups of the scope being arrays too:

    id · digest · scope · auto_prefix · created_at_ms · expires_at

`digest` stands for the secret, which is kept nowhere: a BLAKE2b hash, which suffices because
secrets are drawn at random. `expires_at` is seconds and nanoseconds, because a number of
nanoseconds alone ends in the year 2554.

The row `root` is the server's own: it may do everything, for ever. Its digest is empty where no
secret stands for it, which is how a server without authentication leaves it.
"""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bourn.catalog.rows import InstantMs, decode_with
from bourn.errors import (
    AccessTokenNotFound,
    Invalid,
    PermissionDenied,
    QuotaExhausted,
    ResourceAlreadyExists,
)
from bourn.limits import ACCESS_TOKEN_ID_BYTES_MAX, ACCESS_TOKENS_MAX
from bourn.model.access import FULL_SCOPE, Grant, Match, Scope, grant_of
from bourn.model.access_json import IssueToken

ROOT: Final = "root"
DIGEST_BYTES: Final = 32
_NS: Final = 1_000_000_000
_EXPIRIES_SPARE: Final = 64

TokenId = Annotated[str, Meta(min_length=1, max_length=ACCESS_TOKEN_ID_BYTES_MAX)]


class TokenRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token in force until it expires or its row goes."""

    id: TokenId
    digest: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
    scope: Scope
    auto_prefix: bool
    created_at_ms: InstantMs
    expires_at: tuple[int, Annotated[int, Meta(ge=0, lt=_NS)]] | None = None

    @property
    def expires_at_ns(self) -> int | None:
        """When it ends, in nanoseconds since the Unix epoch; None for never."""
        return None if self.expires_at is None else self.expires_at[0] * _NS + self.expires_at[1]

    def is_over(self, now_ns: int) -> bool:
        """Whether it has expired."""
        expires_at_ns = self.expires_at_ns
        return expires_at_ns is not None and expires_at_ns <= now_ns

    def grant(self) -> Grant:
        """Work out what it allows."""
        return grant_of(self.scope, self.expires_at_ns)

    def issued(self) -> IssueToken:
        """What was asked for, as it turned out."""
        return IssueToken(self.id, self.scope, self.auto_prefix, self.expires_at_ns)


def digest_of(secret: bytes) -> bytes:
    """Return what stands for a secret."""
    return hashlib.blake2b(secret, digest_size=DIGEST_BYTES, person=b"bourn token 1").digest()


def root_row(digest: bytes, now_ms: int) -> TokenRow:
    """Return the row of the root token."""
    return TokenRow(ROOT, digest, FULL_SCOPE, auto_prefix=False, created_at_ms=now_ms)


def decide_issue(
    existing: TokenRow | None,
    request: IssueToken,
    *,
    issuer: Grant,
    digest: bytes,
    now_ms: int,
    count: int,
    count_max: int | None = None,
) -> TokenRow:
    """Issue a token that may do no more than its issuer, for no longer.

    `existing` is the row of that id, `count` how many tokens there are beside the root token, and
    `count_max` how many there may be.
    """
    expires_at_ns = request.expires_at_ns
    scope = request.scope
    if expires_at_ns is not None and expires_at_ns <= now_ms * 1_000_000:
        raise Invalid("expires_at is in the past")
    if not scope.effective_ops():
        raise Invalid("Access token permissions cannot be empty")
    if request.auto_prefix and scope.streams.match is not Match.PREFIX:
        raise Invalid("Auto prefixing is only allowed for streams with prefix matching")
    if expires_at_ns is None:
        expires_at_ns = issuer.expires_at_ns
    if not grant_of(scope, expires_at_ns).within(issuer):
        raise PermissionDenied("an access token cannot allow more, or for longer, than its issuer")
    if request.id == ROOT or (existing is not None and not existing.is_over(now_ms * 1_000_000)):
        raise ResourceAlreadyExists(f"access token `{request.id}` already exists")
    count_max = ACCESS_TOKENS_MAX if count_max is None else min(count_max, ACCESS_TOKENS_MAX)
    if existing is None and count >= count_max:
        raise QuotaExhausted(
            f"the quota of access tokens, {count_max}, is used up: revoke some first"
        )
    return TokenRow(
        id=request.id,
        digest=digest,
        scope=scope,
        auto_prefix=request.auto_prefix,
        created_at_ms=now_ms,
        expires_at=None if expires_at_ns is None else divmod(expires_at_ns, _NS),
    )


def check_revoke(existing: TokenRow | None, token_id: str, now_ms: int) -> None:
    """Refuse to revoke a token that is not in force, or the root token."""
    if token_id == ROOT:
        raise Invalid(
            "the root token cannot be revoked: start the server with another one to replace it"
        )
    if existing is None or existing.is_over(now_ms * 1_000_000):
        raise AccessTokenNotFound(token_id)


class TokenTable:
    """Rows by id and by digest, ids in byte order, and those that expire by when they do."""

    def __init__(self, rows: Iterable[TokenRow] = ()) -> None:
        self._rows: dict[str, TokenRow] = {}
        self._by_digest: dict[bytes, TokenRow] = {}
        self._ids: list[str] = []
        self._expiries: list[tuple[int, str]] = []  # a heap; of rows that may be gone, too
        for row in rows:
            self.put(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TokenRow]:
        return iter(self._rows.values())

    @property
    def issued_count(self) -> int:
        """How many there are beside the root token."""
        return len(self._rows) - (ROOT in self._rows)

    def get(self, token_id: str) -> TokenRow | None:
        """Return the token of that id, also one that has expired."""
        return self._rows.get(token_id)

    def by_digest(self, digest: bytes) -> TokenRow | None:
        """Return the token whose secret has that digest, also one that has expired.

        How long this takes says nothing of a secret: nobody can choose digests.
        """
        return self._by_digest.get(digest)

    def put(self, row: TokenRow) -> None:
        """Add a token, or replace the one of its id."""
        before = self._rows.get(row.id)
        if before is None:
            insort(self._ids, row.id)
        else:
            self._by_digest.pop(before.digest, None)
        self._rows[row.id] = row
        if row.digest:
            self._by_digest[row.digest] = row
        if row.expires_at_ns is not None:
            heappush(self._expiries, (row.expires_at_ns, row.id))
            if len(self._expiries) > 2 * len(self._rows) + _EXPIRIES_SPARE:
                self._forget_gone()

    def drop(self, token_id: str) -> None:
        """Forget a token, if it is there."""
        row = self._rows.pop(token_id, None)
        if row is not None:
            self._by_digest.pop(row.digest, None)
            del self._ids[bisect_left(self._ids, token_id)]

    def take_expired(self, now_ns: int, limit: int) -> list[TokenRow]:
        """Return some tokens that have expired; each is named once, to be dropped."""
        found: list[TokenRow] = []
        while self._expiries and self._expiries[0][0] <= now_ns and len(found) < limit:
            _, token_id = heappop(self._expiries)
            row = self._rows.get(token_id)
            if row is not None and row.is_over(now_ns):
                found.append(row)
        return found

    def _forget_gone(self) -> None:
        expiring = (row for row in self if row.expires_at_ns is not None)
        self._expiries = [(row.expires_at_ns or 0, row.id) for row in expiring]
        heapify(self._expiries)

    def list(
        self, prefix: str, start_after: str, limit: int, now_ns: int
    ) -> tuple[list[TokenRow], bool]:
        """Return a page of tokens in force in byte order, and whether at least one more matches."""
        ids = self._ids
        page: list[TokenRow] = []
        for at in range(max(bisect_left(ids, prefix), bisect_right(ids, start_after)), len(ids)):
            if not ids[at].startswith(prefix):
                break
            row = self._rows[ids[at]]
            if row.is_over(now_ns):
                continue
            if len(page) == limit:
                return page, True
            page.append(row)
        return page, False


_ENCODER: Final = msgspec.msgpack.Encoder()
_ROWS: Final = msgspec.msgpack.Decoder(list[TokenRow])


def encode_tokens(rows: Iterable[TokenRow]) -> bytes:
    """Return the bytes of many rows, for a snapshot."""
    return _ENCODER.encode(list(rows))


def decode_tokens(data: bytes) -> list[TokenRow]:
    """Return the rows that the bytes hold, or raise Undecodable."""
    return decode_with(_ROWS, data, "access tokens")
