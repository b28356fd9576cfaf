"""Records that go to one stream, in order, each once: also when the one who sends them is killed.

The stream itself says how far it has come. Record `i` of the source gets sequence number
`base + i`: every batch says so by `match_seq_num`, so that nobody else's record can come in between
and a batch whose ack was lost cannot come twice. Whoever begins, or begins again, asks for the
tail; the source's records below it are there already. That they are this source's is proved by the
last one, which is read back and compared.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bourn.client import (
    AppendSession,
    Client,
    ClientError,
    ReadStart,
    Refused,
    SeqNumMismatch,
    Unwritten,
)
from bourn.clock import Clock
from bourn.errors import BournError, Invalid
from bourn.layout.arrow import HEADERS, encode_inputs
from bourn.limits import U64_MAX
from bourn.model.record import AppendAck, SequencedRecord

ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", pa.int64()),  # the bits of an unsigned one; null: none
        pa.field("headers", HEADERS),
        pa.field("body", pa.binary()),
    ]
)
RECOVERIES_MAX: Final = 8  # without a record more in between

Note = Callable[[int, int], None]  # records and bytes that are durable


class TransferRefused(BournError):
    """The stream, or what should go there, is not as it must be; the text says what to do."""


class CopyOptions(NamedTuple):
    """How records are sent."""

    base: int = 0
    new_timestamps: bool = False  # take whatever the server makes of them


class StreamCopy:
    """The way to one stream. Belongs to one thread at a time; ended by `close`."""

    def __init__(self, stream: str, options: CopyOptions, clock: Clock, note: Note) -> None:
        self._stream = stream
        self._options = options
        self._clock = clock
        self._note = note
        self._opened: Client | None = None
        self._session: AppendSession | None = None
        self._held: list[tuple[int, pa.RecordBatch]] = []  # not known to be durable, with index
        self._seen = 0  # records of the source so far
        self._done = 0  # those that are in the stream, in flight included
        self._durable = 0
        self._proof: tuple[int, SequencedRecord] | None = None  # by its place in the source
        self._last_timestamp = 0
        self._is_capped = True
        self.appended = 0

    @property
    def stream(self) -> str:
        """Its name."""
        return self._stream

    @property
    def skipped(self) -> int:
        """How many records were there already."""
        return self._seen - self.appended

    def open(self, client: Client) -> None:
        """Use this client from now on; the first time, make the stream and look where it stands."""
        is_new, self._opened = self._opened is None, client
        if is_new:
            self._make()
            self._check_config()
            self._look()

    def push(self, rows: pa.RecordBatch) -> None:
        """Send the next records of the source, those that are not there yet."""
        first = self._seen
        self._seen += rows.num_rows
        self._prove(first, rows)
        self._check_timestamps(rows, first)
        if self._seen <= self._done:
            return
        self._held.append((first, rows))
        self._guarded(lambda: self._submit(first, rows))

    def flush(self, *, is_last: bool = True) -> None:
        """Wait until all that was pushed is durable; the connection stays unless it `is_last`."""
        self._guarded(self._drain if is_last else self._await)
        self._held.clear()

    def finish(self) -> None:
        """End the copy: all is durable, and the stream holds no more than the source."""
        self.flush()
        if self._done > self._seen:
            raise TransferRefused(
                f"stream {self._stream} has {self._done} records, and the source {self._seen}: "
                "it holds other records"
            )

    def close(self) -> None:
        """Let go of the session; what is on its way may still arrive."""
        if self._session is not None:
            self._session.abort()
            self._session = None

    # Sending

    def _submit(self, first: int, rows: pa.RecordBatch) -> None:
        skip = max(self._done - first, 0)
        rest = rows.slice(skip)
        if not rest.num_rows:
            return
        columns = [rest.column(name) for name in ("body", "headers", "timestamp")]
        timestamps = None if columns[2].null_count == len(columns[2]) else columns[2]
        if self._session is None:
            self._session = self._client.append_session(self._stream)
        try:
            for part in encode_inputs(columns[0], columns[1], timestamps):
                at = self._options.base + first + skip + part.first_row
                self._session.submit(part, match_seq_num=at)
                self._done += part.records
                self._note(0, part.metered_bytes)
                self._count(self._session.acks())
        except Invalid as error:
            raise TransferRefused(
                f"stream {self._stream}, behind record {first + skip - 1} of the source: "
                f"{error.message}"
            ) from None

    def _drain(self) -> None:
        if self._session is not None:
            self._count(self._session.close())
            self._session = None

    def _await(self) -> None:
        if self._session is not None:
            self._count(self._session.drain())

    def _count(self, acks: list[AppendAck]) -> None:
        if acks:
            durable = acks[-1].end.seq_num - self._options.base
            self._note(durable - self._durable, 0)
            self.appended += durable - self._durable
            self._durable = durable

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do some of the work; where the connection is lost, find out what arrived, and go on."""
        failures = 0
        while True:
            before = self._durable
            try:
                work()
            except ClientError as error:
                if not (error.is_retryable or isinstance(error, SeqNumMismatch)):
                    raise
                fault = error
            else:
                return
            self._recover()
            failures = failures + 1 if self._durable == before else 0
            if failures > RECOVERIES_MAX:
                raise fault
            work = self._resubmit

    def _recover(self) -> None:
        """Begin a new session behind what has arrived of the records that are held."""
        if self._session is not None:
            self._session.abort()
            self._session = None
        was = self._durable
        self._look()
        if self._done > self._seen or self._done < was:
            raise TransferRefused(
                f"somebody else appends to stream {self._stream}: it ends at "
                f"{self._options.base + self._done}"
            )
        for first, rows in self._held:
            self._prove(first, rows)
        self._proof = None  # what is not held was proved before
        self.appended += self._done - was
        self._note(self._done - was, 0)

    def _resubmit(self) -> None:
        for first, rows in self._held:
            self._submit(first, rows)
        self._drain()

    # Where the stream stands

    @property
    def _client(self) -> Client:
        assert self._opened is not None, "open it first"
        return self._opened

    def _make(self) -> None:
        try:
            self._client.check_tail(self._stream)
        except Refused as error:
            if error.code != "stream_not_found":
                raise
            self._client.ensure_stream(self._stream)

    def _look(self) -> None:
        tail = self._client.check_tail(self._stream)
        if tail.seq_num < self._options.base:
            raise TransferRefused(
                f"stream {self._stream} ends at {tail.seq_num}, before {self._options.base}"
            )
        self._done = self._durable = tail.seq_num - self._options.base
        self._proof = None
        if not self._done:
            self._last_timestamp = max(self._last_timestamp, tail.timestamp)
            return
        try:
            found = self._client.read(self._stream, ReadStart(seq_num=tail.seq_num - 1), 1)
        except Unwritten:
            found = []
        if not found or found[0].seq_num != tail.seq_num - 1:
            raise TransferRefused(
                f"the last record of stream {self._stream} cannot be read, so that nobody can "
                "tell how far the copy has come: begin with another stream"
            )
        self._proof = (self._done - 1, found[0])

    def _prove(self, first: int, rows: pa.RecordBatch) -> None:
        """Raise where the stream's last record is not the source's of that place."""
        if self._proof is None or not 0 <= self._proof[0] - first < rows.num_rows:
            return
        place, record = self._proof
        if not self._is_same(rows.slice(place - first, 1), record):
            raise TransferRefused(
                f"stream {self._stream} holds other records: number {record.seq_num} is not what "
                f"the source has there; name an empty stream, or say where the copy begins"
            )
        self._proof = None

    def _is_same(self, row: pa.RecordBatch, record: SequencedRecord) -> bool:
        found = row.to_pylist()[0]
        headers = tuple((pair["name"], pair["value"]) for pair in found["headers"] or ())
        if headers != record.headers or (found["body"] or b"") != record.body:
            return False
        timestamp = found["timestamp"]
        if timestamp is None or self._options.new_timestamps:
            return True
        return int(timestamp) & U64_MAX == record.timestamp

    # Timestamps

    def _check_config(self) -> None:
        if self._options.new_timestamps:
            return
        rules = self._client.stream_config(self._stream).get("timestamping") or {}
        self._is_capped = not rules.get("uncapped", False)
        if rules.get("mode") == "arrival":
            raise TransferRefused(
                f"stream {self._stream} gives every record the time of its arrival: set "
                "`bourn stream config --timestamping client-prefer`, or say --new-timestamps"
            )

    def _check_timestamps(self, rows: pa.RecordBatch, first: int) -> None:
        """Refuse what the server would change without a word."""
        column = rows.column("timestamp")
        if self._options.new_timestamps or not rows.num_rows:
            return
        stamps = _unsigned(column.drop_null() if column.null_count else column)
        if not len(stamps):
            return
        if stamps[0] < self._last_timestamp or np.any(stamps[1:] < stamps[:-1]):
            raise TransferRefused(
                f"timestamps go back in stream {self._stream}, within {rows.num_rows} records "
                f"from record {first} of the source on, and the server would raise them: sort "
                "the source, or say --new-timestamps"
            )
        self._last_timestamp = int(stamps[-1])
        if self._is_capped and self._last_timestamp > self._clock.now_ms():
            raise TransferRefused(
                f"timestamp {self._last_timestamp} is ahead of the clock, and stream "
                f"{self._stream} would cut it down: set `bourn stream config --uncapped`, or say "
                "--new-timestamps"
            )


def _unsigned(column: "pa.Array[Any]") -> npt.NDArray[np.uint64]:
    values: npt.NDArray[np.int64] = column.to_numpy()
    return values.view(np.uint64)


def without_commands(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out `fence` and `trim`: they were about the stream that they stood in."""
    mask = command_mask(rows.column("headers"))
    return rows.filter(pa.array(~mask)) if mask.any() else rows


def command_mask(headers: "pa.Array[Any]") -> npt.NDArray[np.bool_]:
    """Tell which records have one header, and that without a name."""
    lengths = headers.value_lengths().fill_null(0).to_numpy()  # type: ignore[attr-defined]  # of lists
    mask: npt.NDArray[np.bool_] = lengths == 1
    if mask.any():
        named = headers.flatten().field(0)  # type: ignore[attr-defined]  # as above
        firsts = np.cumsum(lengths) - lengths
        sizes = pc.binary_length(named).to_numpy()
        mask[mask] = sizes[firsts[mask]] == 0
    return mask


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a table of records, in the columns that a copy takes."""
    for batch in table.select(ROWS_SCHEMA.names).cast(ROWS_SCHEMA).to_batches():
        if batch.num_rows:
            yield batch
