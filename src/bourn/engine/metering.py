"""Usage as a part of the state: counts that come from the log, sizes that come from the streams.

The same transitions serve a running node and recovery, like all of `state`. Sizes are not counted
but kept: what the runs of a basin's streams hold, whatever added them or took them away.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from bourn.catalog.basin_table import BasinTable
from bourn.catalog.cold import ColdStreams
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.catalog.usage import HOUR_MS, MINUTE_MS, UsageLine, UsageTable
from bourn.engine.stream import Stream
from bourn.limits import USAGE_STREAMS_CHANGED_MAX, USAGE_STREAMS_FLUSHED_MAX

BasinSize = tuple[str, int, int]  # name, hour, metered bytes
StreamSize = tuple[int, int, int]  # id, minute, metered bytes


class Metering:
    """The usage of one state. `table` is the log's; everything else is made anew at each start."""

    def __init__(self, basins: BasinTable, cold: ColdStreams, table: UsageTable | None) -> None:
        """Without a table, one begins here: with the streams that are there already."""
        self.table = UsageTable() if table is None else table
        self._basins = basins
        self._bytes: dict[int, int] = {}  # of the log
        self._history: dict[int, int] = {}  # of the table, as counted last
        self._streams: dict[int, int] = {}
        for basin_id, streams, size_bytes in cold.usage():
            self._streams[basin_id] = streams
            self._bytes[basin_id] = size_bytes
            row = basins.by_id(basin_id)
            if table is None and row is not None:
                self.table.activity.begin(row.name, row.created_at_ms // 1000)
        self._changed_basins = set(self._bytes)
        self._changed_streams: dict[int, None] = {}  # in the order of their first change

    # What a commit does

    def appended(self, created_ms: int, runs: Iterable[tuple[Stream, int, int]]) -> None:
        """Count the runs of a commit: stream, batches, metered bytes."""
        totals: dict[tuple[int, str], list[int]] = {}
        for stream, batches, metered_bytes in runs:
            row = stream.row
            key = (row.basin_id, row.config.storage_class)
            found = totals.get(key)
            if found is None:
                totals[key] = [batches, metered_bytes]
            else:
                found[0] += batches
                found[1] += metered_bytes
            self._changed(row.id)
        minute = created_ms // MINUTE_MS
        for (basin_id, storage_class), (batches, metered_bytes) in totals.items():
            self._resize(basin_id, metered_bytes)
            basin = self._basins.by_id(basin_id)
            if basin is not None:
                self.table.count_appends(minute, basin.name, storage_class, batches, metered_bytes)

    # What catalog changes do

    def stream_added(self, row: StreamRow) -> None:
        """Note a new stream."""
        streams = self._streams.get(row.basin_id, 0)
        self._streams[row.basin_id] = streams + 1
        basin = self._basins.by_id(row.basin_id)
        if not streams and basin is not None:
            self.table.activity.begin(basin.name, row.created_at_ms // 1000)

    def stream_dropped(self, stream: Stream) -> None:
        """Note that a stream is gone with all its records."""
        row = stream.row
        self.removed(stream, stream.runs.metered_bytes())
        self._changed_streams.pop(row.id, None)
        self.table.streams.forget(row.id)
        left = self._streams.get(row.basin_id, 1) - 1
        self._streams[row.basin_id] = left
        basin = self._basins.by_id(row.basin_id)
        if not left and basin is not None:
            gone_ms = row.created_at_ms if row.deleted_at_ms is None else row.deleted_at_ms
            self.table.activity.end(basin.name, gone_ms // 1000)

    def basin_dropped(self, row: BasinRow) -> None:
        """Note that a basin is gone, and with it all that tells of it, its name too."""
        self._bytes.pop(row.id, None)
        self._history.pop(row.id, None)
        self._streams.pop(row.id, None)
        self._changed_basins.discard(row.id)
        self.table.forget_basin(row.name)

    def flushed(
        self,
        number: int,
        lines: Iterable[UsageLine],
        basins: Iterable[BasinSize],
        streams: Iterable[StreamSize],
    ) -> None:
        """Take over what a writer counted; of a basin that is gone by now, nothing."""
        self.table.flush(
            number,
            [line for line in lines if not line.basin or self._basins.get(line.basin)],
            [size for size in basins if self._basins.get(size[0])],
            streams,
        )

    # Sizes

    def removed(self, stream: Stream, metered_bytes: int) -> None:
        """Note that records of a stream were removed: they were trimmed, or expired."""
        if metered_bytes:
            self._resize(stream.row.basin_id, -metered_bytes)
            self._changed(stream.id)

    def handed_over(self, basin_id: int, metered_bytes: int) -> None:
        """Note that the log holds less: what is gone from it is counted with the history."""
        if metered_bytes:
            self._resize(basin_id, -metered_bytes)

    def history_counted(self, sizes: Mapping[int, int]) -> None:
        """Take over what the history holds of each basin."""
        for basin_id in self._history.keys() | sizes.keys():
            if self._history.get(basin_id, 0) != sizes.get(basin_id, 0):
                self._changed_basins.add(basin_id)
        self._history = dict(sizes)

    def history_removed(self, stream: Stream, metered_bytes: int) -> None:
        """Note that the history's records of a stream count no more, ahead of the next count."""
        basin_id = stream.row.basin_id
        if metered_bytes and basin_id in self._history:
            left = self._history[basin_id] - metered_bytes
            self._history[basin_id] = max(left, 0)
            self._changed_basins.add(basin_id)

    def _held(self, basin_id: int) -> int:
        return self._bytes.get(basin_id, 0) + self._history.get(basin_id, 0)

    def streams_of(self, basin_id: int) -> int:
        """Return how many streams a basin has, those included that are being deleted."""
        return self._streams.get(basin_id, 0)

    def basin_bytes(self, basin: str) -> int | None:
        """Return what a basin's streams hold; None where there is no such basin."""
        row = self._basins.get(basin)
        return None if row is None else self._held(row.id)

    def changed_sizes(
        self, now_ms: int, size_of: Callable[[int], int | None]
    ) -> tuple[list[BasinSize], list[StreamSize]]:
        """Take what has changed since the last time; some streams stay for the next one.

        `size_of` tells a stream's metered bytes.
        """
        basins: list[BasinSize] = []
        for basin_id in sorted(self._changed_basins):
            row = self._basins.by_id(basin_id)
            size_bytes = self._held(basin_id)
            if row is not None and self.table.basins.last_value(row.name) != size_bytes:
                basins.append((row.name, now_ms // HOUR_MS, size_bytes))
        self._changed_basins.clear()
        streams: list[StreamSize] = []
        for stream_id in list(islice(self._changed_streams, USAGE_STREAMS_FLUSHED_MAX)):
            del self._changed_streams[stream_id]
            found = size_of(stream_id)
            if found is not None and self.table.streams.last_value(stream_id) != found:
                streams.append((stream_id, now_ms // MINUTE_MS, found))
        return basins, streams

    def _changed(self, stream_id: int) -> None:
        if len(self._changed_streams) < USAGE_STREAMS_CHANGED_MAX:
            self._changed_streams[stream_id] = None

    def _resize(self, basin_id: int, metered_bytes: int) -> None:
        self._bytes[basin_id] = self._bytes.get(basin_id, 0) + metered_bytes
        self._changed_basins.add(basin_id)
