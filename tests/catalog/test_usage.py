"""Usage: counters, gauges and times, held against naive models; their bytes, across versions."""

from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.catalog.activity import MERGED_SECS, Activity
from bourn.catalog.gauges import Gauges
from bourn.catalog.series import Points
from bourn.catalog.usage import OTHER_CLASS, UsageLine, UsageTable
from bourn.errors import Undecodable
from bourn.limits import (
    USAGE_CLASSES_MAX,
    USAGE_DAYS_KEPT,
    USAGE_HOURS_KEPT,
    USAGE_MINUTES_KEPT,
    USAGE_WINDOW_SECS_MAX,
)

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "usage_v1.bin"
NOW = 28_333_440  # a minute that begins a day
MINUTE, HOUR, DAY = 60, 3600, 86_400
ALL_TIME = (0, 2**32 - 1)

basins = st.sampled_from(["", "basin-one", "basin-two"])
sets = st.sampled_from(["append-ops", "read-ops"])
labels = st.sampled_from(["express", "unary", "é"])
steps = st.one_of(
    st.integers(-5, 5), st.integers(0, 3 * USAGE_MINUTES_KEPT), st.just(60), st.just(1440)
)
counts = st.lists(
    st.tuples(steps, basins, sets, labels, st.integers(0, 2**40)), min_size=1, max_size=40
)


def counted(steps_of: list[tuple[int, str, str, str, int]], table: UsageTable) -> list[UsageLine]:
    """Count at moments that go by those steps; returns what was counted."""
    minute = NOW
    lines = []
    for step, basin, of, label, value in steps_of:
        minute = max(minute + step, 0)
        lines.append(UsageLine(minute, basin, of, label, value))
        table.count(minute, basin, of, label, value)
    return lines


@given(counts)
def test_totals_are_the_sums_of_what_was_counted_while_it_is_kept(
    steps_of: list[tuple[int, str, str, str, int]],
) -> None:
    table = UsageTable()
    lines = counted(steps_of, table)
    now = lines[-1].minute
    for secs, kept in (
        (MINUTE, USAGE_MINUTES_KEPT - 60),
        (HOUR, USAGE_HOURS_KEPT - 24),
        (DAY, USAGE_DAYS_KEPT - 1),
    ):
        wanted: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
        floor_s = (now * 60 // secs - kept) * secs
        for line in lines:
            instant = line.minute * 60 // secs * secs
            # The clock never goes back by more than minutes here, so nothing is folded too early.
            if instant >= floor_s:
                wanted[line.basin, line.set, line.label][instant] += line.value
        for (basin, of, label), found in wanted.items():
            totals = table.totals(basin, of, secs, max(floor_s, 0), ALL_TIME[1])
            assert totals[label] == dict(found)
        assert table.since_s(secs) <= max(floor_s, 0)


@given(counts)
def test_a_window_takes_the_periods_that_begin_in_it(
    steps_of: list[tuple[int, str, str, str, int]],
) -> None:
    table = UsageTable()
    counted(steps_of, table)
    for basin in table.basin_names():
        for of in ("append-ops", "read-ops"):
            for label, points in table.totals(basin, of, HOUR, *ALL_TIME).items():
                for instant in points:
                    for start, end in ((instant, instant + 1), (instant - 30, instant + 30)):
                        part = table.totals(basin, of, HOUR, start, end)[label]
                        assert part == {instant: points[instant]}
                    assert instant not in table.totals(basin, of, HOUR, 0, instant)[label]
                    later = table.totals(basin, of, HOUR, instant + 1, ALL_TIME[1])[label]
                    assert instant not in later


@given(st.lists(st.integers(1, 200), min_size=150, max_size=400), st.integers(110, 200))
def test_above_the_cap_resolution_goes_before_totals_and_points_stay_bounded(
    steps_of: list[int], points_max: int
) -> None:
    table = UsageTable(points_max=points_max)
    minute = NOW
    for step in steps_of:
        minute += step
        table.count(minute, "basin-one", "append-ops", "express", step)
        assert table.points_count <= points_max
    since_s = table.since_s(DAY)
    days = table.totals("basin-one", "append-ops", DAY, *ALL_TIME)["express"]
    minute, kept = NOW, 0
    for step in steps_of:
        minute += step
        kept += step if minute * 60 >= since_s else 0
    assert sum(days.values()) == kept
    if minute // 1440 - NOW // 1440 < points_max - 60 - 24:
        assert since_s <= NOW * 60, "only where days alone are too many, some go"
    hours = table.totals("basin-one", "append-ops", HOUR, *ALL_TIME)["express"]
    assert minute * 60 // HOUR * HOUR in hours, "the newest stay as they are"


def test_above_the_cap_the_counters_that_were_idle_for_the_longest_go() -> None:
    table = UsageTable(series_max=8)
    for number in range(100):
        table.count(NOW + number, f"basin-{number:03}", "read-ops", "unary", 1)
        table.count(NOW + number, "always-there", "read-ops", "unary", 1)
        assert table.series_count <= 8
    assert table.totals("always-there", "read-ops", DAY, *ALL_TIME)["unary"] == {NOW * 60: 100}
    assert "basin-099" in table.basin_names()
    assert "basin-000" not in table.basin_names()


def test_a_basin_cannot_open_a_counter_for_every_class_that_it_thinks_of() -> None:
    table = UsageTable()
    for number in range(100):
        table.count_appends(NOW, "basin-one", f"class-{number}", 1, 8)
    for of, each in (("append-ops", 1), ("append-throughput", 8)):
        found = table.totals("basin-one", of, DAY, *ALL_TIME)
        assert len(found) == USAGE_CLASSES_MAX + 1
        assert sum(sum(points.values()) for points in found.values()) == 100 * each
        assert found[OTHER_CLASS] == {NOW * 60: (100 - USAGE_CLASSES_MAX) * each}


def test_the_memory_of_a_counter_that_is_always_busy_is_bounded() -> None:
    table = UsageTable()
    for minute in range(NOW, NOW + 40 * 1440):
        table.count(minute, "b", "read-ops", "unary", 1)
        assert table.points_count <= USAGE_MINUTES_KEPT + 61 + USAGE_HOURS_KEPT + 24 + 41
    assert sum(table.totals("b", "read-ops", DAY, *ALL_TIME)["unary"].values()) == 40 * 1440


def test_what_nobody_counts_any_more_is_forgotten_in_the_end() -> None:
    table = UsageTable()
    table.count(NOW, "gone-basin", "read-ops", "unary", 1)
    table.activity.begin("gone-basin", NOW * 60)
    table.activity.end("gone-basin", NOW * 60 + 5)
    table.count(NOW + (USAGE_DAYS_KEPT + 2) * 1440, "other-basin", "read-ops", "unary", 1)
    assert table.basin_names() == ["other-basin"]
    assert table.activity.to_rows() == []


def test_a_clock_that_was_years_ahead_costs_no_resolution_once_it_is_put_right() -> None:
    table = UsageTable()
    table.count(NOW + 10_000 * 1440, "b", "read-ops", "unary", 1)
    for minute in (NOW, NOW + 1):
        table.count(minute, "b", "read-ops", "unary", 1)
    found = table.totals("b", "read-ops", MINUTE, NOW * 60, NOW * 60 + 120)["unary"]
    assert found == {NOW * 60: 1, NOW * 60 + 60: 1}


def test_a_flush_that_comes_twice_counts_once() -> None:
    table = UsageTable()
    lines = [UsageLine(NOW, "b", "read-ops", "unary", 5)]
    for number in (1, 1, 2, 1, 2):
        table.flush(number, lines, [("b", NOW // 60, number)], [(7, NOW, number)])
    assert table.totals("b", "read-ops", DAY, *ALL_TIME) == {"unary": {NOW * 60: 10}}
    assert (table.basins.last_value("b"), table.streams.last_value(7)) == (2, 2)
    assert table.flushed == 2


# Gauges


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 99)), max_size=30))
def test_a_value_holds_until_the_next_one(changes: list[tuple[int, int]]) -> None:
    gauges: Gauges[str] = Gauges(1000, 1000)
    model: dict[int, int] = {}
    for period, value in changes:
        gauges.put("key", period, value)
        model = {at: held for at, held in model.items() if at < period} | {period: value}
    for low, high in ((0, 40), (5, 10), (10, 10), (31, 33)):
        wanted = {}
        for period in range(low, high):
            known = [at for at in model if at <= period]
            if known:
                wanted[period] = model[max(known)]
        assert dict(gauges.held("key", low, high)) == wanted
    assert list(gauges.held("other", 0, 40)) == []


def test_gauges_keep_so_many_periods_and_the_value_that_held_before_them() -> None:
    gauges: Gauges[int] = Gauges(10, 1000)
    for period in range(0, 100, 3):
        gauges.put(1, period, period)
    ((_, (periods, _)),) = gauges.to_rows()
    assert len(periods) // 4 == 5
    assert list(gauges.held(1, 89, 92)) == [(89, 87), (90, 90), (91, 90)]


def test_above_the_cap_the_gauges_that_did_not_change_for_the_longest_go() -> None:
    gauges: Gauges[int] = Gauges(1000, 10)
    for key in range(8):
        gauges.put(key, 1, 1)
    for period in range(2, 6):
        gauges.put(3, period, period)
    assert gauges.keys() == [2, 4, 5, 6, 7, 3]


# Times


def test_a_basin_is_active_from_its_first_stream_to_its_last() -> None:
    activity = Activity()
    activity.begin("b", 100_000)
    assert activity.active(0, 100_000) == []
    assert activity.active(0, 100_001) == ["b"]
    assert activity.active(2**31, 2**31 + 1) == ["b"]
    activity.end("b", 200_000)
    assert activity.active(199_999, 300_000) == ["b"]
    assert activity.active(200_000, 300_000) == []
    activity.begin("b", 200_000 + MERGED_SECS - 1)
    assert activity.active(200_500, 200_501) == ["b"], "a short pause is none"
    activity.end("b", 300_000)
    activity.end("b", 400_000)
    activity.begin("b", 300_000 + MERGED_SECS)
    assert activity.active(300_500, 300_501) == []
    activity.end("never-seen", 1)
    assert activity.active(0, 2**32) == ["b"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10 * DAY)), max_size=60))
def test_the_times_of_a_basin_are_bounded_and_in_order(moves: list[tuple[bool, int]]) -> None:
    table = UsageTable()
    now = 0
    for begins, secs in moves:
        now += secs
        (table.activity.begin if begins else table.activity.end)("b", now)
    for _, times in table.activity.to_rows():
        assert len(times) <= now // MERGED_SECS + 1
    assert UsageTable.decode(table.encode()).activity.to_rows() == table.activity.to_rows()


# Bytes


def sample() -> UsageTable:
    table = UsageTable()
    for minute in range(NOW, NOW + 3 * 1440, 45):
        table.count_appends(minute, "my-basin", "express", 2, 1_048_576)
        table.count(minute, "", "account-ops", "list-basins", 1)
    table.flush(
        9,
        [UsageLine(NOW, "é-basin", "read-ops", "unary", 2**64 - 1)],
        [("my-basin", NOW // 60, 5), ("other", NOW // 60, 0), ("my-basin", NOW // 60 + 2, 6)],
        [(2**64 - 1, NOW, 17)],
    )
    table.activity.begin("my-basin", NOW * 60)
    table.activity.begin("other", 5)
    table.activity.end("other", 9)
    return table


def test_usage_is_written_as_it_has_always_been() -> None:
    assert sample().encode() == GOLDEN_FILE.read_bytes()


@given(counts)
def test_usage_survives_its_bytes_and_goes_on_as_before(
    steps_of: list[tuple[int, str, str, str, int]],
) -> None:
    table = UsageTable()
    counted(steps_of, table)
    again = UsageTable.decode(table.encode())
    assert again.encode() == table.encode()
    assert (again.points_count, again.series_count) == (table.points_count, table.series_count)
    for both in (table, again):
        counted(steps_of, both)
        both.flush(3, [], [("b", 7, 7)], [(1, 1, 1)])
    assert again.encode() == table.encode()


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_altered_bytes_are_usage_or_undecodable(at: int, value: int) -> None:
    altered = bytearray(GOLDEN_FILE.read_bytes())
    altered[at % len(altered)] = value
    with suppress(Undecodable):
        UsageTable.decode(bytes(altered)).encode()


@given(st.integers(0, 10**6), st.binary(max_size=50))
def test_truncated_random_and_longer_bytes_are_undecodable(at: int, random: bytes) -> None:
    whole = GOLDEN_FILE.read_bytes()
    for data in (whole[: at % len(whole)], random, b"\x01" + random, whole + b"\0"):
        with pytest.raises(Undecodable):
            UsageTable.decode(data)


def test_usage_of_a_later_version_is_refused_and_named() -> None:
    with pytest.raises(Undecodable, match="version 2, not 1"):
        UsageTable.decode(b"\x02" + GOLDEN_FILE.read_bytes()[1:])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ((b"\0" * 3, b""), "cut short"),
        ((b"\0" * 4, b""), "lack"),
        ((b"\1\0\0\0" * 2, b"\0" * 16), "out of order"),
    ],
)
def test_points_that_cannot_be_are_undecodable(data: tuple[bytes, bytes], why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        Points.from_bytes(data)


def test_a_whole_window_is_kept_in_hours() -> None:
    assert USAGE_WINDOW_SECS_MAX <= USAGE_HOURS_KEPT * HOUR
