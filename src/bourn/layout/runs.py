"""Where a stream's batches lie in the log: one fixed row for each commit that holds any of them.

Inside a commit the entries of one stream are neighbours, so a *run* (the stream's consecutive
batches in that commit) is one byte range of one object. A row has 56 bytes, little endian:

    0                   8                   16                  24                  32
    +-------------------+-------------------+-------------------+-------------------+
    | first_seq_num u64 | last_timestamp u64| first_timestamp u64|    commit u64    |
    +---------+---------+---------+---------+---------+---------+-------------------+
    | offset  | length  |  count  | metered | expires |  flags  |
    |   u32   |   u32   |   u32   |   u32   |  s u32  |  u32 = 0|
    +---------+---------+---------+---------+---------+---------+
    32        36        40        44        48        52        56

`commit` is the dense ordinal of the commit over all epochs; `offset` and `length` cut its object.
`count` is the number of records, `metered` their metered bytes. `expires_s` is the Unix second,
rounded up, at which the last record expires; 0xFFFFFFFF is never.

Rows ascend: commits strictly, sequence numbers without overlap (gaps are what trims and expiry
leave), timestamps without going back. The rows of a stream are one buffer and nothing else, so
that a million streams can afford them.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bourn.errors import Undecodable
from bourn.limits import U64_MAX

NEVER_S: Final = 2**32 - 1
RUN_BYTES: Final = 56
RUN_DTYPE: Final = np.dtype(
    [
        ("first_seq_num", "<u8"),
        ("last_timestamp", "<u8"),
        ("first_timestamp", "<u8"),
        ("commit", "<u8"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("count", "<u4"),
        ("metered", "<u4"),
        ("expires_s", "<u4"),
        ("flags", "<u4"),
    ]
)

_ROW: Final = Struct("<QQQQIIIIII")
_U64: Final = Struct("<Q")
_FIRST_AND_COUNT: Final = Struct("<Q32xI")
_U32: Final = Struct("<I")
_EXPIRES_S: Final = Struct("<48xI4x")
_LAST_TIMESTAMP_AT: Final = 8
_COMMIT_AT: Final = 24
_EXPIRES_AT: Final = 48
_ONE_STREAM: Final = np.zeros(1, np.int64)
_FEW_ROWS: Final = 16  # up to here checking row by row beats a dozen numpy calls
_CUT_SHORT: Final = "a run is cut short"
_UNKNOWN_FLAGS: Final = "a run has flags of a later version"

assert _ROW.size == RUN_DTYPE.itemsize == RUN_BYTES

_pack = _ROW.pack
_unpack_from = _ROW.unpack_from
_follow_from = Struct("<QQ8xQ8xI4xI").unpack_from  # what the next run must follow
_u64_from = _U64.unpack_from
_u32_from = _U32.unpack_from
_first_and_count_from = _FIRST_AND_COUNT.unpack_from
_NumberFrom = Callable[[bytes | bytearray, int], tuple[Any, ...]]


class Run(NamedTuple):
    """One row."""

    first_seq_num: int
    last_timestamp: int
    first_timestamp: int
    commit: int
    offset: int
    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no row needs
    metered: int
    expires_s: int
    flags: int = 0

    @property
    def end_seq_num(self) -> int:
        """The sequence number behind the last record."""
        return self.first_seq_num + self.count


class Dropped(NamedTuple):
    """What an index has let go of."""

    commits: list[int]  # of each run
    metered: int


_NOTHING: Final = Dropped([], 0)


class RunIndex:
    """The runs of one stream, oldest first."""

    __slots__ = ("_expires_in_order", "_rows")

    def __init__(self) -> None:
        self._rows = bytearray()
        # Whether no run expires before an older one, as long as retention is what it was; None:
        # nobody has looked. Then the next to expire is the first, and nobody walks over all.
        self._expires_in_order: bool | None = True

    @classmethod
    def from_bytes(cls, rows: bytes | memoryview) -> Self:
        """Take over what `to_bytes` gave; raises Undecodable for anything else."""
        index = cls()
        if len(rows) <= _FEW_ROWS * RUN_BYTES:
            index._append_all(rows)
            return index
        fault = fault_in_rows(rows, _ONE_STREAM)
        if fault is not None:
            raise Undecodable(fault)
        index._rows += rows
        index._expires_in_order = None
        return index

    @classmethod
    def from_checked(cls, rows: bytes | memoryview) -> Self:
        """Take over rows that `fault_in_rows` has found nothing wrong with."""
        index = cls()
        index._rows += rows
        index._expires_in_order = None
        return index

    def _append_all(self, rows: bytes | memoryview) -> None:
        if len(rows) % RUN_BYTES:
            raise Undecodable(_CUT_SHORT)
        for *fields, flags in _ROW.iter_unpack(rows):
            if flags:
                raise Undecodable(_UNKNOWN_FLAGS)
            try:
                self.append(*fields)
            except ValueError as error:
                raise Undecodable(str(error)) from None

    def to_bytes(self) -> bytes:
        """All rows, back to back."""
        return bytes(self._rows)

    def piece(self, first_commit: int, end_commit: int, bytes_max: int) -> bytearray:
        """Rows of the commits [first, end), back to back, from the oldest on as many as fit."""
        first = self._count_up_to(first_commit - 1, _COMMIT_AT)
        end = self._count_up_to(end_commit - 1, _COMMIT_AT)
        end = min(end, first + bytes_max // RUN_BYTES)
        return self._rows[first * RUN_BYTES : end * RUN_BYTES]

    @property
    def size_bytes(self) -> int:
        """How long all rows are."""
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows) // RUN_BYTES

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunIndex) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __iter__(self) -> Iterator[Run]:
        return map(Run._make, _ROW.iter_unpack(bytes(self._rows)))

    def row(self, index: int) -> Run:
        """Return the run at `index`, counted from the oldest; raises IndexError outside."""
        if not 0 <= index < len(self._rows) // RUN_BYTES:
            raise IndexError(index)
        return Run._make(_unpack_from(self._rows, index * RUN_BYTES))

    def rows(self, index: int, count: int) -> bytes:
        """Return up to `count` rows from the one at `index` on, back to back."""
        return bytes(self._rows[index * RUN_BYTES : (index + count) * RUN_BYTES])

    @property
    def first_commit(self) -> int | None:
        """The commit of the oldest run; None where there is no run."""
        return _u64_from(self._rows, _COMMIT_AT)[0] if self._rows else None

    def append(
        self,
        first_seq_num: int,
        last_timestamp: int,
        first_timestamp: int,
        commit: int,
        offset: int,
        length: int,
        count: int,
        metered: int,
        expires_s: int,
    ) -> None:
        """Add the newest run; raises ValueError where it does not follow the last one."""
        rows = self._rows
        end_seq_num = first_seq_num + count
        if not first_seq_num < end_seq_num <= U64_MAX or first_timestamp > last_timestamp:
            raise ValueError("a run holds records, and their timestamps do not go back")
        if rows:
            last = _follow_from(rows, len(rows) - RUN_BYTES)
            if first_seq_num < last[0] + last[3] or commit <= last[2] or first_timestamp < last[1]:
                raise ValueError(f"a run at {first_seq_num} in commit {commit} does not follow")
            if expires_s < last[4]:
                self._expires_in_order = False
        rows += _pack(
            first_seq_num, last_timestamp, first_timestamp, commit,
            offset, length, count, metered, expires_s, 0,
        )  # fmt: skip

    def find_seq(self, seq_num: int) -> int:
        """Return the index of the run that holds `seq_num`, else of the first run behind it."""
        after = self._count_up_to(seq_num, 0)
        if after:
            first_seq_num, count = _first_and_count_from(self._rows, (after - 1) * RUN_BYTES)
            if first_seq_num + count > seq_num:
                return after - 1
        return after

    def find_seq_near(self, seq_num: int, near: int) -> int:
        """As `find_seq`, quicker where that is the run at `near`, or `near` is behind all."""
        at = near * RUN_BYTES
        if 0 <= at < len(self._rows):
            first_seq_num, count = _first_and_count_from(self._rows, at)
            if first_seq_num <= seq_num < first_seq_num + count:
                return near
        return self.find_seq(seq_num)

    def find_timestamp(self, timestamp: int) -> int:
        """Return the index of the first run with a record at or after `timestamp`."""
        return self._count_up_to(timestamp - 1, _LAST_TIMESTAMP_AT)

    def _count_up_to(self, value: int, at: int, number_from: _NumberFrom = _u64_from) -> int:
        """Count the rows whose ascending number at byte `at` is at most `value`.

        A loop over the buffer: 0.3 us for one row, 4 to 6 us for 100,000. A numpy view costs 1.3 us
        whatever the length, and most streams have few rows.
        """
        rows = self._rows
        low = 0
        high = len(rows) // RUN_BYTES
        while low < high:
            middle = (low + high) >> 1
            if number_from(rows, middle * RUN_BYTES + at)[0] <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def drop_before_seq(self, seq_num: int) -> Dropped:
        """Drop the runs that lie wholly below `seq_num`."""
        return self._drop_front(self.find_seq(seq_num))

    def drop_before_commit(self, ordinal: int) -> Dropped:
        """Drop the runs of commits below `ordinal`."""
        return self._drop_front(self._count_up_to(ordinal - 1, _COMMIT_AT))

    def drop_expired(self, now_s: int) -> Dropped:
        """Drop the runs whose last record has expired, wherever they stand.

        A stream's retention may have been changed, so that a run expires before an older one.
        """
        now_s = min(now_s, NEVER_S - 1)
        if self._is_in_order():
            return self._drop_front(self._count_up_to(now_s, _EXPIRES_AT, _u32_from))
        is_expired = self._column("expires_s") <= now_s
        if not is_expired.any():
            return _NOTHING
        rows = np.frombuffer(bytes(self._rows), RUN_DTYPE)
        self._rows = bytearray(rows[~is_expired].tobytes())
        self._expires_in_order = None
        return _dropped(rows[is_expired])

    def _column(self, name: str) -> npt.NDArray[np.uint32]:
        """Return one number of every row, as a copy.

        While a view of the rows lives, none can be added; and a view that has a name lives for as
        long as anybody keeps the frame that has it, as profilers do.
        """
        return np.frombuffer(self._rows, RUN_DTYPE)[name].copy()

    def _is_in_order(self) -> bool:
        if self._expires_in_order is None:
            expires_s = self._column("expires_s")
            self._expires_in_order = bool(np.all(expires_s[1:] >= expires_s[:-1]))
        return self._expires_in_order

    def metered_bytes(self, commit: int = 0) -> int:
        """Return the metered bytes of all runs, or of those in commits from an ordinal on."""
        first = self._count_up_to(commit - 1, _COMMIT_AT) if commit else 0
        return int(self._column("metered")[first:].sum(dtype=np.uint64))

    def earliest_expiry_s(self) -> int:
        """Return the Unix second at which the next run expires; NEVER_S where none does."""
        if not self._rows:
            return NEVER_S
        if self._expires_in_order:
            return _u32_from(self._rows, _EXPIRES_AT)[0]  # type: ignore[no-any-return]
        if len(self._rows) <= _FEW_ROWS * RUN_BYTES:
            return min(_EXPIRES_S.iter_unpack(self._rows))[0]  # type: ignore[no-any-return]
        return int(self._column("expires_s").min())

    def _drop_front(self, count: int) -> Dropped:
        if not count:
            return _NOTHING
        cut = count * RUN_BYTES
        dropped = _dropped(np.frombuffer(self._rows[:cut], RUN_DTYPE))
        del self._rows[:cut]  # moves the buffer's start, not its bytes
        if not self._rows:
            self._expires_in_order = True
        return dropped


def rows_of(rows: bytes, count: int) -> Iterator[Run]:
    """Yield up to `count` of these rows."""
    return map(Run._make, _ROW.iter_unpack(memoryview(rows)[: count * RUN_BYTES]))


def last_commit(rows: bytes | bytearray) -> int:
    """The commit of the last of these rows, of which there is one at least."""
    return int(_u64_from(rows, len(rows) - RUN_BYTES + _COMMIT_AT)[0])


def _dropped(rows: npt.NDArray[np.void]) -> Dropped:
    return Dropped(rows["commit"].tolist(), int(rows["metered"].sum(dtype=np.uint64)))


def fault_in_rows(rows: bytes | memoryview, starts: npt.NDArray[np.int64]) -> str | None:
    """Say what is wrong with the rows of many streams, back to back; None when nothing is.

    `starts` are the ascending byte offsets in `rows` at which a stream's first row stands.
    """
    if len(rows) % RUN_BYTES or np.any(starts % RUN_BYTES):
        return _CUT_SHORT
    table = np.frombuffer(rows, RUN_DTYPE)
    first = table["first_seq_num"]
    last = first + table["count"]  # wraps where it leaves u64
    if np.any(table["count"] == 0) or np.any(last < first):
        return "a run holds an impossible number of records"
    if np.any(table["flags"] != 0):
        return _UNKNOWN_FLAGS
    if np.any(table["first_timestamp"] > table["last_timestamp"]):
        return "a run's timestamps go back"
    follows = (
        (first[1:] >= last[:-1])
        & (table["commit"][1:] > table["commit"][:-1])
        & (table["first_timestamp"][1:] >= table["last_timestamp"][:-1])
    )
    if follows.size:
        boundaries = starts // RUN_BYTES - 1
        follows[boundaries[(boundaries >= 0) & (boundaries < follows.size)]] = True
    return None if follows.all() else "a run does not follow the one before it"
