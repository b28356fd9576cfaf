"""Usage from before what the server keeps: the pipeline's usage table, read as it is asked for.

The table is a help, never a need: where it is missing, late or damaged, the older part of an answer
is missing, a line in the log says so, and the newer part is answered all the same.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bourn.bucket.delta_log import NO_TABLE, read_table
from bourn.bucket.port import Bucket
from bourn.clock import Clock
from bourn.errors import BournError
from bourn.layout.history.delta import Add, TableState
from bourn.layout.usage_table import USAGE_PREFIX, decode_usage, usage_key
from bourn.limits import USAGE_TABLE_CACHE_BYTES
from bourn.model.usage import Interval, UsageSet

log = logging.getLogger(__name__)

LOOK_SECS: Final = 30.0  # between two looks for a newer version
_US: Final = 1_000_000
_LABEL: Final = "label"

Totals = dict[str, dict[int, int]]


class TableHistory:
    """The usage table of one bucket, as an answer to what the server asks of its history."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._state: TableState = NO_TABLE
        self._looked_at: float | None = None
        self._files: OrderedDict[str, pa.Table] = OrderedDict()  # the last one asked for at the end
        self._bytes = 0
        self._turn = asyncio.Lock()

    async def totals(
        self, basin: str, of: UsageSet, interval: Interval, start_s: int, end_s: int
    ) -> Totals:
        """Return totals by label and instant; the account's basin is the empty name."""
        found: Totals = {}
        for rows in await self._rows(basin, of, interval, start_s, end_s):
            for label, start, value in _points(rows):
                periods = found.setdefault(label, {})
                periods[start] = periods.get(start, 0) + value
        return found

    async def sizes(self, basin: str, start_s: int, end_s: int) -> dict[int, int]:
        """Return what a basin held at the end of each hour."""
        rows = await self._rows(basin, UsageSet.STORAGE, Interval.HOUR, start_s, end_s)
        return {start: value for some in rows for _, start, value in _points(some)}

    async def active_basins(self, start_s: int, end_s: int) -> list[str]:
        """Return the names of basins that had a stream in an hour of the window."""
        first_s = start_s // Interval.HOUR.secs * Interval.HOUR.secs
        rows = await self._rows(None, UsageSet.ACTIVE_BASINS, Interval.HOUR, first_s, end_s)
        return sorted({name for some in rows for name in _words(some, "basin")})

    async def basin_names(self, start_s: int, end_s: int) -> list[str]:
        """Return the names of all who used anything."""
        rows = await self._rows(None, None, Interval.DAY, start_s - Interval.DAY.secs, end_s)
        return sorted({name for some in rows for name in _words(some, "basin")})

    async def _rows(
        self,
        basin: str | None,
        of: UsageSet | None,
        interval: Interval,
        start_s: int,
        end_s: int,
    ) -> list[pa.Table]:
        """Return the rows that are asked for; nothing, and a warning, where they cannot be read."""
        if start_s >= end_s:
            return []
        try:
            async with self._turn:
                await self._look()
                tables = [
                    await self._file(add)
                    for add in self._state.live.values()
                    if _may_have(add, interval, start_s, end_s)
                ]
            return await asyncio.to_thread(_select, tables, basin, of, start_s, end_s)
        except (BournError, pa.ArrowException) as error:
            log.warning("older usage cannot be told: %s", error)
            self._state, self._looked_at = NO_TABLE, None
            return []

    async def _look(self) -> None:
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < LOOK_SECS:
            return
        known = self._state
        self._state = await read_table(self._bucket, known, is_sure=True, table=USAGE_PREFIX)
        self._looked_at = now
        for path in [path for path in self._files if path not in self._state.live]:
            self._bytes -= self._files.pop(path).nbytes

    async def _file(self, add: Add) -> pa.Table:
        table = self._files.get(add.path)
        if table is None:
            key = usage_key(add)
            data = await self._bucket.get(key)
            table = await asyncio.to_thread(decode_usage, data, key)
            self._files[add.path] = table
            self._bytes += table.nbytes
            while self._bytes > USAGE_TABLE_CACHE_BYTES and len(self._files) > 1:
                self._bytes -= self._files.popitem(last=False)[1].nbytes
        self._files.move_to_end(add.path)
        return table


def _may_have(add: Add, interval: Interval, start_s: int, end_s: int) -> bool:
    return (
        add.tag("interval") == interval.secs
        and not add.tag("streams")
        and add.tag("from_s") < end_s
        and add.tag("until_s") >= start_s
    )


def _select(
    tables: list[pa.Table], basin: str | None, of: UsageSet | None, start_s: int, end_s: int
) -> list[pa.Table]:
    found: list[pa.Table] = []
    for table in tables:
        starts = table.column("start").cast(pa.int64()).to_numpy() // _US
        wanted = (starts >= start_s) & (starts < end_s)
        for name, word in (("basin", basin), ("metric", None if of is None else of.value)):
            if word is not None:
                wanted &= _is(table.column(name), word)
        wanted &= table.column("stream_id").to_numpy() == 0
        if wanted.any():
            found.append(table.filter(pa.array(wanted)))
    return found


def _is(column: "pa.ChunkedArray[Any]", word: str) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    same = pc.equal(column.cast(pa.string()), pa.scalar(word))
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


def _words(table: pa.Table, name: str) -> list[str]:
    return [str(word) for word in table.column(name).cast(pa.string()).to_pylist()]


def _points(table: pa.Table) -> list[tuple[str, int, int]]:
    starts = table.column("start").cast(pa.int64()).to_numpy() // _US
    values: list[int] = table.column("value").to_numpy().tolist()
    return list(zip(_words(table, _LABEL), starts.tolist(), values, strict=True))
