"""What an audit begins with: claims, snapshots, the table's log, and every name in the bucket.

Read in an order that fits a live server and a live pipeline: the table first, then the newest
snapshot, then the log. So the log reaches at least as far as the two others. What seems to be
missing is looked for again with newer eyes before it is believed: others delete what they have
moved, and the newest table and the newest snapshot say so.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bourn.bucket.delta_log import NO_TABLE, read_table
from bourn.bucket.port import Bucket, ObjectInfo
from bourn.bucket.retry import Retry
from bourn.catalog.rows import decode_basin_row
from bourn.catalog.tokens import decode_tokens
from bourn.catalog.usage import EXTRA_KEY, UsageTable
from bourn.errors import Damaged, NewerFormat, ObjectMissing, Undecodable
from bourn.layout.claim import decode_claim
from bourn.layout.commit import HEADER_BYTES, decode_commit, decode_header
from bourn.layout.history.checkpoint import decode_checkpoint
from bourn.layout.history.delta import (
    DELTA_PREFIX,
    HISTORY_PREFIX,
    TableState,
    decode_actions,
    delta_key,
    parse_checkpoint_key,
    parse_delta_key,
    parse_segment_key,
)
from bourn.layout.keys import (
    EPOCH_PREFIX,
    SNAPSHOT_PREFIX,
    WAL_PREFIX,
    parse_epoch_key,
    parse_snapshot_key,
    parse_wal_key,
    snapshot_key,
    wal_key,
)
from bourn.layout.runs import RUN_DTYPE
from bourn.layout.snapshot import Snapshot, decode_snapshot
from bourn.pipeline.audit_facts import Findings
from bourn.pipeline.scan import TOMBSTONE_BYTES
from bourn.pipeline.table import ENGINE

TOKENS: Final = "tokens"
_Damage: Final = (Damaged, NewerFormat)

Decode = Callable[[bytes, str], Any]


class Epoch(NamedTuple):
    """The objects of one epoch. Commits are those with ids below `end`."""

    number: int
    base: int  # the ordinal of its commit 0
    end: int
    is_sealed: bool
    ids: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]


class Frame(NamedTuple):
    """One look at the bucket."""

    findings: Findings
    table: TableState
    sizes: dict[str, int]  # of the objects of the history
    snapshot: Snapshot | None
    epochs: list[Epoch]

    @property
    def floor(self) -> int:
        """The first ordinal that the newest snapshot does not hold."""
        return 0 if self.snapshot is None else self.snapshot.meta.next_ordinal

    @property
    def end(self) -> int:
        """The ordinal behind the last commit."""
        return self.epochs[-1].base + self.epochs[-1].end if self.epochs else 0


class FrameReader:
    """Reads frames of one bucket."""

    def __init__(self, bucket: Bucket, retry: Retry) -> None:
        self._bucket = bucket
        self._retry = retry

    async def read(self) -> Frame:
        """Look at everything but commits and segments; what is wrong is in the findings."""
        findings = Findings()
        table = await self._table(findings)
        snapshot = await self._snapshots(findings)
        claims = await self._claims(findings)
        epochs = await self._epochs(claims, snapshot, findings)
        sizes = await self._history(findings)
        frame = Frame(findings, table, sizes, snapshot, epochs)
        _check_bases(frame)
        _check_commits(frame)
        _check_files(frame)
        return frame

    # The table

    async def _table(self, findings: Findings) -> TableState:
        try:
            return await self._retry(partial(read_table, self._bucket))
        except _Damage as damage:
            findings.add("damaged", getattr(damage, "key", DELTA_PREFIX), str(damage))
            return NO_TABLE

    async def _history(self, findings: Findings) -> dict[str, int]:
        """List the table's objects, and read the log of the table as far as it is kept."""
        sizes: dict[str, int] = {}
        versions: list[int] = []
        for info in await self._listed(HISTORY_PREFIX):
            version, checkpoint = parse_delta_key(info.key), parse_checkpoint_key(info.key)
            if version is not None:
                versions.append(version)
            elif checkpoint is not None:
                await self._check(info.key, decode_checkpoint, findings, "checkpoints")
            elif parse_segment_key(info.key) is not None:
                sizes[info.key] = info.size_bytes
            elif not info.key.startswith(DELTA_PREFIX):
                findings.count("foreign objects")
        for version in sorted(versions):
            await self._version(version, findings)
        absent = set(range(min(versions, default=0), max(versions, default=-1) + 1)) - set(versions)
        for version in sorted(absent):
            findings.add("missing", delta_key(version), "a version of the table is missing")
        return sizes

    async def _version(self, version: int, findings: Findings) -> None:
        key = delta_key(version)
        actions = await self._check(key, decode_actions, findings, "versions")
        if actions is None:
            return
        if (actions.adds or actions.removes) and actions.info.get("engineInfo") != ENGINE:
            findings.add(
                "stray",
                key,
                f"somebody else made it: {len(actions.adds)} files came, "
                f"{len(actions.removes)} went",
            )
        if not actions.removes or any(
            action.data_change for action in (*actions.adds, *actions.removes)
        ):
            return
        try:
            added = sum(add.tag("rows") for add in actions.adds)
            removed = sum(
                int((remove.tags or {})["bourn.rows"] or "") for remove in actions.removes
            )
        except (Damaged, KeyError, ValueError):
            return
        if added != removed:
            findings.add(
                "disagree", key, f"it changes no data, but takes {removed} records for {added}"
            )

    # Snapshots

    async def _snapshots(self, findings: Findings) -> Snapshot | None:
        """Check every snapshot; return the newest that can be read."""
        newest: Snapshot | None = None
        for info in await self._listed(SNAPSHOT_PREFIX):
            if parse_snapshot_key(info.key) is None:
                findings.count("foreign objects")
                continue
            found = await self._check(info.key, decode_snapshot, findings, "snapshots")
            if found is not None:
                newest = found
                _check_parts(found, info.key, findings)
        return newest

    async def _claims(self, findings: Findings) -> list[int]:
        epochs: list[int] = []
        for info in await self._listed(EPOCH_PREFIX):
            epoch = parse_epoch_key(info.key)
            if epoch is None:
                findings.count("foreign objects")
                continue
            claim = await self._check(info.key, decode_claim, findings, "claims")
            if claim is not None and claim.epoch != epoch:
                findings.add("disagree", info.key, f"it claims epoch {claim.epoch}")
            epochs.append(epoch)
        absent = set(range(1, max(epochs, default=0) + 1)) - set(epochs)
        for epoch in sorted(absent):
            findings.add("missing", f"{EPOCH_PREFIX}{epoch:012d}", "a writer's claim is missing")
        return epochs

    # The log

    async def _epochs(
        self, claims: list[int], snapshot: Snapshot | None, findings: Findings
    ) -> list[Epoch]:
        listed: dict[int, list[tuple[int, int]]] = {}
        for info in await self._listed(WAL_PREFIX):
            position = parse_wal_key(info.key)
            if position is None:
                findings.count("foreign objects")
            else:
                listed.setdefault(position.epoch, []).append((position.id, info.size_bytes))
        epochs: list[Epoch] = []
        base = 0
        newest = max((*claims, *listed), default=0)
        for number in range(1, newest + 1):
            objects = np.array(listed.get(number, []), np.uint64).reshape(-1, 2)
            epoch = await self._epoch(number, base, objects, snapshot, findings)
            if number not in claims and len(epoch.ids):
                findings.add("stray", wal_key(number, 0), "commits of an epoch that nobody claimed")
            if not epoch.is_sealed and any(later > number for later in listed):
                findings.add(
                    "unsealed",
                    wal_key(number, epoch.end),
                    "the epoch has no tombstone, and a later one has begun",
                )
            epochs.append(epoch)
            base += epoch.end
        return epochs

    async def _epoch(
        self,
        number: int,
        base: int,
        objects: npt.NDArray[np.uint64],
        snapshot: Snapshot | None,
        findings: Findings,
    ) -> Epoch:
        ids, sizes = objects[:, 0], objects[:, 1]
        for commit_id in ids[sizes == TOMBSTONE_BYTES].tolist():
            key = wal_key(number, commit_id)
            commit = await self._check(key, decode_commit, findings, "tombstones")
            if commit is not None and commit.header.is_tombstone:
                behind = int((ids > commit_id).sum())
                findings.count("objects behind a tombstone", behind)
                return Epoch(number, base, commit_id, True, ids, sizes)
            findings.count("tombstones", -1)
        position = None if snapshot is None else snapshot.meta.position
        covered = position.id if position is not None and position.epoch == number else 0
        return Epoch(number, base, await self._tail(number, ids, covered), False, ids, sizes)

    async def _tail(self, number: int, ids: npt.NDArray[np.uint64], end: int) -> int:
        """Return where an epoch that is not sealed ends: behind what must be durable, at a gap."""
        if len(ids):
            key = wal_key(number, int(ids[-1]))
            try:
                head = await self._retry(partial(self._bucket.get_range, key, 0, HEADER_BYTES))
                end = max(end, decode_header(head, key).durable_id)
            except (Damaged, ObjectMissing):
                pass  # the commits themselves are looked at later
        have = set(ids.tolist())
        while end in have:
            end += 1
        return end

    # All of them

    async def _listed(self, prefix: str) -> list[ObjectInfo]:
        async def listed() -> list[ObjectInfo]:
            return [info async for info in self._bucket.list(prefix)]

        return await self._retry(listed)

    async def _check(self, key: str, decode: Decode, findings: Findings, what: str) -> Any:
        """Return an object, decoded; None where it is damaged or gone."""

        async def fetch() -> Any:
            data = await self._bucket.get(key)
            return await asyncio.to_thread(decode, data, key)

        try:
            found = await self._retry(fetch)
        except _Damage as damage:
            findings.add("damaged", key, str(damage))
            return None
        except ObjectMissing:
            return None  # replaced since it was listed, or others find it missing
        findings.count(what)
        return found


def _check_parts(snapshot: Snapshot, key: str, findings: Findings) -> None:
    """Look at the parts of a snapshot that only the server understands."""
    meta = snapshot.meta
    try:
        for row in meta.basins:
            decode_basin_row(row)
        if EXTRA_KEY in meta.extra:
            UsageTable.decode(meta.extra[EXTRA_KEY])
        if TOKENS in meta.extra:
            decode_tokens(meta.extra[TOKENS])
    except Undecodable as error:
        findings.add("damaged", key, str(error))
    if len(snapshot.columns) and int(snapshot.columns.ids.max()) >= meta.next_resource_id:
        findings.add("disagree", key, "it has a stream whose id has not been given out")
    beyond = snapshot.columns.trim_points > snapshot.columns.next_seq_nums
    for at in np.flatnonzero(beyond)[:1].tolist():
        stream_id = int(snapshot.columns.ids[at])
        findings.add("disagree", key, "a stream is trimmed beyond its tail", stream_id)


def needed_by(snapshot: Snapshot | None) -> npt.NDArray[np.uint64]:
    """Return the commits that a snapshot's streams refer to, by their ordinals, ascending."""
    if snapshot is None:
        return np.empty(0, np.uint64)
    return np.unique(np.frombuffer(snapshot.columns.runs.data, RUN_DTYPE)["commit"])


def _check_bases(frame: Frame) -> None:
    """The ordinals that the snapshot counts by must be those that the tombstones give."""
    if frame.snapshot is None:
        return
    meta = frame.snapshot.meta
    key = snapshot_key(meta.position)
    bases = {epoch.number: epoch.base for epoch in frame.epochs}
    for number, base in (*meta.bases, (meta.position.epoch, meta.next_ordinal - meta.position.id)):
        if bases.get(number) != base:
            frame.findings.add(
                "disagree",
                key,
                f"it counts epoch {number} from commit {base} on, the log from {bases.get(number)}",
            )


def _check_commits(frame: Frame) -> None:
    """Every commit is there, unless the snapshot is past it and nobody needs it any more."""
    needed = needed_by(frame.snapshot)
    for ordinal, key in missing_commits(frame):
        if is_needed(frame, needed, ordinal):
            frame.findings.add("missing", key, "a commit of the log is missing")
        else:
            frame.findings.count("collected commits")


def missing_commits(frame: Frame) -> Iterator[tuple[int, str]]:
    """Yield ordinals and keys of the commits that were there once."""
    for epoch in frame.epochs:
        have = epoch.ids[epoch.ids < np.uint64(epoch.end)]
        if len(have) == epoch.end:
            continue
        every = np.arange(epoch.end, dtype=np.uint64)
        for commit_id in np.setdiff1d(every, have, assume_unique=True).tolist():
            yield epoch.base + commit_id, wal_key(epoch.number, commit_id)


def is_needed(frame: Frame, needed: npt.NDArray[np.uint64], ordinal: int) -> bool:
    """Whether a commit must be there: no snapshot holds it, or the log alone has its records."""
    if ordinal >= frame.floor:
        return True
    if ordinal < frame.table.end_ordinal:
        return False
    at = int(np.searchsorted(needed, np.uint64(ordinal)))
    return at < len(needed) and int(needed[at]) == ordinal


def _check_files(frame: Frame) -> None:
    """Every file that the table names is there, with its size; others are orphans."""
    findings, sizes = frame.findings, frame.sizes
    live: set[str] = set()
    for add in frame.table.live.values():
        try:
            wanted = {add.key: add.size, add.index_key: add.tag("index_bytes")}
            live.update(wanted)
        except Damaged as damage:
            findings.add("damaged", add.key, str(damage))
            continue
        for key, size in wanted.items():
            if key not in sizes:
                findings.add("missing", key, "the table names it, and it is not there")
            elif sizes[key] != size:
                findings.add("damaged", key, f"it has {sizes[key]} bytes, the table says {size}")
    findings.count("orphans", len(sizes.keys() - live))
    if frame.table.end_ordinal > frame.end:
        findings.add(
            "disagree",
            delta_key(frame.table.version),
            f"the table has {frame.table.end_ordinal} commits, the log {frame.end}",
        )
