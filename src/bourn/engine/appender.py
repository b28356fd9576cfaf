"""Many appends to one stream, in order: what an append session stands on."""

import asyncio

from bourn.engine.pending import AckWaiter
from bourn.engine.room import BATCH_ROOM_BYTES_MIN, room_of
from bourn.engine.sealing import Sealer
from bourn.engine.stream import Stream
from bourn.engine.term import Term
from bourn.engine.trailing import Patience
from bourn.errors import Invalid
from bourn.layout.records import RecordBatch
from bourn.model.record import AppendAck


class Appender:
    """Holds a stream open. Batches take effect in the order of `submit`, up to the first refusal.

    A refusal may be known long before it may be told; what is submitted meanwhile has no effect.
    """

    def __init__(self, term: Term, stream: Stream, sealer: Sealer | None = None) -> None:
        self._term = term
        self._stream = stream
        self._sealer = sealer
        self._patience = Patience(stream, term.clock)
        self._refused: asyncio.Future[AppendAck] | None = None
        stream.users += 1

    def sealed(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch as the stream keeps it: encrypted, where it has a cipher."""
        return batch if self._sealer is None else self._sealer.seal(batch)

    @property
    def is_ahead(self) -> bool:
        """Whether live followers are behind, and `let_catch_up` is due."""
        return self._stream.trailers is not None and self._patience.is_due

    async def let_catch_up(self) -> None:
        """Wait a little for live followers that are behind and quick (`trailing`)."""
        await self._patience.wait()

    def try_room_for(self, batch: RecordBatch) -> bool:
        """Take the batch's room where nobody has to be waited for, followers neither.

        Where it is False, `let_catch_up` and `room_for` must follow.
        """
        if self._stream.trailers is not None and self._patience.is_due:
            return False
        size_bytes = len(batch.payload)
        if size_bytes < BATCH_ROOM_BYTES_MIN:  # noqa: PLR1730  as `room_of`, which takes a call
            size_bytes = BATCH_ROOM_BYTES_MIN
        return self._term.room.try_take(size_bytes)

    async def room_for(self, batch: RecordBatch) -> None:
        """Wait until the batch may be admitted: the session's back-pressure."""
        await self._term.room.take(room_of(batch.payload))

    def submit(
        self,
        batch: RecordBatch,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> asyncio.Future[AppendAck]:
        """Admit a batch for which `room_for` has been awaited; the future is ack or refusal.

        Futures are settled in order. Behind the first refusal everything is refused.
        """
        if self._refused is not None:
            return self._behind(self._refused, batch)
        before = self._stream.state
        future = self._term.submit(self._stream, batch, match_seq_num, fencing_token)
        if self._stream.state is before:
            self._refused = future
        return future

    def submit_for(
        self,
        waiter: AckWaiter,
        batch: RecordBatch,
        match_seq_num: int | None,
        fencing_token: str | None,
    ) -> asyncio.Future[AppendAck] | None:
        """As `submit`, for somebody who is told the acks, in order; the refusal, where it is one.

        It is the first: nothing may be submitted behind it.
        """
        return self._term.submit_for(waiter, self._stream, batch, match_seq_num, fencing_token)

    def _behind(
        self, refused: asyncio.Future[AppendAck], batch: RecordBatch
    ) -> asyncio.Future[AppendAck]:
        self._term.room.give_back(room_of(batch.payload))
        future: asyncio.Future[AppendAck] = asyncio.get_running_loop().create_future()

        def settle(_: asyncio.Future[AppendAck]) -> None:
            if not future.done():
                future.set_exception(Invalid("a batch before this one was refused"))
                future.exception()  # the session may have ended with the refusal itself

        refused.add_done_callback(settle)
        return future

    async def append(
        self,
        batch: RecordBatch,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> AppendAck:
        """Append one batch and wait until it is durable."""
        batch = self.sealed(batch)
        await self.room_for(batch)
        return await self.submit(batch, match_seq_num=match_seq_num, fencing_token=fencing_token)

    def close(self) -> None:
        """Let the stream go; what was submitted still completes."""
        self._stream.users -= 1
