"""export, from an endpoint: for any S2 server, and for encrypted streams, whose key it is given.

Streams are read side by side, each from where it begins to where it ended when the export began:
neighbours by name one after the other, in groups, whose parts are `part-{group:06d}-{number:06d}`.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bourn.bucket.port import Bucket
from bourn.client import Client, ReadStart, Unwritten
from bourn.clock import Clock
from bourn.layout.arrow import Columns
from bourn.limits import EXPORT_PART_BYTES, IMPORT_STREAMS
from bourn.pipeline.export import StreamsMissing
from bourn.pipeline.export_format import KINDS, ROWS_SCHEMA, SCHEMA, encode_part
from bourn.pipeline.export_plan import Bounds, Wanted
from bourn.pipeline.export_target import ExportReport, ExportTarget, Part
from bourn.pipeline.load_stream import command_mask

Connect = Callable[[], Client]
Note = Callable[[int, int], None]  # records and bytes that are there

GROUPS_PER_THREAD: Final = 8
_KIND_NAMES: Final = pa.array(["envelope", "command"], pa.string())


class _Range(NamedTuple):
    """A stream, and where it ends."""

    stream: str
    end_seq_num: int


class EndpointExport:
    """One export from an endpoint."""

    def __init__(self, connect: Connect, target: ExportTarget, clock: Clock, note: Note) -> None:
        self._connect = connect
        self._target = target
        self._clock = clock
        self._note = note

    async def run(self, wanted: Wanted, bounds: Bounds) -> ExportReport:
        """Write it whole, or raise and leave nothing."""
        began = self._clock.monotonic()
        try:
            ranges = await asyncio.to_thread(self._ranges, wanted)
            bucket = await self._target.begin()
            parts = await self._written(bucket, wanted.basin, ranges, bounds)
            await self._target.finish(parts)
        finally:
            await self._target.close()
        return ExportReport(
            to=self._target.place.uri,
            format=self._target.format,
            streams=len(ranges),
            records=sum(part.rows for part in parts),
            metered_bytes=sum(part.metered_bytes for part in parts),
            parts=len(parts),
            part_bytes=sum(part.size_bytes for part in parts),
            secs=round(self._clock.monotonic() - began, 3),
        )

    def _ranges(self, wanted: Wanted) -> list[_Range]:
        with self._connect() as client:
            names = [
                info.name
                for info in client.list_streams(wanted.stream)
                if info.deleted_at is None and wanted.takes(info.name)
            ]
            if not names:
                raise StreamsMissing(f"there is no stream {wanted.shown}")
            return [_Range(name, client.check_tail(name).seq_num) for name in names]

    async def _written(
        self, bucket: Bucket, basin: str, ranges: list[_Range], bounds: Bounds
    ) -> list[Part]:
        loop = asyncio.get_running_loop()

        def put(name: str, data: bytes) -> None:
            self._target.expect([name])
            asyncio.run_coroutine_threadsafe(bucket.put(name, data), loop).result()

        def write(number: int, group: list[_Range]) -> list[Part]:
            with self._connect() as client:
                rows = chain.from_iterable(_rows_of(client, basin, own, bounds) for own in group)
                return [self._part(put, number, n, table) for n, table in enumerate(_tables(rows))]

        with ThreadPoolExecutor(IMPORT_STREAMS, "bourn-export") as pool:
            work = [
                loop.run_in_executor(pool, partial(write, number, group))
                for number, group in enumerate(_groups(ranges))
            ]
            try:
                found = await asyncio.gather(*work)
            except BaseException:
                for one in work:
                    one.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                raise
        parts = [part for parts in found for part in parts]
        if not parts:
            empty = pa.Table.from_batches([], ROWS_SCHEMA)
            parts = [await asyncio.to_thread(self._part, put, 0, 0, empty)]
        return parts

    def _part(
        self, put: Callable[[str, bytes], None], group: int, number: int, rows: pa.Table
    ) -> Part:
        suffix = "jsonl" if self._target.format == "jsonl" else "parquet"
        name = f"part-{group:06d}-{number:06d}.{suffix}"
        data = encode_part(rows.unify_dictionaries(), self._target.format)
        put(name, data)
        metered = sum(int(chunk.to_numpy().sum()) for chunk in rows.column("metered_bytes").chunks)
        self._note(rows.num_rows, metered)
        return Part(name, rows.num_rows, metered, len(data))


def _groups(ranges: list[_Range]) -> list[list[_Range]]:
    """Cut a list into parts of neighbours: some for each thread, so that none works alone."""
    size = -(-len(ranges) // (GROUPS_PER_THREAD * IMPORT_STREAMS))
    return [ranges[at : at + size] for at in range(0, len(ranges), size)]


def _rows_of(client: Client, basin: str, own: _Range, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    end = min(own.end_seq_num, bounds.last_seq_num + 1)
    if bounds.from_seq_num >= end or bounds.from_timestamp > bounds.last_timestamp:
        return
    by_number = bounds.from_seq_num or not bounds.from_timestamp
    session = client.read_session(
        own.stream,
        ReadStart(seq_num=bounds.from_seq_num)
        if by_number
        else ReadStart(timestamp=bounds.from_timestamp),
        columns=Columns(metered_bytes=True),
        end_seq_num=end,
        until=bounds.to_timestamp,
    )
    names = {"basin": basin, "stream": own.stream}
    try:
        for batch in session:
            yield _named(_from(batch, bounds.from_timestamp if by_number else 0), names)
    except Unwritten:
        return  # nothing is there yet
    finally:
        session.close()


def _from(batch: pa.RecordBatch, timestamp: int) -> pa.RecordBatch:
    stamps = batch.column("timestamp").to_numpy().view(np.uint64)
    first = int(np.searchsorted(stamps, np.uint64(timestamp)))
    return batch.slice(first)


def _named(batch: pa.RecordBatch, names: dict[str, str]) -> pa.RecordBatch:
    """Return a batch with the columns of an export."""
    columns: dict[str, pa.Array[Any]] = {
        name: batch.column(name) for name in ("seq_num", "timestamp", "body", "metered_bytes")
    }
    columns["headers"] = batch.column("headers").cast(SCHEMA.field("headers").type)
    kinds = command_mask(batch.column("headers")).astype(np.int8)
    columns["kind"] = pa.DictionaryArray.from_arrays(kinds, _KIND_NAMES).cast(KINDS)
    for column, name in names.items():
        columns[column] = pa.DictionaryArray.from_arrays(
            np.zeros(batch.num_rows, np.int32), pa.array([name], pa.string())
        )
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in ROWS_SCHEMA.names], schema=ROWS_SCHEMA
    )


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= EXPORT_PART_BYTES:
            yield pa.Table.from_batches(some, ROWS_SCHEMA)
            some, size = [], 0
    if some:
        yield pa.Table.from_batches(some, ROWS_SCHEMA)
