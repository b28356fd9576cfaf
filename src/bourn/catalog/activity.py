"""Since when, and until when, a basin has had a stream: what `active-basins` tells."""

from collections.abc import Iterable
from typing import Final

from bourn.limits import USAGE_HOURS_KEPT

STILL: Final = 2**32 - 1  # the end of a time that has not ended
MERGED_SECS: Final = 3600  # a pause that is shorter is none: bounds the times of a basin
_KEPT_SECS: Final = USAGE_HOURS_KEPT * 3600

Times = list[tuple[int, int]]


class Activity:
    """The times [start, end) of each basin, in seconds, ascending."""

    def __init__(self, rows: Iterable[tuple[str, Times]] = ()) -> None:
        self._of: dict[str, Times] = {name: list(times) for name, times in rows if times}

    def begin(self, basin: str, at_s: int) -> None:
        """Note that a basin has its first stream."""
        times = self._of.setdefault(basin, [])
        if times and times[-1][1] > at_s - MERGED_SECS:
            times[-1] = (min(times[-1][0], at_s), STILL)
        else:
            times.append((at_s, STILL))

    def end(self, basin: str, at_s: int) -> None:
        """Note that a basin's last stream is gone."""
        times = self._of.get(basin)
        if times and times[-1][1] == STILL:
            start_s = times[-1][0]
            times[-1] = (start_s, max(at_s, start_s + 1))

    def forget(self, basin: str) -> None:
        """Forget a basin and its name."""
        self._of.pop(basin, None)

    def active(self, start_s: int, end_s: int) -> list[str]:
        """Return the basins that had a stream at any instant of [start, end), by name."""
        return sorted(
            name
            for name, times in self._of.items()
            if any(max(start, start_s) < min(end, end_s) for start, end in times)
        )

    def to_rows(self) -> list[tuple[str, Times]]:
        """Return everything, by name."""
        return sorted(self._of.items())

    def forget_old(self, now_s: int) -> None:
        """Forget what ended so long ago that nobody asks for it."""
        for name in list(self._of):
            times = [time for time in self._of[name] if time[1] > now_s - _KEPT_SECS]
            if times:
                self._of[name] = times
            else:
                del self._of[name]
