"""Appends to a running node: one that may have to wait, one that need not, and many in order."""

import asyncio
from collections.abc import Callable

from bourn.catalog.streams import AutoCreateOn
from bourn.engine.accounts import Accounts
from bourn.engine.appender import Appender
from bourn.engine.pending import AckWaiter
from bourn.engine.room import BATCH_ROOM_BYTES_MIN, room_of
from bourn.engine.sealing import Sealer, sealer_for
from bourn.errors import RequestError, Unavailable
from bourn.layout.records import RecordBatch
from bourn.model.config import StreamConfig
from bourn.model.keys import NO_KEY, CustomerKey
from bourn.model.record import AppendAck


class Appends(Accounts):
    """The part of a node that takes records."""

    async def append(
        self,
        basin: str,
        name: str,
        batch: RecordBatch,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
        config: StreamConfig | None = None,
        on_admitted: Callable[[], None] | None = None,
    ) -> AppendAck:
        """Append a batch, whole or not at all; durable when it returns.

        `on_admitted` is called when the batch has its turn, behind the wait for room.
        """
        term = self._term or await self._current()
        size_bytes = len(batch.payload)
        if size_bytes < BATCH_ROOM_BYTES_MIN:  # noqa: PLR1730  as `room_of`, which takes a call
            size_bytes = BATCH_ROOM_BYTES_MIN
        if not term.room.try_take(size_bytes):
            await term.room.take(size_bytes)
        try:
            stream = term.find(basin, name)
            if stream is None or stream.row.deleted_at_ms is not None:
                await self._fresh(term)
                stream = await term.open_stream(basin, name, AutoCreateOn.APPEND, config)
        except BaseException:
            term.room.give_back(size_bytes)
            raise
        if on_admitted is not None:
            on_admitted()
        try:
            return await term.submit(stream, batch, match_seq_num, fencing_token)
        except RequestError:
            await self._fresh(term)  # a refusal tells a state, as a read does
            raise

    def append_now(
        self,
        basin: str,
        name: str,
        batch: RecordBatch,
        match_seq_num: int | None,
        fencing_token: str | None,
        waiter: AckWaiter,
    ) -> asyncio.Future[AppendAck] | bool:
        """Append where nothing has to be waited for or made before; False where `append` must.

        The waiter is told the ack. A future is a refusal, for `settled_append`.
        """
        term = self._term
        stream = None if term is None else term.find(basin, name)
        if term is None or stream is None:
            return False
        row = stream.row
        if row.deleted_at_ms is not None or row.cipher is not None:
            return False
        if not term.room.try_take(room_of(batch.payload)):
            return False
        try:
            refused = term.submit_for(waiter, stream, batch, match_seq_num, fencing_token)
        except Unavailable:
            return False
        return True if refused is None else refused

    async def settled_append(self, ack: asyncio.Future[AppendAck]) -> AppendAck:
        """Wait for an append; a refusal is told by who leads."""
        term = self._term
        try:
            return await ack
        except RequestError:
            if term is not None:
                await self._fresh(term)
            raise

    async def appender(
        self,
        basin: str,
        name: str,
        config: StreamConfig | None = None,
        key: CustomerKey = NO_KEY,
    ) -> Appender:
        """Open a stream for many appends in order; close it when done."""
        term = await self._leading()
        stream = await term.open_stream(basin, name, AutoCreateOn.APPEND, config)
        return Appender(term, stream, sealer_for(basin, stream.row, key))

    async def sealer(
        self, basin: str, name: str, key: CustomerKey, config: StreamConfig | None = None
    ) -> Sealer | None:
        """Return who encrypts for a stream to append to, created if need be; None for plaintext."""
        term = self._term or await self._current()
        stream = term.find(basin, name)
        if stream is None or stream.row.deleted_at_ms is not None:
            await self._fresh(term)
            stream = await term.open_stream(basin, name, AutoCreateOn.APPEND, config)
        if stream.row.cipher is None:
            return None
        try:
            return sealer_for(basin, stream.row, key)
        except RequestError:
            await self._fresh(term)
            raise
