"""Settings are data: frozen values, checked once, given to the components that need them."""

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
    PORT_MAX,
    READ_CACHE_BYTES,
    TAIL_CACHE_BYTES,
)

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


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
    tail_cache_bytes: int = TAIL_CACHE_BYTES
    read_cache_bytes: int = READ_CACHE_BYTES
    encoded_cache_bytes: int = ENCODED_CACHE_BYTES
    housekeeping_secs: float = 1.0
    snapshot_interval_secs: float = 300.0  # where anything changed
    snapshot_after_bytes: int = 1 << 30  # of log behind the newest snapshot: bounds the replay
    snapshot_after_streams: int = 20_000  # changed since the newest snapshot; or a fifth of all
    snapshots_kept: int = 2
    collect_grace_secs: float = 60.0  # a dead commit stays this long for readers under way
    location: str = "local"

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
        if self.snapshots_kept < 1:
            raise ValueError("snapshots_kept must be at least 1")

    def resolved(self, *, remote: bool) -> "EngineSettings":
        """Return the settings with every `None` decided."""
        flush = self.flush_interval_ms
        depth = self.commits_in_flight
        if flush is None:
            flush = 20 if remote else 0
        if depth is None:
            depth = COMMITS_IN_FLIGHT_REMOTE if remote else COMMITS_IN_FLIGHT_LOCAL
        return msgspec.structs.replace(self, flush_interval_ms=flush, commits_in_flight=depth)


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told: where its bucket is, where it listens, how its engine works."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0 takes any free one
    bucket: str = "./bourn-data"  # as `bucket.location` reads it
    path: str = ""  # the part of the bucket that is used; all of it, if empty
    basin_domain: tuple[str, ...] = ()  # `{basin}.{domain}` as host names the basin
    tls_cert: str = ""  # files in PEM form
    tls_key: str = ""
    tls_self: bool = False
    init_file: str = ""
    cors: bool = True
    log_level: str = "info"
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        """Refuse what cannot work together, saying what would."""
        if not self.host:
            raise ValueError("host is empty: name an address, or 0.0.0.0 for all of this machine")
        if not 0 <= self.port <= PORT_MAX:
            raise ValueError(f"port must be from 0 to {PORT_MAX}; 0 takes any free one")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}")
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together: give both files")
        if self.tls_self and self.tls_cert:
            raise ValueError("tls_self and tls_cert exclude each other: keep one of them")

    @property
    def is_encrypted(self) -> bool:
        """Whether clients must speak TLS."""
        return self.tls_self or bool(self.tls_cert)
