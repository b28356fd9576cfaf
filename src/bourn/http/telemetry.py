"""Counters and histograms for `GET /metrics`, in Prometheus' text form.

The four histograms of the reference server carry its names; what is ours begins with `bourn_`.
"""

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final

import numpy as np

from bourn.clock import Clock
from bourn.engine.batch import ReadBatch
from bourn.engine.node import Node
from bourn.errors import Unavailable
from bourn.http.pipeline_state import PipelineState, history_gauges
from bourn.layout.records import RecordBatch
from bourn.limits import KIB, MIB

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_RECORDS: Final = (1, 10, 50, 100, 250, 500, 1000)
_BYTES: Final = (512, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB)
_COUNTED_TOGETHER: Final = 1024
_SCOPES: Final = ("basin", "token")
_LIMITS: Final = ("requests", "append_bytes", "sessions")


class Histogram:
    """Counts by bucket; cheap enough for every append."""

    def __init__(self, name: str, what: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._what = what
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._values: list[float] = []  # to be counted together

    def observe(self, value: float) -> None:
        """Count a value."""
        values = self._values
        values.append(value)
        if len(values) >= _COUNTED_TOGETHER:
            self._count()

    def observe_all(self, values: Iterable[float]) -> None:
        """Count many values."""
        self._values.extend(values)
        self._count()

    def _count(self) -> None:
        values = np.array(self._values, np.float64)
        self._values.clear()
        places = np.searchsorted(self._bounds, values)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum += float(values.sum())

    def lines(self) -> Iterator[str]:
        """The histogram as Prometheus reads it."""
        self._count()
        yield f"# HELP {self._name} {self._what}"
        yield f"# TYPE {self._name} histogram"
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts.tolist(), strict=True):
            total += count
            yield f'{self._name}_bucket{{le="{bound}"}} {total}'
        yield f"{self._name}_sum {self._sum}"
        yield f"{self._name}_count {total}"


class Telemetry:
    """Everything that is measured of one server."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self.permit = Histogram(
            "s2_append_permit_latency_seconds", "Wait for room to admit an append", _SECONDS
        )
        self.ack = Histogram(
            "s2_append_ack_latency_seconds", "Time from admission to a durable ack", _SECONDS
        )
        self.records = Histogram("s2_append_batch_records", "Records in a batch", _RECORDS)
        self.bytes = Histogram("s2_append_batch_bytes", "Metered bytes of a batch", _BYTES)
        self._admissions = (self.permit, self.records, self.bytes)
        self.requests = 0
        self.quick_requests = 0  # of these, by `quick`
        self.open_sessions = 0
        self.records_delivered = 0
        self.bytes_delivered = 0
        self.throttled_secs = 0.0  # that sessions were made to wait
        self.pipeline = PipelineState()
        self._limited = dict.fromkeys(product(_SCOPES, _LIMITS), 0)
        self._admitted: list[tuple[float, int, int]] = []  # to be counted together

    @contextmanager
    def append(self, batch: RecordBatch) -> Iterator[Callable[[], None]]:
        """Measure one append to its ack; who admits it calls what this yields."""
        asked = began = self._clock.monotonic()

        def admitted() -> None:
            nonlocal began
            began = self._clock.monotonic()
            self.admitted(batch, began - asked)

        yield admitted
        self.ack.observe(self._clock.monotonic() - began)

    def admitted(self, batch: RecordBatch, waited_secs: float) -> None:
        """Note a batch on its way in."""
        noted = self._admitted
        noted.append((waited_secs, batch.count, batch.metered_bytes))
        if len(noted) >= _COUNTED_TOGETHER:
            self._count_admitted()

    def _count_admitted(self) -> None:
        if self._admitted:
            columns = zip(*self._admitted, strict=True)
            self._admitted.clear()
            for histogram, values in zip(self._admissions, columns, strict=True):
                histogram.observe_all(values)

    def delivered(self, batch: ReadBatch, basin: str, *, is_unary: bool = False) -> None:
        """Note a batch that was handed to a client's connection."""
        self.records_delivered += batch.records_count
        self.bytes_delivered += batch.metered_bytes
        if is_unary:
            self._node.meter.read_unary(basin, batch.metered_bytes)
        else:
            self._node.meter.delivered(basin, batch.metered_bytes)

    def read_opened(self, basin: str) -> None:
        """Note a read session; `read_closed` must follow."""
        self.open_sessions += 1
        self._node.meter.session_opened(basin)

    def read_closed(self, basin: str) -> None:
        """Note the end of a read session."""
        self.open_sessions -= 1
        self._node.meter.session_closed(basin)

    def limited(self, scope: str, what: str) -> None:
        """Note a request that was refused because of a limit."""
        self._limited[scope, what] += 1

    def render(self) -> bytes:
        """All of it, as `GET /metrics` answers."""
        self._count_admitted()
        lines: list[str] = []
        for histogram in (self.permit, self.ack, self.records, self.bytes):
            lines += histogram.lines()
        for name, kind, what, value in self._gauges():
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}"]
        lines += self._limited_lines()
        return ("\n".join(lines) + "\n").encode()

    def _limited_lines(self) -> Iterator[str]:
        name = "bourn_rate_limited_total"
        yield f"# HELP {name} Requests refused because of a limit"
        yield f"# TYPE {name} counter"
        for (scope, what), count in self._limited.items():
            yield f'{name}{{scope="{scope}",limit="{what}"}} {count}'

    def _gauges(self) -> Iterator[tuple[str, str, str, float]]:
        yield "bourn_requests_total", "counter", "Requests taken", self.requests
        yield (
            "bourn_quick_requests_total",
            "counter",
            "Of these, the ones that went the quick way",
            self.quick_requests,
        )
        yield "bourn_open_sessions", "gauge", "Sessions under way", self.open_sessions
        yield "bourn_read_records_total", "counter", "Records delivered", self.records_delivered
        yield "bourn_read_bytes_total", "counter", "Metered bytes delivered", self.bytes_delivered
        yield (
            "bourn_session_throttled_seconds_total",
            "counter",
            "Time that sessions were made to wait by a limit",
            self.throttled_secs,
        )
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield "process_cpu_seconds_total", "counter", "CPU time", usage.ru_utime + usage.ru_stime
        yield "bourn_memory_peak_bytes", "gauge", "Peak resident memory", usage.ru_maxrss * KIB
        yield from self.pipeline.gauges()
        yield from history_gauges(self._node.history)
        try:
            term = self._node.term
        except Unavailable:
            return
        committer, reader = term.committer, term.reader
        yield "bourn_epoch", "gauge", "Epoch of this writer", term.epoch
        yield "bourn_commits_total", "counter", "Commits made durable", committer.commits
        yield (
            "bourn_committed_bytes_total",
            "counter",
            "Bytes of commit objects",
            committer.bytes_committed,
        )
        yield "bourn_commits_in_flight", "gauge", "Puts under way", committer.in_flight
        yield (
            "bourn_put_latency_seconds",
            "gauge",
            "Moving average of a put",
            committer.put_latency_secs,
        )
        yield "bourn_put_retries_total", "counter", "Puts repeated", term.puts.retries
        yield (
            "bourn_append_inflight_bytes",
            "gauge",
            "Bytes admitted and not durable",
            term.room.bytes_taken,
        )
        yield "bourn_append_waiting", "gauge", "Appends that wait for room", term.room.waiting
        yield "bourn_tail_cache_bytes", "gauge", "Newest commits", term.tail_cache.bytes_held
        yield "bourn_read_cache_bytes", "gauge", "Runs read back", reader.bytes_held
        yield "bourn_read_hits_total", "counter", "Runs found in memory", reader.hits
        yield "bourn_read_fetches_total", "counter", "Runs fetched", reader.fetches
        yield "bourn_streams", "gauge", "Streams", term.state.streams.count()
        yield "bourn_basins", "gauge", "Basins", len(term.state.basins)
