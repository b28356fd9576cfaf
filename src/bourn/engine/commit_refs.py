"""How many runs of live records each commit object still holds; at none, it can be collected."""

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

COLLECTED: Final = 2**32 - 1


class CommitRefs:
    """Counts by commit ordinal, dense from the oldest commit that is not collected."""

    def __init__(self, base: int = 0, counts: npt.NDArray[np.uint32] | None = None) -> None:
        self._base = base
        self._released = 0
        self._counts = array("I", [] if counts is None else counts.astype(np.uint32).tobytes())

    @property
    def base(self) -> int:
        """Every commit below is collected."""
        return self._base

    @property
    def end(self) -> int:
        """The ordinal behind the last commit that was added."""
        return self._base + len(self._counts)

    def add_commit(self, ordinal: int, runs: int) -> None:
        """Note a commit and how many runs it holds; commits come in order."""
        at = ordinal - self._base
        if at != len(self._counts):
            raise ValueError(f"commit {ordinal} comes after commit {self.end - 1}")
        self._counts.append(runs)

    def drop(self, ordinals: Iterable[int]) -> None:
        """One run of each of these commits is gone for good."""
        for ordinal in ordinals:
            if ordinal < self._released:
                continue
            at = ordinal - self._base
            if at < 0 or self._counts[at] in {0, COLLECTED}:
                raise ValueError(f"commit {ordinal} holds no run any more")
            self._counts[at] -= 1

    def release(self, below: int) -> None:
        """Whatever the commits below an ordinal hold is in the history, and not needed here."""
        self._released = max(self._released, below)
        counts = np.frombuffer(self._counts, np.uint32)[: max(below - self._base, 0)]
        counts[counts != COLLECTED] = 0
        del counts  # while a view lives, no commit can be added

    def dead(self, below: int) -> list[int]:
        """Commits below an ordinal that hold nothing any more and are not collected yet."""
        counts = np.frombuffer(self._counts, np.uint32)[: max(below - self._base, 0)]
        found: list[int] = (np.flatnonzero(counts == 0) + self._base).tolist()
        del counts
        return found

    def collected(self, ordinal: int) -> None:
        """The commit's object is deleted."""
        self._counts[ordinal - self._base] = COLLECTED

    def is_collected(self, ordinal: int) -> bool:
        """Whether the commit's object was deleted by this writer."""
        return self._counts[ordinal - self._base] == COLLECTED

    def forget_collected(self) -> None:
        """Let go of the collected commits at the front."""
        counts = np.frombuffer(self._counts, np.uint32)
        kept = np.flatnonzero(counts != COLLECTED)
        front = int(kept[0]) if len(kept) else len(counts)
        del counts
        if front:
            del self._counts[:front]
            self._base += front
