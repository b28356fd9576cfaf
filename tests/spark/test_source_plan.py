"""Offsets, ranges and shares: plain values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.limits import SOURCE_PARTITION_RECORDS, SOURCE_TASKS
from bourn.spark.source_plan import (
    Offset,
    Range,
    TaskRanges,
    offset_of,
    ranges_between,
    share,
    split,
    tasks_of,
)

names = st.sampled_from("abcdef")
counts = st.dictionaries(names, st.integers(0, 50))


@given(counts, counts, counts)
def test_an_offset_survives_its_json(offsets, begun, created):
    offset = Offset(offsets, {name: f"t{n}" for name, n in created.items()}, begun)
    text = json.dumps(offset.to_json())
    assert offset_of(json.loads(text)) == offset


@pytest.mark.parametrize("text", ["{}", '{"offsets": 1}', '{"offsets": {"a": "x"}}'])
def test_what_is_no_offset_is_refused(text):
    with pytest.raises(ValueError, match="no offset of this source"):
        offset_of(json.loads(text))


def test_ranges_lie_between_two_offsets():
    start = Offset({"a": 3, "b": 5, "gone": 9}, {"a": "1", "b": "1"})
    end = Offset({"a": 7, "b": 5, "new": 4, "zero": 0}, {"a": "1", "b": "1"}, {"new": 2})
    assert ranges_between(start, end) == [Range("a", 3, 7), Range("new", 2, 4)]


def test_a_stream_that_was_made_anew_is_read_from_its_beginning():
    start, end = Offset({"a": 9}, {"a": "1"}), Offset({"a": 4}, {"a": "2"}, {"a": 1})
    assert ranges_between(start, end) == [Range("a", 1, 4)]
    untold = Offset({"a": 12}, {"a": "1"})
    assert ranges_between(Offset({"a": 9}), untold) == [Range("a", 9, 12)]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 2 * SOURCE_PARTITION_RECORDS)), max_size=4
    ),
    st.integers(0, 20),
)
def test_parts_are_the_ranges_again_and_as_many_as_are_asked_for(sizes, wanted):
    ranges = [
        Range(f"s{number}", start, start + size) for number, (start, size) in enumerate(sizes)
    ]
    parts = split(ranges, wanted)
    joined: list[Range] = []
    for part in parts:
        assert part.records > 0
        if joined and joined[-1].stream == part.stream:
            assert joined[-1].end == part.start
            joined[-1] = joined[-1]._replace(end=part.end)
        else:
            joined.append(part)
    assert joined == ranges
    records = sum(found.records for found in ranges)
    assert len(parts) >= min(wanted, records)
    if not wanted:
        assert all(part.records <= SOURCE_PARTITION_RECORDS for part in parts)


@given(
    st.lists(st.integers(1, 3 * SOURCE_PARTITION_RECORDS), min_size=1, max_size=600),
    st.sampled_from((0, 1, 150, 250, 700)),
)
def test_very_many_ranges_are_packed_into_tasks_in_their_order(sizes, wanted):
    ranges = [Range(f"s{number:03}", 5, 5 + size) for number, size in enumerate(sizes)]
    tasks = tasks_of(ranges, wanted)
    parts = split(ranges, wanted)
    held = [task.ranges for task in tasks if isinstance(task, TaskRanges)]
    assert len(held) == len(tasks)
    assert [part for own in held for part in own] == parts, "in order, and each once"
    assert all(held)
    assert len(tasks) == min(len(parts), max(wanted, SOURCE_TASKS))


def test_ranges_are_packed_by_their_size():
    small = [Range(f"a{number:03}", 0, 1) for number in range(400)]
    large = [Range(f"b{number}", 0, SOURCE_PARTITION_RECORDS) for number in range(4)]
    held = [task.ranges for task in tasks_of([*small, *large], 0) if isinstance(task, TaskRanges)]
    assert [len(own) for own in held[-4:]] == [1, 1, 1, 1], "none waits behind another"


@given(counts, st.integers(0, 120))
def test_a_limit_is_used_up_and_shared_fairly(waiting, limit):
    shares = share(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= shares[name] <= waiting[name] for name in waiting)
    unsated = [shares[name] for name in waiting if shares[name] < waiting[name]]
    if unsated:
        assert max(shares.values(), default=0) <= min(unsated) + 1
