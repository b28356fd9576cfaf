"""Everything that the log says, as of its end: basins, streams, and which commits are still needed.

The same transitions serve a running node, which applies what it has just decided, and recovery,
which applies what an earlier writer had decided.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from bourn.catalog.basin_table import BasinTable
from bourn.catalog.changes import (
    Change,
    CountUsage,
    DropBasin,
    DropStream,
    DropToken,
    PutBasin,
    PutStream,
    PutToken,
    decode_change,
)
from bourn.catalog.cold import ColdStreams
from bourn.catalog.rows import decode_basin_row, encode_basin_row
from bourn.catalog.table import StreamTable
from bourn.catalog.tokens import TokenTable, decode_tokens, encode_tokens
from bourn.catalog.usage import EXTRA_KEY, UsageTable
from bourn.engine.commit_refs import CommitRefs
from bourn.engine.history_index import NO_HISTORY, HistoryVersion
from bourn.engine.metering import Metering
from bourn.engine.stream import Stream, hydrate, new_stream
from bourn.errors import Damaged, OutOfSequence, Undecodable
from bourn.layout.columns import StreamImage
from bourn.layout.commit import Commit
from bourn.layout.entry import Entry
from bourn.layout.keys import LogPosition, snapshot_key
from bourn.layout.records import stored_commands
from bourn.layout.runs import RUN_DTYPE
from bourn.layout.snapshot import Snapshot, SnapshotMeta
from bourn.log.epochs import EpochMap
from bourn.log.sequencer import StreamState, replay
from bourn.model.record import Command

TOKENS: Final = "tokens"  # their part of a snapshot
HISTORY: Final = "history"  # from which ordinal on its runs are; what is older is in the table


class State:
    """The store's contents besides the records themselves."""

    def __init__(
        self,
        basins: BasinTable,
        cold: ColdStreams,
        epochs: EpochMap,
        next_resource_id: int,
        next_ordinal: int,
        usage: UsageTable | None = None,
    ) -> None:
        self.basins = basins
        self.metering = Metering(basins, cold, usage)
        self.tokens = TokenTable()
        self.streams: StreamTable[Stream] = StreamTable(
            cold, self._hydrated, self._image, self._is_idle
        )
        self.history: HistoryVersion = NO_HISTORY  # that serves reads
        self.history_needed = 0  # the ordinal that a table must reach to stand for what is gone
        self.runs_from = 0  # what lies in older commits is in the history; see `handover`
        self.epochs = epochs
        self.next_resource_id = next_resource_id
        self.refs = _refs(cold, next_ordinal)
        self.durable_ordinal = next_ordinal

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot | None) -> "State":
        """Begin with a snapshot, or with nothing."""
        if snapshot is None:
            return cls(BasinTable(), ColdStreams.empty(), EpochMap(), 1, 0)
        meta = snapshot.meta
        try:
            rows = [decode_basin_row(row) for row in meta.basins]
            tokens = decode_tokens(meta.extra[TOKENS]) if TOKENS in meta.extra else []
            usage = UsageTable.decode(meta.extra[EXTRA_KEY]) if EXTRA_KEY in meta.extra else None
        except Undecodable as error:
            raise Damaged(snapshot_key(meta.position), str(error)) from error
        history_needed = int.from_bytes(meta.extra.get(HISTORY, b""), "little")
        state = cls(
            BasinTable(rows),
            ColdStreams(snapshot.columns),
            EpochMap(meta.bases),
            meta.next_resource_id,
            meta.next_ordinal,
            usage,
        )
        state.tokens = TokenTable(tokens)
        state.history_needed = history_needed
        return state

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the first commit that is not part of this state."""
        return self.refs.end

    def meta(self, position: LogPosition, ordinal: int, created_at_ms: int) -> SnapshotMeta:
        """Everything but the streams, for a snapshot of the state before a commit."""
        return SnapshotMeta(
            position=position,
            next_ordinal=ordinal,
            bases=self.epochs.bases,
            next_resource_id=self.next_resource_id,
            created_at_ms=created_at_ms,
            basins=[encode_basin_row(row) for row in self.basins],
            extra=self._extra(),
        )

    def _extra(self) -> dict[str, bytes]:
        extra = {EXTRA_KEY: self.metering.table.encode()}
        if len(self.tokens):
            extra[TOKENS] = encode_tokens(self.tokens)
        if self.runs_from:
            extra[HISTORY] = self.runs_from.to_bytes(8, "little")
        return extra

    def take_id(self) -> int:
        """A number that no basin or stream has had or will have."""
        taken = self.next_resource_id
        self.next_resource_id += 1
        return taken

    def apply_change(self, change: Change) -> Stream | None:
        """Make a change hold; returns the stream that it is about."""
        match change:
            case PutBasin(row=basin):
                self.basins.put(basin)
                self.next_resource_id = max(self.next_resource_id, basin.id + 1)
            case DropBasin(id=basin_id):
                self.metering.basin_dropped(self.basins.drop(basin_id))
            case CountUsage(number=number, lines=lines, basins=basins, streams=streams):
                self.metering.flushed(number, lines, basins, streams)
            case PutToken(row=token):
                self.tokens.put(token)
            case DropToken(id=token_id):
                self.tokens.drop(token_id)
            case PutStream(row=row):
                stream = self.streams.by_id(row.id)
                if stream is None:
                    stream = new_stream(row)
                    self.streams.add(row.id, row.basin_id, row.name, stream)
                    self.next_resource_id = max(self.next_resource_id, row.id + 1)
                    self.metering.stream_added(row)
                else:
                    stream.set_row(row)
                    self.streams.mark_dirty(row.id)
                return stream
            case DropStream(id=stream_id):
                stream = self.streams.by_id(stream_id)
                if stream is not None:
                    self.refs.drop(run.commit for run in stream.runs)
                    self.metering.stream_dropped(stream)
                    self.metering.history_removed(
                        stream, self._in_history(stream, stream.row.deleted_at_ms or 0)
                    )
                    self.streams.remove(stream_id)
                return stream
        return None

    def apply_commit(self, commit: Commit, ordinal: int, key: str) -> None:
        """Apply a commit that was read back; Damaged where it does not follow the state."""
        self.refs.add_commit(ordinal, len(commit.runs))
        runs: list[tuple[Stream, int, int]] = []
        try:
            for change in commit.changes:
                self.apply_change(decode_change(change))
            for location, entries in commit.runs:
                stream = self.streams.by_id(location.stream_id)
                if stream is None:
                    raise Damaged(key, f"a batch belongs to no stream ({location.stream_id})")
                state = replayed(stream.state, entries)
                size = stream.index_run(ordinal, location.offset, location.length, entries)
                runs.append((stream, len(entries), size))
                stream.state = state
                stream.last_write_ms = entries[-1].arrival_ms
                stream.publish(state.tail, state.trim_point)
                self.streams.mark_dirty(stream.id)
        except (OutOfSequence, Undecodable, KeyError, ValueError) as error:
            raise Damaged(key, f"it does not follow the log before it: {error}") from error
        self.metering.appended(commit.header.created_ms, runs)
        self.durable_ordinal = ordinal + 1

    # Streams, with what the history has of them

    def stored_bytes(self, stream: Stream, now_ms: int) -> int:
        """Return the metered bytes of a stream, in the log and in the history."""
        return stream.runs.metered_bytes(self.runs_from) + self._in_history(stream, now_ms)

    def _in_history(self, stream: Stream, now_ms: int) -> int:
        return self.history.stored_bytes(stream.id, stream.trim_point, now_ms // 1000)

    def has_live_records(self, stream: Stream, now_ms: int) -> bool:
        """Whether any record of a stream is neither trimmed nor expired, or may be so."""
        return (
            stream.has_live_records(now_ms)
            or not self.history.is_complete
            or self.history.live_until_s(stream.id, stream.trim_point) > now_ms // 1000
        )

    def next_check_s(self, stream: Stream) -> int:
        """When housekeeping must look at a stream next, in Unix seconds."""
        return stream.next_check_s(self._live_until_s(stream))

    def _live_until_s(self, stream: Stream) -> int:
        if len(stream.runs) or not stream.row.config.delete_on_empty.min_age_secs:
            return 0  # nobody asks
        return self.history.live_until_s(stream.id, stream.state.trim_point)

    def _image(self, stream: Stream) -> StreamImage:
        return stream.image(self._live_until_s(stream))

    def _hydrated(self, image: StreamImage) -> Stream:
        stream = hydrate(image)
        stream.runs.drop_before_commit(self.runs_from)
        return stream

    def _is_idle(self, stream: Stream) -> bool:
        first = stream.runs.first_commit
        is_handed_over = first is None or first >= self.runs_from
        return is_handed_over and stream.is_idle(self.durable_ordinal)


def _refs(cold: ColdStreams, next_ordinal: int) -> CommitRefs:
    """Count the runs that a snapshot's streams hold in each commit before it."""
    commits = np.frombuffer(cold.columns.runs.data, RUN_DTYPE)["commit"]
    base = int(commits.min()) if len(commits) else next_ordinal
    counts = np.zeros(next_ordinal - base, np.uint32)
    found = cold.commit_counts(base)
    counts[: len(found)] = found
    return CommitRefs(base, counts)


def replayed(state: StreamState, entries: Iterable[Entry]) -> StreamState:
    """The state of a stream behind these batches; OutOfSequence where they do not follow it."""
    for entry in entries:
        commands = commands_of(entry) if entry.has_commands else ()
        state = replay(state, entry.first_seq_num, entry.count, entry.last_timestamp, commands)
    return state


def commands_of(entry: Entry) -> tuple[tuple[int, Command], ...]:
    """The commands of a stored batch, with their places in it."""
    return stored_commands(entry.payload, entry.count)
