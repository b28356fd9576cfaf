"""Versions of the usage table.

A change says up to which minutes the table must stand when its version is made. Of two that write
the same periods one comes first, and the other finds the table further than it thought.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bourn.layout.history.delta import VACUUM_APP_ID, Add, MetaData, Protocol, Remove, TableState
from bourn.layout.usage_table import (
    BASINS_APP_ID,
    STREAMS_APP_ID,
    USAGE_PREFIX,
    closed_minutes,
    first_actions,
)
from bourn.pipeline.table import VersionedTable, fault_in


class UsageChange(NamedTuple):
    """A change of the usage table, which must stand where `before` says."""

    operation: str
    before: tuple[int, int]  # minutes of basins and of streams
    after: tuple[int, int]
    fence: int
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    new_fence: int | None = None

    def fault(self, state: TableState) -> str:
        """Say why it cannot be made on top of a version; nothing where it can."""
        if closed_minutes(state) != self.before:
            return f"the usage table has come from {self.before} to {closed_minutes(state)}"
        return fault_in(state, self.removes, self.fence)

    def moves(self) -> Mapping[str, int]:
        """Return how far applications have come behind it, those that it takes further."""
        minutes = zip((BASINS_APP_ID, STREAMS_APP_ID), self.before, self.after, strict=True)
        found = {app_id: after for app_id, before, after in minutes if after != before}
        return found if self.new_fence is None else {**found, VACUUM_APP_ID: self.new_fence}


class UsageLog(VersionedTable):
    """The usage table."""

    prefix = USAGE_PREFIX

    def first_actions(self, table_id: str, now_ms: int) -> tuple[Protocol, MetaData]:
        """Return what the first version says."""
        return first_actions(table_id, now_ms)
