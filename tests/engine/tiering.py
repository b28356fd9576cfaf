"""A pipeline without Spark for the engine's tests: the log into the table, files merged, rows gone.

It goes by the pipeline's own rules: one version for each change, create-only; merged files replace
whole neighbours; rows are dropped only where nobody can see them any more.
"""

import io
import random
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bourn.bucket.delta_log import read_table
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock, SystemClock
from bourn.engine.node import Node
from bourn.layout.history.delta import Add, SegmentName, TableState
from bourn.layout.history.facts import add_of, facts_of, remove_of
from bourn.layout.history.segment import encode_segment
from bourn.pipeline.scan import LogScan
from bourn.pipeline.table import HistoryTable, TableChange
from bourn.pipeline.tasks import TierRun, write_segment

Keeps = Callable[[pa.Table], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]


class Pipeline:
    """Works on a bucket when told to; `rng` names its files."""

    def __init__(self, bucket: Bucket, clock: Clock, rng: random.Random) -> None:
        self.bucket = bucket
        self._clock = clock
        self._rng = rng
        self._retry = Retry(SystemClock(), rng, 5.0)
        self._scan = LogScan(bucket, self._retry)
        self.table = HistoryTable(bucket, clock, rng, self._retry)

    async def tier(self, commits_per_file: int = 1000, commits_max: int = 1 << 16) -> TableState:
        """Bring the table up to where the log is, or by so many commits only."""
        state = await self.table.refresh()
        span = await self._scan.span(state.end_ordinal, commits_max=commits_max, bytes_max=1 << 40)
        if span.end == span.first:
            return state
        names = await self._scan.names(span.end)
        adds: list[Add] = []
        first = span.first
        for at in range(0, len(span.commits), commits_per_file):
            commits = span.commits[at : at + commits_per_file]
            is_last = at + commits_per_file >= len(span.commits)
            end = span.end if is_last else span.commits[at + commits_per_file].ordinal
            run = TierRun(first, end, tuple(commit.key for commit in commits), 0)
            nonce = self._rng.getrandbits(64)
            facts = await write_segment(self.bucket, run, names, nonce, self._retry)
            if facts is not None:
                adds.append(add_of(facts, self._clock.now_ms()))
            first = end
        return await self.table.commit(
            TableChange("TIER", adds, first_ordinal=span.first, end_ordinal=span.end)
        )

    async def rewrite(
        self, adds: Sequence[Add], keeps: Keeps | None = None, *, parts: int = 1
    ) -> TableState:
        """Replace files by others with their rows, or with those of them that are kept.

        The new ones are cut between streams, `parts` of them at most.
        """
        tables = [pq.read_table(io.BytesIO(await self.bucket.get(add.key))) for add in adds]
        rows = pa.concat_tables(tables).sort_by(
            [("stream_id", "ascending"), ("seq_num", "ascending")]
        )
        if keeps is not None:
            rows = rows.filter(pa.array(keeps(rows)))
        now_ms = self._clock.now_ms()
        names = [
            SegmentName(add.tag("first_ordinal"), add.tag("end_ordinal"), 0, "") for add in adds
        ]
        made = []
        for part, piece in enumerate(_cut(rows, parts)):
            name = SegmentName(
                min(name.first_ordinal for name in names),
                max(name.end_ordinal for name in names),
                part,
                f"{self._rng.getrandbits(64):016x}",
            )
            segment = encode_segment(piece)
            await self.bucket.put_if_absent(name.key, segment.parquet)
            await self.bucket.put_if_absent(name.index_key, segment.index)
            ids = piece.column("stream_id").to_numpy()
            facts = facts_of(name, segment, (int(ids.min()), int(ids.max())), level=2)
            made.append(add_of(facts, now_ms, data_change=False))
        removes = [remove_of(add, now_ms, data_change=False) for add in adds]
        return await self.table.commit(TableChange("REWRITE", made, removes))

    async def merge(self, *, parts: int = 1) -> TableState:
        """Make all files one, or a few."""
        live = list((await self.table.refresh()).live.values())
        return await self.rewrite(live, parts=parts) if len(live) > 1 else self.table.state

    async def unnamed(self) -> list[str]:
        """Every file that the newest version does not name."""
        state = await self.table.refresh()
        named = {add.key for add in state.live.values()}
        named |= {add.index_key for add in state.live.values()}
        return [
            info.key
            async for info in self.bucket.list("history/")
            if not info.key.startswith("history/_delta_log/") and info.key not in named
        ]

    async def vacuum(self) -> None:
        """Delete what the newest version does not name, whoever may still read it."""
        for key in await self.unnamed():
            await self.bucket.delete(key)


def _cut(rows: pa.Table, parts: int) -> list[pa.Table]:
    if not rows.num_rows:
        return []
    ids = rows.column("stream_id").to_numpy()
    starts = np.flatnonzero(np.append([True], ids[1:] != ids[:-1]))
    chosen = starts[:: -(-len(starts) // parts)].tolist()
    ends = [*chosen[1:], rows.num_rows]
    return [rows.slice(at, end - at) for at, end in zip(chosen, ends, strict=True)]


async def adopt(node: Node) -> None:
    """Have the node take the newest version now, as its next poll would."""
    await node.housekeeping.follow_history()


async def live_files(bucket: Bucket) -> list[Add]:
    return list((await read_table(bucket)).live.values())
