"""Encrypted batches: what they hide, what they keep, and what is refused."""

import hashlib
import struct
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.errors import DecryptionFailed
from bourn.layout.ciphers import AEADS
from bourn.layout.codec import (
    cut,
    decode_sequenced,
    encode_sequenced,
    metered_sizes,
    sequenced_size,
)
from bourn.layout.records import (
    RecordBatch,
    RecordFormatError,
    encode_records,
    stored_commands,
)
from bourn.layout.sealed import SealedStream, cut_sealed, seal, unseal
from bourn.limits import BATCH_METERED_BYTES_MAX, SEALED_RECORD_OVERHEAD_BYTES_MAX
from bourn.model.config import Cipher
from bourn.model.record import Record, fence_record, metered_bytes, trim_record
from tests.layout.record_samples import GOLDEN, GOLDEN_BATCH, records, small_records

KEY = bytes(range(32))


def fitting(items: list[Record]) -> list[Record]:
    """As many of the records as one batch may hold; the first always fits."""
    sizes = accumulate(metered_bytes(item.headers, item.body) for item in items)
    return [
        item for item, size in zip(items, sizes, strict=True) if size <= BATCH_METERED_BYTES_MAX
    ]


batches = st.lists(records, min_size=1, max_size=6).map(fitting)
small_batches = st.lists(small_records, min_size=1, max_size=9)
ciphers = st.sampled_from(Cipher)


def stream(
    cipher: Cipher = Cipher.AEGIS_256,
    basin: str = "my-basin",
    name: str = "events/é",
    id: int = 7,  # noqa: A002  as the field
) -> SealedStream:
    return SealedStream(cipher, basin, name, id)


class Counted:
    """Random bytes that repeat from run to run, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, size: int) -> bytes:
        self.asked.append(size)
        return hashlib.shake_128(b"%d" % len(self.asked)).digest(size)


def sealed(batch: RecordBatch, target: SealedStream, key: bytes = KEY) -> RecordBatch:
    return seal(batch, target, target.aead(key), Counted())


def opened(
    batch: RecordBatch, target: SealedStream, start: int, stop: int, key: bytes = KEY
) -> bytes:
    aead = target.aead(key)
    return unseal(batch.payload, batch.count, start, stop, aead, target.binding)


@settings(deadline=None)
@given(batches, ciphers)
def test_what_is_sealed_opens_as_it_was(items: list[Record], cipher: Cipher) -> None:
    batch = encode_records(items)
    target = stream(cipher)
    assert opened(sealed(batch, target), target, 0, batch.count) == batch.payload


@settings(deadline=None)
@given(batches, ciphers)
def test_a_sealed_batch_weighs_what_it_weighed_and_keeps_its_commands(
    items: list[Record], cipher: Cipher
) -> None:
    batch = encode_records(items)
    found = sealed(batch, stream(cipher))
    assert found.sealed_for == 7
    assert batch.sealed_for == 0
    for name in ("count", "metered_bytes", "header_count", "timestamps", "missing", "commands"):
        assert getattr(found, name) is getattr(batch, name) or (
            getattr(found, name) == getattr(batch, name)
        )
    assert (
        metered_sizes(found.payload, found.count).tolist()
        == metered_sizes(batch.payload, batch.count).tolist()
    )
    assert stored_commands(found.payload, found.count) == batch.commands
    assert stored_commands(batch.payload, batch.count) == batch.commands
    envelopes = batch.count - len(batch.commands)
    growth = len(found.payload) - len(batch.payload)
    assert growth <= envelopes * SEALED_RECORD_OVERHEAD_BYTES_MAX
    aead = AEADS[cipher]
    assert growth >= envelopes * (3 + aead.nonce_bytes + aead.tag_bytes)


@settings(deadline=None)
@given(small_batches, ciphers, st.data())
def test_any_part_of_a_batch_opens_alone(
    items: list[Record], cipher: Cipher, data: st.DataObject
) -> None:
    batch = encode_records(items)
    start = data.draw(st.integers(0, batch.count - 1))
    stop = data.draw(st.integers(start + 1, batch.count))
    target = stream(cipher)
    part = opened(sealed(batch, target), target, start, stop)
    count = stop - start
    assert decode_sequenced(part, count, 100 + start, 5, 0, count) == decode_sequenced(
        batch.payload, batch.count, 100, 5, start, stop
    )
    assert encode_sequenced(part, count, 100 + start, 5, 0, count) == encode_sequenced(
        batch.payload, batch.count, 100, 5, start, stop
    )


@pytest.mark.parametrize("cipher", Cipher)
def test_nothing_of_an_envelope_is_left_to_read(cipher: Cipher) -> None:
    body, name, value = b"the body of it", b"the name of it", b"the value of it"
    found = sealed(
        encode_records([Record(body, ((name, value),)), fence_record("token")]), stream(cipher)
    )
    for secret in (body, name, value):
        assert secret[:8] not in found.payload
    assert b"token" in found.payload, "the server must understand commands"


@pytest.mark.parametrize("cipher", Cipher)
def test_every_record_has_a_nonce_of_its_own(cipher: Cipher) -> None:
    batch = encode_records([Record(b"same")] * 3 + [trim_record(0)] + [Record(b"same")] * 2)
    target, random_bytes = stream(cipher), Counted()
    found = seal(batch, target, target.aead(KEY), random_bytes)
    size = AEADS[cipher].nonce_bytes
    assert random_bytes.asked == [5 * size]
    drawn = Counted()(5 * size)
    nonces = {drawn[at : at + size] for at in range(0, 5 * size, size)}
    assert len(nonces) == 5
    assert all(found.payload.count(nonce) == 1 for nonce in nonces)


@pytest.mark.parametrize("cipher", Cipher)
@pytest.mark.parametrize(
    "other",
    [
        {"id": 8},
        {"basin": "my-basin2"},
        {"name": "events"},
        {"basin": "my", "name": "basin\0events/é"},
    ],
)
def test_a_record_opens_in_its_own_stream_alone(cipher: Cipher, other: dict[str, Any]) -> None:
    mine, theirs = stream(cipher), stream(cipher, **other)
    found = sealed(encode_records([Record(b"x")]), mine)
    with pytest.raises(DecryptionFailed):
        opened(found, theirs, 0, 1)
    for aead, binding in (
        (mine.aead(KEY), theirs.binding),
        (theirs.aead(KEY), mine.binding),
    ):
        with pytest.raises(DecryptionFailed):
            unseal(found.payload, 1, 0, 1, aead, binding)


def test_a_record_of_another_cipher_than_the_streams_is_no_record() -> None:
    found = sealed(encode_records([Record(b"x" * 99)]), stream(Cipher.AEGIS_256))
    with pytest.raises(RecordFormatError, match="record 0: it is encrypted by another cipher"):
        opened(found, stream(Cipher.AES_256_GCM), 0, 1)


@settings(deadline=None)
@given(small_batches, ciphers)
def test_another_key_opens_batches_of_commands_alone(items: list[Record], cipher: Cipher) -> None:
    batch = encode_records(items)
    target = stream(cipher)
    found = sealed(batch, target)
    if len(batch.commands) == batch.count:
        assert opened(found, target, 0, batch.count, bytes(32)) == batch.payload
        assert found.payload == batch.payload
    else:
        with pytest.raises(DecryptionFailed, match="record decryption failed"):
            opened(found, target, 0, batch.count, bytes(32))


def test_streams_have_keys_of_their_own_and_none_is_the_customers() -> None:
    text, nonce = b"text", bytes(32)
    streams = [stream(), stream(id=8), stream(name="other"), stream(basin="other-basin")]
    found = {bytes(one.aead(KEY).encrypt(nonce, text, b"")) for one in streams}
    found.add(bytes(AEADS[Cipher.AEGIS_256](KEY).encrypt(nonce, text, b"")))
    assert len(found) == 5


@settings(deadline=None, max_examples=300)
@given(
    st.lists(small_records, min_size=1, max_size=4),
    ciphers,
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_altered_bytes_are_refused_or_are_the_plain_parts(
    items: list[Record], cipher: Cipher, changes: list[tuple[int, int]], cut_by: int
) -> None:
    batch = encode_records(items)
    target = stream(cipher)
    data = bytearray(sealed(batch, target).payload)
    for at, change in changes:
        data[at % len(data)] ^= change
    payload = bytes(data[: len(data) - cut_by % len(data)] if cut_by % 2 else data)
    try:
        found = unseal(payload, batch.count, 0, batch.count, target.aead(KEY), target.binding)
        records_found = decode_sequenced(found, batch.count, 0, 0, 0, batch.count)
    except (RecordFormatError, DecryptionFailed):
        return
    plain = decode_sequenced(batch.payload, batch.count, 0, 0, 0, batch.count)
    sealed_ones = {(r.headers, r.body) for r in plain if r.headers[:1] != ((b"", b"fence"),)}
    for record in records_found:  # columns may have moved what is plaintext, never what is not
        if not record.headers or record.headers[0][0]:
            assert (record.headers, record.body) in sealed_ones or bytes(record.body) in payload


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.integers(1, 5), ciphers)
def test_any_bytes_are_refused_or_opened(data: bytes, count: int, cipher: Cipher) -> None:
    target = stream(cipher)
    for call in (
        lambda: unseal(data, count, 0, count, target.aead(KEY), target.binding),
        lambda: stored_commands(data, count),
    ):
        with suppress(RecordFormatError, DecryptionFailed):
            call()


@settings(deadline=None)
@given(st.binary(max_size=40), ciphers)
def test_what_a_holder_of_the_key_has_forged_is_refused_or_harmless(
    text: bytes, cipher: Cipher
) -> None:
    target = stream(cipher)
    aead = target.aead(KEY)
    nonce = bytes(aead.nonce_bytes)
    prefix = bytes((0x0B, 12, aead.algorithm))
    record = prefix + nonce + aead.encrypt(nonce, text, target.binding)
    payload = struct.pack("<II", len(record), len(prefix) + len(nonce)) + record
    with suppress(RecordFormatError):
        found = unseal(payload, 1, 0, 1, aead, target.binding)
        assert found.endswith(text)
        decode_sequenced(found, 1, 0, 0, 0, 1)
        encode_sequenced(found, 1, 0, 0, 0, 1)


@pytest.mark.parametrize("size", [3, 80, 120])
def test_the_sizes_outside_and_inside_must_agree(size: int) -> None:
    found = sealed(encode_records([Record(b"x" * size)]), stream())
    payload = bytearray(found.payload)
    payload[9] ^= 1
    with pytest.raises(RecordFormatError, match="another record is inside"):
        unseal(bytes(payload), 1, 0, 1, stream().aead(KEY), stream().binding)


# Cutting


@settings(deadline=None)
@given(
    small_batches,
    ciphers,
    st.data(),
    st.integers(0, 12),
    st.integers(0, 2000),
    st.none() | st.integers(0, 6),
    st.integers(0, 3000),
)
def test_a_cut_without_the_key_keeps_every_limit_and_metered_ones_exactly(
    items: list[Record],
    cipher: Cipher,
    data: st.DataObject,
    records_max: int,
    metered_max: int,
    until: int | None,
    encoded_max: int,
) -> None:
    batch = encode_records(items)
    start = data.draw(st.integers(0, batch.count - 1))
    steps = data.draw(st.lists(st.integers(0, 2), min_size=batch.count, max_size=batch.count))
    column = np.array(list(accumulate(steps)), np.uint64)
    stamps: Any = data.draw(st.sampled_from([column, 3]))
    limits: dict[str, Any] = {
        "records_max": records_max,
        "metered_max": metered_max,
        "until": until,
    }
    payload = sealed(batch, stream(cipher)).payload
    found = cut_sealed(
        payload,
        batch.count,
        stamps,
        start,
        **limits,
        encoded_max=encoded_max,
        header_count=batch.header_count,
    )
    allowed = cut(
        batch.payload,
        batch.count,
        stamps,
        start,
        **limits,
        encoded_max=encoded_max,
        first_seq_num=2**63,
    )
    assert start <= found.stop <= allowed.stop
    sizes = metered_sizes(batch.payload, batch.count)
    assert found.metered_bytes == sizes[start : found.stop].sum()
    assert (
        sequenced_size(batch.payload, batch.count, 2**63, stamps, start, found.stop) <= encoded_max
        or found.stop == start
    )
    roomy = cut_sealed(
        payload,
        batch.count,
        stamps,
        start,
        **limits,
        encoded_max=1 << 30,
        header_count=batch.header_count,
    )
    assert roomy == cut(
        batch.payload,
        batch.count,
        stamps,
        start,
        **limits,
        encoded_max=1 << 30,
        first_seq_num=0,
    )


def test_a_cut_allows_for_as_many_headers_as_there_may_be() -> None:
    batch = encode_records([Record(b"", ((b"n", b""),) * 300)] * 9)
    payload = sealed(batch, stream()).payload
    for encoded_max in range(0, 30_000, 500):
        stop, _ = cut_sealed(
            payload,
            9,
            5,
            0,
            records_max=9,
            metered_max=1 << 20,
            until=None,
            encoded_max=encoded_max,
            header_count=batch.header_count,
        )
        assert sequenced_size(batch.payload, 9, 2**63, 5, 0, stop) <= encoded_max
    assert stop == 9


# The format for ever


def golden_text() -> str:
    """A line for each cipher: its name, the binding, the payload."""
    return "".join(
        f"{cipher} | {stream(cipher).binding.hex()} | "
        f"{sealed(encode_records(GOLDEN_BATCH), stream(cipher)).payload.hex()}\n"
        for cipher in Cipher
    )


def test_the_format_is_what_the_golden_file_says() -> None:
    text = (GOLDEN / "sealed_v1.txt").read_text()
    assert golden_text() == text
    plain = encode_records(GOLDEN_BATCH)
    for line in text.splitlines():
        name, _, payload = line.split(" | ")
        target = stream(Cipher(name))
        found = unseal(
            bytes.fromhex(payload), plain.count, 0, plain.count, target.aead(KEY), target.binding
        )
        assert found == plain.payload
