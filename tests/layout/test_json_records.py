"""Stored records as JSON: byte for byte what a writer of single records makes of them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.layout import json_records
from bourn.layout.codec import decode_sequenced
from bourn.layout.entry import Entry
from bourn.layout.json_records import Slices, encode_json_batch
from bourn.layout.kernels import compiled, json_facts, to_json
from bourn.layout.records import RecordFormatError, encode_records
from bourn.limits import BATCH_RECORDS_MAX, U64_MAX
from bourn.model.record import Record, SequencedRecord, StreamPosition, fence_record, trim_record
from bourn.wire.json import Format, encode_ending
from tests.layout import json_reference
from tests.layout.read_batches import entry_of
from tests.layout.record_samples import records, small_records, u64s

PACKAGE = Path(compiled.__file__).parent
RAW, BASE64 = Format
TAIL = StreamPosition(9, U64_MAX)
LARGE = 1 << 14  # of stored bytes, from which on the text is surveyed first

# Runs of text that begin, end and meet anywhere in the words that the kernel looks at.
pieces = st.sampled_from(
    [
        b"x" * 3, b"y" * 31, b"z" * 64, b'"', b"\\", b"\n\t\r\b\f", b"\0\x1f", b"\x7f", b"/",
        "é".encode(), "€ü".encode(), "😀".encode(), "\ufffd\u2028".encode(), b"\xc3", b"\xe2\x82",
        b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80\xbf",
    ]
)  # fmt: skip
texts = st.one_of(st.lists(pieces, max_size=12).map(b"".join), st.binary(max_size=70))


json_records.warm(lambda _: None)  # which no example should wait for


def text_of(slices: Slices, fmt: Format = RAW, tail: StreamPosition | None = None) -> bytes:
    return encode_json_batch(slices, encode_ending(tail), is_base64=fmt is BASE64)


def expected_of(slices: Slices, fmt: Format = RAW, tail: StreamPosition | None = None) -> bytes:
    found = [
        record
        for entry, start, stop in slices
        for record in decode_sequenced(
            entry.payload, entry.count, entry.first_seq_num, entry.timestamps, start, stop
        )
    ]
    return json_reference.encode_read_batch(found, tail, fmt)


def stored(items: list[Record], first: int, stamps: int | list[int]) -> Entry:
    batch = encode_records(items)
    times = stamps if isinstance(stamps, int) else np.array(stamps, np.uint64)
    return Entry(1, first, len(items), 0, 0, 0, 0, 0, times, batch.payload, False)


@st.composite
def slices_of(draw: st.DrawFn, items: st.SearchStrategy[Record]) -> Slices:
    slices = []
    for found in draw(st.lists(st.lists(items, min_size=1, max_size=4), min_size=1, max_size=3)):
        first = min(draw(u64s), U64_MAX - len(found))
        stamps = draw(st.one_of(u64s, st.lists(u64s, min_size=len(found), max_size=len(found))))
        entry = stored(found, first, stamps)
        if draw(st.booleans()):
            entry.payload = memoryview(b"odd" + entry.payload)[3:]
        start = draw(st.integers(0, len(found) - 1))
        slices.append((entry, start, draw(st.integers(start + 1, len(found)))))
    return slices


@settings(deadline=None)
@given(slices_of(small_records), st.sampled_from(Format), st.sampled_from([None, TAIL]))
def test_it_is_the_text_of_record_after_record(
    slices: Slices, fmt: Format, tail: StreamPosition | None
) -> None:
    assert text_of(slices, fmt, tail) == expected_of(slices, fmt, tail)


@settings(max_examples=60, deadline=None)
@given(slices_of(records), st.sampled_from(Format))
def test_large_and_wide_ones_too(slices: Slices, fmt: Format) -> None:
    assert text_of(slices, fmt) == expected_of(slices, fmt)


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), st.lists(st.tuples(texts, texts), max_size=2))
def test_any_bytes_become_the_text_that_others_make_of_them(
    bodies: list[bytes], headers: list[tuple[bytes, bytes]]
) -> None:
    made = [SequencedRecord(n, n, body, tuple(headers)) for n, body in enumerate(bodies)]
    for padding in ((), (SequencedRecord(len(made), 5, b"p" * LARGE),)):  # the other way too
        entry = entry_of([*made, *padding])
        for fmt in Format:
            slices = [(entry, 0, entry.count)]
            expected = json_reference.encode_read_batch([*made, *padding], None, fmt)
            assert text_of(slices, fmt) == expected


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("count", [1, 2, BATCH_RECORDS_MAX])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 250, b'"' * 99, b"\xff" * 99, bytes(100)])
def test_batches_of_every_size_fit_their_room(body: bytes, count: int, fmt: Format) -> None:
    slices = [(stored([Record(body)] * count, U64_MAX - count, U64_MAX), 0, count)]
    assert text_of(slices, fmt, TAIL) == expected_of(slices, fmt, TAIL)


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("body", [b"x" * (2**20 - 8), bytes(2**20 - 8), b"\xe2\x82" * 500_000])
def test_the_largest_records_fit_too(body: bytes, fmt: Format) -> None:
    slices = [(stored([Record(body)], 0, 0), 0, 1)]
    assert text_of(slices, fmt) == expected_of(slices, fmt)


def test_many_small_batches_are_one_text() -> None:
    items = [Record(b"%d" % n, ((b"n", b"v"),) if n % 3 else ()) for n in range(500)]
    slices = [(stored([item], n, n), 0, 1) for n, item in enumerate(items)]
    slices += [(stored(items, 500, list(range(500))), 100, 400)]
    for fmt in Format:
        assert text_of(slices, fmt, TAIL) == expected_of(slices, fmt, TAIL)


def test_commands_show_their_op() -> None:
    entry = stored([fence_record('a"b'), trim_record(7), Record()], 3, 4)
    assert text_of([(entry, 0, 3)]) == (
        b'{"records":['
        b'{"seq_num":3,"timestamp":4,"headers":[["","fence"]],"body":"a\\"b"},'
        b'{"seq_num":4,"timestamp":4,"headers":[["","trim"]],'
        b'"body":"\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0007"},'
        b'{"seq_num":5,"timestamp":4}]}'
    )
    assert b'[["","ZmVuY2U="]]' in text_of([(entry, 0, 1)], BASE64)
    assert b'[["","dHJpbQ=="]]' in text_of([(entry, 1, 2)], BASE64)


def test_nothing_is_an_empty_batch() -> None:
    assert text_of([]) == b'{"records":[]}'
    assert text_of([], BASE64, TAIL) == b'{"records":[],' + encode_ending(TAIL)[2:]
    entry = stored([Record(b"x")], 0, 0)
    assert text_of([(entry, 1, 1)]) == b'{"records":[]}'


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1)])
def test_records_that_are_not_there_are_refused(start: int, stop: int) -> None:
    entry = stored([Record(b"x")] * 2, 0, 0)
    for more in ([], [(entry, 0, 2)]):
        with pytest.raises(ValueError, match="no records"):
            text_of([(entry, start, stop), *more])


@settings(max_examples=300, deadline=None)
@given(slices_of(small_records), st.data())
def test_damaged_payloads_are_named_or_read_as_others_read_them(
    slices: Slices, data: st.DataObject
) -> None:
    entry = slices[0][0]
    payload = bytearray(entry.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    entry.payload = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    fmt = data.draw(st.sampled_from(Format))
    try:
        found = text_of(slices, fmt)
    except RecordFormatError:
        return
    assert found == expected_of(slices, fmt)


def test_the_kernels_carry_the_checksum_of_their_helpers() -> None:
    digest = hashlib.sha256()
    for name in ("json_facts.py", "json_text.py", "sequenced.py"):
        digest.update((PACKAGE / name).read_bytes())
    assert digest.hexdigest()[:16] == to_json.HELPERS_CHECKSUM, "write this into to_json.py"


def test_each_kernel_has_one_specialisation() -> None:
    said: list[str] = []
    json_records.warm(said.append)
    for name in compiled.JSON_NAMES:
        assert len(getattr(json_records.KERNELS, name).signatures) == 1
    said.clear()
    json_records.warm(said.append)
    assert not said


def test_the_words_are_where_they_are_said_to_be() -> None:
    words = json_facts.WORDS
    assert words[json_facts.FENCE_AT : json_facts.TRIM_AT] == b"fence"
    assert words[json_facts.TRIM_AT :] == b"trim"
    assert words[json_facts.BODY_AT :].startswith(b',"body":"["",')
