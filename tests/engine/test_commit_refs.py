"""Which commits still hold live runs, against a plain dictionary."""

import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bourn.engine.commit_refs import CommitRefs


def test_nothing_is_dead_in_an_empty_log() -> None:
    refs = CommitRefs()
    assert (refs.base, refs.end) == (0, 0)
    assert refs.dead(100) == []
    refs.forget_collected()
    assert (refs.base, refs.end) == (0, 0)


def test_commits_come_in_order() -> None:
    refs = CommitRefs(base=5)
    refs.add_commit(5, 1)
    for wrong in (5, 7, 4):
        with pytest.raises(ValueError, match="comes after"):
            refs.add_commit(wrong, 1)


def test_a_run_is_dropped_once() -> None:
    refs = CommitRefs(base=5)
    refs.add_commit(5, 1)
    refs.drop([5])
    for gone in (5, 4):
        with pytest.raises(ValueError, match="holds no run"):
            refs.drop([gone])
    refs.collected(5)
    with pytest.raises(ValueError, match="holds no run"):
        refs.drop([5])


def test_counts_of_a_snapshot_are_taken_over() -> None:
    refs = CommitRefs(base=10, counts=np.array([2, 0, 1], np.uint32))
    assert refs.end == 13
    assert refs.dead(13) == [11]
    refs.drop([12])
    assert refs.dead(13) == [11, 12]
    assert refs.dead(12) == [11]
    assert refs.dead(5) == []


class RefsMachine(RuleBasedStateMachine):
    """Commits come, lose their runs, are collected and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.refs = CommitRefs(base=3)
        self.runs: dict[int, int] = {}
        self.collected: set[int] = set()
        self.end = 3
        self.base = 3

    @rule(runs=st.integers(0, 3))
    def add(self, runs: int) -> None:
        self.refs.add_commit(self.end, runs)
        self.runs[self.end] = runs
        self.end += 1

    @precondition(lambda self: any(self.runs.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from([o for o, runs in self.runs.items() if runs]))
        self.refs.drop([ordinal])
        self.runs[ordinal] -= 1

    @rule(below=st.integers(0, 30))
    def collect(self, below: int) -> None:
        expected = [
            o for o, runs in self.runs.items() if not runs and o < below and o not in self.collected
        ]
        assert self.refs.dead(below) == sorted(expected)
        for ordinal in expected[::2]:
            self.refs.collected(ordinal)
            self.collected.add(ordinal)
            assert self.refs.is_collected(ordinal)

    @rule()
    def forget(self) -> None:
        self.refs.forget_collected()
        while self.base in self.collected:
            del self.runs[self.base]
            self.base += 1

    @invariant()
    def bounds_agree(self) -> None:
        assert (self.refs.base, self.refs.end) == (self.base, self.end)


TestRefs = RefsMachine.TestCase
TestRefs.settings = settings(max_examples=40, deadline=None)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_forgetting_never_passes_a_commit_that_is_not_collected(runs: list[int]) -> None:
    refs = CommitRefs()
    for ordinal, count in enumerate(runs):
        refs.add_commit(ordinal, count)
    for ordinal in refs.dead(len(runs)):
        refs.collected(ordinal)
    refs.forget_collected()
    first_live = next((o for o, count in enumerate(runs) if count), len(runs))
    assert refs.base == first_live
    assert refs.end == len(runs)


def test_commits_can_be_added_while_somebody_keeps_the_frames_of_those_who_have_looked() -> None:
    refs = CommitRefs()
    refs.add_commit(0, 1)
    kept = []
    sys.setprofile(lambda frame, _event, _argument: kept.append(frame))
    try:
        refs.dead(1)
        refs.release(1)
        refs.forget_collected()
    finally:
        sys.setprofile(None)
    assert kept
    refs.add_commit(1, 1)
    assert refs.end == 2
