"""Durability: the contiguous prefix, whatever the order of completions."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bourn.log.acks import Durability


def issued(count: int, first_id: int = 0) -> Durability:
    durability = Durability(count, first_id)
    assert [durability.issue() for _ in range(count)] == list(range(first_id, first_id + count))
    return durability


def test_ids_are_consecutive_from_the_first() -> None:
    durability = Durability(3, first_id=40)
    assert (durability.durable, durability.next_id) == (40, 40)
    assert [durability.issue(), durability.issue()] == [40, 41]


def test_a_completion_behind_a_gap_makes_nothing_durable_until_the_gap_closes() -> None:
    durability = issued(3)
    assert list(durability.complete(2)) == []
    assert list(durability.complete(1)) == []
    assert durability.durable == 0
    assert list(durability.complete(0)) == [0, 1, 2]
    assert durability.durable == 3


def test_every_order_of_six_completions_releases_each_id_once_in_order() -> None:
    for order in itertools.permutations(range(6)):
        durability = issued(6)
        released: list[int] = []
        for done, commit_id in enumerate(order, start=1):
            released += durability.complete(commit_id)
            stored = set(order[:done])
            prefix = next((i for i in range(6) if i not in stored), 6)
            assert released == list(range(prefix)), order
            assert durability.durable == prefix
        assert durability.settled


def test_every_place_of_a_failure_in_every_order_of_five_keeps_the_prefix_before_it() -> None:
    for order, failing in itertools.product(itertools.permutations(range(5)), range(5)):
        durability = issued(5)
        released: list[int] = []
        lost: list[int] = []
        for commit_id in order:
            if commit_id == failing:
                lost += durability.fail(commit_id)
            else:
                released += durability.complete(commit_id)
        assert released == list(range(failing))
        assert lost == list(range(failing, 5))
        assert durability.settled


@given(order=st.integers(1, 200).flatmap(lambda n: st.permutations(range(n))))
def test_any_order_of_completions_ends_with_everything_durable(order: list[int]) -> None:
    durability = issued(len(order), first_id=7)
    released = [done for i in order for done in durability.complete(i + 7)]
    assert released == list(range(7, 7 + len(order)))
    assert durability.in_flight == 0


def test_the_number_in_flight_is_bounded_and_counts_ids_stored_behind_a_gap() -> None:
    durability = issued(2)
    assert not durability.may_issue
    with pytest.raises(ValueError, match="too many in flight"):
        durability.issue()
    durability.complete(1)
    assert (durability.in_flight, durability.may_issue) == (2, False)
    durability.complete(0)
    assert durability.issue() == 2


def test_after_a_failure_nothing_is_issued_and_nothing_behind_it_becomes_durable() -> None:
    durability = issued(4)
    durability.complete(3)
    assert list(durability.fail(1)) == [1, 2, 3]
    assert durability.failed_from == 1
    assert not durability.may_issue
    with pytest.raises(ValueError, match="one has failed"):
        durability.issue()
    assert list(durability.complete(2)) == []
    assert list(durability.complete(1)) == []
    assert not durability.settled
    assert list(durability.complete(0)) == [0]
    assert (durability.durable, durability.settled) == (1, True)


def test_an_earlier_failure_loses_only_what_was_not_lost_already() -> None:
    durability = issued(5)
    assert list(durability.fail(3)) == [3, 4]
    assert list(durability.fail(4)) == []
    assert list(durability.fail(1)) == [1, 2]
    assert list(durability.fail(1)) == []
    assert list(durability.complete(0)) == [0]


@pytest.mark.parametrize("commit_id", [-1, 0, 1, 3])
def test_a_report_about_an_id_that_is_not_in_flight_is_refused(commit_id: int) -> None:
    durability = issued(3)
    durability.complete(0)
    durability.complete(1)
    with pytest.raises(ValueError, match="not in flight"):
        durability.complete(commit_id)
    with pytest.raises(ValueError, match="not in flight"):
        durability.fail(commit_id)


def test_a_second_completion_behind_a_gap_is_refused() -> None:
    durability = issued(2)
    durability.complete(1)
    with pytest.raises(ValueError, match="not in flight"):
        durability.complete(1)
    with pytest.raises(ValueError, match="not in flight"):
        durability.fail(1)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Durability(0)


class Writer(RuleBasedStateMachine):
    """Issue, complete and fail at random, beside sets that remember everything."""

    WINDOWS = st.integers(1, 5)
    FIRST_IDS = st.sampled_from([0, 10**11])

    @initialize(window=WINDOWS, first_id=FIRST_IDS)
    def begin(self, window: int, first_id: int) -> None:
        self.window = window
        self.first_id = first_id
        self.durability = Durability(window, first_id)
        self.pending: list[int] = []
        self.stored: set[int] = set()
        self.failed: set[int] = set()
        self.released: list[int] = []
        self.lost: set[int] = set()

    @precondition(lambda self: self.durability.may_issue)
    @rule()
    def issue(self) -> None:
        self.pending.append(self.durability.issue())

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 4))
    def complete(self, pick: int) -> None:
        commit_id = self.pending.pop(pick % len(self.pending))
        self.stored.add(commit_id)
        self.released += self.durability.complete(commit_id)

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 4), unlikely=st.integers(0, 9))
    def fail(self, pick: int, unlikely: int) -> None:
        if unlikely:
            return
        commit_id = self.pending.pop(pick % len(self.pending))
        self.failed.add(commit_id)
        lost = self.durability.fail(commit_id)
        assert self.lost.isdisjoint(lost)
        self.lost.update(lost)

    @precondition(lambda self: self.failed and not self.pending)
    @rule(window=WINDOWS)
    def start_again(self, window: int) -> None:
        assert self.durability.settled
        self.begin(window, self.durability.durable)

    @invariant()
    def released_is_the_stored_prefix_and_lost_is_all_behind_a_failure(self) -> None:
        if not hasattr(self, "durability"):
            return
        durability = self.durability
        prefix = list(itertools.takewhile(self.stored.__contains__, itertools.count(self.first_id)))
        assert self.released == prefix
        assert durability.durable == self.first_id + len(prefix)
        assert durability.in_flight <= self.window
        if self.failed:
            assert self.lost == set(range(min(self.failed), durability.next_id))
            assert durability.failed_from == min(self.failed)


TestWriter = Writer.TestCase
