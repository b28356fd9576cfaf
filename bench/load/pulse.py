"""What a server's loop leaves behind for others to see: how long its turns are.

pulse: 8 B LE, when the loop was last heard of, in ns since the Unix epoch
turns: as many as there is room for, in a ring: from and to, 8 B LE each
"""

import mmap
import struct
from pathlib import Path
from typing import Final

from bench.load.witness import Span

NOTED_NS_MIN: Final = 20_000_000  # shorter turns are not noted
TURNS_MAX: Final = 1024
_PULSE: Final = struct.Struct("<Q")
_TURN: Final = struct.Struct("<QQ")
_BYTES: Final = _PULSE.size + TURNS_MAX * _TURN.size


class Pulse:
    """What a loop leaves behind, and what is seen of it from outside."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._noted = 0

    def beat(self, now: int) -> None:
        """Leave a stamp; a long while since the last one is noted."""
        last = self.last_ns()
        if last and now - last > NOTED_NS_MIN:
            at = _PULSE.size + self._noted % TURNS_MAX * _TURN.size
            _TURN.pack_into(self._map, at, last, now)
            self._noted += 1
        _PULSE.pack_into(self._map, 0, now)

    def last_ns(self) -> int:
        """When the loop was last heard of; 0 before its first turn."""
        return int(_PULSE.unpack_from(self._map, 0)[0])

    def turns(self) -> list[Span]:
        """Return the long turns."""
        found = (_TURN.unpack_from(self._map, at) for at in range(_PULSE.size, _BYTES, _TURN.size))
        return [Span(start, end) for start, end in found if end]
