"""One epoch of a node: the state, the committer and the readers that belong together.

A term ends when its log cannot go on (storage failed, or a newer writer took over); the node then
makes a new one out of the bucket, or stops.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from bourn.bucket.port import Bucket
from bourn.catalog.changes import Change, CountUsage, Decision, PutBasin, PutStream, encode_change
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.catalog.streams import AutoCreateOn, Lookup, decide_auto_create
from bourn.clock import Clock
from bourn.engine.audience import Audiences
from bourn.engine.committer import Committer
from bourn.engine.history import History
from bourn.engine.pending import Reply
from bourn.engine.puts import DurablePuts
from bourn.engine.quotas import check_quota
from bourn.engine.reader import LogReader
from bourn.engine.recovery import Recovered
from bourn.engine.room import Room, room_of
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import EncodedBatches, TailCache
from bourn.engine.tasks import Tasks
from bourn.errors import (
    BournError,
    QuotaExhausted,
    RequestError,
    ResourceError,
    StreamDeletionPending,
    StreamNotFound,
    StreamReplaced,
    Unavailable,
)
from bourn.layout.entry import Entry
from bourn.layout.records import RecordBatch
from bourn.log.sequencer import admit
from bourn.model.config import StreamConfig
from bourn.model.record import AppendAck
from bourn.settings import EngineSettings

Row = TypeVar("Row", BasinRow, StreamRow)
T = TypeVar("T")


class Term:
    """Everything in memory that is true for one epoch."""

    def __init__(
        self,
        recovered: Recovered,
        bucket: Bucket,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
        history: History,
        on_failed: Callable[[BournError], None],
    ) -> None:
        self.history = history
        self.epoch = recovered.epoch
        self.recovered = recovered
        self.state = recovered.state
        self.bucket = bucket
        self.settings = settings
        self.clock = clock
        self.tasks = Tasks(f"epoch {self.epoch}")
        self.room = Room(settings.append_inflight_bytes)
        assert settings.tail_cache_bytes is not None  # resolved by whoever opened the node
        self.tail_cache = TailCache(settings.tail_cache_bytes)
        self.encoded = EncodedBatches(settings.encoded_cache_bytes)
        self.reader = LogReader(
            bucket, self.state.epochs, history, self.tail_cache, self.encoded, settings, clock, rng
        )
        self.audiences = Audiences(
            self.reader, self.encoded, clock, rng, self.tasks, lambda: self.readers_hurried
        )
        self.puts = DurablePuts(bucket, settings, clock, rng)
        self.committer = Committer(
            epoch=self.epoch,
            writer=recovered.writer,
            base_ordinal=recovered.base_ordinal,
            puts=self.puts,
            tail_cache=self.tail_cache,
            room=self.room,
            state=self.state,
            settings=settings,
            clock=clock,
            tasks=self.tasks,
            on_failed=on_failed,
        )
        self.last_change = -1  # ordinal of the commit that holds the newest catalog change
        self.last_catalog_change = -1  # the same, without counts of usage
        self.deleting: set[int] = set()  # streams whose deletion is in the log and not yet done
        self.purge_wanted = asyncio.Event()
        self.readers_hurried = 0  # how often readers at the tail were asked for a heartbeat

    # Appends

    def find(self, basin: str, name: str) -> Stream | None:
        """Return the stream, in whatever state it is; None where there is none."""
        row = self.state.basins.get(basin)
        return None if row is None else self.state.streams.get(row.id, name)

    def submit(
        self,
        stream: Stream,
        batch: RecordBatch,
        match_seq_num: int | None,
        fencing_token: str | None,
    ) -> asyncio.Future[AppendAck]:
        """Admit a batch; the future is its ack or its refusal.

        The caller has taken room for the batch. Acks of one stream come in the order of
        submission; a refusal comes when the state that it rests on is durable.
        """
        future: asyncio.Future[AppendAck] = asyncio.get_running_loop().create_future()
        refused = self.submit_for(future, stream, batch, match_seq_num, fencing_token)
        return future if refused is None else refused

    def submit_for(
        self,
        reply: Reply,
        stream: Stream,
        batch: RecordBatch,
        match_seq_num: int | None,
        fencing_token: str | None,
    ) -> asyncio.Future[AppendAck] | None:
        """As `submit`, for somebody who is told the ack; the refusal, where it is refused."""
        if stream.row.deleted_at_ms is not None:
            return self._refused(stream, batch, StreamDeletionPending())
        if batch.sealed_for != stream.sealed_for:  # never plaintext where a cipher was asked for
            return self._refused(stream, batch, StreamReplaced())
        now_ms = self.clock.now_ms()
        try:
            admitted = admit(
                stream.state, batch, match_seq_num, fencing_token, stream.rules, now_ms
            )
        except RequestError as refusal:
            return self._refused(stream, batch, refusal)
        end = admitted.end
        entry = Entry(
            stream.id,
            admitted.start.seq_num,
            batch.count,
            batch.metered_bytes,
            batch.header_count,
            now_ms,
            stream.retention_secs,
            end.timestamp,
            admitted.timestamps,
            batch.payload,
            bool(batch.commands),
        )
        try:
            self.committer.add(stream, entry, admitted, reply)
        except Unavailable:
            self.room.give_back(room_of(batch.payload))
            raise
        stream.state = admitted.state
        stream.last_write_ms = now_ms
        self.state.streams.mark_dirty(stream.id)
        return None

    def _refused(
        self, stream: Stream, batch: RecordBatch, refusal: BournError
    ) -> asyncio.Future[AppendAck]:
        """Hold a refusal back until the state that it rests on is durable."""
        refusal.__traceback__ = None  # which would refer back to it: garbage for every refusal
        self.room.give_back(room_of(batch.payload))
        future: asyncio.Future[AppendAck] = asyncio.get_running_loop().create_future()
        durable = self.committer.after(stream.last_commit)
        if durable is None:
            future.set_exception(refusal)
            future.exception()  # a client may have gone; its future must not warn
            return future

        def settle(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if not future.done():
                future.set_exception(refusal if error is None else error)
                future.exception()

        durable.add_done_callback(settle)
        return future

    # The catalog

    def lookup(self, basin: str, stream: str) -> Lookup:
        """What the catalog holds under the two names."""
        basin_row = self.state.basins.get(basin)
        found = None if basin_row is None else self.state.streams.get(basin_row.id, stream)
        return Lookup(basin, basin_row, stream, None if found is None else found.row)

    def apply(self, change: Change) -> Stream | None:
        """Make a change hold at once and let it join the open commit."""
        ordinal = self.committer.add_change(encode_change(change))
        stream = self.state.apply_change(change)
        if stream is not None:
            if stream.state.next_seq_num == 0 and stream.created_commit == -1:
                stream.created_commit = ordinal
            stream.last_commit = max(stream.last_commit, ordinal)
        if isinstance(change, PutBasin | PutStream) and change.row.deleted_at_ms is not None:
            if stream is not None:
                self.deleting.add(stream.id)
            self.purge_wanted.set()
        self.last_change = ordinal
        if not isinstance(change, CountUsage):
            self.last_catalog_change = ordinal
        return stream

    async def decide(self, decide: Callable[[], Decision[Row]]) -> Decision[Row]:
        """Decide, apply and return once what the answer rests on is durable."""

        def decided() -> Decision[Row]:
            decision = decide()
            if decision.change is not None:
                self.apply(decision.change)
            return decision

        return await self.answer(decided)

    async def answer(self, ask: Callable[[], T]) -> T:
        """Ask the catalog at once, and return once all that it says is durable.

        Not the other way round: by the end of the wait, later changes may be in flight.
        """
        try:
            answer = ask()
        except (ResourceError, QuotaExhausted):
            await self.settled()
            raise
        await self.settled()
        return answer

    async def settled(self) -> None:
        """Return once every catalog change so far is durable."""
        durable = self.committer.after(self.last_change)
        if durable is not None:
            await durable

    async def open_stream(
        self, basin: str, name: str, call: AutoCreateOn, override: StreamConfig | None
    ) -> Stream:
        """Return the stream that a data call works on, created where the basin says so.

        An append need not wait for the creation: it goes into the same commit, or a later one.
        """
        found = self.lookup(basin, name)
        try:
            decision = decide_auto_create(
                found,
                call,
                override,
                now_ms=self.clock.now_ms(),
                new_id=self.state.next_resource_id,
            )
            check_quota(decision, self.state, self.settings)
        except (ResourceError, QuotaExhausted):
            await self.settled()
            raise
        if decision.change is not None:
            self.state.take_id()
            self.apply(decision.change)
        stream = self.find(basin, name)
        if stream is None:
            raise StreamNotFound(basin, name)
        return stream

    async def readable(self, stream: Stream) -> None:
        """Return once the stream itself is durable, so that nobody sees one that may vanish."""
        durable = self.committer.after(stream.created_commit)
        if durable is not None:
            await durable

    # The end

    async def close(self) -> None:
        """Stop everything that runs for this term; nothing is flushed."""
        stopping = Unavailable("the node is stopping")
        self.committer.stop(stopping)
        self.end_streams(stopping)
        await self.tasks.cancel_all()
        await self.reader.close()

    def end_streams(self, error: BournError) -> None:
        """Tell all who follow a stream that this term is over."""
        self.room.fail(error)
        self.end_reads(error)

    def hurry_readers(self) -> None:
        """Have every session that waits at a tail deliver a heartbeat at once."""
        self.readers_hurried += 1
        for stream in self.state.streams.hot():
            stream.wake()

    def end_reads(self, error: BournError) -> None:
        """End all sessions and waits on streams with this error."""
        for stream in self.state.streams.hot():
            if stream.ended is None:
                stream.end(error)
