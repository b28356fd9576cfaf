"""Snapshots of the state: taken beside the traffic, so that a start replays little.

The state is captured at a cut of the log, in one turn of the loop, but for the runs of streams that
have many. These are copied a piece a turn, up to the cut: whatever comes behind it has a later
commit, and what is dropped meanwhile is expired, durably trimmed or in the table, so that nobody
would look for it after a start either. Merging, encoding and the put run beside the loop. The
object is only put once everything that it covers is durable.
"""

import asyncio
import logging

import msgspec
import numpy as np

from bourn.catalog.cold import ColdStreams
from bourn.catalog.table import Capture
from bourn.engine.term import Term
from bourn.errors import BournError, BucketError, ObjectExists, Unavailable
from bourn.layout.keys import SNAPSHOT_PREFIX, LogPosition, parse_snapshot_key, snapshot_key
from bourn.layout.runs import RunIndex, last_commit
from bourn.layout.snapshot import encode_snapshot
from bourn.limits import (
    SNAPSHOT_PAUSE_FACTOR,
    SNAPSHOT_RUNS_PIECE_BYTES,
    STREAMS_IN_USE_MAX,
)

log = logging.getLogger(__name__)


class Snapshots:
    """Decides when the state is worth a snapshot, and takes it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._clock = term.clock
        self._lock = asyncio.Lock()
        self._taken_at = self._clock.monotonic()
        self._took_secs = 0.0
        self._bytes_at = term.committer.bytes_committed - term.recovered.replayed_bytes
        self._ordinal_at = term.recovered.base_ordinal - term.recovered.replayed_commits
        self._kept: list[tuple[int, LogPosition]] = []  # (ordinal, position), oldest first
        if term.recovered.snapshot is not None:
            self._kept.append((self._ordinal_at, term.recovered.snapshot))
        self.taken = 0
        self.dead: frozenset[int] = frozenset()  # commits that the newest does not refer to

    @property
    def collectable_below(self) -> int:
        """Commits below this ordinal are covered by every snapshot that is kept."""
        if len(self._kept) < self._term.settings.snapshots_kept:
            return 0
        return self._kept[0][0]

    async def take_if_due(self) -> None:
        """Take a snapshot if enough has changed since the last one."""
        term, settings = self._term, self._term.settings
        ordinal = term.committer.next_ordinal
        dirty = term.state.streams.dirty_count
        log_bytes = term.committer.bytes_committed - self._bytes_at
        many = max(settings.snapshot_after_streams, term.state.streams.count() // 5)
        age_secs = self._clock.monotonic() - self._taken_at
        old = age_secs >= settings.snapshot_interval_secs
        # All streams may be at work: what one snapshot costs must not become the rule.
        rested = age_secs >= SNAPSHOT_PAUSE_FACTOR * self._took_secs
        if (
            (old and (ordinal > self._ordinal_at or dirty))
            or log_bytes >= settings.snapshot_after_bytes
            or (dirty >= many and rested)
            or dirty >= many + STREAMS_IN_USE_MAX
        ):
            await self.take()

    async def take(self) -> None:
        """Take a snapshot of everything admitted so far."""
        async with self._lock:
            await self._take()

    async def _take(self) -> None:
        term = self._term
        committer, streams = term.committer, term.state.streams
        if committer.failed is not None:
            # The state holds what was admitted and never will be durable.
            raise Unavailable(f"the log has ended: {committer.failed.message}")
        began = self._clock.monotonic()
        ordinal = committer.cut()
        position = committer.position(ordinal)
        meta = term.state.meta(position, ordinal, self._clock.now_ms())
        capture = streams.capture()
        many = self._left_out(capture)
        dead = frozenset(term.state.refs.dead(ordinal))
        bytes_at = committer.bytes_committed
        loop = asyncio.get_running_loop()
        try:
            durable = committer.after(ordinal - 1)
            await self._copy_runs(capture, many, ordinal)
            runs_from = term.state.runs_from
            merged: ColdStreams = await loop.run_in_executor(None, capture.merge, runs_from)
            data = await loop.run_in_executor(None, encode_snapshot, meta, merged.columns)
            if durable is not None:
                await durable
            is_new = await self._put(snapshot_key(position), data)
        except BaseException:
            streams.abandon(capture)
            raise
        streams.adopt(capture, merged, STREAMS_IN_USE_MAX)
        self._taken_at = self._clock.monotonic()
        self._took_secs = self._taken_at - began
        self._bytes_at, self._ordinal_at = bytes_at, ordinal
        self.taken += 1
        if is_new:
            self.dead = dead
        if not self._kept or self._kept[-1][1] != position:
            self._kept.append((ordinal, position))
        await self._forget_old()

    def _left_out(self, capture: Capture) -> list[tuple[int, RunIndex]]:
        """Return the places of images whose runs are still to be copied, and these."""
        in_use = self._term.state.streams.in_use
        found = ((at, in_use(image.id)) for at, image in enumerate(capture.images))
        return [
            (at, stream.runs)
            for at, stream in found
            if stream is not None and len(stream.runs) and not capture.images[at].runs
        ]

    async def _copy_runs(
        self, capture: Capture, many: list[tuple[int, RunIndex]], ordinal: int
    ) -> None:
        # In one piece, which goes back to the system as one; what is dropped meanwhile leaves room.
        whole = np.empty(sum(runs.size_bytes for _, runs in many), np.uint8).data
        copied_bytes, asked_at = 0, 0
        for at, runs in many:
            begin = copied_bytes
            first = 0
            while piece := runs.piece(first, ordinal, SNAPSHOT_RUNS_PIECE_BYTES):
                whole[copied_bytes : copied_bytes + len(piece)] = piece
                copied_bytes += len(piece)
                first = last_commit(piece) + 1
                if copied_bytes >= asked_at + SNAPSHOT_RUNS_PIECE_BYTES:
                    asked_at = copied_bytes
                    await self._clock.sleep(0)  # others want their turn too
            capture.images[at] = msgspec.structs.replace(
                capture.images[at], runs=whole[begin:copied_bytes].toreadonly()
            )

    async def _put(self, key: str, data: bytes) -> bool:
        """Create the object; False where it is there already.

        Only this epoch's writer names its positions: the state is the same but for what has been
        dropped since, or a put's reply was lost.
        """
        try:
            await self._term.bucket.put_if_absent(key, data)
        except ObjectExists:
            log.debug("%s is there already", key)
            return False
        return True

    async def _forget_old(self) -> None:
        """Delete all but the newest snapshots."""
        kept = self._term.settings.snapshots_kept
        del self._kept[:-kept]
        try:
            keys = [info.key async for info in self._term.bucket.list(SNAPSHOT_PREFIX)]
            known = sorted(key for key in keys if parse_snapshot_key(key) is not None)
            own = [snapshot_key(position) for _, position in self._kept]
            usable = [key for key in known if key in own or key < own[0]]
            # Between ours and not ours: damaged, or this term had begun with it.
            damaged = [key for key in known if own[0] < key < own[-1] and key not in own]
            for key in [*damaged, *usable[:-kept]]:
                await self._term.bucket.delete(key)
        except (BucketError, BournError) as error:
            log.warning("old snapshots stay: %s", error)
