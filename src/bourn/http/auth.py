"""Who a request comes from, and what ends when a token does.

A request's secret is hashed and its digest looked up: a few microseconds, and no secret outlives
its request. What a token allows is worked out once and kept with its `Principal`, as are the
sessions that stand on it. A token with open sessions is looked at again every TOKEN_CHECK_SECS,
when it expires, and when it is revoked here; a session costs nothing between.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from bourn.catalog.tokens import TokenRow, digest_of
from bourn.clock import Clock, Timer
from bourn.engine.node import Node
from bourn.errors import Unauthenticated
from bourn.http.exchange import Exchange
from bourn.limits import PRINCIPALS_KEPT_MAX, TOKEN_CHECK_SECS, TOKEN_ENDED_GRACE_SECS
from bourn.model.access import FULL_GRANT, Grant, Op

T = TypeVar("T")

_SCHEME: Final = "bearer"


class Principal:
    """A token, or anybody where none is asked for: whose limits count, and whose sessions end."""

    def __init__(self, node: Node, clock: Clock, row: TokenRow | None) -> None:
        self._node = node
        self.clock = clock
        self.row = row
        self.id = "" if row is None else row.id
        self.grant: Grant = FULL_GRANT if row is None else row.grant()
        self.stream_prefix = row.scope.streams.text if row is not None and row.auto_prefix else ""
        self._halts: set[Callable[[], None]] = set()
        self._timer: Timer | None = None

    @property
    def is_open(self) -> bool:
        """Whether no token was asked for."""
        return self.row is None

    @property
    def has_sessions(self) -> bool:
        """Whether anything stands on it beyond single requests."""
        return bool(self._halts)

    def allows(self, op: Op, basin: str = "", stream: str = "", token_id: str = "") -> bool:
        """Whether it may do this."""
        return self.row is None or self.grant.allows(op, basin, stream, token_id)

    # The end of a token

    @contextmanager
    def watched(self, halt: Callable[[], None]) -> Iterator[None]:
        """Have a session halted when the token ends."""
        if self.row is None:
            yield
            return
        self._halts.add(halt)
        if self._timer is None:
            self._set_timer(self.row)
        try:
            yield
        finally:
            self._halts.discard(halt)
            if not self._halts and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def check(self) -> None:
        """Look at the token again, and halt everything that stands on it if it has ended."""
        if self.row is not None and not self._node.is_in_force(self.row):
            for halt in list(self._halts):
                halt()

    def _set_timer(self, row: TokenRow) -> None:
        secs = TOKEN_CHECK_SECS
        if row.expires_at_ns is not None:
            # A millisecond on top, because that is all the clock can tell.
            left = row.expires_at_ns // 1_000_000 + 1 - self.clock.now_ms()
            secs = min(secs, max(left, 1) / 1000)
        self._timer = self.clock.call_later(secs, self._due)

    def _due(self) -> None:
        self._timer = None
        self.check()
        if self._halts and self.row is not None:
            self._set_timer(self.row)


class Guard:
    """Ends one session, or one wait, of the task that made it, when its token ends.

    A wait is broken off, and the session may say why. What is being sent at that moment has
    TOKEN_ENDED_GRACE_SECS to be sent; then the response is cut.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal
        self._task: asyncio.Task[object] | None = None
        self._is_over = False
        self._is_waiting = False
        self._cut: Timer | None = None

    @contextmanager
    def entered(self) -> Iterator["Guard"]:
        """Watch over the block."""
        self._task = asyncio.current_task()
        try:
            with self._principal.watched(self._halt):
                yield self
        except asyncio.CancelledError:
            if self._was_halted():
                raise token_ended() from None
            raise
        finally:
            if self._cut is not None:
                self._cut.cancel()

    async def during(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Begin to wait for something; Unauthenticated if the token has ended, or does by then."""
        if self._is_over:
            raise token_ended()
        self._is_waiting = True
        try:
            return await begin()
        except asyncio.CancelledError:
            if self._was_halted():
                raise token_ended() from None
            raise
        finally:
            self._is_waiting = False

    def following(self, batches: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield what a session delivers, as long as the token is good."""
        return batches if self._principal.is_open else Following(self, batches)

    def _halt(self) -> None:
        if self._is_over or self._task is None:
            return
        self._is_over = True
        if self._is_waiting:
            self._task.cancel()
        else:
            self._cut = self._principal.clock.call_later(TOKEN_ENDED_GRACE_SECS, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _was_halted(self) -> bool:
        """Whether it was the token's end, and nothing else, that cancelled the task."""
        return self._is_over and self._task is not None and self._task.uncancel() == 0


class Following(AsyncIterator[T]):
    """A session's batches under a guard."""

    __slots__ = ("_batches", "_guard")

    def __init__(self, guard: Guard, batches: AsyncIterator[T]) -> None:
        self._guard = guard
        self._batches = batches

    async def __anext__(self) -> T:
        return await self._guard.during(self._batches.__anext__)


def token_ended() -> Unauthenticated:
    """What a session is told whose token has ended."""
    return Unauthenticated("the access token has been revoked or has expired")


class Authenticator:
    """Finds the principal of a request. Where not `required`, that is anybody's."""

    def __init__(self, node: Node, clock: Clock, *, required: bool) -> None:
        self._node = node
        self._clock = clock
        self._anybody = None if required else Principal(node, clock, None)
        self._principals: dict[bytes, Principal] = {}

    @property
    def is_required(self) -> bool:
        """Whether a request needs a token."""
        return self._anybody is None

    async def principal(self, exchange: Exchange) -> Principal:
        """Return who sends the request; Unauthenticated where that cannot be told."""
        if self._anybody is not None:
            return self._anybody
        digest = digest_of(secret_of(exchange))
        row = await self._node.token_of(digest)
        if row is None:
            self._principals.pop(digest, None)
            raise Unauthenticated("the access token is unknown, revoked or expired")
        found = self._principals.get(digest)
        if found is None or (found.row is not row and found.row != row):
            found = self._keep(digest, Principal(self._node, self._clock, row))
        return found

    def known(self, digest: bytes) -> Principal | None:
        """Return who has been asked for the token of this digest before, if it still holds."""
        if self._anybody is not None:
            return self._anybody
        found = self._principals.get(digest)
        if found is None or found.row is None or not self._node.is_in_force(found.row):
            return None
        return found

    def check(self, token_id: str) -> None:
        """End the sessions of a token at once, if it is no longer in force."""
        for digest, principal in list(self._principals.items()):
            if principal.id == token_id:
                principal.check()
                if principal.row is not None and not self._node.is_in_force(principal.row):
                    del self._principals[digest]

    def _keep(self, digest: bytes, principal: Principal) -> Principal:
        if len(self._principals) >= PRINCIPALS_KEPT_MAX:
            self._principals = {
                known: kept for known, kept in self._principals.items() if kept.has_sessions
            }
        self._principals[digest] = principal
        return principal


def secret_of(exchange: Exchange) -> bytes:
    """Return the secret that a request carries; Unauthenticated where there is none."""
    values = exchange.header_values("authorization")
    if not values:
        raise Unauthenticated("the request has no access token: `Authorization: Bearer …`")
    scheme, _, secret = values[0].strip(" \t").partition(" ")
    secret = secret.strip(" \t")
    if scheme.lower() != _SCHEME or not secret:
        raise Unauthenticated("expected `Authorization: Bearer` and an access token")
    return secret.encode("latin-1", "replace")
