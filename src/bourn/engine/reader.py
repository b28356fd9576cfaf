"""Reads by position: from memory where the batches still are, else out of the log or the history.

What the table holds is read from the table, everything behind it from the log; a position is looked
up anew for each part, so the table may move on under a read. Damage and lost objects are found by
checksum and named; what one damaged object holds cannot be read, everything else can.
"""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from bourn.bucket.port import Bucket
from bourn.clock import Clock
from bourn.engine.batch import ReadBatch
from bourn.engine.fetches import Fetches, Part, key_of
from bourn.engine.gather import Collected, Gather
from bourn.engine.history import History
from bourn.engine.history_index import Stretch
from bourn.engine.neighbours import Hand, Neighbours
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import EncodedBatches, TailCache
from bourn.errors import BournError, BucketError, Damaged, ObjectMissing, StorageFailed
from bourn.layout.entry import NEVER_S, Entry, own_run
from bourn.layout.runs import Run
from bourn.limits import (
    READ_AHEAD_BYTES,
    READ_AHEAD_PARTS,
    READ_AHEAD_REMOTE,
    READ_AHEAD_REQUESTS,
    READ_NOW_PART_BYTES,
    READ_TOGETHER_BYTES_MAX,
    READ_TOGETHER_RUNS,
    READ_TURN_PARTS,
)
from bourn.log.cursor import Cursor
from bourn.log.epochs import EpochMap
from bourn.settings import EngineSettings

__all__ = ["Collected", "LogReader"]

MOVES_MAX: Final = 8  # of the table under one lookup: more than a grace period can hold


class LogReader(Fetches):
    """Finds and fetches the batches of a stream."""

    def __init__(
        self,
        bucket: Bucket,
        epochs: EpochMap,
        history: History,
        tail_cache: TailCache,
        encoded: EncodedBatches,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        super().__init__(bucket, epochs, history, settings, clock, rng)
        self._tail_cache = tail_cache
        self._encoded = encoded
        self._neighbours = Neighbours(tail_cache, self._bounded, epochs)
        more = READ_AHEAD_REMOTE if bucket.is_remote else 1
        self._ahead_bytes = READ_AHEAD_BYTES * more
        self._ahead_requests = READ_AHEAD_REQUESTS * more
        self._taken_ahead = 0

    async def collect(self, stream: Stream, cursor: Cursor) -> Collected:
        """Take the next batch at the cursor, as large as allowed, from what is durable now.

        An empty batch that is not `excluded` means that nothing is left before the tail.
        """
        end = stream.tail.seq_num
        now_ms = self._clock.now_ms()
        gather = Gather(
            cursor,
            max(cursor.position, min(stream.trim_point, end)),
            end,
            is_sealed=stream.row.cipher is not None,
        )
        full = False
        parts = 0
        while gather.position < end and not full and not gather.is_sated:
            parts += 1
            if parts % READ_TURN_PARTS == 0:
                await self._clock.sleep(0)  # others want their turn too
            try:
                full = await self._take_part(stream, gather, end, now_ms)
            except (Damaged, StorageFailed):
                if gather.is_empty:
                    raise
                break  # what was found before it is whole; the next read meets it again
        return gather.collected(self._encoded, full=full)

    def collect_now(
        self, stream: Stream, cursor: Cursor, now_ms: int
    ) -> tuple[ReadBatch, Entry | None] | None:
        """As `collect`, of what nobody has to wait for; None where something has to be fetched.

        With the batch comes the stored one whose next record was left out, if one was.
        """
        end = stream.tail.seq_num
        position = max(cursor.position, min(stream.trim_point, end))
        gather = Gather(cursor, position, end, is_sealed=stream.row.cipher is not None)
        left_out, hand = None, Hand(goes_on=False)
        while gather.position < end and left_out is None and not gather.is_sated:
            part = self._next_part(stream, gather, end, now_ms)
            if part is not None:
                entries = self._joined(stream, part, gather, now_ms, hand)
                entries = entries or self._at_hand(stream, part, hand)
                if entries is None:
                    return None
                if gather.take_run(entries, now_ms):
                    position = gather.position
                    left_out = next(entry for entry in entries if entry.end_seq_num > position)
        return gather.batch(self._encoded), left_out

    def _next_part(self, stream: Stream, gather: Gather, end: int, now_ms: int) -> Part | None:
        """Return the part to take from next; None where there is none, or it was stepped over."""
        part = self._part_at(stream, gather, end)
        if part is None or part.first_seq_num >= end:
            gather.position = end
            return None
        if part.expires_s * 1000 <= now_ms and part.expires_s != NEVER_S:
            gather.position = min(part.end_seq_num, end)
            return None
        gather.position = max(gather.position, part.first_seq_num)
        return part

    async def _take_part(self, stream: Stream, gather: Gather, end: int, now_ms: int) -> bool:
        """Take what fits of the next part, or step over it; True once something did not fit."""
        moves = 0
        while True:
            part = self._next_part(stream, gather, end, now_ms)
            if part is None:
                return False
            hand = Hand(goes_on=True)
            entries = self._joined(stream, part, gather, now_ms, hand)
            if entries is not None:
                is_full = gather.take_run(entries, now_ms)
                if not hand.left_runs:
                    await self._clock.sleep(0)  # as many as others can wait for
                return is_full
            try:
                return gather.take_run(await self._entries(stream, part, gather), now_ms)
            except ObjectMissing as missing:
                moves += 1
                await self._moved(missing, moves)

    async def locate(self, stream: Stream, timestamp: int) -> int:
        """Return the first visible record that is not older than `timestamp`, else the tail."""
        now_ms = self._clock.now_ms()
        tail = stream.tail.seq_num
        after = 0
        moves = 0
        while True:
            # Looked up again each turn: retention may drop runs while a fetch is under way.
            part = self._part_from(stream, timestamp, after)
            if part is None or part.first_seq_num >= tail:
                return tail
            is_hidden = part.end_seq_num <= stream.trim_point or part.expires_s * 1000 <= now_ms
            try:
                entries = [] if is_hidden else await self._entries(stream, part)
            except ObjectMissing as missing:
                moves += 1
                await self._moved(missing, moves)
                continue
            after = part.end_seq_num
            for entry in entries:
                found = _first_in(entry, timestamp, stream.trim_point, now_ms)
                if found is not None:
                    return min(found, tail)

    def locate_now(self, stream: Stream, timestamp: int, now_ms: int) -> int | None:
        """As `locate`, of what nobody has to wait for; None where something has to be fetched."""
        tail, after, hand = stream.tail.seq_num, 0, Hand(goes_on=False)
        while True:
            part = self._part_from(stream, timestamp, after)
            if part is None or part.first_seq_num >= tail:
                return tail
            after = part.end_seq_num
            if after <= stream.trim_point or part.expires_s * 1000 <= now_ms:
                continue
            entries = self._at_hand(stream, part, hand)
            if entries is None:
                return None
            for entry in entries:
                found = _first_in(entry, timestamp, stream.trim_point, now_ms)
                if found is not None:
                    return min(found, tail)

    # Where records are

    def _part_at(self, stream: Stream, gather: Gather, end: int) -> Part | None:
        """Return the part that holds the position, else the first one behind it."""
        position, runs = gather.position, stream.runs
        at = runs.find_seq_near(position, gather.near)
        gather.near = at + 1
        run = runs.row(at) if at < len(runs) else None
        history = self._history.current
        if history.is_empty or (
            run is not None
            and run.commit >= history.end_ordinal
            and (run.first_seq_num <= position or (at and history.is_complete))
        ):
            return run
        part = _first_of(history.find(stream.id, position), run)
        if not history.is_complete:
            gap_end = end if part is None else min(part.first_seq_num, end)
            if gap_end > position:
                _raise(history.fault_between(stream.id, position, gap_end))
        return part

    def _part_from(self, stream: Stream, timestamp: int, seq_num: int) -> Part | None:
        """Return the first part that reaches both a timestamp and a sequence number."""
        runs, history = stream.runs, self._history.current
        at = max(runs.find_timestamp(timestamp), runs.find_seq(seq_num))
        run = runs.row(at) if at < len(runs) else None
        if history.is_empty or (
            run is not None
            and run.commit >= history.end_ordinal
            and history.is_complete
            and (at or run.first_timestamp < timestamp)
        ):
            return run
        part = _first_of(history.find_timestamp(stream.id, timestamp, seq_num), run)
        if not history.is_complete:
            until = stream.tail.timestamp if part is None else part.first_timestamp
            _raise(history.fault_from(stream.id, timestamp, until))
        return part

    async def _moved(self, missing: ObjectMissing, moves: int) -> None:
        """An object is gone: return if the table has moved on, so that it is not needed any more.

        Merging and cleaning up replace files of the table; its next version names the new ones.
        """
        try:
            is_newer = moves <= MOVES_MAX and await self._history.refresh(thoroughly=True)
        except (BournError, BucketError) as error:
            raise StorageFailed(f"{missing.key} is gone, and the table: {error}") from error
        if not is_newer:
            damaged = Damaged(missing.key, "the object is gone, and records of it are not")
            self._complaints.warn(f"records cannot be read: {damaged.message}")
            raise damaged from None

    # Batches

    async def _entries(
        self, stream: Stream, part: Part, gather: Gather | None = None
    ) -> list[Entry]:
        """Return a part's batches; with `gather`, begin to fetch what it will ask for next."""
        key = key_of(part, stream.id)
        was_ahead = key in self._unasked
        is_small = self._many is not None and _is_small(part)
        bundle_end = self._edges.get(key)
        held = self._held(stream, part)
        if bundle_end is not None and gather is not None:
            self._fetch_neighbours(stream, bundle_end, gather)
        if held is not None:
            if was_ahead and gather is not None and not is_small:
                self._taken_ahead += 1
                if self._taken_ahead % READ_AHEAD_PARTS == 0:  # a walk over all that is ahead
                    self._read_ahead(stream, part, gather)
            return held
        if is_small and gather is not None:
            behind = self._fetch_neighbours(stream, part.first_seq_num, gather)
            if behind:
                self._fetch_neighbours(stream, behind, gather)
        self._asked_for(key)
        if gather is not None and not is_small:
            self._start_fetch(stream.id, part)
            self._read_ahead(stream, part, gather)
        return await self._fetch(stream.id, part)

    def _fetch_neighbours(self, stream: Stream, seq_num: int, gather: Gather) -> int:
        """Begin to fetch the small runs from a position on, by one request; returns their end.

        That is as far as the read wants them and nobody has them yet; 0 where that is nowhere.
        Whoever takes the first of them has those behind them fetched.
        """
        runs, stream_id = stream.runs, stream.id
        wanted: list[Run] = []
        metered_bytes = 0
        for at in range(runs.find_seq(seq_num), len(runs)):
            run = runs.row(at)
            if (
                not _is_small(run)
                or run.first_seq_num >= stream.tail.seq_num
                or not gather.wants(run, run.first_seq_num - gather.position, metered_bytes)
                or run.commit in self._tail_cache
                or self._is_known(key_of(run, stream_id))
            ):
                break
            wanted.append(run)
            metered_bytes += run.metered
            if len(wanted) == READ_TOGETHER_RUNS:
                break
        if not self._fetch_together(stream_id, wanted):
            return 0
        end = wanted[-1].end_seq_num
        self._edges[key_of(wanted[0], stream_id)] = end
        return end

    def _held(self, stream: Stream, part: Part) -> list[Entry] | None:
        """Return a part's batches where they are in memory."""
        commit = None if isinstance(part, Stretch) else self._tail_cache.get(part.commit)
        if commit is not None and isinstance(part, Run):
            self.hits += 1
            return own_run(commit, part.offset, part.length)
        # Whoever comes next has a small one joined with its neighbours, where they are at hand.
        is_once = self._neighbours.reads_near and _is_small(part)
        return self._kept(key_of(part, stream.id), is_once=is_once)

    def _joined(
        self, stream: Stream, part: Part, gather: Gather, now_ms: int, hand: Hand
    ) -> list[Entry] | None:
        """Return what a part and its neighbours make, where they are small and at hand."""
        if not isinstance(part, Run) or key_of(part, stream.id) in self._unasked:
            return None
        asked = hand.left_runs
        found = self._neighbours.joined(stream, part, gather, now_ms, hand)
        if found is None:
            return None
        asked -= hand.left_runs
        self.fetches += asked
        self.hits += found.runs - asked
        return [found.batch]

    def _at_hand(self, stream: Stream, part: Part, hand: Hand) -> list[Entry] | None:
        """Return a part's batches where nobody has to wait for them, nor for this read."""
        entries = self._held(stream, part)
        if entries is None:
            hand.left_bytes -= part.length + READ_NOW_PART_BYTES
            if hand.left_bytes >= 0:
                entries = self._fetch_now(stream.id, part)
        return entries

    def _read_ahead(self, stream: Stream, part: Part, gather: Gather) -> None:
        """Begin to fetch what follows the part, as far as the read and the memory go."""
        planned = part.length
        records = part.end_seq_num - gather.position
        metered_bytes = part.metered if gather.position == part.first_seq_num else 0
        for ahead in islice(self._behind(stream, part), self._ahead_requests - 1):
            if (
                ahead.first_seq_num >= stream.tail.seq_num
                or planned > self._ahead_bytes
                or not gather.wants(ahead, records, metered_bytes)
                or (isinstance(ahead, Run) and ahead.commit in self._tail_cache)
            ):
                return
            planned += ahead.length
            records += ahead.count
            metered_bytes += ahead.metered
            if not self._fetch_ahead(stream.id, ahead):
                return

    def _behind(self, stream: Stream, part: Part) -> Iterator[Part]:
        """Yield the parts that follow one."""
        runs, end = stream.runs, part.end_seq_num
        if isinstance(part, Stretch):
            for older in self._history.current.behind(part):
                end = older.end_seq_num
                yield older
        for at in range(runs.find_seq(end), len(runs)):
            yield runs.row(at)


def _is_small(part: Part) -> bool:
    """Whether it is worth a request for its neighbours too."""
    return isinstance(part, Run) and part.length <= READ_TOGETHER_BYTES_MAX


def _first_of(older: Stretch | None, run: Run | None) -> Part | None:
    """Return what comes first; of two that overlap, what the table has."""
    if older is None or (run is not None and run.end_seq_num <= older.first_seq_num):
        return run
    return older


def _raise(error: BournError | None) -> None:
    if error is not None:
        raise error.with_traceback(None)  # kept, and raised for every read that meets it


def _first_in(entry: Entry, timestamp: int, trim_point: int, now_ms: int) -> int | None:
    if entry.last_timestamp < timestamp or entry.end_seq_num <= trim_point:
        return None
    if entry.is_expired(now_ms):
        return None
    index = 0
    if not isinstance(entry.timestamps, int):
        index = int(np.searchsorted(entry.timestamps, np.uint64(timestamp), side="left"))
    return max(entry.first_seq_num + index, trim_point)
