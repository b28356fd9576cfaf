"""Parts of streams fetched from the bucket: each once for all who ask meanwhile, then kept a while.

A *part* is what one request brings: a run of the log, or a block of the history. What was read
ahead and not used yet is bounded apart, because whatever is fetched too early is dropped before it
is asked for, and fetched again.
"""

import asyncio
import random
from collections import OrderedDict
from typing import Final

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff
from bourn.clock import Clock
from bourn.engine.bounded import BoundedBucket
from bourn.engine.complaints import Complaints
from bourn.engine.history import History
from bourn.engine.history_index import Stretch
from bourn.engine.row_groups import RowGroups
from bourn.engine.tail_cache import ENTRY_OBJECT_BYTES
from bourn.errors import BucketUnavailable, Damaged, StorageFailed, Unavailable
from bourn.layout.entry import Entry, decode_run
from bourn.layout.keys import wal_key
from bourn.layout.runs import Run
from bourn.log.epochs import EpochMap
from bourn.settings import EngineSettings

Part = Run | Stretch
PartKey = tuple[int, int]

FETCH_ATTEMPTS: Final = 4
FETCH_BACKOFF_SECS: Final = 0.02


def key_of(part: Part, stream_id: int) -> PartKey:
    """What a part of a stream is known by; a run by its commit and its stream."""
    return part.key if isinstance(part, Stretch) else (part.commit, stream_id)


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
        self._in_memory = bucket.in_memory if isinstance(bucket, BoundedBucket) else None
        self._epochs = epochs
        self._history = history
        self._bytes_max = settings.read_cache_bytes
        self._clock = clock
        self._rng = rng
        self._complaints = Complaints(clock)
        self._row_groups = RowGroups(bucket, history)
        self._read: OrderedDict[PartKey, tuple[int, list[Entry]]] = OrderedDict()
        self._fetching: dict[PartKey, asyncio.Task[list[Entry]]] = {}
        self._unasked: dict[PartKey, int] = {}  # read ahead, and not used yet
        self._unasked_bytes = 0
        self.bytes_held = 0
        self.hits = 0
        self.fetches = 0

    def _asked_for(self, key: PartKey) -> bool:
        """Note that a part is used now, or never will be; returns whether it was read ahead."""
        size_bytes = self._unasked.pop(key, 0)
        self._unasked_bytes -= size_bytes
        return size_bytes > 0

    def _fetch_ahead(self, stream_id: int, part: Part) -> bool:
        """Begin to fetch what nobody has asked for yet; False where there is no room for it."""
        key = key_of(part, stream_id)
        if key not in self._read and key not in self._fetching:
            if self._unasked_bytes + part.length > self._bytes_max // 2:
                return False
            self._unasked[key] = part.length
            self._unasked_bytes += part.length
            self._start_fetch(stream_id, part)
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
        fetching = self._start_fetch(stream_id, part)
        try:
            # Shielded: other readers of the same part wait for the same task.
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            reader = asyncio.current_task()
            if fetching.cancelled() and reader is not None and not reader.cancelling():
                raise Unavailable("the node has stopped serving") from None
            raise

    def _fetched(self, key: PartKey, part: Part, task: asyncio.Task[list[Entry]]) -> None:
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
        entries = task.result()
        size_bytes = ENTRY_OBJECT_BYTES * len(entries) + (
            # Batches of a block have their own memory; those of a run are views of what was sent.
            sum(len(entry.payload) + 8 * entry.count for entry in entries)
            if isinstance(part, Stretch)
            else part.length
        )
        self._read[key] = (size_bytes, entries)
        self.bytes_held += size_bytes
        while self.bytes_held > self._bytes_max and len(self._read) > 1:
            oldest, (dropped, _) = self._read.popitem(last=False)
            self._asked_for(oldest)
            self.bytes_held -= dropped

    async def _fetch_part(self, stream_id: int, part: Part) -> list[Entry]:
        backoff = Backoff(self._clock, self._rng, FETCH_BACKOFF_SECS, growth=4)
        for attempt in range(1, FETCH_ATTEMPTS + 1):
            self.fetches += 1
            try:
                if isinstance(part, Stretch):
                    return await self._row_groups.entries(part)
                return await self._fetch_run(stream_id, part)
            except Damaged:
                # A reply may have been cut short on its way; the object itself is read again.
                if attempt == FETCH_ATTEMPTS:
                    raise
            except BucketUnavailable as error:
                if attempt == FETCH_ATTEMPTS:
                    raise StorageFailed(f"cannot read {error}") from error
            await backoff.pause()
        raise AssertionError("the last attempt returns or raises")

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
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._row_groups.close()


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
