"""Streams that are not in use: immutable columns, and the searches over them.

A stream costs its bytes here and no Python object, which is what lets a node hold a million.
Nothing is ever changed in place: `merge` makes new columns, so it may run in a thread while the
old ones are being read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from bourn.layout.runs import NEVER_S, RUN_DTYPE
from bourn.layout.snapshot import StreamColumns, StreamImage

ABSENT: Final = -1
SIGNPOST_ROWS: Final = 32

I64Array = npt.NDArray[np.int64]


class ColdStreams:
    """Rows sorted by (basin_id, name), numbered from 0; a row number holds for this object only."""

    __slots__ = ("_basin_ids", "_by_id", "_ids", "_signposts", "columns")

    def __init__(self, columns: StreamColumns) -> None:
        self.columns = columns
        # A memoryview hands out plain ints, which bisect compares three times faster than numpy's.
        self._ids = columns.ids.data
        self._basin_ids = columns.basin_ids.data
        order = np.argsort(columns.ids).astype(np.uint32)
        self._by_id = order.data
        # Every so many names as an object, which bisect compares ten times faster than a row's.
        names = columns.names
        self._signposts = [names[row] for row in range(0, len(names), SIGNPOST_ROWS)]

    @classmethod
    def empty(cls) -> "ColdStreams":
        """Return no streams at all."""
        return cls(StreamColumns.of([]))

    def __len__(self) -> int:
        return len(self._ids)

    def id_at(self, row: int) -> int:
        """Return the id of the stream in a row."""
        return self._ids[row]

    def name_at(self, row: int) -> str:
        """Return the name of the stream in a row."""
        return self.columns.names[row].decode()

    def row_at(self, row: int) -> bytes:
        """Return the packed catalog row of the stream in a row."""
        return self.columns.rows[row]

    def image(self, row: int) -> StreamImage:
        """Return all that is kept of the stream in a row."""
        return self.columns.image(row)

    def find(self, basin_id: int, name: str) -> int:
        """Return the row of a stream by its name, or ABSENT."""
        low, high = self._basin(basin_id)
        key = name.encode()
        names = self.columns.names
        row = self._name_at_or_behind(key, low, high)
        return row if row < high and names[row] == key else ABSENT

    def find_id(self, stream_id: int) -> int:
        """Return the row of a stream by its id, or ABSENT."""
        by_id = self._by_id
        ids = self._ids
        at = bisect_left(by_id, stream_id, key=ids.__getitem__)
        if at < len(by_id) and ids[by_id[at]] == stream_id:
            return by_id[at]
        return ABSENT

    def range(self, basin_id: int, prefix: str = "", start_after: str = "") -> tuple[int, int]:
        """Return the rows [low, high) whose names have the prefix and lie behind `start_after`."""
        low, high = self._basin(basin_id)
        if prefix:
            key = prefix.encode()
            low = self._name_at_or_behind(key, low, high)
            # The last byte of UTF-8 is never 0xFF, so this is the first string behind the prefix.
            high = self._name_at_or_behind(key[:-1] + bytes([key[-1] + 1]), low, high)
        if start_after:
            # A string is followed by itself and a zero byte, and nothing lies between.
            low = self._name_at_or_behind(start_after.encode() + b"\0", low, high)
        return low, high

    def count(self, basin_id: int) -> int:
        """Return the number of a basin's streams."""
        low, high = self._basin(basin_id)
        return high - low

    def due(self, now_s: int) -> I64Array:
        """Return the rows that housekeeping must look at by now."""
        next_checks_s = self.columns.next_checks_s
        return np.flatnonzero((next_checks_s <= now_s) & (next_checks_s != NEVER_S))

    def commit_counts(self, base: int) -> I64Array:
        """Count the runs in each commit: element i is of ordinal `base` + i.

        Raises ValueError where a run lies in a commit before `base`.
        """
        commits = np.frombuffer(self.columns.runs.data, RUN_DTYPE)["commit"]
        if len(commits) and int(commits.min()) < base:
            raise ValueError(f"a run lies in commit {int(commits.min())}, before {base}")
        return np.bincount((commits - np.uint64(base)).astype(np.int64))

    def usage(self) -> list[tuple[int, int, int]]:
        """Return each basin's id, the number of its streams, and their metered bytes."""
        metered = np.frombuffer(self.columns.runs.data, RUN_DTYPE)["metered"]
        before = np.concatenate([[0], np.cumsum(metered, dtype=np.int64)])
        firsts = np.asarray(self.columns.runs.offsets) // RUN_DTYPE.itemsize
        basin_ids, rows, counts = np.unique(
            self.columns.basin_ids, return_index=True, return_counts=True
        )
        sizes = before[firsts[rows + counts]] - before[firsts[rows]]
        return list(zip(basin_ids.tolist(), counts.tolist(), sizes.tolist(), strict=True))

    def run_bytes(
        self, first: int, end: int, skipped: npt.NDArray[np.bool_]
    ) -> list[tuple[int, int]]:
        """Return each basin's id and the metered bytes of its runs in the commits [first, end).

        Rows that are `skipped` do not count.
        """
        runs = np.frombuffer(self.columns.runs.data, RUN_DTYPE)
        commits = runs["commit"]
        counted = (commits >= np.uint64(first)) & (commits < np.uint64(end))
        if not counted.any():
            return []
        before = np.concatenate(
            [[0], np.cumsum(np.where(counted, runs["metered"], 0), dtype=np.int64)]
        )
        offsets = np.asarray(self.columns.runs.offsets) // RUN_DTYPE.itemsize
        sizes = np.where(skipped, 0, before[offsets[1:]] - before[offsets[:-1]])
        basin_ids, rows = np.unique(self.columns.basin_ids, return_index=True)
        totals = np.add.reduceat(sizes, rows)
        return list(zip(basin_ids.tolist(), totals.tolist(), strict=True))

    def merge(
        self, images: Sequence[StreamImage], removed: Collection[int], runs_from: int = 0
    ) -> "ColdStreams":
        """Return these streams with `images` added, or in place of the streams of their ids.

        Streams with ids in `removed` are left out, and so are the runs of commits below
        `runs_from`. Raises ValueError where two streams would have
        one name or one id.
        """
        changed = StreamColumns.of(images)
        fault = changed.fault()
        if fault is not None:
            raise ValueError(fault)
        replaced = self.rows_of(changed.ids)
        gone = self.rows_of(np.fromiter(removed, np.uint64, len(removed)))
        kept = np.ones(len(self), np.bool_)
        kept[replaced[replaced != ABSENT]] = False
        kept[gone[gone != ABSENT]] = False
        places = self._places(changed, replaced, kept)
        rows = np.flatnonzero(kept)
        new_rows = np.arange(len(self), len(self) + len(changed))
        order = np.insert(rows, np.searchsorted(rows, places), new_rows)
        return ColdStreams(self.columns.splice(changed, order).without_runs_before(runs_from))

    def _places(
        self, changed: StreamColumns, replaced: I64Array, kept: npt.NDArray[np.bool_]
    ) -> I64Array:
        """Return for each changed stream the first row that does not sort before it."""
        places = replaced.copy()
        names = self.columns.names
        basin_ids = changed.basin_ids.tolist()
        for index, row in enumerate(replaced.tolist()):
            name = changed.names[index]
            if row != ABSENT and names[row] == name and self._basin_ids[row] == basin_ids[index]:
                continue  # nothing but its values has changed
            low, high = self._basin(basin_ids[index])
            place = self._name_at_or_behind(name, low, high)
            if place < high and kept[place] and names[place] == name:
                raise ValueError(f"two streams have the name {name.decode()}")
            places[index] = place
        return places

    def rows_of(self, ids: npt.NDArray[np.uint64]) -> I64Array:
        """Return the row of each id, or ABSENT."""
        rows = np.full(len(ids), ABSENT, np.int64)
        if len(self):
            by_id = np.asarray(self._by_id)
            sorted_ids = self.columns.ids[by_id]
            at = np.minimum(np.searchsorted(sorted_ids, ids), len(self) - 1)
            found = sorted_ids[at] == ids
            rows[found] = by_id[at[found]]
        return rows

    def _name_at_or_behind(self, name: bytes, low: int, high: int) -> int:
        """Return the first row in [low, high] of one basin whose name is not before this one."""
        first, last = -(-low // SIGNPOST_ROWS), -(-high // SIGNPOST_ROWS)
        post = bisect_left(self._signposts, name, first, last)
        if post > first:
            low = (post - 1) * SIGNPOST_ROWS + 1
        if post < last:
            high = post * SIGNPOST_ROWS
        return bisect_left(self.columns.names, name, low, high)

    def _basin(self, basin_id: int) -> tuple[int, int]:
        low = bisect_left(self._basin_ids, basin_id)
        return low, bisect_right(self._basin_ids, basin_id, low)
