"""How often something is tried, and how long between: the rules of S2's own clients.

Reads and control calls may be repeated freely. Whether an append may be is the caller's to say.
"""

import enum
import threading
from random import Random
from typing import NamedTuple

from bourn.client.failures import DRAINING, ClientError, Refused


class Retries(NamedTuple):
    """How often, counted from the last success, and with which pauses, doubled and jittered."""

    attempts: int = 3
    pause_secs_min: float = 0.1
    pause_secs_max: float = 1.0


class AppendRetry(enum.Enum):
    """When an append is repeated by itself."""

    NEVER = "never"
    NO_SIDE_EFFECTS = "no-side-effects"  # only where the first one surely did nothing
    ALL = "all"  # whenever it may work: records may be there twice


def may_repeat(policy: AppendRetry, error: ClientError) -> bool:
    """Whether an append that failed so is repeated."""
    if policy is AppendRetry.NEVER or not error.is_retryable:
        return False
    return policy is AppendRetry.ALL or error.has_no_effect


class Attempts:
    """Counts the attempts at one thing, and waits between them."""

    def __init__(self, retries: Retries, rng: Random) -> None:
        self._retries = retries
        self._rng = rng
        self._made = 0

    def succeed(self) -> None:
        """Begin to count anew."""
        self._made = 0

    def fail(self, error: ClientError) -> None:
        """Wait for the next attempt; raise the error where there is none left.

        An endpoint that is about to stop is no failure, and another connection may go elsewhere;
        but it counts, too, or one that never stops would be asked for ever.
        """
        self._made += 1
        if not error.is_retryable or self._made >= self._retries.attempts:
            raise error
        secs = min(
            self._retries.pause_secs_min * 2 ** (self._made - 1), self._retries.pause_secs_max
        )
        secs *= self._rng.uniform(0.5, 1.0)
        if isinstance(error, Refused):
            secs = max(secs, error.retry_after_ms / 1000)
            if error.code == DRAINING and self._made == 1:
                return
        threading.Event().wait(secs)
