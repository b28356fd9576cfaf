"""The log over all epochs: dense ordinals on one side, (epoch, id) on the other.

Every epoch begins where the one before it was sealed, so a commit is one number: its ordinal.
"""

from bisect import bisect_left, bisect_right

from bourn.layout.keys import LogPosition


class EpochMap:
    """Translate ordinals of commits to positions and back."""

    def __init__(self, bases: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in bases or []]
        self._bases = [base for _, base in bases or []]

    @property
    def bases(self) -> list[tuple[int, int]]:
        """(epoch, ordinal of its commit 0), ascending."""
        return list(zip(self._epochs, self._bases, strict=True))

    def begin(self, epoch: int, base: int) -> None:
        """Say at which ordinal an epoch begins; epochs come in ascending order."""
        if self._epochs and (epoch, base) == (self._epochs[-1], self._bases[-1]):
            return  # a snapshot within the epoch has said so
        if self._epochs and epoch <= self._epochs[-1]:
            raise ValueError(f"epoch {epoch} comes after epoch {self._epochs[-1]}")
        if self._bases and base < self._bases[-1]:
            raise ValueError(f"ordinal {base} lies before the last epoch's {self._bases[-1]}")
        if self._bases and base == self._bases[-1]:
            # The epoch before it was sealed empty: no ordinal ever names it.
            self._epochs[-1] = epoch
            return
        self._epochs.append(epoch)
        self._bases.append(base)

    def position(self, ordinal: int) -> LogPosition:
        """Return where the commit of that ordinal lies."""
        at = bisect_right(self._bases, ordinal) - 1
        if at < 0:
            raise ValueError(f"ordinal {ordinal} lies before the log")
        return LogPosition(self._epochs[at], ordinal - self._bases[at])

    def span(self, epoch: int) -> range | None:
        """Return the ordinals of an epoch that a later one follows; None for any other."""
        at = bisect_left(self._epochs, epoch)
        if at + 1 >= len(self._epochs) or self._epochs[at] != epoch:
            return None
        return range(self._bases[at], self._bases[at + 1])

    def forget_before(self, ordinal: int) -> None:
        """Drop epochs that lie wholly before an ordinal which nothing refers to any more."""
        keep = max(bisect_right(self._bases, ordinal) - 1, 0)
        del self._epochs[:keep]
        del self._bases[:keep]
