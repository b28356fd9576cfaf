"""Names of the objects in the bucket.

```
epoch/{epoch:012d}                              a writer's claim
wal/{epoch:012d}/{id:012d}                      a commit, or the tombstone that seals the epoch
catalog/{epoch:012d}-{id:012d}.parquet          the state before that commit of that epoch
```

Objects are only ever created, never overwritten. A snapshot is named by its position in the log,
not by a counter: the last name is the newest state, whoever wrote it, and a writer that has been
fenced without knowing it cannot put an older state above a newer one.
"""

import re
from typing import Final, NamedTuple

EPOCH_PREFIX: Final = "epoch/"
WAL_PREFIX: Final = "wal/"
SNAPSHOT_PREFIX: Final = "catalog/"

_SNAPSHOT: Final = re.compile(r"catalog/(\d{12})-(\d{12})\.parquet")
_WAL: Final = re.compile(r"wal/(\d{12})/(\d{12})")
_EPOCH: Final = re.compile(r"epoch/(\d{12})")


class LogPosition(NamedTuple):
    """A commit by its epoch and its id within the epoch; as a bound, the first one not covered."""

    epoch: int
    id: int


def epoch_key(epoch: int) -> str:
    """Name a writer's claim."""
    return f"epoch/{epoch:012d}"


def wal_prefix(epoch: int) -> str:
    """Name the directory of one epoch's commits."""
    return f"wal/{epoch:012d}/"


def wal_key(epoch: int, commit_id: int) -> str:
    """Name a commit object."""
    return f"wal/{epoch:012d}/{commit_id:012d}"


def snapshot_key(position: LogPosition) -> str:
    """Name the snapshot of the state before `position`."""
    return f"catalog/{position.epoch:012d}-{position.id:012d}.parquet"


def parse_epoch_key(key: str) -> int | None:
    """Return the epoch that a key claims, or None for a foreign key."""
    match = _EPOCH.fullmatch(key)
    return int(match[1]) if match else None


def parse_wal_key(key: str) -> LogPosition | None:
    """Return the position that a key names, or None for a foreign key."""
    match = _WAL.fullmatch(key)
    return LogPosition(int(match[1]), int(match[2])) if match else None


def parse_snapshot_key(key: str) -> LogPosition | None:
    """Return the position of a snapshot, or None for a foreign key."""
    match = _SNAPSHOT.fullmatch(key)
    return LogPosition(int(match[1]), int(match[2])) if match else None
