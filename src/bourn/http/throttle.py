"""Limits of traffic for each basin and each token: requests, appended bytes, open sessions.

What answers once is refused with the time to wait; a session is made to wait, and with it its
client: for its head, and for each batch that it appends, by reading nothing meanwhile. A limit of
a rate admits one second's worth at once.
Nothing here is durable: a server that starts anew begins with full allowances.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bourn.clock import Clock
from bourn.errors import RateLimited
from bourn.http.telemetry import Telemetry
from bourn.limits import LIMIT_HOLDERS_MAX, SESSION_OPEN_WAIT_SECS_MAX, SESSION_RETRY_MS
from bourn.model.allowance import Allowance
from bourn.settings import TrafficLimit, TrafficLimits

_WORDS: Final = {
    "requests": "requests a second",
    "append_bytes": "appended bytes a second",
    "sessions": "open sessions",
    "basin": "in this basin",
    "token": "by this access token",
}


class Holder:
    """One basin, or one token: what it may still do."""

    __slots__ = ("append_bytes", "limit", "requests", "scope", "sessions")

    def __init__(self, scope: str, limit: TrafficLimit, now_us: int) -> None:
        self.scope = scope
        self.limit = limit
        self.requests = _allowance(limit.requests, now_us)
        self.append_bytes = _allowance(limit.append_bytes, now_us)
        self.sessions = 0  # open; counted even where they have no limit, to keep the holder

    def is_at_rest(self, now_us: int) -> bool:
        """Whether a new one would be the same."""
        return not self.sessions and all(
            found is None or found.is_full(now_us) for found in (self.requests, self.append_bytes)
        )


class Holders:
    """All of one scope, by name. Those at rest are forgotten when there are too many."""

    def __init__(self, scope: str, limit: TrafficLimit) -> None:
        self._scope = scope
        self._limit = limit
        self._kept: dict[str, Holder] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str, now_us: int) -> Holder:
        """Return the one of that name."""
        found = self._kept.get(name)
        if found is None:
            if len(self._kept) >= LIMIT_HOLDERS_MAX:
                self._forget(now_us)
            found = self._kept[name] = Holder(self._scope, self._limit, now_us)
        return found

    def _forget(self, now_us: int) -> None:
        """Let go of those at rest; and of the oldest others, where that does not make much room."""
        busy = {name: kept for name, kept in self._kept.items() if not kept.is_at_rest(now_us)}
        excess = max(0, len(busy) - LIMIT_HOLDERS_MAX // 2)
        for name in [name for name, kept in busy.items() if not kept.sessions][:excess]:
            del busy[name]
        self._kept = busy


class Pace:
    """The speed at which a session may go: everybody's turn comes in the order of asking."""

    def __init__(self, clock: Clock, telemetry: Telemetry, allowances: list[Allowance]) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._allowances = allowances

    async def wait_for(self, cost: int) -> None:
        """Wait for the turn of something of this cost; who is cancelled has spent nothing."""
        await self.wait(cost, max(self.reserve(cost), default=0))

    def reserve(self, cost: int) -> list[int]:
        """Return how long each allowance asks to wait; `wait` or `withdraw` must follow."""
        now_us = microseconds(self._clock)
        return [found.reserve(now_us, cost) for found in self._allowances]

    def withdraw(self, cost: int) -> None:
        """Take back what was reserved."""
        for found in self._allowances:
            found.withdraw(cost)

    async def wait(self, cost: int, wait_us: int) -> None:
        """Wait for what was reserved."""
        if wait_us:
            self._telemetry.throttled_secs += wait_us / 1_000_000
            try:
                await self._clock.sleep(wait_us / 1_000_000)
            except BaseException:
                self.withdraw(cost)
                raise
        for found in self._allowances:
            found.arrive(cost)


class Throttle:
    """Says whether a request may go on. A server without limits has none."""

    def __init__(self, limits: TrafficLimits, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._basins = Holders("basin", limits.basin) if limits.basin.is_set else None
        self._tokens = Holders("token", limits.token) if limits.token.is_set else None

    def admit_request(self, basin: str, token_id: str) -> None:
        """Count a request, or raise RateLimited; an empty name stands for none."""
        now_us = microseconds(self._clock)
        holders = self._holders(basin, token_id, now_us)
        found = [(held, held.requests) for held in holders if held.requests is not None]
        self._spend(found, "requests", 1, now_us)

    def admit_append(self, basin: str, token_id: str, metered_bytes: int) -> None:
        """Count an append that is answered once, or raise RateLimited."""
        now_us = microseconds(self._clock)
        holders = self._holders(basin, token_id, now_us)
        found = [(held, held.append_bytes) for held in holders if held.append_bytes is not None]
        self._spend(found, "append_bytes", metered_bytes, now_us)

    @asynccontextmanager
    async def session(self, basin: str, token_id: str) -> AsyncIterator[Pace | None]:
        """Count a session as long as it is open, and as a request, for which it may wait a little.

        Yields the pace for what it appends. RateLimited if there is no place, or not soon.
        """
        holders = self._holders(basin, token_id, microseconds(self._clock))
        for held in holders:
            if held.limit.sessions is not None and held.sessions >= held.limit.sessions:
                raise self._refusal(held, "sessions", SESSION_RETRY_MS)
        paced = [held.append_bytes for held in holders if held.append_bytes is not None]
        for held in holders:
            held.sessions += 1
        try:
            await self._open(holders)
            yield Pace(self._clock, self._telemetry, paced) if paced else None
        finally:
            for held in holders:
                held.sessions -= 1

    async def _open(self, holders: Sequence[Holder]) -> None:
        """Wait for the turn of a request: clients give up on a session sooner than on a call."""
        counted = [held for held in holders if held.requests is not None]
        requests = [held.requests for held in counted if held.requests is not None]
        pace = Pace(self._clock, self._telemetry, requests)
        waits = pace.reserve(1)
        wait_us = max(waits, default=0)
        if wait_us > SESSION_OPEN_WAIT_SECS_MAX * 1_000_000:
            pace.withdraw(1)
            held = counted[waits.index(wait_us)]
            raise self._refusal(held, "requests", -(-wait_us // 1000))
        await pace.wait(1, wait_us)

    def _holders(self, basin: str, token_id: str, now_us: int) -> list[Holder]:
        found = []
        if basin and self._basins is not None:
            found.append(self._basins.get(basin, now_us))
        if token_id and self._tokens is not None:
            found.append(self._tokens.get(token_id, now_us))
        return found

    def _spend(
        self, found: Sequence[tuple[Holder, Allowance]], what: str, cost: int, now_us: int
    ) -> None:
        """Spend of all or of none."""
        wait_us, held = 0, None
        for holder, allowance in found:
            needed_us = allowance.wait_us(now_us)
            if needed_us > wait_us:
                wait_us, held = needed_us, holder
        if held is not None:
            raise self._refusal(held, what, -(-wait_us // 1000))
        for _, allowance in found:
            allowance.spend(now_us, cost)

    def _refusal(self, held: Holder, what: str, retry_after_ms: int) -> RateLimited:
        self._telemetry.limited(held.scope, what)
        limit = getattr(held.limit, what)
        return RateLimited(
            f"{_WORDS[what]} {_WORDS[held.scope]} are limited to {limit}", retry_after_ms
        )


def microseconds(clock: Clock) -> int:
    """The clock in whole microseconds, to the nearest: sums of fractions are never exact."""
    return round(clock.monotonic() * 1_000_000)


def _allowance(rate: int | None, now_us: int) -> Allowance | None:
    return None if rate is None else Allowance(rate, rate, now_us)
