"""The engine with one rule broken: whoever checks promises must notice each of these."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bourn.engine.appender import Appender
from bourn.engine.committer import Committer
from bourn.engine.pending import Group, PendingCommit
from bourn.engine.puts import DurablePuts
from bourn.engine.recovery import Recovery
from bourn.engine.room import room_of
from bourn.engine.snapshots import Snapshots
from bourn.engine.stream import Stream
from bourn.engine.term import Term
from bourn.errors import BournError
from bourn.layout.records import RecordBatch
from bourn.log.acks import Durability
from bourn.model.record import AppendAck

Mutation = Callable[[pytest.MonkeyPatch], None]


def ack_before_durable(patch: pytest.MonkeyPatch) -> None:
    """Acks are released when the commit is closed."""
    close_open = Committer._close_open

    def closing(self: Committer) -> None:
        groups: list[Group] = list(self._open.groups.values())
        close_open(self)
        for group in groups:
            for reply, start, end in group.replies:
                ack = AppendAck(start, end, group.end)
                if not isinstance(reply, asyncio.Future):
                    reply.acked(ack)
                elif not reply.done():
                    reply.set_result(ack)

    patch.setattr(Committer, "_close_open", closing)


def ack_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """A stored commit counts at once, though one before it is missing."""

    def completing(self: Durability, commit_id: int) -> range:
        self._durable = max(self._durable, commit_id + 1)
        return range(commit_id, commit_id + 1)

    patch.setattr(Durability, "complete", completing)


def no_tombstone(patch: pytest.MonkeyPatch) -> None:
    """A new writer leaves the older epochs open."""

    async def seal(self: Recovery, epoch: int, commit_id: int) -> bool:
        return True

    patch.setattr(Recovery, "_seal", seal)


def exists_is_success(patch: pytest.MonkeyPatch) -> None:
    """A writer takes whatever stands in its place for its own."""

    async def compare(self: DurablePuts, key: str, data: bytes, deadline: float) -> None:
        return

    patch.setattr(DurablePuts, "_compare", compare)


def readers_see_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A batch is published when it is admitted."""
    close_open = Committer._close_open

    def closing(self: Committer) -> None:
        commit: PendingCommit = self._open
        close_open(self)
        self._tail_cache.add(commit.ordinal, commit.data)
        for group in commit.groups.values():
            group.stream.publish(group.end, group.state.trim_point)

    patch.setattr(Committer, "_close_open", closing)


def refusals_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A refusal is told at once, though what it rests on is in flight."""

    def refused(self: Term, stream: Stream, batch: RecordBatch, refusal: BournError) -> Any:
        self.room.give_back(room_of(batch.payload))
        future = self.committer._loop.create_future()
        future.set_exception(refusal)
        future.exception()
        return future

    patch.setattr(Term, "_refused", refused)


def snapshot_before_its_commits(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is put while commits that it covers are in flight."""
    take = Snapshots._take

    async def taking(self: Snapshots) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._term.committer, "after", lambda _: None, raising=False)
            await take(self)

    patch.setattr(Snapshots, "_take", taking)


def session_goes_on_behind_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """A session admits what comes behind a refused batch."""
    submit = Appender.submit

    def submitting(self: Appender, batch: RecordBatch, **conditions: Any) -> Any:
        self._refused = None
        return submit(self, batch, **conditions)

    patch.setattr(Appender, "submit", submitting)


def collects_above_the_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Dead commits are deleted although a start would still replay them."""

    def collectable_below(self: Snapshots) -> int:
        return self._term.committer.durable_ordinal

    def dead(self: Snapshots) -> range:
        return range(self._term.committer.durable_ordinal)

    patch.setattr(Snapshots, "collectable_below", property(collectable_below))
    patch.setattr(Snapshots, "dead", property(dead, lambda *_: None), raising=False)


def lost_objects_go_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """A start takes a gap for the end of the log, whatever stands behind it."""

    async def refuse_lost(self: Recovery, epoch: int, gap: int, later_ids: list[int]) -> None:
        return

    patch.setattr(Recovery, "_refuse_lost", refuse_lost)
