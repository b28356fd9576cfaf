"""The line through the samples of a soak, its error, and what is made of it."""

import math
import random
from threading import Event

import pytest

from bench.soak.trend import judged, trend_of
from bench.soak.weather import Weather


def samples(
    count=100,
    *,
    growth_per_hour=0.0,
    noise=1.0,
    p99=10.0,
    drift_per_hour=0.0,
    errors=0,
    kept=1,
    heard=1,
    sync_ms=1.0,
    stolen=0.0,
):
    rng = random.Random(1)
    return [
        {
            "at_s": 10.0 * number,
            "rss_mb": 300 + growth_per_hour * number / 360 + rng.gauss(0, noise),
            "append_p50_ms": 1.0,
            "append_p99_ms": p99 + drift_per_hour * number / 360 + rng.gauss(0, 0.1),
            "delivery_p99_ms": 2.0,
            "files": 100,
            "append_per_s": 5000.0 * kept,
            "delivery_due_per_s": 4000.0,
            "delivery_per_s": 4000.0 * heard,
            "errors": errors if number == 0 else 0,
            "disk_sync_ms_max": sync_ms,
            "stolen_share": stolen,
            "fixed_work_us": 150.0,
        }
        for number in range(count)
    ]


def test_a_straight_line_has_its_slope_and_no_error():
    trend = trend_of([0.0, 10.0, 20.0, 30.0], [5.0, 6.0, 7.0, 8.0])
    assert trend.slope_per_hour == pytest.approx(360.0)
    assert trend.error_per_hour == pytest.approx(0.0, abs=1e-9)
    assert trend.mean == 6.5


def test_slope_and_error_are_those_of_the_textbook():
    trend = trend_of([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0])
    assert trend.slope_per_hour == pytest.approx(0.8 * 3600)
    assert trend.error_per_hour == pytest.approx(math.sqrt(3.6 / 3 / 10) * 3600)


def test_the_true_slope_lies_within_a_few_errors_of_the_found_one():
    rng = random.Random(7)
    for _ in range(50):
        times = [10.0 * number for number in range(150)]
        trend = trend_of(times, [300 + 20 * at / 3600 + rng.gauss(0, 2) for at in times])
        assert abs(trend.slope_per_hour - 20) < 4.5 * trend.error_per_hour


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_samples_have_no_slope_and_are_never_called_flat(count):
    trend = trend_of([10.0 * n for n in range(count)], [1.0] * count)
    assert math.isnan(trend.slope_per_hour)
    assert not trend.is_flat(0.05)
    found = judged(samples(count), 0.0, 5000.0)
    assert found["verdict"] == "too short to say"
    assert not found["is_good"]
    assert found["trends"]["rss_mb"]["slope_per_hour"] is None


def test_samples_at_one_moment_have_no_slope():
    assert math.isnan(trend_of([5.0] * 4, [1.0, 2.0, 3.0, 4.0]).slope_per_hour)


def test_noise_around_a_level_is_flat():
    found = judged(samples(), 60.0, 5000.0)
    assert found["is_good"]
    assert found["verdict"] == "memory is flat, latency does not drift, no errors"


def test_growth_beyond_its_error_is_told():
    found = judged(samples(growth_per_hour=100), 60.0, 5000.0)
    assert not found["is_good"]
    assert found["verdict"] == "MEMORY GROWS"
    assert found["trends"]["rss_mb"]["slope_per_hour"] == pytest.approx(100, abs=10)


def test_latency_that_drifts_is_told():
    found = judged(samples(drift_per_hour=5), 60.0, 5000.0)
    assert found["verdict"] == "LATENCY DRIFTS"


def test_a_median_that_drifts_under_a_p99_that_does_not_is_told():
    found = samples()
    for number, sample in enumerate(found):
        sample["append_p50_ms"] += number / 360
    assert judged(found, 100.0, 5000.0)["verdict"] == "LATENCY DRIFTS"


def test_a_fall_is_no_growth():
    assert judged(samples(growth_per_hour=-100), 0.0, 5000.0)["is_good"]


def test_what_happens_while_warming_up_does_not_count_but_its_errors_do():
    rising = [{**row, "rss_mb": row["at_s"]} for row in samples(20)]
    steady = [{**row, "at_s": row["at_s"] + 200} for row in samples(100)]
    found = judged([*rising, *steady], 195.0, 5000.0)
    assert found["is_good"]
    assert found["trends"]["rss_mb"]["samples"] == 100
    found = judged(samples(errors=3), 60.0, 5000.0)
    assert found["errors"] == 3
    assert "3 ERRORS" in found["verdict"]


def test_a_rate_that_is_not_kept_and_records_that_do_not_arrive_are_told():
    assert judged(samples(kept=0.9), 60.0, 5000.0)["verdict"] == "THE RATE IS NOT KEPT"
    assert judged(samples(heard=0.9), 60.0, 5000.0)["verdict"] == "FOLLOWERS MISS RECORDS"
    assert not judged(samples(heard=0.9), 60.0, 5000.0)["is_good"]


@pytest.mark.parametrize("weather", [{"sync_ms": 900.0}, {"stolen": 0.3}])
def test_a_machine_that_stands_still_is_no_drift_of_the_server(weather):
    late = [
        {**row, "at_s": row["at_s"] + 700}
        for row in samples(30, p99=900.0, kept=0.5, heard=0.5, **weather)
    ]
    found = judged([*samples(70), *late], 60.0, 5000.0)
    assert found["is_good"]
    assert (found["windows"], found["calm_windows"]) == (93, 63)
    assert found["trends"]["append_p99_ms"]["mean"] < 11
    assert found["trends_of_all"]["append_p99_ms"]["mean"] > 200
    assert found["rate_share_of_all"] < 0.9 < found["rate_share"]


def test_nothing_is_said_of_latency_where_the_machine_was_hardly_ever_calm():
    rough = [{**row, "at_s": row["at_s"] + 200} for row in samples(100, sync_ms=900.0)]
    found = judged([*samples(20), *rough], 0.0, 5000.0)
    assert not found["is_good"]
    assert found["verdict"] == "THE MACHINE WAS NOT CALM"


def test_memory_that_grows_is_told_in_any_weather():
    found = judged(samples(growth_per_hour=100, sync_ms=900.0), 60.0, 5000.0)
    assert "MEMORY GROWS" in found["verdict"]


def test_the_weather_is_that_of_the_disk_and_of_the_host(tmp_path):
    with Weather(tmp_path) as weather:
        Event().wait(0.3)
        found = weather.take()
    assert found["disk_sync_ms_max"] > 0
    assert found["fixed_work_us"] > 0
    assert 0 <= found["stolen_share"] <= 1
    assert list(tmp_path.iterdir()) == []
