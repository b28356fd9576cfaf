"""Answers to questions about usage: the log's counts, those not in it yet, and older history."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from bourn.clock import Clock
from bourn.engine.meter import Meter
from bourn.engine.term import Term
from bourn.limits import USAGE_HOURS_KEPT, USAGE_MINUTES_KEPT
from bourn.model.usage import (
    ACCOUNT,
    METERED_SIZE,
    UNITS,
    Accumulation,
    Gauge,
    Interval,
    Label,
    Metric,
    Point,
    Unit,
    UsageQuery,
    UsageSet,
    Window,
)
from bourn.settings import UsagePrices

T = TypeVar("T")
Totals = dict[str, dict[int, int]]  # by label, then by the instant at which the period begins

GIB: Final = 2**30
MILLION: Final = 1_000_000
HOUR: Final = Interval.HOUR.secs
HOURS_PER_MONTH: Final = 730  # a twelfth of a year
_OPERATIONS: Final = (UsageSet.APPEND_OPS, UsageSet.READ_OPS, UsageSet.BASIN_OPS)


class UsageHistory(Protocol):
    """Usage from before what the server itself keeps: the seam to the pipeline's usage table.

    Periods begin at whole multiples of the interval. The server asks for [start, end) where `end`
    is the first period of its own, so nothing is counted twice. None of it ever fails: what
    cannot be told is missing.
    """

    async def totals(
        self, basin: str, of: UsageSet, interval: Interval, start_s: int, end_s: int
    ) -> Totals:
        """Return totals by label and instant; the account's basin is the empty name."""
        ...

    async def sizes(self, basin: str, start_s: int, end_s: int) -> dict[int, int]:
        """Return what a basin held at the end of each hour, by the instant at which it begins."""
        ...

    async def active_basins(self, start_s: int, end_s: int) -> list[str]:
        """Return the names of basins that had a stream in the window."""
        ...

    async def basin_names(self, start_s: int, end_s: int) -> list[str]:
        """Return the names of basins that used anything in the window."""
        ...


class NoHistory:
    """There is none yet."""

    async def totals(
        self, basin: str, of: UsageSet, interval: Interval, start_s: int, end_s: int
    ) -> Totals:
        """Return nothing."""
        _ = basin, of, interval, start_s, end_s
        return {}

    async def sizes(self, basin: str, start_s: int, end_s: int) -> dict[int, int]:
        """Return nothing."""
        _ = basin, start_s, end_s
        return {}

    async def active_basins(self, start_s: int, end_s: int) -> list[str]:
        """Return nobody."""
        _ = start_s, end_s
        return []

    async def basin_names(self, start_s: int, end_s: int) -> list[str]:
        """Return nobody."""
        _ = start_s, end_s
        return []


class Asked(Protocol):
    """What of a node is needed here."""

    meter: Meter

    async def ask_usage(self, ask: Callable[[Term], T]) -> T:
        """Ask the serving term; what the answer counts is durable when this returns."""
        ...


class Usage:
    """One method for each kind of resource; an unknown one has no values."""

    def __init__(
        self,
        node: Asked,
        clock: Clock,
        prices: UsagePrices | None = None,
        history: UsageHistory | None = None,
    ) -> None:
        self._node = node
        self._clock = clock
        self._prices = prices or UsagePrices()
        self._history: UsageHistory = history or NoHistory()

    async def account(self, query: UsageQuery) -> list[Metric]:
        """Answer for the whole account."""
        match query.set:
            case UsageSet.ACTIVE_BASINS:
                return [await self._active_basins(query.window)]
            case UsageSet.BILLABLE:
                return await self._billable(query)
            case _:
                return await self._accumulations(ACCOUNT, query)

    async def basin(self, basin: str, query: UsageQuery) -> list[Metric]:
        """Answer for a basin."""
        if query.set is UsageSet.STORAGE:
            return await self._basin_sizes(basin, query.window)
        return await self._accumulations(basin, query)

    async def stream(self, basin: str, stream: str, query: UsageQuery) -> list[Metric]:
        """Answer for a stream."""
        return await self._node.ask_usage(
            lambda term: self._stream_storage(term, basin, stream, query.window)
        )

    # Counters

    async def _accumulations(self, basin: str, query: UsageQuery) -> list[Metric]:
        assert query.interval is not None
        totals = await self._totals(basin, query.set, query.interval, query.window)
        return [
            Accumulation(label, UNITS[query.set], query.interval, _points(found))
            for label, found in sorted(totals.items())
            if found
        ]

    async def _totals(self, basin: str, of: UsageSet, interval: Interval, window: Window) -> Totals:
        def ask(term: Term) -> tuple[Totals, int]:
            table = term.state.metering.table
            totals = table.totals(basin, of.value, interval.secs, *window)
            for minute, label, value in self._node.meter.pending(basin, of):
                instant = minute * 60 // interval.secs * interval.secs
                if window.start_s <= instant < window.end_s:
                    found = totals.setdefault(label, {})
                    found[instant] = found.get(instant, 0) + value
            return totals, table.since_s(interval.secs)

        totals, since_s = await self._node.ask_usage(ask)
        if window.start_s < since_s:
            until_s = min(window.end_s, since_s)
            older = await self._history.totals(basin, of, interval, window.start_s, until_s)
            for label, found in older.items():
                totals[label] = found | totals.get(label, {})
        return totals

    async def _active_basins(self, window: Window) -> Label:
        names = await self._node.ask_usage(
            lambda term: term.state.metering.table.activity.active(*window)
        )
        older: list[str] = []
        since_s = self._sizes_since_s()
        if window.start_s < since_s:
            older = await self._history.active_basins(window.start_s, min(window.end_s, since_s))
        return Label("active_basins", sorted({*names, *older}))

    # Sizes

    def _sizes_since_s(self) -> int:
        """Return from when on the server itself knows sizes of basins, and which were active."""
        return max(self._clock.now_ms() // 1000 // HOUR - USAGE_HOURS_KEPT, 0) * HOUR

    async def _basin_sizes(self, basin: str, window: Window) -> list[Metric]:
        metrics = await self._node.ask_usage(lambda term: self._basin_storage(term, basin, window))
        since_s = self._sizes_since_s()
        if window.start_s >= since_s:
            return metrics
        until_s = min(window.end_s, since_s)
        older = await self._history.sizes(basin, window.start_s, until_s)
        found = {instant: float(value) for instant, value in older.items()}
        for metric in metrics:
            assert isinstance(metric, Gauge)
            found |= dict(metric.values)
        return [Gauge(METERED_SIZE, Unit.BYTES, sorted(found.items()))] if found else []

    def _basin_storage(self, term: Term, basin: str, window: Window) -> list[Metric]:
        metering = term.state.metering
        found = _sizes(
            metering.table.basins.held,
            basin,
            metering.basin_bytes(basin),
            Interval.HOUR,
            window,
            self._clock.now_ms(),
            USAGE_HOURS_KEPT,
        )
        return [Gauge(METERED_SIZE, Unit.BYTES, found)] if found else []

    def _stream_storage(self, term: Term, basin: str, name: str, window: Window) -> list[Metric]:
        stream = term.find(basin, name)
        if stream is None:
            return []
        found = _sizes(
            term.state.metering.table.streams.held,
            stream.id,
            term.state.stored_bytes(stream, self._clock.now_ms()),
            Interval.MINUTE,
            window,
            self._clock.now_ms(),
            USAGE_MINUTES_KEPT,
        )
        return [Gauge(METERED_SIZE, Unit.BYTES, found)] if found else []

    # Money

    async def _billable(self, query: UsageQuery) -> list[Metric]:
        """Put the operator's prices on what was used; without prices, there is no estimate."""
        assert query.interval is not None
        prices = self._prices
        if not prices.are_set:
            return []
        interval, window = query.interval, query.window
        names = await self._basins(window, interval)
        costs: dict[str, dict[int, float]] = {}
        for basin in names:
            for of, dimension, price in (
                (UsageSet.APPEND_THROUGHPUT, "append", prices.append_gib / GIB),
                (UsageSet.READ_THROUGHPUT, "read", prices.read_gib / GIB),
                *((of, "operations", prices.operations_million / MILLION) for of in _OPERATIONS),
                (UsageSet.ACCOUNT_OPS, "operations", prices.operations_million / MILLION),
            ):
                if price:
                    totals = await self._totals(basin, of, interval, window)
                    for found in totals.values():
                        _cost(costs, dimension, found.items(), price)
            if prices.storage_gib_month:
                await self._cost_storage(costs, basin, query)
            await self._clock.sleep(0)  # a basin a turn
        return [
            Accumulation(dimension, Unit.USD, interval, sorted(found.items()))
            for dimension, found in sorted(costs.items())
        ]

    async def _basins(self, window: Window, interval: Interval) -> list[str]:
        """Return all who may have used anything in a window."""

        def ask(term: Term) -> tuple[list[str], int]:
            table = term.state.metering.table
            return table.basin_names(), table.since_s(interval.secs)

        names, since_s = await self._node.ask_usage(ask)
        if window.start_s >= since_s:
            return names
        older = await self._history.basin_names(window.start_s, min(window.end_s, since_s))
        return sorted({*names, *older})

    async def _cost_storage(
        self, costs: dict[str, dict[int, float]], basin: str, query: UsageQuery
    ) -> None:
        assert query.interval is not None
        secs = query.interval.secs
        first_s = -(-query.window.start_s // secs) * secs
        last_s = -(-query.window.end_s // secs) * secs  # a day's hours, though the window ends
        gauges = await self._basin_sizes(basin, Window(first_s, last_s))
        price = self._prices.storage_gib_month / GIB / HOURS_PER_MONTH
        for gauge in gauges:
            assert isinstance(gauge, Gauge)
            hours = ((instant // secs * secs, value) for instant, value in gauge.values)
            _cost(costs, "storage", hours, price)


def _cost(
    costs: dict[str, dict[int, float]],
    dimension: str,
    found: Iterable[tuple[int, float]],
    price: float,
) -> None:
    for instant, value in found:
        for name in (dimension, "total"):
            of = costs.setdefault(name, {})
            of[instant] = of.get(instant, 0.0) + value * price


def _points(found: dict[int, int]) -> list[Point]:
    return [(instant, float(value)) for instant, value in sorted(found.items())]


def _sizes(
    held: Callable[[T, int, int], Iterable[tuple[int, int]]],
    key: T,
    size_bytes: int | None,
    interval: Interval,
    window: Window,
    now_ms: int,
    kept: int,
) -> list[Point]:
    """Return what was held in each period of the window; in the current one, what is held now."""
    secs = interval.secs
    now = now_ms // 1000 // secs
    low = max(-(-window.start_s // secs), now - kept)
    high = min(-(-window.end_s // secs), now + 1)
    found = dict(held(key, low, high))
    if size_bytes is not None and low <= now < high:
        found[now] = size_bytes
    return [(period * secs, float(value)) for period, value in sorted(found.items())]
