"""import: records of files go to streams, through the public API of any S2 server.

    files ─► chunks of some MiB ─► the rows of each stream, side by side ─► durable ─► next chunk

Within a stream the order is that of the files. An import that was killed is made again just so:
every stream tells how far it has come (load_stream).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from bourn.client import Client
from bourn.clock import Clock
from bourn.limits import IMPORT_CHUNK_BYTES, IMPORT_STREAMS
from bourn.pipeline.load_source import Source
from bourn.pipeline.load_stream import (
    ROWS_SCHEMA,
    CopyOptions,
    Note,
    StreamCopy,
    TransferRefused,
    batches_of,
    without_commands,
)

NO_NAME: Final = "the source does not name its streams: write --to s2://basin/stream"

Connect = Callable[[], Client]


class TransferReport(msgspec.Struct, kw_only=True):
    """What an import or a replay has done."""

    streams: int
    records: int  # that were appended
    skipped: int  # that were there already
    commands: int  # that were left out
    secs: float = 0.0


class Load:
    """One import."""

    def __init__(
        self, connect: Connect, options: CopyOptions, clock: Clock, note: Note, *, to: str | None
    ) -> None:
        """`to` is the stream that all goes to; None: each record to the stream that it names."""
        self._connect = connect
        self._options = options
        self._clock = clock
        self._note = note
        self._to = to
        self._copies: dict[str, StreamCopy] = {}
        self._commands = 0
        self._own = threading.local()
        self._clients: list[Client] = []

    def run(self, source: Source) -> TransferReport:
        """Append all that is not there yet; raises where that cannot be done."""
        began = self._clock.monotonic()
        if self._to is not None:
            self._check_one(source)
        try:
            with ThreadPoolExecutor(IMPORT_STREAMS, "bourn-import") as pool:
                for chunk in _chunks(source.tables()):
                    groups = list(self._groups(chunk))
                    list(pool.map(self._push, groups))
                list(pool.map(StreamCopy.finish, list(self._copies.values())))
        finally:
            for copy in self._copies.values():
                copy.close()
            for client in self._clients:
                client.close()
        return TransferReport(
            streams=len(self._copies),
            records=sum(copy.appended for copy in self._copies.values()),
            skipped=sum(copy.skipped for copy in self._copies.values()),
            commands=self._commands,
            secs=round(self._clock.monotonic() - began, 3),
        )

    def _check_one(self, source: Source) -> None:
        streams = source.streams()
        if len(streams) > 1:
            raise TransferRefused(
                f"the source has records of {len(streams)} streams: write --to s2://basin, so that "
                "each goes to its own"
            )

    def _groups(self, chunk: pa.Table) -> Iterator[tuple[StreamCopy, pa.Table]]:
        """Yield the rows of each stream of a chunk; commands are left out."""
        kept = pa.Table.from_batches(map(without_commands, chunk.to_batches()), chunk.schema)
        self._commands += chunk.num_rows - kept.num_rows
        if self._to is not None:
            yield self._copy(self._to), kept
            return
        column: Any = kept.column("stream").unify_dictionaries().combine_chunks()
        if column.null_count:
            raise TransferRefused(NO_NAME)
        codes = column.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        names = column.dictionary.to_pylist()
        for first, end in zip(starts, [*starts[1:], len(order)], strict=True):
            rows = order[first:end]
            is_whole = len(rows) == kept.num_rows
            yield (
                self._copy(names[codes[rows[0]]]),
                kept if is_whole else kept.take(rows),
            )

    def _copy(self, stream: str) -> StreamCopy:
        if stream not in self._copies:
            self._copies[stream] = StreamCopy(stream, self._options, self._clock, self._note)
        return self._copies[stream]

    def _client(self) -> Client:
        """Return the client of this thread: there are fewer of these than streams."""
        client: Client | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = self._connect()
            self._clients.append(client)
        return client

    def _push(self, group: tuple[StreamCopy, pa.Table]) -> None:
        copy, rows = group
        copy.open(self._client())
        for batch in batches_of(rows.select(ROWS_SCHEMA.names)):
            copy.push(batch)
        copy.flush()


def _chunks(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join tables, so that a chunk is worth the connections that it takes."""
    some: list[pa.Table] = []
    size = 0
    for table in tables:
        some.append(table)
        size += table.nbytes
        if size >= IMPORT_CHUNK_BYTES:
            yield _joined(some)
            some, size = [], 0
    if some:
        yield _joined(some)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables)
