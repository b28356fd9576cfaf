"""The proof of an audit, stream by stream: every record that must be there is there, once.

    0          trim point                           snapshot's tail     tail
    │ may be    │ must be there, unless it expired   │ must be there     │ must not be

What the table and the log hold together is put in the order of numbers. Two ranges that overlap are
records that are there twice. Between two that do not touch, records are missing. They may be if
they have expired, which the missing ones no longer say themselves; their neighbours and the stream
do. With the retentions that the stream and the records on both sides have, and the time in which
the missing ones must have arrived:

- they come after a record that never expires, in a stream that keeps everything: they are *lost*;
- even the oldest could not have expired by now: they are *lost*;
- even the youngest must have expired: they *expired*;
- otherwise nothing can be proven, and they are counted as records that *may have expired*. That is
  so too for what comes before the first record of a stream that keeps everything: its retention may
  have been another one, and nothing tells of it any more.

Behind the tail that the newest snapshot knows nothing is ever removed: what is missing there is
lost, whatever its retention.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bourn.layout.entry import NEVER_S
from bourn.layout.keys import wal_key
from bourn.log.epochs import EpochMap
from bourn.pipeline.audit_facts import HISTORY, TIERED, Facts, Findings

STREAM: Final = np.dtype(
    [
        ("stream_id", "<u8"),
        ("next_seq_num", "<u8"),  # as of the newest snapshot
        ("last_stamp", "<u8"),
        ("trim_point", "<u8"),  # as of the end of the log, as everything below
        ("retention", "<u8"),
        ("created_ms", "<u8"),
        ("last_write_ms", "<u8"),
    ]
)


class Standard(NamedTuple):
    """What all streams are measured by."""

    now_ms: int
    stream_ids_end: int  # ids from here on have never been given out
    segments: Sequence[str]  # keys, by the places that ranges name
    bases: Sequence[tuple[int, int]] = ()  # epochs, and the ordinals that they begin with

    def key(self, row: np.void) -> str:
        """Name the object that a range lies in."""
        source = int(row["source"])
        if int(row["where"]) == HISTORY:
            return self.segments[source]
        return wal_key(*EpochMap(list(self.bases)).position(source))


class _Neighbour(NamedTuple):
    arrival_ms: int
    retention: int


def check_streams(ranges: Facts, streams: Facts, standard: Standard) -> Findings:
    """Prove that streams are whole; `ranges` and `streams` are in any order."""
    return _Check(ranges, streams, standard).run()


class _Check:
    def __init__(self, ranges: Facts, streams: Facts, standard: Standard) -> None:
        self.findings = Findings()
        self._standard = standard
        self._streams = streams[np.argsort(streams["stream_id"])]
        tiered = ranges["where"] == TIERED
        self._tiered = ranges[tiered]
        self._tails = _tails(ranges[ranges["where"] != HISTORY])
        main = ranges[~tiered]
        self._main = main[np.lexsort((main["end"], main["first"], main["stream_id"]))]

    def run(self) -> Findings:
        self._drop_repeated()
        ids = self._main["stream_id"]
        is_first = np.ones(len(ids), np.bool_)
        is_first[1:] = ids[1:] != ids[:-1]
        self._check_neighbours(is_first)
        starts = np.flatnonzero(is_first)
        known = self._rows_of(ids[starts])
        ends = np.append(starts[1:], len(ids))[: len(starts)]
        self._check_strays(starts, ends, known)
        self._check_edges(starts, ends, known)
        self._check_empty(ids[starts])
        self._check_tiered()
        self.findings.count("streams", len(self._streams))
        return self.findings

    def _rows_of(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the place of each stream among those that exist; -1 for one that is gone."""
        have = self._streams["stream_id"]
        if not len(have):
            return np.full(len(ids), -1, np.int64)
        at = np.minimum(np.searchsorted(have, ids), len(have) - 1)
        return np.where(have[at] == ids, at, -1)

    # Pairs

    def _drop_repeated(self) -> None:
        """Name records that are there twice; ranges within others go, so that each is told once."""
        while True:
            before, after = self._main[:-1], self._main[1:]
            twice = (after["stream_id"] == before["stream_id"]) & (after["first"] < before["end"])
            within = twice & (after["end"] <= before["end"])
            is_last = not within.any()
            for at in np.flatnonzero(twice if is_last else within).tolist():
                one, other = before[at], after[at]
                count = min(int(one["end"]), int(other["end"])) - int(other["first"])
                self._add(
                    "repeated", other, f"{count} records are in {self._standard.key(one)} too"
                )
            if is_last:
                return
            self._main = self._main[np.concatenate(([True], ~within))]

    def _check_neighbours(self, is_first: npt.NDArray[np.bool_]) -> None:
        rows = self._main
        same = ~is_first[1:]
        if not len(same):
            return
        before, after = rows[:-1], rows[1:]
        falls = same & (after["first"] >= before["end"])
        falls &= after["first_stamp"] < before["last_stamp"]
        for at in np.flatnonzero(falls).tolist():
            one, other = before[at], after[at]
            self._add(
                "order",
                other,
                f"timestamp {int(other['first_stamp'])} comes after {int(one['last_stamp'])} "
                f"in {self._standard.key(one)}",
            )
        places = self._rows_of(after["stream_id"])
        gaps = same & (after["first"] > before["end"]) & (places >= 0)
        for at in np.flatnonzero(gaps).tolist():
            one, other = before[at], after[at]
            self._gap(
                self._streams[places[at]],
                int(one["end"]),
                int(other["first"]),
                _left(one),
                _right(other),
                self._standard.key(other),
            )

    # Streams

    def _check_strays(
        self,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        known: npt.NDArray[np.int64],
    ) -> None:
        """Look for rows of streams that never were, and count those of streams that are gone."""
        for at in np.flatnonzero(known < 0).tolist():
            mine = self._main[starts[at] : ends[at]]
            if int(mine[0]["stream_id"]) >= self._standard.stream_ids_end:
                self._add("stray", mine[0], "records of a stream that never was")
            else:
                gone = int((mine["end"] - mine["first"]).sum())
                self.findings.count("records of deleted streams", gone)

    def _check_edges(
        self,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        known: npt.NDArray[np.int64],
    ) -> None:
        """Look at what lies before the first range of a stream, and behind its last one."""
        rows = self._main
        for at in np.flatnonzero(known >= 0).tolist():
            stream = self._streams[known[at]]
            first, last = rows[starts[at]], rows[ends[at] - 1]
            tail = max(int(stream["next_seq_num"]), self._tails.get(int(stream["stream_id"]), 0))
            if int(first["first"]) > int(stream["trim_point"]):
                where = self._standard.key(first)
                low = int(stream["trim_point"])
                self._gap(stream, low, int(first["first"]), None, _right(first), where)
            if int(last["end"]) > tail:
                self._add("stray", last, f"records behind the stream's tail, which is {tail}")
            elif int(last["end"]) < tail:
                where = self._standard.key(last)
                self._gap(stream, int(last["end"]), tail, _left(last), None, where)
            elif int(last["end"]) == int(stream["next_seq_num"]) and int(last["last_stamp"]) != int(
                stream["last_stamp"]
            ):
                self._add(
                    "disagree",
                    last,
                    f"the newest snapshot says that the stream ends at timestamp "
                    f"{int(stream['last_stamp'])}, its last record {int(last['last_stamp'])}",
                )

    def _check_empty(self, ids: npt.NDArray[np.uint64]) -> None:
        """Look at streams of which nothing is there."""
        streams = self._streams
        rest = ~np.isin(streams["stream_id"], ids)
        for at in np.flatnonzero(rest & (streams["next_seq_num"] > streams["trim_point"])).tolist():
            stream = streams[at]
            low, high = int(stream["trim_point"]), int(stream["next_seq_num"])
            self._gap(stream, low, high, None, None, "the bucket")

    # Missing records

    def _gap(
        self,
        stream: np.void,
        first: int,
        end: int,
        left: _Neighbour | None,
        right: _Neighbour | None,
        where: str,
    ) -> None:
        first = max(first, int(stream["trim_point"]))
        if first >= end:
            return
        durable = int(stream["next_seq_num"])
        if end > durable:
            self._lost(stream, max(first, durable), end, where, "the log must still have them")
            end = durable
            if first >= end:
                return
        now_ms = self._standard.now_ms
        retentions = {int(stream["retention"]), *(n.retention for n in (left, right) if n)}
        finite = retentions - {0}
        if not finite:
            if left is not None:
                self._lost(stream, first, end, where, "nothing of the stream ever expires")
            else:
                self.findings.count("records that may have expired", end - first)
            return
        oldest_ms = int(stream["created_ms"])
        if left is not None:
            oldest_ms = left.arrival_ms
        youngest_ms = int(stream["last_write_ms"])
        if right is not None:
            youngest_ms = right.arrival_ms
        if oldest_ms + min(finite) * 1000 > now_ms:
            self._lost(stream, first, end, where, "they cannot have expired yet")
        elif 0 not in retentions and youngest_ms + max(finite) * 1000 <= now_ms:
            self.findings.count("expired records", end - first)
        else:
            self.findings.count("records that may have expired", end - first)

    def _lost(self, stream: np.void, first: int, end: int, where: str, why: str) -> None:
        self.findings.add(
            "lost",
            where,
            f"{end - first} records before it are missing, and {why}"
            if where != "the bucket"
            else f"{end - first} records are missing, and {why}",
            int(stream["stream_id"]),
            first,
        )

    # Commits that the table has too

    def _check_tiered(self) -> None:
        """What is in the log below the table's end, and is not dead, must be in the table."""
        rows = self._tiered
        rows = rows[np.lexsort((rows["first"], rows["stream_id"]))]
        history = self._main[self._main["where"] == HISTORY]
        now_s = self._standard.now_ms // 1000
        alive = (rows["expires_s"] == NEVER_S) | (rows["expires_s"] > now_s)
        places = self._rows_of(rows["stream_id"])
        for at in np.flatnonzero(alive & (places >= 0)).tolist():
            row, stream = rows[at], self._streams[places[at]]
            first = max(int(row["first"]), int(stream["trim_point"]))
            low, high = (
                np.searchsorted(history["stream_id"], row["stream_id"]),
                np.searchsorted(history["stream_id"], row["stream_id"], "right"),
            )
            for begin, end in _uncovered(first, int(row["end"]), history[low:high]):
                self.findings.add(
                    "lost",
                    self._standard.key(row),
                    f"{end - begin} of its records should be in the table, and are not",
                    int(row["stream_id"]),
                    begin,
                )

    def _add(self, kind: str, row: np.void, what: str) -> None:
        self.findings.add(
            kind, self._standard.key(row), what, int(row["stream_id"]), int(row["first"])
        )


def _tails(logged: Facts) -> dict[int, int]:
    """Return where each stream ends in the log."""
    logged = logged[np.argsort(logged["stream_id"], kind="stable")]
    ids, starts = np.unique(logged["stream_id"], return_index=True)
    ends = np.maximum.reduceat(logged["end"], starts) if len(starts) else logged["end"]
    return dict(zip(ids.tolist(), ends.tolist(), strict=True))


def _uncovered(first: int, end: int, covers: Facts) -> Iterator[tuple[int, int]]:
    """Yield the parts of [first, end) that no range holds; these ascend."""
    at = int(np.searchsorted(covers["end"], np.uint64(first), "right"))
    while first < end:
        if at == len(covers) or int(covers[at]["first"]) >= end:
            yield first, end
            return
        begin = int(covers[at]["first"])
        if begin > first:
            yield first, begin
        first = max(first, int(covers[at]["end"]))
        at += 1


def _left(row: np.void) -> _Neighbour | None:
    arrival_ms = int(row["last_arrival_ms"])
    return _Neighbour(arrival_ms, int(row["last_retention"])) if arrival_ms else None


def _right(row: np.void) -> _Neighbour | None:
    arrival_ms = int(row["first_arrival_ms"])
    return _Neighbour(arrival_ms, int(row["first_retention"])) if arrival_ms else None
