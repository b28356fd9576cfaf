"""A complete look at a bucket through a node that has just opened it, judged by the ledger."""

from collections import defaultdict

from tests.crash.content import FENCE, HASH_BYTES, TRIM, make_token
from tests.crash.events import AnyEvent, Dumped, Listed, Mark, Seen
from tests.crash.ledger import SHOWN_MAX, Batch, Ledger, Life, Placed, Sighting, StreamLedger


class Look:
    """What one process finds, until it has found everything."""

    def __init__(self) -> None:
        self.listed: list[Listed] = []
        self.dumped: dict[int, Dumped] = {}
        self.holes: list[str] = []
        self._records: dict[int, tuple[int, list[int], bytearray]] = {}

    def saw(self, seen: Seen) -> None:
        """Join what was read of a stream, piece by piece."""
        if seen.stream not in self._records:
            self._records[seen.stream] = (seen.first_seq_num, [], bytearray())
        first, timestamps, hashes = self._records[seen.stream]
        end = first + len(timestamps)
        if end != seen.first_seq_num:
            self.holes.append(f"stream {seen.stream}: {seen.first_seq_num} follows {end - 1}")
        timestamps += seen.timestamps
        hashes += seen.hashes

    def records(self, dumped: Dumped) -> Sighting:
        """Everything that was read of a stream, from its first record on."""
        if dumped.stream not in self._records:
            return dumped.tail[0], [], b""
        first, timestamps, hashes = self._records[dumped.stream]
        return first, timestamps, bytes(hashes)


class Inspector:
    """Takes in everything that the processes of one bucket tell, and judges complete looks."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.looks = 0  # complete ones
        self._looking: dict[int, Look] = {}

    def apply(self, process: int, event: AnyEvent) -> None:
        """Take in an event; the last one of a look is its judgement."""
        look = self._looking.get(process)
        match event:
            case Mark("looking"):
                self._looking[process] = Look()
            case Mark("looked") if look is not None:
                del self._looking[process]
                self.looks += 1
                judge(self.ledger, look, process)
            case Listed():
                self._note(process, event)
                if look is not None:
                    look.listed.append(event)
            case Dumped(stream) if look is not None:
                look.dumped[stream] = event
            case Seen(stream) if look is not None and stream not in look.dumped:
                look.saw(event)
                self.ledger.apply(
                    process, event
                )  # a look that ends halfway has seen it all the same
            case _:
                self.ledger.apply(process, event)

    def _note(self, process: int, event: Listed) -> None:
        """Open an account for a stream whose creation was never acked."""
        ledger = self.ledger
        if event.id not in ledger.streams:
            if ledger.making.get(event.name, process) == process:
                ledger.violated(f"{event.name}: number {event.id} was never asked for")
                ledger.making[event.name] = process
            ledger.adopt(event.name, event.id)


def judge(ledger: Ledger, look: Look, process: int) -> None:
    """Compare everything found with everything known; settles what older processes left open."""
    for hole in look.holes:
        ledger.violated(hole)
    _judge_catalog(ledger, look)
    for stream in ledger.streams.values():
        dumped = look.dumped.get(stream.id)
        if dumped is not None:
            _StreamCheck(ledger, stream, dumped, look.records(dumped)).judge()
    last_numbers = {stream.id: _last_numbers(stream) for stream in ledger.streams.values()}
    overtaken = [
        f"{stream.name}: batch {batch.number} is not there, and its writer's later one is"
        for stream in ledger.streams.values()
        for batch in stream.open.values()
        if batch.submitted.expect == "ack"
        and batch.number < last_numbers[stream.id].get(batch.source, 0)
    ]
    ledger.violations += overtaken
    ledger.settle(process)


def _last_numbers(stream: StreamLedger) -> dict[tuple[int, int], int]:
    last: dict[tuple[int, int], int] = defaultdict(int)
    for placed in stream.placed.values():
        source = placed.batch.source
        last[source] = max(last[source], placed.batch.number)
    return last


def _judge_catalog(ledger: Ledger, look: Look) -> None:
    listed = {event.id: event for event in look.listed}
    for stream in ledger.streams.values():
        event = listed.get(stream.id)
        match stream.life:
            case Life.LIVE if event is None or event.deleting:
                ledger.violated(f"{stream.name}: number {stream.id} is gone, nobody deleted it")
            case Life.DROPPED if event is not None and not event.deleting:
                ledger.violated(f"{stream.name}: number {stream.id} is back after its deletion")
            case Life.PURGED if event is not None:
                ledger.violated(f"{stream.name}: number {stream.id} is back from nowhere")
            case _:
                pass
        if event is None:
            stream.life = Life.PURGED
        else:
            stream.life = Life.DROPPED if event.deleting else Life.LIVE
            if event.name != stream.name:
                ledger.violated(f"{stream.name}: number {stream.id} is now {event.name}")
            if not event.deleting and "/" not in event.name and stream.id not in look.dumped:
                ledger.violated(f"{stream.name}: could not be read")
    names = [event.name for event in look.listed if not event.deleting]
    for name in {name for name in names if names.count(name) > 1}:
        ledger.violated(f"{name}: is in the catalog twice")


class _StreamCheck:
    """One stream: `found` is everything from its first record on, as a reader got it."""

    def __init__(
        self, ledger: Ledger, stream: StreamLedger, dumped: Dumped, found: Sighting
    ) -> None:
        self._ledger = ledger
        self._stream = stream
        self._dumped = dumped
        self._first, self._timestamps, self._hashes = found
        self._tail = dumped.tail[0]
        self._shown = 0
        self._by_first_hash: dict[bytes, list[Batch]] = defaultdict(list)
        for batch in stream.open.values():
            self._by_first_hash[batch.hashes[:HASH_BYTES]].append(batch)

    def judge(self) -> None:
        """Compare, and place what was found of the open batches."""
        self._check_tail()
        self._check_sightings()
        self._walk()
        self._check_order()
        self._check_commands()
        stream = self._stream
        stream.known = (self._first, self._timestamps, self._hashes)
        stream.sightings.clear()
        stream.tell_tail(*self._dumped.tail)

    def _violated(self, what: str) -> None:
        self._shown += 1
        if self._shown <= SHOWN_MAX:
            self._ledger.violated(f"{self._stream.name}: {what}")

    def _check_tail(self) -> None:
        told = self._stream.tail
        if self._tail < told[0] or self._dumped.tail[1] < told[1]:
            self._violated(f"the tail {told} was told, and now it is {self._dumped.tail}")
        end = self._first + len(self._timestamps)
        if end != self._tail:
            self._violated(f"the records end before {end}, the tail is {self._tail}")
        if self._timestamps != sorted(self._timestamps):
            self._violated("timestamps go back")
        if self._timestamps and self._timestamps[-1] != self._dumped.tail[1]:
            self._violated(f"the last timestamp is {self._timestamps[-1]}, not the tail's")

    def _check_sightings(self) -> None:
        """What anybody has read before is still there, unless it was trimmed."""
        for first, timestamps, hashes in (self._stream.known, *self._stream.sightings):
            start = max(first, self._first)
            stop = first + len(timestamps)
            if start >= stop:
                continue
            if (
                self._timestamps_of(start, stop) != timestamps[start - first :]
                or self._hashes_of(start, stop) != hashes[(start - first) * HASH_BYTES :]
            ):
                self._violated(f"[{start}, {stop}) was read before, and differs now")

    def _walk(self) -> None:
        """Every record is part of a whole batch: of those placed, or of one that was open."""
        position = self._first
        for placed in sorted(self._stream.placed.values(), key=lambda p: p.start):
            start, stop = placed.start[0], placed.end_seq_num
            if stop <= self._first:
                continue  # trimmed
            if stop > self._tail:
                self._violated(f"batch {placed.batch.number} at [{start}, {stop}) is lost")
                continue
            if start < position and position > self._first:
                self._violated(f"batch {placed.batch.number} at {start} overlaps another")
            self._fill(position, start)
            self._compare(placed)
            position = stop
        self._fill(position, self._tail)

    def _compare(self, placed: Placed) -> None:
        start = max(placed.start[0], self._first)
        stop = placed.end_seq_num
        expected = placed.batch.hashes[(start - placed.start[0]) * HASH_BYTES :]
        if self._hashes_of(start, stop) != expected:
            self._violated(f"batch {placed.batch.number}: other records stand at [{start}, {stop})")
        for seq_num, timestamp in (placed.start, placed.last):
            if seq_num >= self._first and self._timestamps_of(seq_num, seq_num + 1) != [timestamp]:
                self._violated(f"batch {placed.batch.number}: {seq_num} has another timestamp")

    def _fill(self, position: int, stop: int) -> None:
        """Between what was placed stand whole batches that were open, each once."""
        while position < stop:
            batch = self._open_at(position, stop)
            if batch is None:
                self._violated(f"what stands at [{position}, {stop}): {self._describe(position)}")
                return
            last = position + batch.length - 1
            self._stream.placed[batch.number] = Placed(
                self._stream.open.pop(batch.number),
                (position, self._timestamps_of(position, position + 1)[0]),
                (last, self._timestamps_of(last, last + 1)[0]),
            )
            position = last + 1

    def _open_at(self, position: int, stop: int) -> Batch | None:
        """Take the open batch that stands here, whole."""
        candidates = self._by_first_hash.get(self._hashes_of(position, position + 1), [])
        for batch in candidates:
            end = position + batch.length
            wanted = batch.submitted.match_seq_num
            if (
                end <= stop
                and wanted in {None, position}
                and batch.submitted.expect != "refusal"
                and self._hashes_of(position, end) == batch.hashes
            ):
                candidates.remove(batch)
                return batch
        return None

    def _describe(self, position: int) -> str:
        """Say whose record this is."""
        wanted = self._hashes_of(position, position + 1)
        stream = self._stream
        everything = [p.batch for p in stream.placed.values()] + [*stream.open.values()]
        for batch in everything:
            hashes = batch.hashes
            for index in range(batch.length):
                if hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] == wanted:
                    state = "open" if batch.number in stream.open else "placed elsewhere"
                    return f"record {index} of {batch.length} of batch {batch.number} ({state})"
        return "a record that nobody has submitted to this stream"

    def _check_order(self) -> None:
        """Batches of one writer stand in the order in which it submitted them."""
        last: dict[tuple[int, int], int] = {}
        for placed in sorted(self._stream.placed.values(), key=lambda p: p.start):
            source, number = placed.batch.source, placed.batch.number
            if number < last.get(source, 0):
                self._violated(f"batch {number} stands behind its writer's {last[source]}")
            last[source] = number

    def _check_commands(self) -> None:
        """The first record and the fencing token are what the commands in the log say."""
        trim_point = 0
        token = ""
        for placed in sorted(self._stream.placed.values(), key=lambda p: p.start):
            submitted = placed.batch.submitted
            if submitted.kind == TRIM:
                trim_point = max(trim_point, min(int(submitted.argument), placed.end_seq_num))
            elif submitted.kind == FENCE:
                token = make_token(submitted.batch)
        if self._first != trim_point:
            self._violated(f"the first record is {self._first}, the trim point {trim_point}")
        if self._dumped.fencing_token != token:
            self._violated(f"the token is {self._dumped.fencing_token!r}, not {token!r}")
        self._ledger.check_told_tokens(self._stream)

    def _timestamps_of(self, start: int, stop: int) -> list[int]:
        return self._timestamps[start - self._first : max(stop - self._first, 0)]

    def _hashes_of(self, start: int, stop: int) -> bytes:
        offset = self._first
        return self._hashes[(start - offset) * HASH_BYTES : max(stop - offset, 0) * HASH_BYTES]
