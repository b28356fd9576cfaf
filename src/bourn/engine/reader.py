"""Reads of the log by position: from memory where the batches still are, else by range requests.

Damage and lost objects are found by checksum and named; what one damaged object holds cannot be
read, everything else can.
"""

import asyncio
import random
from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff
from bourn.clock import Clock
from bourn.engine.batch import EntrySlice, ReadBatch
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import ENTRY_OBJECT_BYTES, EncodedBatches, TailCache
from bourn.errors import BucketUnavailable, Damaged, ObjectMissing, StorageFailed, Unavailable
from bourn.layout.codec import cut, sequenced_size_bound
from bourn.layout.entry import NEVER_S, Entry, decode_run
from bourn.layout.keys import wal_key
from bourn.layout.runs import Run
from bourn.layout.sealed import cut_sealed
from bourn.limits import (
    FRAME_PAYLOAD_BYTES_MAX,
    READ_AHEAD_BYTES,
    READ_AHEAD_REQUESTS,
    RECORD_METERED_BYTES_MIN,
)
from bourn.log.cursor import Cursor, advance, budget
from bourn.log.epochs import EpochMap
from bourn.settings import EngineSettings

# Room for the tail beside the records, so that every batch fits a frame.
ENCODED_BATCH_BYTES_MAX: Final = FRAME_PAYLOAD_BYTES_MAX - 64
FETCH_ATTEMPTS: Final = 4
FETCH_BACKOFF_SECS: Final = 0.02


class Collected(NamedTuple):
    """A batch, the cursor behind it, and whether the limits exclude the record that follows."""

    batch: ReadBatch
    cursor: Cursor
    excluded: bool


class Gather:
    """A read batch in the making."""

    def __init__(self, cursor: Cursor, position: int, *, is_sealed: bool) -> None:
        self._cursor = cursor
        self._is_sealed = is_sealed
        self._room = budget(cursor)
        self._encoded_left = ENCODED_BATCH_BYTES_MAX
        self._slices: list[EntrySlice] = []
        self._records = 0
        self._metered_bytes = 0
        self.position = position

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken yet."""
        return not self._slices

    @property
    def is_sated(self) -> bool:
        """Whether something was taken and no record at all fits any more."""
        room = self._room
        is_used_up = not room.records or room.metered_bytes < RECORD_METERED_BYTES_MIN
        return is_used_up and not self.is_empty

    def wants(self, run: Run, records: int, metered_bytes: int) -> bool:
        """Whether the read, not this batch alone, may reach a run behind so much more."""
        cursor = self._cursor
        return (
            (cursor.count_left is None or self._records + records < cursor.count_left)
            and (
                cursor.bytes_left is None or self._metered_bytes + metered_bytes < cursor.bytes_left
            )
            and (cursor.until is None or run.first_timestamp < cursor.until)
        )

    def take_run(self, entries: list[Entry], now_ms: int) -> bool:
        """Take what fits of a run of batches; True once something did not."""
        for entry in entries:
            if entry.end_seq_num <= self.position:
                continue
            if entry.is_expired(now_ms):
                self.position = entry.end_seq_num
            elif not self._take(entry):
                return True
        return False

    def _take(self, entry: Entry) -> bool:
        start = self.position - entry.first_seq_num
        room = self._room
        bound = sequenced_size_bound(entry.metered_bytes, entry.count, entry.header_count)
        if (
            start == 0
            and bound <= self._encoded_left
            and room.takes_whole(entry.count, entry.metered_bytes, entry.last_timestamp)
        ):
            stop, metered_bytes = entry.count, entry.metered_bytes
        else:
            stop, metered_bytes = self._cut(entry, start, room.records, self._encoded_left)
            if stop == start and not self._slices and room.records:
                # One record may encode to more than a frame; it is not the read's limits that
                # exclude it, and formats without frames can still deliver it.
                stop, metered_bytes = self._cut(entry, start, 1, 4 * ENCODED_BATCH_BYTES_MAX)
            bound = sequenced_size_bound(metered_bytes, stop - start, entry.header_count)
        if stop > start:
            self._slices.append(EntrySlice(entry, start, stop))
            self._records += stop - start
            self._metered_bytes += metered_bytes
            self._encoded_left -= bound
            self._room = room.spend(stop - start, metered_bytes)
            self.position = entry.first_seq_num + stop
        return stop == entry.count

    def _cut(
        self, entry: Entry, start: int, records_max: int, encoded_bytes_max: int
    ) -> tuple[int, int]:
        if self._is_sealed:
            return cut_sealed(
                entry.payload,
                entry.count,
                entry.timestamps,
                start,
                records_max=records_max,
                metered_max=self._room.metered_bytes,
                until=self._room.until,
                encoded_max=encoded_bytes_max,
                header_count=entry.header_count,
            )
        return cut(
            entry.payload,
            entry.count,
            entry.timestamps,
            start,
            records_max=records_max,
            metered_max=self._room.metered_bytes,
            until=self._room.until,
            encoded_max=encoded_bytes_max,
            first_seq_num=entry.first_seq_num,
        )

    def collected(self, encoded: EncodedBatches, *, full: bool) -> Collected:
        """Close the batch. One that is full and empty: the read's own limits say no."""
        after = advance(self._cursor, self._records, self._metered_bytes, self.position)
        batch = ReadBatch(tuple(self._slices), self._records, self._metered_bytes, encoded)
        return Collected(batch, after, full and not self._slices)


class LogReader:
    """Finds and fetches the batches of a stream."""

    def __init__(
        self,
        bucket: Bucket,
        epochs: EpochMap,
        tail_cache: TailCache,
        encoded: EncodedBatches,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._bucket = bucket
        self._epochs = epochs
        self._tail_cache = tail_cache
        self._encoded = encoded
        self._bytes_max = settings.read_cache_bytes
        self._clock = clock
        self._rng = rng
        self._read: OrderedDict[tuple[int, int], tuple[int, list[Entry]]] = OrderedDict()
        self._fetching: dict[tuple[int, int], asyncio.Task[list[Entry]]] = {}
        self._unasked: dict[tuple[int, int], int] = {}  # read ahead, and not used yet
        self._unasked_bytes = 0
        self.bytes_held = 0
        self.hits = 0
        self.fetches = 0

    async def collect(self, stream: Stream, cursor: Cursor) -> Collected:
        """Take the next batch at the cursor, as large as allowed, from what is durable now.

        An empty batch that is not `excluded` means that nothing is left before the tail.
        """
        end = stream.tail.seq_num
        now_ms = self._clock.now_ms()
        gather = Gather(
            cursor,
            max(cursor.position, min(stream.trim_point, end)),
            is_sealed=stream.row.cipher is not None,
        )
        full = False
        while gather.position < end and not full and not gather.is_sated:
            run_at = stream.runs.find_seq(gather.position)
            run = stream.runs.row(run_at) if run_at < len(stream.runs) else None
            if run is None or run.first_seq_num >= end:
                gather.position = end
            elif run.expires_s * 1000 <= now_ms and run.expires_s != NEVER_S:
                gather.position = run.end_seq_num
            else:
                gather.position = max(gather.position, run.first_seq_num)
                try:
                    entries = await self._entries(stream, run, run_at, gather)
                except (Damaged, StorageFailed):
                    if gather.is_empty:
                        raise
                    break  # what was found before it is whole; the next read meets it again
                full = gather.take_run(entries, now_ms)
        return gather.collected(self._encoded, full=full)

    async def locate(self, stream: Stream, timestamp: int) -> int:
        """Return the first visible record that is not older than `timestamp`, else the tail."""
        now_ms = self._clock.now_ms()
        tail = stream.tail.seq_num
        after = 0
        while True:
            # Looked up again each turn: retention may drop runs while a fetch is under way.
            run_at = max(stream.runs.find_timestamp(timestamp), stream.runs.find_seq(after))
            if run_at >= len(stream.runs):
                return tail
            run = stream.runs.row(run_at)
            after = run.first_seq_num + run.count
            if run.first_seq_num >= tail:
                return tail
            if after <= stream.trim_point or run.expires_s * 1000 <= now_ms:
                continue
            for entry in await self._entries(stream, run, run_at):
                found = _first_in(entry, timestamp, stream.trim_point, now_ms)
                if found is not None:
                    return found

    async def _entries(
        self, stream: Stream, run: Run, run_at: int, gather: Gather | None = None
    ) -> list[Entry]:
        """Return a run's batches; with `gather`, begin to fetch what it will ask for next."""
        key = (run.commit, stream.id)
        cached = self._tail_cache.get(*key)
        if cached is None:
            was_ahead = self._asked_for(key)
            held = self._read.get(key)
            if held is None:
                if gather is not None:
                    self._read_ahead(stream, run_at, gather)
                return await self._fetch(stream.id, run)
            self._read.move_to_end(key)
            cached = held[1]
            if was_ahead:
                return cached
        self.hits += 1
        return cached

    def _read_ahead(self, stream: Stream, run_at: int, gather: Gather) -> None:
        """Begin to fetch the run and what follows it, as far as the read and the memory go."""
        run = stream.runs.row(run_at)
        self._start_fetch(stream.id, run)
        planned = run.length
        records = run.end_seq_num - gather.position
        metered_bytes = run.metered if gather.position == run.first_seq_num else 0
        for at in range(run_at + 1, min(run_at + READ_AHEAD_REQUESTS, len(stream.runs))):
            run = stream.runs.row(at)
            key = (run.commit, stream.id)
            if (
                run.first_seq_num >= stream.tail.seq_num
                or planned > READ_AHEAD_BYTES
                or not gather.wants(run, records, metered_bytes)
                or self._tail_cache.get(*key) is not None
            ):
                return
            planned += run.length
            records += run.count
            metered_bytes += run.metered
            if key not in self._read and key not in self._fetching:
                # What is fetched too early is dropped before it is asked for, and fetched again.
                if self._unasked_bytes + run.length > self._bytes_max // 2:
                    return
                self._unasked[key] = run.length
                self._unasked_bytes += run.length
                self._start_fetch(stream.id, run)

    def _asked_for(self, key: tuple[int, int]) -> bool:
        """Note that a run is used now, or never will be; returns whether it was read ahead."""
        size_bytes = self._unasked.pop(key, 0)
        self._unasked_bytes -= size_bytes
        return size_bytes > 0

    def _start_fetch(self, stream_id: int, run: Run) -> asyncio.Task[list[Entry]]:
        key = (run.commit, stream_id)
        task = self._fetching.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_run(stream_id, run))
            self._fetching[key] = task
            task.add_done_callback(lambda done: self._fetched(key, run, done))
        return task

    async def _fetch(self, stream_id: int, run: Run) -> list[Entry]:
        fetching = self._start_fetch(stream_id, run)
        try:
            # Shielded: other readers of the same run wait for the same task.
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            reader = asyncio.current_task()
            if fetching.cancelled() and reader is not None and not reader.cancelling():
                raise Unavailable("the node has stopped serving") from None
            raise

    def _fetched(self, key: tuple[int, int], run: Run, task: asyncio.Task[list[Entry]]) -> None:
        del self._fetching[key]
        if task.cancelled() or task.exception() is not None:
            self._asked_for(key)
            return
        entries = task.result()
        size_bytes = run.length + ENTRY_OBJECT_BYTES * len(entries)
        self._read[key] = (size_bytes, entries)
        self.bytes_held += size_bytes
        while self.bytes_held > self._bytes_max and len(self._read) > 1:
            oldest, (dropped, _) = self._read.popitem(last=False)
            self._asked_for(oldest)
            self.bytes_held -= dropped

    async def _fetch_run(self, stream_id: int, run: Run) -> list[Entry]:
        key = wal_key(*self._epochs.position(run.commit))
        backoff = Backoff(self._clock, self._rng, FETCH_BACKOFF_SECS, growth=4)
        for attempt in range(1, FETCH_ATTEMPTS + 1):
            self.fetches += 1
            try:
                data = await self._bucket.get_range(key, run.offset, run.length)
                return _check_run(data, key, stream_id, run)
            except ObjectMissing:
                raise Damaged(key, "the object is gone, and records of it are not") from None
            except Damaged:
                # A reply may have been cut short on its way; the object itself is read again.
                if attempt == FETCH_ATTEMPTS:
                    raise
            except BucketUnavailable as error:
                if attempt == FETCH_ATTEMPTS:
                    raise StorageFailed(f"cannot read {error}") from error
            await backoff.pause()
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """End what is being fetched."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_run(data: bytes, key: str, stream_id: int, run: Run) -> list[Entry]:
    if len(data) != run.length:
        raise Damaged(key, f"{len(data)} bytes where {run.length} were written: truncated")
    entries = decode_run(data, key)
    position = run.first_seq_num
    for entry in entries:
        if entry.stream_id != stream_id or entry.first_seq_num != position:
            raise Damaged(key, "it holds other batches than the index says")
        position = entry.end_seq_num
    if position != run.first_seq_num + run.count:
        raise Damaged(key, "it holds fewer records than the index says")
    return entries


def _first_in(entry: Entry, timestamp: int, trim_point: int, now_ms: int) -> int | None:
    if entry.last_timestamp < timestamp or entry.end_seq_num <= trim_point:
        return None
    if entry.is_expired(now_ms):
        return None
    index = 0
    if not isinstance(entry.timestamps, int):
        index = int(np.searchsorted(entry.timestamps, np.uint64(timestamp), side="left"))
    return max(entry.first_seq_num + index, trim_point)
