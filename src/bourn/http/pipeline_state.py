"""How the pipeline and its table stand, as `GET /metrics` tells it."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from bourn.engine.history import History

MS_PER_SEC: Final = 1000


class Lag(NamedTuple):
    """What of the log is not in the table."""

    commits: int
    size_bytes: int
    secs: float  # age of the oldest


NO_LAG: Final = Lag(0, 0, 0.0)


class PipelineState(msgspec.Struct, kw_only=True):
    """What is known of the pipeline, without asking the bucket; who supervises it fills it in."""

    is_enabled: bool = False  # this server starts it when there is work
    is_running: bool = False
    pid: int = 0  # of the process that runs, else 0
    starts: int = 0
    restarts: int = 0  # starts behind an end that nobody had asked for
    runs: int = 0  # that the process has told of
    failures: int = 0  # runs that failed, and ends that nobody had asked for
    last_started_ms: int = 0
    last_ended_ms: int = 0
    last_error: str = ""  # of the last run or end; empty where it was a good one
    table_version: int = -1
    table_end_ordinal: int = 0
    lag: Callable[[], Lag] = lambda: NO_LAG

    def gauges(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield name, kind, meaning and value of each."""
        yield "bourn_pipeline_enabled", "gauge", "Whether this server runs it", int(self.is_enabled)
        yield "bourn_pipeline_up", "gauge", "Whether its process runs", int(self.is_running)
        yield "bourn_pipeline_starts_total", "counter", "Starts of its process", self.starts
        yield (
            "bourn_pipeline_restarts_total",
            "counter",
            "Starts behind an end that was not asked for",
            self.restarts,
        )
        yield "bourn_pipeline_runs_total", "counter", "Runs ended", self.runs
        yield (
            "bourn_pipeline_failures_total",
            "counter",
            "Runs failed, and ends of the process that were not asked for",
            self.failures,
        )
        yield (
            "bourn_pipeline_last_run_started_seconds",
            "gauge",
            "When the last run began, in Unix time",
            self.last_started_ms / MS_PER_SEC,
        )
        yield (
            "bourn_pipeline_last_run_ended_seconds",
            "gauge",
            "When the last run ended, in Unix time",
            self.last_ended_ms / MS_PER_SEC,
        )
        yield (
            "bourn_pipeline_last_run_duration_seconds",
            "gauge",
            "How long the last run took",
            (self.last_ended_ms - self.last_started_ms) / MS_PER_SEC,
        )
        yield (
            "bourn_pipeline_last_run_failed",
            "gauge",
            "Whether the last run failed",
            int(bool(self.last_error)),
        )
        lag = self.lag()
        yield "bourn_pipeline_lag_commits", "gauge", "Commits not in the table", lag.commits
        yield "bourn_pipeline_lag_bytes", "gauge", "Bytes of log not in the table", lag.size_bytes
        yield "bourn_pipeline_lag_seconds", "gauge", "Age of the oldest of it", lag.secs


def history_gauges(history: History) -> Iterator[tuple[str, str, str, float]]:
    """Yield what is known of the table that reads are served from."""
    yield "bourn_history_version", "gauge", "Version of the table in use", history.version
    yield (
        "bourn_history_seen_version",
        "gauge",
        "Newest version of the table that is known",
        history.seen_version,
    )
    yield (
        "bourn_history_end_ordinal",
        "gauge",
        "Commits of the log that the table in use has",
        history.end_ordinal,
    )
    yield (
        "bourn_history_adopted_seconds",
        "gauge",
        "Since when it is in use, in Unix time",
        history.adopted_at_ms / MS_PER_SEC,
    )
    yield "bourn_history_segments", "gauge", "Files of the table", history.segments
    yield (
        "bourn_history_segments_missing",
        "gauge",
        "Files of the table that cannot be read",
        history.segments_missing,
    )
    yield "bourn_history_blocks", "gauge", "Blocks indexed", history.blocks
    yield "bourn_history_index_bytes", "gauge", "Memory of the indexes", history.index_bytes
    yield "bourn_history_fetches_total", "counter", "Blocks fetched for reads", history.fetches
    yield "bourn_history_fetched_bytes_total", "counter", "Bytes of them", history.bytes_fetched
    yield (
        "bourn_history_failures_total",
        "counter",
        "Looks at the table, or reads from it, that failed",
        history.failures,
    )
