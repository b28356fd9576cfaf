"""Which calls of a bucket go wrong, and how: a plan of rules, by seed, by script, or both.

FaultPlan(
    Rule(Fault.LATENCY, delay_secs=(0.001, 0.05)),
    Rule(Fault.LOST_REPLY, PUTS, probability=0.02),
    Rule(Fault.ERROR, PUTS, calls=(3,), prefix="wal/"),     # the third put of wal/, no other
)
"""

import enum
import random
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import msgspec


class Operation(enum.StrEnum):
    """A method of a bucket."""

    PUT_IF_ABSENT = "put_if_absent"
    PUT = "put"
    GET = "get"
    GET_RANGE = "get_range"
    LIST = "list"
    DELETE = "delete"


PUTS: Final = frozenset({Operation.PUT_IF_ABSENT, Operation.PUT})
GETS: Final = frozenset({Operation.GET, Operation.GET_RANGE})
ALL: Final = frozenset(Operation)


class Fault(enum.StrEnum):
    """What can go wrong with a call."""

    LATENCY = "latency"  # it takes `delay_secs`; may come with any of the others
    ERROR = "error"  # nothing happens, and the caller sees BucketUnavailable
    LOST_REPLY = "lost_reply"  # it happens, and the caller sees BucketUnavailable
    STUCK_BEFORE = "stuck_before"  # it hangs; it happens when released, whoever still waits
    STUCK_AFTER = "stuck_after"  # it happens, and then hangs until released
    TRUNCATED = "truncated"  # a get returns the first part only
    FLIPPED = "flipped"  # a get returns one bit changed
    MISSING = "missing"  # a get finds nothing, a listing leaves the key out


class Rule(msgspec.Struct, frozen=True):
    """One fault, and the calls that it strikes.

    A rule counts the calls that it matches from 1; `calls` names those it strikes, each for sure.
    Without `calls` it strikes each with `probability`. The first rule that strikes decides.
    """

    fault: Fault
    operations: frozenset[Operation] = ALL
    probability: float = 1.0
    calls: tuple[int, ...] = ()
    prefix: str = ""
    matches: Callable[[str], bool] | None = None  # a condition on the key
    delay_secs: tuple[float, float] = (0.0, 0.0)  # from, to

    def covers(self, operation: Operation, key: str) -> bool:
        """Tell whether a call is one that the rule counts."""
        return (
            operation in self.operations
            and operation in _POSSIBLE.get(self.fault, ALL)
            and key.startswith(self.prefix)
            and (self.matches is None or self.matches(key))
        )


_POSSIBLE: Final = {
    Fault.TRUNCATED: GETS,
    Fault.FLIPPED: GETS,
    Fault.MISSING: GETS | {Operation.LIST},
}


class FaultPlan(tuple[Rule, ...]):
    """Rules, the earlier ones first."""

    __slots__ = ()

    def __new__(cls, *rules: Rule) -> Self:
        """Take the rules as arguments."""
        return super().__new__(cls, rules)


class Strike(NamedTuple):
    """What befalls one call: a delay, and a fault or none; `roll` in [0, 1) places the damage."""

    delay_secs: float = 0.0
    fault: Fault | None = None
    roll: float = 0.0


class Dice:
    """A plan in force: counts the calls of each rule, and draws in the order of the calls only."""

    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        self._plan = plan
        self._rng = rng
        self._counts = [0] * len(plan)

    def strike(self, operation: Operation, key: str, faults: frozenset[Fault]) -> Strike:
        """Decide what befalls a call, out of `faults`."""
        delay_secs, fault = 0.0, None
        for index, rule in enumerate(self._plan):
            if rule.fault not in faults or not rule.covers(operation, key):
                continue
            self._counts[index] += 1
            if rule.calls:
                strikes = self._counts[index] in rule.calls
            else:
                strikes = self._rng.random() < rule.probability
            if strikes and rule.fault is Fault.LATENCY:
                delay_secs += self._rng.uniform(*rule.delay_secs)
            elif strikes and fault is None:
                fault = rule.fault
        return Strike(delay_secs, fault, self._rng.random() if fault else 0.0)
