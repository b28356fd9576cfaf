"""The log of the history's table, in the open Delta format: which segments are its rows.

```
history/{segment}.parquet                                  rows, sorted by (stream_id, seq_num)
history/_index/{segment}.idx                               where each stream lies in them
history/_delta_log/{version:020d}.json                     a commit: one action a line, in JSON
history/_delta_log/{version:020d}.checkpoint.parquet       every action in force at a version
history/_delta_log/_last_checkpoint                        which of these is the newest

segment   {first_ordinal:012d}-{end_ordinal:012d}-{part:03d}-{16 hex digits}
          the digits: Unix time in seconds as it was written, and as many at random
```

| action | what it does |
|---|---|
| `protocol`, `metaData` | say how to read the table, and its columns; in version 0 |
| | `metaData` once more where the first one lacked a property |
| `add`, `remove` | a file's rows are in the table from this version on; or no longer |
| `txn` | of `bourn-wal`: the table holds the rows of every commit of the log below this ordinal |
| | of `bourn-vacuum`: whatever no version named when it moved, none will ever name |
| `commitInfo` | who made the version, and why; `bourn.commit` is drawn anew for each attempt |

A version is created once, create-only, so of any number of writers exactly one makes it. Everything
in it holds together or not at all: rows and the ordinal that they reach come in one commit, so
a commit of the log is in the table once, whoever repeats what.

We need version 1 of Delta's readers and write what version 2 of its writers does. A table that has
been given features beyond that is refused, because its files would no longer mean what they say.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from bourn.errors import Damaged, NewerFormat

HISTORY_PREFIX: Final = "history/"
INDEX_PREFIX: Final = "history/_index/"
DELTA_PREFIX: Final = "history/_delta_log/"
LAST_CHECKPOINT_KEY: Final = "history/_delta_log/_last_checkpoint"

WAL_APP_ID: Final = "bourn-wal"
VACUUM_APP_ID: Final = "bourn-vacuum"
READER_VERSION: Final = 1
WRITER_VERSION: Final = 2
COMMIT_ID: Final = "bourn.commit"  # in commitInfo

_VERSION_MAX: Final = 2**63 - 1
_COMMIT: Final = re.compile(r"_delta_log/(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"_delta_log/(\d{20})\.checkpoint\.parquet")
_SEGMENT: Final = re.compile(r"(\d{12,})-(\d{12,})-(\d{3,})-([0-9a-f]{16})")
_TAGS: Final = "bourn."


class Protocol(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What a reader and a writer must know to touch the table."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Format(msgspec.Struct, frozen=True):
    """What the files are."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class MetaData(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the table is: `schema_string` holds its columns as Delta writes them."""

    id: str
    name: str | None = None
    description: str | None = None
    format: Format
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str | None]
    created_time: int | None = None


class Add(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A file whose rows are in the table."""

    path: str  # below HISTORY_PREFIX
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """The object's name in the bucket."""
        return HISTORY_PREFIX + self.path

    def tag(self, name: str) -> int:
        """Return a number that one of us has left with the file; Damaged where there is none."""
        text = (self.tags or {}).get(_TAGS + name)
        if text is None or not text.isascii() or not text.isdecimal():
            raise Damaged(self.key, f"the table's log says no {_TAGS}{name} of it")
        return int(text)

    @property
    def index_key(self) -> str:
        """The name of the sidecar."""
        return f"{INDEX_PREFIX}{self.path.removesuffix('.parquet')}.idx"


class Remove(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A file whose rows are no longer in the table; the object stays until it is vacuumed."""

    path: str
    deletion_timestamp: int | None = None
    data_change: bool
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None
    tags: dict[str, str | None] | None = None


class Txn(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """How far an application has come."""

    app_id: str
    version: int
    last_updated: int | None = None


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """All that one version says."""

    protocol: Protocol | None = None
    metadata: MetaData | None = None
    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    txns: tuple[Txn, ...] = ()
    info: dict[str, Any] = {}


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """The table at a version; -1 is before the first one."""

    version: int = -1
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    live: Mapping[str, Add] = {}  # by path, in the order in which they came
    txns: Mapping[str, int] = {}

    @property
    def end_ordinal(self) -> int:
        """The rows of every commit of the log below it are in the table."""
        return self.txns.get(WAL_APP_ID, 0)

    @property
    def fence(self) -> int:
        """Moves when segments that no version names are deleted: who was to name one, must not."""
        return self.txns.get(VACUUM_APP_ID, 0)


class _Line(msgspec.Struct, rename={"metadata": "metaData", "info": "commitInfo"}):
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    add: Add | None = None
    remove: Remove | None = None
    txn: Txn | None = None
    info: dict[str, Any] | None = None


class SegmentName(NamedTuple):
    """What the name of a segment says."""

    first_ordinal: int
    end_ordinal: int
    part: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.first_ordinal:012d}-{self.end_ordinal:012d}-{self.part:03d}-{self.nonce}"

    @property
    def key(self) -> str:
        """The name of the Parquet object."""
        return f"{HISTORY_PREFIX}{self}.parquet"

    @property
    def index_key(self) -> str:
        """The name of the sidecar."""
        return f"{INDEX_PREFIX}{self}.idx"

    @property
    def written_s(self) -> int:
        """When it was written, by the clock of whoever did."""
        return int(self.nonce[:8], 16)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(_Line)


def parse_segment_key(key: str) -> SegmentName | None:
    """Return what the key of a segment or of a sidecar says, or None for a foreign key."""
    if key.startswith(INDEX_PREFIX):
        stem, end = key.removeprefix(INDEX_PREFIX), ".idx"
    else:
        stem, end = key.removeprefix(HISTORY_PREFIX), ".parquet"
    match = _SEGMENT.fullmatch(stem.removesuffix(end))
    if match is None or not stem.endswith(end):
        return None
    name = SegmentName(int(match[1]), int(match[2]), int(match[3]), match[4])
    return name if key in {name.key, name.index_key} else None


def delta_key(version: int, table: str = HISTORY_PREFIX) -> str:
    """Name the commit of a version; `table` is the directory of a table."""
    return f"{table}_delta_log/{version:020d}.json"


def checkpoint_key(version: int, table: str = HISTORY_PREFIX) -> str:
    """Name the checkpoint of a version."""
    return f"{table}_delta_log/{version:020d}.checkpoint.parquet"


def parse_delta_key(key: str, table: str = HISTORY_PREFIX) -> int | None:
    """Return the version that a commit makes, or None for a foreign key."""
    return _version(_COMMIT, key, table)


def parse_checkpoint_key(key: str, table: str = HISTORY_PREFIX) -> int | None:
    """Return the version that a checkpoint holds, or None for a foreign key."""
    return _version(_CHECKPOINT, key, table)


def _version(pattern: "re.Pattern[str]", key: str, table: str) -> int | None:
    match = pattern.fullmatch(key.removeprefix(table)) if key.startswith(table) else None
    return int(match[1]) if match and int(match[1]) <= _VERSION_MAX else None


def encode_actions(actions: Actions) -> bytes:
    """Return the object of a version."""
    lines: list[dict[str, Any]] = []
    if actions.info:
        lines.append({"commitInfo": actions.info})
    if actions.protocol is not None:
        lines.append({"protocol": actions.protocol})
    if actions.metadata is not None:
        lines.append({"metaData": actions.metadata})
    lines += ({"txn": txn} for txn in actions.txns)
    lines += ({"remove": remove} for remove in actions.removes)
    lines += ({"add": add} for add in actions.adds)
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)


def decode_actions(data: bytes, key: str) -> Actions:
    """Return what a version says; Damaged, naming `key`, where the object is none.

    Actions of kinds that we have no use for are passed over, as Delta wants it.
    """
    lines: list[_Line] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            lines.append(_DECODER.decode(line))
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise Damaged(key, f"line {number} is no action: {error}") from None
    if not lines:
        raise Damaged(key, "it holds no action")
    return Actions(
        protocol=_only([line.protocol for line in lines if line.protocol], "protocol", key),
        metadata=_only([line.metadata for line in lines if line.metadata], "metaData", key),
        adds=tuple(line.add for line in lines if line.add),
        removes=tuple(line.remove for line in lines if line.remove),
        txns=tuple(line.txn for line in lines if line.txn),
        info=next((line.info for line in lines if line.info is not None), {}),
    )


def _only(found: list[Any], what: str, key: str) -> Any:
    if len(found) > 1:
        raise Damaged(key, f"it says {what} {len(found)} times")
    return found[0] if found else None


def replay(
    state: TableState, versions: Iterable[tuple[int, Actions]], table: str = HISTORY_PREFIX
) -> TableState:
    """Return the state behind these versions, each the next one; Damaged where one is not."""
    version, protocol, metadata = state.version, state.protocol, state.metadata
    live, txns = dict(state.live), dict(state.txns)
    for number, actions in versions:
        key = delta_key(number, table)
        if number != version + 1:
            raise Damaged(key, f"it follows version {version}: what is between them is missing")
        version = number
        protocol = actions.protocol or protocol
        metadata = actions.metadata or metadata
        _check(protocol, metadata, key)
        for txn in actions.txns:
            if txn.version < txns.get(txn.app_id, 0):
                raise Damaged(key, f"it takes {txn.app_id} back to {txn.version}")
            txns[txn.app_id] = txn.version
        for remove in actions.removes:
            live.pop(remove.path, None)
        for add in actions.adds:
            _check_add(add, key)
            live[add.path] = add
    return TableState(version=version, protocol=protocol, metadata=metadata, live=live, txns=txns)


def from_checkpoint(version: int, actions: Actions, table: str = HISTORY_PREFIX) -> TableState:
    """Return the state that a checkpoint holds."""
    key = checkpoint_key(version, table)
    _check(actions.protocol, actions.metadata, key)
    for add in actions.adds:
        _check_add(add, key)
    return TableState(
        version=version,
        protocol=actions.protocol,
        metadata=actions.metadata,
        live={add.path: add for add in actions.adds},
        txns={txn.app_id: txn.version for txn in actions.txns},
    )


def _check(protocol: Protocol | None, metadata: MetaData | None, key: str) -> None:
    if protocol is None or metadata is None:
        raise Damaged(key, "the table has begun without saying what it is")
    if protocol.min_reader_version > READER_VERSION:
        raise NewerFormat(key, protocol.min_reader_version, READER_VERSION)
    if metadata.partition_columns:
        raise Damaged(key, "the table has partitions, which ours never has")


def _check_add(add: Add, key: str) -> None:
    if not add.path or add.path.startswith("/") or ":" in add.path or ".." in add.path:
        raise Damaged(key, f"it adds {add.path[:80]!r}, which is outside the table")
    if add.size < 0 or add.deletion_vector is not None:
        raise Damaged(key, f"it adds {add.path[:80]!r} in a way that we cannot read")
