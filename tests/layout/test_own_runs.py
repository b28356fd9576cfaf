"""Runs of objects that this process has made, or has read where nobody waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import Damaged
from bourn.layout.entry import OWN_BYTES_MAX, Entry, decode_run, is_sound, own_run
from bourn.layout.records import plain_payload
from bourn.model.record import Record
from tests.layout.run_histories import NOW_MS, History, commit_of, entry_of, whole_histories


@given(whole_histories)
def test_a_run_of_ones_own_is_what_was_fetched_would_be(history: History) -> None:
    for row, run in zip(history.table, history.runs, strict=True):
        data = history.objects[row.commit - history.first_commit]
        own = own_run(data, row.offset, row.length)
        fetched = decode_run(data[row.offset : row.offset + row.length], "key")
        assert [told(entry) for entry in own] == [told(entry) for entry in fetched]
        assert [told(entry)[:-1] for entry in own] == [told(entry)[:-1] for entry in run or ()]
        for entry in own:
            if isinstance(entry.payload, memoryview):
                assert entry.payload.obj is data, "nothing is held twice"


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_payload_is_a_view_from_the_same_size_on_as_of_what_was_fetched(off: int) -> None:
    body = b"x" * (OWN_BYTES_MAX - len(plain_payload(b"x" * 4000)) + 4000 + off)
    entry = entry_of(1, 0, [Record(body)], [5], (NOW_MS, 0))
    data, (offset, length) = commit_of(0, [(1, [entry])])
    (own,) = own_run(data, offset, length)
    (fetched,) = decode_run(data[offset : offset + length], "key")
    assert len(own.payload) == OWN_BYTES_MAX + off
    assert told(own) == told(fetched)


def told(entry: Entry) -> tuple[object, ...]:
    stamps = entry.timestamps
    return (
        *(entry.stream_id, entry.first_seq_num, entry.count, entry.metered_bytes),
        *(entry.header_count, entry.arrival_ms, entry.retention_secs, entry.last_timestamp),
        stamps if isinstance(stamps, int) else (stamps.dtype, *stamps.tolist()),
        (entry.has_commands, bytes(entry.payload)),
        type(entry.payload),
    )


@given(whole_histories, st.data())
def test_a_run_is_sound_as_it_was_written_and_never_once_a_bit_of_it_has_changed(
    history: History, data: st.DataObject
) -> None:
    row = data.draw(st.sampled_from(list(history.table)))
    written = history.objects[row.commit - history.first_commit]
    run = written[row.offset : row.offset + row.length]
    assert is_sound(run)
    assert is_sound(memoryview(run))
    bit = data.draw(st.integers(0, 8 * len(run) - 1) | st.integers(0, 8 * 80 - 1))
    changed = bytearray(run)
    changed[bit // 8] ^= 1 << bit % 8
    assert not is_sound(bytes(changed))
    left = data.draw(st.integers(1, len(run) - 1))
    ends = [sum(sizes) for sizes in _leading(decode_run(run, "key"))]
    assert is_sound(run[:left]) == (left in ends)


def _leading(entries: list[Entry]) -> list[list[int]]:
    sizes = [
        72 + (8 if isinstance(one.timestamps, int) else 8 * one.count) + len(one.payload)
        for one in entries
    ]
    return [sizes[:many] for many in range(len(sizes))]


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_no_sound_run(data: bytes) -> None:
    assert not is_sound(data)
    with pytest.raises(Damaged):
        decode_run(data, "key")
