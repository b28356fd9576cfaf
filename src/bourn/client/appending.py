"""Append sessions: many batches on their way at once, acked in order.

Bytes that are not acked are bounded: `submit` waits where the bound would be passed. What fails is
raised by the call that finds out, as the server's own error. Acks that came before it are still to
be had from `acks`; nothing behind them took effect unless the connection itself was lost: then that
is not known (`has_no_effect` of the error). Batches are sent again only where the policy of the
session says so, and then in the same order.
"""

from collections import deque
from types import TracebackType
from typing import Final, NamedTuple, Self

from bourn.client.failures import ClientError, ConnectionLost, NotS2, refusal
from bourn.client.http1 import LAST_CHUNK, chunk_head
from bourn.client.link import Link
from bourn.client.reading import Open
from bourn.client.retries import AppendRetry, Attempts, may_repeat
from bourn.clock import SystemClock
from bourn.errors import BadFrame, BadProto
from bourn.layout.arrow import Input
from bourn.limits import (
    CLIENT_INFLIGHT_BYTES,
    CLIENT_MOVE_SECS_MIN,
    CLIENT_SILENCE_SECS_MAX,
)
from bourn.model.record import AppendAck
from bourn.wire.compression import Compression
from bourn.wire.frames import FrameParser, decode_terminal, encode_frame
from bourn.wire.protobuf import decode_append_ack, encode_append_input

_CRLF: Final = b"\r\n"


class _Pending(NamedTuple):
    frame: bytes
    records: int  # 0 where it is not known


class AppendSession:
    """Appends to one stream, until the block ends; then all are acked, or an error is raised."""

    def __init__(
        self,
        open_session: Open,
        attempts: Attempts,
        compression: Compression,
        retry: AppendRetry,
        inflight_bytes_max: int,
    ) -> None:
        self._open = open_session
        self._attempts = attempts
        self._compression = compression
        self._retry = retry
        self._inflight_bytes_max = inflight_bytes_max or CLIENT_INFLIGHT_BYTES
        self._clock = SystemClock()
        self._link: Link | None = None
        self._parser = FrameParser()
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._acks: list[AppendAck] = []
        self._is_advised = False
        self._moved_at = float("-inf")
        self._error: ClientError | None = None
        self.acked = 0  # batches

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @property
    def unacked(self) -> int:
        """How many batches are on their way."""
        return len(self._pending)

    def acks(self) -> list[AppendAck]:
        """Return the acks that have come since the last time, in the order of the batches."""
        found, self._acks = self._acks, []
        return found

    def submit(
        self,
        batch: Input | bytes,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> None:
        """Send a batch, an AppendInput message that lacks only its conditions."""
        message, records = (
            (batch, 0) if isinstance(batch, bytes) else (batch.message, batch.records)
        )
        conditions = encode_append_input((), match_seq_num, fencing_token)
        frame = encode_frame((message, conditions), self._compression)
        self._check()
        while self._pending and self._pending_bytes + len(frame) > self._inflight_bytes_max:
            self._step(wants_input=True)
        if self._is_advised:
            self._move()
        self._pending.append(_Pending(frame, records))
        self._pending_bytes += len(frame)
        if self._link is None:
            self._connect()
        else:
            self._put(self._link, frame)
        while self._link is not None and self._link.unsent:
            self._step(wants_input=False)

    def drain(self) -> list[AppendAck]:
        """Wait until all batches are acked; return the acks that have come since the last time."""
        self._check()
        while self._pending:
            self._step(wants_input=True)
        return self.acks()

    def close(self) -> list[AppendAck]:
        """Wait for all acks and end the session."""
        acks = self.drain()
        self._end()
        return acks

    def abort(self) -> None:
        """End the session at once; what is on its way may still take effect."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _put(self, link: Link, frame: bytes) -> None:
        link.put(chunk_head(len(frame)), frame, _CRLF)

    def _connect(self) -> None:
        """Open a session and send all that is not acked."""
        while self._link is None:
            try:
                link = self._open({})
            except ClientError as error:
                self._fail(error, is_opening=True)
                continue
            self._parser = FrameParser()
            for pending in self._pending:
                self._put(link, pending.frame)
            self._link = link

    def _step(self, *, wants_input: bool) -> None:
        """Send and receive what is possible, at least something."""
        if self._link is None:
            self._connect()
        link = self._link
        assert link is not None
        try:
            for data in link.pump(CLIENT_SILENCE_SECS_MAX, wants_input=wants_input):
                self._take(data)
            if link.is_ended and self._pending:
                self._parser.finish()
                raise ConnectionLost("the server ended the session before all was acked")
        except (BadFrame, BadProto) as error:
            self._fail(NotS2(f"the endpoint sends no proper frames: {error.message}"))
        except ClientError as error:
            self._fail(error)

    def _take(self, data: bytes) -> None:
        for frame in self._parser.feed(data):
            if frame.terminal:
                terminal = decode_terminal(frame)
                raise refusal(terminal.status, terminal.body)
            ack = decode_append_ack(bytes(frame.message()))
            if not self._pending:
                raise NotS2("the endpoint acks more than it was sent")
            pending = self._pending.popleft()
            self._pending_bytes -= len(pending.frame)
            if pending.records not in {0, ack.end.seq_num - ack.start.seq_num}:
                raise NotS2("the endpoint acks another number of records than it was sent")
            self._acks.append(ack)
            self.acked += 1
            self._attempts.succeed()
            self._is_advised = self._is_advised or frame.reconnect

    def _fail(self, error: ClientError, *, is_opening: bool = False) -> None:
        """Make ready for another attempt, or raise: nothing goes on behind an error."""
        self.abort()
        # A session that could not be opened has taken nothing: to ask again repeats no append.
        may_go_on = (is_opening and error.is_retryable) or may_repeat(self._retry, error)
        try:
            if not may_go_on:
                raise error
            self._attempts.fail(error)
        except ClientError as final:
            self._error = final
            raise

    def _move(self) -> None:
        """Go elsewhere, since the server asks for it: wait for all acks, then connect anew."""
        self._is_advised = False
        now = self._clock.monotonic()
        if now - self._moved_at < CLIENT_MOVE_SECS_MIN:
            return
        self._moved_at = now
        while self._pending:
            self._step(wants_input=True)
        self._end()

    def _end(self) -> None:
        """Say that nothing more comes, and hear the server out."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            link.put(LAST_CHUNK)
            while not link.is_ended:
                for data in link.pump(CLIENT_SILENCE_SECS_MAX, wants_input=True):
                    self._parser.feed(data)
        except (ClientError, BadFrame):
            # All that was sent is acked: how the connection ends makes no difference.
            pass
        finally:
            link.close()
