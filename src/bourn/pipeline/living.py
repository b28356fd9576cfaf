"""Which rows of the history may still be read, and which are dead for ever.

A row is dead when its stream or its basin is gone or being deleted, when it lies below the trim
point, or when it has expired, by what it says itself. None of that is ever taken back: ids are not
used again, trim points only rise. Everything else may be read, and is kept.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bourn.layout.history.index import SegmentIndex
from bourn.layout.history.segment import expires_s_of

U64Array = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]

_U64: Final = np.uint64


class Trims(NamedTuple):
    """Trim points by stream id, ascending."""

    ids: U64Array
    points: U64Array

    def of(self, ids: U64Array) -> U64Array:
        """Return the trim points of some streams; 0 where none is known."""
        found, at = _find(self.ids, ids)
        points = np.zeros(len(ids), _U64)
        points[found] = self.points[at[found]]
        return points


class Living(NamedTuple):
    """The streams that there are, ascending, and their trim points; small enough to be sent."""

    ids: U64Array
    trims: U64Array
    expired_s: int = 0  # what expires at this second, or before it, has expired

    def shares(self, index: SegmentIndex, spread_s: int) -> "BlockShares":
        """Return how much of each block is dead, without a look at its rows.

        `spread_s` is the time from the first to the last arrival of the segment. Of a block in
        which some rows may have expired the share is estimated, as if they had come evenly.
        """
        found, at = _find(self.ids, index.stream_ids)
        trims = np.zeros(len(index), _U64)
        trims[found] = self.trims[at[found]]
        firsts, lasts = index.column("first_seq_num"), index.column("last_seq_num")
        expires_s = index.expires_s.astype(np.int64)
        whole = ~found | (trims > lasts) | (expires_s <= self.expired_s)
        trimmed = (np.maximum(trims, firsts) - firsts) / (lasts - firsts + 1.0)
        expired = (self.expired_s - expires_s + spread_s + 1) / (spread_s + 1.0)
        dead = np.clip(np.maximum(trimmed, expired), 0.0, 1.0)
        return BlockShares(~found, whole, np.where(whole, 1.0, dead))

    def alive(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Tell of each row whether it may still be read."""
        ids = u64_of(rows, "stream_id")
        found, at = _find(self.ids, ids)
        trims = np.zeros(len(ids), _U64)
        trims[found] = self.trims[at[found]]
        alive = found & (u64_of(rows, "seq_num") >= trims) & (expiry_of(rows) > self.expired_s)
        return np.asarray(alive, np.bool_)


class BlockShares(NamedTuple):
    """Of each block: is its stream gone, is all of it dead, and about which part of it is."""

    gone: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]
    dead: npt.NDArray[np.float64]


def u64_of(rows: pa.Table, name: str) -> U64Array:
    """Return a column of longs as what they stand for."""
    values: I64Array = rows.column(name).to_numpy()
    return values.view(_U64)


def expiry_of(rows: pa.Table) -> I64Array:
    """Return the second at which each row expires."""
    arrivals: I64Array = rows.column("arrival").cast(pa.int64()).to_numpy()
    return expires_s_of(arrivals, u64_of(rows, "retention_secs"))


def _find(known: U64Array, wanted: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], I64Array]:
    """Tell which are known, and where those stand."""
    at = np.searchsorted(known, wanted)
    found = np.zeros(len(wanted), np.bool_)
    inside = at < len(known)
    found[inside] = known[at[inside]] == wanted[inside]
    return found, at
