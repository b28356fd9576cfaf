"""Small runs of a stream that are at hand, read as one batch.

An agent's stream gets one record at a time, and so has each in a commit of its own. Looking at each
of them alone costs some 4 us, and 20 where it has to be fetched; kernels that walk over all of them
take a fifth of a microsecond for each. At hand is what lies in the newest commits, in memory, and
what the bucket can give without a wait; of the latter a few are read at a time, since nobody else
has a turn meanwhile.
"""

from bourn.engine.bounded import BoundedBucket
from bourn.engine.gather import Gather
from bourn.engine.stream import Stream
from bourn.engine.tail_cache import TailCache, address_of
from bourn.layout.entry import is_sound
from bourn.layout.joined import Joined, Words, join, locate
from bourn.layout.keys import wal_key
from bourn.layout.runs import Run, rows_of
from bourn.limits import (
    READ_JOINED_RUNS_MIN,
    READ_NEAR_RUNS_MAX,
    READ_NOW_BYTES_MAX,
    READ_TOGETHER_BYTES_MAX,
)
from bourn.log.epochs import EpochMap


class Hand:
    """What one read may still take where nobody waits for it, and nobody else has a turn.

    One that `goes_on` takes the rest later; else it is all or nothing.
    """

    __slots__ = ("goes_on", "left_bytes", "left_runs")

    def __init__(self, *, goes_on: bool) -> None:
        self.left_bytes = READ_NOW_BYTES_MAX
        self.left_runs = READ_NEAR_RUNS_MAX  # that are small
        self.goes_on = goes_on


class Neighbours:
    """Joins what is at hand."""

    def __init__(
        self, tail_cache: TailCache, bucket: BoundedBucket | None, epochs: EpochMap
    ) -> None:
        self._tail_cache = tail_cache
        self._bucket = bucket if bucket is not None and bucket.reads_now else None
        self._epochs = epochs

    @property
    def reads_near(self) -> bool:
        """Whether what is not in memory may be at hand all the same."""
        return self._bucket is not None

    def joined(
        self, stream: Stream, run: Run, gather: Gather, now_ms: int, hand: Hand
    ) -> Joined | None:
        """Return the batch that a run and those behind it make, as far as the read wants them.

        None where they are too few, too large, or not at hand. `gather` has just found the run.
        """
        runs, wanted, at = stream.runs, gather.records_left, gather.near - 1
        if (
            run.length > READ_TOGETHER_BYTES_MAX
            or gather.position != run.first_seq_num
            or gather.is_sealed
            or min(wanted, len(runs) - at) < READ_JOINED_RUNS_MIN
            or (run.commit not in self._tail_cache and not (self._bucket and hand.left_runs))
        ):
            return None
        rows = runs.rows(at, wanted)
        commits = self._tail_cache.places()
        places = locate(rows, commits.words, commits.first, commits.end, READ_TOGETHER_BYTES_MAX)
        near = b""
        if not places[0]:  # the newest ones are in memory, and those before them are not
            near = self._near(rows, stream.tail.seq_num, places, hand)
        if not places[2 * READ_JOINED_RUNS_MIN - 2]:
            return None
        found = join(places, stream.id, gather.position, now_ms, wanted, gather.metered_left)
        del near  # which the places were of
        if found is not None:
            gather.near = at + found.runs
        return found

    def _near(self, rows: bytes, end: int, places: Words, hand: Hand) -> bytes:
        """Read the first runs, as far as that takes no wait, and say where they lie now."""
        there = places[::2] != 0
        missing = int(there.argmax()) if there.any() else len(there)
        if missing > hand.left_runs and not hand.goes_on:
            hand.left_runs = hand.left_bytes = 0
            return b""
        parts: list[bytes | memoryview] = []
        for run in rows_of(rows, min(missing, hand.left_runs)):
            if run.first_seq_num >= end or run.length > READ_TOGETHER_BYTES_MAX:
                break
            assert self._bucket is not None, "nothing else is asked for what is not in memory"
            key = wal_key(*self._epochs.position(run.commit))
            data = self._bucket.range_now(key, run.offset, run.length)
            if data is None or not is_sound(data):
                break  # whoever asks for it alone waits, and finds out
            parts.append(data)
        hand.left_runs -= len(parts)
        near = b"".join(parts)
        address = address_of(near)
        for number, data in enumerate(parts):
            places[2 * number], places[2 * number + 1] = address, len(data)
            address += len(data)
        return near
