"""Access tokens on a running node: issue, revoke, list, and look one up by its secret's digest."""

from typing import NamedTuple

from bourn.catalog.changes import DropToken, PutToken
from bourn.catalog.tokens import ROOT, TokenRow, check_revoke, decide_issue, root_row
from bourn.engine.lifecycle import Lifecycle
from bourn.engine.term import Term
from bourn.limits import EXPIRED_TOKENS_DROPPED_MAX
from bourn.model.access import FULL_GRANT, Grant
from bourn.model.access_json import IssueToken
from bourn.model.names import list_limit


class TokenPage(NamedTuple):
    """A part of a listing, and whether more follows."""

    rows: list[TokenRow]
    has_more: bool


class Accounts(Lifecycle):
    """The part of a node that knows who may do what."""

    async def issue_token(
        self, request: IssueToken, digest: bytes, issuer: Grant = FULL_GRANT
    ) -> TokenRow:
        """Issue a token for the secret of that digest; durable when it returns."""
        term = await self._leading()

        def issue() -> TokenRow:
            now_ms = self._clock.now_ms()
            tokens = term.state.tokens
            # First, or they would hold the places of those that are to come.
            for expired in tokens.take_expired(now_ms * 1_000_000, EXPIRED_TOKENS_DROPPED_MAX):
                term.apply(DropToken(expired.id))
            row = decide_issue(
                tokens.get(request.id),
                request,
                issuer=issuer,
                digest=digest,
                now_ms=now_ms,
                count=tokens.issued_count,
                count_max=self._settings.quota_tokens,
            )
            term.apply(PutToken(row))
            return row

        return await term.answer(issue)

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token: at once for new requests, durable when it returns."""
        term = await self._leading()

        def revoke() -> None:
            check_revoke(term.state.tokens.get(token_id), token_id, self._clock.now_ms())
            term.apply(DropToken(token_id))

        await term.answer(revoke)

    async def list_tokens(
        self, prefix: str = "", start_after: str = "", limit: int | None = None
    ) -> TokenPage:
        """Return a page of tokens in force, in byte order of their ids."""
        term = await self._leading()
        now_ns = self._clock.now_ms() * 1_000_000
        return await term.answer(
            lambda: TokenPage(
                *term.state.tokens.list(prefix, start_after, list_limit(limit), now_ns)
            )
        )

    async def set_root_token(self, digest: bytes) -> None:
        """Have the root token be the one of this digest, or of no secret where that is empty."""
        term = await self._leading()

        def put() -> None:
            before = term.state.tokens.get(ROOT)
            if before is None or before.digest != digest:
                term.apply(PutToken(root_row(digest, self._clock.now_ms())))

        await term.answer(put)

    async def root_token(self) -> TokenRow | None:
        """Return the root token's row, if the log has one."""
        return (await self._leading()).state.tokens.get(ROOT)

    async def token_of(self, digest: bytes) -> TokenRow | None:
        """Return the token in force whose secret has this digest."""
        term: Term = self._term or await self._current()
        row = term.state.tokens.by_digest(digest)
        if row is None:
            # Only who leads may say that there is none: it may have been issued elsewhere.
            term = await self._leading()
            row = term.state.tokens.by_digest(digest)
        if row is None or (
            row.expires_at is not None and row.is_over(self._clock.now_ms() * 1_000_000)
        ):
            return None
        return row

    def is_in_force(self, row: TokenRow) -> bool:
        """Whether a token that was found is still good, as far as is known at this moment."""
        if row.is_over(self._clock.now_ms() * 1_000_000):
            return False
        return self._term is None or self._term.state.tokens.get(row.id) == row
