"""Settings are data: frozen values, checked once, given to the components that need them."""

import re
from typing import Final

import msgspec

from bourn.limits import (
    APPEND_INFLIGHT_BYTES,
    APPEND_INFLIGHT_BYTES_MIN,
    COMMIT_SPLIT_BYTES,
    COMMIT_SPLIT_BYTES_MAX,
    COMMITS_IN_FLIGHT_LOCAL,
    COMMITS_IN_FLIGHT_MAX,
    COMMITS_IN_FLIGHT_REMOTE,
    ENCODED_CACHE_BYTES,
    HISTORY_POLL_SECS_LOCAL,
    HISTORY_POLL_SECS_REMOTE,
    LIMIT_APPEND_BYTES_MIN,
    PORT_MAX,
    READ_CACHE_BYTES,
    SPOOL_BYTES,
    SPOOL_BYTES_MIN,
    TAIL_CACHE_LOCAL_BYTES,
    TAIL_CACHE_REMOTE_BYTES,
)

EDGES: Final = ("native", "asgi")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
PIPELINE_OFF: Final = "off"
PIPELINE_LOCAL: Final = "local"
PIPELINE_BACKLOG_BYTES: Final = 64 << 20
PIPELINE_AGE_SECS: Final = 60.0
_MASTER: Final = re.compile(
    r"local|local\[(?:[1-9]\d{0,3}|\*)\]|local-cluster\[\d{1,4},\d{1,4},\d{1,7}\]|yarn"
    r"|(?:spark|k8s)://[^\s@]+"
)
_LIMITS: Final = {
    f"limit_{scope}_{what}": least
    for scope in ("basin", "token")
    for what, least in (("requests", 1), ("append_bytes", LIMIT_APPEND_BYTES_MIN), ("sessions", 1))
}


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node commits, caches and cleans up. `None` means: by the kind of bucket."""

    flush_interval_ms: int | None = None  # 0 on memory and local disk, 20 on remote buckets
    commits_in_flight: int | None = None  # 8 on memory and local disk, 32 on remote buckets
    commit_split_bytes: int = COMMIT_SPLIT_BYTES
    append_inflight_bytes: int = APPEND_INFLIGHT_BYTES
    put_attempt_secs: float = 10.0  # an attempt that takes longer is given up and repeated
    put_deadline_secs: float = 30.0  # after this, the outcome counts as unknown
    rebuild_wait_secs: float = 4.0  # how long a request waits for a node that rebuilds itself
    epoch_poll_secs: float = 1.0
    history_poll_secs: float | None = None  # 1 on memory and local disk, 5 on remote buckets
    tail_cache_bytes: int | None = None  # 96 MiB; 256 on remote buckets without a spool
    read_cache_bytes: int = READ_CACHE_BYTES
    encoded_cache_bytes: int = ENCODED_CACHE_BYTES
    housekeeping_secs: float = 1.0
    snapshot_interval_secs: float = 300.0  # where anything changed
    snapshot_after_bytes: int = 1 << 30  # of log behind the newest snapshot: bounds the replay
    snapshot_after_streams: int = 20_000  # changed since the newest snapshot; or a fifth of all
    snapshots_kept: int = 2
    collect_grace_secs: float = 60.0  # a dead commit stays this long for readers under way
    usage_flush_secs: float = 30.0  # how long counts of reads and calls wait for the log
    location: str = "local"
    quota_basins: int | None = None  # None: as many as you like
    quota_streams_per_basin: int | None = None
    quota_tokens: int | None = None  # beside the root token

    def __post_init__(self) -> None:
        """Refuse values that cannot work, saying what would."""
        flush, depth = self.flush_interval_ms, self.commits_in_flight
        if flush is not None and flush < 0:
            raise ValueError("flush_interval_ms must be 0 or more")
        if depth is not None and not 1 <= depth <= COMMITS_IN_FLIGHT_MAX:
            raise ValueError(f"commits_in_flight must be from 1 to {COMMITS_IN_FLIGHT_MAX}")
        if not 1 <= self.commit_split_bytes <= COMMIT_SPLIT_BYTES_MAX:
            # A larger commit would be put, acked, and then refused by every later start.
            raise ValueError(f"commit_split_bytes must be from 1 to {COMMIT_SPLIT_BYTES_MAX}")
        if self.append_inflight_bytes < APPEND_INFLIGHT_BYTES_MIN:
            raise ValueError(f"append_inflight_bytes must be at least {APPEND_INFLIGHT_BYTES_MIN}")
        if self.history_poll_secs is not None and self.history_poll_secs <= 0:
            raise ValueError("history_poll_secs must be more than 0")
        if self.snapshots_kept < 1:
            raise ValueError("snapshots_kept must be at least 1")
        for name in ("quota_basins", "quota_streams_per_basin", "quota_tokens"):
            quota = getattr(self, name)
            if quota is not None and quota < 0:
                raise ValueError(f"{name} must be 0 or more; leave it out for no quota")

    def resolved(self, *, remote: bool, spooled: bool = False) -> "EngineSettings":
        """Return the settings with every `None` decided."""
        flush = self.flush_interval_ms
        depth = self.commits_in_flight
        if flush is None:
            flush = 20 if remote else 0
        if depth is None:
            depth = COMMITS_IN_FLIGHT_REMOTE if remote else COMMITS_IN_FLIGHT_LOCAL
        poll_secs = self.history_poll_secs
        if poll_secs is None:
            poll_secs = HISTORY_POLL_SECS_REMOTE if remote else HISTORY_POLL_SECS_LOCAL
        cache_bytes = self.tail_cache_bytes
        if cache_bytes is None:
            is_far = remote and not spooled
            cache_bytes = TAIL_CACHE_REMOTE_BYTES if is_far else TAIL_CACHE_LOCAL_BYTES
        return msgspec.structs.replace(
            self,
            flush_interval_ms=flush,
            commits_in_flight=depth,
            history_poll_secs=poll_secs,
            tail_cache_bytes=cache_bytes,
        )


class UsagePrices(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator charges, in US dollars; all zero: nothing is estimated."""

    append_gib: float = 0.0
    read_gib: float = 0.0
    storage_gib_month: float = 0.0
    operations_million: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no price."""
        if not all(0 <= price < float("inf") for price in msgspec.structs.astuple(self)):
            raise ValueError("usage_prices: a price must be a number, 0 or more")

    @property
    def are_set(self) -> bool:
        """Whether anything has a price."""
        return any(msgspec.structs.astuple(self))


class TrafficLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What one basin, or one token, may do; None: as much as it likes."""

    requests: int | None = None  # a second
    append_bytes: int | None = None  # a second, metered
    sessions: int | None = None  # open at a time

    @property
    def is_set(self) -> bool:
        """Whether anything is limited."""
        return any(limit is not None for limit in msgspec.structs.astuple(self))


class TrafficLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What each basin and what each token may do."""

    basin: TrafficLimit = TrafficLimit()
    token: TrafficLimit = TrafficLimit()

    @property
    def are_set(self) -> bool:
        """Whether anything is limited."""
        return self.basin.is_set or self.token.is_set


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told: where its bucket is, where it listens, how its engine works."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0 takes any free one
    edge: str = "native"  # or "asgi": under granian, in a process of its own
    bucket: str = "./bourn-data"  # as `bucket.location` reads it
    path: str = ""  # the part of the bucket that is used; all of it, if empty
    basin_domain: tuple[str, ...] = ()  # `{basin}.{domain}` as host names the basin
    tls_cert: str = ""  # files in PEM form
    tls_key: str = ""
    tls_self: bool = False
    init_file: str = ""
    cors: bool = True
    auth: bool | None = None  # whether requests need a token; None: see `cli.access`
    root_token: str = ""  # the one that may do everything; if empty, that of an earlier start
    audit_log: str = ""  # a file; "-" is standard error
    log_level: str = "info"
    spool_bytes: int = SPOOL_BYTES  # of a remote bucket; 0: none
    spool_directory: str = ""  # if empty, the system's for temporary files
    pipeline: str = ""  # off, local or a Spark master; if empty, local where it can be
    pipeline_backlog: int = PIPELINE_BACKLOG_BYTES  # as PipelineSettings.backlog_bytes
    pipeline_age: float = PIPELINE_AGE_SECS  # as PipelineSettings.age_secs
    usage_prices: UsagePrices = UsagePrices()
    limit_basin_requests: int | None = None  # a second, in each basin
    limit_basin_append_bytes: int | None = None
    limit_basin_sessions: int | None = None  # open at a time
    limit_token_requests: int | None = None  # and the same by each token
    limit_token_append_bytes: int | None = None
    limit_token_sessions: int | None = None
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        """Refuse what cannot work together, saying what would."""
        if not self.host:
            raise ValueError("host is empty: name an address, or 0.0.0.0 for all of this machine")
        if not 0 <= self.port <= PORT_MAX:
            raise ValueError(f"port must be from 0 to {PORT_MAX}; 0 takes any free one")
        if self.edge not in EDGES:
            raise ValueError(f"edge must be one of {', '.join(EDGES)}")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}")
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together: give both files")
        self._check_pipeline()
        self._check_spool()
        if self.auth is False and self.root_token:
            raise ValueError("root_token and no auth exclude each other: keep one of them")
        if self.tls_self and self.tls_cert:
            raise ValueError("tls_self and tls_cert exclude each other: keep one of them")
        for name, least in _LIMITS.items():
            limit = getattr(self, name)
            if limit is not None and limit < least:
                raise ValueError(f"{name} must be at least {least}; leave it out for no limit")

    def _check_pipeline(self) -> None:
        if "@" in self.pipeline:
            raise ValueError("credentials do not belong into a URL: configure them in Spark")
        if self.pipeline not in {"", PIPELINE_OFF} and not _MASTER.fullmatch(self.pipeline):
            raise ValueError(
                f"{self.pipeline!r} is no place for a pipeline: write off, local, local[2] or a "
                "Spark master such as spark://host:7077"
            )
        if self.pipeline_backlog < 1:
            raise ValueError("pipeline_backlog must be at least 1")

    def _check_spool(self) -> None:
        if 0 < self.spool_bytes < SPOOL_BYTES_MIN:
            raise ValueError(f"spool_bytes must be at least {SPOOL_BYTES_MIN}, or 0 for none")

    @property
    def is_encrypted(self) -> bool:
        """Whether clients must speak TLS."""
        return self.tls_self or bool(self.tls_cert)

    @property
    def traffic(self) -> TrafficLimits:
        """The limits of basins and of tokens."""
        return TrafficLimits(
            basin=TrafficLimit(
                requests=self.limit_basin_requests,
                append_bytes=self.limit_basin_append_bytes,
                sessions=self.limit_basin_sessions,
            ),
            token=TrafficLimit(
                requests=self.limit_token_requests,
                append_bytes=self.limit_token_append_bytes,
                sessions=self.limit_token_sessions,
            ),
        )


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When the pipeline works, on which cluster, and in which portions."""

    master: str = "local[*]"  # as Spark names its clusters
    backlog_bytes: int = PIPELINE_BACKLOG_BYTES  # of log that is not in the table: start at once
    age_secs: float = PIPELINE_AGE_SECS  # of the oldest commit that is not: start even for less
    poll_secs: float = 1.0  # pause between two looks at the log
    idle_secs: float = 300.0  # without work: let Spark go; it comes back when it is needed
    retry_secs_max: float = 60.0  # longest pause behind a run that failed
    checkpoint_versions: int = 20  # of the table's log, from one checkpoint to the next
    merge_files: int = 4  # neighbouring parts of the table that are merged into one, at least
    retain_secs: float = 300.0  # between two looks at what has died
    meter_secs: float = 600.0  # between two looks at usage
    grace_secs: float = 600.0  # a file stays so long behind the version that took it out
    log_keep_secs: float = 86_400.0  # versions of the table stay so long, if a checkpoint has them
    niceness: int = 10  # of a local Spark: the server goes first

    def __post_init__(self) -> None:
        """Refuse values that cannot work, saying what would."""
        if not self.master:
            raise ValueError("master is empty: name a cluster, or local[*] for this machine")
        if self.backlog_bytes < 1:
            raise ValueError("backlog_bytes must be at least 1")
        if self.age_secs < 0 or self.poll_secs <= 0 or self.idle_secs < 0:
            raise ValueError("age_secs, poll_secs and idle_secs must not be negative")
        if self.checkpoint_versions < 1:
            raise ValueError("checkpoint_versions must be at least 1")
        if self.merge_files < 2:  # noqa: PLR2004  one is merged already
            raise ValueError("merge_files must be at least 2")
        if self.retain_secs < 0 or self.grace_secs < 0 or self.log_keep_secs < 0:
            raise ValueError("retain_secs, grace_secs and log_keep_secs must not be negative")

    @property
    def is_local(self) -> bool:
        """Whether Spark runs on this machine alone."""
        return self.master.startswith("local")
