"""Cold streams against a sorted list."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bourn.catalog.cold import ABSENT, SIGNPOST_ROWS, ColdStreams
from bourn.layout.runs import NEVER_S, RunIndex
from bourn.layout.snapshot import StreamColumns, StreamImage
from bourn.limits import U64_MAX
from tests.layout.images import NAMES, U64, image, images, in_order


def cold_of(streams: list[StreamImage]) -> ColdStreams:
    return ColdStreams(StreamColumns.of(streams))


def all_of(cold: ColdStreams) -> list[StreamImage]:
    return [cold.image(row) for row in range(len(cold))]


@settings(deadline=None)
@given(images(), st.sampled_from([0, 1, 2, U64_MAX]), NAMES, U64)
def test_streams_are_found_by_name_and_by_id(
    streams: list[StreamImage], basin_id: int, name: str, stream_id: int
) -> None:
    cold = cold_of(streams)
    rows = in_order(streams)
    assert all_of(cold) == rows
    for row, stream in enumerate(rows):
        assert cold.find(stream.basin_id, stream.name) == row
        assert cold.find_id(stream.id) == row
        assert (cold.id_at(row), cold.name_at(row)) == (stream.id, stream.name)
        assert cold.row_at(row) == stream.row
    keys = [(stream.basin_id, stream.name) for stream in rows]
    expected = keys.index((basin_id, name)) if (basin_id, name) in keys else ABSENT
    assert cold.find(basin_id, name) == expected
    ids = [stream.id for stream in rows]
    assert cold.find_id(stream_id) == (ids.index(stream_id) if stream_id in ids else ABSENT)
    assert cold.count(basin_id) == sum(stream.basin_id == basin_id for stream in streams)


def test_many_streams_are_found_as_well_as_few() -> None:
    counts = {1: SIGNPOST_ROWS // 2, 2: 5 * SIGNPOST_ROWS, 3: 1, 4: 2 * SIGNPOST_ROWS + 1}
    keys = [(basin_id, f"{n:03d}") for basin_id, count in counts.items() for n in range(count)]
    cold = cold_of([image(at, basin, name) for at, (basin, name) in enumerate(keys)])
    for row, (basin_id, name) in enumerate(keys):
        assert cold.find(basin_id, name) == row
        assert cold.find(basin_id, f"{name}x") == cold.find(basin_id, name[:2]) == ABSENT
        behind = [key for key in keys if key[0] == basin_id and key > (basin_id, name)]
        assert cold.range(basin_id, "", name) == (row + 1, row + 1 + len(behind))
        begun = [at for at, key in enumerate(keys) if key[0] == basin_id and key[1][:2] == name[:2]]
        assert cold.range(basin_id, name[:2]) == (begun[0], begun[-1] + 1)
    assert cold.find(5, "000") == ABSENT


@settings(deadline=None)
@given(images(most=25), st.sampled_from([0, 1, 2]), NAMES | st.just(""), NAMES | st.just(""))
def test_a_range_holds_the_names_with_the_prefix_behind_the_start(
    streams: list[StreamImage], basin_id: int, prefix: str, start_after: str
) -> None:
    cold = cold_of(streams)
    low, high = cold.range(basin_id, prefix, start_after)
    assert [cold.image(row) for row in range(low, high)] == [
        stream
        for stream in in_order(streams)
        if stream.basin_id == basin_id
        and stream.name.startswith(prefix)
        and stream.name.encode() > start_after.encode()
    ]


@settings(deadline=None)
@given(images(), st.integers(0, NEVER_S) | st.sampled_from([0, NEVER_S, NEVER_S + 1]))
def test_streams_are_due_from_their_second_on_and_never_if_never(
    streams: list[StreamImage], now_s: int
) -> None:
    cold = cold_of(streams)
    assert cold.due(now_s).tolist() == [
        row
        for row, stream in enumerate(in_order(streams))
        if stream.next_check_s <= now_s and stream.next_check_s != NEVER_S
    ]


@settings(deadline=None)
@given(images())
def test_every_run_is_counted_in_its_commit(streams: list[StreamImage]) -> None:
    cold = cold_of(streams)
    counts = Counter(run.commit for s in streams for run in RunIndex.from_bytes(s.runs))
    base = min(counts, default=0)
    found = cold.commit_counts(base)
    assert {base + at: count for at, count in enumerate(found.tolist()) if count} == counts
    if base:
        assert cold.commit_counts(base - 1).tolist() == [0, *found.tolist()]
    if counts:
        with pytest.raises(ValueError, match=f"commit {base}, before {base + 1}"):
            cold.commit_counts(base + 1)


@settings(deadline=None, max_examples=100)
@given(images(), images(), st.data())
def test_a_merge_replaces_adds_and_removes_by_id(
    old: list[StreamImage], drawn: list[StreamImage], data: st.DataObject
) -> None:
    by_id = {stream.id: stream for stream in old}
    removed = data.draw(st.sets(st.sampled_from(sorted(by_id))) if by_id else st.just(set()))
    again = data.draw(st.sets(st.sampled_from(sorted(by_id))) if by_id else st.just(set()))
    kept = {stream_id: stream for stream_id, stream in by_id.items() if stream_id not in removed}
    changed = [replace(kept[stream_id], trim_point=77, runs=b"") for stream_id in again & set(kept)]
    taken = {(stream.basin_id, stream.name) for stream in kept.values()}
    added = [s for s in drawn if s.id not in by_id and (s.basin_id, s.name) not in taken]
    cold = cold_of(old)
    unknown = next(number for number in range(100) if number not in by_id)
    merged = cold.merge(changed + added, removed | {unknown})
    expected = kept | {stream.id: stream for stream in changed + added}
    assert all_of(merged) == in_order(list(expected.values()))
    assert merged.columns.fault() is None
    assert all(merged.id_at(merged.find_id(stream_id)) == stream_id for stream_id in expected)
    assert all_of(cold) == in_order(old)


def test_a_stream_may_take_another_name_in_a_merge() -> None:
    cold = cold_of([image(1, 1, "a"), image(2, 1, "b"), image(3, 1, "c")])
    merged = cold.merge([image(1, 1, "d"), image(3, 2, "a")], [])
    assert all_of(merged) == [image(2, 1, "b"), image(1, 1, "d"), image(3, 2, "a")]
    merged = cold.merge([image(1, 2, "a"), image(3, 0, "c")], [])
    assert all_of(merged) == [image(3, 0, "c"), image(2, 1, "b"), image(1, 2, "a")]


def test_a_name_passes_to_another_stream_when_its_holder_goes() -> None:
    cold = cold_of([image(1, 1, "a"), image(2, 1, "b")])
    assert all_of(cold.merge([image(3, 1, "a")], [1])) == [image(3, 1, "a"), image(2, 1, "b")]


@pytest.mark.parametrize(
    "changed",
    [
        [image(3, 1, "a")],  # held by a stream that stays
        [image(3, 1, "c"), image(4, 1, "c")],
        [image(3, 1, "c"), image(3, 1, "d")],
        [image(3, 1, "c", runs=b"cut")],
    ],
)
def test_a_merge_refuses_what_would_break_the_columns(changed: list[StreamImage]) -> None:
    cold = cold_of([image(1, 1, "a"), image(2, 1, "b")])
    with pytest.raises(ValueError, match=r"two streams have|not in the order|cut short"):
        cold.merge(changed, [])


def test_there_may_be_no_streams_at_all() -> None:
    empty = ColdStreams.empty()
    assert len(empty) == 0
    assert (empty.find(1, "a"), empty.find_id(1)) == (ABSENT, ABSENT)
    assert empty.range(1, "a", "b") == (0, 0)
    assert empty.due(5).tolist() == []
    assert empty.commit_counts(9).tolist() == []
    assert all_of(empty.merge([image(1, 1, "a")], [7])) == [image(1, 1, "a")]
    assert len(cold_of([image(1, 1, "a")]).merge([], [1])) == 0
