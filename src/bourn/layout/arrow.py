"""Records as Arrow columns, for clients that move them in bulk.

    ReadBatch messages  --ReadRows------->  RecordBatch of columns
    columns             --encode_inputs-->  AppendInput messages, each within every limit of a batch

    column          type
    seq_num         int64
    timestamp       int64
    headers         list<struct<name: binary, value: binary>>
    body            binary
    metered_bytes   int32

Numbers of 64 bits are unsigned; a column holds them as signed ones of the same bits, so that what
is below 2^63 reads as it is and nothing is lost.

Whole messages go through compiled kernels, without a Python object per record. A message may be any
bytes: what is none raises BadProto, and nothing is read or written out of bounds.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bourn.errors import BadProto, Invalid
from bourn.layout.kernels import client_facts as facts
from bourn.layout.kernels.compiled import ClientKernels, blank
from bourn.limits import (
    BATCH_METERED_BYTES_MAX,
    BATCH_RECORDS_MAX,
    CONDITIONS_BYTES_MAX,
    FRAME_PAYLOAD_BYTES_MAX,
    U64_MAX,
)
from bourn.model.record import StreamPosition

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_KERNELS: Final = ClientKernels()
_NO_BYTES: Final = np.empty(0, np.uint8)
HEADER: Final = pa.struct([pa.field("name", pa.binary()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(HEADER)


def warm(say: Callable[[str], None]) -> None:
    """Make sure that every kernel is compiled, or loaded from the cache; say so if it takes."""
    _KERNELS.warm(say)


class Columns(NamedTuple):
    """Which columns a reader wants besides `seq_num` and `timestamp`."""

    headers: bool = True
    body: bool = True
    metered_bytes: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns, in their order."""
        fields: list[tuple[str, pa.DataType]] = [
            ("seq_num", pa.int64()),
            ("timestamp", pa.int64()),
        ]
        if self.headers:
            fields.append(("headers", HEADERS))
        if self.body:
            fields.append(("body", pa.binary()))
        if self.metered_bytes:
            fields.append(("metered_bytes", pa.int32()))
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    @property
    def bits(self) -> int:
        """The choice, as kernels take it."""
        return (
            self.headers * facts.WANTS_HEADERS
            | self.body * facts.WANTS_BODY
            | self.metered_bytes * facts.WANTS_METERED
        )


class Gap(NamedTuple):
    """Sequence numbers [start, end) that are not there, behind others that are or were."""

    start: int
    end: int


class ReadRows:
    """Gathers the messages of a read session into columns.

    `next_seq_num` is where the reading starts, where that is known; a record before it is an error,
    and records that are missing behind it are a gap. `end_seq_num` is the first one not wanted.
    """

    def __init__(
        self,
        columns: Columns,
        next_seq_num: int | None = None,
        end_seq_num: int | None = None,
    ) -> None:
        self._columns = columns
        self._schema = columns.schema
        self._messages: list[bytes] = []
        self._state = np.zeros(facts.READ_WORDS, np.int64)
        unsigned = self._state.view(np.uint64)
        if next_seq_num is not None:
            unsigned[facts.FROM_SET], unsigned[facts.FROM] = 1, next_seq_num
        if end_seq_num is not None:
            unsigned[facts.END_SET], unsigned[facts.END] = 1, end_seq_num

    def take(self, message: bytes) -> None:
        """Add a ReadBatch; BadProto where it is none, or goes back, and nothing is added then."""
        before = self._state.copy()
        fault = _KERNELS.scan_read(np.frombuffer(message, np.uint8), self._state)
        if fault < 0:
            self._state[:] = before
            raise BadProto(f"Failed to decode protobuf: {facts.READ_FAULTS[fault]}")
        if self._state[facts.ROWS] > before[facts.ROWS]:
            self._messages.append(message)

    @property
    def rows(self) -> int:
        """How many records have been gathered since the last flush."""
        return int(self._state[facts.ROWS])

    @property
    def metered_bytes(self) -> int:
        """What these weigh."""
        return int(self._state[facts.METERED_SUM])

    @property
    def next_seq_num(self) -> int | None:
        """Where to go on; None where that is not known yet."""
        return self._number(facts.FROM_SET, facts.FROM)

    @property
    def is_past_end(self) -> bool:
        """Whether a record was seen that is not wanted any more."""
        return bool(self._state[facts.IS_PAST])

    @property
    def gap(self) -> Gap | None:
        """The first gap."""
        start = self._number(facts.GAP_SET, facts.GAP_FROM)
        end = self._number(facts.GAP_SET, facts.GAP_END)
        return None if start is None or end is None else Gap(start, end)

    @property
    def tail(self) -> StreamPosition | None:
        """The last tail that a message has told of."""
        seq_num = self._number(facts.TAIL_SET, facts.TAIL_SEQ_NUM)
        timestamp = self._number(facts.TAIL_SET, facts.TAIL_STAMP)
        if seq_num is None or timestamp is None:
            return None
        return StreamPosition(seq_num, timestamp)

    def _number(self, is_set: int, at: int) -> int | None:
        return int(self._state[at]) & U64_MAX if self._state[is_set] else None

    def flush(self) -> pa.RecordBatch:
        """Return what was gathered, and begin anew behind it."""
        sums = slice(facts.FIRST_SUM, facts.LAST_SUM + 1)
        rows, headers, names, values, bodies, _ = self._state[sums].tolist()
        data = np.frombuffer(b"".join(self._messages), np.uint8)
        self._messages = []
        self._state[sums] = 0
        wanted = self._columns
        seq_nums, stamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
        metered = np.empty(4 * rows * wanted.metered_bytes, np.uint8)
        headers_at = np.empty(4 * (rows + 1) * wanted.headers, np.uint8)
        headers, names, values = (headers, names, values) if wanted.headers else (-1, 0, 0)
        names_at, values_at = (
            np.empty(4 * headers + 4, np.uint8),
            np.empty(4 * headers + 4, np.uint8),
        )
        name_data, value_data = np.empty(names, np.uint8), np.empty(values, np.uint8)
        bodies_at = np.empty(4 * (rows + 1) * wanted.body, np.uint8)
        body_data = np.empty(bodies * wanted.body, np.uint8)
        filled = _KERNELS.fill_read(
            data,
            rows,
            wanted.bits,
            seq_nums,
            stamps,
            metered,
            headers_at,
            names_at,
            name_data,
            values_at,
            value_data,
            bodies_at,
            body_data,
        )
        assert filled == rows, "a second walk finds what the first one found"
        columns = [_array(pa.int64(), rows, seq_nums), _array(pa.int64(), rows, stamps)]
        if wanted.headers:
            pairs = pa.StructArray.from_buffers(
                HEADER,
                headers,
                [None],
                children=[
                    _array(pa.binary(), headers, names_at, name_data),
                    _array(pa.binary(), headers, values_at, value_data),
                ],
            )
            columns.append(
                pa.ListArray.from_buffers(
                    HEADERS, rows, [None, pa.py_buffer(headers_at.data)], children=[pairs]
                )
            )
        if wanted.body:
            columns.append(_array(pa.binary(), rows, bodies_at, body_data))
        if wanted.metered_bytes:
            columns.append(_array(pa.int32(), rows, metered))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _array(of: pa.DataType, length: int, *buffers: Bytes | Words) -> "pa.Array[Any]":
    return pa.Array.from_buffers(
        of, length, [None, *(pa.py_buffer(buffer.data) for buffer in buffers)]
    )


class Input(NamedTuple):
    """An AppendInput without conditions: some rows, one behind the other."""

    message: bytes
    first_row: int
    records: int
    metered_bytes: int


class _Rows(NamedTuple):
    """The bytes of the columns that become messages; the last three are the data of the values."""

    stamps: Bytes
    stamped: Bytes
    headers: Bytes
    headed: Bytes
    names: Bytes
    values: Bytes
    bodies: Bytes
    name: Bytes
    value: Bytes
    body: Bytes


def encode_inputs(
    body: "pa.Array[Any]",
    headers: "pa.Array[Any] | None" = None,
    timestamp: "pa.Array[Any] | None" = None,
    *,
    records_max: int = BATCH_RECORDS_MAX,
    metered_max: int = BATCH_METERED_BYTES_MAX,
) -> Iterator[Input]:
    """Yield rows as AppendInput messages, as few as the limits of a batch and of a frame allow.

    Bodies and what is in headers may be binary or text; timestamps are integers. A null is an empty
    body, no headers, no timestamp. Raises Invalid, before anything is yielded, naming the row, for
    a record that no client may append; a batch leaves room for its conditions.
    """
    count = len(body)
    if not count:
        return
    rows = _rows_of(body, headers, timestamp)
    plan = np.empty(count * facts.INPUT_WORDS, np.int64)
    try:
        planned = _KERNELS.plan_inputs(
            count,
            *rows[:7],
            records_max,
            metered_max,
            FRAME_PAYLOAD_BYTES_MAX - CONDITIONS_BYTES_MAX,
            plan,
        )
    except IndexError:
        raise ValueError("the columns point outside of their data") from None
    if planned < 0:
        row, code = divmod(-planned, facts.ROW_FAULT_BASE)
        raise Invalid(f"row {row}: {facts.ROW_FAULTS[code]}")
    for first, size, metered, message_bytes in plan[: planned * facts.INPUT_WORDS].reshape(
        planned, facts.INPUT_WORDS
    ):
        message, fresh = blank(int(message_bytes))
        try:
            written = _KERNELS.write_input(int(first), int(size), *rows, fresh)
        except IndexError:
            raise ValueError("the columns point outside of their data") from None
        assert written == len(message), "a second walk finds what the first one found"
        yield Input(message, int(first), int(size), int(metered))


def _rows_of(
    body: "pa.Array[Any]", headers: "pa.Array[Any] | None", timestamp: "pa.Array[Any] | None"
) -> _Rows:
    if any(column is not None and len(column) != len(body) for column in (headers, timestamp)):
        raise ValueError("the columns have different numbers of rows")
    bodies, body_data = _binary(body)
    stamps = stamped = _NO_BYTES
    if timestamp is not None:
        stamped = _mask(timestamp)
        kind = pa.uint64() if pa.types.is_unsigned_integer(timestamp.type) else pa.int64()
        stamps = _fixed(timestamp.cast(kind), 8)
    heads = headed = name_data = value_data = _NO_BYTES
    names = values = np.zeros(4, np.uint8)
    if headers is not None:
        listed = cast("pa.ListArray[Any]", headers.cast(HEADERS))
        headed = _mask(listed)
        heads = _memory(listed.buffers()[1])[4 * listed.offset :]
        pairs = cast("pa.StructArray", listed.values)
        names, name_data = _binary(pairs.field(0))
        values, value_data = _binary(pairs.field(1))
    return _Rows(
        stamps, stamped, heads, headed, names, values, bodies, name_data, value_data, body_data
    )


def _memory(buffer: pa.Buffer | None) -> Bytes:
    return _NO_BYTES if buffer is None else np.frombuffer(memoryview(buffer), np.uint8)


def _fixed(array: "pa.Array[Any]", width: int) -> Bytes:
    return _memory(array.buffers()[1])[width * array.offset : width * (array.offset + len(array))]


def _mask(array: "pa.Array[Any]") -> Bytes:
    """Return a byte for each row that says whether it has a value; none where all have."""
    if not array.null_count:
        return _NO_BYTES
    is_valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(is_valid).view(np.uint8)


def _binary(array: "pa.Array[Any]") -> tuple[Bytes, Bytes]:
    """Return offsets and data; an array without values may have no offsets at all."""
    plain: pa.Array[Any] = array.cast(pa.binary())
    if plain.null_count:
        plain = plain.fill_null(b"")
    if not len(plain):
        return np.zeros(4, np.uint8), _NO_BYTES
    _, offsets, data = plain.buffers()
    return _memory(offsets)[4 * plain.offset :], _memory(data)
