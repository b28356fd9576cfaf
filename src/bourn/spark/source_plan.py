"""What a source reads, as plain values: offsets, ranges and how they are cut. No I/O.

An offset is what Spark keeps in a query's checkpoint, as JSON:

    {"offsets": {"events": 17}, "created": {"events": "2026-01-31T12:00:00Z"}, "from": {"new": 0}}

    offsets   the first record of each stream that has not been read
    created   when each stream was made, so that one of its name made anew is not taken for it;
              left out where the server does not tell
    from      where streams that this offset is the first to have were begun
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from bourn.limits import SOURCE_PARTITION_RECORDS, SOURCE_STREAM_WEIGHT, SOURCE_TASKS


class Range(NamedTuple):
    """Records [start, end) of a stream."""

    stream: str
    start: int
    end: int

    @property
    def records(self) -> int:
        """How many there are, if none is missing."""
        return self.end - self.start


class TaskRanges(InputPartition):
    """What one task reads: ranges, one behind the other."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


class Offset(NamedTuple):
    """How far each stream has been read."""

    offsets: Mapping[str, int]
    created: Mapping[str, str] = {}
    begun: Mapping[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps; names are sorted, so that the same is written the same."""
        found = {"offsets": self.offsets, "created": self.created, "from": self.begun}
        return {
            name: dict(sorted(value.items()))
            for name, value in found.items()
            if value or name == "offsets"
        }


def offset_of(found: Mapping[str, Any]) -> Offset:
    """Read what Spark has kept; ValueError where it is none of ours."""
    try:
        return Offset(
            {str(name): int(at) for name, at in found["offsets"].items()},
            dict(found.get("created", {})),
            dict(found.get("from", {})),
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"the checkpoint holds no offset of this source: {found}") from None


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """Return what lies between two offsets; what only the first one has is not read any more."""
    ranges = [
        Range(stream, _begin(stream, start, end), stop) for stream, stop in end.offsets.items()
    ]
    return sorted(found for found in ranges if found.records > 0)


def _begin(stream: str, start: Offset, end: Offset) -> int:
    is_same = start.created.get(stream, "") == end.created.get(stream, "")
    if stream in start.offsets and (is_same or stream not in end.begun):
        return start.offsets[stream]
    return end.begun.get(stream, 0)


def split(ranges: Sequence[Range], min_partitions: int) -> list[Range]:
    """Cut ranges into at least so many, each about as large; 0 cuts by size alone."""
    total = sum(found.records for found in ranges)
    parts: list[Range] = []
    for found in ranges:
        if min_partitions > len(ranges):
            wanted = -(-found.records * min_partitions // total)
        elif min_partitions:
            wanted = 1
        else:
            wanted = -(-found.records // SOURCE_PARTITION_RECORDS)
        parts += _cut(found, max(1, min(wanted, found.records)))
    return parts


def _cut(found: Range, parts: int) -> list[Range]:
    bounds = [found.start + found.records * part // parts for part in range(parts + 1)]
    return [Range(found.stream, start, end) for start, end in pairwise(bounds)]


def tasks_of(ranges: Sequence[Range], min_partitions: int) -> list[InputPartition]:
    """Cut ranges into tasks; where they are very many, a task gets several that lie side by side.

    Ranges stay in their order over all tasks, so that what writes rows in the order of tasks keeps
    the order of each stream.
    """
    waiting = split(ranges, min_partitions)
    wanted = min(len(waiting), max(min_partitions, SOURCE_TASKS))
    weight = sum(map(_weight, waiting))
    tasks: list[InputPartition] = []
    at = 0
    for left in range(wanted, 0, -1):
        start, own = at, 0
        last = len(waiting) - left + 1  # each of the others gets one, at least
        while at < last and (at == start or own + _weight(waiting[at]) // 2 <= weight // left):
            own += _weight(waiting[at])
            at += 1
        weight -= own
        tasks.append(TaskRanges(waiting[start:at]))
    return tasks


def _weight(found: Range) -> int:
    return found.records + SOURCE_STREAM_WEIGHT


def share(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit among streams, so that none gets more while another gets less than it has.

    Where there are more streams than the limit, the first of them get one each.
    """
    shares = dict.fromkeys(waiting, 0)
    hungry = [stream for stream, records in waiting.items() if records]
    left = limit
    while left and hungry:
        each = left // len(hungry)
        if not each:
            for stream in hungry[:left]:
                shares[stream] += 1
            break
        for stream in hungry:
            taken = min(each, waiting[stream] - shares[stream])
            shares[stream] += taken
            left -= taken
        hungry = [stream for stream in hungry if shares[stream] < waiting[stream]]
    return shares
