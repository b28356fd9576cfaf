"""What was used, by whom and when: a part of the state, made of the log alone.

Appends are counted from the commits that hold them; reads, calls and sizes from the changes
(`changes.CountUsage`) that flush them. So a replay counts what the writer counted: nothing twice,
nothing less. Time is what the log says; nothing here asks a clock.

```
counters   (basin, set, label) -> minutes | hours | days      series.py
basins     name -> metered bytes by hour                      gauges.py
streams    id -> metered bytes by minute                      gauges.py
activity   name -> times with a stream                        activity.py
```

In a snapshot (`SnapshotMeta.extra["usage"]`):

      0         1
    +---------+------------------------------------------------------------------+
    | version | MessagePack array                                                |
    +---------+------------------------------------------------------------------+
      now        u32      the minute of the newest count
      flushed    u64      the number of the last CountUsage
      floors     [u32; 3] minute, hour, day: what is older was folded for want of room
      counters   array of basin, set, label, points of minutes, of hours, of days; sorted
      basins     array of name, points; the one that changed last at the end
      streams    array of id, points; likewise
      activity   array of name, array of start, end (u32 seconds; 2**32-1: not ended); sorted

    points = two byte strings: periods u32[n], values u64[n], little endian, ascending
"""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from bourn.catalog.activity import Activity, Times
from bourn.catalog.gauges import Gauges
from bourn.catalog.rows import decode_with
from bourn.catalog.series import LEVEL_SECS, Floors, Points, PointsBytes, Series
from bourn.errors import Undecodable
from bourn.limits import (
    USAGE_CLASSES_MAX,
    USAGE_DAYS_KEPT,
    USAGE_GAUGE_POINTS_MAX,
    USAGE_HOURS_KEPT,
    USAGE_MINUTES_KEPT,
    USAGE_POINTS_MAX,
    USAGE_SERIES_MAX,
)

VERSION: Final = 1
EXTRA_KEY: Final = "usage"
OTHER_CLASS: Final = "other"
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
_FOLDED_AFTER: Final = USAGE_MINUTES_KEPT + 60
_ALIGNED: Final = (60, 24, 1)  # floors stand where a longer period begins
_RELIEVED: Final = 3 / 4  # of a cap, once it has been reached

U32 = Annotated[int, Meta(ge=0, lt=2**32)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1


class UsageLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """So many more of something in a minute; the account's basin is the empty name."""

    minute: U32
    basin: str
    set: str
    label: str
    value: U64


class _Image(msgspec.Struct, frozen=True, array_like=True):
    now: U32
    flushed: U64
    floors: tuple[U32, U32, U32]
    counters: list[tuple[str, str, str, PointsBytes, PointsBytes, PointsBytes]]
    basins: list[tuple[str, PointsBytes]]
    streams: list[tuple[U64, PointsBytes]]
    activity: list[tuple[str, list[tuple[U32, U32]]]]


class UsageTable:
    """All usage, as of the end of the log."""

    def __init__(
        self, points_max: int = USAGE_POINTS_MAX, series_max: int = USAGE_SERIES_MAX
    ) -> None:
        self._points_max = points_max
        self._series_max = series_max
        self._of: dict[str, dict[tuple[str, str], Series]] = {}
        self._series = 0
        self._points = 0
        self._now = 0
        self._folded = Floors()
        # Where this minute's appends are counted, by basin and class: every commit asks for it.
        self._newest: dict[tuple[str, str], tuple[Points, Points]] = {}
        self.flushed = 0
        self.basins: Gauges[str] = Gauges(USAGE_HOURS_KEPT, USAGE_GAUGE_POINTS_MAX)
        self.streams: Gauges[int] = Gauges(USAGE_MINUTES_KEPT, USAGE_GAUGE_POINTS_MAX)
        self.activity = Activity()

    @property
    def points_count(self) -> int:
        """How many points of counters there are."""
        return self._points

    @property
    def series_count(self) -> int:
        """How many counters there are."""
        return self._series

    # Counting

    def count(self, minute: int, basin: str, of: str, label: str, value: int) -> None:
        """Add to a counter; `of` is the set that it belongs to."""
        if minute != self._now:
            self._turn(minute)
        found = self._of.get(basin)
        series = None if found is None else found.get((of, label))
        if series is None:
            series = self._begin(basin, of, label)
        minutes = series.levels[0]
        if minutes.add(minute, value):
            self._points += 1
            if minutes.first < minute - _FOLDED_AFTER:
                self._points -= series.fold(self._floors())
            if self._points > self._points_max:
                self._give_up_resolution()

    def count_appends(
        self, minute: int, basin: str, storage_class: str, batches: int, metered_bytes: int
    ) -> None:
        """Count batches that were appended to streams of one class."""
        newest = self._newest.get((basin, storage_class)) if minute == self._now else None
        if newest is not None:
            newest[0].bump(batches)
            newest[1].bump(metered_bytes)
            return
        label = self._class_label(basin, storage_class)
        self.count(minute, basin, "append-ops", label, batches)
        self.count(minute, basin, "append-throughput", label, metered_bytes)
        series = self._of.get(basin, {})
        pair = series.get(("append-ops", label)), series.get(("append-throughput", label))
        if pair[0] is not None and pair[1] is not None:
            operations, sizes = pair[0].levels[0], pair[1].levels[0]
            if operations and sizes and operations.last == sizes.last == minute:
                self._newest[basin, storage_class] = (operations, sizes)

    def flush(
        self,
        number: int,
        lines: Iterable[UsageLine],
        basins: Iterable[tuple[str, int, int]],
        streams: Iterable[tuple[int, int, int]],
    ) -> None:
        """Take over counts and sizes; numbers ascend, and what was taken over already is not."""
        if number <= self.flushed:
            return
        self.flushed = number
        for line in lines:
            self.count(line.minute, line.basin, line.set, line.label, line.value)
        for name, hour, size_bytes in basins:
            self.basins.put(name, hour, size_bytes)
        for stream_id, minute, size_bytes in streams:
            self.streams.put(stream_id, minute, size_bytes)

    def forget_basin(self, basin: str) -> None:
        """Forget everything of a basin, and its name; what the account did stays."""
        for key in list(self._of.get(basin, {})):
            self._forget(basin, key)
        self.basins.forget(basin)
        self.activity.forget(basin)

    # Asking

    def totals(
        self, basin: str, of: str, secs: int, start_s: int, end_s: int
    ) -> dict[str, dict[int, int]]:
        """Return by label the totals of the periods, each of so many seconds, in a window."""
        floor_s = max(start_s, self.since_s(secs))
        found: dict[str, dict[int, int]] = {}
        for (series_of, label), series in self._of.get(basin, {}).items():
            if series_of == of:
                found[label] = {
                    instant: value
                    for instant, value in series.totals(secs).items()
                    if floor_s <= instant < end_s
                }
        return found

    def basin_names(self) -> list[str]:
        """Return all who used anything; the account is the empty name."""
        return sorted({*self._of, *self.basins.keys()})

    def since_s(self, secs: int) -> int:
        """Return from when on totals of such periods are kept; before it, they are a history's."""
        level = LEVEL_SECS.index(secs)
        return self._floors()[level] * secs

    # Room

    def _floors(self) -> Floors:
        now = self._now
        folded = self._folded
        minute = max(folded.minute, (now - USAGE_MINUTES_KEPT) // 60 * 60, 0)
        hour = max(folded.hour, (now // 60 - USAGE_HOURS_KEPT) // 24 * 24, 0)
        day = max(folded.day, now // 1440 - USAGE_DAYS_KEPT, 0)
        return Floors(
            min(minute, now // 60 * 60), min(hour, now // 1440 * 24), min(day, now // 1440)
        )

    def _turn(self, minute: int) -> None:
        """Go to another minute, which is a later one unless a clock was put back."""
        is_new_day = minute // 1440 != self._now // 1440
        self._now = minute
        self._newest.clear()
        if is_new_day:
            self._fold_all()
            self.activity.forget_old(minute * 60)

    def _begin(self, basin: str, of: str, label: str) -> Series:
        if self._series >= self._series_max:
            self._forget_idle()
        series = self._of.setdefault(basin, {})[of, label] = Series()
        self._series += 1
        return series

    def _class_label(self, basin: str, storage_class: str) -> str:
        """Tell apart as many classes of a basin as are sensible: anybody may think of new ones."""
        series = self._of.get(basin)
        if series is None or ("append-ops", storage_class) in series:
            return storage_class
        classes = sum(of == "append-ops" for of, _ in series)
        return storage_class if classes < USAGE_CLASSES_MAX else OTHER_CLASS

    def _fold_all(self) -> None:
        floors = self._floors()
        for basin in list(self._of):
            of_basin = self._of[basin]
            for key in list(of_basin):
                self._points -= of_basin[key].fold(floors)
                if not len(of_basin[key]):
                    self._forget(basin, key)

    def _give_up_resolution(self) -> None:
        """Fold earlier than usual, then forget the oldest days, until there is room again."""
        now = Floors(self._now // 60 * 60, self._now // 1440 * 24, self._now // 1440)
        relieved = int(self._points_max * _RELIEVED)
        for level, wanted in enumerate((relieved, relieved, self._points_max)):
            floor = self._floors()[level]
            while self._points > wanted and floor < now[level]:
                step = _ALIGNED[level]
                floor = min(now[level], floor + max((now[level] - floor) // 2 // step, 1) * step)
                self._folded = Floors(
                    *(floor if at == level else old for at, old in enumerate(self._folded))
                )
                self._fold_all()
        if self._points > self._points_max:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget a quarter of the counters, those first that were idle for the longest."""
        by_age = sorted(
            (series.last_s, basin, key)
            for basin, of_basin in self._of.items()
            for key, series in of_basin.items()
        )
        for _, basin, key in by_age[: max(len(by_age) // 4, 1)]:
            self._forget(basin, key)

    def _forget(self, basin: str, key: tuple[str, str]) -> None:
        self._newest.clear()
        self._points -= len(self._of[basin].pop(key))
        self._series -= 1
        if not self._of[basin]:
            del self._of[basin]

    # Bytes

    def encode(self) -> bytes:
        """Return the bytes that a snapshot keeps; equal tables have equal bytes."""
        counters = [
            (basin, of, label, *(points.to_bytes() for points in series.levels))
            for basin, of_basin in sorted(self._of.items())
            for (of, label), series in sorted(of_basin.items())
        ]
        image = (
            self._now,
            self.flushed,
            self._folded,
            counters,
            self.basins.to_rows(),
            self.streams.to_rows(),
            self.activity.to_rows(),
        )
        return bytes([VERSION]) + msgspec.msgpack.encode(image)

    @classmethod
    def decode(cls, data: bytes) -> "UsageTable":
        """Return the table that the bytes hold, or raise Undecodable."""
        if not data or data[0] != VERSION:
            raise Undecodable(f"usage has version {data[0] if data else 'none'}, not {VERSION}")
        image = decode_with(_IMAGE, memoryview(data)[1:], "usage")
        table = cls()
        table._now = image.now
        table.flushed = image.flushed
        table._folded = Floors(*image.floors)
        for basin, of, label, *levels in image.counters:
            minutes, hours, days = map(Points.from_bytes, levels)
            series = Series((minutes, hours, days))
            of_basin = table._of.setdefault(basin, {})
            if (of, label) in of_basin:
                raise Undecodable(f"a counter is there twice: {basin} {of} {label}")
            of_basin[of, label] = series
            table._series += 1
            table._points += len(series)
        table.basins.load(image.basins)
        table.streams.load(image.streams)
        table.activity = Activity(_times(image.activity))
        return table


def _times(rows: list[tuple[str, Times]]) -> Iterable[tuple[str, Times]]:
    for name, times in rows:
        ends = [0]
        for start_s, end_s in times:
            if not ends[-1] <= start_s < end_s:
                raise Undecodable(f"the times of basin {name} are out of order")
            ends.append(end_s)
        yield name, times


_IMAGE: Final = msgspec.msgpack.Decoder(_Image)
