"""What an export takes: every visible record of some streams at one moment, and where it lies.

    history    ordinals below the table's end        blocks of its segments, by their sidecars
    log        from there to the end of the log      runs of its commits
    hidden     trimmed: by the newest snapshot, and by the commits behind it;  expired: by the rows

The moment is that of the listing of the log: what is durable by then is taken. Of a record that is
both in the log and in the table, the table's end says which of the two counts.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.layout.commit import Commit, decode_commit
from bourn.layout.entry import Entry
from bourn.layout.history.delta import Add, TableState
from bourn.layout.history.index import SegmentIndex, decode_index
from bourn.layout.keys import SNAPSHOT_PREFIX, parse_snapshot_key
from bourn.layout.records import stored_commands
from bourn.layout.snapshot import Snapshot, decode_snapshot
from bourn.limits import (
    EXPORT_FETCHES,
    EXPORT_PART_BYTES,
    EXPORT_PART_BYTES_MIN,
    HISTORY_ROW_BYTES,
    U64_MAX,
)
from bourn.model.record import Trim
from bourn.pipeline.names import StreamNames
from bourn.pipeline.scan import CommitObject, LogScan

EVERYTHING: Final = 1 << 62


class Bounds(NamedTuple):
    """Which records are wanted, by number and by time; the ends are exclusive, None is open."""

    from_seq_num: int = 0
    to_seq_num: int | None = None
    from_timestamp: int = 0
    to_timestamp: int | None = None

    @property
    def last_seq_num(self) -> int:
        """The last one that may be wanted; -1 where none is."""
        return U64_MAX if self.to_seq_num is None else self.to_seq_num - 1

    @property
    def last_timestamp(self) -> int:
        """The last one that may be wanted; -1 where none is."""
        return U64_MAX if self.to_timestamp is None else self.to_timestamp - 1


class Wanted(NamedTuple):
    """Streams, as a person names them: one, those with a prefix, or all of a basin."""

    basin: str
    stream: str = ""
    is_prefix: bool = True

    @property
    def shown(self) -> str:
        """As a person writes it."""
        name = f"{self.stream}{'*' if self.is_prefix else ''}"
        return f"s2://{self.basin}/{name}"

    def takes(self, stream: str) -> bool:
        """Whether a stream of the basin is meant."""
        return stream.startswith(self.stream) if self.is_prefix else stream == self.stream


class Piece(NamedTuple):
    """Consecutive records of one stream in one object: a block of a segment, or a run of a commit.

    `at` is the block's place in its sidecar, or where the run begins; `length` is 0 for a block.
    """

    stream_id: int
    first_seq_num: int
    key: str
    index_key: str
    at: int
    length: int
    weight: int


class PlannedStream(NamedTuple):
    """A stream and what of it is visible."""

    basin: str
    stream: str
    trim_point: int


class PartTask(NamedTuple):
    """What becomes one part."""

    number: int
    pieces: tuple[Piece, ...]
    streams: Mapping[int, PlannedStream]
    bounds: Bounds
    now_ms: int
    weight: int


class ExportPlan(NamedTuple):
    """All of it."""

    tasks: list[PartTask]
    streams: int
    weight: int


class NoSuchStreams(Exception):
    """There is none of that name, or with that prefix."""


class Moved(Exception):
    """The bucket has changed while it was looked at: look again."""


async def make_plan(
    bucket: Bucket,
    retry: Retry,
    table: TableState,
    wanted: Wanted,
    bounds: Bounds,
    now_ms: int,
    tasks: int,
) -> ExportPlan:
    """Look at the bucket; about `tasks` parts, none of them too large. NoSuchStreams, Moved."""
    key, snapshot = await _newest_snapshot(bucket, retry)
    known = snapshot.meta.next_ordinal if snapshot is not None else 0
    scan = LogScan(bucket, retry)
    span = await scan.span(
        min(table.end_ordinal, known), commits_max=EVERYTHING, bytes_max=EVERYTHING
    )
    streams = _streams(await scan.names(span.end), wanted)
    if not streams:
        raise NoSuchStreams
    trims = _trims(snapshot, streams)
    pieces: list[Piece] = []
    adds = list(table.live.values())
    for at in range(0, len(adds), EXPORT_FETCHES):
        some = adds[at : at + EXPORT_FETCHES]
        found = (_blocks(bucket, retry, add, streams, bounds) for add in some)
        pieces += [piece for blocks in await asyncio.gather(*found) for piece in blocks]
    async for commit, content in _commits(bucket, retry, span.commits):
        for location, entries in content.runs:
            if location.stream_id not in streams:
                continue
            if commit.ordinal >= known:
                _note_trims(trims, entries)
            if commit.ordinal >= table.end_ordinal and _is_wanted(
                bounds, entries[-1].end_seq_num, entries[0].first_timestamp, entries
            ):
                weight = sum(entry.metered_bytes + _rows(entry.count) for entry in entries)
                first = entries[0].first_seq_num
                pieces.append(
                    Piece(location.stream_id, first, commit.key, "", *location[1:], weight)
                )
    if (await _newest_snapshot_key(bucket, retry)) != key:
        raise Moved  # commits that the new one covers, and trims in them, may have gone meanwhile
    order = {stream_id: at for at, stream_id in enumerate(sorted(streams, key=streams.__getitem__))}
    pieces.sort(key=lambda piece: (order[piece.stream_id], piece.first_seq_num))
    planned = {
        stream_id: PlannedStream(*names, trims.get(stream_id, 0))
        for stream_id, names in streams.items()
    }
    cuts = _cut(pieces, tasks) or [[]]
    return ExportPlan(
        [_task(n, part, planned, bounds, now_ms) for n, part in enumerate(cuts)],
        len(streams),
        sum(piece.weight for piece in pieces),
    )


def _task(
    number: int,
    pieces: Sequence[Piece],
    planned: Mapping[int, PlannedStream],
    bounds: Bounds,
    now_ms: int,
) -> PartTask:
    own = {piece.stream_id: planned[piece.stream_id] for piece in pieces}
    weight = sum(piece.weight for piece in pieces)
    return PartTask(number, tuple(pieces), own, bounds, now_ms, weight)


def _cut(pieces: Iterable[Piece], tasks: int) -> list[list[Piece]]:
    pieces = list(pieces)
    weight = sum(piece.weight for piece in pieces)
    most = min(max(weight // max(tasks, 1), EXPORT_PART_BYTES_MIN), EXPORT_PART_BYTES)
    parts: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not parts or size + piece.weight // 2 >= most:
            parts.append([])
            size = 0
        parts[-1].append(piece)
        size += piece.weight
    return parts


def _rows(count: int) -> int:
    return count * HISTORY_ROW_BYTES


def _streams(names: StreamNames, wanted: Wanted) -> dict[int, tuple[str, str]]:
    return {
        stream_id: (basin, stream)
        for stream_id, (basin, stream) in names.items()
        if basin == wanted.basin and wanted.takes(stream)
    }


def _trims(snapshot: Snapshot | None, streams: Mapping[int, object]) -> dict[int, int]:
    if snapshot is None:
        return {}
    columns = snapshot.columns
    points = zip(columns.ids.tolist(), columns.trim_points.tolist(), strict=True)
    return {stream_id: point for stream_id, point in points if point and stream_id in streams}


def _note_trims(trims: dict[int, int], entries: Iterable[Entry]) -> None:
    for entry in entries:
        if not entry.has_commands:
            continue
        for index, command in stored_commands(entry.payload, entry.count):
            if isinstance(command, Trim):
                # A trim may take its own record with it, but nothing behind it.
                point = min(command.seq_num, entry.first_seq_num + index + 1)
                trims[entry.stream_id] = max(trims.get(entry.stream_id, 0), point)


def _is_wanted(
    bounds: Bounds, end_seq_num: int, first_timestamp: int, entries: Sequence[Entry]
) -> bool:
    return (
        entries[0].first_seq_num <= bounds.last_seq_num
        and end_seq_num > bounds.from_seq_num
        and first_timestamp <= bounds.last_timestamp
        and entries[-1].last_timestamp >= bounds.from_timestamp
    )


# What lies in the bucket


async def _newest_snapshot_key(bucket: Bucket, retry: Retry) -> str:
    async def listed() -> str:
        keys = [info.key async for info in bucket.list(SNAPSHOT_PREFIX)]
        return max((key for key in keys if parse_snapshot_key(key) is not None), default="")

    return await retry(listed)


async def _newest_snapshot(bucket: Bucket, retry: Retry) -> tuple[str, Snapshot | None]:
    key = await _newest_snapshot_key(bucket, retry)
    if not key:
        return "", None
    data = await retry(partial(bucket.get, key))
    return key, await asyncio.to_thread(decode_snapshot, data, key)


async def _commits(
    bucket: Bucket, retry: Retry, commits: Sequence[CommitObject]
) -> AsyncIterator[tuple[CommitObject, Commit]]:
    for at in range(0, len(commits), EXPORT_FETCHES):
        some = commits[at : at + EXPORT_FETCHES]
        found = await asyncio.gather(*(_commit(bucket, retry, commit.key) for commit in some))
        for commit, content in zip(some, found, strict=True):
            yield commit, content


async def _commit(bucket: Bucket, retry: Retry, key: str) -> Commit:
    async def fetch() -> Commit:
        return decode_commit(await bucket.get(key), key)

    return await retry(fetch)


async def _blocks(
    bucket: Bucket,
    retry: Retry,
    add: Add,
    streams: Mapping[int, object],
    bounds: Bounds,
) -> list[Piece]:
    index = await fetch_index(bucket, retry, add.index_key)
    found: list[Piece] = []
    for stream_id in sorted(set(index.stream_ids.tolist()) & streams.keys()):
        for place in range(*index.span(stream_id)):
            block = index.block(place)
            if (
                block.first_seq_num > bounds.last_seq_num
                or block.last_seq_num < bounds.from_seq_num
                or block.first_timestamp > bounds.last_timestamp
                or block.last_timestamp < bounds.from_timestamp
            ):
                continue
            weight = block.metered_bytes + _rows(block.count)
            found.append(
                Piece(stream_id, block.first_seq_num, add.key, add.index_key, place, 0, weight)
            )
    return found


async def fetch_index(bucket: Bucket, retry: Retry, key: str) -> SegmentIndex:
    """Read a sidecar."""

    async def fetch() -> SegmentIndex:
        return decode_index(await bucket.get(key), key)

    return await retry(fetch)
