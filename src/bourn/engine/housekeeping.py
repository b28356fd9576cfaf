"""What a node does by itself.

It purges what was deleted, drops what expired or was trimmed, deletes streams that stay empty,
notices a newer writer and newer versions of the history, takes snapshots and collects dead commits.
Each job is a small step that leaves everything right if the process ends behind it.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from bourn.catalog.changes import DropBasin, DropStream
from bourn.catalog.rows import BasinRow
from bourn.catalog.streams import Lookup, decide_delete_stream
from bourn.engine.handover import hand_over, stream_facts
from bourn.engine.history_index import NO_HISTORY
from bourn.engine.meter import Meter
from bourn.engine.snapshots import Snapshots
from bourn.engine.stream import Stream
from bourn.engine.sweep import orphans
from bourn.engine.term import Term
from bourn.errors import BournError, BucketError, Fenced, Unavailable
from bourn.layout.keys import EPOCH_PREFIX, epoch_key, wal_key
from bourn.limits import HISTORY_COUNT_SECS, STREAM_REST_SECS, STREAMS_IN_USE_MAX
from bourn.log.retention import is_abandoned

log = logging.getLogger(__name__)

T = TypeVar("T")

STREAMS_PER_STEP: Final = 2_000
STREAMS_PER_TURN: Final = 200  # of the event loop: a few milliseconds
PURGES_PER_COMMIT: Final = 500
COLLECTS_AT_ONCE: Final = 16
EPOCH_CHECKS_MISSED_MAX: Final = 5


class Housekeeping:
    """The background jobs of one term."""

    def __init__(self, term: Term, on_fenced: Callable[[BournError], None], meter: Meter) -> None:
        self._term = term
        self._meter = meter
        self._usage_at = term.clock.monotonic()
        self._clock = term.clock
        self._on_fenced = on_fenced
        self.snapshots = Snapshots(term)
        self._epoch_checked_at = self._clock.monotonic()
        self._looking: asyncio.Future[None] | None = None
        self._hot_cursor: list[Stream] = []
        self._dead_since: dict[int, float] = {}
        # (ordinal, when): what was let go of by then, ascending
        self._handed_over = [(term.state.runs_from, self._clock.monotonic())]
        self._counted_at = -HISTORY_COUNT_SECS
        self._counted = NO_HISTORY
        self._swept = False
        self.collected = 0
        self.purged = 0

    def start(self) -> None:
        """Begin; the term's end ends it. What was being deleted when the log ended goes first."""
        self._term.purge_wanted.set()
        spawn = self._term.tasks.spawn
        spawn(self._watch_epochs(), "epoch watch")
        spawn(self._forever(self._purge_when_wanted), "purge")
        spawn(self._forever(self._tick), "housekeeping")
        spawn(self._forever(self._collect_when_due), "collection")
        spawn(self._forever(self._follow_history), "history")

    async def _forever(self, step: Callable[[], object]) -> None:
        while self._term.committer.failed is None:
            try:
                await step()  # type: ignore[misc]  # every step is a coroutine function
                continue
            except BournError as error:
                # The log's own failures end the term; everything else passes or is tried again.
                log.warning("housekeeping: %s", error)
            except Exception:
                # One step's fault must not end the others for good: no snapshots, no expiry.
                log.exception("housekeeping failed in an unforeseen way")
            await self._clock.sleep(self._term.settings.housekeeping_secs)

    # Another writer

    async def _watch_epochs(self) -> None:
        while True:
            await self._clock.sleep(self._term.settings.epoch_poll_secs)
            try:
                await self.check_epoch()
            except Fenced as fenced:
                self._on_fenced(fenced)
                return
            except BucketError as error:
                log.warning("cannot look for newer writers: %s", error)

    def is_fresh(self) -> bool:
        """Whether the last look for newer writers is recent enough to serve reads by."""
        age_secs = self._clock.monotonic() - self._epoch_checked_at
        return age_secs < EPOCH_CHECKS_MISSED_MAX * self._term.settings.epoch_poll_secs

    async def look(self) -> None:
        """Look for newer writers as `check_epoch` does, once for all who ask meanwhile."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_future()
            self._term.tasks.spawn(self._look(self._looking), "look")
        await asyncio.shield(self._looking)

    async def _look(self, looked: asyncio.Future[None]) -> None:
        outcome: BournError = Unavailable("the node is stopping")
        try:
            await self.check_epoch()
            looked.set_result(None)
        except (Fenced, BucketError) as error:
            outcome = error
        finally:
            self._looking = None
            if not looked.done():
                looked.set_exception(outcome)
                looked.exception()  # who has asked may have gone

    async def check_epoch(self) -> None:
        """Raise Fenced if a newer writer has claimed the bucket."""
        own = epoch_key(self._term.epoch)
        began = self._clock.monotonic()
        async for info in self._term.bucket.list(EPOCH_PREFIX, own):
            raise Fenced(f"{info.key} was claimed by a newer writer")
        self._epoch_checked_at = began

    # Deletion

    async def _purge_when_wanted(self) -> None:
        await self._term.purge_wanted.wait()
        self._term.purge_wanted.clear()
        try:
            await self.purge()
        except BaseException:
            self._term.purge_wanted.set()
            raise

    async def purge(self) -> None:
        """Remove every stream and basin whose deletion is durable."""
        term = self._term
        await term.settled()
        for basin in self._basins_going():
            for chunk in term.state.streams.streams_of(basin.id, PURGES_PER_COMMIT):
                for _, stream_id in chunk:
                    self._mark(basin, stream_id)
                await self._drop_marked()
        await self._drop_marked()
        for basin in self._basins_going():
            if not term.state.streams.list_names(basin.id, limit=1).streams:
                term.apply(DropBasin(basin.id))
        await term.settled()

    def _basins_going(self) -> list[BasinRow]:
        return [row for row in self._term.state.basins if row.deleted_at_ms is not None]

    def _mark(self, basin: BasinRow, stream_id: int) -> None:
        """Begin the deletion of a stream whose basin goes."""
        stream = self._term.state.streams.by_id(stream_id)
        if stream is None:
            return
        if is_deleting(stream):
            self._term.deleting.add(stream_id)
        else:
            self._delete(Lookup(basin.name, basin, stream.row.name, stream.row))

    async def _drop_marked(self) -> None:
        """Remove the streams that are marked, a commit's worth at a time."""
        term = self._term
        while term.deleting:
            going = list(term.deleting)[:PURGES_PER_COMMIT]
            # Only behind their markers: a commit that dropped a stream and held records of it,
            # admitted before the marker, could not be replayed.
            await term.settled()
            for stream_id in going:
                term.deleting.discard(stream_id)
                stream = term.state.streams.by_id(stream_id)
                if stream is not None:
                    stream.end(Unavailable("the stream is deleted"))
                    term.apply(DropStream(stream.id, stream.row.basin_id))
                    self.purged += 1

    def _delete(self, found: Lookup) -> None:
        decision = decide_delete_stream(found, self._clock.now_ms())
        if decision.change is not None:
            self._term.apply(decision.change)

    # Retention

    async def _tick(self) -> None:
        await self._clock.sleep(self._term.settings.housekeeping_secs)
        for _ in self._expiry():
            await self._clock.sleep(0)
        if self._clock.monotonic() - self._usage_at >= self._term.settings.usage_flush_secs:
            await self.flush_usage()
        await self.snapshots.take_if_due()

    def expire(self) -> None:
        """Look at the streams whose time has come, and at a share of those in use."""
        for _ in self._expiry():
            pass

    def _expiry(self) -> Iterator[None]:
        """Do what `expire` says, with pauses in which others may have their turn."""
        streams = self._term.state.streams
        now_ms = self._clock.now_ms()
        for due in _chunks(streams.due(now_ms // 1000, STREAMS_PER_STEP)):
            for stream_id in due:
                found = streams.by_id(stream_id)
                if found is not None:
                    self._look_at(found, now_ms)
                    self._put_off(found, now_ms)
            yield
        if not self._hot_cursor:
            self._hot_cursor = streams.hot()
        share = self._hot_cursor[:STREAMS_PER_STEP]
        del self._hot_cursor[:STREAMS_PER_STEP]
        resting_ms = now_ms - 1000 * STREAM_REST_SECS
        for chunk in _chunks(share):
            for stream in chunk:
                if streams.in_use(stream.id) is stream:
                    self._look_at(stream, now_ms)
                    is_resting = stream.last_write_ms < resting_ms
                    if is_resting or streams.in_use_count > STREAMS_IN_USE_MAX:
                        streams.let_go(stream.id)
            yield

    def _look_at(self, stream: Stream, now_ms: int) -> None:
        term = self._term
        if is_deleting(stream):
            term.deleting.add(stream.id)
            term.purge_wanted.set()
            return
        trimmed = stream.runs.find_seq(min(stream.trim_point, stream.tail.seq_num))
        if trimmed or stream.runs.earliest_expiry_s() <= now_ms // 1000:
            self._drop_runs(stream, now_ms)
        min_age_secs = stream.row.config.delete_on_empty.min_age_secs
        if (
            min_age_secs
            and stream.last_commit < term.committer.durable_ordinal
            and is_abandoned(min_age_secs, stream.last_write_ms, False, now_ms)
        ):
            live = term.state.has_live_records(stream, now_ms)
            if is_abandoned(min_age_secs, stream.last_write_ms, live, now_ms):
                basin = term.state.basins.by_id(stream.row.basin_id)
                name = "" if basin is None else basin.name
                self._delete(Lookup(name, basin, stream.row.name, stream.row))

    def _put_off(self, stream: Stream, now_ms: int) -> None:
        """Where a row says too early a time, have the next snapshot mend it.

        It was written when the records were in the log, which goes by other times.
        """
        state = self._term.state
        if (
            state.streams.in_use(stream.id) is stream
            and state.next_check_s(stream) > now_ms // 1000
        ):
            state.streams.mark_dirty(stream.id)

    def _drop_runs(self, stream: Stream, now_ms: int) -> None:
        """Drop what is trimmed or expired."""
        state, runs = self._term.state, stream.runs
        trimmed = runs.drop_before_seq(min(stream.trim_point, stream.tail.seq_num))
        expired = runs.drop_expired(now_ms // 1000)
        state.refs.drop(trimmed.commits)
        state.refs.drop(expired.commits)
        state.metering.removed(stream, trimmed.metered + expired.metered)
        state.streams.mark_dirty(stream.id)

    # The history

    async def _follow_history(self) -> None:
        poll_secs = self._term.settings.history_poll_secs
        assert poll_secs is not None
        await self._clock.sleep(poll_secs)
        await self.follow_history()

    async def follow_history(self) -> None:
        """Take the newest version of the history, and let go of what it holds of the log."""
        term = self._term
        try:
            await term.history.refresh()
        except (BournError, BucketError):
            log.debug("the history could not be looked at")  # it has said why
        state = term.state
        state.history = term.history.current
        # What this writer does not know to be durable is not its to let go.
        end = min(term.history.end_ordinal, term.committer.durable_ordinal)
        if end > state.runs_from:
            for _ in hand_over(state, end):
                await self._clock.sleep(0)
            self._handed_over.append((end, self._clock.monotonic()))
        await self.count_history()

    async def count_history(self) -> None:
        """Count what the table holds of each basin: for a new version, and now and then."""
        term, current = self._term, self._term.history.current
        is_old = self._clock.monotonic() - self._counted_at >= HISTORY_COUNT_SECS
        if (is_old and current.segments) or current is not self._counted:
            self._counted, self._counted_at = current, self._clock.monotonic()
            sizes = await term.history.basin_sizes(stream_facts(term.state))
            term.state.metering.history_counted(sizes)

    # Usage

    async def flush_usage(self) -> None:
        """Let what was counted join the log."""
        self._usage_at = self._clock.monotonic()
        await self._meter.flush(self._term)

    # Collection

    async def _collect_when_due(self) -> None:
        await self._clock.sleep(self._term.settings.housekeeping_secs)
        await self.collect()

    async def collect(self) -> None:
        """Delete commits that hold nothing any more, below the oldest snapshot that is kept."""
        term = self._term
        below = self.snapshots.collectable_below
        now = self._clock.monotonic()
        grace_secs = term.settings.collect_grace_secs
        ripe_below = max((o for o, at in self._handed_over if now - at >= grace_secs), default=0)
        dead = term.state.refs.dead(below)
        ripe = dead[: bisect_left(dead, ripe_below)]
        self._dead_since = {o: self._dead_since.get(o, now) for o in dead[len(ripe) :]}
        # Whoever finds a commit missing looks whether the newest snapshot still refers to it.
        ripe += [
            ordinal
            for ordinal, since in self._dead_since.items()
            if now - since >= grace_secs and ordinal in self.snapshots.dead
        ]
        for chunk in _chunks(ripe, COLLECTS_AT_ONCE):
            deletions = [self._collect(ordinal) for ordinal in chunk]
            for outcome in await asyncio.gather(*deletions, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        if below and not self._swept:
            await self._sweep(below)
        if ripe:
            term.state.refs.forget_collected()
            # The pipeline goes on from the table's end, and asks the snapshot where that lies.
            known_end = term.history.known_end
            base = term.state.refs.base
            term.state.epochs.forget_before(base if known_end is None else min(base, known_end))
            self._handed_over = [seen for seen in self._handed_over if seen[0] > base]

    async def _collect(self, ordinal: int) -> None:
        term = self._term
        await term.bucket.delete(wal_key(*term.state.epochs.position(ordinal)))
        term.state.refs.collected(ordinal)
        self._dead_since.pop(ordinal, None)
        self.collected += 1

    async def _sweep(self, below: int) -> None:
        """Once a term: delete what earlier writers left behind."""
        term = self._term
        state = term.state
        for key in await orphans(term.bucket, state.epochs, state.refs, below, term.epoch):
            await term.bucket.delete(key)
            self.collected += 1
        self._swept = True


def _chunks(items: list[T], size: int = STREAMS_PER_TURN) -> Iterator[list[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def is_deleting(stream: Stream) -> bool:
    """Whether the stream waits to be purged."""
    return stream.row.deleted_at_ms is not None
