"""vacuum: deletes the objects of the table that nobody needs any more.

| object | goes |
|---|---|
| a segment that a version took out | a grace period behind it: readers may hold the one before |
| a segment that no version names | when it is as old, behind a *fence* |
| a version below the newest checkpoint | a day behind it, oldest first |
| a checkpoint below the newest | as a version |

A segment without a name may belong to a run that is still under way. So the fence is moved first,
in a version of its own: whoever began before it finds that out when it comes to name what it wrote,
and cannot. Age alone would not do: a run may sleep longer than any period.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from bourn.errors import ObjectMissing
from bourn.layout.history.delta import (
    DELTA_PREFIX,
    HISTORY_PREFIX,
    Actions,
    SegmentName,
    decode_actions,
    delta_key,
    parse_checkpoint_key,
    parse_delta_key,
    parse_segment_key,
)
from bourn.layout.reports import JobReport
from bourn.limits import VACUUM_REQUESTS
from bourn.pipeline.job import Tools
from bourn.pipeline.table import HistoryTable, Superseded, TableChange


class Listing(NamedTuple):
    """The objects of the table as they were listed."""

    segments: dict[SegmentName, list[str]]  # a name's Parquet file, sidecar or both
    sizes: dict[str, int]
    versions: list[int]  # ascending
    checkpoints: dict[int, str]


class Vacuum:
    """Deletes, in one bucket."""

    def __init__(self, tools: Tools, table: HistoryTable) -> None:
        self._tools = tools
        self._bucket = tools.bucket
        self._settings = tools.settings
        self._table = table
        self._removed: dict[int, dict[SegmentName, int]] = {}  # by version: when they went, ms
        self._made_ms: dict[int, int] = {}  # when a version was made
        self._turn = asyncio.Semaphore(VACUUM_REQUESTS)

    async def run(self, report: JobReport) -> None:
        """Delete what may go by now."""
        listing = await self._tools.retry(self._list)
        state = await self._table.refresh()  # behind the listing: what was named since, is live
        if state.version < 0:
            return
        await self._read_versions(listing.versions)
        now_ms = self._tools.clock.now_ms()
        grace_ms = round(self._settings.grace_secs * 1000)
        unnamed, removed = await self._unnamed(listing)
        ripe = {name for name in unnamed if now_ms - removed.get(name, now_ms + 1) >= grace_ms}
        orphans = {name for name in unnamed - removed.keys() if _is_old(name, now_ms, grace_ms)}
        if orphans:
            # Some of them may have been named, or even taken out, just before the fence.
            is_fenced = await self._fence_off(state.fence)
            unnamed, removed = await self._unnamed(listing)
            orphans = orphans & unnamed - removed.keys() if is_fenced else set()
        keys = [key for name in (*ripe, *orphans) for key in listing.segments[name]]
        await asyncio.gather(*map(self._delete, keys))
        versions = await self._forget_versions(listing, unnamed - ripe - orphans, now_ms)
        report.rounds += bool(keys)
        report.facts["objects_deleted"] = len(keys)
        report.facts["deleted_bytes"] = sum(listing.sizes[key] for key in keys)
        report.facts["versions_deleted"] = versions

    async def _unnamed(self, listing: Listing) -> tuple[set[SegmentName], dict[SegmentName, int]]:
        """Return the listed segments that are not in the table, and when those that were went."""
        state = self._table.state
        first = listing.versions[-1] + 1 if listing.versions else 0
        await self._read_versions(range(first, state.version + 1))
        live = {parse_segment_key(add.key) for add in state.live.values()}
        removed = {name: at for went in self._removed.values() for name, at in went.items()}
        return {name for name in listing.segments if name not in live}, removed

    async def _list(self) -> Listing:
        listing = Listing({}, {}, [], {})
        async for info in self._bucket.list(HISTORY_PREFIX):
            listing.sizes[info.key] = info.size_bytes
            name = parse_segment_key(info.key)
            if name is not None:
                listing.segments.setdefault(name, []).append(info.key)
            elif info.key.startswith(DELTA_PREFIX):
                version, checkpoint = parse_delta_key(info.key), parse_checkpoint_key(info.key)
                if version is not None:
                    listing.versions.append(version)
                elif checkpoint is not None:
                    listing.checkpoints[checkpoint] = info.key
        return listing

    # Segments

    async def _read_versions(self, versions: Iterable[int]) -> None:
        """Learn what each version took out, and when; versions are read once."""
        wanted = [version for version in versions if version not in self._removed]
        await asyncio.gather(*map(self._read_version, wanted))

    async def _read_version(self, version: int) -> None:
        async with self._turn:
            try:
                actions = await self._tools.retry(partial(self._actions, version))
            except ObjectMissing:
                return  # somebody else vacuums too
        made_ms = actions.info.get("timestamp")
        self._made_ms[version] = made_ms if isinstance(made_ms, int) else 0
        went: dict[SegmentName, int] = {}
        for remove in actions.removes:
            name = parse_segment_key(HISTORY_PREFIX + remove.path)
            if name is not None:
                went[name] = remove.deletion_timestamp or self._made_ms[version]
        self._removed[version] = went

    async def _actions(self, version: int) -> Actions:
        key = delta_key(version)
        return decode_actions(await self._bucket.get(key), key)

    async def _fence_off(self, fence: int) -> bool:
        """Make sure that no run under way names what it wrote; False where another vacuum did."""
        change = TableChange("VACUUM START", fence=fence, new_fence=fence + 1)
        try:
            await self._table.commit(change)
        except Superseded:
            return False
        return True

    async def _delete(self, key: str) -> None:
        async with self._turn:
            await self._tools.retry(partial(self._bucket.delete, key))

    # The table's log

    async def _forget_versions(self, listing: Listing, kept: set[SegmentName], now_ms: int) -> int:
        """Delete old versions that a checkpoint holds, oldest first: nobody sees a gap."""
        newest = max(listing.checkpoints, default=-1)
        keep_ms = round(max(self._settings.log_keep_secs, self._settings.grace_secs) * 1000)
        going: list[str] = []
        for version in listing.versions:
            made_ms = self._made_ms.get(version, now_ms)
            # A version says when a file went: it stays as long as the file does.
            is_needed = not kept.isdisjoint(self._removed.get(version, {}))
            if version >= newest or now_ms - made_ms < keep_ms or is_needed:
                break
            going += [delta_key(version)]
            going += [key for at, key in listing.checkpoints.items() if at == version]
            self._removed.pop(version, None)
            self._made_ms.pop(version, None)
        for key in going:
            await self._delete(key)
        return len(going)


_PLAUSIBLE_S: Final = 1_700_000_000  # a name from before it was made by another rule


def _is_old(name: SegmentName, now_ms: int, grace_ms: int) -> bool:
    """Whether a segment was written so long ago that its run has ended, or may be ended."""
    written_ms = name.written_s * 1000
    is_plausible = _PLAUSIBLE_S * 1000 <= written_ms <= now_ms + grace_ms
    return not is_plausible or now_ms - written_ms >= grace_ms
