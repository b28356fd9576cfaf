"""Watches how far the log is ahead of the table, once a second, without asking the bucket.

Only at the start the bucket is asked: how large the log is that an earlier server has left behind.
How far the table reaches the engine knows, which serves from it.
"""

import logging
import random
from typing import Final

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff
from bourn.cli.backlog import Backlog
from bourn.clock import Clock
from bourn.engine.node import Node
from bourn.engine.term import Term
from bourn.errors import BournError, Unavailable
from bourn.http.pipeline_state import NO_LAG, Lag, PipelineState
from bourn.layout.commit import HEADER_BYTES, decode_header
from bourn.layout.keys import parse_wal_key, wal_key, wal_prefix
from bourn.limits import PIPELINE_POLL_SECS, PIPELINE_RESTART_SECS_MAX, TIER_ROUND_COMMITS

log = logging.getLogger(__name__)

NEVER: Final = -1


class LogWatch:
    """What waits for the pipeline of one node."""

    def __init__(
        self, node: Node, bucket: Bucket, clock: Clock, rng: random.Random, state: PipelineState
    ) -> None:
        self._node = node
        self._bucket = bucket
        self._clock = clock
        self._rng = rng
        self._backlog = Backlog()
        self._term: Term | None = None
        self._bytes = 0  # of log, as far as it has been watched
        self._bytes_seen = 0  # of the term's count
        self._last_records = NEVER  # ordinal of the newest commit with records
        self._last_change = NEVER  # and of the newest that changes the catalog
        self._is_ready = False
        self.state = state
        state.lag = self.lag

    async def run(self, poll_secs: float = PIPELINE_POLL_SECS) -> None:
        """Watch, for ever."""
        backoff = Backoff(self._clock, self._rng, poll_secs, PIPELINE_RESTART_SECS_MAX)
        while not self._is_ready:
            try:
                await self._begin()
            except BournError as error:
                log.warning("cannot tell how much of the log waits: %s", error)
                await backoff.pause()
        while True:
            self._sample()
            await self._clock.sleep(poll_secs)

    @property
    def has_work(self) -> bool:
        """Whether what waits is worth a run: records, or changes to a table that is there.

        Counts of usage go into the log for ever, and would keep the pipeline running for ever.
        """
        end = self.state.table_end_ordinal
        if self._last_records >= end:
            return True
        return self.state.table_version >= 0 and self._last_change >= end

    def lag(self) -> Lag:
        """Return how far the table is behind, as of the last look."""
        if not self._is_ready:
            return NO_LAG
        return self._backlog.lag(self.state.table_end_ordinal, self._clock.now_ms())

    def table_reached(self, version: int, end_ordinal: int) -> None:
        """Note how far the table is now; what is older than what is known is passed over."""
        state = self.state
        state.table_version = max(state.table_version, version)
        state.table_end_ordinal = max(state.table_end_ordinal, end_ordinal)
        self._backlog.forget_before(state.table_end_ordinal)

    async def _begin(self) -> None:
        self._look_at_table()
        term, end = self._node.term, self.state.table_end_ordinal
        base, now_ms = term.recovered.base_ordinal, self._clock.now_ms()
        if base > end:
            size_bytes, created_ms = await self._left_behind(term, end, base)
            self._backlog.note(end, 0, min(created_ms, now_ms))
            self._bytes = size_bytes
            if term.state.streams.count():
                self._last_records = base - 1  # for all that is known
        self._backlog.note(base, self._bytes, now_ms)
        self._is_ready = True

    def _look_at_table(self) -> None:
        history = self._node.history
        self.table_reached(history.seen_version, history.known_end or 0)

    async def _left_behind(self, term: Term, first: int, end: int) -> tuple[int, int]:
        """Return the bytes of the commits between two ordinals, and when the first was made."""
        oldest = term.state.epochs.bases[0][1]
        place = term.state.epochs.position(max(first, oldest))
        size_bytes = count = 0
        created_ms = self._clock.now_ms()
        after = wal_key(place.epoch, place.id - 1) if place.id else ""
        for epoch, _ in term.state.epochs.bases:
            if epoch < place.epoch:
                continue
            async for info in self._bucket.list(wal_prefix(epoch), after):
                if count == min(end - first, TIER_ROUND_COMMITS) or parse_wal_key(info.key) is None:
                    break
                if count == 0:
                    head = await self._bucket.get_range(info.key, 0, HEADER_BYTES)
                    created_ms = decode_header(head, info.key).created_ms
                count += 1
                size_bytes += info.size_bytes
            after = ""
        return size_bytes, created_ms

    def _sample(self) -> None:
        try:
            term = self._node.term
        except Unavailable:
            return
        self._look_at_table()
        committer = term.committer
        if term is not self._term:
            self._term, self._bytes_seen = term, 0
        self._bytes += committer.bytes_committed - self._bytes_seen
        self._bytes_seen = committer.bytes_committed
        self._last_records = max(self._last_records, committer.last_records)
        self._last_change = max(self._last_change, term.last_catalog_change)
        self._backlog.note(committer.durable_ordinal, self._bytes, self._clock.now_ms())
