"""The table of streams against a plain dict, through captures that succeed and fail."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bourn.catalog.cold import ColdStreams
from bourn.catalog.table import AddedNames, Capture, StreamTable
from bourn.layout.runs import NEVER_S
from bourn.layout.snapshot import StreamImage
from tests.layout.images import image, in_order

BASINS = st.integers(1, 2)
NAMES = st.sampled_from(["a", "a/", "a/b", "ab", "b", "é", "\uffff", "\U0001f600"])
STARTS = NAMES | st.sampled_from(["", "A", "aa", "a/a", "zz"])


class Hot:
    """A stream in use; whoever changes it must tell the table."""

    def __init__(self, stream: StreamImage) -> None:
        self.stream = stream
        self.held = 0


def table_over(cold: ColdStreams) -> StreamTable[Hot]:
    return StreamTable(cold, Hot, lambda hot: hot.stream, lambda hot: not hot.held)


class TableAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = table_over(ColdStreams.empty())
        self.model: dict[int, StreamImage] = {}
        self.next_id = 1
        self.held: dict[int, Hot] = {}
        self.open: tuple[Capture, dict[int, StreamImage]] | None = None

    @initialize(keys=st.lists(st.tuples(BASINS, NAMES), unique=True))
    def start_from_a_snapshot(self, keys: list[tuple[int, str]]) -> None:
        self.model = {at: image(at, *key, next_check_s=at) for at, key in enumerate(keys)}
        self.next_id = len(keys) + 1
        self.table = table_over(ColdStreams.empty().merge(list(self.model.values()), []))

    def id_of(self, basin_id: int, name: str) -> int | None:
        for stream in self.model.values():
            if (stream.basin_id, stream.name) == (basin_id, name):
                return stream.id
        return None

    def listed(self, basin_id: int) -> list[StreamImage]:
        return in_order([s for s in self.model.values() if s.basin_id == basin_id])

    def see(self, hot: Hot | None, stream_id: int | None) -> None:
        """A stream is what the model says, and never two objects while one is held."""
        if stream_id is None:
            assert hot is None
        else:
            assert hot is not None
            assert hot.stream == self.model[stream_id]
            assert self.held.get(stream_id, hot) is hot

    @rule(basin_id=BASINS, name=NAMES)
    def add(self, basin_id: int, name: str) -> None:
        stream = image(self.next_id, basin_id, name)
        if self.id_of(basin_id, name) is not None:
            with pytest.raises(ValueError, match="is there already"):
                self.table.add(stream.id, basin_id, name, Hot(stream))
            return
        self.table.add(stream.id, basin_id, name, Hot(stream))
        self.model[stream.id] = stream
        self.next_id += 1

    @rule(basin_id=BASINS, name=NAMES)
    def get(self, basin_id: int, name: str) -> None:
        self.see(self.table.get(basin_id, name), self.id_of(basin_id, name))

    @rule(data=st.data())
    def by_id(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.integers(0, self.next_id))
        self.see(self.table.by_id(stream_id), stream_id if stream_id in self.model else None)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), by_name=st.booleans(), due=st.integers(0, 9) | st.just(NEVER_S))
    def change(self, data: st.DataObject, by_name: bool, due: int) -> None:
        stream = data.draw(st.sampled_from(list(self.model.values())))
        hot = self.table.get(stream.basin_id, stream.name) if by_name else None
        hot = hot or self.table.by_id(stream.id)
        self.see(hot, stream.id)
        assert hot is not None
        hot.stream = replace(stream, next_seq_num=stream.next_seq_num + 1, next_check_s=due)
        self.model[stream.id] = hot.stream
        self.table.mark_dirty(stream.id)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.integers(0, self.next_id))
        if stream_id not in self.model:
            with pytest.raises(KeyError):
                self.table.remove(stream_id)
            return
        self.table.remove(stream_id)
        stream = self.model.pop(stream_id)
        self.held.pop(stream_id, None)
        self.get(stream.basin_id, stream.name)
        self.see(self.table.by_id(stream_id), None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.sampled_from(list(self.model)))
        hot = self.table.by_id(stream_id)
        self.see(hot, stream_id)
        assert hot is not None
        hot.held = 1
        self.held[stream_id] = hot

    @rule()
    def let_go(self) -> None:
        for hot in self.held.values():
            hot.held = 0
        self.held.clear()

    @rule(basin_id=BASINS, prefix=STARTS, start_after=STARTS, limit=st.integers(0, 6))
    def list_names(self, basin_id: int, prefix: str, start_after: str, limit: int) -> None:
        hot_before = len(self.table.hot())
        page = self.table.list_names(basin_id, prefix, start_after, limit)
        matches = [
            stream
            for stream in self.listed(basin_id)
            if stream.name.startswith(prefix) and stream.name.encode() > start_after.encode()
        ]
        assert [(s.name, s.id) for s in page.streams] == [(s.name, s.id) for s in matches[:limit]]
        assert page.has_more == (len(matches) > limit)
        for listed in page.streams:
            row = listed.row if listed.hot is None else listed.hot.stream.row
            assert row == self.model[listed.id].row
            assert (listed.hot is None) != (listed.row is None)
        assert len(self.table.hot()) == hot_before

    @rule(basin_id=BASINS, chunk=st.integers(1, 3))
    def walk(self, basin_id: int, chunk: int) -> None:
        chunks = list(self.table.streams_of(basin_id, chunk))
        assert [pair for pairs in chunks for pair in pairs] == [
            (stream.name, stream.id) for stream in self.listed(basin_id)
        ]
        assert all(len(pairs) == chunk for pairs in chunks[:-1])
        assert all(0 < len(pairs) <= chunk for pairs in chunks)

    @rule(basin_id=BASINS, chunk=st.integers(1, 3))
    def remove_a_basin_while_walking(self, basin_id: int, chunk: int) -> None:
        for pairs in self.table.streams_of(basin_id, chunk):
            for _, stream_id in pairs:
                self.table.remove(stream_id)
                del self.model[stream_id]
                self.held.pop(stream_id, None)
        assert not self.listed(basin_id)

    @rule(now_s=st.integers(0, 9), limit=st.integers(1, 5))
    def due(self, now_s: int, limit: int) -> None:
        hot = {hot.stream.id for hot in self.table.hot()}
        at_rest = [s for b in (1, 2) for s in self.listed(b) if s.id not in hot]
        expected = [stream.id for stream in at_rest if stream.next_check_s <= now_s]
        assert self.table.due(now_s, limit) == expected[:limit]

    @precondition(lambda self: self.open is None)
    @rule()
    def capture(self) -> None:
        capture = self.table.capture()
        self.open = (capture, self.model.copy())
        assert self.table.dirty_count == 0
        with pytest.raises(ValueError, match="neither adopted nor abandoned"):
            self.table.capture()

    @precondition(lambda self: self.open is not None)
    @rule()
    def adopt(self) -> None:
        assert self.open is not None
        capture, then = self.open
        merged = capture.merge()
        assert [merged.image(row) for row in range(len(merged))] == in_order(list(then.values()))
        self.table.adopt(capture, merged)
        self.open = None
        held = set(self.held)
        changed = {i for i, stream in self.model.items() if then.get(i) != stream}
        assert {hot.stream.id for hot in self.table.hot()} == held | changed
        with pytest.raises(ValueError, match="not the open capture"):
            self.table.adopt(capture, merged)

    @precondition(lambda self: self.open is not None)
    @rule()
    def abandon(self) -> None:
        assert self.open is not None
        self.table.abandon(self.open[0])
        self.open = None

    @rule()
    def evict(self) -> None:
        before = len(self.table.hot())
        assert self.table.evict() == before - len(self.table.hot())
        assert self.held.keys() <= {hot.stream.id for hot in self.table.hot()}

    @invariant()
    def same_streams(self) -> None:
        assert self.table.count() == len(self.model)
        for basin_id in (1, 2):
            self.list_names(basin_id, "", "", 20)

    def teardown(self) -> None:
        """Whatever happened, the next snapshot holds the whole state."""
        if self.open is not None:
            self.abandon()
        self.capture()
        self.let_go()
        self.adopt()
        for stream in self.model.values():
            self.get(stream.basin_id, stream.name)


TestTableAgainstADict = TableAgainstADict.TestCase
TestTableAgainstADict.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_change_between_capture_and_adopt_is_in_the_next_snapshot() -> None:
    table = table_over(ColdStreams.empty())
    hot = Hot(image(1, 1, "a"))
    table.add(1, 1, "a", hot)
    capture = table.capture()
    hot.stream = image(1, 1, "a", next_seq_num=5)
    table.mark_dirty(1)
    table.adopt(capture, capture.merge())
    assert table.cold.image(0).next_seq_num == 0
    assert table.get(1, "a") is hot
    capture = table.capture()
    table.adopt(capture, capture.merge())
    assert table.cold.image(0).next_seq_num == 5


def test_a_stream_removed_between_capture_and_adopt_does_not_come_back() -> None:
    table = table_over(ColdStreams.empty())
    table.add(1, 1, "a", Hot(image(1, 1, "a")))
    capture = table.capture()
    table.remove(1)
    table.add(2, 1, "a", Hot(image(2, 1, "a")))
    table.adopt(capture, capture.merge())
    assert [stream.id for stream in table.list_names(1).streams] == [2]
    assert table.by_id(1) is None
    capture = table.capture()
    assert [stream.id for stream in capture.images] == [2]
    assert capture.removed == {1}
    table.adopt(capture, capture.merge())
    assert table.count() == len(table.cold) == 1


def test_a_listing_begins_at_the_prefix_or_behind_the_start_whichever_is_later() -> None:
    table = table_over(ColdStreams.empty().merge([image(1, 1, "b/2")], []))
    for stream_id, name in enumerate(["a", "b", "b/1", "b/3", "c"], 2):
        table.add(stream_id, 1, name, Hot(image(stream_id, 1, name)))

    def names(prefix: str, start_after: str) -> list[str]:
        return [stream.name for stream in table.list_names(1, prefix, start_after).streams]

    assert names("b/", "") == names("b/", "a") == ["b/1", "b/2", "b/3"]
    assert names("b/", "b/1") == ["b/2", "b/3"]
    assert names("b/", "c") == []


def test_memory_goes_back_when_streams_are_idle() -> None:
    table = table_over(ColdStreams.empty())
    for number in range(100):
        table.add(number, 1, f"s{number:03}", Hot(image(number, 1, f"s{number:03}")))
    assert len(table.hot()) == 100
    capture = table.capture()
    table.adopt(capture, capture.merge())
    assert table.hot() == []
    assert (table._by_name, table._by_id, table._added) == ({}, {}, {})
    assert table.count() == 100


def test_a_failing_dehydrate_leaves_everything_dirty() -> None:
    def refuse(hot: Hot) -> StreamImage:
        raise RuntimeError(hot.stream.name)

    table: StreamTable[Hot] = StreamTable(ColdStreams.empty(), Hot, refuse, lambda _: True)
    table.add(1, 1, "a", Hot(image(1, 1, "a")))
    with pytest.raises(RuntimeError):
        table.capture()
    assert table.dirty_count == 1
    table._dehydrate = lambda hot: hot.stream
    assert [stream.id for stream in table.capture().images] == [1]


def test_an_id_is_never_given_twice() -> None:
    table = table_over(ColdStreams.empty().merge([image(1, 1, "a")], []))
    table.remove(1)
    with pytest.raises(ValueError, match="is there already"):
        table.add(1, 1, "b", Hot(image(1, 1, "b")))


def test_added_names_stay_in_order_through_additions_and_removals() -> None:
    names = AddedNames()
    for name in ("c", "a"):
        names.add(name, ord(name))
    assert names.in_order() == ["a", "c"]
    names.add("b", ord("b"))
    names.discard("c")
    names.discard("nothing")
    names.add("d", ord("d"))
    names.discard("d")
    names.add("c", 1)
    assert names.in_order() == ["a", "b", "c"]
    names.add("z", 2)
    names.discard_ids({1, 2, ord("a")})
    assert names.in_order() == ["b"]
    assert names.ids == {"b": ord("b")}
