"""What a task of an audit does with commits of the log: every byte of them is looked at."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.catalog.changes import decode_change
from bourn.errors import Damaged, ObjectMissing, Undecodable
from bourn.layout.commit import Commit, CommitIndex, RunLocation, decode_commit, decode_index
from bourn.layout.entry import KIND_BATCH, Entry
from bourn.layout.history.rows import table_of
from bourn.layout.keys import parse_wal_key
from bourn.layout.records import RecordFormatError, stored_commands
from bourn.layout.runs import RUN_DTYPE
from bourn.limits import TIER_FETCHES
from bourn.model.record import Fence
from bourn.pipeline.audit_facts import (
    LOG,
    RANGE,
    SUM,
    TIERED,
    Facts,
    Findings,
    stamps_of,
    sum_of_entries,
)

SNAPSHOT_RUN: Final = np.dtype([("stream_id", "<u8"), *RUN_DTYPE.descr])


class CommitsTask(NamedTuple):
    """Consecutive commits, those that are there, and what the newest snapshot says of them."""

    places: tuple[tuple[int, str], ...]  # (ordinal, key)
    size_bytes: int
    tiered_below: int  # the table has the commits below this ordinal
    changes_from: int  # the snapshot holds the changes of the commits below this one
    runs: bytes  # SNAPSHOT_RUN


class CommitsOutcome(NamedTuple):
    """What a task has found."""

    findings: Findings
    ranges: bytes = b""
    sums: bytes = b""  # of commits that the table has
    changes: tuple[bytes, ...] = ()  # in order, of commits that the snapshot does not hold
    trims: tuple[tuple[int, int], ...] = ()  # (stream, trim point), likewise


class CommitsAudit:
    """One task: its commits, one after the other."""

    def __init__(self, task: CommitsTask) -> None:
        self._task = task
        self.findings = Findings()
        self._rows: list[list[int]] = []
        self._last: dict[tuple[int, int], list[int]] = {}  # by stream and where: its newest range
        self._sums: list[tuple[int, int, int, int, int]] = []
        self._changes: list[bytes] = []
        self._trims: list[tuple[int, int]] = []
        runs: Facts = np.frombuffer(task.runs, SNAPSHOT_RUN)
        self._known: dict[int, dict[int, Any]] = {}
        for row in runs:
            self._known.setdefault(int(row["commit"]), {})[int(row["stream_id"])] = row

    async def run(self, bucket: Bucket, retry: Retry) -> CommitsOutcome:
        """Fetch and check them all."""
        places = iter(self._task.places)
        while some := list(itertools.islice(places, TIER_FETCHES)):
            fetches = [retry(partial(_fetch, bucket, key)) for _, key in some]
            for (ordinal, key), found in zip(
                some, await asyncio.gather(*fetches, return_exceptions=True), strict=True
            ):
                if isinstance(found, ObjectMissing):
                    self.findings.missing.append((key, ordinal))
                elif isinstance(found, Damaged):
                    self.findings.add("damaged", key, str(found))
                elif isinstance(found, BaseException):
                    raise found
                else:
                    self.check(found[0], found[1], ordinal, key)
                    self.findings.count("log bytes", found[2])
        rows = np.array([tuple(row) for row in self._rows], RANGE)
        return CommitsOutcome(
            self.findings,
            rows.tobytes(),
            np.array(self._sums, SUM).tobytes(),
            tuple(self._changes),
            tuple(self._trims),
        )

    def check(self, commit: Commit, index: CommitIndex, ordinal: int, key: str) -> None:
        """Look at a commit whose checksums hold."""
        findings = self.findings
        findings.count("commits")
        if parse_wal_key(key) != (commit.header.epoch, commit.header.id):
            findings.add("damaged", key, "it is the commit of another place")
            return
        self._check_index(commit, index, key)
        self._check_records(commit, key)
        for change in commit.changes:
            try:
                decode_change(change)
            except Undecodable as error:
                findings.add("damaged", key, str(error))
        if ordinal >= self._task.changes_from:
            self._changes += commit.changes
        known = self._known.get(ordinal, {})
        for location, entries in commit.runs:
            self._check_run(location, entries, known.pop(location.stream_id, None), key)
            self._note_run(entries, ordinal, key)
        for stream_id, row in known.items():
            findings.add(
                "disagree",
                key,
                "the newest snapshot says that records of the stream are in it, and none are",
                stream_id,
                int(row["first_seq_num"]),
            )

    def _check_index(self, commit: Commit, index: CommitIndex, key: str) -> None:
        entries = [entry for _, found in commit.runs for entry in found]
        batches = index.kinds == KIND_BATCH
        said = (
            index.stream_ids[batches].tolist(),
            index.first_seq_nums[batches].tolist(),
            index.first_timestamps[batches].tolist(),
            index.last_timestamps[batches].tolist(),
            index.counts[batches].tolist(),
        )
        found = (
            [entry.stream_id for entry in entries],
            [entry.first_seq_num for entry in entries],
            [entry.first_timestamp for entry in entries],
            [entry.last_timestamp for entry in entries],
            [entry.count for entry in entries],
        )
        if said != found or len(commit.changes) + len(entries) != len(index.kinds):
            self.findings.add("disagree", key, "its index says other batches than it holds")
        ids = [location.stream_id for location, _ in commit.runs]
        if ids != sorted(set(ids)):
            self.findings.add("disagree", key, "its batches are not in the order of streams")

    def _check_records(self, commit: Commit, key: str) -> None:
        """Let every record be parsed, as the pipeline does it."""
        for location, entries in commit.runs:
            stream_id = location.stream_id
            try:
                rows = table_of(entries, {stream_id: ("", "")})
            except (RecordFormatError, ValueError) as error:
                self.findings.add("damaged", key, str(error), stream_id, entries[0].first_seq_num)
                continue
            metered = rows.column("metered_bytes").to_numpy().astype(np.int64)
            self.findings.count("log records", len(metered))
            at = 0
            for entry in entries:
                weight = int(metered[at : at + entry.count].sum())
                at += entry.count
                if weight != entry.metered_bytes:
                    self.findings.add(
                        "disagree",
                        key,
                        f"a batch says {entry.metered_bytes} metered bytes, its records {weight}",
                        stream_id,
                        entry.first_seq_num,
                    )

    def _check_run(
        self, location: RunLocation, entries: Sequence[Entry], known: Any, key: str
    ) -> None:
        if known is None:
            return
        first, last = entries[0], entries[-1]
        found = (
            first.first_seq_num,
            last.last_timestamp,
            first.first_timestamp,
            location.offset,
            location.length,
            last.end_seq_num - first.first_seq_num,
            sum(entry.metered_bytes for entry in entries),
        )
        names = (
            "first_seq_num",
            "last_timestamp",
            "first_timestamp",
            "offset",
            "length",
            "count",
            "metered",
        )
        for name, value in zip(names, found, strict=True):
            if int(known[name]) != value:
                self.findings.add(
                    "disagree",
                    key,
                    f"the newest snapshot says {name} {int(known[name])} of it, it says {value}",
                    location.stream_id,
                    first.first_seq_num,
                )

    def _note_run(self, entries: Sequence[Entry], ordinal: int, key: str) -> None:
        is_tiered = ordinal < self._task.tiered_below
        for entry in entries:
            self._check_stamps(entry, key)
            if entry.has_commands and ordinal >= self._task.changes_from:
                self._note_trims(entry, key)
            self._note_range(entry, ordinal, TIERED if is_tiered else LOG, key)
        if is_tiered:
            for some in _consecutive(entries):
                first, end = some[0].first_seq_num, some[-1].end_seq_num
                total = sum_of_entries(some, first, end)
                self._sums.append((some[0].stream_id, first, end, ordinal, total))

    def _check_stamps(self, entry: Entry, key: str) -> None:
        stamps = stamps_of(entry)
        falls = np.flatnonzero(stamps[1:] < stamps[:-1])
        if len(falls):
            at = int(falls[0]) + 1
            self.findings.add(
                "order",
                key,
                f"timestamp {int(stamps[at])} comes after {int(stamps[at - 1])}",
                entry.stream_id,
                entry.first_seq_num + at,
            )
        elif int(stamps[-1]) != entry.last_timestamp:
            self.findings.add(
                "disagree",
                key,
                f"a batch says that it ends at timestamp {entry.last_timestamp}, "
                f"its last record {int(stamps[-1])}",
                entry.stream_id,
                entry.first_seq_num,
            )

    def _note_trims(self, entry: Entry, key: str) -> None:
        try:
            commands = stored_commands(entry.payload, entry.count)
        except RecordFormatError as error:
            self.findings.add("damaged", key, str(error), entry.stream_id, entry.first_seq_num)
            return
        for at, command in commands:
            if not isinstance(command, Fence):
                point = min(command.seq_num, entry.first_seq_num + at + 1)
                self._trims.append((entry.stream_id, point))

    def _note_range(self, entry: Entry, ordinal: int, where: int, key: str) -> None:
        """Add a batch to the newest range of its stream where it continues it."""
        place = (entry.stream_id, where)
        last = self._last.get(place)
        if (
            last is not None
            and last[2] == entry.first_seq_num
            and (where == LOG or last[10] == entry.expires_s)
        ):
            if entry.first_timestamp < last[4]:
                self.findings.add(
                    "order",
                    key,
                    f"timestamp {entry.first_timestamp} comes after {last[4]}",
                    entry.stream_id,
                    entry.first_seq_num,
                )
            last[2] = entry.end_seq_num
            last[4] = entry.last_timestamp
            last[6] = entry.arrival_ms
            last[8] = entry.retention_secs
            last[10] = max(last[10], entry.expires_s)
            return
        row = [
            entry.stream_id,
            entry.first_seq_num,
            entry.end_seq_num,
            entry.first_timestamp,
            entry.last_timestamp,
            entry.arrival_ms,
            entry.arrival_ms,
            entry.retention_secs,
            entry.retention_secs,
            ordinal,
            entry.expires_s,
            where,
        ]
        self._rows.append(row)
        self._last[place] = row


def _consecutive(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: list[list[Entry]] = []
    for entry in entries:
        if found and found[-1][-1].end_seq_num == entry.first_seq_num:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


async def _fetch(bucket: Bucket, key: str) -> tuple[Commit, CommitIndex, int]:
    data = await bucket.get(key)
    return decode_commit(data, key), decode_index(data, key)[1], len(data)
