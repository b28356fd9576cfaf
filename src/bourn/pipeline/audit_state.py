"""The streams as of the end of the log: the newest snapshot, and what the commits behind it did."""

from collections.abc import Iterable

import numpy as np

from bourn.catalog.changes import PutBasin, PutStream, decode_change
from bourn.catalog.rows import StreamRow, decode_stream_row
from bourn.errors import Damaged, Undecodable
from bourn.layout.keys import snapshot_key
from bourn.layout.snapshot import Snapshot
from bourn.model.config import Age
from bourn.pipeline.audit_facts import Facts, Findings
from bourn.pipeline.audit_streams import STREAM
from bourn.pipeline.names import Catalog, StreamNames


class StreamStates:
    """Applies what commits did, in their order."""

    def __init__(self, snapshot: Snapshot | None, now_ms: int, findings: Findings) -> None:
        """Begin with a snapshot, or with nothing; a row that is none is among the findings."""
        self._now_ms = now_ms
        self._findings = findings
        self._rows: dict[int, list[int]] = {}
        self.next_id = 0
        try:
            self._catalog = Catalog(snapshot)
        except Damaged as damage:
            self._catalog = Catalog()
            findings.add("damaged", damage.key, str(damage))
        if snapshot is not None:
            self._begin(snapshot)

    def _begin(self, snapshot: Snapshot) -> None:
        self.next_id = snapshot.meta.next_resource_id
        columns = snapshot.columns
        for at, (stream_id, tail, stamp, trim_point, last_write_ms) in enumerate(
            zip(
                columns.ids.tolist(),
                columns.next_seq_nums.tolist(),
                columns.last_timestamps.tolist(),
                columns.trim_points.tolist(),
                columns.last_writes_ms.tolist(),
                strict=True,
            )
        ):
            try:
                row = decode_stream_row(columns.rows[at])
            except Undecodable as error:
                key = snapshot_key(snapshot.meta.position)
                self._findings.add("damaged", key, str(error), stream_id)
                continue
            self._rows[stream_id] = [
                stream_id,
                tail,
                stamp,
                trim_point,
                _retention_of(row),
                row.created_at_ms,
                last_write_ms,
            ]

    def apply(self, changes: Iterable[bytes], trims: Iterable[tuple[int, int]]) -> None:
        """Make the changes of some commits hold, and the trims in them."""
        for data in changes:
            try:
                change = decode_change(data)
            except Undecodable:
                continue  # told of its commit
            self._catalog.apply(change)
            match change:
                case PutBasin(row=basin):
                    self.next_id = max(self.next_id, basin.id + 1)
                case PutStream(row=row):
                    self._put(row)
                case _:
                    pass
        for stream_id, trim_point in trims:
            found = self._rows.get(stream_id)
            if found is not None:
                found[3] = max(found[3], trim_point)

    def _put(self, row: StreamRow) -> None:
        self.next_id = max(self.next_id, row.id + 1)
        found = self._rows.get(row.id)
        if found is None:
            self._rows[row.id] = [
                row.id, 0, 0, 0, _retention_of(row), row.created_at_ms, self._now_ms
            ]  # fmt: skip
        else:
            found[4] = _retention_of(row)

    def names(self) -> StreamNames:
        """Return the names of the streams that there are."""
        return self._catalog.names()

    def streams(self) -> Facts:
        """Return all streams that there are."""
        living = set(self._catalog.living_ids().tolist())
        rows = [tuple(row) for stream_id, row in self._rows.items() if stream_id in living]
        found: Facts = np.array(rows, STREAM)
        return found


def _retention_of(row: StreamRow) -> int:
    policy = row.config.retention_policy
    return policy.secs if isinstance(policy, Age) else 0
