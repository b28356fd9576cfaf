"""An entry of a commit: one batch of one stream, or one catalog change.

Little endian; offsets in bytes; no padding, readers never rely on alignment.

```
 0  u64  checksum         xxh3-64 of the payload, seeded with the xxh3-64 of bytes 8 .. payload
 8  u32  length           of the whole entry, this header included
12  u8   kind             1 batch, 2 catalog change
13  u8   flags            bit 0: one timestamp for all records; bit 1: holds command records
14  u16  reserved, 0
16  u64  stream_id
24  u64  first_seq_num
32  u64  arrival_ms       when the batch was admitted: retention counts from here
40  u64  retention_secs   0: never expires
48  u64  last_timestamp
56  u32  count            records
60  u32  metered_bytes
64  u32  header_count     over all records
68  u32  reserved, 0
72  u64  timestamps[count], or [1] where flag bit 0 is set; none in a catalog change
 …       payload          batch: ends u32[count] | body_starts u32[count] | records (records.py)
                          change: the bytes of catalog/changes.py
```

A run of entries of one stream can be fetched alone: each says its own length and carries its own
checksum. Records are found by cumulative `ends`, not lengths, so that any one is found at once.
"""

import struct
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from bourn.errors import Damaged
from bourn.layout.records import U64Array

KIND_BATCH: Final = 1
KIND_CHANGE: Final = 2
FLAG_ONE_TIMESTAMP: Final = 1
FLAG_COMMANDS: Final = 2
NEVER_S: Final = 2**32 - 1

_CHECKSUM: Final = struct.Struct("<Q")
_FIELDS: Final = struct.Struct("<IBBHQQQQQIIII")
_U64: Final = struct.Struct("<Q")
_ONE: Final = struct.Struct("<IBBHQQQQQIIIIQ")  # the fields and one timestamp
HEADER_BYTES: Final = _CHECKSUM.size + _FIELDS.size
BATCH_OVERHEAD_BYTES: Final = HEADER_BYTES + _U64.size
OWN_BYTES_MAX: Final = 4096  # of a payload: smaller ones weigh less than a view of what was read

Buffer = bytes | bytearray | memoryview


class Entry(msgspec.Struct, gc=False, eq=False):
    """A batch with its position, as admitted or as read back.

    Nothing in it can refer back to it, so the cycle collector need not know of it: there are many.
    """

    stream_id: int
    first_seq_num: int
    count: int
    metered_bytes: int
    header_count: int
    arrival_ms: int
    retention_secs: int
    last_timestamp: int
    timestamps: int | U64Array
    payload: bytes | memoryview
    has_commands: bool

    @property
    def end_seq_num(self) -> int:
        """The sequence number behind the last record."""
        return self.first_seq_num + self.count

    @property
    def first_timestamp(self) -> int:
        """The timestamp of the first record."""
        return self.timestamps if isinstance(self.timestamps, int) else int(self.timestamps[0])

    @property
    def expires_s(self) -> int:
        """When retention hides the batch, in Unix seconds rounded up; NEVER_S for never."""
        if self.retention_secs == 0:
            return NEVER_S
        return min(-(-self.arrival_ms // 1000) + self.retention_secs, NEVER_S)

    def is_expired(self, now_ms: int) -> bool:
        """Whether retention hides the batch."""
        return self.retention_secs != 0 and now_ms >= self.arrival_ms + self.retention_secs * 1000


def encode_batch(entry: Entry) -> tuple[int, int, tuple[bytes, bytes, Buffer]]:
    """Return length, checksum and the parts of a batch entry, ready to be joined."""
    timestamps = entry.timestamps
    payload = entry.payload
    if isinstance(timestamps, int):
        length = BATCH_OVERHEAD_BYTES + len(payload)
        head = _ONE.pack(
            length,
            KIND_BATCH,
            FLAG_ONE_TIMESTAMP | FLAG_COMMANDS if entry.has_commands else FLAG_ONE_TIMESTAMP,
            0,
            entry.stream_id,
            entry.first_seq_num,
            entry.arrival_ms,
            entry.retention_secs,
            entry.last_timestamp,
            entry.count,
            entry.metered_bytes,
            entry.header_count,
            0,
            timestamps,
        )
    else:
        column = timestamps.astype("<u8", copy=False).tobytes()
        length = HEADER_BYTES + len(column) + len(payload)
        head = (
            _FIELDS.pack(
                length,
                KIND_BATCH,
                FLAG_COMMANDS if entry.has_commands else 0,
                0,
                entry.stream_id,
                entry.first_seq_num,
                entry.arrival_ms,
                entry.retention_secs,
                entry.last_timestamp,
                entry.count,
                entry.metered_bytes,
                entry.header_count,
                0,
            )
            + column
        )
    checksum = xxh3_64_intdigest(payload, xxh3_64_intdigest(head))
    return length, checksum, (_CHECKSUM.pack(checksum), head, payload)


def share_payloads(data: bytes, at: int, entries: Iterable[Entry]) -> None:
    """Have batches, encoded back to back from `at` on, be views of `data`: nothing is held twice.

    Their own bytes must stand there, as `encode_batch` has them.
    """
    view = memoryview(data)
    for entry in entries:
        timestamps = entry.timestamps
        at += BATCH_OVERHEAD_BYTES
        if not isinstance(timestamps, int):
            at += _U64.size * (len(timestamps) - 1)
        end = at + len(entry.payload)
        entry.payload = view[at:end]
        at = end


def encode_change(change: bytes) -> tuple[int, int, tuple[bytes, bytes, Buffer]]:
    """Return length, checksum and the parts of a catalog entry, ready to be joined."""
    length = HEADER_BYTES + len(change)
    head = _FIELDS.pack(length, KIND_CHANGE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    checksum = xxh3_64_intdigest(change, xxh3_64_intdigest(head))
    return length, checksum, (_CHECKSUM.pack(checksum), head, change)


def _is_intact(data: memoryview, offset: int, payload_at: int, payload: Buffer) -> bool:
    """Whether an entry at `offset` has the checksum of its fields, timestamps and payload."""
    seed = xxh3_64_intdigest(data[offset + _CHECKSUM.size : payload_at])
    checksum: int = _CHECKSUM.unpack_from(data, offset)[0]
    return xxh3_64_intdigest(payload, seed) == checksum


def _batch(
    fields: tuple[int, ...], timestamps: int | U64Array, payload: bytes | memoryview
) -> Entry:
    _, _, flags, _, stream_id, first_seq_num, arrival_ms, retention_secs = fields[:8]
    last_timestamp, count, metered_bytes, header_count, _ = fields[8:]
    return Entry(
        stream_id,
        first_seq_num,
        count,
        metered_bytes,
        header_count,
        arrival_ms,
        retention_secs,
        last_timestamp,
        timestamps,
        payload,
        bool(flags & FLAG_COMMANDS),
    )


def decode_entry(data: memoryview, offset: int, key: str) -> tuple[int, Entry | bytes]:
    """Return the offset behind the entry at `offset`, and the batch or the bytes of the change.

    Raises Damaged, naming `key`, for anything that is not exactly what was written.
    """
    if len(data) - offset < HEADER_BYTES:
        raise Damaged(key, f"it ends inside an entry header at byte {offset}")
    fields = _FIELDS.unpack_from(data, offset + _CHECKSUM.size)
    length, kind, flags, count = fields[0], fields[1], fields[2], fields[9]
    end = offset + length
    one = bool(flags & FLAG_ONE_TIMESTAMP)
    stamps = 0 if kind == KIND_CHANGE else (8 if one else 8 * count)
    columns_at = offset + HEADER_BYTES
    payload_at = columns_at + stamps
    if length < HEADER_BYTES + stamps or end > len(data):
        raise Damaged(key, f"the entry at byte {offset} has a wrong length")
    payload: bytes | memoryview = data[payload_at:end]
    if not _is_intact(data, offset, payload_at, payload):
        raise Damaged(key, f"the entry at byte {offset} fails its checksum")
    if kind == KIND_CHANGE:
        return end, bytes(payload)
    if len(payload) < OWN_BYTES_MAX:
        payload = bytes(payload)
    if kind != KIND_BATCH or count == 0 or len(payload) < 8 * count:
        raise Damaged(key, f"the entry at byte {offset} has an unknown kind or shape")
    timestamps: int | U64Array
    if one:
        timestamps = _U64.unpack_from(data, columns_at)[0]
    else:
        # Copied, because a view at an odd address is another type to the compiled codec.
        timestamps = np.frombuffer(bytes(data[columns_at:payload_at]), dtype="<u8")
    return end, _batch(fields, timestamps, payload)


def own_run(data: bytes, offset: int, length: int) -> list[Entry]:
    """Return the batches of a run in an object that this process has made, and kept in memory.

    It is not checked: nobody can have changed it. Large payloads are views of it.
    """
    view = memoryview(data)
    end = offset + length
    entries: list[Entry] = []
    while offset < end:
        fields = _FIELDS.unpack_from(data, offset + _CHECKSUM.size)
        size, flags, count = fields[0], fields[2], fields[9]
        columns_at = offset + HEADER_BYTES
        timestamps: int | U64Array
        if flags & FLAG_ONE_TIMESTAMP:
            payload_at = columns_at + _U64.size
            timestamps = _U64.unpack_from(data, columns_at)[0]
        else:
            payload_at = columns_at + _U64.size * count
            timestamps = np.frombuffer(data[columns_at:payload_at], dtype="<u8")
        offset += size
        is_small = offset - payload_at < OWN_BYTES_MAX
        payload = data[payload_at:offset] if is_small else view[payload_at:offset]
        entries.append(_batch(fields, timestamps, payload))
    return entries


def is_sound(run: Buffer) -> bool:
    """Whether these are whole entries, by their lengths and checksums."""
    view = memoryview(run)
    offset = 0
    while offset < len(view):
        if len(view) - offset < HEADER_BYTES:
            return False
        fields = _FIELDS.unpack_from(view, offset + _CHECKSUM.size)
        length, flags, count = fields[0], fields[2], fields[9]
        stamps = _U64.size if flags & FLAG_ONE_TIMESTAMP else _U64.size * count
        payload_at, end = offset + HEADER_BYTES + stamps, offset + length
        if end < payload_at or end > len(view):
            return False
        if not _is_intact(view, offset, payload_at, view[payload_at:end]):
            return False
        offset = end
    return True


def decode_run(data: Buffer, key: str) -> list[Entry]:
    """Return the batches of a fetched run of entries; Damaged where any is not whole."""
    view = memoryview(data)
    offset = 0
    entries: list[Entry] = []
    while offset < len(view):
        offset, entry = decode_entry(view, offset, key)
        if not isinstance(entry, Entry):
            raise Damaged(key, "a catalog change stands where batches were expected")
        entries.append(entry)
    return entries
