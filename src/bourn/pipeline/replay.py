"""replay: the records of streams go to other streams, between any two S2 servers.

What a stream holds when the replay begins is copied, in order: bodies, headers, timestamps. One
that was killed is made again just so. Where it goes on, the target's last timestamp says: the first
record of that time in the source is the first of that time in the target, and from there on both
hold the same records; the last one is compared (load_stream). So a source may lose its oldest
records in between, and nothing is read again that was copied long ago.

With a speed, a record goes out as long after the first one as its timestamp is behind that one's,
divided by the speed.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bourn.client import Client, ReadSession, ReadStart, Unwritten
from bourn.clock import Clock
from bourn.limits import IMPORT_STREAMS, REPLAY_STREAMS_PACED
from bourn.pipeline.export import StreamsMissing
from bourn.pipeline.export_plan import Wanted
from bourn.pipeline.load import TransferReport
from bourn.pipeline.load_stream import (
    CopyOptions,
    Note,
    StreamCopy,
    TransferRefused,
    batches_of,
    without_commands,
)

Connect = Callable[[], Client]

EARLY_SECS: Final = 0.002  # what is due so soon goes at once


class Route(NamedTuple):
    """From one stream to another."""

    source: str
    target: str


class _Start(NamedTuple):
    """Where the source is read from, and the target's sequence number of that record."""

    source: ReadStart
    base: int


class Replay:
    """One replay."""

    def __init__(
        self,
        source: Connect,
        target: Connect,
        clock: Clock,
        note: Note,
        *,
        new_timestamps: bool = False,
        speed: float | None = None,
    ) -> None:
        """`speed` is how many times as fast as it happened; None: as fast as it goes."""
        self._source = source
        self._target = target
        self._clock = clock
        self._note = note
        self._new_timestamps = new_timestamps
        self._speed = speed

    def routes(self, wanted: Wanted, to: str | None) -> list[Route]:
        """Return which stream goes where; `to` is the only target, None: streams keep names."""
        with self._source() as client:
            found = [
                info.name
                for info in client.list_streams(wanted.stream)
                if info.deleted_at is None and wanted.takes(info.name)
            ]
        if not found:
            raise StreamsMissing(f"there is no stream {wanted.shown}")
        if to is not None and len(found) > 1:
            raise TransferRefused(f"{len(found)} streams cannot go to one: write --to s2://basin")
        return [Route(name, to if to is not None else name) for name in found]

    def run(self, routes: Sequence[Route]) -> TransferReport:
        """Copy all that is not there yet; raises where that cannot be done."""
        began = self._clock.monotonic()
        paced = min(len(routes), REPLAY_STREAMS_PACED)
        with ThreadPoolExecutor(
            IMPORT_STREAMS if self._speed is None else max(paced, 1), "bourn-replay"
        ) as pool:
            done = list(pool.map(self._copy, routes))
        return TransferReport(
            streams=len(done),
            records=sum(one[0] for one in done),
            skipped=sum(one[1] for one in done),
            commands=sum(one[2] for one in done),
            secs=round(self._clock.monotonic() - began, 3),
        )

    def _copy(self, route: Route) -> tuple[int, int, int]:
        """Copy one stream; returns how many records came, were there, and were left out."""
        commands = 0
        with self._source() as source, self._target() as target:
            end = source.check_tail(route.source).seq_num
            target.ensure_stream(route.target)
            start = self._start(source, target, route)
            options = CopyOptions(start.base, self._new_timestamps)
            copy = StreamCopy(route.target, options, self._clock, self._note)
            session = source.read_session(route.source, start.source, end_seq_num=end)
            try:
                copy.open(target)
                pace = _Pace(self._clock, self._speed)
                for batch in _batches(session):
                    rows = without_commands(batch)
                    commands += batch.num_rows - rows.num_rows
                    pace.push(copy, rows)
                copy.finish()
            finally:
                session.close()
                copy.close()
        return copy.appended, start.base + copy.skipped, commands

    def _start(self, source: Client, target: Client, route: Route) -> _Start:
        tail = target.check_tail(route.target)
        first = source.read(route.source, ReadStart(seq_num=0), 1)
        if not tail.seq_num or self._new_timestamps:
            return _Start(ReadStart(seq_num=0), 0)
        at = ReadStart(timestamp=tail.timestamp)
        if not first or first[0].timestamp > tail.timestamp:
            return _Start(at, tail.seq_num)  # what was copied is no longer in the source
        known = target.read(route.target, at, 1)
        if not known:
            raise TransferRefused(
                f"the last record of stream {route.target} cannot be read, so that nobody can tell "
                "how far the replay has come: name another stream"
            )
        base = known[0].seq_num
        if base and first[0].timestamp == tail.timestamp:
            raise TransferRefused(
                f"stream {route.source} has lost its records up to timestamp {tail.timestamp}, "
                f"where the replay to {route.target} stands: name another stream"
            )
        return _Start(at, base)


def _batches(session: ReadSession) -> Iterator[pa.RecordBatch]:
    with suppress(Unwritten):  # nothing is there yet
        yield from session


class _Pace:
    """Sends records when their time has come."""

    def __init__(self, clock: Clock, speed: float | None) -> None:
        self._clock = clock
        self._speed = speed
        self._began = clock.monotonic()
        self._first: int | None = None

    def push(self, copy: StreamCopy, rows: pa.RecordBatch) -> None:
        """Push all of them, and wait until they are durable."""
        for batch in batches_of(pa.Table.from_batches([rows])):
            if self._speed is None:
                copy.push(batch)
            else:
                self._wait_and_push(copy, batch, self._speed)
        copy.flush(is_last=False)

    def _wait_and_push(self, copy: StreamCopy, rows: pa.RecordBatch, speed: float) -> None:
        stamps = rows.column("timestamp").to_numpy().view(np.uint64)
        if self._first is None:
            self._first, self._began = int(stamps[0]), self._clock.monotonic()
        due = (stamps - np.uint64(self._first)) / (1000.0 * speed)
        at = 0
        while at < len(due):
            passed = self._clock.monotonic() - self._began + EARLY_SECS
            end = max(int(np.searchsorted(due, passed, "right")), at)
            if end > at:
                copy.push(rows.slice(at, end - at))
                copy.flush(is_last=False)
                at = end
            else:
                threading.Event().wait(float(due[at]) - passed + EARLY_SECS)
