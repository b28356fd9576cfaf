"""A stream in use: its catalog row, the assigned state, the durable state, and who waits for it."""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from bourn.catalog.rows import ConfigPool, StreamRow, decode_stream_row, encode_stream_row
from bourn.layout.columns import StreamImage
from bourn.layout.entry import NEVER_S, Entry
from bourn.layout.runs import RunIndex
from bourn.limits import AES_GCM_SEQ_NUM_MAX, SNAPSHOT_RUNS_AT_ONCE_BYTES
from bourn.log.sequencer import Rules, StreamState
from bourn.model.config import Age, Cipher, TimestampMode
from bourn.model.record import StreamPosition

NO_COMMIT: Final = -1


@cache
def _rules(mode: TimestampMode, uncapped: bool, cipher: Cipher | None) -> Rules:  # noqa: FBT001
    """The same object for all streams that obey the same; there are a dozen."""
    if cipher is Cipher.AES_256_GCM:
        return Rules(mode=mode, uncapped=uncapped, seq_num_max=AES_GCM_SEQ_NUM_MAX)
    return Rules(mode=mode, uncapped=uncapped)


class Stream:
    """`state` includes what is in flight; `tail` and `trim_point` are what readers may see."""

    __slots__ = (
        "created_commit",
        "ended",
        "id",
        "last_commit",
        "last_write_ms",
        "retention_secs",
        "row",
        "rules",
        "runs",
        "sealed_for",
        "state",
        "tail",
        "trailers",
        "trim_point",
        "users",
        "waiters",
    )

    def __init__(
        self, row: StreamRow, state: StreamState, runs: RunIndex, last_write_ms: int
    ) -> None:
        self.id = row.id
        self.state = state
        self.tail = StreamPosition(state.next_seq_num, state.last_timestamp)
        self.trim_point = state.trim_point
        self.runs = runs
        self.last_write_ms = last_write_ms
        self.last_commit = NO_COMMIT  # ordinal of the commit that holds its last admitted change
        self.created_commit = NO_COMMIT  # ordinal of the commit that creates it, if this one did
        self.users = 0  # sessions and reads under way, which keep this object the stream's only one
        self.waiters: set[asyncio.Future[None]] | None = None  # who waits at the tail
        self.trailers: dict[Any, list[asyncio.Future[None]]] | None = None  # see `trailing`
        self.ended: Exception | None = None
        self.set_row(row)

    def set_row(self, row: StreamRow) -> None:
        """Adopt a new catalog row; it rules what is admitted from here on."""
        self.row = row
        self.sealed_for = 0 if row.cipher is None else row.id  # what its batches must be
        retention = row.config.retention_policy
        self.retention_secs = retention.secs if isinstance(retention, Age) else 0
        timestamping = row.config.timestamping
        self.rules = _rules(timestamping.mode, timestamping.uncapped, row.cipher)

    def index_run(self, ordinal: int, offset: int, length: int, entries: Sequence[Entry]) -> int:
        """Note where a run of batches lies; readers see it once its end is durable.

        Returns its metered bytes.
        """
        first, last = entries[0], entries[-1]
        if first is last:
            count, metered, expires_s = first.count, first.metered_bytes, first.expires_s
        else:
            count = last.end_seq_num - first.first_seq_num
            metered = sum(entry.metered_bytes for entry in entries)
            expires_s = max(entry.expires_s for entry in entries)
        self.runs.append(
            first.first_seq_num,
            last.last_timestamp,
            first.first_timestamp,
            ordinal,
            offset,
            length,
            count,
            metered,
            expires_s,
        )
        return metered

    def publish(self, tail: StreamPosition, trim_point: int) -> None:
        """Let readers see a state that has become durable."""
        self.tail = tail
        self.trim_point = trim_point
        if self.waiters is not None:
            self.wake()

    def wait(self) -> asyncio.Future[None]:
        """A future that is settled when the stream moves or ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = set()
        self.waiters.add(future)
        return future

    def leave(self, future: asyncio.Future[None]) -> None:
        """Wait no more."""
        if self.waiters is not None:
            self.waiters.discard(future)
            if not self.waiters:
                self.waiters = None

    def wake(self) -> None:
        """Wake everybody who waits at the tail."""
        if self.waiters is not None:
            waiters, self.waiters = self.waiters, None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def end(self, error: Exception) -> None:
        """Tell followers that nothing will ever come again, and why."""
        self.ended = error
        self.wake()

    def is_idle(self, durable_ordinal: int) -> bool:
        """Whether nothing in memory depends on this object any more."""
        return not self.users and self.waiters is None and self.last_commit < durable_ordinal

    def has_live_records(self, now_ms: int) -> bool:
        """Whether any record is neither trimmed nor expired."""
        now_s = now_ms // 1000
        first = self.runs.find_seq(self.trim_point)
        return any(self.runs.row(at).expires_s > now_s for at in range(first, len(self.runs)))

    def next_check_s(self, live_until_s: int = 0) -> int:
        """When housekeeping must look at the stream next, in Unix seconds.

        `live_until_s` is when the last record expires that the history has of it.
        """
        if self.row.deleted_at_ms is not None:
            return 0
        if self.runs.find_seq(self.state.trim_point):
            return 0  # trimmed runs wait to be dropped, at the latest when the trim is durable
        if len(self.runs):
            return self.runs.earliest_expiry_s()
        min_age_secs = self.row.config.delete_on_empty.min_age_secs
        if not min_age_secs:
            return NEVER_S
        empty_s = -(-self.last_write_ms // 1000) + min_age_secs
        return min(max(empty_s, live_until_s), NEVER_S)

    def image(self, live_until_s: int = 0) -> StreamImage:
        """Everything that a snapshot keeps of the stream, as admitted so far.

        Where the runs are many they are left out: `snapshots` copies them by and by.
        """
        state = self.state
        are_few = self.runs.size_bytes <= SNAPSHOT_RUNS_AT_ONCE_BYTES
        return StreamImage(
            id=self.id,
            basin_id=self.row.basin_id,
            name=self.row.name,
            row=encode_stream_row(self.row),
            next_seq_num=state.next_seq_num,
            last_timestamp=state.last_timestamp,
            fencing_token=state.fencing_token,
            trim_point=state.trim_point,
            last_write_ms=self.last_write_ms,
            runs=self.runs.to_bytes() if are_few else b"",
            next_check_s=self.next_check_s(live_until_s),
        )


_CONFIGS: Final = ConfigPool()  # streams of equal configs share one object


def new_stream(row: StreamRow) -> Stream:
    """A stream that has just been created; creation counts as a write."""
    return Stream(_CONFIGS.share(row), StreamState(), RunIndex(), row.created_at_ms)


def hydrate(image: StreamImage) -> Stream:
    """The stream that a snapshot kept; whoever made the columns has checked its runs."""
    state = StreamState(
        next_seq_num=image.next_seq_num,
        last_timestamp=image.last_timestamp,
        fencing_token=image.fencing_token,
        trim_point=image.trim_point,
    )
    row = _CONFIGS.share(decode_stream_row(image.row))
    return Stream(row, state, RunIndex.from_checked(image.runs), image.last_write_ms)
