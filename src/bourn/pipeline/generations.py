"""Which files of the history become one, and how their rows are shared out: pure decisions.

```
ordinals  0 ─────────────────────── 40 ──────── 52 ── 60 ── 66 ── 71   of the log
          generation: files a b c d │ e f       │ g   │ h   │ i │        older ─► newer
```

A *generation* is the files whose rows come from the same stretch of the log; tier makes one of each
file. What is merged is always a row of neighbours, wholly. So of any stream the rows in one
generation lie behind all those in an older one, and no two files of the table ever hold
intertwined parts of a stream: readers rely on it.

Merging goes by size, newest first: a generation joins those behind it once they weigh as much
together. That leaves a number of generations that grows with the logarithm of the table, and moves
a row as often. Past a size they stay as they are.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bourn.layout.entry import NEVER_S
from bourn.layout.history.delta import Add
from bourn.layout.history.index import SegmentIndex
from bourn.limits import (
    HISTORY_ROW_BYTES,
    MERGE_BYTES_MAX,
    MERGE_CLASS_BYTES_MIN,
    MERGE_GENERATIONS_MAX,
    MERGE_PART_BYTES,
    MERGE_PART_BYTES_MIN,
    MERGE_SMALL_BYTES,
)
from bourn.pipeline.living import I64Array, U64Array

CLASSES_PER_RETENTION: Final = 8  # so that at most about an eighth of what is live is dead
CLASS_SECS_MIN: Final = 64

Cut = tuple[int, int]  # stream_id, seq_num


class Generation(NamedTuple):
    """Files of the same stretch of the log."""

    first_ordinal: int
    end_ordinal: int
    files: tuple[Add, ...]

    @property
    def weight(self) -> int:
        """Bytes of rows."""
        return sum(map(weight_of, self.files))


def weight_of(add: Add) -> int:
    """Return what the rows of a file weigh in memory, about."""
    return add.tag("metered_bytes") + HISTORY_ROW_BYTES * add.tag("rows")


def generations_of(adds: Iterable[Add]) -> list[Generation]:
    """Return the generations of a table, oldest first."""
    found: list[Generation] = []
    for add in sorted(adds, key=lambda add: (add.tag("first_ordinal"), add.tag("end_ordinal"))):
        first, end = add.tag("first_ordinal"), add.tag("end_ordinal")
        if found and first < found[-1].end_ordinal:
            last = found[-1]
            end = max(end, last.end_ordinal)
            found[-1] = Generation(last.first_ordinal, end, (*last.files, add))
        else:
            found.append(Generation(first, end, (add,)))
    return found


def merges(generations: Sequence[Generation], width_min: int) -> list[Generation]:
    """Return what is to be merged: of each row of neighbours, all its files as one generation."""
    weights = [max(found.weight, MERGE_SMALL_BYTES) for found in generations]
    planned: list[Generation] = []
    at = len(generations) - 1
    while at >= 0:
        first, weight = at, weights[at]
        while (
            first > 0
            and weights[first - 1] <= weight
            and weight + weights[first - 1] <= MERGE_BYTES_MAX
            and at - first + 1 < MERGE_GENERATIONS_MAX
        ):
            first -= 1
            weight += weights[first]
        if at - first + 1 >= width_min:
            planned.append(_joined(generations[first : at + 1]))
            at = first - 1
        else:
            at -= 1
    return planned


def compactions(generations: Sequence[Generation]) -> list[Generation]:
    """Return the rows of neighbours that are too small to stand alone."""
    planned: list[Generation] = []
    row: list[Generation] = []
    for found in [*generations, None]:
        is_small = found is not None and (
            found.weight < MERGE_SMALL_BYTES and len(row) < MERGE_GENERATIONS_MAX
        )
        if found is not None and is_small:
            row.append(found)
            continue
        if len(row) > 1 or (row and len(row[0].files) > 1):
            planned.append(_joined(row))
        row = []
    return planned


def _joined(row: Sequence[Generation]) -> Generation:
    files = tuple(add for found in row for add in found.files)
    return Generation(row[0].first_ordinal, row[-1].end_ordinal, files)


def parts_of(weight: int, cores: int) -> int:
    """Return into how many parts rows are shared out: for memory's sake, and for all cores."""
    return max(-(-weight // MERGE_PART_BYTES), min(cores, weight // MERGE_PART_BYTES_MIN), 1)


def cuts_of(indexes: Iterable[SegmentIndex], parts: int) -> list[Cut]:
    """Return where parts of about equal weight begin, but for the first: by where row groups do.

    A stream goes into one part unless it is larger than that.
    """
    ids, seq_nums, weights = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], [np.empty(0)]
    for index in indexes:
        starts = np.flatnonzero(index.column("first_row") == 0)
        weight = index.column("metered_bytes") + HISTORY_ROW_BYTES * index.column("count") * 1.0
        ids.append(index.stream_ids[starts])
        seq_nums.append(index.column("first_seq_num")[starts])
        weights.append(np.add.reduceat(weight, starts) if len(starts) else np.empty(0))
    every_id, every_seq_num = np.concatenate(ids), np.concatenate(seq_nums)
    order = np.lexsort((every_seq_num, every_id))
    ends = np.cumsum(np.concatenate(weights)[order])
    cuts: list[Cut] = []
    if not len(ends):
        return cuts
    for target in np.arange(1, parts) * (ends[-1] / parts):
        at = order[min(int(np.searchsorted(ends, target)) + 1, len(order) - 1)]
        cut = (int(every_id[at]), 0)
        if cuts and cut <= cuts[-1]:
            cut = (int(every_id[at]), int(every_seq_num[at]))
        if cut > (cuts[-1] if cuts else (0, 0)):
            cuts.append(cut)
    return cuts


def places_of(cuts: Sequence[Cut], ids: U64Array, seq_nums: U64Array) -> list[int]:
    """Return at which row each cut falls; the rows are sorted."""
    places: list[int] = []
    for stream_id, seq_num in cuts:
        first = int(np.searchsorted(ids, np.uint64(stream_id)))
        end = int(np.searchsorted(ids, np.uint64(stream_id), "right"))
        places.append(first + int(np.searchsorted(seq_nums[first:end], np.uint64(seq_num))))
    return places


def classes_of(
    ids: U64Array, expires_s: I64Array, retentions: U64Array, weights: I64Array
) -> I64Array:
    """Return which of the files to write each row belongs to, numbered from 0; rows are sorted.

    Rows that expire at about the same time belong together, so that their file is dropped as one.
    Of a stream, a row never goes to a file before that of an earlier row. What is too small for
    a file of its own waits in the one that expires next.
    """
    if not len(ids):
        return np.empty(0, np.int64)
    width = np.maximum(
        2 ** np.floor(np.log2(np.maximum(retentions // CLASSES_PER_RETENTION, 1))), CLASS_SECS_MIN
    ).astype(np.int64)
    ends_s = np.where(expires_s >= NEVER_S, NEVER_S, -(-expires_s // width) * width)
    ends_s = np.minimum(ends_s, NEVER_S)
    stream = np.cumsum(np.concatenate(([0], ids[1:] != ids[:-1])))
    # The greatest so far within each stream: streams are lifted above one another.
    lifted = np.maximum.accumulate(ends_s + (stream << 33))
    keys, number = np.unique(lifted - (stream << 33), return_inverse=True)
    sizes = np.bincount(number, weights)
    file_of = np.zeros(len(keys), np.int64)
    at, size = 0, 0.0
    for key in range(len(keys)):
        file_of[key] = at
        size += sizes[key]
        if size >= MERGE_CLASS_BYTES_MIN:
            at, size = at + 1, 0.0
    if size and at:
        file_of[file_of == at] = at - 1
    return file_of[number]
