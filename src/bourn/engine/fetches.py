"""Parts of streams fetched from the bucket: each once for all who ask meanwhile, then kept a while.

A *part* is what one request brings: a run of the log, or a block of the history. What was read
ahead and not used yet is bounded apart, because whatever is fetched too early is dropped before it
is asked for, and fetched again.

Where a stream has little in each of many commits, neighbours come together (a *bundle*), if the
bucket can do that: what cannot be had so is asked for alone, and that request tells why.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from bourn.bucket.port import Bucket, Range
from bourn.bucket.retry import Backoff
from bourn.clock import Clock
from bourn.engine.bounded import BoundedBucket
from bourn.engine.complaints import Complaints
from bourn.engine.history import History
from bourn.engine.history_index import Stretch
from bourn.engine.row_groups import RowGroups
from bourn.errors import BucketError, BucketUnavailable, Damaged, StorageFailed, Unavailable
from bourn.layout.entry import Entry, decode_run
from bourn.layout.keys import wal_key
from bourn.layout.runs import Run
from bourn.log.epochs import EpochMap
from bourn.settings import EngineSettings

T = TypeVar("T")

Part = Run | Stretch
Batches = Entry | list[Entry]  # one, or several
Found = list[list[Entry] | None]

ENTRY_OBJECT_BYTES: Final = 400  # what Python's objects around one batch weigh
FETCH_ATTEMPTS: Final = 4
FETCH_BACKOFF_SECS: Final = 0.02


def packed(entries: list[Entry]) -> Batches:
    """What a cache keeps of batches."""
    return entries[0] if len(entries) == 1 else entries


def unpacked(kept: Batches) -> list[Entry]:
    """What was packed."""
    return kept if isinstance(kept, list) else [kept]


class Held(msgspec.Struct, gc=False):
    """A part in memory; the cycle collector need not know of it, for there are many.

    So it has no head for it, and a list only around several batches.
    """

    size_bytes: int
    batches: Batches


def key_of(part: Part, stream_id: int) -> int:
    """What a part of a stream is known by; a run by its commit and its stream."""
    if isinstance(part, Stretch):
        segment, place = part.key
        return ~(segment << 64 | place)  # negative, as no run's is
    return part.commit << 64 | stream_id


class Fetches:
    """The parts that are being fetched, and those that were fetched last."""

    def __init__(
        self,
        bucket: Bucket,
        epochs: EpochMap,
        history: History,
        settings: EngineSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._bucket = bucket
        self._bounded = bounded = bucket if isinstance(bucket, BoundedBucket) else None
        self._in_memory = bounded.in_memory if bounded is not None else None
        self._many = bounded if bounded is not None and bounded.reads_many else None
        self._epochs = epochs
        self._history = history
        self._bytes_max = settings.read_cache_bytes
        self._clock = clock
        self._rng = rng
        self._complaints = Complaints(clock)
        self._row_groups = RowGroups(bucket, history)
        self._read: OrderedDict[int, Held] = OrderedDict()
        self._fetching: dict[int, asyncio.Task[list[Entry]]] = {}
        self._bundled: dict[int, asyncio.Task[Found]] = {}  # the same, many by one task
        self._unasked: dict[int, int] = {}  # read ahead, and not used yet
        self._unasked_bytes = 0
        self._edges: dict[int, int] = {}  # where a bundle begins: where it ends
        self.bytes_held = 0
        self.hits = 0
        self.fetches = 0

    def _asked_for(self, key: int) -> bool:
        """Note that a part is used now, or never will be; returns whether it was read ahead."""
        self._edges.pop(key, None)
        size_bytes = self._unasked.pop(key, 0)
        self._unasked_bytes -= size_bytes
        return size_bytes > 0

    def _fetch_ahead(self, stream_id: int, part: Part) -> bool:
        """Begin to fetch what nobody has asked for yet; False where there is no room for it."""
        key = key_of(part, stream_id)
        if not self._is_known(key):
            if self._unasked_bytes + part.length > self._bytes_max // 2:
                return False
            self._count_ahead(key, part)
            self._start_fetch(stream_id, part)
        return True

    def _is_known(self, key: int) -> bool:
        """Whether a part has been fetched, or is being fetched."""
        return key in self._read or key in self._fetching or key in self._bundled

    def _count_ahead(self, key: int, part: Part) -> None:
        self._unasked[key] = part.length
        self._unasked_bytes += part.length

    def _fetch_together(self, stream_id: int, runs: Sequence[Run]) -> bool:
        """Begin to fetch small runs of a stream, none of which is known, by one request.

        False where there are none, or no room for them.
        """
        ahead_bytes = self._unasked_bytes + sum(run.length for run in runs)
        if not runs or ahead_bytes > self._bytes_max // 2:
            return False
        task = asyncio.get_running_loop().create_task(self._fetch_bundle(stream_id, runs))
        for run in runs:
            key = key_of(run, stream_id)
            self._bundled[key] = task
            self._count_ahead(key, run)
        task.add_done_callback(lambda done: self._bundle_fetched(stream_id, runs, done))
        return True

    def _start_fetch(self, stream_id: int, part: Part) -> asyncio.Task[list[Entry]]:
        key = key_of(part, stream_id)
        task = self._fetching.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch_part(stream_id, part))
            self._fetching[key] = task
            task.add_done_callback(lambda done: self._fetched(key, part, done))
        return task

    async def _fetch(self, stream_id: int, part: Part) -> list[Entry]:
        """Return a part's batches; ObjectMissing where its object is not there any more."""
        key = key_of(part, stream_id)
        bundle = self._bundled.get(key)
        if bundle is not None:
            await _shared(bundle)
            if key in self._bundled:  # it has just ended: what it brought is kept by the next turn
                await self._clock.sleep(0)
            held = self._read.get(key)
            if held is not None:
                return unpacked(held.batches)
        return await _shared(self._start_fetch(stream_id, part))

    def _fetch_now(self, stream_id: int, part: Part) -> list[Entry] | None:
        """Return a run's batches where nobody has to wait for them; None for `_fetch`."""
        key = key_of(part, stream_id)
        bounded = self._bounded
        if not isinstance(part, Run) or bounded is None or self._is_known(key):
            return None
        place = wal_key(*self._epochs.position(part.commit))
        data = bounded.range_now(place, part.offset, part.length)
        if data is None:
            return None
        try:
            entries = _check_run(data, place, stream_id, part)
        except Damaged:
            return None  # `_fetch` asks again, and tells
        self.fetches += 1
        self._keep(key, part, entries)
        return entries

    def _fetched(self, key: int, part: Part, task: asyncio.Task[list[Entry]]) -> None:
        del self._fetching[key]
        if task.cancelled():
            self._asked_for(key)
            return
        error = task.exception()
        if error is not None:
            self._asked_for(key)
            if isinstance(error, Damaged | StorageFailed):
                self._complaints.warn(f"records cannot be read: {error.message}")
            if isinstance(part, Stretch):
                self._history.failures += 1
            return
        self._keep(key, part, task.result())

    def _bundle_fetched(
        self, stream_id: int, runs: Sequence[Run], task: "asyncio.Task[Found]"
    ) -> None:
        failed = task.cancelled() or task.exception() is not None
        found: Found = [None] * len(runs) if failed else task.result()
        for run, entries in zip(runs, found, strict=True):
            key = key_of(run, stream_id)
            del self._bundled[key]
            if entries is None:
                self._asked_for(key)
            elif key not in self._read:
                self._keep(key, run, entries)

    def _keep(self, key: int, part: Part, entries: list[Entry]) -> None:
        size_bytes = ENTRY_OBJECT_BYTES * len(entries) + (
            # Batches of a block have their own memory; those of a run are views of what was sent.
            sum(len(entry.payload) + 8 * entry.count for entry in entries)
            if isinstance(part, Stretch)
            else part.length
        )
        self._read[key] = Held(size_bytes, packed(entries))
        self.bytes_held += size_bytes
        while self.bytes_held > self._bytes_max and len(self._read) > 1:
            oldest, dropped = self._read.popitem(last=False)
            self._asked_for(oldest)
            self.bytes_held -= dropped.size_bytes

    def _kept(self, key: int, *, is_once: bool) -> list[Entry] | None:
        """Return a part's batches where they are kept; if `is_once`, for their first reader."""
        held = self._read.get(key)
        if held is None:
            return None
        self._read.move_to_end(key)
        if not self._asked_for(key):  # else it was counted as a fetch
            self.hits += 1
        elif is_once:
            self.bytes_held -= self._read.pop(key).size_bytes
        return unpacked(held.batches)

    async def _fetch_part(self, stream_id: int, part: Part) -> list[Entry]:
        backoff = Backoff(self._clock, self._rng, FETCH_BACKOFF_SECS, growth=4)
        for attempt in range(1, FETCH_ATTEMPTS + 1):
            self.fetches += 1
            try:
                if isinstance(part, Stretch):
                    return await self._row_groups.entries(part)
                return await self._fetch_run(stream_id, part)
            except Damaged as damaged:
                # A reply may have been cut short on its way; the object itself is read again.
                if attempt == FETCH_ATTEMPTS:
                    raise
                if self._bounded is not None:
                    self._bounded.forget_copy(damaged.key)
            except BucketUnavailable as error:
                if attempt == FETCH_ATTEMPTS:
                    raise StorageFailed(f"cannot read {error}") from error
            await backoff.pause()
        raise AssertionError("the last attempt returns or raises")

    async def _fetch_bundle(self, stream_id: int, runs: Sequence[Run]) -> Found:
        """Return the batches of each run; None for those that were not had, or not whole."""
        assert self._many is not None
        self.fetches += len(runs)
        keys = [wal_key(*self._epochs.position(run.commit)) for run in runs]
        wanted = [Range(key, run.offset, run.length) for key, run in zip(keys, runs, strict=True)]
        try:
            pieces = await self._many.get_ranges(wanted)
        except BucketError:
            return [None] * len(runs)
        found: Found = []
        for data, key, run in zip(pieces, keys, runs, strict=True):
            try:
                found.append(None if data is None else _check_run(data, key, stream_id, run))
            except Damaged:
                found.append(None)
        return found

    async def _fetch_run(self, stream_id: int, run: Run) -> list[Entry]:
        key = wal_key(*self._epochs.position(run.commit))
        data: bytes | memoryview
        if self._in_memory is not None:
            data = self._in_memory.view(key, run.offset, run.length)
        else:
            data = await self._bucket.get_range(key, run.offset, run.length)
        return _check_run(data, key, stream_id, run)

    async def close(self) -> None:
        """End what is being fetched."""
        tasks: list[asyncio.Task[Any]] = [*self._fetching.values(), *set(self._bundled.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._row_groups.close()


async def _shared(fetching: "asyncio.Task[T]") -> T:
    """Wait for what other readers may wait for too."""
    try:
        return await asyncio.shield(fetching)
    except asyncio.CancelledError:
        reader = asyncio.current_task()
        if fetching.cancelled() and reader is not None and not reader.cancelling():
            raise Unavailable("the node has stopped serving") from None
        raise


def _check_run(data: bytes | memoryview, key: str, stream_id: int, run: Run) -> list[Entry]:
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
