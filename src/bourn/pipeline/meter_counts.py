"""What the server has counted, as rows of the usage table: periods that are over, each once.

A minute, an hour or a day belongs to the run in which it closes: its end lies behind what was
closed before, and not behind what is closed now.
"""

from collections.abc import Iterator
from typing import Final

from bourn.catalog.series import Points, PointsBytes
from bourn.catalog.usage import UsageTable
from bourn.layout.usage_table import INTERVALS, UsageRow
from bourn.limits import USAGE_HOURS_KEPT
from bourn.model.usage import METERED_SIZE, UsageSet
from bourn.pipeline.names import StreamNames

COUNTED: Final = (
    UsageSet.ACCOUNT_OPS,
    UsageSet.APPEND_OPS,
    UsageSet.APPEND_THROUGHPUT,
    UsageSet.READ_OPS,
    UsageSet.READ_THROUGHPUT,
    UsageSet.BASIN_OPS,
)
HOUR: Final = 3600

Rows = dict[int, list[UsageRow]]  # by the seconds of their interval


def closing(first: int, end: int, secs: int) -> tuple[int, int]:
    """Return the starts, in seconds, of the periods that end in the minutes (first, end]."""
    minutes = secs // 60
    return first // minutes * secs, end // minutes * secs


def count_rows(table: UsageTable, names: StreamNames, first: int, end: int) -> Rows:
    """Return the rows of what closes between two minutes."""
    rows: Rows = {secs: [] for secs in INTERVALS}
    for basin in table.basin_names():
        for of in COUNTED:
            for secs in INTERVALS:
                totals = table.totals(basin, of.value, secs, *closing(first, end, secs))
                rows[secs] += [
                    UsageRow(start_s, basin, 0, of.value, label, value)
                    for label, found in totals.items()
                    for start_s, value in found.items()
                ]
    rows[HOUR] += _hourly(table, names, first, end)
    return rows


def _hourly(table: UsageTable, names: StreamNames, first: int, end: int) -> Iterator[UsageRow]:
    low, high = (start_s // HOUR for start_s in closing(first, end, HOUR))
    low = max(low, high - USAGE_HOURS_KEPT)
    storage = UsageSet.STORAGE.value
    for basin in table.basin_names():
        for hour, value in table.basins.held(basin, low, high):
            if value:
                yield UsageRow(hour * HOUR, basin, 0, storage, METERED_SIZE, value)
    for hour in range(low, high):
        for basin in table.activity.active(hour * HOUR, (hour + 1) * HOUR):
            yield UsageRow(hour * HOUR, basin, 0, UsageSet.ACTIVE_BASINS.value, "", 1)
    for stream_id, data in table.streams.to_rows():
        name = names.get(stream_id)
        if name is not None:
            for hour, value in _ends(data, low, high).items():
                yield UsageRow(hour * HOUR, name[0], stream_id, storage, METERED_SIZE, value)


def _ends(data: PointsBytes, low: int, high: int) -> dict[int, int]:
    """Return the last value of each hour in which there is one."""
    points = Points.from_bytes(data)
    return {minute // 60: value for minute, value in points if low <= minute // 60 < high}
