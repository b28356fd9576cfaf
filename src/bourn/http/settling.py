"""Where a client's acknowledgement of our HTTP/2 settings ends, in what it sends.

    preface    24 B
    frame      +----------------+----------+-----------+---------------+---------------------+
               | length: 3 B BE | type 1 B | flags 1 B | stream id 4 B | payload: length B   |
               +----------------+----------+-----------+---------------+---------------------+

Behind its ack a client may send frames as large as the settings allow. The library takes apart all
that it is handed before it looks at the ack, by the old limit. So it is handed the ack alone first.
"""

from typing import Final

PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4
_ACK: Final = 1


class Settling:
    """Follows the frames of a connection up to the ack."""

    __slots__ = ("_head", "_skipped_bytes", "is_over")

    def __init__(self) -> None:
        self._head = bytearray()  # of a frame whose head is not complete
        self._skipped_bytes = PREFACE_BYTES  # still to come, up to the next head
        self.is_over = False

    def end(self, data: bytes) -> int:
        """Return how much of the next bytes may be handed over at once."""
        at, size = 0, len(data)
        while True:
            skipped = min(self._skipped_bytes, size - at)
            self._skipped_bytes -= skipped
            at += skipped
            if at == size:
                return size
            lacking = _HEAD_BYTES - len(self._head)
            self._head += data[at : at + lacking]
            at = min(at + lacking, size)
            if len(self._head) < _HEAD_BYTES:
                return size
            self._skipped_bytes = int.from_bytes(self._head[:3], "big")
            kind, flags = self._head[3], self._head[4]
            self._head.clear()
            if kind == _SETTINGS and flags & _ACK:
                self.is_over = True
                return at
