"""Durability over commits that complete in any order.

    id       5         6         7         8         9         10
          durable   durable   in flight  stored   in flight  not issued
                              ^ durable = 7                  ^ next_id = 10

A commit counts only when every commit before it is stored: recovery ends at the first gap, so 8
above would be lost in a crash now. Acks and live readers follow `durable`, never a single id.
"""

from typing import Final


class Durability:
    """Which ids of one writer are durable; at most `in_flight_max` are issued ahead of that.

    A failed id may or may not be stored, so it and everything behind it stays unknown for good:
    after a failure no id is issued, and the writer starts again from what the bucket holds.
    """

    def __init__(self, in_flight_max: int, first_id: int = 0) -> None:
        if in_flight_max < 1:
            raise ValueError("at least one commit must be allowed in flight")
        self._in_flight_max: Final = in_flight_max
        self._durable = first_id
        self._next_id = first_id
        self._failed_from: int | None = None
        self._stored: set[int] = set()  # at or past `durable`, waiting for a gap to close

    @property
    def durable(self) -> int:
        """Every id below this one is durable."""
        return self._durable

    @property
    def next_id(self) -> int:
        """The id that `issue` gives next."""
        return self._next_id

    @property
    def failed_from(self) -> int | None:
        """The lowest failed id: it and all behind it are unknown. None while nothing failed."""
        return self._failed_from

    @property
    def in_flight(self) -> int:
        """Ids issued and not durable, also those stored behind a gap."""
        return self._next_id - self._durable

    @property
    def may_issue(self) -> bool:
        """Whether `issue` would give an id."""
        return self._failed_from is None and self.in_flight < self._in_flight_max

    @property
    def settled(self) -> bool:
        """Whether `durable` can advance no further by the ids issued so far."""
        end = self._next_id if self._failed_from is None else self._failed_from
        return self._durable == end

    def issue(self) -> int:
        """Take the next id; ask `may_issue` first."""
        if not self.may_issue:
            raise ValueError("no commit may be issued: too many in flight, or one has failed")
        issued = self._next_id
        self._next_id += 1
        return issued

    def complete(self, commit_id: int) -> range:
        """Note that an id is stored; return the ids that this made durable, in order."""
        self._check_in_flight(commit_id)
        start = self._durable
        if self._is_lost(commit_id):
            return range(start, start)
        self._stored.add(commit_id)
        while self._durable in self._stored:
            self._stored.remove(self._durable)
            self._durable += 1
        return range(start, self._durable)

    def fail(self, commit_id: int) -> range:
        """Note that an id's outcome is unknown; return the ids that this made unknown, in order."""
        self._check_in_flight(commit_id)
        end = self._next_id if self._failed_from is None else self._failed_from
        if commit_id >= end:
            return range(end, end)
        self._failed_from = commit_id
        self._stored = {stored for stored in self._stored if stored < commit_id}
        return range(commit_id, end)

    def _is_lost(self, commit_id: int) -> bool:
        return self._failed_from is not None and commit_id >= self._failed_from

    def _check_in_flight(self, commit_id: int) -> None:
        if not self._durable <= commit_id < self._next_id or commit_id in self._stored:
            raise ValueError(f"commit {commit_id} is not in flight")
