"""How far a run has come, for whoever looks."""

from collections.abc import Callable
from typing import NamedTuple

from bourn.clock import Clock


class Standing(NamedTuple):
    """One look: what of how much, and how fast."""

    stage: str
    commits: int = 0
    commits_all: int = 0
    bytes: int = 0
    bytes_all: int = 0
    records: int = 0
    secs: float = 0.0  # of this stage
    unit: str = "commits"  # what `commits` counts

    @property
    def bytes_per_sec(self) -> float:
        """Bytes by second, in this stage."""
        return self.bytes / self.secs if self.secs > 0 else 0.0


class Progress:
    """Tells a listener what is being done, and remembers how long each stage took."""

    def __init__(self, clock: Clock, listen: Callable[[Standing], None]) -> None:
        self._clock = clock
        self._listen = listen
        self._began = clock.monotonic()
        self._stage = ""
        self._totals = (0, 0)
        self._unit = "commits"
        self.secs: dict[str, float] = {}

    def enter(
        self, stage: str, units_all: int = 0, bytes_all: int = 0, unit: str = "commits"
    ) -> None:
        """Say that a stage begins, and with it that the one before has ended."""
        self.leave()
        self._stage, self._totals, self._unit = stage, (units_all, bytes_all), unit
        self._began = self._clock.monotonic()
        self.at()

    def leave(self) -> None:
        """Say that the stage has ended."""
        if self._stage:
            secs = self._clock.monotonic() - self._began
            self.secs[self._stage] = self.secs.get(self._stage, 0.0) + secs
            self._stage = ""

    def at(self, units: int = 0, size_bytes: int = 0, records: int = 0) -> None:
        """Say how much of the stage is done."""
        secs = self._clock.monotonic() - self._began
        units_all, bytes_all = self._totals
        self._listen(
            Standing(
                self._stage, units, units_all, size_bytes, bytes_all, records, secs, self._unit
            )
        )
