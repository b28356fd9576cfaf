"""Encryption between clients and the log: batches are sealed on the way in, opened on the way out.

Caches, the log and the bucket hold ciphertext alone. What is opened belongs to one reader and is
kept nowhere. The largest batch takes a few milliseconds (1,000 records, 1 MiB), in place:
a thread would hold the interpreter for most of that time too.
"""

import secrets
from collections.abc import AsyncGenerator

import msgspec

from bourn.catalog.rows import StreamRow
from bourn.engine.batch import EntrySlice, ReadBatch
from bourn.layout.entry import Entry
from bourn.layout.records import RecordBatch
from bourn.layout.sealed import RandomBytes, SealedStream, seal, unseal
from bourn.model.keys import CustomerKey


class Sealer:
    """Encrypts batches for one stream under one key."""

    __slots__ = ("_aead", "_random_bytes", "_stream")

    def __init__(
        self,
        stream: SealedStream,
        key: CustomerKey,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._stream = stream
        self._aead = stream.aead(key.decode(stream.cipher))
        self._random_bytes = random_bytes

    def seal(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch as that stream keeps it."""
        return seal(batch, self._stream, self._aead, self._random_bytes)


class Opener:
    """Decrypts what is read of one stream, under one key."""

    __slots__ = ("_aead", "_binding")

    def __init__(self, stream: SealedStream, key: CustomerKey) -> None:
        self._aead = stream.aead(key.decode(stream.cipher))
        self._binding = stream.binding

    def open(self, batch: ReadBatch) -> ReadBatch:
        """Return the batch in the clear; DecryptionFailed where the key is another one."""
        if not batch.slices:
            return batch
        slices = tuple(self._open(part) for part in batch.slices)
        return ReadBatch(slices, batch.records_count, batch.metered_bytes, None, batch.tail)

    def _open(self, part: EntrySlice) -> EntrySlice:
        entry, start, stop = part
        stamps = entry.timestamps
        clear: Entry = msgspec.structs.replace(
            entry,
            first_seq_num=entry.first_seq_num + start,
            count=stop - start,
            timestamps=stamps if isinstance(stamps, int) else stamps[start:stop],
            payload=unseal(entry.payload, entry.count, start, stop, self._aead, self._binding),
        )
        return EntrySlice(clear, 0, stop - start)

    async def session(
        self, batches: AsyncGenerator[ReadBatch, None]
    ) -> AsyncGenerator[ReadBatch, None]:
        """Yield the batches of a session in the clear."""
        try:
            async for batch in batches:
                yield self.open(batch)
        finally:
            await batches.aclose()


def sealed_stream(basin: str, row: StreamRow) -> SealedStream | None:
    """What encryption must know of a stream; None where it has no cipher."""
    if row.cipher is None:
        return None
    return SealedStream(row.cipher, basin, row.name, row.id)


def sealer_for(basin: str, row: StreamRow, key: CustomerKey) -> Sealer | None:
    """Who encrypts for a stream; None where it has no cipher. BadHeader where the key is none."""
    stream = sealed_stream(basin, row)
    return None if stream is None else Sealer(stream, key)


def opener_for(basin: str, row: StreamRow, key: CustomerKey) -> Opener | None:
    """Who decrypts a stream; None where it has no cipher. BadHeader where the key is none."""
    stream = sealed_stream(basin, row)
    return None if stream is None else Opener(stream, key)
