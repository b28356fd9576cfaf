"""All basins, by name and by id; there are few enough to keep every row in memory."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from bourn.catalog.rows import BasinRow


class BasinTable:
    """Rows by name; names in byte order, which for str is the order of code points."""

    def __init__(self, rows: Iterable[BasinRow] = ()) -> None:
        self._by_id = {row.id: row for row in rows}
        self._ids = {row.name: row.id for row in self._by_id.values()}
        self._names = sorted(self._ids)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[BasinRow]:
        return iter(self._by_id.values())

    def get(self, name: str) -> BasinRow | None:
        """Return the basin of that name."""
        basin_id = self._ids.get(name)
        return None if basin_id is None else self._by_id[basin_id]

    def by_id(self, basin_id: int) -> BasinRow | None:
        """Return the basin of that id."""
        return self._by_id.get(basin_id)

    def put(self, row: BasinRow) -> None:
        """Add a basin, or replace its row."""
        if row.id not in self._by_id:
            if row.name in self._ids:
                raise ValueError(f"basin {row.name} has another id")
            self._ids[row.name] = row.id
            insort(self._names, row.name)
        self._by_id[row.id] = row

    def drop(self, basin_id: int) -> BasinRow:
        """Forget a basin; returns what it was."""
        row = self._by_id.pop(basin_id)
        del self._ids[row.name]
        del self._names[bisect_left(self._names, row.name)]
        return row

    def list(self, prefix: str, start_after: str, limit: int) -> tuple[list[BasinRow], bool]:
        """Return a page of rows in byte order, and whether at least one more matches."""
        names = self._names
        at = max(bisect_left(names, prefix), bisect_right(names, start_after))
        page: list[BasinRow] = []
        while at < len(names) and names[at].startswith(prefix):
            if len(page) == limit:
                return page, True
            page.append(self._by_id[self._ids[names[at]]])
            at += 1
        return page, False
