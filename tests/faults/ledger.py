"""What was attempted, promised and seen, stream by stream; and what of it was not kept.

The first record of a batch says its number, so that every batch is known again wherever it is
found. A batch is *acked*, or *never* (refused: it must not be anywhere), or *unknown* (its answer
got lost: there, whole, or not at all).
"""

import copy
import enum
import re
from collections.abc import Callable, Sequence

import msgspec

from bourn.errors import (
    FencingTokenMismatch,
    RequestError,
    ResourceError,
    SeqNumMismatch,
    ServerDraining,
)
from bourn.model.record import (
    AppendAck,
    Fence,
    Headers,
    Record,
    SequencedRecord,
    Trim,
    command_of,
)

Fact = tuple[Headers, bytes]
SHOWN_BYTES = 20

_NAME = re.compile(rb"(\d+)\.(\d+)\.(\d+)[ ]")


class Fate(enum.Enum):
    """What its client knows of a batch."""

    OPEN = "open"
    ACKED = "acked"
    NEVER = "never"
    UNKNOWN = "unknown"


class Batch(msgspec.Struct, eq=False):
    """A batch as it was submitted."""

    number: int
    stream: str
    source: int  # who submitted it: one source submits one after the other
    pipelined: bool  # the source did not wait for acks: what is there of it is a prefix
    records: tuple[Record, ...]
    match_seq_num: int | None
    fencing_token: str | None
    fate: Fate = Fate.OPEN
    start: int | None = None

    @property
    def facts(self) -> list[Fact]:
        return [(record.headers, record.body) for record in self.records]

    def trims(self, start: int) -> list[int]:
        """The trim points that it sets if it stands at `start`."""
        return [
            min(command.seq_num, start + index + 1)
            for index, record in enumerate(self.records)
            if isinstance(command := command_of(record.headers, record.body), Trim)
        ]


class StreamBook:
    """One stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: dict[int, Batch] = {}
        self.facts: dict[int, Fact] = {}  # by sequence number: acked, or seen by a reader
        self.timestamps: dict[int, int] = {}
        self.tail = 0  # the highest that anybody was told
        self.tokens_told: list[str] = []
        self.trimming: list[Batch] = []

    @property
    def trim_points(self) -> tuple[int, int]:
        """The least and the most that may be trimmed by now."""
        least = most = 0
        for batch in self.trimming:
            if batch.fate is Fate.ACKED and batch.start is not None:
                least = max([least, *batch.trims(batch.start)])
            if batch.fate is not Fate.NEVER:
                most = max([most, *batch.trims(2**64)])
        return least, max(least, most)


class Ledger:
    """All streams. `violations` is what was promised and not kept."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self.books: dict[str, StreamBook] = {}
        self.violations: list[str] = []
        self.acked_batches = 0
        self.refused_batches = 0
        self.unknown_batches = 0
        self.records_seen = 0
        self._numbers = 0
        self._sources = 0
        self._last_acked: dict[int, int] = {}  # by source, its newest acked batch

    def go_on_from(self, other: "Ledger") -> None:
        """Know what another ledger knows, as a copy."""
        self.books = copy.deepcopy(other.books)
        self._numbers, self._sources = other._numbers, other._sources

    def book(self, stream: str) -> StreamBook:
        return self.books.setdefault(stream, StreamBook(stream))

    def violated(self, what: str) -> None:
        self.violations.append(what)
        self._note(f"VIOLATION {what}")

    def new_source(self) -> int:
        self._sources += 1
        return self._sources

    # What clients do

    def submitting(
        self,
        stream: str,
        source: int,
        bodies: Sequence[bytes],
        *commands: Record,
        pipelined: bool = False,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> Batch:
        """Number a batch that is about to be submitted; `commands` stand behind its records."""
        self._numbers += 1
        count = len(bodies) + len(commands)
        records = [
            Record(b"%d.%d.%d %b" % (self._numbers, index, count, body))
            for index, body in enumerate(bodies)
        ]
        batch = Batch(
            self._numbers,
            stream,
            source,
            pipelined,
            (*records, *commands),
            match_seq_num,
            fencing_token,
        )
        book = self.book(stream)
        book.batches[batch.number] = batch
        if batch.trims(0):
            book.trimming.append(batch)
        self._note(f"{stream} batch {batch.number} submitted: {match_seq_num} {fencing_token}")
        return batch

    def acked(self, batch: Batch, ack: AppendAck) -> None:
        start, end = ack.start.seq_num, ack.end.seq_num
        self._note(f"{batch.stream} batch {batch.number} acked at {start}")
        say = f"{batch.stream}: batch {batch.number} acked at {start}"
        self.acked_batches += 1
        batch.fate, batch.start = Fate.ACKED, start
        if end - start != len(batch.records):
            self.violated(f"{say} up to {end}, and has {len(batch.records)} records")
        if batch.match_seq_num not in {None, start}:
            self.violated(f"{say}, and {batch.match_seq_num} was its condition")
        if not end <= ack.tail.seq_num or not ack.start.timestamp <= ack.end.timestamp:
            self.violated(f"{say}: the ack contradicts itself: {ack}")
        before = self._last_acked.get(batch.source, 0)
        if before > batch.number:
            self.violated(f"{say} after batch {before}, which was submitted later")
        self._last_acked[batch.source] = batch.number
        book = self.book(batch.stream)
        for index, fact in enumerate(batch.facts):
            self._learn(book, start + index, fact)
        self.told_tail(batch.stream, ack.tail.seq_num)

    def failed(self, batch: Batch, error: Exception) -> None:
        """The append has ended without an ack."""
        self._note(f"{batch.stream} batch {batch.number} failed: {error}")
        if isinstance(error, RequestError | ResourceError | ServerDraining):
            batch.fate = Fate.NEVER
            self.refused_batches += 1
        else:
            batch.fate = Fate.UNKNOWN
            self.unknown_batches += 1
        book = self.book(batch.stream)
        if isinstance(error, SeqNumMismatch):
            self.told_tail(batch.stream, error.next_seq_num)
            if error.next_seq_num == batch.match_seq_num:
                self.violated(f"batch {batch.number} was refused though its condition held")
        elif isinstance(error, FencingTokenMismatch):
            book.tokens_told.append(error.fencing_token)
            if error.fencing_token == batch.fencing_token:
                self.violated(f"batch {batch.number} was refused though it had the token")

    def told_tail(self, stream: str, seq_num: int) -> None:
        """Somebody was told that the stream reaches up to here."""
        book = self.book(stream)
        book.tail = max(book.tail, seq_num)

    def answered_tail(self, stream: str, seq_num: int, floor: int) -> None:
        """A node that leads was asked, when the tail was known to be at `floor` at least."""
        if seq_num < floor:
            self.violated(f"{stream}: the tail went back from {floor} to {seq_num}")
        self.told_tail(stream, seq_num)

    def seen(self, stream: str, records: Sequence[SequencedRecord], first: int | None) -> None:
        """A reader got these; `first` is the one that it had to get next, None if any."""
        book = self.book(stream)
        for record in records:
            if first is not None and record.seq_num != first:
                trimmed = record.seq_num > first and record.seq_num <= book.trim_points[1]
                if not trimmed:
                    self.violated(f"{stream}: {record.seq_num} came where {first} comes next")
            first = record.seq_num + 1
            self.records_seen += 1
            self._known(book, record)
            self._learn(book, record.seq_num, (record.headers, record.body), record.timestamp)
        if records:
            self._note(f"{stream} seen {records[0].seq_num} to {records[-1].seq_num}")
            self.told_tail(stream, records[-1].seq_num + 1)

    def _known(self, book: StreamBook, record: SequencedRecord) -> None:
        name = _NAME.match(record.body)
        if name is None:
            if not (record.headers and not record.headers[0][0]):
                self.violated(f"{book.name}: nobody submitted {record.body[:SHOWN_BYTES]!r}")
            return
        number, index = int(name[1]), int(name[2])
        batch = book.batches.get(number)
        if batch is None or batch.facts[index : index + 1] != [(record.headers, record.body)]:
            body = record.body[:SHOWN_BYTES]
            self.violated(f"{book.name}: nobody submitted {body!r} at {record.seq_num}")
        elif batch.fate is Fate.NEVER:
            self.violated(f"{book.name}: batch {number} was refused and is there")

    def _learn(
        self, book: StreamBook, seq_num: int, fact: Fact, timestamp: int | None = None
    ) -> None:
        if book.facts.setdefault(seq_num, fact) != fact:
            was = book.facts[seq_num][1][:SHOWN_BYTES]
            self.violated(f"{book.name}: {seq_num} was {was!r} and is {fact[1][:SHOWN_BYTES]!r}")
        if timestamp is not None and book.timestamps.setdefault(seq_num, timestamp) != timestamp:
            self.violated(f"{book.name}: the timestamp of {seq_num} has changed")

    # A complete look, with nothing under way

    def check(self, stream: str, records: Sequence[SequencedRecord], tail: int) -> None:
        """Judge everything that a stream holds by everything that is known."""
        book = self.book(stream)
        first = records[0].seq_num if records else tail
        self._note(f"{stream} holds {first} to {tail}")
        if [record.seq_num for record in records] != list(range(first, tail)):
            self.violated(f"{stream}: it is not gapless from {first} to {tail}")
        stamps = [record.timestamp for record in records]
        if stamps != sorted(stamps):
            self.violated(f"{stream}: timestamps go back")
        if tail < book.tail:
            self.violated(f"{stream}: it ends at {tail}; somebody was told {book.tail}")
        least, most = book.trim_points
        if not min(least, tail) <= first <= most:
            self.violated(f"{stream}: it begins at {first}, not from {least} to {most}")
        self.seen(stream, records, None)
        gone = [seq_num for seq_num in book.facts if seq_num >= tail]
        if gone:
            self.violated(f"{stream}: {min(gone)} to {max(gone)} were promised and are not there")
        places = self._places(book, records, first)
        self._check_sources(book, places, first)
        if first == 0:
            self._check_conditions(book, records, places)

    def _places(
        self, book: StreamBook, records: Sequence[SequencedRecord], first: int
    ) -> dict[int, int]:
        """Find each batch, whole, and once; returns where each begins."""
        places: dict[int, int] = {}
        at = 0
        if first:  # a trim may cut a batch
            while at < len(records) and _index_of(records[at]) != 0:
                at += 1
        while at < len(records):
            name = _NAME.match(records[at].body)
            batch = book.batches.get(int(name[1])) if name else None
            if batch is None:
                self.violated(f"{book.name}: no batch begins at {records[at].seq_num}")
                break
            found = [(r.headers, r.body) for r in records[at : at + len(batch.records)]]
            if found != batch.facts:
                self.violated(f"{book.name}: batch {batch.number} is not there as a whole")
                break
            start = records[at].seq_num
            if batch.number in places:
                self.violated(f"{book.name}: batch {batch.number} is there twice")
            if batch.fate is Fate.ACKED and batch.start != start:
                self.violated(
                    f"{book.name}: batch {batch.number} acked at {batch.start}, is at {start}"
                )
            if batch.match_seq_num not in {None, start}:
                self.violated(
                    f"{book.name}: batch {batch.number} is at {start} against its condition"
                )
            places[batch.number] = start
            at += len(found)
        return places

    def _check_sources(self, book: StreamBook, places: dict[int, int], first: int) -> None:
        last: dict[int, int] = {}
        missing: dict[int, int] = {}
        for batch in book.batches.values():
            place = places.get(batch.number)
            if place is None:
                cut = batch.start is not None and batch.start < first
                if batch.fate is Fate.ACKED and not cut:
                    self.violated(f"{book.name}: batch {batch.number} was acked and is not there")
                if batch.pipelined and not first:
                    missing.setdefault(batch.source, batch.number)
                continue
            if place < last.get(batch.source, 0):
                self.violated(f"{book.name}: batch {batch.number} stands before an earlier one")
            last[batch.source] = place
            if batch.source in missing:
                self.violated(
                    f"{book.name}: batch {batch.number} is there, and batch "
                    f"{missing[batch.source]} of the same session before it is not"
                )

    def _check_conditions(
        self, book: StreamBook, records: Sequence[SequencedRecord], places: dict[int, int]
    ) -> None:
        """Every batch in the log had the token of its time; every token told was there once."""
        starts = {start: number for number, start in places.items()}
        token, tokens = "", {""}
        for record in records:
            if record.seq_num in starts:
                wanted = book.batches[starts[record.seq_num]].fencing_token
                if wanted not in {None, token}:
                    self.violated(f"{book.name}: {record.seq_num} stands there without the token")
            command = command_of(record.headers, record.body)
            if isinstance(command, Fence):
                token = command.token
                tokens.add(token)
        for told in book.tokens_told:
            if told not in tokens:
                self.violated(f"{book.name}: token {told!r} was told and never was")


def _index_of(record: SequencedRecord) -> int:
    name = _NAME.match(record.body)
    return int(name[2]) if name else -1
