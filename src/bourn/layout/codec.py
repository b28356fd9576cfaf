"""The batch codec: AppendInput to stored records, stored records to ReadBatch entries.

    AppendInput (protobuf)  --decode_append_input-->  RecordBatch
    payload of a batch      --encode_sequenced----->  `records` of a ReadBatch (protobuf)
                            --decode_sequenced----->  SequencedRecord values

Whole batches go through compiled kernels, without a Python object per record; the commonest append,
one record with nothing but a small body, takes a short way through plain Python, which is quicker
than two calls of kernels. Results of `encode_sequenced` are whole fields: joined, in order, they
are a ReadBatch message.

A payload may be any bytes: what is no batch raises RecordFormatError, and nothing is read or
written out of bounds. Buffers must not change during a call; compiled calls let go of the
interpreter's lock.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bourn.errors import BadProto, Invalid
from bourn.layout.kernels import facts
from bourn.layout.kernels.compiled import Kernels, blank
from bourn.layout.records import (
    BoolArray,
    Buffer,
    RecordBatch,
    RecordFormatError,
    U64Array,
    check_batch,
    parse_record,
    plain_payload,
    plain_start,
)
from bourn.limits import (
    BATCH_RECORDS_MAX,
    FENCING_TOKEN_BYTES_MAX,
    RECORD_METERED_BYTES_MAX,
    TRIM_BODY_BYTES,
    U64_MAX,
)
from bourn.model.record import Command, Headers, SequencedRecord, command_of

U8Array = npt.NDArray[np.uint8]
U32Array = npt.NDArray[np.uint32]
I64Array = npt.NDArray[np.int64]

_KERNELS: Final = Kernels()
_I64_MAX: Final = 2**63 - 1
_NO_STAMPS: Final = np.empty(0, np.uint8)
_SMALL_BYTES: Final = 1 << 14  # below this, one more copy costs less than one more walk,
_SMALL_RECORD_BYTES: Final = 256  # and so it does for records that are smaller than this

# The short way of one plain record
_PLAIN_BYTES_MIN: Final = 6
_PLAIN_BYTES_MAX: Final = 1 << 14  # lengths of two bytes at most; kernels copy larger ones faster
_RECORDS_TAG: Final = 0x0A
_BODY_TAG: Final = 0x1A
_MORE: Final = 0x80  # set in every byte of a varint but the last

assert facts.RECORD_METERED_MAX == RECORD_METERED_BYTES_MAX
assert facts.FENCE_BODY_BYTES_MAX == FENCING_TOKEN_BYTES_MAX
assert facts.TRIM_BODY_BYTES == TRIM_BODY_BYTES


class AppendInput(NamedTuple):
    """A decoded append: the batch and the conditions on it."""

    batch: RecordBatch
    match_seq_num: int | None = None
    fencing_token: str | None = None


class Cut(NamedTuple):
    """Where a read stops in a batch, and what the records up to there weigh."""

    stop: int
    metered_bytes: int


def warm(say: Callable[[str], None]) -> None:
    """Make sure that every kernel is compiled, or loaded from the cache; say so if it takes."""
    _KERNELS.warm(say)


def decode_append_input(data: Buffer) -> AppendInput:
    """Decode and validate an AppendInput message.

    Raises BadProto for what the protobuf library would refuse. Then Invalid, for the first of: a
    record that breaks a rule of its own, in record order; the batch, as `check_batch` judges it;
    a fencing token that is too long.
    """
    at = _plain_body_in(data)
    if at:
        body = data[at:]
        return AppendInput(RecordBatch(plain_payload(body), 1, 8 + len(body), 0))
    view = np.frombuffer(data, np.uint8)
    rows = np.empty(BATCH_RECORDS_MAX * facts.FACTS, np.int64)
    state = np.zeros(facts.STATE, np.int64)
    count = _scan(view, rows, state)
    found: list[int] = state.tolist()
    commands, flaw = _judge(data, rows, count, found)
    while found[facts.AT] < len(view):
        # More records than a batch may have: what follows may still be a graver error.
        more = _scan(view, rows, state)
        found = state.tolist()
        flaw = flaw or _judge(data, rows, more, found)[1]
        count += more
    if flaw is not None:
        raise flaw
    metered = found[facts.METERED_SUM]
    check_batch(count, metered)
    token = token_in(data, found)
    payload, fresh = blank(8 * count + found[facts.STORED_SUM])
    if _KERNELS.write_append(view, rows, count, fresh) != len(payload):
        raise RuntimeError("the message has changed during the call")
    timestamps, missing = timestamp_columns(rows, count, found[facts.STAMPED])
    headers = found[facts.HEADER_SUM]
    batch = RecordBatch(payload, count, metered, headers, timestamps, missing, commands)
    match = found[facts.MATCH] & U64_MAX if found[facts.MATCH_SET] else None
    return AppendInput(batch, match, token)


def _plain_body_in(data: Buffer) -> int:
    """Return where the body lies in a message of one record with a small body; 0 for any other."""
    size = len(data)
    if not _PLAIN_BYTES_MIN <= size < _PLAIN_BYTES_MAX or data[0] != _RECORDS_TAG:
        return 0
    length, at = data[1], 2
    if length >= _MORE:
        length, at = length - _MORE + (data[2] << 7), 3
    if length != size - at or data[at] != _BODY_TAG:
        return 0
    length = data[at + 1]
    if length >= _MORE:
        length, at = length - _MORE + (data[at + 2] << 7), at + 1
    at += 2
    return at if length == size - at else 0


def _scan(view: U8Array, rows: I64Array, state: I64Array) -> int:
    count = _KERNELS.scan_append(view, rows, state)
    if count < 0:
        raise BadProto(f"Failed to decode protobuf: {facts.MESSAGE_FAULTS[count]}")
    return count


def _judge(
    data: Buffer, rows: I64Array, count: int, found: list[int]
) -> tuple[tuple[tuple[int, Command], ...], Invalid | None]:
    """Return the commands among the scanned rows, and what is wrong with the first bad row."""
    flawed = found[facts.FLAWED]
    if flawed < 0 and not found[facts.COMMANDS]:
        return (), None
    commands: list[tuple[int, Command]] = []
    table = rows.reshape(-1, facts.FACTS)[:count]
    for index in np.flatnonzero(table[:, facts.FLAGS] & facts.FLAG_COMMAND).tolist():
        if 0 <= flawed < index:
            break
        row: list[int] = table[index].tolist()
        op = _slice(data, row[facts.VALUE_AT], row[facts.VALUE_BYTES])
        body = _slice(data, row[facts.BODY_AT], row[facts.BODY_BYTES])
        try:
            command = command_of(((b"", op),), body)
        except Invalid as flaw:
            return (), flaw
        assert command is not None, "one header without a name"
        commands.append((index, command))
    return tuple(commands), _flaw(table[flawed].tolist()) if flawed >= 0 else None


def _flaw(row: list[int]) -> Invalid:
    """Return what is wrong with a row that a scan has found flawed."""
    if row[facts.FLAGS] & facts.FLAG_EMPTY_NAME:
        return Invalid("invalid header: empty name")
    return Invalid("record must have metered size less than 1 MiB")


def _slice(data: Buffer, at: int, size: int) -> bytes:
    return bytes(data[at : at + size])


def timestamp_columns(
    rows: I64Array, count: int, stamped: int
) -> tuple[U64Array | None, BoolArray | None]:
    """Return the timestamps of scanned rows, and which of these have none."""
    if not stamped:
        return None, None
    table = rows.reshape(-1, facts.FACTS)[:count]
    timestamps = table[:, facts.STAMP].astype(np.uint64)
    if stamped == count:
        return timestamps, None
    return timestamps, table[:, facts.FLAGS] & facts.FLAG_STAMPED == 0


def token_in(data: Buffer, found: list[int]) -> str | None:
    """Return the fencing token that a scan has found."""
    at, size = found[facts.TOKEN_AT], found[facts.TOKEN_BYTES]
    if not at:
        return None
    if size > FENCING_TOKEN_BYTES_MAX:
        raise Invalid(f"fencing token must not exceed {FENCING_TOKEN_BYTES_MAX} bytes in length")
    return _slice(data, at, size).decode()


def encode_sequenced(
    payload: Buffer,
    count: int,
    first_seq_num: int,
    timestamps: int | U64Array,
    start: int,
    stop: int,
) -> bytes:
    """Return the `records` entries of a ReadBatch for the records [start, stop) of a batch.

    `timestamps` is one for all records, or one for each of the `count`.
    """
    check_range(count, first_seq_num, start, stop)
    view = np.frombuffer(payload, np.uint8)
    stamps, stamp = stamps_of(timestamps, count)
    if len(payload) < max(_SMALL_BYTES, _SMALL_RECORD_BYTES * count):
        # Room for the worst case and a copy cost less than a walk to measure. A record takes at
        # most 29 bytes besides its data, a header at most twice its stored form.
        room = np.empty(2 * len(payload) + 32 * (stop - start), np.uint8)
        written = _KERNELS.write_sequenced(
            view, count, first_seq_num, stamps, stamp, start, stop, room
        )
        if written < 0:
            raise format_error(written)
        return room[:written].tobytes()
    size = _measure(view, count, first_seq_num, stamps, stamp, start, stop)
    encoded, fresh = blank(size)
    written = _KERNELS.write_sequenced(
        view, count, first_seq_num, stamps, stamp, start, stop, fresh
    )
    if written != size:
        raise format_error(written if written < 0 else -facts.CHANGED)
    return encoded


def sequenced_size(
    payload: Buffer,
    count: int,
    first_seq_num: int,
    timestamps: int | U64Array,
    start: int,
    stop: int,
) -> int:
    """Return the size of what `encode_sequenced` would return."""
    check_range(count, first_seq_num, start, stop)
    view = np.frombuffer(payload, np.uint8)
    return _measure(view, count, first_seq_num, *stamps_of(timestamps, count), start, stop)


def sequenced_size_bound(metered_bytes: int, count: int, header_count: int) -> int:
    """Return a size that the encoded form of such records never exceeds.

    With lengths of one byte, a record takes at most 26 bytes besides its data (the metered size
    has 8 for them), a header 6 (the metered size has 2). A longer length takes at most one byte
    more per 128 of what it counts, and a byte is counted by three lengths at most: that is less
    than a 32nd.
    """
    size = metered_bytes + 18 * count + 4 * header_count
    return size + (size >> 5) + 1


def cut(
    payload: Buffer,
    count: int,
    timestamps: int | U64Array,
    start: int,
    *,
    records_max: int,
    metered_max: int,
    until: int | None,
    encoded_max: int,
    first_seq_num: int,
) -> Cut:
    """Return how many records from `start` on keep every limit.

    `until` is exclusive: the cut is before the first record with that timestamp or a later one.
    `encoded_max` bounds the size of what `encode_sequenced` would return.
    """
    stop = min(count, start + max(0, records_max))
    check_range(count, first_seq_num, start, stop)
    reached, metered, _ = _KERNELS.cut_sequenced(
        np.frombuffer(payload, np.uint8),
        count,
        first_seq_num,
        *stamps_of(timestamps, count),
        start,
        stop,
        min(metered_max, _I64_MAX),
        min(encoded_max, _I64_MAX),
        until is not None,
        until or 0,
    )
    if reached < 0:
        raise format_error(reached)
    return Cut(reached, metered)


def decode_sequenced(
    payload: Buffer,
    count: int,
    first_seq_num: int,
    timestamps: int | U64Array,
    start: int,
    stop: int,
) -> list[SequencedRecord]:
    """Return the records [start, stop) of a batch, for the forms that are made one by one."""
    check_range(count, first_seq_num, start, stop)
    records_at = 8 * count
    if not 0 < records_at <= len(payload):
        raise format_error(-facts.BAD_COLUMNS)
    columns: list[int] = np.frombuffer(payload, "<u4", 2 * count).tolist()
    if columns[count - 1] != len(payload) - records_at:
        raise format_error(-facts.BAD_COLUMNS)
    stamps = [timestamps] * count if isinstance(timestamps, int) else timestamps[:count].tolist()
    records: list[SequencedRecord] = []
    at = records_at + columns[start - 1] if start else records_at
    for index in range(start, stop):
        end = records_at + columns[index]
        body_at = at + columns[count + index]
        if not at < body_at <= end <= len(payload):
            raise format_error(-facts.BAD_COLUMNS, index)
        headers: Headers = ()
        size = end - body_at
        if size > RECORD_METERED_BYTES_MAX or payload[at:body_at] != plain_start(size):
            headers = _headers(payload, index, at, body_at, end)
        body = bytes(payload[body_at:end])
        records.append(SequencedRecord(first_seq_num + index, stamps[index], body, headers))
        at = end
    return records


def _headers(payload: Buffer, index: int, at: int, body_at: int, end: int) -> Headers:
    try:
        headers, found_at = parse_record(payload, at, end)
    except RecordFormatError as error:
        raise RecordFormatError(f"record {index}: {error.message}") from None
    if found_at != body_at:
        raise format_error(-facts.BAD_BODY_START, index)
    return headers


def metered_sizes(payload: Buffer, count: int) -> U32Array:
    """Return the metered size of every record of a batch, encrypted ones too."""
    sizes = np.empty(count, np.uint32)
    fault = _KERNELS.metered_sizes(np.frombuffer(payload, np.uint8), count, sizes)
    if fault < 0:
        raise format_error(fault)
    return sizes


def metered_size(payload: Buffer, count: int, start: int, stop: int) -> int:
    """Return what the records [start, stop) of a batch say that they weigh."""
    return int(metered_sizes(payload, count)[start:stop].sum())


def _measure(
    view: U8Array,
    count: int,
    first_seq_num: int,
    stamps: U8Array,
    stamp: int,
    start: int,
    stop: int,
) -> int:
    reached, _, size = _KERNELS.cut_sequenced(
        view, count, first_seq_num, stamps, stamp, start, stop, _I64_MAX, _I64_MAX, 0, 0
    )
    if reached < 0:
        raise format_error(reached)
    return size


def stamps_of(timestamps: int | U64Array, count: int) -> tuple[U8Array, int]:
    """Return the timestamps as bytes, so that alignment does not matter, or the one of all."""
    if isinstance(timestamps, int):
        return _NO_STAMPS, timestamps
    if timestamps.shape != (count,):
        raise ValueError(f"{count} records, but timestamps of shape {timestamps.shape}")
    return np.ascontiguousarray(timestamps, "<u8").view(np.uint8), 0


def check_range(count: int, first_seq_num: int, start: int, stop: int) -> None:
    """Refuse what are no records of a batch."""
    if not 0 <= start <= stop <= count or not 0 <= first_seq_num <= U64_MAX + 1 - count:
        raise ValueError(f"no records {start} to {stop} of {count} from {first_seq_num}")


def format_error(fault: int, index: int = 0) -> RecordFormatError:
    """Return the error that a fault of a kernel stands for."""
    more, code = divmod(-fault, facts.RECORD_FAULT_BASE)
    return RecordFormatError(f"record {index + more}: {facts.RECORD_FAULTS[code]}")
