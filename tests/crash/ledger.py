"""What the node processes of one bucket have attempted, were promised, and have seen.

    submitted ──► acked, or found by a complete look ──► placed: there for ever
        │
        └──────► refused, or not found once its writer is sealed ──► gone: there never

A writer is sealed as soon as a later one has recovered the bucket; a complete look by that later
one therefore settles the fate of everything that the earlier ones had left open.
"""

import enum
from collections import Counter
from typing import Final, NamedTuple

from tests.crash.content import HASH_BYTES, PIPED, hash_records, make_records, token_number
from tests.crash.events import (
    CATALOG,
    Acked,
    Answered,
    AnyEvent,
    Asked,
    Dropped,
    Dropping,
    Failed,
    Made,
    Making,
    Mark,
    Refused,
    Seen,
    Submitted,
    Trouble,
)

Position = tuple[int, int]  # sequence number, timestamp
Sighting = tuple[int, list[int], bytes]  # first sequence number, timestamps, hashes
SHOWN_MAX: Final = 5  # of the violations in one stream at one look


class Batch(NamedTuple):
    """A batch as it was submitted."""

    process: int
    submitted: Submitted
    hashes: bytes

    @property
    def number(self) -> int:
        """What its content is made of."""
        return self.submitted.batch

    @property
    def length(self) -> int:
        """How many records it has."""
        return len(self.hashes) // HASH_BYTES

    @property
    def source(self) -> tuple[int, int]:
        """Who submitted it, one after the other: process and writer."""
        return self.process, self.submitted.writer


class Placed(NamedTuple):
    """A batch that is in the log, with the positions of its first and last record."""

    batch: Batch
    start: Position
    last: Position

    @property
    def end_seq_num(self) -> int:
        """The sequence number behind it."""
        return self.last[0] + 1


class Life(enum.Enum):
    """What the catalog must say of a stream."""

    LIVE = "live"
    DROPPING = "dropping"  # asked for; the answer is not known
    DROPPED = "dropped"
    PURGED = "purged"  # dropped, and seen to be out of the catalog


class StreamLedger:
    """One stream by its number in the catalog; one of the same name made later is another."""

    def __init__(self, stream_id: int, name: str) -> None:
        self.id = stream_id
        self.name = name
        self.life = Life.LIVE
        self.open: dict[int, Batch] = {}
        self.placed: dict[int, Placed] = {}
        self.gone: set[int] = set()
        self.tail: Position = (0, 0)  # the highest that anybody was told, each of its own
        self.tokens_told: set[str] = set()
        self.known: Sighting = (0, [], b"")  # by the last complete look
        self.sightings: list[Sighting] = []  # since then

    def tell_tail(self, seq_num: int, timestamp: int = 0) -> None:
        """Somebody was told that the stream reaches up to here."""
        self.tail = (max(self.tail[0], seq_num), max(self.tail[1], timestamp))


class Ledger:
    """The whole bucket. `violations` is what was promised and not kept."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.streams: dict[int, StreamLedger] = {}
        self.making: dict[str, int] = {}  # name: process that asked for it
        self.violations: list[str] = []
        self.acked_by: Counter[int] = Counter()  # batches, by process
        self.excused: set[int] = set()  # processes whose appends may fail
        self.epochs: dict[int, int] = {}  # by process
        self.sealed: set[int] = set()  # a later one has recovered the bucket
        self.settled: set[int] = set()  # and has looked at all of it
        self.fenced: set[int] = set()  # processes that have noticed
        self.deposed: set[int] = set()  # processes that must not tell of their state any more
        self._streams_of: dict[int, StreamLedger] = {}  # by batch
        self._submitted_late: set[int] = set()  # batches, to a node that was deposed
        self._asked_late: set[tuple[int, int]] = set()

    @property
    def acked(self) -> int:
        """How many batches were acked."""
        return self.acked_by.total()

    def violated(self, what: str) -> None:
        """Note a broken promise."""
        self.violations.append(what)

    def apply(self, process: int, event: AnyEvent) -> None:
        """Take in what a process has told."""
        match event:
            case Submitted() | Acked() | Refused() | Failed():
                self._appended(process, event)
            case Seen() | Asked() | Answered():
                self._read(process, event)
            case Making() | Made() | Dropping() | Dropped():
                self._catalog_changed(process, event)
            case Mark("opened", epoch):
                self._opened(process, epoch)
            case Mark("closing"):
                self.excused.add(process)
            case Mark("fenced"):
                self.fenced.add(process)
                self.deposed.add(process)
            case Trouble(what):
                self.violated(f"process {process}: {what}")
            case _:
                pass

    # Batches

    def _appended(self, process: int, event: Submitted | Acked | Refused | Failed) -> None:
        match event:
            case Submitted():
                self._submitted(process, event)
            case Acked():
                self.acked_by[process] += 1
                self._acked(event)
            case Refused():
                self._refused(process, event)
            case Failed(batch, error):
                if process not in self.excused:
                    self.violated(f"batch {batch}: the append failed: {error}")

    def _submitted(self, process: int, event: Submitted) -> None:
        records = make_records(self.seed, event.batch, event.kind, event.argument)
        batch = Batch(process, event, b"".join(hash_records(records)))
        stream = self.streams[event.stream]
        self._streams_of[event.batch] = stream
        if process in self.sealed:
            stream.gone.add(event.batch)
            if process in self.deposed and stream.name != PIPED:
                self._submitted_late.add(event.batch)
        else:
            stream.open[event.batch] = batch

    def _acked(self, event: Acked) -> None:
        stream = self._streams_of[event.batch]
        say = f"{stream.name}: batch {event.batch} acked at {event.start[0]}"
        if event.batch in stream.gone:
            self.violated(f"{say}, though a later writer has taken over without it")
            return
        last = (event.end[0] - 1, event.end[1])
        found = stream.placed.get(event.batch)
        if found is not None:
            if (found.start, found.last) != (event.start, last):
                self.violated(f"{say}, though a later writer found it at {found.start[0]}")
            return
        batch = stream.open.pop(event.batch)
        stream.placed[event.batch] = Placed(batch, event.start, last)
        stream.tell_tail(*event.tail)
        wanted = batch.submitted.match_seq_num
        if event.end[0] - event.start[0] != batch.length:
            self.violated(f"{say} up to {event.end[0]}, and has {batch.length} records")
        if wanted is not None and wanted != event.start[0]:
            self.violated(f"{say}, and {wanted} was its condition")
        if batch.submitted.expect == "refusal":
            self.violated(f"{say}, though its condition did not hold")
        if event.tail[0] < event.end[0] or event.start[1] > event.end[1]:
            self.violated(f"{say}: the ack contradicts itself: {event}")

    def _refused(self, process: int, event: Refused) -> None:
        stream = self._streams_of[event.batch]
        if event.batch in stream.gone:  # of a writer that was sealed meanwhile
            if event.batch in self._submitted_late:
                self.violated(f"process {process} refuses, and a newer one leads: {event}")
            return
        if event.batch in stream.placed:
            self.violated(f"{stream.name}: batch {event.batch} was refused, and it is there")
            return
        batch = stream.open.pop(event.batch)
        stream.gone.add(event.batch)
        if batch.submitted.expect == "ack":
            self.violated(f"{stream.name}: refused, though its condition held: {event}, {batch[1]}")
        # A refusal tells a state, and so it promises that state.
        if event.next_seq_num is not None:
            stream.tell_tail(event.next_seq_num)
        if event.fencing_token:
            stream.tokens_told.add(event.fencing_token)

    # Readers

    def _read(self, process: int, event: Seen | Asked | Answered) -> None:
        match event:
            case Seen(stream_id, first, timestamps, hashes):
                stream = self.streams[stream_id]
                stream.sightings.append((first, timestamps, hashes))
                stream.tell_tail(first + len(timestamps), timestamps[-1])
            case Asked(question):
                if process in self.deposed:
                    self._asked_late.add((process, question))
            case Answered(question, stream_id, tail):
                if (process, question) in self._asked_late:
                    self.violated(f"process {process} answers, and a newer one leads: {event}")
                if stream_id != CATALOG:
                    self.streams[stream_id].tell_tail(*tail)

    # The catalog

    def _catalog_changed(self, process: int, event: Making | Made | Dropping | Dropped) -> None:
        is_sealed = process in self.sealed
        match event:
            case Making(name) if not is_sealed:
                self.making[name] = process
            case Made(name, stream_id):
                self._made(process, name, stream_id)
            case Dropping(stream_id) if not is_sealed:
                self.streams[stream_id].life = Life.DROPPING
            case Dropped(stream_id):
                stream = self.streams[stream_id]
                if process in self.settled and stream.life is Life.LIVE:
                    self.violated(f"{stream.name}: deletion acked by {process}, and it lives")
                elif stream.life is Life.DROPPING:
                    stream.life = Life.DROPPED
            case _:
                pass  # of a writer that was sealed: it cannot take effect

    def _made(self, process: int, name: str, stream_id: int) -> None:
        found = self.streams.get(stream_id)
        if process in self.sealed and found is not None and found.name == name:
            return  # a later writer has found it before the ack came
        if process in self.settled:
            self.violated(f"{name}: creation acked by {process}, a later writer has not found it")
        if found is not None:
            self.violated(f"{name}: created as {stream_id}, which was another's number")
        if any(s.name == name and s.life is Life.LIVE for s in self.streams.values()):
            self.violated(f"{name}: created again while it lives")
        self.making.pop(name, None)
        self.streams[stream_id] = StreamLedger(stream_id, name)

    def adopt(self, name: str, stream_id: int) -> None:
        """A creation whose ack nobody got has taken effect."""
        del self.making[name]
        self.streams[stream_id] = StreamLedger(stream_id, name)

    # Epochs

    def _opened(self, process: int, epoch: int) -> None:
        """A process has recovered the bucket: every one of an older epoch is sealed."""
        self.epochs[process] = epoch
        newest = max(self.epochs.values())
        self.sealed = {older for older, claimed in self.epochs.items() if claimed < newest}

    def settle(self, process: int) -> None:
        """The process has found all there is: what older ones left open beside it is gone."""
        older = {p for p, epoch in self.epochs.items() if epoch < self.epochs[process]}
        self.settled |= older
        self.making = {name: p for name, p in self.making.items() if p not in older}
        for stream in self.streams.values():
            left = [batch.number for batch in stream.open.values() if batch.process in older]
            for number in left:
                del stream.open[number]
            stream.gone.update(left)

    def check_told_tokens(self, stream: StreamLedger) -> None:
        """Every fencing token that a refusal has shown was set by a batch that is there."""
        for token in stream.tokens_told:
            if token_number(token) not in stream.placed:
                self.violated(
                    f"{stream.name}: a refusal showed {token}, and its fence is not there"
                )
