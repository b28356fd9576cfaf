"""Durations and sizes as people write them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.cli.units import (
    parse_duration_ns,
    parse_duration_secs,
    parse_interval_ms,
    parse_size,
    show_duration,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("7days", 604_800),
        ("1h 30m", 5_400),
        ("1h30m", 5_400),
        (" 2 weeks ", 1_209_600),
        ("1M", 2_630_016),
        ("1m", 60),
        ("1y", 31_557_600),
        ("0s", 0),
        ("1000ms", 1),
        ("1day 1sec", 86_401),
    ],
)
def test_a_duration_is_its_parts_added_up(text, seconds):
    assert parse_duration_secs(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "7", "days", "-1s", "1.5h", "1 fortnight", "1s;", "٣s", "9" * 25 + "s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write one such as"):
        parse_duration_ns(text)


@pytest.mark.parametrize("text", ["1500ms", "1ns", "999999999999999999999y"])
def test_a_duration_that_is_not_whole_seconds_is_refused_where_they_are_needed(text):
    with pytest.raises(ValueError, match="whole seconds"):
        parse_duration_secs(text)


def test_an_interval_may_be_a_bare_number_of_milliseconds():
    assert parse_interval_ms("20") == parse_interval_ms("20ms") == 20
    assert parse_interval_ms("1s") == 1000
    with pytest.raises(ValueError, match="whole milliseconds"):
        parse_interval_ms("1us")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1_048_576),
        ("128MiB", 134_217_728),
        ("128 mib", 134_217_728),
        ("1GB", 1_000_000_000),
        ("1.5kB", 1_500),
        ("0", 0),
        ("7B", 7),
    ],
)
def test_a_size_is_a_number_and_a_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1M", "1 MiB 2", "MiB", "0.3B", "1e3", "9" * 25])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="64MiB"):
        parse_size(text)


@given(st.integers(0, 10**12))
def test_what_is_shown_reads_back_as_the_same(number):
    assert parse_duration_secs(show_duration(number)) == number
    assert parse_size(show_size(number)) == number


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_and_nothing_else(text):
    for parse in (parse_duration_ns, parse_duration_secs, parse_interval_ms, parse_size):
        with suppress(ValueError):
            assert parse(text) >= 0
