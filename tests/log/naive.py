"""A reader of arrays, as plain as can be: what the cursor's budgets mean for stored records."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bourn.layout.records import U64Array
from bourn.log.cursor import Budget, Cursor
from bourn.model.record import StreamPosition


def fit(
    room: Budget, metered_bytes: npt.NDArray[np.unsignedinteger[Any]], timestamps: int | U64Array
) -> int:
    """Count the leading records that fit; one size per record, timestamps as admission has them."""
    fitting = min(room.records, len(metered_bytes))
    totals = np.cumsum(metered_bytes[:fitting], dtype=np.uint64)
    fitting = int(np.searchsorted(totals, np.uint64(room.metered_bytes), side="right"))
    if room.until is None:
        return fitting
    if isinstance(timestamps, int):
        return fitting if timestamps < room.until else 0
    # A plain int would make numpy compare as float64, which is not exact up here.
    return min(fitting, int(np.searchsorted(timestamps, np.uint64(room.until), side="left")))


def refuses(cursor: Cursor, metered_bytes: int, timestamp: int) -> bool:
    """Whether the limits exclude the record that comes next, so that the read ends before it."""
    return (
        cursor.count_left == 0
        or (cursor.bytes_left is not None and metered_bytes > cursor.bytes_left)
        or (cursor.until is not None and timestamp >= cursor.until)
    )


def batch_tail(records: int, live_end: StreamPosition | None) -> StreamPosition | None:
    """Return the `tail` that a delivered batch shows.

    `live_end` is the position behind the whole live batch that the records were cut from, None
    for records from history: there, and in an empty result, a tail would claim "caught up".
    """
    return live_end if records else None
