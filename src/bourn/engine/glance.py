"""A read out of memory, and how long its answer holds.

What a read gives depends on the durable tail of its stream, and on the time where records expire;
records themselves never change, and what trims them is a record too. As long as the stream of that
name has that very tail (the object, which is no other stream's), the answer is the same. Whether
the stream may still be read (it is there, is not being deleted, and this node leads) is asked each
time.
"""

from math import inf
from typing import NamedTuple

from bourn.engine.batch import ReadBatch
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

    def sight(self) -> Sight:
        """Return what the batch depends on."""
        until_ms = min(
            (
                entry.arrival_ms + entry.retention_secs * 1000
                for entry, _, _ in self.batch.slices
                if entry.retention_secs
            ),
            default=inf,
        )
        return Sight(self.tail, self.now_ms, until_ms)
