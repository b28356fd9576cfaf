"""Delete-on-empty."""

import hypothesis.strategies as st
from hypothesis import given

from bourn.log.retention import is_abandoned

T = 1_700_000_000_000


def test_delete_on_empty_that_is_off_never_deletes() -> None:
    assert not is_abandoned(0, 0, False, T)


def test_an_empty_stream_goes_when_its_last_write_is_old_enough() -> None:
    assert is_abandoned(30, T - 30_000, False, T)
    assert not is_abandoned(30, T - 29_999, False, T)


def test_a_stream_with_live_records_stays_however_old() -> None:
    assert not is_abandoned(30, 0, True, T)


@given(min_age=st.integers(0, 2**64 - 1), age_ms=st.integers(-1000, 3_000_000), live=st.booleans())
def test_nothing_goes_too_early(min_age: int, age_ms: int, live: bool) -> None:
    expected = min_age > 0 and not live and age_ms >= min_age * 1000
    assert is_abandoned(min_age, T - age_ms, live, T) == expected
