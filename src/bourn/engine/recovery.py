"""From a bucket to a running state.

Claim an epoch, load the newest snapshot, seal what older writers left open, replay what the
snapshot does not cover.

An older epoch is read upward from the snapshot. At its first gap a tombstone is put: a writer that
is still alive there can never pass it, hence never ack again. If that put loses, what won is read
and the search goes on. Objects behind a gap were never acked, unless one of them says otherwise:
each commit tells up to where its epoch was durable when it was made, so a lost object is told
from one that never was, and the start is refused with its name.
"""

import asyncio
import logging
import random
from bisect import bisect_right
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, NamedTuple

from bourn.bucket.port import Bucket, ObjectInfo
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.engine.state import State
from bourn.errors import Damaged, Fenced, ObjectExists, ObjectMissing
from bourn.layout.claim import Claim, decode_claim, encode_claim
from bourn.layout.commit import Commit, CommitHeader, decode_commit, encode_tombstone
from bourn.layout.keys import (
    EPOCH_PREFIX,
    SNAPSHOT_PREFIX,
    LogPosition,
    epoch_key,
    parse_epoch_key,
    parse_snapshot_key,
    parse_wal_key,
    wal_key,
    wal_prefix,
)
from bourn.layout.snapshot import Snapshot, decode_snapshot
from bourn.settings import EngineSettings

log = logging.getLogger(__name__)

FETCH_BYTES_AHEAD: Final = 64 * 1024 * 1024
FETCH_OBJECTS_AHEAD: Final = 32
SNAPSHOT_LISTINGS_MAX: Final = 10


class Recovered(NamedTuple):
    """A claimed epoch and the state that it begins with."""

    epoch: int
    writer: bytes
    state: State
    base_ordinal: int
    snapshot: LogPosition | None
    replayed_commits: int
    replayed_bytes: int


class Recovery:
    """One start of a writer on a bucket."""

    def __init__(
        self,
        bucket: Bucket,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
        writer: bytes,
    ) -> None:
        """`bucket` answers every call in bounded time; `writer` names whoever starts, for good."""
        self._bucket = bucket
        self._settings = settings
        self._clock = clock
        self._retry = Retry(clock, rng, settings.put_deadline_secs)
        self._writer = writer
        self._commits = 0
        self._bytes = 0

    async def run(self, newest_epoch: int | None = None) -> Recovered:
        """Take the bucket over.

        With `newest_epoch`, the last one that this writer has worked in, only while nobody else
        has claimed a newer one.
        """
        epochs = await self._retry(self._claimed_epochs)
        epoch = (epochs[-1] if epochs else 0) + 1
        if newest_epoch is not None:
            for newer in epochs[bisect_right(epochs, newest_epoch) :]:
                await self._is_ours(newer, or_raise=True)
                epoch = newer  # of a start that failed: it will do
        epoch = await self._claim(epoch, alone=newest_epoch is not None)
        snapshot = await self._newest_snapshot()
        state = State.from_snapshot(snapshot)
        position = snapshot.meta.position if snapshot else None
        ordinal = state.next_ordinal
        # Every number up to ours was claimed by somebody, whether a listing shows it or not.
        for older in range(1 if position is None else position.epoch, epoch):
            start_id = position.id if position is not None and older == position.epoch else 0
            state.epochs.begin(older, ordinal - start_id)
            ordinal += await self._replay_epoch(state, older, start_id, ordinal)
        state.epochs.begin(epoch, ordinal)
        return Recovered(epoch, self._writer, state, ordinal, position, self._commits, self._bytes)

    async def _claimed_epochs(self) -> list[int]:
        keys = [info.key async for info in self._bucket.list(EPOCH_PREFIX)]
        return sorted(e for key in keys if (e := parse_epoch_key(key)) is not None)

    async def _claim(self, epoch: int, *, alone: bool) -> int:
        """Claim this epoch or the first one behind it; Fenced where `alone` and somebody is."""
        while True:
            assert self._settings.commits_in_flight is not None
            claim = Claim(
                epoch=epoch,
                writer=self._writer.hex(),
                started_at_ms=self._clock.now_ms(),
                commits_in_flight=self._settings.commits_in_flight,
            )
            is_ours = await self._create(epoch_key(epoch), encode_claim(claim))
            if not is_ours:  # unless the reply was lost, or an earlier start of ours has failed
                is_ours = await self._is_ours(epoch, or_raise=alone)
            if is_ours and not await self._retry(partial(self._has_traces, epoch)):
                return epoch
            epoch += 1

    async def _is_ours(self, epoch: int, *, or_raise: bool) -> bool:
        is_ours = (await self._read_claim(epoch)).writer == self._writer.hex()
        if or_raise and not is_ours:
            raise Fenced(f"epoch {epoch} has been claimed by another writer")
        return is_ours

    async def _read_claim(self, epoch: int) -> Claim:
        key = epoch_key(epoch)

        async def read() -> Claim:
            try:
                return decode_claim(await self._bucket.get(key), key)
            except ObjectMissing:
                raise Damaged(key, "it was there and cannot be found") from None

        return await self._retry(read)

    async def _has_traces(self, epoch: int) -> bool:
        """Whether somebody has written in this epoch: then the claim was there before, and lost."""
        async for _ in self._bucket.list(wal_prefix(epoch)):
            return True
        async for info in self._bucket.list(SNAPSHOT_PREFIX):
            position = parse_snapshot_key(info.key)
            if position is not None and position.epoch == epoch:
                return True
        return False

    async def _create(self, key: str, data: bytes) -> bool:
        try:
            await self._retry(partial(self._bucket.put_if_absent, key, data))
        except ObjectExists:
            return False
        return True

    async def _newest_snapshot(self) -> Snapshot | None:
        missing = ""
        for _ in range(SNAPSHOT_LISTINGS_MAX):
            try:
                return await self._listed_snapshot()
            except ObjectMissing as error:
                # An older writer's housekeeping was quicker: it deletes what it has replaced, and
                # without the replacement, the log alone would seem to lack its collected commits.
                missing = error.key
        raise Damaged(missing, "it is listed and cannot be found")

    async def _listed_snapshot(self) -> Snapshot | None:
        """Load the newest snapshot of one listing; ObjectMissing where it has gone since."""

        async def listed() -> list[ObjectInfo]:
            found = [info async for info in self._bucket.list(SNAPSHOT_PREFIX)]
            return [info for info in found if parse_snapshot_key(info.key) is not None]

        first_damage: Damaged | None = None
        for info in sorted(await self._retry(listed), reverse=True):
            try:
                return await self._retry(partial(self._load_snapshot, *info))
            except Damaged as damaged:
                log.warning("%s; trying the snapshot before it", damaged)
                first_damage = first_damage or damaged
        if first_damage is not None:
            raise first_damage
        return None

    async def _load_snapshot(self, key: str, size_bytes: int) -> Snapshot:
        data = await self._bucket.get_range(key, 0, size_bytes)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, decode_snapshot, data, key)

    async def _replay_epoch(self, state: State, epoch: int, start_id: int, ordinal: int) -> int:
        """Apply an older epoch's commits from `start_id`; returns how many there were."""
        next_id = start_id
        while True:
            ids, sizes = await self._retry(partial(self._listed, epoch, next_id))
            run = 0
            while run < len(ids) and ids[run] == next_id + run:
                run += 1
            async for commit in self._fetched(epoch, next_id, sizes[:run]):
                if commit.header.is_tombstone:
                    return next_id - start_id
                key = wal_key(epoch, next_id)
                state.apply_commit(commit, ordinal + next_id - start_id, key)
                self._commits += 1
                next_id += 1
            await self._refuse_lost(epoch, next_id, ids[run:])
            if await self._seal(epoch, next_id):
                return next_id - start_id

    async def _listed(self, epoch: int, from_id: int) -> tuple[list[int], list[int]]:
        after = wal_key(epoch, from_id - 1) if from_id else ""
        ids, sizes = [], []
        async for info in self._bucket.list(wal_prefix(epoch), after):
            position = parse_wal_key(info.key)
            if position is not None:
                ids.append(position.id)
                sizes.append(info.size_bytes)
        return ids, sizes

    async def _fetched(self, epoch: int, first_id: int, sizes: list[int]) -> AsyncIterator[Commit]:
        """Yield consecutive commits, fetching ahead within bounds."""
        ahead: list[tuple[int, asyncio.Task[Commit]]] = []
        bytes_ahead = 0
        at = 0
        try:
            while at < len(sizes) or ahead:
                while at < len(sizes) and (
                    not ahead
                    or (bytes_ahead < FETCH_BYTES_AHEAD and len(ahead) < FETCH_OBJECTS_AHEAD)
                ):
                    work = self._fetch(epoch, first_id + at)
                    ahead.append((sizes[at], asyncio.ensure_future(work)))
                    bytes_ahead += sizes[at]
                    at += 1
                size, task = ahead.pop(0)
                commit = await task
                bytes_ahead -= size
                self._bytes += size
                yield commit
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    async def _fetch(self, epoch: int, commit_id: int) -> Commit:
        key = wal_key(epoch, commit_id)

        async def fetch() -> Commit:
            try:
                commit = decode_commit(await self._bucket.get(key), key)
            except ObjectMissing:
                raise Damaged(key, "it was listed and cannot be found") from None
            if (commit.header.epoch, commit.header.id) != (epoch, commit_id):
                raise Damaged(key, "it is the commit of another place")
            return commit

        return await self._retry(fetch)

    async def _refuse_lost(self, epoch: int, gap: int, later_ids: list[int]) -> None:
        """Raise where anything behind a gap proves that the missing commit was durable once.

        Unless it is there by now: a writer that is still alive may have filled the gap and gone on
        while the listing was under way.
        """
        for later in later_ids:
            header = (await self._fetch(epoch, later)).header
            if not header.is_tombstone and header.durable_id <= gap:
                continue
            try:
                await self._retry(partial(self._bucket.get_range, wal_key(epoch, gap), 0, 1))
            except ObjectMissing:
                key = wal_key(epoch, later)
                raise Damaged(
                    wal_key(epoch, gap), f"the object is missing, and {key} follows it"
                ) from None
            return

    async def _seal(self, epoch: int, commit_id: int) -> bool:
        """Put the tombstone; False where something else stands there by now."""
        header = CommitHeader(epoch, commit_id, self._clock.now_ms(), commit_id, self._writer)
        return await self._create(wal_key(epoch, commit_id), encode_tombstone(header))
