"""How far the table is behind, by samples of the log's growth."""

from hypothesis import given
from hypothesis import strategies as st

from bourn.cli.backlog import Backlog
from bourn.http.pipeline_state import NO_LAG, Lag


def test_nothing_waits_where_nothing_was_noted_or_the_table_has_all():
    backlog = Backlog()
    assert backlog.lag(0, 1000) == NO_LAG
    backlog.note(5, 500, 1000)
    assert backlog.lag(5, 2000) == NO_LAG
    assert backlog.lag(9, 2000) == NO_LAG, "the table may be ahead of the last look"


def test_what_came_between_two_looks_counts_from_the_first_of_them():
    backlog = Backlog()
    backlog.note(10, 100, 1000)
    backlog.note(20, 300, 2000)
    assert backlog.lag(10, 5000) == Lag(10, 200, 4.0)
    assert backlog.lag(15, 5000) == Lag(5, 100, 4.0)


def test_a_quiet_time_makes_nothing_older():
    backlog = Backlog()
    backlog.note(10, 100, 1000)
    backlog.note(10, 100, 60_000)
    backlog.note(11, 150, 61_000)
    assert backlog.lag(10, 62_000) == Lag(1, 50, 2.0)


def test_what_the_table_has_is_forgotten_and_the_rest_stays():
    backlog = Backlog()
    for n in range(10):
        backlog.note(n * 10, n * 1000, n * 1000)
    before = backlog.lag(55, 20_000)
    backlog.forget_before(55)
    assert [sample.ordinal for sample in backlog] == [50, 60, 70, 80, 90]
    assert backlog.lag(55, 20_000) == before


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5000)), min_size=1, max_size=80))
def test_however_many_samples_there_were_the_whole_lag_is_right(steps):
    backlog = Backlog(samples_max=8)
    backlog.note(0, 0, 0)
    commits = size = 0
    for at, (more, more_bytes) in enumerate(steps):
        commits, size = commits + more, size + more_bytes
        backlog.note(commits, size, (at + 1) * 1000)
        assert len(list(backlog)) <= 9
    lag = backlog.lag(0, 10**6)
    assert lag == Lag(commits, size, 1000.0)
    middle = backlog.lag(commits // 2, 10**6)
    assert middle.commits == commits - commits // 2
    assert 0 <= middle.size_bytes <= size
