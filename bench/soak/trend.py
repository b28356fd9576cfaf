"""A straight line through samples by least squares, with the error of its slope."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

HOUR_SECS: Final = 3600.0
ERRORS: Final = 2.0  # a slope within so many of its errors is none
MEMORY_SHARE_MAX: Final = 0.05  # of the mean, in an hour
LATENCY_SHARE_MAX: Final = 0.10
SHARE_MIN: Final = 0.99  # of appends that were due, and of deliveries
SAMPLES_MIN: Final = 3
FIGURES: Final = ("rss_mb", "append_p50_ms", "append_p99_ms", "delivery_p99_ms", "files")


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
    """Trends of memory and of latencies behind the time of warming up, and what they mean."""
    steady = [sample for sample in samples if sample["at_s"] > warm_secs]
    times = [sample["at_s"] for sample in steady]
    trends = {name: trend_of(times, [sample[name] for sample in steady]) for name in FIGURES}
    acked = sum(sample["append_per_s"] for sample in samples)
    due = sum(sample["delivery_due_per_s"] for sample in samples)
    delivered = sum(sample["delivery_per_s"] for sample in samples)
    failures = sum(sample["errors"] for sample in samples)
    rate_share = acked / (asked_per_s * len(samples)) if samples and asked_per_s else 0.0
    delivery_share = delivered / due if due else 0.0
    faults = {
        "MEMORY GROWS": not trends["rss_mb"].is_flat(MEMORY_SHARE_MAX),
        "LATENCY DRIFTS": not trends["append_p99_ms"].is_flat(LATENCY_SHARE_MAX),
        "THE RATE IS NOT KEPT": rate_share < SHARE_MIN,
        "FOLLOWERS MISS RECORDS": delivery_share < SHARE_MIN,
        f"{failures} ERRORS": failures > 0,
    }
    found = [said for said, is_so in faults.items() if is_so]
    verdict = ", ".join(found) or "memory is flat, latency does not drift, no errors"
    return {
        "warm_up_s": warm_secs,
        "trends": {
            name: {
                "mean": _rounded(trend.mean),
                "slope_per_hour": _rounded(trend.slope_per_hour),
                "error_per_hour": _rounded(trend.error_per_hour),
                "samples": trend.samples,
            }
            for name, trend in trends.items()
        },
        "rate_share": _rounded(rate_share),
        "delivery_share": _rounded(delivery_share),
        "errors": failures,
        "rule": (
            f"flat: a rise of at most {ERRORS:g} standard errors, or in an hour of at most "
            f"{MEMORY_SHARE_MAX:.0%} of the mean (memory) and {LATENCY_SHARE_MAX:.0%} (p99); "
            f"{SHARE_MIN:.0%} at least of what was due is appended, and delivered"
        ),
        "is_good": len(steady) >= SAMPLES_MIN and not found,
        "verdict": verdict if len(steady) >= SAMPLES_MIN else "too short to say",
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
