"""Warnings about what an operator must look at, each of them now and then and never in floods."""

import logging
from typing import Final

from bourn.clock import Clock

log = logging.getLogger(__name__)

REPEATED_AFTER_SECS: Final = 60.0
TEXTS_MAX: Final = 50  # within that time; what else is wrong stays unsaid


class Complaints:
    """Says each text once a minute at most, and not too many of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}

    def warn(self, text: str) -> None:
        """Log a warning, unless it was logged just now."""
        now = self._clock.monotonic()
        self._said = {said: at for said, at in self._said.items() if now - at < REPEATED_AFTER_SECS}
        if text in self._said or len(self._said) >= TEXTS_MAX:
            return
        self._said[text] = now
        log.warning("%s", text)
