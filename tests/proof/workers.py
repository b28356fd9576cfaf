"""Threads that write and threads that read, through kills and starts of the server."""

import threading
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, TypeVar

from bourn.limits import KIB
from bourn.model.record import Record
from tests.proof.content import first_at, timestamp_of
from tests.proof.ledger import Check, Ledger, StreamLedger
from tests.proof.sabotage import RECORDS_MIN, SABOTAGES, Records
from tests.proof.wire import Broken, Refused, Wire

BATCH_RECORDS_MAX: Final = 60
BATCH_BYTES_MAX: Final = 256 * KIB
TRICKLE_SECS: Final = 0.2
READ_PAUSE_SECS: Final = 0.1
AGAIN_SECS: Final = 0.1  # until a server that has gone is back
CONFLICT: Final = 409

T = TypeVar("T")


class Work:
    """What the threads of a round share."""

    def __init__(self, ledger: Ledger, port: int, sabotage: str = "") -> None:
        self.ledger = ledger
        self.port = port
        self.quiet = threading.Event()  # nothing is killed any more
        self.stop = threading.Event()
        self.bytes_written = 0
        self.records_written = 0
        self._sabotage = SABOTAGES.get(sabotage)
        self._turn = threading.Lock()

    def wrote(self, records: int, size_bytes: int) -> None:
        """Count what was acknowledged."""
        with self._turn:
            self.records_written += records
            self.bytes_written += size_bytes

    def sabotaged(self, records: Records) -> Records:
        """Return what a wrong server would have delivered, where one is played."""
        if self._sabotage is None or len(records) < RECORDS_MIN:
            return records
        return self._sabotage(records)


class Writer(threading.Thread):
    """Appends batches to streams at random: so many bytes, and a few more until all is quiet."""

    def __init__(self, work: Work, rng: Random, bytes_wanted: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._work = work
        self._rng = rng
        self._left = bytes_wanted
        self._wire = Wire(work.port)

    def run(self) -> None:
        """Write."""
        streams = self._work.ledger.streams
        while not self._work.stop.is_set() and not self._is_done():
            stream = streams[int(len(streams) * self._rng.random() ** 1.5)]
            if stream.turn.acquire(blocking=False):
                try:
                    if not stream.known.is_gone:
                        self._append(stream)
                finally:
                    stream.turn.release()
        self._wire.close()

    def _is_done(self) -> bool:
        """Whether the bytes are written, and no more kills come; until then a few more follow."""
        if self._left > 0:
            return False
        return self._work.quiet.wait(TRICKLE_SECS)

    def _append(self, stream: StreamLedger) -> None:
        ledger = self._work.ledger
        generation, first = stream.known.generation, stream.known.acked
        count, size = self._rng.randint(1, BATCH_RECORDS_MAX), 0
        records: list[Record] = []
        while len(records) < count and size < BATCH_BYTES_MAX:
            record = ledger.content.record(stream.index, generation, first + len(records))
            if records and size + len(record.body) > BATCH_BYTES_MAX:
                break  # a large one stands alone, or the batch would be too large
            records.append(record)
            size += len(record.body)
        stream.sends(len(records))
        try:
            ack = self._wire.append(stream.name, records, first)
        except Broken:
            self._find_out(stream, first, len(records))
        except Refused as refused:
            ledger.violated(stream, f"an append at {first} was refused: {refused}")
            self._find_out(stream, first, len(records))
        else:
            end = first + len(records)
            if (ack.start.seq_num, ack.end.seq_num) != (first, end):
                ledger.violated(stream, f"[{first}, {end}) was acknowledged as {ack}")
            stream.settled(end)
            self._work.wrote(len(records), size)
            self._left -= max(size, 1)

    def _find_out(self, stream: StreamLedger, first: int, count: int) -> None:
        """Learn what has become of an append: all of it, or nothing."""
        tail = insist(self._work, lambda: self._wire.tail(stream.name))
        if tail is None:
            return
        if tail not in {first, first + count}:
            self._work.ledger.violated(
                stream, f"{first} were acknowledged, {count} more sent, and the tail is {tail}"
            )
        stream.settled(tail)


class Reader(threading.Thread):
    """Reads streams at random from 0, from anywhere, by number and by time."""

    def __init__(self, work: Work, rng: Random) -> None:
        super().__init__(name="reader", daemon=True)
        self._work = work
        self._rng = rng
        self._wire = Wire(work.port)

    def run(self) -> None:
        """Read."""
        streams = self._work.ledger.streams
        while not self._work.stop.is_set():
            try:
                read(self._work, self._wire, self._rng.choice(streams), self._rng)
                self._work.stop.wait(self._rng.uniform(0.0, READ_PAUSE_SECS))
            except Broken:
                self._work.stop.wait(AGAIN_SECS)
        self._wire.close()


def read(work: Work, wire: Wire, stream: StreamLedger, rng: Random, *, whole: bool = False) -> None:
    """Read a stream to its tail, from somewhere or as a `whole`, and check it."""
    known = stream.known
    if known.is_gone:
        return
    start = 0 if whole or rng.random() < 0.5 else rng.randrange(known.acked + 1)
    where = f"seq_num={start}"
    if not whole and start < known.acked and rng.random() < 0.3:
        moment = timestamp_of(start) - rng.randrange(3)
        start, where = first_at(moment), f"timestamp={moment}"
    check = Check(work.ledger, stream, start)
    try:
        _feed(work, wire, stream.name, where, check, by_session=rng.random() < 0.7)
    except Broken:
        check.finish(at_tail=False)
        raise
    except Refused as refused:
        if stream.known.generation == known.generation and not stream.known.is_gone:
            work.ledger.violated(stream, f"a read at {start} was refused: {refused}")
    else:
        check.finish(at_tail=True)


def _feed(work: Work, wire: Wire, name: str, where: str, check: Check, *, by_session: bool) -> None:
    if by_session:
        for records in wire.session(name, where):
            check.feed(work.sabotaged(records))
        return
    while (records := wire.page(name, where)) and not check.is_bad:
        check.feed(work.sabotaged(records))
        where = f"seq_num={check.next}"


class Checker(threading.Thread):
    """Reads some streams from their beginning, each of them."""

    def __init__(self, work: Work, streams: list[StreamLedger], rng: Random) -> None:
        super().__init__(name="checker", daemon=True)
        self._work = work
        self._streams = streams
        self._rng = rng

    def run(self) -> None:
        """Check."""
        wire = Wire(self._work.port)
        for stream in self._streams:
            insist(self._work, partial(read, self._work, wire, stream, self._rng, whole=True))
        wire.close()


def insist(work: Work, ask: Callable[[], T]) -> T | None:
    """Ask until there is an answer; None once the round is given up."""
    while not work.stop.is_set():
        try:
            return ask()
        except Broken:
            work.stop.wait(AGAIN_SECS)
    return None


def delete(work: Work, wire: Wire, stream: StreamLedger) -> None:
    """Delete a stream, and make another of its name as soon as that is free."""
    with stream.turn:
        stream.deleted()
        insist(work, lambda: wire.command("DELETE", f"/v1/streams/{stream.name}"))

        def create() -> None:
            try:
                wire.command("POST", "/v1/streams", {"stream": stream.name})
            except Refused as refused:
                if refused.status == CONFLICT:
                    raise Broken("not yet") from refused
                raise

        insist(work, create)
        stream.created()
