"""Runs of one stream in commits among others', to be joined: made of a seed, flawed or whole."""

import ctypes
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from bourn.layout.commit import CommitHeader, encode_commit
from bourn.layout.entry import OWN_BYTES_MAX, Entry
from bourn.layout.joined import Joined, Words, join, locate
from bourn.layout.records import encode_records
from bourn.layout.runs import RunIndex
from bourn.limits import U64_MAX
from bourn.model.record import Record, fence_record, trim_record

NO_LIMIT = 2**40
NOW_MS = 1_700_000_000_000
OTHER_BYTES = b"of another stream"

SIZES = [0, 1, 2, 30, 247, 248, OWN_BYTES_MAX, 6000]
COMMANDS = [fence_record("token"), fence_record(""), trim_record(7)]
STREAM_IDS = [1, 2**31, 2**63, U64_MAX - 1]
EDGES = [0, 1, 2**32, 2**63 - 2, 2**63, U64_MAX]
FIRSTS = [*EDGES[:-1], U64_MAX - 200]
RETENTIONS = [0, 1, 60, 86_400, 2**32 - 1, 2**44]

SMOOTH = "follows"
GAP = "a gap before it"
KEPT_OTHERWISE = "another retention"
EXPIRED = "expired"
OTHER_STREAM = "another stream"
ABSENT = "not in memory"
FLAWS = [GAP, KEPT_OTHERWISE, EXPIRED, OTHER_STREAM, ABSENT]


class History(NamedTuple):
    """Runs of a stream in commits, where they are in memory, and what they are one by one."""

    stream_id: int
    first_commit: int
    objects: list[bytes]  # one for each commit, some of other streams alone
    table: RunIndex
    runs: list[list[Entry] | None]  # None: not in memory

    @property
    def position(self) -> int:
        return self.table.row(0).first_seq_num

    def words(self) -> Words:
        return ring_of(self.objects, self.first_commit)

    def places(self, length_max: int = NO_LIMIT) -> Words:
        rows = self.table.rows(0, len(self.table))
        end = self.first_commit + len(self.objects)
        return locate(rows, self.words(), self.first_commit, end, length_max)

    def join(
        self, records_max: int = NO_LIMIT, metered_max: int = NO_LIMIT, now_ms: int = NOW_MS
    ) -> Joined | None:
        limits = (records_max, metered_max)
        return join(self.places(), self.stream_id, self.position, now_ms, *limits)


def ring_of(objects: Sequence[bytes], first: int) -> Words:
    """Where these objects lie, which must be kept, at their ordinals modulo a power of two."""
    room = 1 << max(0, len(objects) - 1).bit_length()
    words = np.zeros(2 * room, np.int64)
    for ordinal, data in enumerate(objects, first):
        place = 2 * (ordinal % room)
        words[place : place + 2] = address_of(data), len(data)
    return words


def address_of(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def entry_of(
    stream_id: int, seq_num: int, items: Sequence[Record], stamps: list[int], kept: tuple[int, int]
) -> Entry:
    """A batch of these records; a single timestamp is that of all."""
    found = encode_records(items)
    arrival_ms, retention_secs = kept
    return Entry(
        stream_id,
        seq_num,
        found.count,
        found.metered_bytes,
        found.header_count,
        arrival_ms,
        retention_secs,
        stamps[-1],
        stamps[0] if len(stamps) == 1 else np.array(stamps, np.uint64),
        found.payload,
        bool(found.commands),
    )


def commit_of(ordinal: int, groups: list[tuple[int, list[Entry]]]) -> tuple[bytes, list[int]]:
    """A commit object, and where in it each group lies: offset and length by turns."""
    header = CommitHeader(1, ordinal % 2**32, NOW_MS, 0, bytes(16))
    data, locations = encode_commit(header, [b"a change"] * (ordinal % 2), groups)
    return data, [number for _, offset, length in locations for number in (offset, length)]


def others(stream_id: int, seq_num: int = 5) -> tuple[int, list[Entry]]:
    entry = entry_of(stream_id, seq_num, [Record(OTHER_BYTES)], [3], (NOW_MS, 0))
    return stream_id, [entry]


def record_from(rng: Random) -> Record:
    if rng.random() < 0.1:
        return rng.choice(COMMANDS)
    headers = [
        (rng.randbytes(rng.randint(1, 4)), rng.randbytes(rng.randint(0, 4)))
        for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    return Record(rng.randbytes(rng.choice(SIZES)), tuple(headers))


def stamps_from(rng: Random, count: int) -> list[int]:
    return sorted(rng.choice([rng.choice(EDGES), rng.getrandbits(64)]) for _ in range(count))


def history_of(seed: int, runs_count: int, flaw: str, flaw_at: int) -> History:
    """Runs of one to three batches each; where one is flawed, those behind it follow it again."""
    rng = Random(seed)
    stream_id, seq_num, retention = (rng.choice(x) for x in (STREAM_IDS, FIRSTS, RETENTIONS))
    ordinal = rng.choice([0, 1, 7, 2**40 + 3])
    stamps = stamps_from(rng, 15 * runs_count)
    objects: list[bytes] = []
    runs: list[list[Entry] | None] = []
    index = RunIndex()
    for number in range(runs_count):
        wrong = flaw if number == flaw_at else SMOOTH
        seq_num += wrong == GAP
        first, kept_secs = seq_num, retention + (wrong == KEPT_OTHERWISE)
        seen_as = 2 if wrong == OTHER_STREAM else stream_id
        entries = []
        for part in range(rng.randint(1, 3)):
            items = [record_from(rng) for _ in range(rng.randint(1, 5))]
            arrival_ms = NOW_MS - rng.choice([0, 1, 999, rng.randint(0, 900)])
            if wrong == EXPIRED and part == 0:
                arrival_ms = max(0, NOW_MS - 1000 * kept_secs)
            own, stamps = stamps[: len(items)], stamps[len(items) :]
            own = own[: rng.choice([1, len(own)])]
            entries.append(entry_of(seen_as, seq_num, items, own, (arrival_ms, kept_secs)))
            seq_num += len(items)
        if rng.random() < 0.3:
            objects.append(commit_of(ordinal + len(objects), [others(9)])[0])
        commit = ordinal + len(objects)
        data, at = commit_of(commit, [others(0), (stream_id, entries), others(U64_MAX)])
        objects.append(data)
        if wrong == ABSENT:  # rows ascend, so that all behind it would be newer still
            add_row(index, first, ordinal + 10**6, at[2:4], seq_num - first)
            runs.append(None)
            break
        add_row(index, first, commit, at[2:4], seq_num - first)
        runs.append(entries)
    return History(stream_id, ordinal, objects, index, runs)


seeds = st.integers(0, 2**32)
histories = st.builds(
    history_of, seeds, st.integers(1, 9), st.sampled_from(FLAWS), st.integers(1, 6)
)
whole_histories = st.builds(history_of, seeds, st.integers(1, 5), st.just(SMOOTH), st.just(0))


def add_row(index: RunIndex, first: int, commit: int, at: list[int], count: int) -> None:
    offset, length = at
    index.append(first, 0, 0, commit, offset, length, count, 8 * count, 0)
