import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import Damaged
from bourn.layout.claim import Claim, decode_claim, encode_claim
from bourn.layout.commit import (
    Commit,
    CommitHeader,
    decode_commit,
    decode_header,
    decode_index,
    encode_commit,
    encode_tombstone,
)
from bourn.layout.entry import NEVER_S, Entry, decode_entry, decode_run, share_payloads
from bourn.limits import U64_MAX

GOLDEN = Path(__file__).parent.parent / "golden"
KEY = "wal/000000000003/000000000007"
HEADER = CommitHeader(3, 7, 1_700_000_000_000, 5, bytes(range(16)))

u64 = st.integers(0, U64_MAX)
u32 = st.integers(0, 2**32 - 1)


@st.composite
def entries(draw, stream_id: int, count_max: int = 4) -> Entry:
    count = draw(st.integers(1, count_max))
    if draw(st.booleans()):
        timestamps = draw(u64)
        last = timestamps
    else:
        stamps = sorted(draw(st.lists(u64, min_size=count, max_size=count)))
        timestamps = np.array(stamps, dtype=np.uint64)
        last = stamps[-1]
    payload = draw(st.binary(min_size=8 * count, max_size=8 * count + 40))
    first = draw(st.integers(0, U64_MAX - count))
    return Entry(
        stream_id,
        first,
        count,
        draw(u32),
        draw(u32),
        draw(st.integers(0, 2**42)),
        draw(u64),
        last,
        timestamps,
        payload,
        draw(st.booleans()),
    )


@st.composite
def commits(draw):
    changes = draw(st.lists(st.binary(max_size=30), max_size=3))
    ids = sorted(draw(st.sets(u64, max_size=4)))
    groups = [(i, draw(st.lists(entries(i), min_size=1, max_size=3))) for i in ids]
    return changes, groups


def plain(entry: Entry) -> tuple[object, ...]:
    stamps = entry.timestamps
    return (
        entry.stream_id,
        entry.first_seq_num,
        entry.count,
        entry.metered_bytes,
        entry.header_count,
        entry.arrival_ms,
        entry.retention_secs,
        entry.last_timestamp,
        stamps if isinstance(stamps, int) else tuple(int(t) for t in stamps),
        bytes(entry.payload),
        entry.has_commands,
    )


def example() -> tuple[list[bytes], list[tuple[int, list[Entry]]]]:
    one = Entry(1, 0, 1, 9, 0, 1_700_000_000_000, 60, 5, 5, bytes(8) + b"x", has_commands=False)
    stamps = np.array([6, U64_MAX], dtype=np.uint64)
    two = Entry(1, 1, 2, 20, 1, 1_700_000_000_001, 0, U64_MAX, stamps, bytes(16) + b"yz", True)
    other = Entry(2**64 - 1, 8, 1, 8, 0, 1_700_000_000_002, 7, 0, 0, bytes(8), False)
    return [b"change one", b""], [(1, [one, two]), (2**64 - 1, [other])]


@given(commits())
def test_a_commit_comes_back_as_it_was(contents):
    changes, groups = contents
    data, locations = encode_commit(HEADER, changes, groups)
    commit = decode_commit(data, KEY)
    assert commit.header == HEADER
    assert list(commit.changes) == changes
    assert [location for location, _ in commit.runs] == locations
    for (stream_id, written), (location, read) in zip(groups, commit.runs, strict=True):
        assert location.stream_id == stream_id
        assert [plain(e) for e in read] == [plain(e) for e in written]


@given(commits())
def test_a_run_can_be_fetched_alone(contents):
    changes, groups = contents
    data, locations = encode_commit(HEADER, changes, groups)
    for (_, written), location in zip(groups, locations, strict=True):
        part = data[location.offset : location.offset + location.length]
        assert [plain(e) for e in decode_run(part, KEY)] == [plain(e) for e in written]


@given(commits())
def test_batches_can_be_views_of_the_object_that_they_were_encoded_into(contents):
    changes, groups = contents
    before = [[plain(e) for e in written] for _, written in groups]
    data, locations = encode_commit(HEADER, changes, groups)
    for (_, written), location in zip(groups, locations, strict=True):
        share_payloads(data, location.offset, written)
        assert all(entry.payload.obj is data for entry in written)
    assert [[plain(e) for e in written] for _, written in groups] == before
    assert encode_commit(HEADER, changes, groups) == (data, locations), "again, out of itself"


@given(commits())
def test_the_index_tells_where_every_entry_lies(contents):
    changes, groups = contents
    data, _ = encode_commit(HEADER, changes, groups)
    _, index = decode_index(data, KEY)
    flat = [entry for _, group in groups for entry in group]
    assert index.kinds.tolist() == [2] * len(changes) + [1] * len(flat)
    for i, entry in enumerate(flat, len(changes)):
        _, found = decode_entry(memoryview(data), int(index.offsets[i]), KEY)
        assert isinstance(found, Entry)
        assert plain(found) == plain(entry)
        assert int(index.stream_ids[i]) == entry.stream_id
        assert int(index.first_seq_nums[i]) == entry.first_seq_num
        assert int(index.first_timestamps[i]) == entry.first_timestamp
        assert int(index.last_timestamps[i]) == entry.last_timestamp
        assert int(index.counts[i]) == entry.count


@given(commits(), st.data())
def test_any_flipped_bit_is_detected_and_the_object_named(contents, data):
    encoded, _ = encode_commit(HEADER, *contents)
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    altered = bytearray(encoded)
    altered[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(Damaged, match=KEY):
        decode_commit(bytes(altered), KEY)


def test_every_single_flipped_bit_of_a_small_commit_is_detected():
    encoded, _ = encode_commit(HEADER, *example())
    for bit in range(8 * len(encoded)):
        altered = bytearray(encoded)
        altered[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(Damaged):
            decode_commit(bytes(altered), KEY)


@given(commits(), st.data())
def test_any_truncation_is_detected(contents, data):
    encoded, _ = encode_commit(HEADER, *contents)
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Damaged, match=KEY):
        decode_commit(encoded[:length], KEY)


@given(st.binary(min_size=1, max_size=400))
def test_random_bytes_raise_only_damaged(data):
    for decode in (decode_commit, decode_index, decode_header, decode_run, decode_claim):
        with pytest.raises(Damaged, match=KEY):
            decode(data, KEY)


@given(st.binary(max_size=200), st.data())
def test_random_bytes_behind_a_right_header_and_footer_raise_only_damaged(data, draw):
    encoded, _ = encode_commit(HEADER, *example())
    cut = draw.draw(st.integers(0, len(encoded)))
    with pytest.raises(Damaged):
        decode_commit(encoded[:cut] + data + encoded[cut:] + b"!", KEY)


def test_a_tombstone_is_told_from_a_commit():
    commit = decode_commit(encode_tombstone(HEADER), KEY)
    assert commit == Commit(HEADER._replace(is_tombstone=True), (), ())
    assert not decode_commit(encode_commit(HEADER, [], [])[0], KEY).header.is_tombstone


def test_a_newer_version_is_refused_by_name():
    data = bytearray(encode_tombstone(HEADER))
    struct.pack_into("<H", data, 8, 2)
    with pytest.raises(Damaged, match="version 2; this Bourn reads version 1"):
        decode_header(bytes(data), KEY)


def test_expiry_is_rounded_up_and_infinite_retention_never_expires():
    entry = Entry(1, 0, 1, 8, 0, 1_001, 60, 0, 0, bytes(8), has_commands=False)
    assert entry.expires_s == 62
    assert not entry.is_expired(61_000)
    assert entry.is_expired(61_001)
    forever = Entry(1, 0, 1, 8, 0, 1_001, 0, 0, 0, bytes(8), has_commands=False)
    assert forever.expires_s == NEVER_S
    assert not forever.is_expired(2**60)
    far = Entry(1, 0, 1, 8, 0, 1_001, U64_MAX, 0, 0, bytes(8), has_commands=False)
    assert far.expires_s == NEVER_S


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("commit_v1.bin", encode_commit(HEADER, *example())[0]),
        ("tombstone_v1.bin", encode_tombstone(HEADER)),
        ("claim_v1.json", encode_claim(Claim(7, "ab" * 16, 1_700_000_000_000, 8))),
    ],
)
def test_the_format_is_what_the_golden_file_says(name, data):
    # A golden file is written once, when a version is born: (GOLDEN / name).write_bytes(data)
    assert (GOLDEN / name).read_bytes() == data


def test_the_golden_commit_still_decodes():
    commit = decode_commit((GOLDEN / "commit_v1.bin").read_bytes(), KEY)
    changes, groups = example()
    assert list(commit.changes) == changes
    assert [[plain(e) for e in run] for _, run in commit.runs] == [
        [plain(e) for e in group] for _, group in groups
    ]


def test_a_claim_comes_back_as_it_was():
    claim = Claim(7, "ab" * 16, 1_700_000_000_000, 8)
    assert decode_claim(encode_claim(claim), "epoch/000000000007") == claim
