"""Usage metrics as the API speaks of them: sets, intervals, units, windows and the answers' shapes.

A *set* is what a request asks for, a *series* one line of the answer. Instants are Unix seconds.
"""

import enum
from typing import Final, NamedTuple

import msgspec

from bourn.errors import Invalid
from bourn.limits import USAGE_WINDOW_AHEAD_SECS_MAX, USAGE_WINDOW_SECS_MAX
from bourn.model.access import Op

Point = tuple[int, float]


class Interval(enum.StrEnum):
    """How long the period of a point is."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def secs(self) -> int:
        """The period in seconds."""
        return SECS[self]


SECS: Final = {Interval.MINUTE: 60, Interval.HOUR: 3600, Interval.DAY: 86_400}


class Unit(enum.StrEnum):
    """What a value counts."""

    BYTES = "bytes"
    OPERATIONS = "operations"
    USD = "usd"


class UsageSet(enum.StrEnum):
    """Everything that can be asked for."""

    ACTIVE_BASINS = "active-basins"
    ACCOUNT_OPS = "account-ops"
    BILLABLE = "estimated-billable-usage"
    STORAGE = "storage"
    APPEND_OPS = "append-ops"
    READ_OPS = "read-ops"
    READ_THROUGHPUT = "read-throughput"
    APPEND_THROUGHPUT = "append-throughput"
    BASIN_OPS = "basin-ops"


_ANY: Final = (Interval.MINUTE, Interval.HOUR, Interval.DAY)

# The intervals of each set, the default first, by what the request is about.
ACCOUNT_SETS: Final[dict[UsageSet, tuple[Interval, ...]]] = {
    UsageSet.ACTIVE_BASINS: (),
    UsageSet.ACCOUNT_OPS: (Interval.HOUR, Interval.DAY, Interval.MINUTE),
    UsageSet.BILLABLE: (Interval.HOUR, Interval.DAY),
}
BASIN_SETS: Final[dict[UsageSet, tuple[Interval, ...]]] = {
    UsageSet.STORAGE: (Interval.HOUR,),
    UsageSet.APPEND_OPS: _ANY,
    UsageSet.READ_OPS: _ANY,
    UsageSet.READ_THROUGHPUT: _ANY,
    UsageSet.APPEND_THROUGHPUT: _ANY,
    UsageSet.BASIN_OPS: (Interval.HOUR, Interval.MINUTE, Interval.DAY),
}
STREAM_SETS: Final[dict[UsageSet, tuple[Interval, ...]]] = {UsageSet.STORAGE: (Interval.MINUTE,)}

UNITS: Final = {
    UsageSet.ACCOUNT_OPS: Unit.OPERATIONS,
    UsageSet.BILLABLE: Unit.USD,
    UsageSet.STORAGE: Unit.BYTES,
    UsageSet.APPEND_OPS: Unit.OPERATIONS,
    UsageSet.READ_OPS: Unit.OPERATIONS,
    UsageSet.READ_THROUGHPUT: Unit.BYTES,
    UsageSet.APPEND_THROUGHPUT: Unit.BYTES,
    UsageSet.BASIN_OPS: Unit.OPERATIONS,
}

ACCOUNT: Final = ""  # stands for the account where a basin's name would stand
UNARY: Final = "unary"
STREAMING: Final = "streaming"
METERED_BYTES: Final = "metered_bytes"
METERED_SIZE: Final = "metered_size"

# Which set counts an operation. Reads and appends have sets of their own; what fences or trims is
# a record of an append.
_BASIN_OPS: Final = (
    Op.GET_BASIN_CONFIG,
    Op.LIST_STREAMS,
    Op.CREATE_STREAM,
    Op.DELETE_STREAM,
    Op.GET_STREAM_CONFIG,
    Op.RECONFIGURE_STREAM,
    Op.CHECK_TAIL,
)
_DATA_OPS: Final = (Op.READ, Op.APPEND, Op.TRIM, Op.FENCE)
SET_OF_OP: Final[dict[Op, UsageSet]] = {
    op: UsageSet.BASIN_OPS if op in _BASIN_OPS else UsageSet.ACCOUNT_OPS
    for op in Op
    if op not in _DATA_OPS
}


class Window(NamedTuple):
    """The instants [start, end) that a request is about."""

    start_s: int
    end_s: int


class UsageQuery(NamedTuple):
    """A request that makes sense; a label set has no interval."""

    set: UsageSet
    window: Window
    interval: Interval | None


def checked_query(
    sets: dict[UsageSet, tuple[Interval, ...]],
    wanted: UsageSet,
    start_s: int | None,
    end_s: int | None,
    interval: Interval | None,
    now_s: int,
) -> UsageQuery:
    """Return the request; Invalid where its parameters cannot go together."""
    if start_s is None or end_s is None:
        raise Invalid("start and end params required")
    if start_s > end_s:
        raise Invalid("start must not be after end")
    if end_s > now_s + USAGE_WINDOW_AHEAD_SECS_MAX:
        raise Invalid(f"end must not be more than {USAGE_WINDOW_AHEAD_SECS_MAX} seconds ahead")
    if end_s - start_s > USAGE_WINDOW_SECS_MAX:
        raise Invalid(f"the time span must not exceed {USAGE_WINDOW_SECS_MAX // 86_400} days")
    intervals = sets[wanted]
    if interval is not None and interval not in intervals:
        allowed = " or ".join(intervals) or "no interval"
        raise Invalid(f"interval `{interval}` is not supported for `{wanted}`: use {allowed}")
    if interval is None and intervals:
        interval = intervals[0]
    return UsageQuery(wanted, Window(start_s, end_s), interval)


# What the answers hold: each metric is an object of one member, named by its kind.


class Label(msgspec.Struct, frozen=True):
    """A list of names."""

    name: str
    values: list[str]


class Accumulation(msgspec.Struct, frozen=True):
    """Totals: each point is of the period that begins at its instant."""

    name: str
    unit: Unit
    interval: Interval
    values: list[Point]


class Gauge(msgspec.Struct, frozen=True):
    """Values at instants."""

    name: str
    unit: Unit
    values: list[Point]


Metric = Label | Accumulation | Gauge


def metric_shape(metric: Metric) -> dict[str, Metric]:
    """Return the metric as the API nests it."""
    return {type(metric).__name__.lower(): metric}
