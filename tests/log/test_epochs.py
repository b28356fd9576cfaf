"""Ordinals over all epochs, against a list of positions."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bourn.layout.keys import LogPosition
from bourn.log.epochs import EpochMap

# How many commits each epoch holds, and how many numbers lie between it and the one before.
epochs = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=12)


def build(shape: list[tuple[int, int]]) -> tuple[EpochMap, list[LogPosition]]:
    """The map, and the position of every ordinal."""
    epoch_map, epoch = EpochMap(), 0
    positions: list[LogPosition] = []
    for count, step in shape:
        epoch += step
        epoch_map.begin(epoch, len(positions))
        positions += [LogPosition(epoch, commit_id) for commit_id in range(count)]
    return epoch_map, positions


@given(epochs)
def test_every_ordinal_has_its_position(shape: list[tuple[int, int]]) -> None:
    epoch_map, positions = build(shape)
    for ordinal, position in enumerate(positions):
        assert epoch_map.position(ordinal) == position


@given(epochs)
def test_what_is_written_down_gives_the_same_map(shape: list[tuple[int, int]]) -> None:
    epoch_map, positions = build(shape)
    again = EpochMap(epoch_map.bases)
    assert again.bases == epoch_map.bases
    assert [again.position(ordinal) for ordinal in range(len(positions))] == positions


@given(epochs, st.data())
def test_forgetting_changes_nothing_from_there_on(
    shape: list[tuple[int, int]], data: st.DataObject
) -> None:
    epoch_map, positions = build(shape)
    first = data.draw(st.integers(0, len(positions)))
    before = len(epoch_map.bases)
    epoch_map.forget_before(first)
    assert len(epoch_map.bases) <= before
    for ordinal in range(first, len(positions)):
        assert epoch_map.position(ordinal) == positions[ordinal]
    if first < len(positions):
        assert epoch_map.bases[0][0] == positions[first].epoch, "as much as possible"


@given(epochs)
def test_the_span_of_an_epoch_is_all_its_commits(shape: list[tuple[int, int]]) -> None:
    epoch_map, positions = build(shape)
    known = [epoch for epoch, _ in epoch_map.bases]
    for epoch in range(known[-1] + 2):
        ordinals = [o for o, position in enumerate(positions) if position.epoch == epoch]
        span = epoch_map.span(epoch)
        if epoch in known[:-1]:
            assert span is not None
            assert list(span) == ordinals
        else:
            assert span is None, "it is unknown, or still open"


def test_an_epoch_that_was_sealed_empty_has_no_ordinal() -> None:
    epoch_map = EpochMap()
    epoch_map.begin(1, 0)
    epoch_map.begin(2, 3)
    epoch_map.begin(3, 3)
    assert epoch_map.bases == [(1, 0), (3, 3)]
    assert epoch_map.position(3) == LogPosition(3, 0)


def test_a_snapshot_within_an_epoch_may_say_again_where_it_begins() -> None:
    epoch_map = EpochMap([(1, 0), (2, 5)])
    epoch_map.begin(2, 5)
    assert epoch_map.bases == [(1, 0), (2, 5)]


def test_epochs_and_their_ordinals_ascend() -> None:
    epoch_map = EpochMap([(2, 5)])
    for epoch, base in ((1, 9), (2, 9), (3, 4)):
        with pytest.raises(ValueError, match=r"comes after|lies before"):
            epoch_map.begin(epoch, base)
    with pytest.raises(ValueError, match="before the log"):
        epoch_map.position(4)
