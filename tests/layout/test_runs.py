"""The run index against a plain list of rows."""

import struct
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy import array, int64

from bourn.errors import Undecodable
from bourn.layout.runs import (
    NEVER_S,
    RUN_BYTES,
    Dropped,
    Run,
    RunIndex,
    fault_in_rows,
    last_commit,
)
from bourn.limits import U64_MAX

U32_MAX = 2**32 - 1
small = st.integers(0, 5)
u32 = st.integers(0, U32_MAX)
expiries = st.integers(0, 40) | st.just(NEVER_S)


def indexed(runs: list[Run]) -> RunIndex:
    index = RunIndex()
    for run in runs:
        index.append(*run[:9])
    return index


@st.composite
def run_lists(draw: st.DrawFn, start_max: int = U64_MAX - 10**6, most: int = 40) -> list[Run]:
    """Runs in order, with gaps, from anywhere in the range of u64."""
    seq_num, timestamp, commit = (draw(st.integers(0, start_max)) for _ in range(3))
    runs = []
    for _ in range(draw(st.integers(0, most))):
        seq_num += draw(small)
        first_timestamp = timestamp + draw(small)
        timestamp = first_timestamp + draw(small)
        count = draw(st.integers(1, 5))
        fields = (draw(u32), draw(u32), count, draw(u32), draw(expiries))
        runs.append(Run(seq_num, timestamp, first_timestamp, commit, *fields))
        seq_num += count
        commit += draw(st.integers(1, 5))
    return runs


class RunIndexAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = RunIndex()
        self.model: list[Run] = []
        self.end = (0, 0, 0)  # behind the last sequence number, timestamp, commit
        self.is_steady = False  # retention, so that no run expires before an older one

    @initialize(many=st.integers(0, 40), is_steady=st.booleans())
    def begin(self, many: int, is_steady: bool) -> None:
        self.is_steady = is_steady
        for step in range(many):
            self.append(step % 3, (step % 2, 1), 2, NEVER_S if step % 5 == 0 else (step * 7) % 41)

    def near(self, data: st.DataObject, *fields: str) -> int:
        """Draw a bound at or beside one that matters."""
        values: list[int] = [getattr(run, field) for run in self.model for field in fields] or [0]
        return max(0, data.draw(st.sampled_from(values)) + data.draw(st.integers(-1, 1)))

    @rule(
        seq_gap=small, time_gaps=st.tuples(small, small), count=st.integers(1, 4), expiry=expiries
    )
    def append(self, seq_gap: int, time_gaps: tuple[int, int], count: int, expiry: int) -> None:
        seq_num, timestamp, commit = self.end
        first = timestamp + time_gaps[0]
        last = first + time_gaps[1]
        if self.is_steady:
            expiry = min(max([0, *(run.expires_s for run in self.model)]) + expiry % 4, NEVER_S)
        metered = 90 + commit % 7
        run = Run(seq_num + seq_gap, last, first, commit, 64, 100, count, metered, expiry)
        self.index.append(*run[:9])
        self.model.append(run)
        self.end = (run.end_seq_num, last, commit + 1 + seq_gap)

    @rule(data=st.data())
    def drop_before_seq(self, data: st.DataObject) -> None:
        bound = self.near(data, "first_seq_num", "end_seq_num")
        dropped = [run for run in self.model if run.end_seq_num <= bound]
        self.expect(self.index.drop_before_seq(bound), dropped)

    @rule(data=st.data())
    def drop_before_commit(self, data: st.DataObject) -> None:
        bound = self.near(data, "commit")
        dropped = [run for run in self.model if run.commit < bound]
        self.expect(self.index.drop_before_commit(bound), dropped)

    @rule(data=st.data())
    def drop_expired(self, data: st.DataObject) -> None:
        now_s = self.near(data, "expires_s")
        dropped = [run for run in self.model if run.expires_s <= now_s and run.expires_s != NEVER_S]
        self.expect(self.index.drop_expired(now_s), dropped)

    def expect(self, found: Dropped, dropped: list[Run]) -> None:
        assert found.commits == [run.commit for run in dropped]
        assert found.metered == sum(run.metered for run in dropped)
        self.model = [run for run in self.model if run not in dropped]

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        seq_num = self.near(data, "first_seq_num", "end_seq_num")
        at = self.index.find_seq(seq_num)
        assert at == sum(run.end_seq_num <= seq_num for run in self.model)
        timestamp = self.near(data, "first_timestamp", "last_timestamp")
        at = self.index.find_timestamp(timestamp)
        assert at == sum(run.last_timestamp < timestamp for run in self.model)

    @rule(data=st.data(), most=st.integers(1, 9))
    def copy_by_pieces(self, data: st.DataObject, most: int) -> None:
        first, end = self.near(data, "commit"), self.near(data, "commit")
        wanted = [run for run in self.model if first <= run.commit < end]
        copied = bytearray()
        while piece := self.index.piece(first, end, most * RUN_BYTES + 1):
            assert len(piece) <= most * RUN_BYTES
            copied += piece
            first = last_commit(piece) + 1
        assert list(RunIndex.from_bytes(bytes(copied))) == wanted

    @rule(is_steady=st.booleans())
    def change_retention(self, is_steady: bool) -> None:
        self.is_steady = is_steady

    @rule()
    def store_and_load(self) -> None:
        self.index = RunIndex.from_bytes(self.index.to_bytes())

    @invariant()
    def same_rows(self) -> None:
        assert len(self.index) == len(self.model)
        assert list(self.index) == self.model
        assert [self.index.row(at) for at in range(len(self.index))] == self.model
        expected = min((run.expires_s for run in self.model), default=NEVER_S)
        assert self.index.earliest_expiry_s() == expected


TestRunIndexAgainstAList = RunIndexAgainstAList.TestCase
TestRunIndexAgainstAList.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None
)


@settings(deadline=None)
@given(run_lists())
def test_rows_survive_the_round_trip(runs: list[Run]) -> None:
    stored = indexed(runs).to_bytes()
    assert len(stored) == RUN_BYTES * len(runs)
    loaded = RunIndex.from_bytes(stored)
    assert list(loaded) == runs
    assert loaded == indexed(runs)


def test_a_row_is_56_bytes_little_endian_in_the_order_of_the_drawing() -> None:
    index = RunIndex()
    index.append(0x0102, 0x0304, 0x0203, 0x0506, 0x0708, 0x090A, 0x0B0C, 0x0D0E, 0x0F10)
    assert index.to_bytes().hex(" ", 8) == (
        "0201000000000000 0403000000000000 0302000000000000 0605000000000000"
        " 080700000a090000 0c0b00000e0d0000 100f000000000000"
    )


@settings(deadline=None)
@given(st.binary(max_size=RUN_BYTES * 20))
def test_hostile_bytes_are_refused_or_taken_as_they_are(data: bytes) -> None:
    try:
        index = RunIndex.from_bytes(data)
    except Undecodable:
        return
    assert index.to_bytes() == data


@settings(deadline=None)
@given(run_lists(start_max=50), st.data())
def test_one_changed_byte_is_judged_alike_however_many_rows(
    runs: list[Run], data: st.DataObject
) -> None:
    """Few rows are checked one by one and many at once; both must see the same faults."""
    stored = bytearray(indexed(runs).to_bytes())
    if stored:
        at = data.draw(st.integers(0, len(stored) - 1))
        stored[at] = data.draw(st.sampled_from([0, 1, 3, stored[at] ^ 1, 0x80, 0xFF]))
    changed = bytes(stored)
    fault = fault_in_rows(changed, array([0], int64))
    index = RunIndex()
    try:
        index._append_all(changed)
    except Undecodable:
        assert fault is not None
    else:
        assert fault is None
        assert index.to_bytes() == changed


@settings(deadline=None)
@given(st.lists(run_lists(start_max=50, most=3), max_size=8))
def test_rows_of_many_streams_are_checked_stream_by_stream(streams: list[list[Run]]) -> None:
    rows = b"".join(indexed(runs).to_bytes() for runs in streams)
    starts = [0]
    for runs in streams:
        starts.append(starts[-1] + len(runs) * RUN_BYTES)
    assert fault_in_rows(rows, array(starts, int64)) is None
    taken_as_one = [run for runs in streams for run in runs]
    follows = all(
        after.first_seq_num >= run.end_seq_num
        and after.commit > run.commit
        and after.first_timestamp >= run.last_timestamp
        for run, after in pairwise(taken_as_one)
    )
    assert (fault_in_rows(rows, array([0], int64)) is None) == follows


FIRST = Run(10, 100, 90, 5, 64, 300, 4, 200, 1000)


@pytest.mark.parametrize(
    "run",
    [
        FIRST._replace(first_seq_num=13, commit=6, first_timestamp=100),  # overlaps
        FIRST._replace(first_seq_num=14, commit=5, first_timestamp=100),  # the same commit
        FIRST._replace(first_seq_num=14, commit=6, first_timestamp=99),  # time goes back
        FIRST._replace(first_seq_num=14, commit=6, first_timestamp=101),  # in the run itself
        FIRST._replace(first_seq_num=14, commit=6, first_timestamp=100, count=0),
        FIRST._replace(first_seq_num=U64_MAX - 3, commit=6, first_timestamp=100),  # leaves u64
    ],
)
def test_a_run_that_does_not_follow_is_refused(run: Run) -> None:
    index = indexed([FIRST])
    with pytest.raises(ValueError, match="a run"):
        index.append(*run[:9])
    assert list(index) == [FIRST]
    rows = index.to_bytes() + struct.pack("<QQQQIIIIII", *run)
    assert fault_in_rows(rows, array([0], int64)) is not None
    with pytest.raises(Undecodable):
        RunIndex.from_bytes(rows)


def test_a_run_may_end_at_the_last_sequence_number() -> None:
    last = FIRST._replace(first_seq_num=U64_MAX - 4, commit=6, first_timestamp=100)
    index = RunIndex.from_bytes(indexed([FIRST, last]).to_bytes())
    assert index.find_seq(U64_MAX - 1) == 1
    assert index.find_seq(U64_MAX) == 2


@pytest.mark.parametrize("index", [-1, 1])
def test_there_is_no_row_outside(index: int) -> None:
    with pytest.raises(IndexError):
        indexed([FIRST]).row(index)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6), st.data())
def test_a_guess_where_a_run_is_never_changes_what_is_found(
    gaps: list[tuple[int, int]], data: st.DataObject
) -> None:
    index, seq_num = RunIndex(), 0
    for commit, (gap, count) in enumerate(gaps):
        index.append(seq_num + gap, 5, 5, commit, 0, 1, count, 8, NEVER_S)
        seq_num += gap + count
    wanted = data.draw(st.integers(0, seq_num + 2))
    near = data.draw(st.integers(-2, len(gaps) + 2))
    assert index.find_seq_near(wanted, near) == index.find_seq(wanted)


def test_an_index_can_grow_while_somebody_keeps_the_frames_of_those_who_have_looked() -> None:
    """As profilers within the process do: what a frame's names refer to stays as it is."""
    kept = []
    runs = [Run(at, at, at, at, 0, 1, 1, 1, 90 - at) for at in range(40)]
    index = RunIndex.from_checked(indexed(runs).to_bytes())
    sys.setprofile(lambda frame, _event, _argument: kept.append(frame))
    try:
        index.drop_expired(0)
        index.metered_bytes()
        index.earliest_expiry_s()
        RunIndex.from_bytes(index.to_bytes())
    finally:
        sys.setprofile(None)
    assert any(frame.f_code.co_name == "metered_bytes" for frame in kept)
    index.append(*Run(40, 40, 40, 40, 0, 1, 1, 1, 90)[:9])
    assert len(index) == 41
