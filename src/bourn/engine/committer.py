"""Group commit: many streams, one object, acks in order.

Batches join the open commit, commits are put side by side, and acks and readers are released
strictly in order of the contiguous durable prefix.

The open commit is flushed at the end of the loop's turn when nothing is in flight. While puts are
in flight it waits for the first of them to end, unless it has grown enough to be worth a put of
its own (the linger adapts to the bucket's latency by itself); with a flush interval, `linger` says
when, unless it has grown so much too: what the interval saves is small puts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from bourn.clock import Clock
from bourn.engine.linger import Linger
from bourn.engine.pending import AckWaiter, Group, PendingCommit, Reply
from bourn.engine.puts import DurablePuts
from bourn.engine.room import BATCH_ROOM_BYTES_MIN, Room
from bourn.engine.state import State
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import TailCache
from bourn.engine.tasks import Tasks
from bourn.errors import BournError, Fenced, OutcomeUnknown, StorageFailed, Unavailable
from bourn.layout.commit import CommitHeader, encode_commit
from bourn.layout.entry import BATCH_OVERHEAD_BYTES, Entry, share_payloads
from bourn.layout.keys import LogPosition, wal_key
from bourn.log.acks import Durability
from bourn.log.sequencer import Admitted
from bourn.model.record import AppendAck, new_ack
from bourn.settings import EngineSettings

log = logging.getLogger(__name__)

PIPELINE_BYTES: Final = 256 * 1024  # an open commit earns another put in flight per this much
SHARED_BYTES_MIN: Final = 4096  # a batch, in the mean; smaller ones weigh little beside their views


class Committer:
    """Owns the open commit and everything in flight of one epoch."""

    def __init__(
        self,
        *,
        epoch: int,
        writer: bytes,
        base_ordinal: int,
        puts: DurablePuts,
        tail_cache: TailCache,
        room: Room,
        state: State,
        settings: EngineSettings,
        clock: Clock,
        tasks: Tasks,
        on_failed: Callable[[BournError], None],
    ) -> None:
        assert settings.flush_interval_ms is not None
        assert settings.commits_in_flight is not None
        self.epoch = epoch
        self._writer = writer
        self._base = base_ordinal
        self._puts = puts
        self._tail_cache = tail_cache
        self._room = room
        self._state = state
        self._in_flight_max = settings.commits_in_flight
        self._split_bytes = settings.commit_split_bytes
        self._clock = clock
        self._tasks = tasks
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._durability = Durability(in_flight_max=self._in_flight_max)
        self._commits: dict[int, PendingCommit] = {}  # closed and not durable, by ordinal
        self._closed: deque[PendingCommit] = deque()  # of these, the ones that wait for a put
        self._open = PendingCommit(base_ordinal)
        self._armed = False
        self._enough_bytes = self._split_bytes  # an open commit of this size does not wait
        self._linger: Linger[PendingCommit] | None = None
        if settings.flush_interval_ms:
            interval_secs = settings.flush_interval_ms / 1000
            self._linger = Linger(clock, interval_secs, self._next_put, self._flush)
        self.failed: BournError | None = None
        self.commits = 0
        self.bytes_committed = 0
        self.last_records = -1  # ordinal of the newest commit that has any
        self.put_latency_secs = 0.0  # moving average

    @property
    def durable_ordinal(self) -> int:
        """Every commit below this ordinal is durable."""
        return self._base + self._durability.durable

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the open commit."""
        return self._open.ordinal

    @property
    def in_flight(self) -> int:
        """How many puts are under way, or done behind one that is not."""
        return self._durability.in_flight

    def add(self, stream: Stream, entry: Entry, admitted: Admitted, reply: Reply) -> None:
        """Let an admitted batch join the open commit; its ack goes to the future or the waiter.

        The caller has taken room for the batch; from here on the commit gives it back.
        """
        if self.failed is not None:
            raise Unavailable(f"the log is not writable: {self.failed.message}")
        commit = self._open
        end = admitted.end
        group = commit.groups.get(stream.id)
        if group is None:
            commit.groups[stream.id] = Group(
                stream, admitted.state, end, [entry], [(reply, admitted.start, end)]
            )
        else:
            group.entries.append(entry)
            group.replies.append((reply, admitted.start, end))
            group.state = admitted.state
            group.end = end
        size_bytes = len(entry.payload)
        commit.bytes += size_bytes + BATCH_OVERHEAD_BYTES
        if size_bytes < BATCH_ROOM_BYTES_MIN:  # noqa: PLR1730  as `room_of`, which takes a call
            size_bytes = BATCH_ROOM_BYTES_MIN
        commit.reserved += size_bytes
        stream.last_commit = commit.ordinal
        if (
            not self._armed
            or commit.bytes >= self._enough_bytes
            or commit.reserved >= self._split_bytes
        ):
            self._arm()

    def add_change(self, change: bytes) -> int:
        """Let a catalog change join the open commit; returns the commit's ordinal."""
        if self.failed is not None:
            raise Unavailable(f"the log is not writable: {self.failed.message}")
        commit = self._open
        commit.changes.append(change)
        commit.bytes += len(change) + BATCH_OVERHEAD_BYTES
        self._arm()
        return commit.ordinal

    def after(self, ordinal: int) -> asyncio.Future[None] | None:
        """A future for the durability of a commit, or None if it is durable already."""
        if ordinal < self.durable_ordinal:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failed is not None:
            future.set_exception(OutcomeUnknown(self.failed.message))
        elif ordinal == self._open.ordinal:
            self._open.waiters.append(future)
        else:
            self._commits[ordinal].waiters.append(future)
        return future

    def cut(self) -> int:
        """Close the open commit now; returns the ordinal behind everything admitted so far."""
        if self.failed is None and not self._open.is_empty:
            self._close_open()
            self._put_closed()
        return self._open.ordinal

    def _arm(self) -> None:
        """Decide when the open commit is closed."""
        commit = self._open
        in_flight = self._durability.in_flight
        # By what is reserved too: tens of thousands of tiny batches would stop the loop for long.
        if commit.reserved >= self._split_bytes or commit.bytes >= self._split_bytes:
            self._close_open()
            self._put_closed()
        elif commit.bytes >= self._enough_bytes:
            self._armed = True
            self._enough_bytes = self._split_bytes
            self._loop.call_soon(self._flush, commit)
        elif self._armed or commit.is_empty or in_flight >= self._in_flight_max:
            return  # decided already, or decided again when a put ends
        elif self._linger is None:
            if in_flight == 0 or commit.bytes >= in_flight * PIPELINE_BYTES:
                self._armed = True
                self._loop.call_soon(self._flush, commit)
        else:
            self._armed = True
            self._linger.begin(commit)

    def _next_put(self) -> tuple[int, float]:
        """How many the oldest put under way will ack, and when, if it takes as long as others."""
        oldest = next(iter(self._commits.values()), None)
        if oldest is None or not oldest.started:
            return 0, 0.0
        return oldest.batches, oldest.started + self.put_latency_secs

    def _flush(self, commit: PendingCommit) -> None:
        """The open commit's time has come, unless it grew to its full size before."""
        if commit is self._open and self.failed is None:
            self._armed = False
            if self._durability.in_flight < self._in_flight_max:
                self._close_open()
                self._put_closed()

    def _close_open(self) -> None:
        """Turn the open commit into an object, and index it."""
        commit = self._open
        self._open = PendingCommit(commit.ordinal + 1)
        self._armed = False
        if self._linger is not None:
            self._linger.flushed()
        self._commits[commit.ordinal] = commit
        try:
            self._make(commit)
        except Exception as error:  # half of it may be indexed, and nothing can follow it
            log.exception("a commit could not be made")
            self.fail(StorageFailed(f"a commit could not be made: {error!r}"))
        else:
            self._closed.append(commit)

    def _make(self, commit: PendingCommit) -> None:
        now_ms = self._clock.now_ms()
        header = CommitHeader(
            self.epoch,
            commit.ordinal - self._base,
            now_ms,
            self._durability.durable,
            self._writer,
        )
        groups = sorted(commit.groups.items())
        commit.data, locations = encode_commit(
            header, commit.changes, [(stream_id, group.entries) for stream_id, group in groups]
        )
        is_shared = commit.bytes >= SHARED_BYTES_MIN * commit.batches
        runs: list[tuple[Stream, int, int]] = []
        for (_, group), (_, offset, length) in zip(groups, locations, strict=True):
            stream, entries = group.stream, group.entries
            size = stream.index_run(commit.ordinal, offset, length, entries)
            if is_shared:
                share_payloads(commit.data, offset, entries)
            runs.append((stream, len(entries), size))
        self._state.metering.appended(now_ms, runs)
        self._state.refs.add_commit(commit.ordinal, len(groups))
        self.bytes_committed += len(commit.data)
        if groups:
            self.last_records = commit.ordinal

    def _put_closed(self) -> None:
        while self._closed and self._durability.may_issue and self.failed is None:
            commit = self._closed.popleft()
            commit_id = self._durability.issue()
            assert commit_id == commit.ordinal - self._base
            commit.started = self._clock.monotonic()
            self._tasks.spawn(self._put(commit_id, commit), "put")
        self._enough_bytes = self._split_bytes
        if self._linger is not None and self._durability.may_issue:
            earned = PIPELINE_BYTES * max(1, self._durability.in_flight)
            self._enough_bytes = min(earned, self._split_bytes)

    async def _put(self, commit_id: int, commit: PendingCommit) -> None:
        try:
            await self._puts.put(wal_key(self.epoch, commit_id), commit.data)
            self._completed(commit_id, commit)
        except BournError as error:
            self.fail(error)
        except Exception as error:
            self.fail(StorageFailed(f"a put failed in an unforeseen way: {error!r}"))
            raise

    def _completed(self, commit_id: int, commit: PendingCommit) -> None:
        if self.failed is not None:
            return
        took = self._clock.monotonic() - commit.started
        average = self.put_latency_secs or took
        self.put_latency_secs = average + (took - average) / 16
        told: list[tuple[AckWaiter, AppendAck]] = []
        acked_batches = acked_bytes = 0
        try:
            for durable_id in self._durability.complete(commit_id):
                ordinal = self._base + durable_id
                acked_batches += self._commits[ordinal].batches if self._linger else 0
                acked_bytes += self._commits[ordinal].reserved
                self._release(self._commits[ordinal], told)
                del self._commits[ordinal]
            self._put_closed()
            if self._linger is not None and acked_bytes:
                self._linger.acked(acked_batches, acked_bytes, self._open)
                if self._linger.is_waiting:  # perhaps for this put
                    self._linger.end()
                    self._armed = False
            self._arm()
        finally:
            for waiter, ack in told:  # behind all that is done here: they may append again
                try:
                    waiter.acked(ack)
                except Exception:
                    log.exception("an ack could not be told")

    def _release(self, commit: PendingCommit, told: list[tuple[AckWaiter, AppendAck]]) -> None:
        """Everything up to here is durable: show it to readers, ack it, wake who waits.

        Who is told by a plain call is added to `told`.
        """
        self.commits += 1
        self._state.durable_ordinal = commit.ordinal + 1
        self._tail_cache.add(commit.ordinal, commit.data)
        for group in commit.groups.values():
            tail = group.end
            group.stream.publish(tail, group.state.trim_point)
            for reply, start, end in group.replies:
                ack = new_ack((start, end, tail))
                if not isinstance(reply, asyncio.Future):
                    told.append((reply, ack))
                elif not reply.done():
                    reply.set_result(ack)
            group.replies.clear()
        for waiter in commit.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room.give_back(commit.reserved)

    def fail(self, error: BournError) -> None:
        """The log cannot go on: everything in flight has an unknown outcome."""
        if self.failed is None:
            log.error("the log stops at epoch %d: %s", self.epoch, error)
            self.stop(error)
            self._on_failed(error)

    def stop(self, error: BournError) -> None:
        """Admit nothing any more, and tell who still waits that the outcome is unknown."""
        if self.failed is not None:
            return
        self.failed = error
        commits = [*self._commits.values(), self._open]
        for commit in commits:
            for group in commit.groups.values():
                for reply, _, _ in group.replies:
                    if isinstance(reply, asyncio.Future):
                        _refuse(reply, error)
                    else:
                        self._loop.call_soon(reply.failed, _unknown(error))
            for waiter in commit.waiters:
                _refuse(waiter, error)

    async def drain(self) -> None:
        """Flush and wait until everything admitted is durable or has failed."""
        waiter = self.after(self.cut() - 1)
        if waiter is not None:
            await waiter

    def position(self, ordinal: int) -> LogPosition:
        """Where a commit of this epoch lies."""
        return LogPosition(self.epoch, ordinal - self._base)


def _refuse(future: "asyncio.Future[AppendAck] | asyncio.Future[None]", error: BournError) -> None:
    if not future.done():
        future.set_exception(_unknown(error))
        future.exception()  # a client may have gone; its future must not warn


def _unknown(error: BournError) -> OutcomeUnknown:
    if isinstance(error, Fenced):
        return OutcomeUnknown(f"another writer took over: {error.message}")
    return OutcomeUnknown(f"the outcome is unknown: {error.message}")
