"""What clients have asked for and do not take: bounded over all of them.

A client that reads slowly holds one piece of its answer; thousands that read nothing would hold
all memory. Beyond the bound, those that have stalled the longest are cut off: they can come back
and go on where they were. Who has only just begun is spared, unless so many begin at once that
twice the bound is reached.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from bourn.limits import BACKLOG_BYTES_MAX, BACKLOG_STALL_SECS


class Waiting(msgspec.Struct, eq=False):
    """A piece on its way."""

    since: float
    size_bytes: int
    cut: Callable[[], None]


class Backlog:
    """The pieces that wait for their clients, oldest first."""

    def __init__(self, now: Callable[[], float], bytes_max: int = BACKLOG_BYTES_MAX) -> None:
        self._now = now
        self._bytes_max = bytes_max
        self._waiting: dict[int, Waiting] = {}
        self.bytes_held = 0
        self.cut_count = 0

    @contextmanager
    def held(self, size_bytes: int, cut: Callable[[], None]) -> Iterator[Waiting]:
        """Count a piece while it is being sent; `cut` ends its connection."""
        piece = self.hold(size_bytes, cut)
        try:
            yield piece
        finally:
            self.drop(piece)

    def hold(self, size_bytes: int, cut: Callable[[], None]) -> Waiting:
        """Count a piece until it is dropped; `cut` ends its connection."""
        piece = Waiting(self._now(), size_bytes, cut)
        self._waiting[id(piece)] = piece
        self.bytes_held += size_bytes
        if self.bytes_held > self._bytes_max:
            self._relieve(piece.since)
        return piece

    def took(self, piece: Waiting) -> None:
        """Take note that the client has taken a part of a piece: it has not stalled."""
        if self._waiting.pop(id(piece), None) is not None:
            piece.since = self._now()
            self._waiting[id(piece)] = piece

    def _relieve(self, now: float) -> None:
        for piece in list(self._waiting.values()):
            is_new = now - piece.since < BACKLOG_STALL_SECS
            if self.bytes_held <= (2 * self._bytes_max if is_new else self._bytes_max):
                return
            self.drop(piece)
            self.cut_count += 1
            piece.cut()

    def drop(self, piece: Waiting) -> None:
        """Count a piece no more; harmless where it is not counted by now."""
        if self._waiting.pop(id(piece), None) is not None:
            self.bytes_held -= piece.size_bytes
