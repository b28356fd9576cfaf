"""Times of resources: RFC 3339 out and in."""

import datetime as dt
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadJson
from bourn.model.instants import MS_MAX, format_ms, format_ns, parse_ns

NS_MIN = -62_135_596_800 * 10**9
NS_MAX = 253_402_300_799 * 10**9 + 999_999_999


@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_500, "2023-11-14T22:13:20.5Z"),
        (1_700_000_000_120, "2023-11-14T22:13:20.12Z"),
        (1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
        (951_782_400_000, "2000-02-29T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (MS_MAX, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_milliseconds_show_without_trailing_zeros(instant_ms: int, text: str) -> None:
    assert format_ms(instant_ms) == text
    assert parse_ns(text) == instant_ms * 10**6


@given(st.integers(NS_MIN, NS_MAX))
def test_every_nanosecond_survives_its_text(instant_ns: int) -> None:
    text = format_ns(instant_ns)
    assert parse_ns(text) == instant_ns
    assert not text.endswith(("0Z", ".Z")) or "." not in text


@given(
    st.datetimes(
        dt.datetime(2, 1, 1),  # noqa: DTZ001  the zone is drawn beside it
        dt.datetime(9998, 12, 31),  # noqa: DTZ001
        timezones=st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m))),
    )
)
def test_any_offset_is_read_as_the_standard_library_reads_it(moment: dt.datetime) -> None:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    micros = (moment - epoch) // dt.timedelta(microseconds=1)
    assert parse_ns(moment.isoformat()) == micros * 1000


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("2023-11-14t22:13:20z", "2023-11-14T22:13:20Z"),
        ("2023-11-14 22:13:20Z", "2023-11-14T22:13:20Z"),
        ("2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20Z"),
        ("2023-11-14T22:13:20-00:00", "2023-11-14T22:13:20Z"),
        ("2023-11-14T22:13:20.500000Z", "2023-11-14T22:13:20.5Z"),
        ("2023-11-14T22:13:20.1234567899Z", "2023-11-14T22:13:20.123456789Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2017-01-01T01:59:60+02:00", "2017-01-01T00:00:00Z"),
    ],
)
def test_other_spellings_of_a_time_are_read(text: str, same_as: str) -> None:
    assert format_ns(parse_ns(text)) == same_as


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-11-14T22:13Z",
        "2023-11-14T22:13:20.Z",
        "2023-11-14T22:13:20+0100",
        "2023-11-14T22:13:20+24:00",
        "2023-11-14T22:13:20+01:60",
        "2023-11-14T24:00:00Z",
        "2023-11-14T22:60:00Z",
        "2023-11-14T22:13:61Z",
        "2023-11-14T22:13:60Z",
        "2023-02-29T00:00:00Z",
        "2023-13-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "9999-12-31T23:59:60Z",
        "2023-11-14T22:13:20Z\n",
        " 2023-11-14T22:13:20Z",
        "٢٠٢٣-11-14T22:13:20Z",
        "+2023-11-14T22:13:20Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadJson):
        parse_ns(text)


@given(st.text("0123456789-:+.TZtz ", max_size=40))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with suppress(BadJson):
        assert NS_MIN <= parse_ns(text) <= NS_MAX


@given(st.integers(-62_135_596_800_000, MS_MAX))
def test_milliseconds_are_written_as_nanoseconds_are(instant_ms: int) -> None:
    assert format_ms(instant_ms) == format_ns(instant_ms * 1_000_000)


@pytest.mark.parametrize("instant_ms", [-62_135_596_800_001, MS_MAX + 1])
def test_milliseconds_out_of_bounds_are_not_written(instant_ms: int) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"must be|out of range"):
            format_ms(instant_ms)
