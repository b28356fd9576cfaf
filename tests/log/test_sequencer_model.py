"""Admission against a stream that is a plain list, over tens of thousands of random steps."""

import itertools
from collections import Counter
from typing import Any, ClassVar, NamedTuple

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bourn.errors import FencingTokenMismatch, Invalid, RequestError, SeqNumMismatch
from bourn.layout.records import encode_records
from bourn.limits import AES_GCM_SEQ_NUM_MAX, U64_MAX
from bourn.log.sequencer import SEQ_NUM_MAX, Admitted, Rules, StreamState, admit, replay
from bourn.model.config import TimestampMode as Mode
from bourn.model.record import Record, fence_record, trim_record

STEPS_MIN = 20_000
EXAMPLES = 480
STEPS_PER_EXAMPLE = 50

MISSING = "record timestamp was required but was missing"


class Row(NamedTuple):
    seq_num: int
    timestamp: int
    record: Record


class ListedStream:
    """What a stream is, as naively as it can be said: everything is read off the list."""

    def __init__(self, before: StreamState) -> None:
        self.before = before
        self.rows: list[Row] = []

    def next_seq_num(self) -> int:
        return self.rows[-1].seq_num + 1 if self.rows else self.before.next_seq_num

    def last_timestamp(self) -> int:
        return self.rows[-1].timestamp if self.rows else self.before.last_timestamp

    def fencing_token(self) -> str:
        for row in reversed(self.rows):
            if row.record.headers == ((b"", b"fence"),):
                return row.record.body.decode()
        return self.before.fencing_token

    def trim_point(self) -> int:
        trims = [row for row in self.rows if row.record.headers == ((b"", b"trim"),)]
        points = [min(int.from_bytes(row.record.body, "big"), row.seq_num + 1) for row in trims]
        return max([self.before.trim_point, *points])

    def append(
        self, records: list[Record], match: int | None, token: str | None, rules: Rules, now: int
    ) -> list[Row]:
        if token is not None and token != self.fencing_token():
            raise FencingTokenMismatch(self.fencing_token())
        if match is not None and match != self.next_seq_num():
            raise SeqNumMismatch(self.next_seq_num())
        rows: list[Row] = []
        for record in records:
            seq_num = self.next_seq_num() + len(rows)
            if seq_num > rules.seq_num_max:
                raise Invalid(
                    f"max assignable sequence number is {rules.seq_num_max}; attempted {seq_num}"
                )
            if rules.mode is Mode.ARRIVAL:
                timestamp = now
            elif record.timestamp is not None:
                timestamp = record.timestamp
            elif rules.mode is Mode.CLIENT_REQUIRE:
                raise Invalid(MISSING)
            else:
                timestamp = now
            if timestamp > now and not rules.uncapped:
                timestamp = now
            previous = rows[-1].timestamp if rows else self.last_timestamp()
            rows.append(Row(seq_num, max(timestamp, previous), record))
        self.rows += rows
        return rows


Moment = tuple[str, int] | None
Drawn = tuple[str, Any, Moment]  # kind of record, token or trim point, timestamp

# Everything is drawn in relation to the stream, so that edges are met often, and as one choice
# from a list: draws are what a step costs.
EDGES = [0, 1, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, U64_MAX - 1, U64_MAX]
NEAR = range(-3, 4)
TOKENS = ["", "a", "b"]
AROUND_NOW: list[Moment] = [("now", delta) for delta in NEAR]
AROUND_LAST: list[Moment] = [("last", delta) for delta in NEAR]
AT_EDGES: list[Moment] = [("absolute", edge) for edge in EDGES]
MOMENTS = [*[None] * 7, *AROUND_NOW, *AROUND_LAST, *AT_EDGES]
POINTS = [*(("next", delta) for delta in NEAR), *EDGES]

PLAIN = st.sampled_from([("plain", None, moment) for moment in MOMENTS])
FENCES = st.sampled_from([("fence", *pair) for pair in itertools.product(TOKENS, MOMENTS)])
TRIMS = st.sampled_from([("trim", *pair) for pair in itertools.product(POINTS, MOMENTS)])
MIXED = st.lists(st.one_of(PLAIN, PLAIN, FENCES, TRIMS), min_size=1, max_size=6)
UNTIMED = st.sampled_from([[("plain", None, None)] * count for count in (1, 2, 3)])
TIMED = st.lists(
    st.sampled_from([("plain", None, moment) for moment in AROUND_NOW]), min_size=1, max_size=4
)


def within_u64(value: int) -> int:
    return min(max(value, 0), U64_MAX)


class Admission(RuleBasedStateMachine):
    """`admit` and `replay` beside the list."""

    steps: ClassVar[int] = 0
    outcomes: ClassVar[Counter[str]] = Counter()

    @initialize(
        next_seq_num=st.sampled_from([0, 5, AES_GCM_SEQ_NUM_MAX - 9, 2**63 - 4, U64_MAX - 40]),
        last_timestamp=st.sampled_from([0, 1000, 2**63, U64_MAX]),
        token=st.sampled_from(TOKENS),
        untrimmed=st.sampled_from([0, 1, 5]),
    )
    def begin(self, next_seq_num: int, last_timestamp: int, token: str, untrimmed: int) -> None:
        trim_point = max(0, next_seq_num - untrimmed)
        self.state = StreamState(next_seq_num, last_timestamp, token, trim_point)
        self.replayed = self.state
        self.stream = ListedStream(self.state)
        self.admission = Rules()
        self.now = 1000

    @rule(records=MIXED | UNTIMED | TIMED)
    def append(self, records: list[Drawn]) -> None:
        self.append_and_compare(records, None, None)

    @rule(
        records=MIXED | UNTIMED,
        match=st.sampled_from(["none", "right", "right", "trim point", "near"]),
        near=st.sampled_from(NEAR),
        token=st.sampled_from(["none", "right", "right", "own fence", "a", ""]),
    )
    def append_on_conditions(self, records: list[Drawn], match: str, near: int, token: str) -> None:
        next_seq_num = self.stream.next_seq_num()
        match_seq_num = {
            "none": None,
            "right": next_seq_num,
            "trim point": self.stream.trim_point(),
            "near": within_u64(next_seq_num + near),
        }[match]
        own_fences = [value for kind, value, _ in records if kind == "fence"]
        fencing_token = {
            "none": None,
            "right": self.stream.fencing_token(),
            "own fence": own_fences[-1] if own_fences else "a",
        }.get(token, token)
        self.append_and_compare(records, match_seq_num, fencing_token)

    @rule(move=st.one_of(st.integers(-50, 200), st.none()), jump=st.sampled_from(EDGES))
    def let_the_clock_move(self, move: int | None, jump: int) -> None:
        type(self).steps += 1
        self.now = jump if move is None else within_u64(self.now + move)

    @rule(
        mode=st.sampled_from(Mode),
        uncapped=st.booleans(),
        room=st.one_of(st.none(), st.none(), st.integers(-1, 12)),
        aes=st.booleans(),
    )
    def reconfigure(self, mode: Mode, uncapped: bool, room: int | None, aes: bool) -> None:
        type(self).steps += 1
        seq_num_max = AES_GCM_SEQ_NUM_MAX if aes else SEQ_NUM_MAX
        if room is not None:
            seq_num_max = min(max(0, self.stream.next_seq_num() + room), SEQ_NUM_MAX)
        self.admission = Rules(mode, uncapped, seq_num_max)

    @invariant()
    def the_state_is_the_lists_and_replay_gives_the_same(self) -> None:
        if not hasattr(self, "stream"):
            return
        assert self.state == StreamState(
            self.stream.next_seq_num(),
            self.stream.last_timestamp(),
            self.stream.fencing_token(),
            self.stream.trim_point(),
        )
        assert self.replayed == self.state

    def teardown(self) -> None:
        if not hasattr(self, "stream"):
            return
        rows = self.stream.rows
        first = self.stream.before.next_seq_num
        assert [row.seq_num for row in rows] == list(range(first, first + len(rows)))
        timestamps = [self.stream.before.last_timestamp, *(row.timestamp for row in rows)]
        assert timestamps == sorted(timestamps)
        assert self.state.trim_point <= self.state.next_seq_num <= U64_MAX

    def append_and_compare(self, drawn: list[Drawn], match: int | None, token: str | None) -> None:
        type(self).steps += 1
        records = [self.resolve(*parts) for parts in drawn]
        batch = encode_records(records)
        expected: list[Row] | RequestError
        actual: Admitted | RequestError
        try:
            expected = self.stream.append(records, match, token, self.admission, self.now)
        except RequestError as refusal:
            expected = refusal
        try:
            actual = admit(self.state, batch, match, token, self.admission, self.now)
        except RequestError as refusal:
            actual = refusal
        if isinstance(actual, RequestError) or isinstance(expected, RequestError):
            self.outcomes[outcome_of(actual)] += 1
            assert told(actual) == told(expected)
            return
        self.outcomes["admitted"] += 1
        assert rows_of(actual, records) == expected
        end = actual.end
        assert (end.seq_num, end.timestamp) == (expected[-1].seq_num + 1, expected[-1].timestamp)
        self.state = actual.state
        self.replayed = replay(
            self.replayed, actual.start.seq_num, batch.count, end.timestamp, batch.commands
        )

    def resolve(self, kind: str, value: Any, moment: Moment) -> Record:
        bases = {"now": self.now, "last": self.stream.last_timestamp(), "absolute": 0}
        timestamp = None if moment is None else within_u64(bases[moment[0]] + moment[1])
        if kind == "fence":
            return fence_record(value, timestamp)
        if kind == "trim":
            base = self.stream.next_seq_num()
            point = within_u64(base + value[1]) if isinstance(value, tuple) else value
            return trim_record(point, timestamp)
        return Record(b"body", (), timestamp)


def outcome_of(refusal: object) -> str:
    if isinstance(refusal, Invalid):
        return "no timestamp" if refusal.message == MISSING else "no number"
    return type(refusal).__name__


def told(outcome: object) -> tuple[object, ...]:
    """What a client learns from a refusal; an admission equals none."""
    if isinstance(outcome, RequestError):
        return (type(outcome), vars(outcome), outcome.args)
    return ("admitted",)


def rows_of(admitted: Admitted, records: list[Record]) -> list[Row]:
    timestamps = admitted.timestamps
    if isinstance(timestamps, int):
        values = [timestamps] * len(records)
    else:
        assert timestamps.dtype == np.uint64
        values = [int(timestamp) for timestamp in timestamps]
        assert values[0] != values[-1], "a shared timestamp must be one number"
    assert (admitted.start.timestamp, len(values)) == (values[0], len(records))
    first = admitted.start.seq_num
    return [
        Row(first + i, timestamp, record)
        for i, (timestamp, record) in enumerate(zip(values, records, strict=True))
    ]


def test_admission_agrees_with_a_plain_list_for_20000_steps() -> None:
    run_state_machine_as_test(
        Admission,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{Admission.steps} steps: {dict(Admission.outcomes)}")
    assert Admission.steps >= STEPS_MIN
    # A run that never met one of the outcomes would have compared nothing about it.
    for outcome in (
        "admitted",
        "FencingTokenMismatch",
        "SeqNumMismatch",
        "no timestamp",
        "no number",
    ):
        assert Admission.outcomes[outcome] >= 100, outcome
