"""Usage metrics: three resources to ask about, and the counting of control operations."""

from typing import Final

import msgspec

from bourn.clock import Clock
from bourn.engine.meter import Meter
from bourn.engine.usage import Usage
from bourn.errors import BadQuery
from bourn.http.operations import OPERATIONS
from bourn.http.query import U32_MAX, Query
from bourn.http.request import Request
from bourn.http.routing import Route
from bourn.model.usage import (
    ACCOUNT,
    ACCOUNT_SETS,
    BASIN_SETS,
    SET_OF_OP,
    STREAM_SETS,
    Interval,
    Label,
    Metric,
    UsageQuery,
    UsageSet,
    checked_query,
    metric_shape,
)

_PARAMETERS: Final = frozenset({"set", "start", "end", "interval"})
_BY_SEGMENT: Final = frozenset({Route.BASIN})  # whose basin is in the path
_encode: Final = msgspec.json.Encoder().encode

Sets = dict[UsageSet, tuple[Interval, ...]]


class UsageMetrics:
    """One method per resource."""

    def __init__(self, usage: Usage, clock: Clock) -> None:
        self._usage = usage
        self._clock = clock

    async def account(self, request: Request) -> None:
        """GET /metrics."""
        request.permit()
        query = self._query(request, ACCOUNT_SETS)
        metrics = await self._usage.account(query)
        await _answer(request, [_visible(request, metric) for metric in metrics])

    async def basin(self, request: Request, segment: str) -> None:
        """GET /metrics/{basin}."""
        basin = request.basin_segment(segment)
        request.permit(basin)
        query = self._query(request, BASIN_SETS)
        await _answer(request, await self._usage.basin(basin, query))

    async def stream(self, request: Request, segment: str, stream_segment: str) -> None:
        """GET /metrics/{basin}/{stream}."""
        basin, name = request.basin_segment(segment), request.stream_segment(stream_segment)
        request.permit(basin, name)
        query = self._query(request, STREAM_SETS)
        await _answer(request, await self._usage.stream(basin, name, query))

    def _query(self, request: Request, sets: Sets) -> UsageQuery:
        query = Query(request.exchange.query, _PARAMETERS)
        wanted = query.text("set")
        if wanted is None:
            raise _refused("missing field `set`")
        if wanted not in {found.value for found in sets}:
            raise _refused(f"unknown set `{wanted[:40]}`, expected {_choice(sets)}")
        start_s, end_s = query.u64("start", U32_MAX), query.u64("end", U32_MAX)
        interval = query.text("interval")
        if interval is not None and interval not in {found.value for found in Interval}:
            raise _refused(f"unknown interval `{interval[:40]}`, expected {_choice(Interval)}")
        return checked_query(
            sets,
            UsageSet(wanted),
            start_s,
            end_s,
            None if interval is None else Interval(interval),
            self._clock.now_ms() // 1000,
        )


class OperationCounter:
    """Counts every operation of the control plane that was answered as it should be."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sets = {
            place: (of, ops[0])
            for place, ops in OPERATIONS.items()
            if (of := SET_OF_OP.get(ops[0])) is not None
        }

    def answered(
        self, request: Request, route: Route, method: str, segments: tuple[str, ...]
    ) -> None:
        """Count a request whose handler has answered it."""
        found = self._sets.get((route, method))
        if found is None:
            return
        of, op = found
        basin = ACCOUNT
        if of is UsageSet.BASIN_OPS:
            by_segment = route in _BY_SEGMENT
            basin = request.basin_segment(segments[0]) if by_segment else request.basin()
        self._meter.count(basin, of, op.value)


def _visible(request: Request, metric: Metric) -> Metric:
    """A label names basins: only those that whoever asks may know of."""
    if not isinstance(metric, Label):
        return metric
    allowed = request.principal.grant.scope.basins
    return Label(metric.name, [name for name in metric.values if allowed.has(name)])


async def _answer(request: Request, metrics: list[Metric]) -> None:
    await request.answer(200, _encode({"values": [metric_shape(metric) for metric in metrics]}))


def _choice(names: "Sets | type[Interval]") -> str:
    return ", ".join(f"`{name.value}`" for name in names)


def _refused(what: str) -> BadQuery:
    return BadQuery(f"Failed to deserialize query string: {what}")
