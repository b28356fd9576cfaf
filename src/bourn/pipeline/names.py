"""The names of streams as of a commit of the log: a snapshot, and the changes that came since.

Streams and basins that are being deleted have none: nobody will read them again.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from bourn.catalog.changes import Change, DropBasin, DropStream, PutBasin, PutStream
from bourn.catalog.rows import BasinRow, StreamRow, decode_basin_row, decode_stream_row
from bourn.errors import Damaged, Undecodable
from bourn.layout.keys import snapshot_key
from bourn.layout.snapshot import Snapshot


class StreamNames(Mapping[int, tuple[str, str]]):
    """Stream ids to the names of basin and stream; compact, made to be sent to executors."""

    __slots__ = ("_basin_ids", "_basins", "_changed", "_ids", "_names", "_offsets")

    def __init__(
        self,
        ids: npt.NDArray[np.uint64],
        basin_ids: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.int64],
        names: bytes,
        basins: dict[int, str],
        changed: dict[int, tuple[int, str] | None],
    ) -> None:
        """`ids` ascend; row i's name is `names` from offsets[i] to offsets[i + 1].

        `changed` goes before the rows; None is a stream that is gone.
        """
        self._ids = ids
        self._basin_ids = basin_ids
        self._offsets = offsets
        self._names = names
        self._basins = basins
        self._changed = changed

    def __getitem__(self, stream_id: int) -> tuple[str, str]:
        changed = self._changed
        found = changed[stream_id] if stream_id in changed else self._row(stream_id)
        if found is None or found[0] not in self._basins:
            raise KeyError(stream_id)
        return self._basins[found[0]], found[1]

    def _row(self, stream_id: int) -> tuple[int, str] | None:
        at = bisect_left(self._ids, stream_id)
        if at == len(self._ids) or self._ids[at] != stream_id:
            return None
        name = self._names[self._offsets[at] : self._offsets[at + 1]]
        return int(self._basin_ids[at]), name.decode()

    def __iter__(self) -> Iterator[int]:
        every = {*self._ids.tolist(), *self._changed}
        return iter(sorted(stream_id for stream_id in every if stream_id in self))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Catalog:
    """What the log says of basins and streams, applied change by change."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Begin with a snapshot, or with nothing; Damaged where its rows are none."""
        self._basins: dict[int, str] = {}
        self._changed: dict[int, tuple[int, str] | None] = {}
        self._ids = self._basin_ids = np.empty(0, np.uint64)
        self._offsets = np.zeros(1, np.int64)
        self._names = b""
        if snapshot is not None:
            self._begin(snapshot)

    def _begin(self, snapshot: Snapshot) -> None:
        columns = snapshot.columns
        try:
            for data in snapshot.meta.basins:
                self._put_basin(decode_basin_row(data))
            # Whoever is being deleted is to be looked at, at once: no other row need be read.
            for at in np.flatnonzero(columns.next_checks_s == 0).tolist():
                row = decode_stream_row(columns.rows[at])
                if row.deleted_at_ms is not None:
                    self._changed[row.id] = None
        except Undecodable as error:
            raise Damaged(snapshot_key(snapshot.meta.position), str(error)) from error
        order = np.argsort(columns.ids)
        self._ids = columns.ids[order]
        self._basin_ids = columns.basin_ids[order]
        names = [columns.names[row] for row in order.tolist()]
        self._offsets = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self._names = b"".join(names)

    def apply(self, change: Change) -> None:
        """Make a change hold."""
        match change:
            case PutBasin(row=row):
                self._put_basin(row)
            case DropBasin(id=basin_id):
                self._basins.pop(basin_id, None)
            case PutStream(row=row):
                self._put_stream(row)
            case DropStream(id=stream_id):
                self._changed[stream_id] = None

    def _put_basin(self, row: BasinRow) -> None:
        if row.deleted_at_ms is None:
            self._basins[row.id] = row.name
        else:
            self._basins.pop(row.id, None)

    def _put_stream(self, row: StreamRow) -> None:
        going = row.deleted_at_ms is not None
        self._changed[row.id] = None if going else (row.basin_id, row.name)

    def living_ids(self) -> npt.NDArray[np.uint64]:
        """Return the ids of all streams that have a name, ascending."""
        basins = np.fromiter(self._basins, np.uint64, len(self._basins))
        changed = np.fromiter(self._changed, np.uint64, len(self._changed))
        kept = np.isin(self._basin_ids, basins) & ~np.isin(self._ids, changed)
        come = [
            stream_id
            for stream_id, found in self._changed.items()
            if found is not None and found[0] in self._basins
        ]
        return np.union1d(self._ids[kept], np.array(come, np.uint64))

    def names(self) -> StreamNames:
        """Return the names as they are now; later changes do not change them."""
        return StreamNames(
            self._ids,
            self._basin_ids,
            self._offsets,
            self._names,
            dict(self._basins),
            dict(self._changed),
        )
