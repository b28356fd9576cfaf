"""A rate limit that is told the time: an allowance fills steadily up to its brim, and is spent.

There are two ways to spend, and both draw on the same:

spend      now or not at all. While one unit is left, any cost is admitted, so that a large one is
           not starved by small ones; what it overdraws is made up for before the next.
reserve    now, for what will be done when the wait that it returns is over. Waits end in the order
           of asking. What is reserved and still waits does not stand in the way of `spend`: those
           who queue would otherwise keep everybody out who does not.

In any stretch of t seconds `reserve` alone admits no more than rate · t + brim (or one cost, where
that is larger), and so does `spend` but for one overdraft, which is less than one cost. Together
they admit more for a moment, by what waits at that moment, and later waits are so much longer.

Amounts are whole units, times whole microseconds; inside it counts millionths of units, exactly.
"""

from typing import Final

_MILLION: Final = 1_000_000


class Allowance:
    """What is left to be spent. Begins full."""

    __slots__ = ("_at_us", "_brim", "_left", "_rate", "_reserved")

    def __init__(self, rate: int, brim: int, now_us: int) -> None:
        """`rate` units a second, never more than `brim` of them at once; each at least 1."""
        self._rate = rate
        self._brim = brim * _MILLION
        self._left = self._brim
        self._reserved = 0  # spent already, by those who wait
        self._at_us = now_us

    def wait_us(self, now_us: int) -> int:
        """How long `spend` must wait, if nobody else spends meanwhile; 0 for not at all."""
        self._fill(now_us)
        missing = _MILLION - self._left - self._reserved
        return -(-missing // self._rate) if missing > 0 else 0

    def spend(self, now_us: int, cost: int) -> None:
        """Spend at once; only for whom `wait_us` lets."""
        self._fill(now_us)
        self._left -= cost * _MILLION

    def reserve(self, now_us: int, cost: int) -> int:
        """Spend for later; returns how long to wait. `arrive` or `withdraw` must follow."""
        self._fill(now_us)
        self._left -= cost * _MILLION
        self._reserved += cost * _MILLION
        return -(self._left // self._rate) if self._left < 0 else 0

    def arrive(self, cost: int) -> None:
        """Note that the wait for this is over."""
        self._reserved -= cost * _MILLION

    def withdraw(self, cost: int) -> None:
        """Note that what was reserved will not be done."""
        self._reserved -= cost * _MILLION
        self._left = min(self._left + cost * _MILLION, self._brim)

    def is_full(self, now_us: int) -> bool:
        """Whether it is as good as new."""
        self._fill(now_us)
        return self._left == self._brim

    def _fill(self, now_us: int) -> None:
        if now_us > self._at_us:
            self._left = min(self._left + (now_us - self._at_us) * self._rate, self._brim)
            self._at_us = now_us
