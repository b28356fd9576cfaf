"""What was sent and acknowledged, and whether what a reader got is that."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from bourn.model.record import SequencedRecord
from tests.proof.content import Content, trim_point

VIOLATIONS_KEPT = 50


class Known(NamedTuple):
    """What is known of a stream at a moment."""

    generation: int
    acked: int  # records that are surely there
    sent: int  # records that may be there
    is_gone: bool


class StreamLedger:
    """One stream. Only its writer changes it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"stream-{index:05d}"
        self.turn = threading.Lock()  # of who writes, or deletes
        self._known = Known(0, 0, 0, is_gone=False)

    @property
    def known(self) -> Known:
        """What is known now, in one piece."""
        return self._known

    def sends(self, count: int) -> None:
        """So many more may be there from now on."""
        self._known = self._known._replace(sent=self._known.acked + count)

    def settled(self, tail: int) -> None:
        """So many are there, and no more."""
        self._known = self._known._replace(acked=tail, sent=tail)

    def deleted(self) -> None:
        """The stream goes; another of the same name comes."""
        self._known = Known(self._known.generation + 1, 0, 0, is_gone=True)

    def created(self) -> None:
        """It is there, and empty."""
        self._known = self._known._replace(is_gone=False)


class Ledger:
    """All streams of one bucket, and what went wrong."""

    def __init__(self, content: Content, streams: int) -> None:
        self.content = content
        self.streams = [StreamLedger(index) for index in range(streams)]
        self.violations: list[str] = []
        self.records_read = 0
        self.reads = 0
        self._turn = threading.Lock()

    def violated(self, stream: StreamLedger | None, what: str) -> None:
        """Note something that must never be."""
        where = f"{stream.name}: " if stream is not None else ""
        with self._turn:
            if len(self.violations) < VIOLATIONS_KEPT:
                self.violations.append(where + what)

    def count(self, records: int) -> None:
        """Note a read that was looked at."""
        with self._turn:
            self.reads += 1
            self.records_read += records


class Check:
    """One read of one stream: fed with what came, told when it has ended."""

    def __init__(self, ledger: Ledger, stream: StreamLedger, start: int) -> None:
        self._ledger = ledger
        self._stream = stream
        self._before = stream.known
        self._first = start
        self._next = start
        self._skipped: list[tuple[int, int]] = []
        self.records = 0
        self.is_bad = False

    @property
    def next(self) -> int:
        """The record to go on with."""
        return self._next

    def feed(self, records: Sequence[SequencedRecord]) -> None:
        """Look at what came; order and content are judged at once."""
        content, stream = self._ledger.content, self._stream
        generation = self._before.generation
        for found in records:
            seq_num = found.seq_num
            if seq_num < self._next:
                self._bad(f"{seq_num} came where {self._next} was due: repeated, or out of order")
                continue
            if seq_num > self._next:
                self._skipped.append((self._next, seq_num))
            wanted = content.record(stream.index, generation, seq_num)
            if (found.body, tuple(found.headers), found.timestamp) != wanted:
                self._bad(f"{seq_num} is another record than was appended")
            self._next = seq_num + 1
            self.records += 1

    def finish(self, *, at_tail: bool) -> None:
        """Judge what did not come; without `at_tail`, the read was broken off."""
        after = self._stream.known
        if after.generation != self._before.generation or after.is_gone:
            return  # it was deleted meanwhile: whatever came is no promise
        index = self._stream.index
        hidden = trim_point(index, self._before.acked)
        trimmed = trim_point(index, after.sent)
        for start, end in self._skipped:
            if end > max(trimmed, start):
                self._bad(f"[{max(start, trimmed)}, {end}) is missing, and others follow")
            if start == self._first and end < hidden:
                self._bad(f"{end} was trimmed, and is read")
        if not self._skipped and self.records and self._first < hidden:
            self._bad(f"{self._first} was trimmed, and is read")
        if at_tail and self._next < self._before.acked:
            self._bad(f"it ends at {self._next}, and {self._before.acked} were acknowledged")
        if self._next > max(after.sent, self._first):
            self._bad(f"it goes on to {self._next}, and {after.sent} were sent")
        self._ledger.count(self.records)

    def _bad(self, what: str) -> None:
        self.is_bad = True
        self._ledger.violated(self._stream, what)
