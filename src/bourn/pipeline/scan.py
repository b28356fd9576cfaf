"""Which commits the log has, read only: exactly those that a restart of the server would keep.

```
ordinal   0 …        floor …                    end
          collected  │ contiguous               │ a gap: not durable yet, or never
          or there   │ newest snapshot's place  │
```

An older epoch ends at its tombstone, the newest one at its first gap. What is contiguous from the
newest snapshot on stays so for ever: objects are only created, and whoever seals the epoch reads
up to the same gap. Below that snapshot the server has deleted commits whose records have all
expired or been trimmed or deleted, so there an object may be missing, and nothing is missed. That
no stream of the snapshot refers to it is the proof; without it the object is a lost one.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from bourn.bucket.port import Bucket, ObjectInfo
from bourn.bucket.retry import Retry
from bourn.catalog.changes import decode_change
from bourn.errors import Damaged, ObjectMissing, Undecodable
from bourn.layout.commit import FOOTER_BYTES, HEADER_BYTES, decode_commit, decode_header
from bourn.layout.entry import KIND_CHANGE
from bourn.layout.keys import (
    SNAPSHOT_PREFIX,
    LogPosition,
    parse_snapshot_key,
    parse_wal_key,
    wal_key,
    wal_prefix,
)
from bourn.layout.runs import RUN_DTYPE
from bourn.layout.snapshot import Snapshot, decode_snapshot
from bourn.limits import CATALOG_FETCHES
from bourn.log.epochs import EpochMap
from bourn.pipeline.living import Living, Trims
from bourn.pipeline.names import Catalog, StreamNames

TOMBSTONE_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
LISTINGS_MAX: Final = 5
KIND_AT: Final = HEADER_BYTES + 12  # of the first entry
LATER_MAX: Final = 256  # objects behind a gap that are looked at: more than can be in flight


class CommitObject(NamedTuple):
    """A commit of the log."""

    ordinal: int
    key: str
    size_bytes: int


class LogSpan(NamedTuple):
    """The commits with ordinals from `first` up to `end`, those that are still there."""

    first: int
    end: int
    commits: list[CommitObject]
    is_cut: bool = False  # by the limits: more follows

    @property
    def size_bytes(self) -> int:
        """Bytes of log."""
        return sum(commit.size_bytes for commit in self.commits)


class _Gap(Exception):
    """A commit that was durable cannot be found; a newer snapshot may say why."""


class LogScan:
    """The log of one bucket, as far as it has been looked at."""

    def __init__(self, bucket: Bucket, retry: Retry) -> None:
        self._bucket = bucket
        self._retry = retry
        self._snapshot: LogPosition | None = None
        self._epochs = EpochMap([(1, 0)])
        self._floor = 0  # the ordinal of the newest snapshot
        self._needed = np.empty(0, np.uint64)  # ordinals below it that it refers to, ascending
        self._walked = 0  # everything between the floor and this is there, and in `_epochs`
        self._trims = Trims(np.empty(0, np.uint64), np.empty(0, np.uint64))
        self._catalog = Catalog()
        self._catalog_at = 0  # the first ordinal whose changes are not in it

    async def span(self, first: int, *, commits_max: int, bytes_max: int) -> LogSpan:
        """Return the commits from an ordinal on, as many as fit the limits, one at least."""
        await self._look_for_snapshot()
        for attempt in range(LISTINGS_MAX):
            try:
                return await self._retry(partial(self._walk, first, commits_max, bytes_max))
            except _Gap as gap:
                if not await self._look_for_snapshot() and attempt:
                    raise Damaged(str(gap), "the object is missing, and others follow it") from None
        raise Damaged(wal_prefix(1), "it changes faster than it can be listed")

    async def names(self, end: int) -> StreamNames:
        """Return the names of the streams as of an ordinal that a span has reached, or later."""
        return (await self._catalog_of(end)).names()

    async def living(self, end: int) -> Living:
        """Return the streams that there are as of an ordinal, or later, and what is trimmed.

        What was trimmed behind the newest snapshot is left to the next one.
        """
        await self.span(end, commits_max=1, bytes_max=1)
        ids = (await self._catalog_of(end)).living_ids()
        return Living(ids, self._trims.of(ids))

    async def _catalog_of(self, end: int) -> Catalog:
        for _ in range(LISTINGS_MAX):
            try:
                await self._catch_up(end)
            except ObjectMissing as error:
                if not await self._look_for_snapshot():
                    raise Damaged(error.key, "it was listed and cannot be found") from None
            else:
                return self._catalog
        raise Damaged(SNAPSHOT_PREFIX, "commits go faster than they can be read")

    async def created_ms(self, commit: CommitObject) -> int:
        """Return when a commit was made."""
        head = await self._head(commit.key)
        return decode_header(head, commit.key).created_ms

    # Snapshots

    async def _look_for_snapshot(self) -> bool:
        """Take the newest snapshot over; False where it is known already."""
        for _ in range(LISTINGS_MAX):
            listed = await self._retry(self._listed_snapshots)
            if not listed or listed[-1][0] == self._snapshot:
                return False
            position, info = listed[-1]
            try:
                snapshot = await self._retry(partial(self._load, info))
            except ObjectMissing:
                continue  # a newer one has taken its place
            self._adopt(position, snapshot)
            return True
        raise Damaged(SNAPSHOT_PREFIX, "snapshots are listed and cannot be found")

    async def _listed_snapshots(self) -> list[tuple[LogPosition, ObjectInfo]]:
        found = [info async for info in self._bucket.list(SNAPSHOT_PREFIX)]
        named = ((parse_snapshot_key(info.key), info) for info in found)
        return sorted((at, info) for at, info in named if at is not None)

    async def _load(self, info: ObjectInfo) -> Snapshot:
        data = await self._bucket.get_range(info.key, 0, info.size_bytes)
        return await asyncio.to_thread(decode_snapshot, data, info.key)

    def _adopt(self, position: LogPosition, snapshot: Snapshot) -> None:
        meta = snapshot.meta
        self._snapshot = position
        if meta.next_ordinal >= self._walked:
            # Of later epochs than the snapshot knows, nothing has been seen yet either.
            self._epochs = EpochMap(meta.bases)
            self._epochs.begin(position.epoch, meta.next_ordinal - position.id)
            self._walked = meta.next_ordinal
        self._floor = meta.next_ordinal
        runs = np.frombuffer(snapshot.columns.runs.data, RUN_DTYPE)
        self._needed = np.unique(runs["commit"])
        order = np.argsort(snapshot.columns.ids)
        self._trims = Trims(snapshot.columns.ids[order], snapshot.columns.trim_points[order])
        if meta.next_ordinal > self._catalog_at:
            self._catalog = Catalog(snapshot)
            self._catalog_at = meta.next_ordinal

    # Commits

    async def _walk(self, first: int, commits_max: int, bytes_max: int) -> LogSpan:
        commits: list[CommitObject] = []
        size = 0
        oldest = self._epochs.bases[0][1]  # whatever was before it has gone
        start = max(min(first, self._walked), oldest)
        async with aclosing(self._commits_from(start)) as found:
            async for commit in found:
                if commit.ordinal < first:
                    continue
                size += commit.size_bytes
                if commits and (len(commits) == commits_max or size > bytes_max):
                    return LogSpan(first, commit.ordinal, commits, is_cut=True)
                commits.append(commit)
        return LogSpan(first, max(first, self._walked), commits)

    async def _commits_from(self, at: int) -> AsyncGenerator[CommitObject, None]:
        """Yield the commits from an ordinal on; `_walked` is where they end."""
        while True:
            epoch, commit_id = self._epochs.position(at)
            base = at - commit_id
            known = self._epochs.span(epoch)
            listing = self._bucket.list(
                wal_prefix(epoch), wal_key(epoch, commit_id - 1) if commit_id else ""
            )
            is_sealed = False
            async for info in listing:
                position = parse_wal_key(info.key)
                if position is None:
                    continue
                ordinal = base + position.id
                if known is not None and ordinal >= known.stop:
                    break
                if ordinal > max(at, self._floor):
                    later = [info.key, *[info.key async for info in listing]][:LATER_MAX]
                    await self._refuse_lost(wal_key(epoch, max(at, self._floor) - base), later)
                    break
                if ordinal >= self._walked and await self._is_tombstone(info):
                    is_sealed = True
                    break
                self._refuse_needed(epoch, base, at, ordinal)
                at = ordinal + 1
                self._walked = max(self._walked, at)
                yield CommitObject(ordinal, info.key, info.size_bytes)
            end = max(at, self._floor) if known is None else min(max(at, self._floor), known.stop)
            self._refuse_needed(epoch, base, at, end)
            at = end
            if known is not None and at < known.stop:
                raise _Gap(wal_key(epoch, at - base))  # it was there when the epoch was walked
            if known is None and not is_sealed:
                return
            if known is None:
                self._epochs.begin(epoch + 1, at)

    def _refuse_needed(self, epoch: int, base: int, at: int, end: int) -> None:
        """Raise where an object between two ordinals is missing, and the snapshot refers to it."""
        found = self._needed[np.searchsorted(self._needed, at) : np.searchsorted(self._needed, end)]
        if len(found):
            raise _Gap(wal_key(epoch, int(found[0]) - base))

    async def _is_tombstone(self, info: ObjectInfo) -> bool:
        if info.size_bytes != TOMBSTONE_BYTES:
            return False
        return decode_header(await self._head(info.key), info.key).is_tombstone

    async def _refuse_lost(self, gap: str, later: list[str]) -> None:
        """Raise where what stands behind a gap proves that the missing commit was durable once.

        Unless it is there by now: a writer goes on while the listing is under way.
        """
        place = parse_wal_key(gap)
        assert place is not None
        header = decode_header(await self._head(later[-1]), later[-1])
        if not header.is_tombstone and header.durable_id <= place.id:
            return
        try:
            await self._bucket.get_range(gap, 0, 1)
        except ObjectMissing:
            raise _Gap(gap) from None

    async def _head(self, key: str) -> bytes:
        return await self._retry(partial(self._bucket.get_range, key, 0, KIND_AT + 1))

    # Changes

    async def _catch_up(self, end: int) -> None:
        while self._catalog_at < end:
            stop = min(end, self._catalog_at + CATALOG_FETCHES)
            places = map(self._epochs.position, range(self._catalog_at, stop))
            keys = [wal_key(*place) for place in places]
            found = await asyncio.gather(*map(self._changes, keys))
            for key, changes in zip(keys, found, strict=True):
                try:
                    for change in changes:
                        self._catalog.apply(decode_change(change))
                except Undecodable as error:
                    raise Damaged(key, str(error)) from error
                self._catalog_at += 1

    async def _changes(self, key: str) -> tuple[bytes, ...]:
        """Return the changes of a commit: they stand before its batches, so its beginning tells."""
        head = await self._head(key)
        if len(head) <= KIND_AT or head[KIND_AT] != KIND_CHANGE:
            return ()
        return decode_commit(await self._retry(partial(self._bucket.get, key)), key).changes
