"""A rate limit against what it promises: how much, how soon, and that nobody is starved."""

from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.model.allowance import Allowance

MILLION = 1_000_000
RATES = st.integers(1, 5_000_000)
BRIMS = st.integers(1, 5_000_000)
PAUSES_US = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 3 * MILLION))
COSTS = st.one_of(st.just(1), st.integers(1, 10), st.integers(1, 2_000_000))
STEPS = st.lists(st.tuples(PAUSES_US, COSTS), max_size=40)


def filled(rate: int, from_us: int, to_us: int) -> int:
    """What flows in, in millionths."""
    return rate * (to_us - from_us)


@given(RATES, BRIMS, STEPS)
def test_what_is_spent_in_any_stretch_is_the_rate_and_the_brim_and_one_overdraft_at_most(
    rate: int, brim: int, steps: list[tuple[int, int]]
) -> None:
    allowance, now_us = Allowance(rate, brim, 0), 0
    spent: list[tuple[int, int]] = []
    for pause_us, cost in steps:
        now_us += pause_us
        if not allowance.wait_us(now_us):
            allowance.spend(now_us, cost)
            spent.append((now_us, cost))
    for first, (from_us, _) in enumerate(spent):
        total = 0
        for at_us, cost in spent[first:]:
            total += cost
            bound = filled(rate, from_us, at_us) + (brim + cost - 1) * MILLION
            assert total * MILLION <= bound


@given(RATES, BRIMS, st.lists(PAUSES_US, max_size=60))
def test_single_units_never_exceed_the_rate_and_the_brim(
    rate: int, brim: int, pauses: list[int]
) -> None:
    allowance, now_us, admitted = Allowance(rate, brim, 0), 0, 0
    for pause_us in pauses:
        now_us += pause_us
        if not allowance.wait_us(now_us):
            allowance.spend(now_us, 1)
            admitted += 1
        assert admitted * MILLION <= filled(rate, 0, now_us) + brim * MILLION


@given(RATES, BRIMS, STEPS)
def test_who_waits_as_long_as_told_is_admitted_and_a_microsecond_less_is_too_short(
    rate: int, brim: int, steps: list[tuple[int, int]]
) -> None:
    allowance, now_us = Allowance(rate, brim, 0), 0
    for pause_us, cost in steps:
        now_us += pause_us
        wait_us = allowance.wait_us(now_us)
        if wait_us:
            assert allowance.wait_us(now_us + wait_us - 1) == 1
            now_us += wait_us
        assert allowance.wait_us(now_us) == 0
        allowance.spend(now_us, cost)


@pytest.mark.parametrize(
    ("rate", "wait_us"), [(1, MILLION), (3, 333_334), (7, 142_858), (MILLION, 1), (5 * MILLION, 1)]
)
def test_a_wait_is_rounded_up_and_never_to_nothing(rate: int, wait_us: int) -> None:
    allowance = Allowance(rate, 1, 0)
    allowance.spend(0, 1)
    assert allowance.wait_us(0) == wait_us
    assert allowance.reserve(0, 1) == wait_us


@given(RATES, BRIMS, STEPS)
def test_what_is_reserved_takes_its_turn_in_order_and_within_the_rate(
    rate: int, brim: int, steps: list[tuple[int, int]]
) -> None:
    allowance, now_us = Allowance(rate, brim, 0), 0
    arrived: list[tuple[int, int]] = []
    for pause_us, cost in steps:
        now_us += pause_us
        at_us = now_us + allowance.reserve(now_us, cost)
        arrived.append((at_us, cost))
    assert [at_us for at_us, _ in arrived] == sorted(at_us for at_us, _ in arrived)
    for first, (from_us, first_cost) in enumerate(arrived):
        total = 0
        for at_us, cost in arrived[first:]:
            total += cost
            at_once = max(brim, first_cost) * MILLION
            # Each wait is rounded up to a microsecond, so a stretch may seem that much shorter.
            assert total * MILLION <= filled(rate, from_us, at_us + 1) + at_once


@given(RATES, BRIMS, STEPS, COSTS)
def test_what_is_withdrawn_has_not_been_spent(
    rate: int, brim: int, steps: list[tuple[int, int]], cost: int
) -> None:
    touched, untouched, now_us = Allowance(rate, brim, 0), Allowance(rate, brim, 0), 0
    for pause_us, spent in steps:
        now_us += pause_us
        touched.reserve(now_us, cost)
        touched.withdraw(cost)
        assert touched.wait_us(now_us) == untouched.wait_us(now_us)
        for allowance in (touched, untouched):
            allowance.spend(now_us, spent)


@given(RATES, BRIMS, PAUSES_US)
def test_a_time_that_goes_back_fills_nothing(rate: int, brim: int, back_us: int) -> None:
    allowance = Allowance(rate, brim, 10 * MILLION)
    allowance.spend(10 * MILLION, brim)
    wait_us = allowance.wait_us(10 * MILLION)
    assert allowance.wait_us(10 * MILLION - back_us) == wait_us
    assert not allowance.is_full(10 * MILLION)


def shared(rate: int, sessions: int, cost: int, unary_cost: int, until_us: int) -> tuple[int, int]:
    """Sessions that never rest and a client that asks again and again: what each side got."""
    allowance = Allowance(rate, rate, 0)
    by_session = by_unary = 0
    due: list[tuple[int, int]] = []
    for index in range(sessions):
        heappush(due, (allowance.reserve(0, cost), index))
    now_us = 0
    while now_us < until_us:
        now_us, index = heappop(due)
        if index < 0:  # the client: it waits for as long as it is told, and then a little more
            wait_us = allowance.wait_us(now_us)
            if not wait_us:
                allowance.spend(now_us, unary_cost)
                by_unary += unary_cost
            heappush(due, (now_us + wait_us + 1_000, index))
            continue
        if index < sessions:
            allowance.arrive(cost)
            by_session += cost
            heappush(due, (now_us + allowance.reserve(now_us, cost), index))
        if not any(found < 0 for _, found in due):
            heappush(due, (now_us, -1))
    return by_session, by_unary


@settings(deadline=None)
@given(
    st.integers(100_000, 10_000_000),
    st.integers(1, 20),
    st.integers(1, 1_000_000),
    st.integers(1, 1_000_000),
)
def test_neither_who_queues_nor_who_asks_again_is_starved_and_both_together_keep_the_rate(
    rate: int, sessions: int, cost: int, unary_cost: int
) -> None:
    # A client that asks once a millisecond cannot use the rate up with less.
    cost, unary_cost = max(cost, rate // 50), max(unary_cost, rate // 50)
    seconds = 40 * (cost * sessions + unary_cost) // rate + 10
    by_session, by_unary = shared(rate, sessions, cost, unary_cost, seconds * MILLION)
    total = by_session + by_unary
    turn = total * min(cost, unary_cost) // (3 * (cost * sessions + unary_cost))
    assert by_session >= turn * sessions
    assert by_unary >= turn
    assert rate * seconds * 9 // 10 <= total
    assert total <= rate * (seconds + 1) + (sessions + 1) * cost + 2 * unary_cost
