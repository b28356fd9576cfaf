"""Encrypted records: what lies in the log of a stream that has a cipher.

Each envelope is encrypted alone, with a random nonce of its own; commands stay as they are, for
the server must understand them. An encrypted record, beside the forms that `records.py` draws:

```
+-------+--------------+-----------+-------+--------------------------+-----+
| magic | metered size | algorithm | nonce |        ciphertext        | tag |
|  1 B  |   1 to 3 B   |    1 B    | 32/12 | of the whole stored      | 32/ |
|       |              |           |  B    | record, magic to body    | 16 B|
+-------+--------------+-----------+-------+--------------------------+-----+
magic           bits 0-2  3
metered size    of the plaintext, repeated from inside: a reader counts without the key
algorithm       1 AEGIS-256, 2 AES-256-GCM: `ciphers.py`
```

In the columns of the batch, the body of an encrypted record starts where its ciphertext does.

Two things tie a record to its stream. The *binding* is the associated data of every record:

    BLAKE2b-256, personalised "bourn-stream", of basin NUL stream NUL id (u64, big endian)

The id is never used again, not even for a stream of the same name. And no record is encrypted
under the customer's key itself, but under a key of the stream alone:

    BLAKE2b-256, personalised "bourn-key", keyed with the customer's, of cipher NUL binding

so that the number of records under one key is the number of records of one stream, however many
streams a customer has. What metered sizes, positions, timestamps, the number of headers in a
batch, and commands say is not hidden. The order of records is not bound.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from bourn.layout.ciphers import AEADS, Aead
from bourn.layout.codec import Cut, metered_sizes, sequenced_size_bound
from bourn.layout.records import (
    COMMAND,
    ENCRYPTED,
    ENVELOPE,
    Buffer,
    RecordBatch,
    RecordFormatError,
    U64Array,
)
from bourn.limits import HEADER_METERED_BYTES_MIN, SEALED_RECORD_OVERHEAD_BYTES_MAX
from bourn.model.config import Cipher

RandomBytes = Callable[[int], bytes]

_TYPE_MASK: Final = 0b111
_WIDTH_SHIFT: Final = 3
_WIDTH_MASK: Final = 0b11
_WIDE: Final = 1 << 5
# By the magic byte of a plaintext record, that of the encrypted one: type 3, and never wide.
_SEALED_MAGICS: Final = [bytes((magic & 0b11000 | ENCRYPTED,)) for magic in range(64)]
_SEALED_MAGIC_VALUES: Final = frozenset(width << _WIDTH_SHIFT | ENCRYPTED for width in (1, 2, 3))
_NARROW: Final = struct.Struct(">H")
_WIDER: Final = struct.Struct(">I")
_KEY_PERSON: Final = b"bourn-key"
_BINDING_PERSON: Final = b"bourn-stream"

assert all(
    5 + aead.nonce_bytes + aead.tag_bytes <= SEALED_RECORD_OVERHEAD_BYTES_MAX
    for aead in AEADS.values()
)


class SealedStream(msgspec.Struct, frozen=True):
    """What encryption must know of a stream."""

    cipher: Cipher
    basin: str
    name: str
    id: int

    @property
    def binding(self) -> bytes:
        """The associated data of all its records."""
        names = f"{self.basin}\0{self.name}\0".encode()
        known = names + self.id.to_bytes(8, "big")
        return hashlib.blake2b(known, digest_size=32, person=_BINDING_PERSON).digest()

    def aead(self, customer_key: bytes) -> Aead:
        """The cipher, under this stream's key."""
        derived = hashlib.blake2b(
            f"{self.cipher}\0".encode() + self.binding,
            digest_size=32,
            key=customer_key,
            person=_KEY_PERSON,
        )
        return AEADS[self.cipher](derived.digest())


def seal(
    batch: RecordBatch, stream: SealedStream, aead: Aead, random_bytes: RandomBytes
) -> RecordBatch:
    """Return the batch for that stream alone, its envelopes encrypted; all else is the same."""
    count, data = batch.count, batch.payload
    area = 8 * count
    columns: list[int] = np.frombuffer(data, "<u4", 2 * count).tolist()
    binding = stream.binding
    size = aead.nonce_bytes
    nonces = random_bytes(size * (count - len(batch.commands)))
    encrypt, algorithm = aead.encrypt, bytes((aead.algorithm,))
    parts: list[bytes | bytearray] = []
    ends: list[int] = []
    starts: list[int] = []
    at, to, used = area, 0, 0
    for index in range(count):
        end = area + columns[index]
        magic = data[at]
        if magic & _TYPE_MASK == COMMAND:
            parts.append(data[at:end])
            starts.append(columns[count + index])
            to += end - at
        else:
            metered_end = at + 1 + (magic >> _WIDTH_SHIFT & _WIDTH_MASK)
            nonce = nonces[used : used + size]
            used += size
            prefix = _SEALED_MAGICS[magic] + data[at + 1 : metered_end] + algorithm + nonce
            sealed = encrypt(nonce, data[at:end], binding)
            parts += (prefix, sealed)
            starts.append(len(prefix))
            to += len(prefix) + len(sealed)
        ends.append(to)
        at = end
    packed = struct.pack(f"<{2 * count}I", *ends, *starts)
    return msgspec.structs.replace(batch, payload=b"".join((packed, *parts)), sealed_for=stream.id)


def unseal(payload: Buffer, count: int, start: int, stop: int, aead: Aead, binding: bytes) -> bytes:
    """Return the payload of a batch of the records [start, stop) alone, decrypted.

    Raises DecryptionFailed for the first record that the key does not open, and RecordFormatError
    for what is no record. What was not encrypted is taken over as it is.
    """
    area = 8 * count
    if not 0 <= start < stop <= count or len(payload) < area:
        raise RecordFormatError("the columns do not fit the records")
    data = bytes(payload)  # slices of which are taken more quickly, and by every library
    columns: list[int] = np.frombuffer(data, "<u4", 2 * count).tolist()
    parts: list[bytes | bytearray] = []
    ends: list[int] = []
    starts: list[int] = []
    at = area + columns[start - 1] if start else area
    to = 0
    for index in range(start, stop):
        end = area + columns[index]
        if not area <= at < end <= len(data):
            raise RecordFormatError(f"record {index}: the columns do not fit the records")
        if data[at] & _TYPE_MASK == ENCRYPTED:
            try:
                text, body_start = _open(data, at, end, aead, binding)
            except RecordFormatError as error:
                raise RecordFormatError(f"record {index}: {error.message}") from None
            parts.append(text)
            starts.append(body_start)
            to += len(text)
        else:
            parts.append(data[at:end])
            starts.append(columns[count + index])
            to += end - at
        ends.append(to)
        at = end
    packed = struct.pack(f"<{2 * len(ends)}I", *ends, *starts)
    return b"".join((packed, *parts))


def _open(
    data: bytes, at: int, end: int, aead: Aead, binding: bytes
) -> tuple[bytes | bytearray, int]:
    """Return the stored record inside of an encrypted one, and where its body starts."""
    magic = data[at]
    if magic not in _SEALED_MAGIC_VALUES:
        raise RecordFormatError("unknown magic byte")
    metered_end = at + 1 + (magic >> _WIDTH_SHIFT)
    text_at = metered_end + 1 + aead.nonce_bytes
    if end - text_at < aead.tag_bytes:
        raise RecordFormatError("record is cut short")
    if data[metered_end] != aead.algorithm:
        raise RecordFormatError("it is encrypted by another cipher than its stream's")
    text = aead.decrypt(data[metered_end + 1 : text_at], data[text_at:end], binding)
    # Only a holder of the key can have written another one, and our own writers never do.
    count_at = metered_end - at
    if (
        len(text) < count_at + _NARROW.size
        or text[0] & ~_WIDE != magic - ENCRYPTED + ENVELOPE
        or text[1:count_at] != data[at + 1 : metered_end]
    ):
        raise RecordFormatError("another record is inside")
    if not (text[count_at] or text[count_at + 1] or text[0] & _WIDE):
        return text, count_at + _NARROW.size
    return text, _body_start(text)


def _body_start(text: bytes | bytearray) -> int:
    """Return where the body of an envelope starts; who encodes it checks the rest."""
    number = _WIDER if text[0] & _WIDE else _NARROW
    width, unpack = number.size, number.unpack_from
    at = 1 + (text[0] >> _WIDTH_SHIFT & _WIDTH_MASK)
    try:
        (headers,) = unpack(text, at)
        at += width
        for _ in range(2 * headers):
            at += width + unpack(text, at)[0]
    except struct.error:
        raise RecordFormatError("record is cut short") from None
    if at > len(text):
        raise RecordFormatError("record is cut short")
    return at


def cut_sealed(
    payload: Buffer,
    count: int,
    timestamps: int | U64Array,
    start: int,
    *,
    records_max: int,
    metered_max: int,
    until: int | None,
    encoded_max: int,
    header_count: int,
) -> Cut:
    """Return how many records from `start` on keep every limit, as `codec.cut`, without the key.

    How long records get when they are encoded is only bounded: by what they weigh, and by the
    number of headers in the whole batch.
    """
    stop = min(count, start + max(0, records_max))
    if until is not None:
        if isinstance(timestamps, int):
            stop = stop if timestamps < until else start
        else:
            stop = min(stop, int(np.searchsorted(timestamps, np.uint64(until), side="left")))
    metered = 0
    sizes: list[int] = metered_sizes(payload, count)[start : max(start, stop)].tolist()
    for taken, size in enumerate(sizes):
        weight = metered + size
        headers = min(header_count, weight // HEADER_METERED_BYTES_MIN)
        if weight > metered_max or sequenced_size_bound(weight, taken + 1, headers) > encoded_max:
            return Cut(start + taken, metered)
        metered = weight
    return Cut(max(start, stop), metered)
