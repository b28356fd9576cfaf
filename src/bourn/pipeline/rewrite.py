"""What runs on executors to write files of the table anew: read, leave out the dead, write.

```
merge   file ─► rows ─► a piece for each part ══ Spark's shuffle ══► part: sorted rows ─► files
retain  file ─► rows ─► file
```

A piece is rows as an Arrow stream: through the shuffle go bytes that nobody looks into. All tasks
may be repeated: a file never changes, and what is written has a name of its own each time.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.errors import BournError, Damaged, ObjectMissing
from bourn.layout.history.delta import Add, SegmentName
from bourn.layout.history.facts import SegmentFacts, facts_of
from bourn.layout.history.index import SegmentIndex, decode_index
from bourn.layout.history.schema import ROWS_SCHEMA
from bourn.layout.history.segment import encode_segment
from bourn.limits import HISTORY_ROW_BYTES, MERGE_PIECE_BYTES
from bourn.pipeline.generations import Cut, classes_of, places_of, weight_of
from bourn.pipeline.job import Note
from bourn.pipeline.living import I64Array, Living, expiry_of, u64_of
from bourn.pipeline.place import Place
from bourn.pipeline.tasks import RETRY_SECS, check_version, nonces, put_segment

_DICTIONARIES: Final = ["basin", "stream", "kind"]
MERGED: Final = 2  # the level of what is merged
TALLIES: Final = 0  # the part that hands them on
FILES_PER_PART: Final = 100  # in names, so that they look distinct; they are anyway


class Tally(NamedTuple):
    """What of a file was kept."""

    path: str
    rows: int
    kept: int
    error: str = ""  # of a kind that another attempt would meet again


Piece = tuple[int, bytes | Tally]  # for which part, and what
Written = SegmentFacts | Tally


class Shuffle(NamedTuple):
    """How the rows of a generation are shared out; goes to every task."""

    first_ordinal: int
    end_ordinal: int
    cuts: list[Cut]


async def read_index(bucket: Bucket, add: Add, retry: Retry) -> SegmentIndex:
    """Return the sidecar of a file."""

    async def fetch() -> SegmentIndex:
        return decode_index(await bucket.get(add.index_key), add.index_key)

    try:
        return await retry(fetch)
    except ObjectMissing as error:
        raise Damaged(error.key, "the table names it, and it cannot be found") from None


async def read_rows(bucket: Bucket, add: Add, retry: Retry) -> pa.Table:
    """Return all rows of a file, every row group checked; Damaged where one is not whole."""
    index = await read_index(bucket, add, retry)
    try:
        rows = await retry(partial(_fetch_rows, bucket, add, index))
    except ObjectMissing as error:
        raise Damaged(error.key, "the table names it, and it cannot be found") from None
    if rows.num_rows != add.tag("rows"):
        raise Damaged(add.key, f"{rows.num_rows} rows, and the table names {add.tag('rows')}")
    return rows


async def _fetch_rows(bucket: Bucket, add: Add, index: SegmentIndex) -> pa.Table:
    data = await bucket.get(add.key)
    view = memoryview(data)
    for number in range(index.row_groups):
        group = index.row_group(number)
        if xxh3_64_intdigest(view[group.offset : group.offset + group.length]) != group.checksum:
            raise Damaged(add.key, f"row group {number} fails its checksum")
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data), read_dictionary=_DICTIONARIES, pre_buffer=False
        )
        return file.read(use_threads=False).select(ROWS_SCHEMA.names)
    except (pa.ArrowException, OSError, ValueError) as error:  # all that pyarrow throws
        raise Damaged(add.key, f"it cannot be read: {error}") from None


def kept_of(rows: pa.Table, living: Living) -> pa.Table:
    """Return the rows that may still be read."""
    alive = living.alive(rows)
    return rows if alive.all() else rows.filter(pa.array(alive))


def pieces_of(rows: pa.Table, cuts: Sequence[Cut]) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of each part that has any, as Arrow streams of a bounded size."""
    places = places_of(cuts, u64_of(rows, "stream_id"), u64_of(rows, "seq_num"))
    ends = np.concatenate(([0], np.cumsum(weights_of(rows))))
    for part, (start, stop) in enumerate(pairwise([0, *places, rows.num_rows])):
        at = start
        while at < stop:
            fits = int(np.searchsorted(ends, ends[at] + MERGE_PIECE_BYTES, "right")) - 1
            end = min(max(at + 1, fits), stop)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows.slice(at, end - at))
            yield part, sink.getvalue().to_pybytes()
            at = end


def weights_of(rows: pa.Table) -> I64Array:
    """Return what each row weighs in memory, about."""
    metered: I64Array = rows.column("metered_bytes").to_numpy().astype(np.int64)
    return metered + HISTORY_ROW_BYTES


async def write_files(
    bucket: Bucket,
    shuffle: Shuffle,
    part: int,
    pieces: Sequence[bytes],
    nonce: int,
    retry: Retry,
) -> list[SegmentFacts]:
    """Write the rows of one part, sorted, in a file for each class of expiry."""
    tables = [pa.ipc.open_stream(piece).read_all() for piece in pieces]
    rows = pa.concat_tables(tables).unify_dictionaries()
    ids, seq_nums = u64_of(rows, "stream_id"), u64_of(rows, "seq_num")
    order = np.lexsort((seq_nums, ids))
    classes = classes_of(
        ids[order],
        expiry_of(rows)[order],
        u64_of(rows, "retention_secs")[order],
        weights_of(rows)[order],
    )
    facts: list[SegmentFacts] = []
    for number in range(int(classes.max()) + 1):
        name = SegmentName(
            shuffle.first_ordinal,
            shuffle.end_ordinal,
            part * FILES_PER_PART + number,
            f"{nonce:016x}",
        )
        taken = rows.take(pa.array(order[classes == number]))
        facts.append(await _write(bucket, name, taken, MERGED, retry))
    return facts


async def rewrite_file(
    bucket: Bucket, add: Add, living: Living, nonce: int, retry: Retry
) -> tuple[Tally, SegmentFacts | None]:
    """Write a file again without its dead rows; None where nothing is left."""
    rows = await read_rows(bucket, add, retry)
    kept = kept_of(rows, living)
    tally = Tally(add.path, rows.num_rows, kept.num_rows)
    if not kept.num_rows:
        return tally, None
    name = SegmentName(add.tag("first_ordinal"), add.tag("end_ordinal"), 0, f"{nonce:016x}")
    return tally, await _write(bucket, name, kept, add.tag("level"), retry)


async def _write(
    bucket: Bucket, name: SegmentName, rows: pa.Table, level: int, retry: Retry
) -> SegmentFacts:
    try:
        segment = encode_segment(rows)
    except ValueError as error:
        raise Damaged(name.key, f"not written: {error}") from error
    await put_segment(bucket, name, segment, retry)
    ids = rows.column("stream_id").to_numpy()
    return facts_of(name, segment, (int(ids.min()), int(ids.max())), level)


# On Spark


def read_partition(
    place: Place, shuffle: Shuffle, living: Callable[[], Living], version: str, note: Note
) -> Callable[[Iterable[Add]], Iterator[Piece]]:
    """Return the function that turns files into pieces, on the executor."""

    def work(adds: Iterable[Add]) -> Iterator[Piece]:
        check_version(version)
        for add in adds:
            try:
                rows = asyncio.run(_with_bucket(place, 0, partial(_read, add)))
            except BournError as error:
                yield TALLIES, Tally(add.path, 0, 0, error.message)
                return
            kept = kept_of(rows, living())
            yield TALLIES, Tally(add.path, rows.num_rows, kept.num_rows)
            yield from pieces_of(kept, shuffle.cuts)
            note(1, weight_of(add), rows.num_rows)

    return work


def write_partition(
    place: Place, shuffle: Shuffle, seed: int
) -> Callable[[Iterable[Piece]], Iterator[Written]]:
    """Return the function that turns the pieces of a part into files, on the executor."""

    def work(pieces: Iterable[Piece]) -> Iterator[Written]:
        part, held = 0, []
        for part, found in pieces:  # noqa: B007  all are of the same part
            if isinstance(found, bytes):
                held.append(found)
            else:
                yield found
        if not held:
            return
        nonce = next(nonces(seed))
        write = partial(_write_part, shuffle, part, held, nonce)
        try:
            yield from asyncio.run(_with_bucket(place, nonce, write))
        except BournError as error:
            yield Tally("", 0, 0, error.message)

    return work


def rewrite_partition(
    place: Place, living: Callable[[], Living], seed: int, version: str, note: Note
) -> Callable[[Iterable[Add]], Iterator[Written]]:
    """Return the function that writes files again, on the executor."""

    def work(adds: Iterable[Add]) -> Iterator[Written]:
        check_version(version)
        for add, nonce in zip(adds, nonces(seed), strict=False):
            rewrite = partial(_rewrite, add, living(), nonce)
            try:
                tally, facts = asyncio.run(_with_bucket(place, nonce, rewrite))
            except BournError as error:
                yield Tally(add.path, 0, 0, error.message)
                return
            yield tally
            if facts is not None:
                yield facts
            note(1, weight_of(add), tally.rows)

    return work


async def _with_bucket(place: Place, seed: int, work: Callable[[Bucket, Retry], Any]) -> Any:
    bucket = place.open()
    try:
        return await work(
            bucket,
            Retry(SystemClock(), random.Random(seed), RETRY_SECS),  # noqa: S311  jitter
        )
    finally:
        await bucket.close()


async def _read(add: Add, bucket: Bucket, retry: Retry) -> pa.Table:
    return await read_rows(bucket, add, retry)


async def _write_part(
    shuffle: Shuffle, part: int, pieces: Sequence[bytes], nonce: int, bucket: Bucket, retry: Retry
) -> list[SegmentFacts]:
    return await write_files(bucket, shuffle, part, pieces, nonce, retry)


async def _rewrite(
    add: Add, living: Living, nonce: int, bucket: Bucket, retry: Retry
) -> tuple[Tally, SegmentFacts | None]:
    return await rewrite_file(bucket, add, living, nonce, retry)
