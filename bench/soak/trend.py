"""A straight line through samples by least squares, with the error of its slope."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bench.soak.weather import STOLEN_SHARE_MAX, SYNC_MS_MAX, is_calm

HOUR_SECS: Final = 3600.0
ERRORS: Final = 2.0  # a slope within so many of its errors is none
MEMORY_SHARE_MAX: Final = 0.05  # of the mean, in an hour
LATENCY_SHARE_MAX: Final = 0.10
SHARE_MIN: Final = 0.99  # of appends that were due, and of deliveries
SAMPLES_MIN: Final = 3
CALM_SHARE_MIN: Final = 0.25  # of the windows; of fewer nothing is concluded
FIGURES: Final = (
    "rss_mb",
    "append_p50_ms",
    "append_p99_ms",
    "delivery_p99_ms",
    "files",
    "fixed_work_us",
)
APPEND_LATENCIES: Final = ("append_p50_ms", "append_p99_ms")
BY_THE_WEATHER: Final = frozenset({"append_p50_ms", "append_p99_ms", "delivery_p99_ms"})


class Trend(NamedTuple):
    """How a figure goes: its mean, and what it gains in an hour, give or take."""

    mean: float
    slope_per_hour: float
    error_per_hour: float  # one standard error
    samples: int

    def is_flat(self, share_max: float) -> bool:
        """Whether it does not rise: by no more than its error explains, or by next to nothing."""
        allowed = max(ERRORS * self.error_per_hour, share_max * abs(self.mean))
        return math.isfinite(self.slope_per_hour) and self.slope_per_hour <= allowed


def trend_of(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """The line through values at these times; three at least, or the slope is not a number."""
    times, found = np.asarray(seconds, np.float64), np.asarray(values, np.float64)
    mean = float(found.mean()) if len(found) else math.nan
    spread = float(((times - times.mean()) ** 2).sum()) if len(found) else 0.0
    if len(found) < SAMPLES_MIN or not spread:
        return Trend(mean, math.nan, math.nan, len(found))
    slope = float(((times - times.mean()) * (found - mean)).sum()) / spread
    rest = found - mean - slope * (times - times.mean())
    error = math.sqrt(float((rest**2).sum()) / (len(found) - 2) / spread)
    return Trend(mean, slope * HOUR_SECS, error * HOUR_SECS, len(found))


def judged(
    samples: Sequence[dict[str, Any]], warm_secs: float, asked_per_s: float
) -> dict[str, Any]:
    """Trends of memory and of latencies behind the time of warming up, and what they mean.

    Latency and rate are those of calm windows: a disk that stands still for all is no drift. The
    same of all windows stands beside them.
    """
    steady = [sample for sample in samples if sample["at_s"] > warm_secs]
    calm = [sample for sample in steady if is_calm(sample)]
    trends = {name: _trend(name, calm if name in BY_THE_WEATHER else steady) for name in FIGURES}
    failures = sum(sample["errors"] for sample in samples)
    rate_share, delivery_share = _shares(calm, asked_per_s)
    is_known = len(calm) >= max(SAMPLES_MIN, CALM_SHARE_MIN * len(steady))
    faults = {
        "MEMORY GROWS": not trends["rss_mb"].is_flat(MEMORY_SHARE_MAX),
        "THE MACHINE WAS NOT CALM": not is_known,
        "LATENCY DRIFTS": is_known
        and not all(trends[name].is_flat(LATENCY_SHARE_MAX) for name in APPEND_LATENCIES),
        "THE RATE IS NOT KEPT": is_known and rate_share < SHARE_MIN,
        "FOLLOWERS MISS RECORDS": is_known and delivery_share < SHARE_MIN,
        f"{failures} ERRORS": failures > 0,
    }
    found = [said for said, is_so in faults.items() if is_so]
    verdict = ", ".join(found) or "memory is flat, latency does not drift, no errors"
    return {
        "warm_up_s": warm_secs,
        "windows": len(steady),
        "calm_windows": len(calm),
        "trends": {name: _said(trend) for name, trend in trends.items()},
        "trends_of_all": {name: _said(_trend(name, steady)) for name in FIGURES},
        "rate_share": _rounded(rate_share),
        "rate_share_of_all": _rounded(_shares(steady, asked_per_s)[0]),
        "delivery_share": _rounded(delivery_share),
        "errors": failures,
        "rule": (
            f"flat: a rise of at most {ERRORS:g} standard errors, or in an hour of at most "
            f"{MEMORY_SHARE_MAX:.0%} of the mean (memory) and {LATENCY_SHARE_MAX:.0%} (p50, p99); "
            f"{SHARE_MIN:.0%} at least of what was due is appended, and delivered; latency and "
            f"rate by windows in which no bare sync of the disk took over {SYNC_MS_MAX:g} ms and "
            f"the host took at most {STOLEN_SHARE_MAX:.0%} of the cores"
        ),
        "is_good": len(steady) >= SAMPLES_MIN and not found,
        "verdict": verdict if len(steady) >= SAMPLES_MIN else "too short to say",
    }


def _trend(name: str, samples: Sequence[dict[str, Any]]) -> Trend:
    return trend_of([sample["at_s"] for sample in samples], [sample[name] for sample in samples])


def _shares(samples: Sequence[dict[str, Any]], asked_per_s: float) -> tuple[float, float]:
    """What was appended of what was asked for, and delivered of what was due."""
    asked = asked_per_s * len(samples)
    due = sum(sample["delivery_due_per_s"] for sample in samples)
    acked = sum(sample["append_per_s"] for sample in samples)
    delivered = sum(sample["delivery_per_s"] for sample in samples)
    return acked / asked if asked else 0.0, delivered / due if due else 0.0


def _said(trend: Trend) -> dict[str, float | int | None]:
    return {
        "mean": _rounded(trend.mean),
        "slope_per_hour": _rounded(trend.slope_per_hour),
        "error_per_hour": _rounded(trend.error_per_hour),
        "samples": trend.samples,
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
