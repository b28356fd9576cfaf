"""audit: proves that the bucket holds what it must, every byte of it, and says what it does not.

    frame ─► commits ─► segments ─► what both have is compared ─► streams are put together

Nothing is changed but for a report. A server and a pipeline may go on meanwhile: whatever seems to
be missing is looked for again in the newest state, and where that has moved on, so does the audit.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from bourn.bucket.retry import Retry
from bourn.errors import BournError, Damaged, ObjectExists, ObjectMissing
from bourn.layout.audits import AuditReport, is_audit_key
from bourn.layout.commit import decode_commit
from bourn.layout.keys import snapshot_key, wal_key
from bourn.layout.reports import REPORT_PREFIX, JobReport, encode_report
from bourn.layout.runs import RUN_DTYPE
from bourn.layout.snapshot import Snapshot
from bourn.limits import (
    AUDIT_PIECES_MAX,
    AUDIT_SHARD_FACTS,
    PIPELINE_REPORTS_KEPT,
    TIER_RUN_BYTES,
)
from bourn.log.epochs import EpochMap
from bourn.pipeline.audit_commits import SNAPSHOT_RUN, CommitsTask
from bourn.pipeline.audit_facts import SUM, Facts, Findings, sum_of_entries, together
from bourn.pipeline.audit_frame import Frame, FrameReader, is_needed, needed_by
from bourn.pipeline.audit_segments import SegmentTask
from bourn.pipeline.audit_state import StreamStates
from bourn.pipeline.audit_streams import Standard
from bourn.pipeline.audit_usage import audit_usage
from bourn.pipeline.audit_work import Known, SparkWork, Work
from bourn.pipeline.job import TaskFailed, Tools
from bourn.pipeline.names import StreamNames
from bourn.pipeline.progress import Progress
from bourn.settings import PipelineSettings

log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 5
LOOKS_MAX: Final = 3  # at a bucket in which something seems to be missing
LOOK_AGAIN_SECS: Final = 1.0
SHARDS_MIN: Final = 2
SHARDS_MAX: Final = 4096
INDEX_BYTES_PER_FACT: Final = 60


class AuditFailed(BournError):
    """The bucket does not hold what it must; the report says all of it."""

    code = "storage"


class _Moved(Exception):
    """What was being looked at has moved; the newest state says where."""


class Audit:
    """The job, on one bucket. It is done on request alone."""

    name: Final = "audit"

    def __init__(self, tools: Tools, work: Work | None = None) -> None:
        self._tools = tools
        self._bucket = tools.bucket
        self._retry: Retry = tools.retry
        self._reader = FrameReader(tools.bucket, tools.retry)
        self._work: Work = work or SparkWork(tools.spark, tools.place)
        self.names: StreamNames | None = None  # of the last audit, for people
        self.report: AuditReport | None = None

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Never, for those who follow."""
        _ = settings
        return False

    async def run(self, progress: Progress) -> JobReport:
        """Audit; AuditFailed where there is anything wrong."""
        found = await self.audit(progress)
        if not found.is_clean:
            first = found.violations[0]
            raise AuditFailed(
                f"{found.violations_total} violations, the first: {first.key}: {first.what}; "
                f"all of them are in {found.key}"
            )
        counts = found.counts
        return JobReport(
            name=self.name,
            rounds=found.rounds,
            commits=counts.get("commits", 0),
            log_bytes=counts.get("log bytes", 0),
            records=counts.get("log records", 0) + counts.get("history records", 0),
            files=counts.get("segments", 0),
            file_bytes=counts.get("history bytes", 0),
            end_ordinal=found.log_end,
            table_version=found.table_version,
            secs={stage: round(secs, 3) for stage, secs in progress.secs.items()},
        )

    async def audit(self, progress: Progress) -> AuditReport:
        """Look at everything and keep a report of it; returns the report."""
        clock = self._tools.clock
        report = AuditReport(
            run=f"{self._tools.rng.getrandbits(64):016x}", started_at_ms=clock.now_ms()
        )
        try:
            while True:
                report.rounds += 1
                try:
                    findings = await self._round(report, progress)
                    break
                except _Moved as moved:
                    log.info("%s has moved meanwhile: once more", moved)
                    if report.rounds == ROUNDS_MAX:
                        raise TaskFailed(
                            f"{moved} and others move faster than they can be audited"
                        ) from None
                finally:
                    await self._work.close()
        finally:
            progress.leave()
        report.ended_at_ms = clock.now_ms()
        report.counts = dict(sorted(findings.counts.items()))
        report.violations, report.violations_total = findings.violations, findings.total
        report.notes = _notes(findings)
        self.report = report
        await self._keep(report)
        return report

    async def _round(self, report: AuditReport, progress: Progress) -> Findings:
        progress.enter("looking at the bucket")
        frame = await self._frame()
        findings = frame.findings
        report.table_version, report.log_end = frame.table.version, frame.end
        report.snapshot = snapshot_key(frame.snapshot.meta.position) if frame.snapshot else ""
        states = StreamStates(frame.snapshot, self._tools.clock.now_ms(), findings)
        vanished: list[tuple[str, int]] = []

        in_log: list[bytes] = []
        for outcome in await self._work.commits(_commit_tasks(frame), progress):
            findings.take(outcome.findings)
            in_log.append(outcome.sums)
            states.apply(outcome.changes, outcome.trims)
        sums = together(in_log, SUM)
        sums = sums[np.lexsort((sums["first"], sums["stream_id"]))]
        names = self.names = states.names()

        in_history: list[bytes] = []
        tasks = _segment_tasks(frame)
        for done in await self._work.segments(tasks, Known(names, sums), progress):
            findings.take(done.findings)
            in_history.append(done.sums)
        vanished += findings.missing
        findings.missing = []
        await self._explain(frame, vanished, findings)

        await self._compare(frame, sums, together(in_history, SUM), findings)
        standard = Standard(
            self._tools.clock.now_ms(),
            states.next_id,
            [task.key for task in tasks],
            _bases(frame),
        )
        streams = states.streams()
        for found in await self._work.streams(streams, standard, _shards(frame, tasks), progress):
            findings.take(found)
        progress.enter("checking usage")
        await audit_usage(self._bucket, self._retry, findings)
        return findings

    async def _frame(self) -> Frame:
        """Look at the bucket; again where something seems to be missing."""
        frame = await self._reader.read()
        for _ in range(LOOKS_MAX - 1):
            if not any(found.kind == "missing" for found in frame.findings.violations):
                break
            await self._tools.clock.sleep(LOOK_AGAIN_SECS)
            frame = await self._reader.read()
        return frame

    async def _explain(
        self, frame: Frame, vanished: Sequence[tuple[str, int]], findings: Findings
    ) -> None:
        """Ask the newest state of what was listed and then not there; _Moved where it moved."""
        if not vanished:
            return
        fresh = await self._frame()
        live = {key for add in fresh.table.live.values() for key in (add.key, add.index_key)}
        needed = needed_by(fresh.snapshot)
        for key, ordinal in vanished:
            if ordinal < 0:
                if key not in live:
                    raise _Moved(key)
            elif not is_needed(fresh, needed, ordinal):
                if ordinal >= frame.table.end_ordinal:
                    raise _Moved(key)
                continue
            findings.add("missing", key, "it was listed, and cannot be found")

    # What is both in the log and in the history

    async def _compare(
        self, frame: Frame, log_sums: Facts, pieces: Facts, findings: Findings
    ) -> None:
        """Compare sums over the same records; where one side has fewer, over those."""
        pieces = pieces[np.lexsort((pieces["first"], pieces["stream_id"], pieces["source"]))]
        whole = log_sums[np.lexsort((log_sums["first"], log_sums["stream_id"], log_sums["source"]))]
        at = 0
        open_pieces: list[np.void] = []
        for row in whole:
            mine: list[np.void] = []
            while at < len(pieces) and _is_of(pieces[at], row):
                mine.append(pieces[at])
                at += 1
            covered = sum(int(piece["end"]) - int(piece["first"]) for piece in mine)
            findings.count("records in both", covered)
            if covered != int(row["end"]) - int(row["first"]):
                open_pieces += mine
            elif sum(int(piece["sum"]) for piece in mine) % 2**64 != int(row["sum"]):
                _differs(frame, row, findings)
        if len(open_pieces) > AUDIT_PIECES_MAX:
            findings.count("parts not compared", len(open_pieces) - AUDIT_PIECES_MAX)
        for piece in open_pieces[:AUDIT_PIECES_MAX]:
            await self._compare_piece(frame, piece, findings)

    async def _compare_piece(self, frame: Frame, piece: np.void, findings: Findings) -> None:
        key = _wal_key(frame, piece)
        try:
            data = await self._retry(partial(self._bucket.get, key))
            commit = decode_commit(data, key)
        except (Damaged, ObjectMissing):
            return  # told already, or moved
        stream_id = int(piece["stream_id"])
        entries = [
            entry
            for location, found in commit.runs
            if location.stream_id == stream_id
            for entry in found
        ]
        first, end = int(piece["first"]), int(piece["end"])
        if not entries or sum_of_entries(entries, first, end) != int(piece["sum"]):
            _differs(frame, piece, findings)

    async def _keep(self, report: AuditReport) -> None:
        """Put the report, and delete the oldest."""
        try:
            await self._bucket.put_if_absent(report.key, encode_report(report))
            listed = [info.key async for info in self._bucket.list(REPORT_PREFIX)]
            for key in [key for key in listed if is_audit_key(key)][:-PIPELINE_REPORTS_KEPT]:
                await self._bucket.delete(key)
        except ObjectExists:
            return  # a put whose answer was lost
        except BournError as error:
            log.warning("the report of this audit is lost: %s", error)


def _is_of(piece: np.void, row: np.void) -> bool:
    return bool(
        piece["source"] == row["source"]
        and piece["stream_id"] == row["stream_id"]
        and piece["first"] < row["end"]
    )


def _differs(frame: Frame, row: np.void, findings: Findings) -> None:
    findings.add(
        "disagree",
        _wal_key(frame, row),
        f"its records up to {int(row['end']) - 1} are other ones in the history",
        int(row["stream_id"]),
        int(row["first"]),
    )


def _bases(frame: Frame) -> list[tuple[int, int]]:
    return [(epoch.number, epoch.base) for epoch in frame.epochs]


def _wal_key(frame: Frame, row: np.void) -> str:
    return wal_key(*EpochMap(_bases(frame)).position(int(row["source"])))


def _shards(frame: Frame, tasks: Sequence[SegmentTask]) -> int:
    """How many parts the streams are cut into: none of them is too much for one task."""
    facts = sum(task.index_bytes for task in tasks) // INDEX_BYTES_PER_FACT
    facts += 0 if frame.snapshot is None else len(frame.snapshot.columns)
    return int(min(max(facts // AUDIT_SHARD_FACTS + 1, SHARDS_MIN), SHARDS_MAX))


def _snapshot_runs(snapshot: Snapshot | None) -> Facts:
    """Return what the streams of a snapshot refer to, in the order of commits."""
    if snapshot is None:
        return np.empty(0, SNAPSHOT_RUN)
    runs = np.frombuffer(snapshot.columns.runs.data, RUN_DTYPE)
    counts = np.diff(np.asarray(snapshot.columns.runs.offsets)) // RUN_DTYPE.itemsize
    found = np.empty(len(runs), SNAPSHOT_RUN)
    found["stream_id"] = np.repeat(snapshot.columns.ids, counts)
    for name in RUN_DTYPE.names or ():
        found[name] = runs[name]
    ordered: Facts = found[np.argsort(found["commit"], kind="stable")]
    return ordered


def _commit_tasks(frame: Frame) -> list[CommitsTask]:
    runs = _snapshot_runs(frame.snapshot)
    tasks: list[CommitsTask] = []
    places: list[tuple[int, str]] = []
    size = 0

    def close() -> None:
        nonlocal places, size
        if places:
            bounds = np.array((places[0][0], places[-1][0] + 1), np.uint64)
            low, high = np.searchsorted(runs["commit"], bounds).tolist()
            tasks.append(
                CommitsTask(
                    tuple(places),
                    size,
                    frame.table.end_ordinal,
                    frame.floor,
                    runs[low:high].tobytes(),
                )
            )
        places, size = [], 0

    for epoch in frame.epochs:
        mine = epoch.ids < np.uint64(epoch.end)
        for commit_id, bytes_ in zip(
            epoch.ids[mine].tolist(), epoch.sizes[mine].tolist(), strict=True
        ):
            places.append((epoch.base + commit_id, wal_key(epoch.number, commit_id)))
            size += bytes_
            if size >= TIER_RUN_BYTES:
                close()
    close()
    return tasks


def _segment_tasks(frame: Frame) -> list[SegmentTask]:
    """One for each file that is there as the table says."""
    tasks: list[SegmentTask] = []
    for add in sorted(frame.table.live.values(), key=lambda add: add.path):
        try:
            index_bytes, rows, metered = map(add.tag, ("index_bytes", "rows", "metered_bytes"))
        except Damaged:
            continue  # told already
        if frame.sizes.get(add.key) != add.size:
            continue
        stats = add.stats or ""
        tasks.append(
            SegmentTask(
                len(tasks),
                add.key,
                add.index_key,
                add.size,
                index_bytes,
                rows,
                metered,
                stats,
            )
        )
    return tasks


def _notes(findings: Findings) -> list[str]:
    counts = findings.counts
    told = (
        ("orphans", "{} files of the history are in no version; vacuum removes them in time"),
        (
            "records of deleted streams",
            "{} records are of streams that are gone; retain drops them",
        ),
        ("records that may have expired", "{} records are gone and may have expired: no proof"),
        ("objects behind a tombstone", "{} objects of the log came too late to count"),
        ("parts not compared", "{} parts of the log were not compared with the history"),
        ("foreign objects", "{} objects are none of ours"),
    )
    notes = [text.format(f"{counts[name]:,}") for name, text in told if counts.get(name)]
    if not counts.get("claims"):
        notes.insert(0, "the bucket is empty: no server has ever written to it")
    return notes
