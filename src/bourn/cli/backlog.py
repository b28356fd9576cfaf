"""How much of the log waits for the pipeline, by what the engine counts anyway.

Once a second a sample is noted: so many commits, so many bytes, at such a time. What lies between
the table's end and the newest sample is the lag; in between two samples it is drawn as a line.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from bourn.http.pipeline_state import NO_LAG, Lag

SAMPLES_MAX: Final = 4096


class Sample(NamedTuple):
    """All commits below the ordinal were there at that time, and had so many bytes."""

    ordinal: int
    size_bytes: int
    at_ms: int


class Backlog:
    """Samples of the log's growth, from the table's end on."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples: list[Sample] = []
        self._samples_max = samples_max

    def note(self, ordinal: int, size_bytes: int, at_ms: int) -> None:
        """Note how far the log is now; `size_bytes` counts from anywhere, and never falls."""
        samples = self._samples
        if samples and ordinal <= samples[-1].ordinal:
            # Nothing has come: what comes next will have come since now.
            samples[-1] = samples[-1]._replace(at_ms=max(at_ms, samples[-1].at_ms))
            return
        samples.append(Sample(ordinal, size_bytes, at_ms))
        if len(samples) > self._samples_max:
            del samples[1:-1:2]

    def lag(self, end_ordinal: int, now_ms: int) -> Lag:
        """Return what lies behind a table that reaches up to an ordinal."""
        samples = self._samples
        if not samples or end_ordinal >= samples[-1].ordinal:
            return NO_LAG
        newest = samples[-1]
        at = bisect_right(samples, end_ordinal, key=lambda sample: sample.ordinal)
        if at == 0:
            left = samples[0]
            return Lag(
                newest.ordinal - end_ordinal,
                newest.size_bytes - left.size_bytes,
                max(now_ms - left.at_ms, 0) / 1000,
            )
        left, right = samples[at - 1], samples[at]
        share = (end_ordinal - left.ordinal) / (right.ordinal - left.ordinal)
        began = left.size_bytes + round(share * (right.size_bytes - left.size_bytes))
        return Lag(
            newest.ordinal - end_ordinal,
            newest.size_bytes - began,
            max(now_ms - left.at_ms, 0) / 1000,
        )

    def forget_before(self, end_ordinal: int) -> None:
        """Drop the samples that no later lag needs."""
        at = bisect_right(self._samples, end_ordinal, key=lambda sample: sample.ordinal)
        del self._samples[: max(at - 1, 0)]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)
