"""What an audit knows of the bucket: ranges of records, sums over records, and what is wrong.

A *range* is records of one stream with consecutive numbers in one object. A *sum* adds up a hash
of every record of a range (its stored bytes, number, timestamp, arrival and retention), so that two
objects can be compared however each of them cuts the stream into pieces.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from bourn.layout.audits import KINDS, Violation
from bourn.layout.entry import Entry
from bourn.limits import AUDIT_FINDINGS_MAX

U64Array = npt.NDArray[np.uint64]
Facts = npt.NDArray[np.void]

HISTORY: Final = 0  # where a range lies: in a segment; `source` is the place of its file
LOG: Final = 1  # in a commit that the table does not have; `source` is its ordinal
TIERED: Final = 2  # in a commit that the table has too

RANGE: Final = np.dtype(
    [
        ("stream_id", "<u8"),
        ("first", "<u8"),  # sequence numbers [first, end)
        ("end", "<u8"),
        ("first_stamp", "<u8"),
        ("last_stamp", "<u8"),
        ("first_arrival_ms", "<u8"),  # 0: not known
        ("last_arrival_ms", "<u8"),
        ("first_retention", "<u8"),
        ("last_retention", "<u8"),
        ("source", "<u8"),
        ("expires_s", "<u4"),  # of the record that expires last
        ("where", "<u4"),
    ]
)
SUM: Final = np.dtype(
    [
        ("stream_id", "<u8"),
        ("first", "<u8"),
        ("end", "<u8"),
        ("source", "<u8"),
        ("sum", "<u8"),
    ]
)

_MASK: Final = 2**64 - 1
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class Findings(msgspec.Struct):
    """What is wrong, and what is merely worth knowing; bounded, but everything is counted."""

    violations: list[Violation] = []
    total: int = 0
    missing: list[tuple[str, int]] = []  # (key, ordinal or -1) of objects that had been listed
    counts: dict[str, int] = {}

    def add(
        self,
        kind: str,
        key: str,
        what: str,
        stream_id: int | None = None,
        seq_num: int | None = None,
    ) -> None:
        """Note a violation; its kind is one of `audits.KINDS`."""
        assert kind in KINDS
        self.total += 1
        if len(self.violations) < AUDIT_FINDINGS_MAX:
            self.violations.append(Violation(kind, key, what, stream_id, seq_num))

    def count(self, what: str, by: int = 1) -> None:
        """Count something."""
        self.counts[what] = self.counts.get(what, 0) + by

    def take(self, other: "Findings") -> None:
        """Add what somebody else has found."""
        room = AUDIT_FINDINGS_MAX - len(self.violations)
        self.violations += other.violations[: max(room, 0)]
        self.total += other.total
        self.missing += other.missing
        for what, by in other.counts.items():
            self.count(what, by)


def no_ranges() -> Facts:
    """Return an array of no ranges."""
    return np.empty(0, RANGE)


def together(parts: Iterable[bytes], of: Any = RANGE) -> Facts:
    """Return facts that travelled as bytes as one array."""
    joined: Facts = np.frombuffer(b"".join(parts), of)
    return joined


def hashes_of(entries: Sequence[Entry]) -> U64Array:
    """Return a hash of the stored bytes of every record."""
    return np.fromiter(_hashes(entries), np.uint64, sum(entry.count for entry in entries))


def _hashes(entries: Sequence[Entry]) -> Iterator[int]:
    for entry in entries:
        payload = memoryview(entry.payload)
        at = area = 8 * entry.count
        for end in np.frombuffer(payload, "<u4", entry.count).tolist():
            yield xxh3_64_intdigest(payload[at : area + end])
            at = area + end


def mixed(
    hashes: U64Array,
    seq_nums: U64Array,
    stamps: U64Array,
    arrivals_ms: U64Array,
    retentions: U64Array,
) -> U64Array:
    """Return one number for each record, of everything that the log and the history say of it."""
    found = hashes
    for column in (seq_nums, stamps, arrivals_ms, retentions):
        found = _mix(found ^ (column + _GOLDEN))
    return found


def _mix(values: U64Array) -> U64Array:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def sum_of(values: U64Array) -> int:
    """Return the sum, modulo 2**64."""
    return int(values.sum(dtype=np.uint64)) & _MASK


def stamps_of(entry: Entry) -> U64Array:
    """Return the timestamp of every record of a batch."""
    if isinstance(entry.timestamps, int):
        return np.full(entry.count, entry.timestamps, np.uint64)
    return entry.timestamps.astype(np.uint64, copy=False)


def sum_of_entries(entries: Sequence[Entry], first: int, end: int) -> int:
    """Return the sum over the records of some batches whose numbers are in [first, end)."""
    seq_nums = np.concatenate(
        [
            np.arange(entry.count, dtype=np.uint64) + np.uint64(entry.first_seq_num)
            for entry in entries
        ]
    )
    counts = [entry.count for entry in entries]
    values = mixed(
        hashes_of(entries),
        seq_nums,
        np.concatenate([stamps_of(entry) for entry in entries]),
        np.repeat(np.array([entry.arrival_ms for entry in entries], np.uint64), counts),
        np.repeat(np.array([entry.retention_secs for entry in entries], np.uint64), counts),
    )
    return sum_of(values[(seq_nums >= np.uint64(first)) & (seq_nums < np.uint64(end))])
