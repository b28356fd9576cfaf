"""What a node's process tells: one JSON line each, written at once and never buffered.

A line that a kill has cut short is no line: its event has not been told, which is always the
careful reading. What is about to be done is told before, what was promised is told after.
"""

import os
from typing import Final

import msgspec

from bourn.model.record import SequencedRecord
from tests.crash.content import hash_record

CATALOG: Final = 0  # the number of no stream


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Anything told."""


class Mark(Event, frozen=True, tag="mark"):
    """A stage of the process begins: started, opened, dumped, snapshot, closing, fenced, …"""

    stage: str
    epoch: int = 0


class Making(Event, frozen=True, tag="making"):
    """A stream, or a basin, will be created."""

    name: str


class Made(Event, frozen=True, tag="made"):
    """A creation was acked."""

    name: str
    id: int


class Dropping(Event, frozen=True, tag="dropping"):
    """A stream will be deleted."""

    id: int


class Dropped(Event, frozen=True, tag="dropped"):
    """A deletion was acked."""

    id: int


class Submitted(Event, frozen=True, tag="submitted"):
    """A batch will be appended. `expect` is its only right answer: ack, refusal, or either."""

    batch: int
    stream: int
    writer: int
    expect: str = "ack"
    kind: str = "records"
    argument: str = ""
    match_seq_num: int | None = None


class Acked(Event, frozen=True, tag="acked"):
    """A batch was acked: its first position, the one behind its last, the tail."""

    batch: int
    start: tuple[int, int]
    end: tuple[int, int]
    tail: tuple[int, int]


class Refused(Event, frozen=True, tag="refused"):
    """A batch was refused for a condition, with the state that it was judged by."""

    batch: int
    next_seq_num: int | None = None
    fencing_token: str | None = None


class Failed(Event, frozen=True, tag="failed"):
    """An append ended without an answer about its outcome."""

    batch: int
    error: str


class Asked(Event, frozen=True, tag="asked"):
    """The tail of a stream will be asked for; of stream 0, the newest number in the catalog."""

    question: int
    stream: int


class Answered(Event, frozen=True, tag="answered"):
    """The tail, or the newest number, as the node says it."""

    question: int
    stream: int
    tail: tuple[int, int]


class Seen(Event, frozen=True, tag="seen"):
    """A reader got these records, which follow each other."""

    stream: int
    first_seq_num: int
    timestamps: list[int]
    hashes: bytes  # 8 for each record


class Listed(Event, frozen=True, tag="listed"):
    """This stream or basin is in the catalog."""

    name: str
    id: int
    deleting: bool


class Dumped(Event, frozen=True, tag="dumped"):
    """A complete look has read this stream up to its tail."""

    stream: int
    tail: tuple[int, int]
    fencing_token: str


class Trouble(Event, frozen=True, tag="trouble"):
    """Something that no crash excuses."""

    what: str


AnyEvent = (
    Mark
    | Making
    | Made
    | Dropping
    | Dropped
    | Submitted
    | Acked
    | Refused
    | Failed
    | Asked
    | Answered
    | Seen
    | Listed
    | Dumped
    | Trouble
)

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(AnyEvent)


def decode_event(line: bytes) -> AnyEvent:
    """Return the event of a whole line."""
    event: AnyEvent = _DECODER.decode(line)
    return event


class Reporter:
    """The node's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, event: AnyEvent) -> None:
        """Write the event; once this returns, no kill of this process can take it back."""
        left = memoryview(_ENCODER.encode(event) + b"\n")
        while left:
            left = left[os.write(self._descriptor, left) :]

    def tell_seen(self, stream: int, records: list[SequencedRecord]) -> None:
        """Tell what a reader got; a hole in the sequence is trouble."""
        first = records[0].seq_num
        if [record.seq_num for record in records] != list(range(first, first + len(records))):
            self.tell(Trouble(f"stream {stream}: a read batch at {first} has holes"))
            return
        hashes = b"".join(hash_record(record.headers, record.body) for record in records)
        self.tell(Seen(stream, first, [record.timestamp for record in records], hashes))
