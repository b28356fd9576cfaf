"""A read out of memory, and how long its answer holds.

What a read gives depends on the durable tail of its stream, and on the time where records expire;
records themselves never change, and what trims them is a record too. A batch that did not fit
counts as well: when it expires, one behind it may. As long as the stream of that
name has that very tail (the object, which is no other stream's), the answer is the same. Whether
the stream may still be read (it is there, is not being deleted, and this node leads) is asked each
time.
"""

from math import inf
from typing import NamedTuple

from bourn.engine.batch import ReadBatch
from bourn.layout.entry import Entry
from bourn.model.record import StreamPosition


class Sight(NamedTuple):
    """Everything that an answer depends on."""

    tail: StreamPosition
    from_ms: int  # what had expired by then might be there again, if the clock goes back
    until_ms: float


class Glance(NamedTuple):
    """A batch out of memory, and what was seen of its stream."""

    batch: ReadBatch
    tail: StreamPosition
    now_ms: int
    left_out: Entry | None = None  # the stored batch that did not fit, or not all of it

    def sight(self) -> Sight:
        """Return what the batch depends on."""
        until_ms = min((_end_ms(entry) for entry, _, _ in self.batch.slices), default=inf)
        if self.left_out is not None:
            until_ms = min(until_ms, _end_ms(self.left_out))
        return Sight(self.tail, self.now_ms, until_ms)


def _end_ms(entry: Entry) -> float:
    """When a stored batch expires."""
    return entry.arrival_ms + entry.retention_secs * 1000 if entry.retention_secs else inf
