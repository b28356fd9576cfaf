"""Counting what leaves no trace in the log: reads, sessions, calls of the control plane.

Counts wait in memory and go into the log as `CountUsage` changes, every half minute at most and at
a graceful stop. A flush whose fate is unknown is remembered until the log has been read again: its
number tells whether it is there. So a killed process loses what was not flushed, and nothing else
loses or repeats anything.
"""

import logging
from typing import Final

from bourn.catalog.changes import CountUsage
from bourn.catalog.usage import MINUTE_MS, UsageLine, UsageTable
from bourn.clock import Clock
from bourn.engine.metering import BasinSize, StreamSize
from bourn.engine.stream import Stream
from bourn.engine.term import Term
from bourn.limits import USAGE_LINES_MAX, USAGE_PENDING_MAX
from bourn.model.usage import METERED_BYTES, STREAMING, UNARY, UsageSet

log = logging.getLogger(__name__)

MINUTES_CAUGHT_UP_MAX: Final = 60  # of sessions, where nobody counted for long: it slept

_READ_OPS: Final = UsageSet.READ_OPS.value
_READ_THROUGHPUT: Final = UsageSet.READ_THROUGHPUT.value

Counts = dict[tuple[int, str], int]  # by minute and label


class Meter:
    """The counts of a node that are not in the log yet. It outlives the node's terms."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[tuple[str, str], Counts] = {}  # by basin and set
        self._size = 0
        self._in_flight: list[tuple[int, list[UsageLine]]] = []  # by number, ascending
        self._sessions: dict[str, int] = {}  # read sessions under way, by basin
        self._minute = 0  # up to which their minutes are counted
        self.lost = 0  # counts for which there was no room

    # Counting

    def count(self, basin: str, of: UsageSet, label: str, value: int = 1) -> None:
        """Count something that has just happened."""
        self._add(self._clock.now_ms() // MINUTE_MS, basin, of.value, label, value)

    def read_unary(self, basin: str, metered_bytes: int) -> None:
        """Count a read that was answered, and what it delivered."""
        minute = self._clock.now_ms() // MINUTE_MS
        self._add(minute, basin, _READ_OPS, UNARY, 1)
        if metered_bytes:
            self._add(minute, basin, _READ_THROUGHPUT, METERED_BYTES, metered_bytes)

    def delivered(self, basin: str, metered_bytes: int) -> None:
        """Count bytes that were handed to a reader's connection."""
        if metered_bytes:
            self.count(basin, UsageSet.READ_THROUGHPUT, METERED_BYTES, metered_bytes)

    def session_opened(self, basin: str) -> None:
        """Count a read session for each minute that sees it open, this one included."""
        self._catch_up()
        self._sessions[basin] = self._sessions.get(basin, 0) + 1
        self.count(basin, UsageSet.READ_OPS, STREAMING)

    def session_closed(self, basin: str) -> None:
        """Count a read session no more."""
        self._catch_up()
        self._sessions[basin] -= 1
        if not self._sessions[basin]:
            del self._sessions[basin]

    def pending(self, basin: str, of: UsageSet) -> list[tuple[int, str, int]]:
        """Return what is not in the log, nor on its way: minutes, labels, values."""
        self._catch_up()
        counts = self._pending.get((basin, of.value), {})
        return [(minute, label, value) for (minute, label), value in counts.items()]

    # The log

    async def flush(self, term: Term, *, with_sizes: bool = True) -> None:
        """Let everything pending join the log; returns when it is durable.

        Sizes can be left out: a start finds them by itself, though not when they changed.
        """
        changes = self._taken(term, with_sizes=with_sizes)
        self._in_flight += [(change.number, change.lines) for change in changes]
        for change in changes:
            term.apply(change)
        if changes:
            await term.settled()
            last = changes[-1].number
            self._in_flight = [flight for flight in self._in_flight if flight[0] > last]

    def resume(self, table: UsageTable) -> None:
        """Go on in a new term, whose log tells which flushes have arrived."""
        for number, lines in self._in_flight:
            if number > table.flushed:
                for line in lines:
                    self._add(line.minute, line.basin, line.set, line.label, line.value)
        self._in_flight.clear()

    def _taken(self, term: Term, *, with_sizes: bool) -> list[CountUsage]:
        """Take everything pending, and the sizes that have changed, in changes of bounded size."""
        metering = term.state.metering

        def size_of(stream_id: int) -> int | None:
            stream: Stream | None = term.state.streams.by_id(stream_id)
            if stream is None:
                return None
            return term.state.stored_bytes(stream, self._clock.now_ms())

        self._catch_up()
        lines = [
            UsageLine(minute, basin, of, label, value)
            for (basin, of), counts in self._pending.items()
            for (minute, label), value in counts.items()
        ]
        self._pending = {}
        self._size = 0
        basins: list[BasinSize] = []
        streams: list[StreamSize] = []
        if with_sizes:
            basins, streams = metering.changed_sizes(self._clock.now_ms(), size_of)
        size = USAGE_LINES_MAX
        starts = range(0, max(len(lines), len(basins), len(streams)), size)
        return [
            CountUsage(
                number, lines[at : at + size], basins[at : at + size], streams[at : at + size]
            )
            for number, at in enumerate(starts, metering.table.flushed + 1)
        ]

    def _add(self, minute: int, basin: str, of: str, label: str, value: int) -> None:
        counts = self._pending.get((basin, of))
        if counts is None:
            counts = self._pending[basin, of] = {}
        found = counts.get((minute, label))
        if found is not None:
            counts[minute, label] = found + value
            return
        if self._size >= USAGE_PENDING_MAX:
            self._merge_minutes()
        if self._size >= USAGE_PENDING_MAX:
            self.lost += value
            log.warning("no room to count usage: %d counts are lost so far", self.lost)
            return
        counts = self._pending[basin, of]
        self._size += (minute, label) not in counts
        counts[minute, label] = counts.get((minute, label), 0) + value

    def _merge_minutes(self) -> None:
        """The log has been out of reach for long: keep totals, by the hour."""
        self._size = 0
        for place, counts in self._pending.items():
            merged: Counts = {}
            for (minute, label), value in counts.items():
                key = (minute // 60 * 60, label)
                merged[key] = merged.get(key, 0) + value
            self._pending[place] = merged
            self._size += len(merged)

    def _catch_up(self) -> None:
        """Count the sessions under way for each minute that has begun since the last time."""
        now = self._clock.now_ms() // MINUTE_MS
        if self._sessions:
            first = max(self._minute + 1, now - MINUTES_CAUGHT_UP_MAX + 1)
            for minute in range(first, now + 1):
                for basin, sessions in self._sessions.items():
                    self._add(minute, basin, UsageSet.READ_OPS.value, STREAMING, sessions)
        self._minute = now
