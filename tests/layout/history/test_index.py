"""The sidecar: what it finds, and that damage is named."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from bourn.errors import Damaged, NewerFormat
from bourn.layout.entry import Entry
from bourn.layout.history.index import Block, decode_index, encode_index
from bourn.layout.history.rows import table_of
from bourn.layout.history.segment import encode_segment
from bourn.limits import U64_MAX
from tests.layout.history.samples import GOLDEN, NAMES, golden_arrays, histories, stored_in
from tests.layout.record_samples import u64s

KEY = "history/_index/some.idx"


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<Q", xxh3_64_intdigest(body))


def test_the_golden_index_is_read_and_written_as_ever() -> None:
    data = GOLDEN.read_bytes()
    assert encode_index(*golden_arrays()) == data
    index = decode_index(data, KEY)
    assert [index.block(place) for place in range(len(index))] == [
        Block(7, 0, 5, 1, 1, 0, 0, 6, 48, 2**32 - 1),
        Block(U64_MAX, 2**63, 2**63 + 90, 2, 3, 0, 6, 4, 4096, 1_700_000_000),
        Block(U64_MAX, U64_MAX - 2, U64_MAX, 3, U64_MAX, 1, 0, 3, 1 << 20, 0),
    ]
    assert [index.row_group_range(index.block(place)) for place in range(3)] == [
        (4, 12),
        (4, 12),
        (1000, 24),
    ]
    assert index.row_group(1) == (1000, 24, 1, 3, 3, list(range(13, 25)))


@settings(deadline=None)
@given(histories(), u64s, st.data())
def test_a_block_is_found_by_position_and_by_time(
    entries: list[Entry], wanted: int, data: st.DataObject
) -> None:
    index = decode_index(encode_segment(table_of(entries, NAMES)).index, KEY)
    ids = sorted({entry.stream_id for entry in entries})
    stream_id = data.draw(st.sampled_from([*ids, 0, 1, U64_MAX]))
    blocks = [
        block for place in range(len(index)) if (block := index.block(place)).stream_id == stream_id
    ]
    assert index.blocks_of(stream_id) == blocks
    by_position = next((block for block in blocks if block.last_seq_num >= wanted), None)
    assert index.find(stream_id, wanted) == by_position
    by_time = next((block for block in blocks if block.last_timestamp >= wanted), None)
    assert index.find_timestamp(stream_id, wanted) == by_time
    assert sum(block.count for block in blocks) == sum(
        record.stream_id == stream_id for record in stored_in(entries)
    )


def test_a_block_is_found_among_those_of_a_stream() -> None:
    index = decode_index(GOLDEN.read_bytes(), KEY)
    places = [index.block(place) for place in range(3)]
    assert index.find(U64_MAX, 0) == places[1]
    assert index.find(U64_MAX, 2**63 + 90) == places[1]
    assert index.find(U64_MAX, 2**63 + 91) == places[2]
    assert index.find(7, 5) == places[0]
    assert index.find(7, 6) is None
    assert index.find(8, 0) is None
    assert index.find_timestamp(U64_MAX, 3) == places[1]
    assert index.find_timestamp(U64_MAX, 4) == places[2]
    assert index.find_timestamp(7, 2) is None


@given(st.integers(0, 8 * len(GOLDEN.read_bytes()) - 1))
def test_every_flipped_bit_is_damage(bit: int) -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged, match=f"{KEY} is damaged: ") as caught:
        decode_index(bytes(data), KEY)
    assert caught.value.key == KEY


def test_every_part_and_every_addition_is_damage() -> None:
    data = GOLDEN.read_bytes()
    for cut in [*(data[:size] for size in range(len(data))), data + b"\0", data[1:]]:
        with pytest.raises(Damaged):
            decode_index(cut, KEY)


@given(st.binary(max_size=300))
def test_any_other_bytes_are_damage(data: bytes) -> None:
    for body in (data, sealed(data), sealed(GOLDEN.read_bytes()[:24] + data)):
        with pytest.raises(Damaged):
            decode_index(body, KEY)


@given(st.data())
def test_false_values_under_a_good_checksum_never_point_outside(data: st.DataObject) -> None:
    body = bytearray(GOLDEN.read_bytes()[:-8])
    at = data.draw(st.integers(24, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    try:
        index = decode_index(sealed(bytes(body)), KEY)
    except Damaged:
        return
    for place in range(len(index)):
        block = index.block(place)
        assert block.first_row + block.count <= index.row_group(block.row_group).rows
        assert index.find(block.stream_id, block.last_seq_num) == block


FAULTS: dict[str, dict[str, list[int]]] = {
    "streams that fall": {"stream_id": [8, 7, 7]},
    "blocks that overlap": {"first_seq_num": [0, 2**63, 2**63 + 90]},
    "a block that ends before it starts": {"last_seq_num": [5, 2**63 - 1, U64_MAX]},
    "a row group that is not there": {"row_group": [0, 0, 2]},
    "a row group without a block": {"row_group": [0, 0, 0]},
    "a block without rows": {"count": [10, 0, 3], "first_row": [0, 10, 0]},
    "rows of nobody": {"count": [6, 3, 3]},
    "rows of two": {"first_row": [0, 5, 0]},
    "more rows than there are": {"rows": [9, 3]},
    "column chunks that overlap": {"chunk_ends": [5, *range(2, 25)]},
}


@pytest.mark.parametrize("changes", FAULTS.values(), ids=FAULTS.keys())
def test_an_index_that_contradicts_itself_is_damage(changes: dict[str, list[int]]) -> None:
    groups, blocks = golden_arrays()
    for name, values in changes.items():
        (groups if name in groups else blocks)[name] = np.array(values, np.uint64)
    with pytest.raises(Damaged, match=r"out of order|do not fill"):
        decode_index(encode_index(groups, blocks), KEY)


def test_a_newer_version_is_not_called_damage() -> None:
    body = bytearray(GOLDEN.read_bytes()[:-8])
    body[8] = 2
    with pytest.raises(NewerFormat, match="version 2"):
        decode_index(sealed(bytes(body)), KEY)
    body[8] = 0
    with pytest.raises(Damaged, match="never was"):
        decode_index(sealed(bytes(body)), KEY)


def test_an_index_holds_little_more_than_its_object() -> None:
    index = decode_index(GOLDEN.read_bytes(), KEY)
    assert index.nbytes == len(GOLDEN.read_bytes())
    assert all(not array.flags.owndata for array in index._arrays.values())
