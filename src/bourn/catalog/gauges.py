"""Gauges: the value of each thing at the end of each period in which it changed.

A value holds until the next one, so a thing at rest costs nothing. Bounded: above the cap, the
things that did not change for the longest are forgotten.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from bourn.catalog.series import Points, PointsBytes

Key = TypeVar("Key", str, int)


class Gauges(Generic[Key]):
    """Points by key, the key that changed last at the end."""

    def __init__(self, kept: int, points_max: int) -> None:
        self._kept = kept
        self._points_max = points_max
        self._of: dict[Key, Points] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._of)

    def keys(self) -> list[Key]:
        """Return everything that has a value, or had one."""
        return list(self._of)

    def put(self, key: Key, period: int, value: int) -> None:
        """Say that from this period on the value is another."""
        points = self._of.pop(key, None) or Points()
        self._of[key] = points
        before = len(points)
        points.put(period, value)
        points.forget_before(period - self._kept)
        self._count += len(points) - before
        while self._count > self._points_max:
            self.forget(next(iter(self._of)))

    def forget(self, key: Key) -> None:
        """Forget a key and all its values."""
        points = self._of.pop(key, None)
        if points is not None:
            self._count -= len(points)

    def last_value(self, key: Key) -> int | None:
        """Return the newest value of a key."""
        points = self._of.get(key)
        return None if points is None else points.last_value

    def held(self, key: Key, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield each period of [low, high) with the value that held in it last."""
        points = self._of.get(key)
        return iter(()) if points is None else points.held(low, high)

    def to_rows(self) -> list[tuple[Key, PointsBytes]]:
        """Return everything, in order."""
        return [(key, points.to_bytes()) for key, points in self._of.items()]

    def load(self, rows: Iterable[tuple[Key, PointsBytes]]) -> None:
        """Take over what `to_rows` gave; Undecodable for anything else."""
        for key, data in rows:
            points = Points.from_bytes(data)
            self.forget(key)
            if points:
                self._of[key] = points
                self._count += len(points)
