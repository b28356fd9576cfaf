"""All basins, against a plain dictionary."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bourn.catalog.basin_table import BasinTable
from bourn.catalog.rows import BasinRow
from bourn.model.config import BasinConfig

names = st.text("ab-", min_size=1, max_size=4)


def row(basin_id: int, name: str, created_at_ms: int = 0) -> BasinRow:
    return BasinRow(basin_id, name, BasinConfig(), "local", created_at_ms)


def test_a_name_has_one_id_at_a_time() -> None:
    table = BasinTable([row(1, "first")])
    with pytest.raises(ValueError, match="another id"):
        table.put(row(2, "first"))
    table.drop(1)
    table.put(row(2, "first"))
    assert table.get("first") == row(2, "first")
    with pytest.raises(KeyError):
        table.drop(1)


def test_a_row_is_replaced_by_its_id() -> None:
    table = BasinTable([row(1, "first", 5)])
    table.put(row(1, "first", 9))
    assert len(table) == 1
    assert table.by_id(1) == row(1, "first", 9)


class TableMachine(RuleBasedStateMachine):
    """Basins come, change and go; every page agrees with a sorted dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BasinTable()
        self.rows: dict[str, BasinRow] = {}
        self.next_id = 1

    @rule(name=names)
    def put(self, name: str) -> None:
        old = self.rows.get(name)
        basin_id = self.next_id if old is None else old.id
        self.rows[name] = row(basin_id, name, self.next_id)
        self.table.put(self.rows[name])
        self.next_id += 1

    @rule(name=names)
    def drop(self, name: str) -> None:
        if name in self.rows:
            self.table.drop(self.rows.pop(name).id)

    @rule(
        prefix=st.text("ab-", max_size=2), after=st.text("ab-", max_size=4), limit=st.integers(1, 4)
    )
    def list_page(self, prefix: str, after: str, limit: int) -> None:
        matching = [
            self.rows[name]
            for name in sorted(self.rows, key=str.encode)
            if name.startswith(prefix) and name > after
        ]
        assert self.table.list(prefix, after, limit) == (matching[:limit], len(matching) > limit)

    @rule()
    def rebuild(self) -> None:
        self.table = BasinTable(self.table)

    @invariant()
    def rows_agree(self) -> None:
        assert len(self.table) == len(self.rows)
        assert {found.name: found for found in self.table} == self.rows
        for name, found in self.rows.items():
            assert self.table.get(name) == found
            assert self.table.by_id(found.id) == found
        assert self.table.get("absent") is None
        assert self.table.by_id(0) is None


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=40, deadline=None)


@given(st.lists(names, unique=True), st.integers(1, 3))
def test_paging_by_the_last_name_visits_every_basin_once(found: list[str], limit: int) -> None:
    table = BasinTable(row(i, name) for i, name in enumerate(found))
    seen: list[str] = []
    has_more = True
    while has_more:
        page, has_more = table.list("", seen[-1] if seen else "", limit)
        assert page or not has_more
        seen += [basin.name for basin in page]
    assert seen == sorted(found)
