"""A server on its way out: first it advises its clients to move, then it insists.

From `begin` on, new requests are told to go elsewhere, frames carry the reconnect bit, and readers
that have nothing to wait for but the tail get one frame at once to carry it. From `end` on,
sessions are ended: appends with the acks of all that was admitted and then one terminal frame, so
that whatever has no ack did not happen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bourn.engine.node import Node
from bourn.errors import ServerDraining

ADVICE_SHARE: Final = 0.5  # of the time to stop: so long clients may move by themselves


class Draining:
    """Whether the server is about to stop, and who must know."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.wanted = False
        self.insisted = False
        self._sessions: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """Advise every client to move."""
        if not self.wanted:
            self.wanted = True
            self._node.hurry_readers()

    def end(self) -> None:
        """End every session and every wait."""
        self.begin()
        self.insisted = True
        for halt in list(self._sessions):
            halt()
        self._node.end_reads(self.refusal())

    def refusal(self) -> ServerDraining:
        """What a client is told that must go elsewhere."""
        return ServerDraining("the server is about to stop")

    @contextmanager
    def watched(self, halt: Callable[[], None]) -> Iterator[None]:
        """Have a session halted when the time comes; at once, if it has."""
        self._sessions.add(halt)
        try:
            if self.insisted:
                halt()
            yield
        finally:
            self._sessions.discard(halt)
