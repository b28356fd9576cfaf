"""Points over time, in little memory: 12 bytes each, as two arrays.

A period is a number of minutes, hours or days since the Unix epoch; instants on the wire are
seconds. A counter's points are kept once, in minutes while young, then in hours, then in days.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple, Self

from bourn.errors import Undecodable

PERIOD_MAX: Final = 2**32 - 1
VALUE_MAX: Final = 2**64 - 1
LEVEL_SECS: Final = (60, 3600, 86_400)
_RATIOS: Final = (60, 24)  # periods of a level in one of the next

PointsBytes = tuple[bytes, bytes]


class Floors(NamedTuple):
    """The first minute, hour and day that are told apart from older ones; each begins a longer."""

    minute: int = 0
    hour: int = 0
    day: int = 0


class Points:
    """Values by period, ascending."""

    __slots__ = ("_periods", "_values")

    def __init__(self) -> None:
        self._periods = array("I")
        self._values = array("Q")

    def __len__(self) -> int:
        return len(self._periods)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._periods, self._values, strict=True)

    @property
    def first(self) -> int:
        """The oldest period; there must be one."""
        return self._periods[0]

    @property
    def last(self) -> int:
        """The newest period; there must be one."""
        return self._periods[-1]

    @property
    def last_value(self) -> int:
        """The value of the newest period; there must be one."""
        return self._values[-1]

    def add(self, period: int, value: int) -> bool:
        """Add to the value of a period; returns whether there was none before."""
        periods = self._periods
        if periods and periods[-1] == period:
            self._values[-1] = min(self._values[-1] + value, VALUE_MAX)
            return False
        at = self._place(period)
        if at < len(periods) and periods[at] == period:
            self._values[at] = min(self._values[at] + value, VALUE_MAX)
            return False
        periods.insert(at, period)
        self._values.insert(at, min(value, VALUE_MAX))
        return True

    def bump(self, value: int) -> None:
        """Add to the value of the newest period; there must be one."""
        value += self._values[-1]
        self._values[-1] = min(value, VALUE_MAX)

    def put(self, period: int, value: int) -> None:
        """Say what the value is from a period on: what was said of later ones is withdrawn."""
        at = self._place(period)
        del self._periods[at:]
        del self._values[at:]
        self._periods.append(period)
        self._values.append(value)

    def take_before(self, floor: int) -> list[tuple[int, int]]:
        """Remove the points before a period, and return them."""
        at = self._place(floor)
        taken = list(zip(self._periods[:at], self._values[:at], strict=True))
        del self._periods[:at]
        del self._values[:at]
        return taken

    def forget_before(self, floor: int) -> None:
        """Remove the points before a period, but for the newest: it holds on."""
        at = self._place(floor + 1) - 1
        if at > 0:
            del self._periods[:at]
            del self._values[:at]

    def held(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield each period in [low, high) and the value that it ended with, once there is one."""
        at = self._place(low + 1) - 1
        if at < 0:
            if not self._periods:
                return
            at, low = 0, self._periods[0]
        for period in range(low, high):
            while at + 1 < len(self._periods) and self._periods[at + 1] <= period:
                at += 1
            yield period, self._values[at]

    def to_bytes(self) -> PointsBytes:
        """Return the periods as u32 and the values as u64, little endian."""
        return _little(self._periods), _little(self._values)

    @classmethod
    def from_bytes(cls, data: PointsBytes) -> Self:
        """Take over what `to_bytes` gave; Undecodable for anything else."""
        points = cls()
        try:
            points._periods.frombytes(data[0])
            points._values.frombytes(data[1])
        except ValueError:
            raise Undecodable("points are cut short") from None
        if sys.byteorder == "big":
            points._periods.byteswap()
            points._values.byteswap()
        periods = points._periods
        if len(periods) != len(points._values):
            raise Undecodable("points lack their periods or their values")
        if any(a >= b for a, b in pairwise(periods)):
            raise Undecodable("points are out of order")
        return points

    def _place(self, period: int) -> int:
        if self._periods and self._periods[-1] < period:  # the usual case
            return len(self._periods)
        return bisect_left(self._periods, period)


class Series:
    """One counter: minutes, hours and days, none of them counted twice."""

    __slots__ = ("levels",)

    def __init__(self, levels: tuple[Points, Points, Points] | None = None) -> None:
        self.levels = levels or (Points(), Points(), Points())

    def __len__(self) -> int:
        minutes, hours, days = self.levels
        return len(minutes) + len(hours) + len(days)

    @property
    def last_s(self) -> int:
        """The instant of the newest point; 0 where there is none."""
        levels = zip(self.levels, LEVEL_SECS, strict=True)
        return max((points.last * secs for points, secs in levels if points), default=0)

    def fold(self, floors: Floors) -> int:
        """Merge what lies before the floors into longer periods; returns how many points went."""
        before = len(self)
        minutes, hours, days = self.levels
        for period, value in minutes.take_before(floors.minute):
            hours.add(period // _RATIOS[0], value)
        for period, value in hours.take_before(floors.hour):
            days.add(period // _RATIOS[1], value)
        days.take_before(floors.day)
        return before - len(self)

    def totals(self, secs: int) -> dict[int, int]:
        """Return totals by the instant at which a period of so many seconds begins.

        Only of what is kept in such periods or in shorter ones.
        """
        found: dict[int, int] = {}
        for points, level_secs in zip(self.levels, LEVEL_SECS, strict=True):
            if level_secs > secs:
                break
            for period, value in points:
                instant = period * level_secs // secs * secs
                found[instant] = found.get(instant, 0) + value
        return found


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
