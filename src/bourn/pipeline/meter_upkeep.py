"""Keeps the usage table small: minutes and hours go in time, small files become one.

Nothing is rolled up here: hours and days were written beside the minutes from the start. What no
version names any more goes a grace period later, behind a fence, as in the history.
"""

import logging
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bourn.errors import ObjectMissing
from bourn.layout.history.delta import (
    Add,
    decode_actions,
    parse_checkpoint_key,
    parse_delta_key,
)
from bourn.layout.history.facts import remove_of
from bourn.layout.reports import JobReport
from bourn.layout.usage_table import (
    SCHEMA,
    USAGE_PREFIX,
    add_of,
    closed_minutes,
    decode_usage,
    encode_usage,
    file_name,
    parse_usage_key,
    usage_key,
)
from bourn.limits import (
    METER_FILE_BYTES_SMALL,
    METER_FILES_JOINED,
    METER_HOURS_KEPT_DAYS,
    METER_MINUTES_KEPT_DAYS,
    METER_STREAM_HOURS_KEPT_DAYS,
    METER_STREAM_MINUTES_KEPT_DAYS,
    METER_VERSIONS_KEPT,
)
from bourn.pipeline.job import Tools
from bourn.pipeline.table import Superseded, checkpoint
from bourn.pipeline.usage_log import UsageChange, UsageLog

log = logging.getLogger(__name__)

DAY_S: Final = 86_400
_US: Final = 1_000_000
# By interval, and whether they are figures of streams; days stay.
KEPT_DAYS: Final = {
    (60, 0): METER_MINUTES_KEPT_DAYS,
    (3600, 0): METER_HOURS_KEPT_DAYS,
    (60, 1): METER_STREAM_MINUTES_KEPT_DAYS,
    (3600, 1): METER_STREAM_HOURS_KEPT_DAYS,
}


class Living(NamedTuple):
    """The basins that there were at an instant; others that were before it are gone."""

    basins: frozenset[str] = frozenset()
    at_s: int = 0

    def keeps(self, table: pa.Table, secs: int) -> "pa.BooleanArray":
        """Tell which rows may stay: of a basin that there is, or of a time behind the instant."""
        known = pc.is_in(
            table.column("basin").cast(pa.string()),
            value_set=pa.array(["", *sorted(self.basins)], pa.string()),
        )
        starts = table.column("start").cast(pa.int64()).to_numpy() // _US
        return pa.array(known.to_numpy(zero_copy_only=False) | (starts + secs > self.at_s))


class Plan(NamedTuple):
    """Files whose rows are all too old, and groups of files that become one."""

    drops: list[Add]
    joins: list[list[Add]]


def plan(adds: Iterable[Add], now_s: int, stale: Container[str] = ()) -> Plan:
    """Decide what goes and what is joined; `stale` files are written again in any case."""
    drops: list[Add] = []
    alone: list[list[Add]] = []
    kinds: dict[tuple[int, int], list[Add]] = {}
    for add in adds:
        kind = (add.tag("interval"), add.tag("streams"))
        if kind in KEPT_DAYS and add.tag("until_s") < now_s - KEPT_DAYS[kind] * DAY_S:
            drops.append(add)
        elif add.path in stale and add.size >= METER_FILE_BYTES_SMALL:
            alone.append([add])
        elif add.size < METER_FILE_BYTES_SMALL:
            kinds.setdefault(kind, []).append(add)
    joins: list[list[Add]] = []
    for found in kinds.values():
        found.sort(key=lambda add: (add.tag("from_s"), add.path))
        some: list[Add] = []
        for add in found:
            some.append(add)
            if sum(one.size for one in some) >= METER_FILE_BYTES_SMALL:
                joins.append(some)
                some = []
        if len(some) >= METER_FILES_JOINED or any(add.path in stale for add in some):
            joins.append(some)
    joined = [some for some in joins if len(some) > 1 or some[0].path in stale]
    return Plan(drops, [*alone, *joined])


class Upkeep:
    """Looks after the table in one bucket."""

    def __init__(self, tools: Tools, usage_log: UsageLog) -> None:
        self._tools = tools
        self._bucket = tools.bucket
        self._log = usage_log
        self._checkpointed = -1
        self._basins: dict[str, frozenset[str]] = {}  # by file: those that it names

    async def run(self, report: JobReport, living: Living | None) -> None:
        """Drop, join, checkpoint, vacuum."""
        await self._rewrite(report, living)
        await self._checkpoint()
        await self._vacuum(report)

    async def _rewrite(self, report: JobReport, living: Living | None) -> None:
        state = await self._log.refresh()
        now_ms = self._tools.clock.now_ms()
        stale = set() if living is None else await self._stale(state.live, living)
        drops, joins = plan(state.live.values(), now_ms // 1000, stale)
        if not drops and not joins:
            return
        adds = [
            add for some in joins if (add := await self._joined(some, now_ms, living)) is not None
        ]
        removes = [
            *(remove_of(add, now_ms) for add in drops),
            *(remove_of(add, now_ms) for some in joins for add in some),
        ]
        stands = closed_minutes(state)
        try:
            await self._log.commit(
                UsageChange("OPTIMIZE", stands, stands, state.fence, adds, removes)
            )
        except Superseded as error:
            log.info("somebody else was quicker: %s", error)
            report.superseded += 1
            return
        report.rounds += 1
        report.facts["files_removed"] = len(removes)

    async def _stale(self, live: Mapping[str, Add], living: Living) -> set[str]:
        """Return the files that name a basin which is gone; each is read once."""
        self._basins = {path: named for path, named in self._basins.items() if path in live}
        stale: set[str] = set()
        for path, add in live.items():
            if path not in self._basins:
                words = (await self._read(add)).column("basin").unique().to_pylist()
                self._basins[path] = frozenset(str(word) for word in words)
            if self._basins[path] - living.basins - {""}:
                table = await self._read(add)
                if not pc.all(living.keeps(table, add.tag("interval"))).as_py():
                    stale.add(path)
        return stale

    async def _read(self, add: Add) -> pa.Table:
        key = usage_key(add)
        data = await self._tools.retry(partial(self._bucket.get, key))
        return decode_usage(data, key).cast(SCHEMA)

    async def _joined(self, some: list[Add], now_ms: int, living: Living | None) -> Add | None:
        """Write the rows of some files as one, without those that are too old, or of nobody."""
        secs, streams = some[0].tag("interval"), some[0].tag("streams")
        table = pa.concat_tables([await self._read(add) for add in some])
        if living is not None:
            table = table.filter(living.keeps(table, secs))
        if (secs, streams) in KEPT_DAYS:
            oldest_s = now_ms // 1000 - KEPT_DAYS[secs, streams] * DAY_S
            oldest = pa.scalar(oldest_s * 1_000_000, pa.timestamp("us", "UTC"))
            table = table.filter(pc.greater_equal(table.column("start"), oldest))
        if not len(table):
            return None
        until = max(
            found.until_minute for add in some if (found := parse_usage_key(usage_key(add)))
        )
        of = "streams" if streams else "basins"
        name = file_name(of, secs, until, now_ms, self._tools.rng.getrandbits(32))
        data = encode_usage(table)
        await self._tools.retry(partial(self._bucket.put, USAGE_PREFIX + name, data))
        return add_of(name, table, len(data), now_ms)

    async def _checkpoint(self) -> None:
        every, now = self._tools.settings.checkpoint_versions, self._log.state.version
        if now < every or now // every == self._checkpointed // every:
            return
        self._checkpointed = now
        try:
            await checkpoint(self._tools.place, USAGE_PREFIX)
        except Exception as error:  # noqa: BLE001  deltalake has many; readers do without
            log.warning("no checkpoint of the usage table: %s", type(error).__name__)

    # Vacuum

    async def _vacuum(self, report: JobReport) -> None:
        keys = await self._tools.retry(self._listed)
        state = await self._log.refresh()  # behind the listing: what was named since, is live
        live = {usage_key(add) for add in state.live.values()}
        unnamed = [key for key in keys if parse_usage_key(key) is not None and key not in live]
        removed = await self._removed(keys)
        now_ms = self._tools.clock.now_ms()
        grace_ms = round(self._tools.settings.grace_secs * 1000)
        ripe = [key for key in unnamed if now_ms - removed.get(key, now_ms + 1) >= grace_ms]
        orphans = [
            key
            for key in unnamed
            if key not in removed
            and (found := parse_usage_key(key)) is not None
            and now_ms - found.written_s * 1000 >= grace_ms
        ]
        if orphans:
            ripe += await self._fenced_off(orphans)
        for key in ripe:
            await self._bucket.delete(key)
        report.facts["objects_deleted"] = len(ripe) + await self._forget_versions(keys)

    async def _listed(self) -> list[str]:
        return [info.key async for info in self._bucket.list(USAGE_PREFIX)]

    async def _removed(self, keys: Iterable[str]) -> dict[str, int]:
        """Return when files were taken out, as far as the log of the table still says it."""
        found: dict[str, int] = {}
        for key in keys:
            if parse_delta_key(key, USAGE_PREFIX) is None:
                continue
            try:
                actions = decode_actions(
                    await self._tools.retry(partial(self._bucket.get, key)), key
                )
            except ObjectMissing:
                continue
            for remove in actions.removes:
                found[USAGE_PREFIX + remove.path] = remove.deletion_timestamp or 0
        return found

    async def _fenced_off(self, orphans: list[str]) -> list[str]:
        """Return the files that no version names, nor ever will."""
        state = self._log.state
        stands = closed_minutes(state)
        change = UsageChange("VACUUM START", stands, stands, state.fence, new_fence=state.fence + 1)
        try:
            state = await self._log.commit(change)
        except Superseded:
            return []
        live = {usage_key(add) for add in state.live.values()}
        return [key for key in orphans if key not in live]

    async def _forget_versions(self, keys: Iterable[str]) -> int:
        """Delete versions and checkpoints far below the newest checkpoint."""
        every = list(keys)
        checkpoints = [
            found for key in every if (found := parse_checkpoint_key(key, USAGE_PREFIX)) is not None
        ]
        oldest = max(checkpoints, default=0) - METER_VERSIONS_KEPT
        gone = 0
        for key in every:
            version = parse_delta_key(key, USAGE_PREFIX)
            if version is None:
                version = parse_checkpoint_key(key, USAGE_PREFIX)
            if version is not None and version < oldest:
                await self._bucket.delete(key)
                gone += 1
        return gone
