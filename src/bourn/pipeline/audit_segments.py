"""What a task of an audit does with a segment: as others read it, and as the server does.

Others go by the Parquet footer, the server by the sidecar. Both must lead to the same bytes, these
to the checksums of the sidecar, and the rows to records that somebody can have appended.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.errors import Damaged, NewerFormat, ObjectMissing
from bourn.layout.history.footer import HEADER_LEAF
from bourn.layout.history.index import Block, SegmentIndex, decode_index
from bourn.layout.history.rows import batches_in
from bourn.pipeline.audit_facts import (
    HISTORY,
    RANGE,
    SUM,
    Facts,
    Findings,
    U64Array,
    hashes_of,
    mixed,
    sum_of,
)
from bourn.pipeline.audit_parquet import (
    Columns,
    chunks_of,
    columns_of,
    fetch_footer,
    fetch_range,
    read_group,
    windows_of,
)

_US_PER_MS: Final = 1000


class SegmentTask(NamedTuple):
    """A file of the table, and what the table's log says of it."""

    source: int
    key: str
    index_key: str
    size_bytes: int
    index_bytes: int
    rows: int
    metered_bytes: int
    stats: str


class SegmentOutcome(NamedTuple):
    """What a task has found. `sums` are of records that are in the log too."""

    findings: Findings
    ranges: bytes = b""
    sums: bytes = b""


Names = Mapping[int, tuple[str, str]]


class SegmentAudit:
    """One task."""

    def __init__(self, task: SegmentTask, names: Names, in_log: Facts) -> None:
        """`in_log` are ranges of the log that the table has too, by stream and number."""
        self._task = task
        self._names = names
        self._in_log = in_log
        self.findings = Findings()
        self._ranges: list[Facts] = []
        self._sums: list[tuple[int, int, int, int, int]] = []
        self._rows = self._metered = 0
        self._before: tuple[int, int, int] | None = None  # stream, number, timestamp of a row
        self._bounds: dict[str, tuple[int, int]] = {}

    async def run(self, bucket: Bucket, retry: Retry) -> SegmentOutcome:
        """Fetch and check it all, a window at a time."""
        task = self._task
        try:
            index = await self._index(bucket, retry)
            footer = await retry(partial(fetch_footer, bucket, task.key, task.size_bytes))
            if index is not None:
                self._check_footer(index, footer)
            for first, end, start, length in windows_of(footer):
                data = await retry(partial(fetch_range, bucket, task.key, start, length))
                for at in range(first, end):
                    self._check_group(index, footer, at, memoryview(data), start)
            self._check_totals()
        except ObjectMissing as missing:
            self.findings.missing.append((missing.key, -1))
        except (Damaged, NewerFormat) as damaged:
            self.findings.add("damaged", task.key, str(damaged))
        self.findings.count("segments")
        ranges = np.concatenate(self._ranges) if self._ranges else np.empty(0, RANGE)
        sums = np.array(self._sums, SUM)
        return SegmentOutcome(self.findings, ranges.tobytes(), sums.tobytes())

    async def _index(self, bucket: Bucket, retry: Retry) -> SegmentIndex | None:
        task = self._task
        try:
            return await retry(partial(_sidecar, bucket, task))
        except (Damaged, NewerFormat) as damaged:
            self.findings.add("damaged", task.index_key, str(damaged))
        except ObjectMissing:
            self.findings.missing.append((task.index_key, -1))
        return None

    def _check_footer(self, index: SegmentIndex, footer: pq.FileMetaData) -> None:
        """Both ways must lead to the same bytes."""
        groups = index.row_groups
        if groups != footer.num_row_groups:
            self.findings.add(
                "disagree",
                self._task.index_key,
                f"it has {groups} row groups, the segment {footer.num_row_groups}",
            )
            return
        for at in range(groups):
            said, found = index.row_group(at), footer.row_group(at)
            offset, ends = chunks_of(found)
            values = found.column(HEADER_LEAF).num_values
            if (said.offset, said.chunk_ends, said.rows, said.header_values) != (
                offset,
                ends,
                found.num_rows,
                values,
            ):
                self.findings.add(
                    "disagree", self._task.index_key, f"row group {at} is not where it says"
                )

    def _check_group(
        self,
        index: SegmentIndex | None,
        footer: pq.FileMetaData,
        at: int,
        data: memoryview,
        start: int,
    ) -> None:
        task = self._task
        blocks = _blocks_of(index, at)
        offset, ends = chunks_of(footer.row_group(at))
        if index is not None and at < index.row_groups:
            found = data[offset - start : offset - start + ends[-1]]
            if xxh3_64_intdigest(found) != index.row_group(at).checksum:
                block = blocks[0] if blocks else None
                self.findings.add(
                    "damaged",
                    task.key,
                    f"row group {at} fails its checksum",
                    block.stream_id if block else None,
                    block.first_seq_num if block else None,
                )
                self._take_from_index(blocks)
                return
        self.findings.count("history bytes", ends[-1])
        try:
            rows = read_group(footer, at, data, start)
            columns = columns_of(rows)
            self._check_rows(rows, columns, blocks if index is not None else None)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            self.findings.add("damaged", task.key, f"row group {at} cannot be read: {error}")
            self._take_from_index(blocks)

    def _take_from_index(self, blocks: list[Block]) -> None:
        """Take the sidecar's word for rows that cannot be read: one damage is told once."""
        for block in blocks:
            last = block.last_seq_num
            row = (
                block.stream_id, block.first_seq_num, last + 1, block.first_timestamp,
                block.last_timestamp, 0, 0, 0, 0, self._task.source, block.expires_s, HISTORY,
            )  # fmt: skip
            self._ranges.append(np.array([row], RANGE))
            self._rows += block.count
            self._metered += block.metered_bytes
            self._before = (block.stream_id, last, block.last_timestamp)

    # Rows

    def _check_rows(
        self, rows: pa.RecordBatch, columns: Columns, blocks: list[Block] | None
    ) -> None:
        count = len(columns.stream_ids)
        self._rows += count
        self._metered += int(columns.metered.sum())
        self.findings.count("history records", count)
        if not count:
            return
        self._check_order(columns)
        self._note_bounds(columns)
        is_new = columns.stream_ids[1:] != columns.stream_ids[:-1]
        starts = np.concatenate(([0], np.flatnonzero(is_new) + 1, [count])).tolist()
        if blocks is not None:
            self._check_blocks(columns, starts, blocks)
        for first, end in itertools.pairwise(starts):
            self._check_stream(rows.slice(first, end - first), columns, first, end)
        self._note_ranges(columns)

    def _check_order(self, columns: Columns) -> None:
        """Rows ascend by stream and number, timestamps by stream, within and across row groups."""
        ids, numbers, stamps = columns.stream_ids, columns.seq_nums, columns.stamps
        if self._before is not None:
            before = self._before
            ids = np.concatenate((np.array(before[:1], np.uint64), ids))
            numbers = np.concatenate((np.array(before[1:2], np.uint64), numbers))
            stamps = np.concatenate((np.array(before[2:], np.uint64), stamps))
        same = ids[1:] == ids[:-1]
        wrong = (ids[1:] < ids[:-1]) | same & (numbers[1:] <= numbers[:-1])
        for at in np.flatnonzero(wrong)[:1].tolist():
            self._add("order", "rows are not in the order of streams and numbers", ids, numbers, at)
        falls = same & (stamps[1:] < stamps[:-1])
        for at in np.flatnonzero(falls)[:1].tolist():
            what = f"timestamp {int(stamps[at + 1])} comes after {int(stamps[at])}"
            self._add("order", what, ids, numbers, at)
        self._before = (int(ids[-1]), int(numbers[-1]), int(stamps[-1]))

    def _add(self, kind: str, what: str, ids: U64Array, numbers: U64Array, at: int) -> None:
        self.findings.add(kind, self._task.key, what, int(ids[at + 1]), int(numbers[at + 1]))

    def _check_blocks(self, columns: Columns, starts: list[int], blocks: list[Block]) -> None:
        found = [
            (
                int(columns.stream_ids[first]),
                int(columns.seq_nums[first]),
                int(columns.seq_nums[end - 1]),
                int(columns.stamps[first]),
                int(columns.stamps[end - 1]),
                first,
                end - first,
                int(columns.metered[first:end].sum()),
                int(columns.expires_s[first:end].max()),
            )
            for first, end in itertools.pairwise(starts)
        ]
        said = [(*block[:5], *block[6:]) for block in blocks]
        if found == said:
            return
        for have, want in zip(found, said, strict=False):
            if have != want:
                names = ("stream_id", *Block._fields[1:5], *Block._fields[6:])
                differ = [
                    f"{name} {right}, the rows say {left}"
                    for name, left, right in zip(names, have, want, strict=True)
                    if left != right
                ]
                self.findings.add(
                    "disagree", self._task.index_key, f"it says {'; '.join(differ)}", *have[:2]
                )
                return
        self.findings.add(
            "disagree", self._task.index_key, f"it has {len(said)} streams, the rows {len(found)}"
        )

    def _check_stream(self, rows: pa.RecordBatch, columns: Columns, first: int, end: int) -> None:
        """Look at the rows of one stream in a row group."""
        stream_id, seq_num = int(columns.stream_ids[first]), int(columns.seq_nums[first])
        name = self._names.get(stream_id)
        if name is not None:
            for column, wanted in zip(("basin", "stream"), name, strict=True):
                others = set(rows.column(column).cast(pa.string()).unique().to_pylist()) - {wanted}
                if others:
                    what = f"rows of the stream have another {column} than its own"
                    self.findings.add("disagree", self._task.key, what, stream_id, seq_num)
        try:
            entries = batches_in(rows, stream_id)
        except ValueError as error:
            self.findings.add("damaged", self._task.key, f"no record: {error}", stream_id, seq_num)
            return
        overlaps = list(self._overlaps(stream_id, columns.seq_nums[first:end]))
        if not overlaps:
            return
        values = mixed(
            hashes_of(entries),
            columns.seq_nums[first:end],
            columns.stamps[first:end],
            columns.arrivals_us[first:end].astype(np.uint64) // np.uint64(_US_PER_MS),
            columns.retentions[first:end],
        )
        numbers = columns.seq_nums[first:end]
        for low, high, source in overlaps:
            first_at, end_at = np.searchsorted(numbers, np.array((low, high), np.uint64)).tolist()
            for start, stop in _pieces(numbers[first_at:end_at]):
                part = values[first_at + start : first_at + stop]
                begin = int(numbers[first_at + start])
                row = (stream_id, begin, begin + stop - start, source, sum_of(part))
                self._sums.append(row)

    def _overlaps(self, stream_id: int, numbers: U64Array) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of the log that some of these records are in."""
        facts = self._in_log
        wanted = np.uint64(stream_id)
        low, high = (
            facts["stream_id"].searchsorted(wanted),
            facts["stream_id"].searchsorted(wanted, "right"),
        )
        mine = facts[low:high]
        start = int(mine["end"].searchsorted(numbers[0], "right"))
        stop = int(mine["first"].searchsorted(numbers[-1], "right"))
        for row in mine[start:stop]:
            yield int(row["first"]), int(row["end"]), int(row["source"])

    def _note_ranges(self, columns: Columns) -> None:
        ids, numbers = columns.stream_ids, columns.seq_nums
        breaks = (ids[1:] != ids[:-1]) | (numbers[1:] != numbers[:-1] + np.uint64(1))
        firsts = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(breaks) + 1))
        lasts = np.append(firsts[1:] - 1, len(ids) - 1)
        arrivals_ms = columns.arrivals_us.astype(np.uint64) // np.uint64(_US_PER_MS)
        found = np.zeros(len(firsts), RANGE)
        found["stream_id"] = ids[firsts]
        found["first"] = numbers[firsts]
        found["end"] = numbers[lasts] + np.uint64(1)
        found["first_stamp"] = columns.stamps[firsts]
        found["last_stamp"] = columns.stamps[lasts]
        found["first_arrival_ms"] = arrivals_ms[firsts]
        found["last_arrival_ms"] = arrivals_ms[lasts]
        found["first_retention"] = columns.retentions[firsts]
        found["last_retention"] = columns.retentions[lasts]
        found["source"] = self._task.source
        found["expires_s"] = np.maximum.reduceat(columns.expires_s, firsts)
        found["where"] = HISTORY
        self._ranges.append(found)

    # What the table's log says

    def _note_bounds(self, columns: Columns) -> None:
        for name, values in (
            ("stream_id", columns.stream_ids),
            ("seq_num", columns.seq_nums),
            ("timestamp", columns.stamps),
        ):
            signed = values.view(np.int64)
            least, greatest = int(signed.min()), int(signed.max())
            if name in self._bounds:
                least = min(least, self._bounds[name][0])
                greatest = max(greatest, self._bounds[name][1])
            self._bounds[name] = (least, greatest)

    def _check_totals(self) -> None:
        task = self._task
        for what, said, found in (
            ("records", task.rows, self._rows),
            ("metered bytes", task.metered_bytes, self._metered),
        ):
            if said != found:
                self.findings.add(
                    "disagree", task.key, f"the table's log says {said} {what}, it has {found}"
                )
        try:
            stats = json.loads(task.stats or "{}")
            least, greatest = stats.get("minValues", {}), stats.get("maxValues", {})
            for name, (low, high) in self._bounds.items():
                if least.get(name, low) > low or greatest.get(name, high) < high:
                    self.findings.add(
                        "disagree", task.key, f"the table's log says other bounds of {name}"
                    )
        except (ValueError, AttributeError, TypeError):
            self.findings.add("damaged", task.key, "the table's log has no statistics of it")


def _pieces(numbers: U64Array) -> Iterator[tuple[int, int]]:
    """Yield where consecutive numbers begin and end."""
    if not len(numbers):
        return
    breaks = (np.flatnonzero(numbers[1:] != numbers[:-1] + np.uint64(1)) + 1).tolist()
    bounds = [0, *breaks, len(numbers)]
    yield from itertools.pairwise(bounds)


def _blocks_of(index: SegmentIndex | None, group: int) -> list[Block]:
    if index is None:
        return []
    return [index.block(place) for place in index.places_in(group)]


async def _sidecar(bucket: Bucket, task: SegmentTask) -> SegmentIndex:
    data = await bucket.get(task.index_key)
    if len(data) != task.index_bytes:
        raise Damaged(task.index_key, f"{len(data)} bytes where {task.index_bytes} were written")
    return decode_index(data, task.index_key)
