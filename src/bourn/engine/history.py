"""The history beside the log: which version of the table serves reads, and how a newer one does.

```
_delta_log ─poll─► seen ─sidecars─► a version with all its indexes ─one turn─► current
                                            │
                                            └► end_ordinal: the log below it is no longer needed
```

A version takes the place of the one before only with all its indexes, so whatever is missing or
damaged there, reads go on as they were and nothing of the log is let go. At a start there is no
version before: then what can be read serves, and a read that comes to a place where a record may
lie in what cannot be read is refused, naming the object. Nobody takes a hole for a gap.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial
from typing import Final

from bourn.bucket.delta_log import NO_TABLE, read_table
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.engine.complaints import Complaints
from bourn.engine.history_index import (
    NO_HISTORY,
    HistoryVersion,
    MissingSegment,
    Segment,
    StreamFacts,
    basin_sizes,
)
from bourn.errors import BournError, BucketError, Damaged, NewerFormat, ObjectMissing
from bourn.layout.history import rows
from bourn.layout.history.delta import DELTA_PREFIX, Add, TableState, delta_key
from bourn.layout.history.index import decode_index
from bourn.limits import HISTORY_INDEX_FETCHES
from bourn.settings import EngineSettings

log = logging.getLogger(__name__)

POLL_DEADLINE_SECS: Final = 5.0  # of a poll; the next one begins anew
THOROUGH_EVERY: Final = 60  # polls: versions may have been cleaned away before they were seen
VERSIONS_CHASED_MAX: Final = 5  # in one look: files may be replaced while their indexes are read


class History:
    """The table of one bucket, as the node that serves it knows it."""

    def __init__(
        self, bucket: Bucket, settings: EngineSettings, clock: Clock, rng: random.Random
    ) -> None:
        """`bucket` answers every call in bounded time."""
        self._bucket = bucket
        self._clock = clock
        self._at_start = Retry(clock, rng, settings.put_deadline_secs)
        self._at_poll = Retry(clock, rng, POLL_DEADLINE_SECS)
        self._turn = asyncio.Lock()
        self._seen = NO_TABLE
        self._has_looked = False
        self._polls = 0
        self._loaded: dict[str, Segment] = {}  # by path
        self._numbers = 0
        self._needed = 0  # the log below it is gone, so a table that ends before it is not all
        self._complaints = Complaints(clock)
        self.current = NO_HISTORY
        self.end_ordinal = 0  # the log below it is in the table, and all its indexes are here
        self.adopted_at_ms = 0
        self.fetches = 0  # of blocks
        self.bytes_fetched = 0
        self.failures = 0  # looks at the table that failed, and blocks that could not be read

    # For people and metrics

    @property
    def version(self) -> int:
        """The version that serves reads; -1 without one."""
        return self.current.version

    @property
    def seen_version(self) -> int:
        """The newest version that is known; it serves once all its indexes are here."""
        return self._seen.version

    @property
    def segments(self) -> int:
        """How many files the version has."""
        return len(self.current.segments) + len(self.current.missing)

    @property
    def segments_missing(self) -> int:
        """Of these, how many cannot be read."""
        return len(self.current.missing)

    @property
    def blocks(self) -> int:
        """How many blocks are indexed."""
        return self.current.blocks

    @property
    def index_bytes(self) -> int:
        """What the indexes take in memory."""
        return self.current.index_bytes

    @property
    def known_end(self) -> int | None:
        """The ordinal that the newest known version reaches; None without a table."""
        return None if self._seen.version < 0 else self._seen.end_ordinal

    # Versions

    async def load(self) -> None:
        """Take the newest version before anything is served, as far as it can be read.

        Raises BucketUnavailable where the bucket does not answer.
        """
        async with self._turn:
            try:
                self._seen = await self._at_start(partial(read_table, self._bucket, self._seen))
                self._has_looked = True
            except (Damaged, NewerFormat) as error:
                self.failures += 1
                self._complaints.warn(f"the history's table cannot be read: {error}")
                if self.current.version < 0:
                    self.current = HistoryVersion(-1, 0, (), (), error)
                return
            if self._is_behind():
                await self._take_seen(self._at_start)

    async def require(self, end_ordinal: int) -> None:
        """Say that the log below an ordinal is gone, so that the table must reach it.

        A table that was cleaned away, or is seen as it was, must not make a gap of what it held.
        """
        self._needed = max(self._needed, end_ordinal)
        if self.current.end_ordinal < self._needed:
            await self.load()
            current = self.current
            if current.end_ordinal < self._needed and current.broken is None:
                self.current = HistoryVersion(
                    current.version,
                    current.end_ordinal,
                    current.segments,
                    current.missing,
                    self._too_short(current.end_ordinal),
                )

    def _too_short(self, end_ordinal: int) -> Damaged | None:
        if end_ordinal >= self._needed:
            return None
        return Damaged(
            DELTA_PREFIX,
            f"the table ends at commit {end_ordinal}, and the log was let go up to {self._needed}",
        )

    async def refresh(self, *, thoroughly: bool = False) -> bool:
        """Look for a newer version and take it; whether the current one has changed meanwhile.

        What makes that impossible is raised, and leaves everything as it is. With `thoroughly`,
        or once in a while, also versions that were cleaned away unseen are passed over.
        """
        before = self.current
        async with self._turn:
            if self.current is not before:
                return True
            self._polls += 1
            try:
                await self._look(thoroughly=thoroughly or self._polls % THOROUGH_EVERY == 0)
                if self._is_behind():
                    await self._take_seen(self._at_poll)
            except (BournError, BucketError) as error:
                self.failures += 1
                self._complaints.warn(f"the history stays at version {self.version}: {error}")
                raise
        return self.current is not before

    def _is_behind(self) -> bool:
        return self._seen.version != self.version or not self.current.is_complete

    async def _look(self, *, thoroughly: bool) -> None:
        """Read what the table's log says since the last look: one request if that is nothing."""
        seen = self._seen
        if self._has_looked and seen.version < 0 and not thoroughly:
            try:
                await self._bucket.get_range(delta_key(0), 0, 1)
            except ObjectMissing:
                return
        look = partial(read_table, self._bucket, seen, is_sure=thoroughly)
        self._seen = await self._at_poll(look)
        self._has_looked = True

    async def _take_seen(self, retry: Retry) -> None:
        """Load the indexes of the newest version, then let it serve.

        In part only where nothing better serves: the version before, if whole, stays otherwise.
        """
        for _ in range(VERSIONS_CHASED_MAX):
            target = self._seen
            segments, missing = await self._segments(target, retry)
            if not missing:
                break
            # What is not there may have been replaced, and cleaned away, while it was loading.
            self._seen = await retry(partial(read_table, self._bucket, target))
            if self._seen is target:
                break
        for lost in missing:
            self.failures += 1
            self._complaints.warn(f"a part of the history cannot be read: {lost.error}")
        broken = self._too_short(target.end_ordinal)
        is_whole = not (missing or broken)
        current = self.current
        if not is_whole and (
            (current.version >= 0 and current.is_complete)
            or (current.version, len(current.missing)) == (target.version, len(missing))
        ):
            return
        if segments and not current.segments:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, rows.warm, log.info)
        self._loaded = {path: segment for path, segment in segments.items() if path in target.live}
        self.current = HistoryVersion(
            target.version, target.end_ordinal, tuple(segments.values()), missing, broken
        )
        if is_whole:
            self.end_ordinal = target.end_ordinal
        self.adopted_at_ms = self._clock.now_ms()

    async def _segments(
        self, target: TableState, retry: Retry
    ) -> tuple[dict[str, Segment], list[MissingSegment]]:
        """Return the segments of a version, those that are here already included."""
        missing: list[MissingSegment] = []
        failures: list[BucketError] = []
        turn = asyncio.Semaphore(HISTORY_INDEX_FETCHES)

        async def load(add: Add) -> None:
            async with turn:
                if failures:
                    return
                try:
                    self._loaded[add.path] = await retry(partial(self._load, add))
                except (Damaged, NewerFormat) as error:
                    missing.append(MissingSegment.of(add, error))
                except BucketError as error:
                    failures.append(error)

        wanted = [add for path, add in target.live.items() if path not in self._loaded]
        await asyncio.gather(*map(load, wanted))
        if failures:
            raise failures[0]
        return {path: self._loaded[path] for path in target.live if path in self._loaded}, missing

    async def _load(self, add: Add) -> Segment:
        key = add.index_key
        size_bytes = add.tag("index_bytes")
        try:
            data = await self._bucket.get_range(key, 0, size_bytes + 1)
        except ObjectMissing:
            raise Damaged(key, "the object is gone, and the table needs it") from None
        if len(data) != size_bytes:
            raise Damaged(key, f"{len(data)} bytes where {size_bytes} were written")
        loop = asyncio.get_running_loop()
        index = await loop.run_in_executor(None, decode_index, data, key)
        self._numbers += 1
        return Segment(add.key, self._numbers, index)

    # Sizes

    async def basin_sizes(self, streams: StreamFacts) -> Mapping[int, int]:
        """Return the metered bytes that the table holds for each basin, counted in a thread."""
        now_s = self._clock.now_ms() // 1000
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, basin_sizes, self.current.segments, streams, now_s)
