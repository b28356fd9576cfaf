"""One version of the history's table in memory: where each stream lies in it.

Every segment's sidecar is held as it was written, in arrays; nothing is kept by stream. Where one
stream lies is found when somebody asks: by a binary search in each segment whose streams it could
be one of, kept for those that were asked for last.

Of one stream, no two segments overlap: its blocks are in the order of their numbers, over all
segments, and their timestamps never go back. Where a table breaks that rule, the stream cannot be
read: half of its records might be passed over.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bourn.errors import BournError, Damaged
from bourn.layout.history.delta import Add
from bourn.layout.history.index import SegmentIndex
from bourn.limits import HISTORY_SPANS_KEPT, HISTORY_STRETCHES_KEPT, U64_MAX

U64Array = npt.NDArray[np.uint64]

RECORD_OVERHEAD_BYTES: Final = 16  # of a record in memory: where it lies in its batch, and when


class Segment:
    """A file of the table, and its index. `number` names it as long as the process lives."""

    __slots__ = ("_ids", "_last_seq_nums", "_last_timestamps", "index", "key", "number")

    def __init__(self, key: str, number: int, index: SegmentIndex) -> None:
        self.key = key
        self.number = number
        self.index = index
        # A memoryview hands out plain ints, which bisect compares three times faster than numpy's.
        self._ids = index.column("stream_id").data
        self._last_seq_nums = index.column("last_seq_num").data
        self._last_timestamps = index.column("last_timestamp").data

    def span(self, stream_id: int) -> "Span | None":
        """Return where a stream lies, or None."""
        ids = self._ids
        if not len(ids) or not ids[0] <= stream_id <= ids[-1]:
            return None
        first = bisect_left(ids, stream_id)
        if ids[first] != stream_id:
            return None
        end = first + 1
        if end < len(ids) and ids[end] == stream_id:
            end = bisect_left(ids, stream_id + 1, end)
        return Span(
            self.index.column("first_seq_num").item(first),
            self._last_seq_nums[end - 1],
            self._last_timestamps[end - 1],
            self,
            first,
            end,
        )

    def reaching_seq(self, seq_num: int, first: int, end: int) -> int:
        """Return the first of these blocks that reaches a sequence number."""
        return bisect_left(self._last_seq_nums, seq_num, first, end)

    def reaching_timestamp(self, timestamp: int, first: int, end: int) -> int:
        """Return the first of these blocks that reaches a timestamp."""
        return bisect_left(self._last_timestamps, timestamp, first, end)


class Span(NamedTuple):
    """The blocks of one stream in one segment: [first, end)."""

    first_seq_num: int
    last_seq_num: int
    last_timestamp: int
    segment: Segment
    first: int
    end: int


class Spans(NamedTuple):
    """The blocks of one stream, in order; `fault` says why they have none."""

    spans: list[Span]
    last_seq_nums: list[int]
    last_timestamps: list[int]
    fault: Damaged | None


class Stretch(NamedTuple):
    """A block, with the fields that a run of the log has too."""

    segment: Segment
    place: int
    stream_id: int
    first_seq_num: int
    end_seq_num: int
    first_timestamp: int
    last_timestamp: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no stretch needs
    metered: int
    expires_s: int

    @property
    def key(self) -> tuple[int, int]:
        """What it is known by in the caches, where a run has its commit and its stream."""
        return self.segment.number, self.place

    @property
    def length(self) -> int:
        """About how many bytes its batches take."""
        return self.metered + RECORD_OVERHEAD_BYTES * self.count


class MissingSegment(msgspec.Struct, frozen=True):
    """A file of the table whose index cannot be read; what the table's log says of its rows."""

    key: str
    error: BournError
    stream_ids: tuple[int, int] = (0, U64_MAX)
    seq_nums: tuple[int, int] = (0, U64_MAX)
    timestamps: tuple[int, int] = (0, U64_MAX)

    @classmethod
    def of(cls, add: Add, error: BournError) -> "MissingSegment":
        """Make out of its statistics what can be made out of them."""
        try:
            stats = msgspec.json.decode(add.stats or "", type=_Stats)
        except msgspec.MsgspecError:
            return cls(add.key, error)
        bounds = [
            (int(least), int(greatest))
            if isinstance(least, int) and isinstance(greatest, int) and 0 <= least <= greatest
            else (0, U64_MAX)  # signed columns: a value of 2**63 or more turns the order round
            for least, greatest in (
                (stats.least.get(name), stats.greatest.get(name))
                for name in ("stream_id", "seq_num", "timestamp")
            )
        ]
        return cls(add.key, error, *bounds)


class _Stats(msgspec.Struct, rename={"least": "minValues", "greatest": "maxValues"}):
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}


class HistoryVersion:
    """The segments of one version; used by the event loop alone, apart from `sizes`."""

    def __init__(
        self,
        version: int,
        end_ordinal: int,
        segments: Sequence[Segment],
        missing: Sequence[MissingSegment] = (),
        broken: BournError | None = None,
    ) -> None:
        """`missing` have no index; `broken` says why nobody knows what the table holds."""
        self.version = version
        self.end_ordinal = end_ordinal
        self.segments = tuple(segments)
        self.missing = tuple(missing)
        self.broken = broken
        self.is_empty = not (segments or missing or broken)
        self.is_complete = not (missing or broken)
        self._spans: OrderedDict[int, Spans] = OrderedDict()
        self._spans_kept = 0
        self._last: Stretch | None = None  # found; a reader asks for each several times over
        self._near: dict[tuple[int, int], Stretch] = {}  # what readers are about to ask for

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return sum(len(segment.index) for segment in self.segments)

    @property
    def index_bytes(self) -> int:
        """What the indexes take in memory."""
        return sum(segment.index.nbytes for segment in self.segments)

    # Where a stream lies

    def find(self, stream_id: int, seq_num: int) -> Stretch | None:
        """Return the first block of a stream that reaches a sequence number."""
        last = self._last
        if (
            last is not None
            and last.stream_id == stream_id
            and last.first_seq_num <= seq_num < last.end_seq_num
        ):
            return last
        spans = self._ordered(stream_id)
        at = bisect_left(spans.last_seq_nums, seq_num)
        if at == len(spans.spans):
            return None
        span = spans.spans[at]
        segment = span.segment
        self._last = self._stretch(segment, segment.reaching_seq(seq_num, span.first, span.end))
        return self._last

    def find_timestamp(self, stream_id: int, timestamp: int, seq_num: int) -> Stretch | None:
        """Return the first block that reaches a timestamp and a sequence number."""
        spans = self._ordered(stream_id)
        at = max(
            bisect_left(spans.last_timestamps, timestamp), bisect_left(spans.last_seq_nums, seq_num)
        )
        if at == len(spans.spans):
            return None
        span = spans.spans[at]
        segment, first, end = span.segment, span.first, span.end
        place = max(
            segment.reaching_timestamp(timestamp, first, end),
            segment.reaching_seq(seq_num, first, end),
        )
        return _stretch(segment, place)

    def behind(self, stretch: Stretch) -> Iterator[Stretch]:
        """Yield the blocks that follow one of the same stream."""
        spans = self._spans_of(stretch.stream_id)
        for span in spans.spans[bisect_left(spans.last_seq_nums, stretch.end_seq_num) :]:
            place = span.segment.reaching_seq(stretch.end_seq_num, span.first, span.end)
            yield from (self._stretch(span.segment, at) for at in range(place, span.end))

    def _stretch(self, segment: Segment, place: int) -> Stretch:
        near = self._near
        found = near.get((segment.number, place))
        if found is None:
            if len(near) >= HISTORY_STRETCHES_KEPT:
                near.clear()
            found = near[segment.number, place] = _stretch(segment, place)
        return found

    def fault_between(self, stream_id: int, seq_num: int, end: int) -> BournError | None:
        """Say why nobody knows whether [seq_num, end) is a gap; None where it is one."""
        if self.broken is not None:
            return self.broken
        for missing in self.missing:
            ids, held = missing.stream_ids, missing.seq_nums
            if ids[0] <= stream_id <= ids[1] and held[0] < end and seq_num <= held[1]:
                return missing.error
        return None

    def fault_from(self, stream_id: int, timestamp: int, until: int) -> BournError | None:
        """Say why nobody knows what a stream has from a timestamp up to another."""
        if self.broken is not None:
            return self.broken
        for missing in self.missing:
            ids, held = missing.stream_ids, missing.timestamps
            if ids[0] <= stream_id <= ids[1] and held[0] <= until and timestamp <= held[1]:
                return missing.error
        return None

    def _ordered(self, stream_id: int) -> Spans:
        """Return where a stream lies; Damaged where that is no order."""
        spans = self._spans_of(stream_id)
        if spans.fault is not None:
            raise spans.fault.with_traceback(None)
        return spans

    def _spans_of(self, stream_id: int) -> Spans:
        found = self._spans.get(stream_id)
        if found is not None:
            self._spans.move_to_end(stream_id)
            return found
        spans = [span for segment in self.segments if (span := segment.span(stream_id)) is not None]
        spans.sort(key=_first_seq_num)
        found = Spans(
            spans,
            [span.last_seq_num for span in spans],
            [span.last_timestamp for span in spans],
            _fault_in(spans),
        )
        self._spans[stream_id] = found
        self._spans_kept += 1 + len(spans)
        while self._spans_kept > HISTORY_SPANS_KEPT and len(self._spans) > 1:
            self._spans_kept -= 1 + len(self._spans.popitem(last=False)[1].spans)
        return found

    # What a stream holds, block by block: one that is trimmed or expired in part counts as whole

    def stored_bytes(self, stream_id: int, trim_point: int, now_s: int) -> int:
        """Return the metered bytes of a stream's blocks that are not wholly hidden."""
        total = 0
        for span in self._spans_of(stream_id).spans:
            index, rows = span.segment.index, slice(span.first, span.end)
            if span.last_seq_num >= trim_point:
                live = (index.column("last_seq_num")[rows] >= np.uint64(trim_point)) & (
                    index.column("expires_s")[rows] > now_s
                )
                total += int(index.column("metered_bytes")[rows][live].sum(dtype=np.uint64))
        return total

    def live_until_s(self, stream_id: int, trim_point: int) -> int:
        """Return when the last record that is not trimmed expires, in Unix seconds; 0 for none."""
        latest = 0
        for span in self._spans_of(stream_id).spans:
            if span.last_seq_num >= trim_point:
                first = span.segment.reaching_seq(trim_point, span.first, span.end)
                expires_s = span.segment.index.column("expires_s")[first : span.end]
                latest = max(latest, int(expires_s.max()))
        return latest


NO_HISTORY: Final = HistoryVersion(-1, 0, ())


def _first_seq_num(span: Span) -> int:
    return span.first_seq_num


def _fault_in(spans: list[Span]) -> Damaged | None:
    for one, other in pairwise(spans):
        if other.first_seq_num <= one.last_seq_num:
            return Damaged(other.segment.key, f"it overlaps with {one.segment.key}")
    return None


def _stretch(segment: Segment, place: int) -> Stretch:
    block = segment.index.block(place)
    return Stretch(
        segment,
        place,
        block.stream_id,
        block.first_seq_num,
        block.last_seq_num + 1,
        block.first_timestamp,
        block.last_timestamp,
        block.count,
        block.metered_bytes,
        block.expires_s,
    )


class StreamFacts(NamedTuple):
    """Of every stream that there is, in any order: its id, its basin, its trim point."""

    ids: U64Array
    basin_ids: U64Array
    trim_points: U64Array


def basin_sizes(segments: Sequence[Segment], streams: StreamFacts, now_s: int) -> Mapping[int, int]:
    """Return what the table holds of each basin's streams, in metered bytes; fit for a thread.

    Counted block by block, as `stored_bytes` does.
    """
    basins, basin_of = np.unique(streams.basin_ids, return_inverse=True)
    totals = np.zeros(len(basins), np.int64)
    if not len(basins):
        return {}
    order = np.argsort(streams.ids)
    ids, basin_of, trims = streams.ids[order], basin_of[order], streams.trim_points[order]
    for segment in segments:
        index = segment.index
        of_block = index.column("stream_id")
        at = np.minimum(np.searchsorted(ids, of_block), len(ids) - 1)
        live = (
            (ids[at] == of_block)
            & (index.column("last_seq_num") >= trims[at])
            & (index.column("expires_s") > now_s)
        )
        metered = index.column("metered_bytes")[live]
        # Sums of doubles, which are exact up to 2**53.
        totals += np.bincount(basin_of[at[live]], metered, len(basins)).astype(np.int64)
    return dict(zip(basins.tolist(), totals.tolist(), strict=True))
