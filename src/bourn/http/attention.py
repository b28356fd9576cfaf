"""Attention: a loop that has just answered looks for the next request a moment before it sleeps.

A client that asks, waits and asks again is alone with its server: they sleep by turns, and waking a
core that has gone idle takes longer than the answer. So behind an answer the loop takes
`ATTENTION_TURNS` more turns instead of sleeping, about a microsecond each where there is nothing to
do. Where no request comes meanwhile they were in vain, and so might be the next: after each such
time twice as many answers pass without, up to `ATTENTION_SKIPS_MAX`.
"""

import asyncio

from bourn.limits import ATTENTION_SKIPS_MAX, ATTENTION_TURNS


class Attention:
    """Keeps the loop awake for a moment, where that has paid lately."""

    def __init__(self) -> None:
        self._turns = 0  # left
        self._skips = 0  # answers that pass without, after turns in vain
        self._skipped = 0

    @property
    def is_awake(self) -> bool:
        """Whether the loop looks out for a request."""
        return self._turns > 0

    def hold(self) -> None:
        """Something was answered: look out for what comes next."""
        if self._turns:
            self._turns = ATTENTION_TURNS
            self._skips = 0
        elif self._skipped < self._skips:
            self._skipped += 1
        else:
            self._turns = ATTENTION_TURNS
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._turns -= 1
        if self._turns:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            self._skips = min(2 * self._skips + 1, ATTENTION_SKIPS_MAX)
            self._skipped = 0
