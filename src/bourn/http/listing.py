"""Lists that show no more than their reader may see, without looking at the rest.

What a token may see is one name or a prefix, so the part of a list that is both wanted and allowed
is a range of names again: pages stay full, `has_more` stays exact.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from bourn.http.query import ListQuery
from bourn.model.access import Match, ResourceSet

T = TypeVar("T")


class Part(NamedTuple):
    """What to ask the table for, and what of its answer counts."""

    query: ListQuery
    allowed: ResourceSet

    def cut(self, page: tuple[list[T], bool], name_of: Callable[[T], str]) -> tuple[list[T], bool]:
        """Return the rows that may be shown, and whether more follow."""
        rows, has_more = page
        if self.allowed.match is Match.PREFIX:
            return rows, has_more
        return [row for row in rows if self.allowed.has(name_of(row))], False


def narrowed(allowed: ResourceSet, wanted: ListQuery) -> Part:
    """Return the part of a list that is both wanted and allowed."""
    common = allowed.narrowed(wanted.prefix)
    if common.match is Match.PREFIX:
        return Part(wanted._replace(prefix=common.text), common)
    # The first name with a prefix is the prefix itself, if it is there at all.
    return Part(wanted._replace(prefix=common.text, limit=1), common)
