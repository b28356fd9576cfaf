"""Admission: a stream's state, a batch and the time in; positions and the next state out.

The state is the *assigned-next* one. It runs ahead of durability by the batches in flight, so a
refusal may rest on what a crash could still undo: whoever calls `admit` holds a refusal back until
the state that it was judged by is durable.
"""

from typing import Final

import msgspec
import numpy as np

from bourn.errors import FencingTokenMismatch, Invalid, OutOfSequence, SeqNumMismatch
from bourn.layout.records import RecordBatch, U64Array
from bourn.limits import U64_MAX
from bourn.model.config import TimestampMode
from bourn.model.record import Command, Fence, StreamPosition, new_position

# The tail is one past the last record and must itself be a u64.
SEQ_NUM_MAX: Final = U64_MAX - 1
# Bound once: looking a member up on its class costs more than the comparison.
_CLIENT_REQUIRE: Final = TimestampMode.CLIENT_REQUIRE
_ARRIVAL: Final = TimestampMode.ARRIVAL


class StreamState(msgspec.Struct, frozen=True, gc=False):
    """What the next batch of a stream is judged by; in-flight batches are included."""

    next_seq_num: int = 0
    last_timestamp: int = 0
    fencing_token: str = ""
    trim_point: int = 0

    @property
    def tail(self) -> StreamPosition:
        """The position behind the last record."""
        return StreamPosition(self.next_seq_num, self.last_timestamp)


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The part of a stream's config that admission obeys."""

    mode: TimestampMode = TimestampMode.CLIENT_PREFER
    uncapped: bool = False
    seq_num_max: int = SEQ_NUM_MAX  # the last sequence number that may be assigned


class Admitted(msgspec.Struct, frozen=True, eq=False):
    """A batch with its place in the stream."""

    state: StreamState  # what the next batch is judged by
    start: StreamPosition
    end: StreamPosition  # behind the last record, with the last record's timestamp
    timestamps: int | U64Array  # one value where all records share it, else one per record


def admit(
    state: StreamState,
    batch: RecordBatch,
    match_seq_num: int | None,
    fencing_token: str | None,
    rules: Rules,
    now_ms: int,
) -> Admitted:
    """Give a batch its positions, whole or not at all.

    Raises FencingTokenMismatch, SeqNumMismatch and Invalid, the first that applies in this order.
    """
    if fencing_token is not None and fencing_token != state.fencing_token:
        raise FencingTokenMismatch(state.fencing_token)
    first_seq_num = state.next_seq_num
    if match_seq_num is not None and match_seq_num != first_seq_num:
        raise SeqNumMismatch(first_seq_num)
    if first_seq_num + batch.count - 1 > rules.seq_num_max or rules.mode is _CLIENT_REQUIRE:
        _check_records(batch, first_seq_num, rules)

    timestamps = _assign_timestamps(batch, rules, state.last_timestamp, now_ms)
    if isinstance(timestamps, int):
        first_timestamp = last_timestamp = timestamps
    else:
        first_timestamp, last_timestamp = int(timestamps[0]), int(timestamps[-1])
    if batch.commands:
        after = _after(state, batch.count, last_timestamp, batch.commands)
    else:
        after = StreamState(
            first_seq_num + batch.count, last_timestamp, state.fencing_token, state.trim_point
        )
    return Admitted(
        after,
        new_position((first_seq_num, first_timestamp)),
        new_position((after.next_seq_num, last_timestamp)),
        timestamps,
    )


def replay(
    state: StreamState,
    first_seq_num: int,
    count: int,
    last_timestamp: int,
    commands: tuple[tuple[int, Command], ...],
) -> StreamState:
    """Return the state behind a stored batch: what `admit` returned when the batch was written.

    Raises OutOfSequence for a batch that cannot follow `state`.
    """
    if first_seq_num != state.next_seq_num:
        raise OutOfSequence(
            f"the batch begins at sequence number {first_seq_num}, not {state.next_seq_num}"
        )
    if count < 1:
        raise OutOfSequence(f"the batch at sequence number {first_seq_num} is empty")
    if last_timestamp < state.last_timestamp:
        raise OutOfSequence(
            f"the batch at sequence number {first_seq_num} ends at timestamp {last_timestamp}, "
            f"before {state.last_timestamp}"
        )
    return _after(state, count, last_timestamp, commands)


def _after(
    state: StreamState,
    count: int,
    last_timestamp: int,
    commands: tuple[tuple[int, Command], ...],
) -> StreamState:
    first_seq_num = state.next_seq_num
    fencing_token = state.fencing_token
    trim_point = state.trim_point
    for index, command in commands:
        if isinstance(command, Fence):
            fencing_token = command.token
        else:
            # A trim may take its own record with it, but nothing behind it.
            trim_point = max(trim_point, min(command.seq_num, first_seq_num + index + 1))
    return StreamState(first_seq_num + count, last_timestamp, fencing_token, trim_point)


def _check_records(batch: RecordBatch, first_seq_num: int, rules: Rules) -> None:
    """Refuse the batch for its first record that has no number left or lacks its timestamp."""
    numbered = max(0, rules.seq_num_max + 1 - first_seq_num)
    timed = _timed_prefix(batch) if rules.mode is _CLIENT_REQUIRE else batch.count
    if numbered < batch.count and numbered <= timed:
        raise Invalid(
            f"max assignable sequence number is {rules.seq_num_max}; "
            f"attempted {first_seq_num + numbered}"
        )
    if timed < batch.count:
        raise Invalid("record timestamp was required but was missing")


def _timed_prefix(batch: RecordBatch) -> int:
    """How many leading records carry a timestamp."""
    if batch.timestamps is None:
        return 0
    if batch.missing is None or not batch.missing.any():
        return batch.count
    return int(batch.missing.argmax())


def _assign_timestamps(
    batch: RecordBatch, rules: Rules, previous: int, now_ms: int
) -> int | U64Array:
    given = batch.timestamps
    if given is None or rules.mode is _ARRIVAL:
        return max(previous, now_ms)
    if batch.count == 1:
        # One record is common, and plain integers are many times cheaper than arrays of one.
        one = now_ms if batch.missing is not None and batch.missing[0] else int(given[0])
        if one > now_ms and not rules.uncapped:
            one = now_ms
        return max(previous, one)

    # Every operand is a uint64: mixed with a signed scalar numpy would go through float64.
    now = np.uint64(now_ms)
    chosen = given if batch.missing is None else np.where(batch.missing, now, given)
    if not rules.uncapped:
        chosen = np.minimum(chosen, now)
    ordered = np.maximum(np.maximum.accumulate(chosen), np.uint64(previous))
    if ordered[0] == ordered[-1]:
        return int(ordered[0])
    return ordered
