"""Row groups of the history: fetched and decoded once for the blocks of many streams in them.

A large stream has row groups of its own, and those go straight into its batches. Small streams
share one, and are often read together: what they share is kept as columns for a moment.
"""

import asyncio
from collections import OrderedDict

from bourn.bucket.port import Bucket
from bourn.engine.history import History
from bourn.engine.history_index import Segment, Stretch
from bourn.layout.entry import Entry
from bourn.layout.history.index import Block, decode_block, decode_columns, entries_in
from bourn.layout.history.pages import Columns
from bourn.limits import DECODED_INLINE_BYTES_MAX, HISTORY_GROUPS_BYTES

GroupKey = tuple[int, int]  # segment, row group


class RowGroups:
    """Those that are being fetched, and those that were last."""

    def __init__(self, bucket: Bucket, history: History) -> None:
        self._bucket = bucket
        self._history = history
        self._fetching: dict[GroupKey, asyncio.Task[Columns]] = {}
        self._kept: OrderedDict[GroupKey, Columns] = OrderedDict()
        self._bytes_kept = 0

    async def entries(self, stretch: Stretch) -> list[Entry]:
        """Return the batches of a block; raises as the bucket does, and Damaged."""
        segment = stretch.segment
        block = segment.index.block(stretch.place)
        loop = asyncio.get_running_loop()
        if segment.index.row_group(block.row_group).rows == block.count:
            data = await self._fetch(segment, block)
            if len(data) <= DECODED_INLINE_BYTES_MAX:
                return decode_block(segment.index, block, data, segment.key)
            return await loop.run_in_executor(
                None, decode_block, segment.index, block, data, segment.key
            )
        rows = await self._shared(segment, block)
        if block.metered_bytes <= DECODED_INLINE_BYTES_MAX:
            return entries_in(rows, block, segment.key)
        return await loop.run_in_executor(None, entries_in, rows, block, segment.key)

    async def _fetch(self, segment: Segment, block: Block) -> bytes:
        offset, length = segment.index.row_group_range(block)
        self._history.fetches += 1
        data = await self._bucket.get_range(segment.key, offset, length)
        self._history.bytes_fetched += len(data)
        return data

    async def _shared(self, segment: Segment, block: Block) -> Columns:
        key = (segment.number, block.row_group)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        task = self._fetching.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._decoded(segment, block))
            self._fetching[key] = task
            task.add_done_callback(lambda done: self._fetched(key, done))
        # Shielded: whoever gives up does so for itself alone.
        return await asyncio.shield(task)

    async def _decoded(self, segment: Segment, block: Block) -> Columns:
        data = await self._fetch(segment, block)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            None, decode_columns, segment.index, block.row_group, data, segment.key
        )

    def _fetched(self, key: GroupKey, task: "asyncio.Task[Columns]") -> None:
        del self._fetching[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[key] = task.result()
        self._bytes_kept += task.result().nbytes
        while self._bytes_kept > HISTORY_GROUPS_BYTES:
            self._bytes_kept -= self._kept.popitem(last=False)[1].nbytes

    async def close(self) -> None:
        """End what is being fetched."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
