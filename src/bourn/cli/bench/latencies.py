"""Latencies in a histogram of 1280 words, however many there are; see `kernels` for its buckets."""

from typing import Final, NamedTuple

import numpy as np

from bourn.cli.bench.kernels import BUCKETS, Words

_FINE: Final = 64  # microseconds below this have a bucket each
_STEPS: Final = 32  # to each doubling
_US_PER_MS: Final = 1000


class Percentiles(NamedTuple):
    """What a set of latencies comes to, in milliseconds."""

    p50: float
    p90: float
    p99: float
    most: float


class Latencies:
    """Counts latencies; `counts` is for a kernel that counts by itself."""

    def __init__(self) -> None:
        self.counts: Words = np.zeros(BUCKETS, np.int64)

    def add(self, seconds: float, times: int) -> None:
        """Count a latency that so many records had."""
        self.counts[bucket_of(int(seconds * 1e6))] += times

    @property
    def total(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    def percentiles(self) -> Percentiles | None:
        """Return them, each exact to 2 %; None where nothing was counted."""
        reached = np.cumsum(self.counts)
        total = int(reached[-1])
        if not total:
            return None
        ranks = [-(-total * percent // 100) for percent in (50, 90, 99, 100)]
        return Percentiles(*(_middle_ms(int(np.searchsorted(reached, rank))) for rank in ranks))


def bucket_of(microseconds: int) -> int:
    """Return where a latency is counted."""
    shift = max(0, microseconds.bit_length() - _FINE.bit_length() + 1)
    return min(_STEPS * shift + (max(microseconds, 0) >> shift), BUCKETS - 1)


def _middle_ms(bucket: int) -> float:
    if bucket < _FINE:
        return bucket / _US_PER_MS
    shift, step = divmod(bucket, _STEPS)
    shift -= 1
    return (((_STEPS + step) << shift) + (1 << shift) / 2) / _US_PER_MS
