"""Read sessions, as Arrow batches of many records.

A session asks for all from a start up to an end, over one connection at a time. Where that breaks,
falls silent, or the server asks to go elsewhere, the next one starts at the next sequence number:
nothing is lost and nothing comes twice.

    start          a sequence number, a timestamp (the first record at or behind it), or so many
                   records before the tail
    end_seq_num    the first record that is not wanted
    until          no record of this timestamp or a later one
    count          at most so many
    wait_secs      at the tail: 0 ends, a number waits so long for more, None waits for ever

The tail is an end, not an error; a start behind it raises Unwritten.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa

from bourn.client.failures import ClientError, NotS2, Refused, Unwritten, refusal
from bourn.client.link import Link
from bourn.client.retries import Attempts
from bourn.clock import SystemClock
from bourn.errors import BadFrame, BadProto
from bourn.layout.arrow import Columns, Gap, ReadRows
from bourn.limits import (
    CLIENT_BATCH_BYTES,
    CLIENT_BATCH_ROWS,
    CLIENT_MOVE_SECS_MIN,
)
from bourn.model.record import StreamPosition
from bourn.wire.frames import Frame, FrameParser, decode_terminal

Open = Callable[[Mapping[str, str]], Link]
_NEVER: Final = float("-inf")


class ReadStart(NamedTuple):
    """Where to start: at exactly one of these."""

    seq_num: int | None = None
    timestamp: int | None = None
    tail_offset: int | None = None

    @property
    def query(self) -> dict[str, str]:
        """The start, as a request names it."""
        given = {name: str(value) for name, value in self._asdict().items() if value is not None}
        if len(given) != 1:
            raise ValueError("name one of seq_num, timestamp and tail_offset")
        return given

    def is_tail(self, error: ClientError) -> bool:
        """Whether a read was refused since it would start at the tail, not behind it."""
        return isinstance(error, Unwritten) and (
            self.seq_num is None or error.tail_seq_num >= self.seq_num
        )


class ReadSession:
    """Iterates over batches; what it has come to know stands in its properties."""

    def __init__(
        self,
        open_session: Open,
        attempts: Attempts,
        start: ReadStart,
        *,
        columns: Columns,
        end_seq_num: int | None,
        until: int | None,
        count: int | None,
        wait_secs: int | None,
    ) -> None:
        self._open = open_session
        self._attempts = attempts
        self._start = start
        self._end_seq_num = end_seq_num
        self._count = count
        self._fixed: dict[str, str] = {}
        if until is not None:
            self._fixed["until"] = str(until)
        if wait_secs is not None:
            self._fixed["wait"] = str(wait_secs)
        self._follows = wait_secs != 0
        self._rows = ReadRows(columns, start.seq_num, end_seq_num)
        self._clock = SystemClock()
        self._moved_at = _NEVER
        self._found = 0  # records so far
        self._is_done = False
        self._batches = self._run()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def close(self) -> None:
        """Let go of the connection."""
        self._batches.close()

    @property
    def next_seq_num(self) -> int | None:
        """Where the next session would start; None where nothing is known yet."""
        return self._rows.next_seq_num

    @property
    def gap(self) -> Gap | None:
        """The first sequence numbers that were asked for and are not there, before others."""
        return self._rows.gap

    @property
    def tail(self) -> StreamPosition | None:
        """The last tail that the server has told of."""
        return self._rows.tail

    def _run(self) -> Generator[pa.RecordBatch]:
        while not self._is_done and not self._is_complete():
            try:
                with closing(self._open(self._query())) as link:
                    yield from self._session(link)
            except Refused as error:
                if not self._current_start().is_tail(error):
                    self._attempts.fail(error)
                else:
                    self._is_done = True
            except (BadFrame, BadProto) as error:
                raise NotS2(f"the endpoint sends no proper frames: {error.message}") from None
            except ClientError as error:
                self._attempts.fail(error)
        if self._rows.rows:
            yield self._rows.flush()

    def _session(self, link: Link) -> Iterator[pa.RecordBatch]:
        """Read one session to its end, or until it is enough or must go on elsewhere."""
        parser = FrameParser()
        for piece in link.pieces():
            is_moving = False
            for frame in parser.feed(piece):
                self._take(frame)
                is_moving = is_moving or frame.reconnect
                if self._is_complete():
                    return
                if self._rows.rows >= CLIENT_BATCH_ROWS or (
                    self._rows.metered_bytes >= CLIENT_BATCH_BYTES
                ):
                    yield self._flush()
            if self._follows and self._rows.rows and self._rows.tail is not None:
                yield self._flush()
            if is_moving and self._may_move():
                return
        parser.finish()
        self._is_done = True

    def _take(self, frame: Frame) -> None:
        if frame.terminal:
            terminal = decode_terminal(frame)
            raise refusal(terminal.status, terminal.body)
        before = self._rows.rows
        self._rows.take(bytes(frame.message()))
        if self._rows.rows > before:
            self._found += self._rows.rows - before
            self._attempts.succeed()

    def _flush(self) -> pa.RecordBatch:
        return self._rows.flush()

    def _may_move(self) -> bool:
        now = self._clock.monotonic()
        if now - self._moved_at < CLIENT_MOVE_SECS_MIN:
            return False
        self._moved_at = now
        return True

    def _is_complete(self) -> bool:
        """Whether all that was asked for is there."""
        rows = self._rows
        if rows.is_past_end or (self._count is not None and self._found >= self._count):
            return True
        next_seq_num, end = rows.next_seq_num, self._end_seq_num
        return end is not None and next_seq_num is not None and next_seq_num >= end

    def _current_start(self) -> ReadStart:
        if self._rows.next_seq_num is not None:
            return ReadStart(seq_num=self._rows.next_seq_num)
        if self._rows.tail is not None:
            # Nothing between the start and the tail was there, or it would have come before.
            return ReadStart(seq_num=self._rows.tail.seq_num)
        return self._start

    def _query(self) -> dict[str, str]:
        start = self._current_start()
        query = start.query | self._fixed
        limits = [] if self._count is None else [self._count - self._found]
        if self._end_seq_num is not None and start.seq_num is not None:
            # Where some are missing, more would come than are wanted: those are left.
            limits.append(self._end_seq_num - start.seq_num)
        if limits:
            query["count"] = str(min(limits))
        return query
