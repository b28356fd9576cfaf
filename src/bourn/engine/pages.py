"""Pages of the catalog: parts of the lists of basins and of streams, as they are at this moment."""

from typing import NamedTuple

from bourn.catalog.rows import BasinRow, StreamRow, decode_stream_row
from bourn.engine.term import Term
from bourn.errors import BasinNotFound
from bourn.model.names import list_limit


class BasinPage(NamedTuple):
    """A part of a listing, and whether more follows."""

    rows: list[BasinRow]
    has_more: bool


class StreamPage(NamedTuple):
    """A part of a listing, and whether more follows."""

    rows: list[StreamRow]
    has_more: bool


def basin_page(term: Term, prefix: str, start_after: str, limit: int | None) -> BasinPage:
    """Return a page of basin rows in byte order."""
    return BasinPage(*term.state.basins.list(prefix, start_after, list_limit(limit)))


def stream_page(
    term: Term, basin: str, prefix: str, start_after: str, limit: int | None
) -> StreamPage:
    """Return a page of stream rows in byte order."""
    row = term.state.basins.get(basin)
    if row is None:
        raise BasinNotFound(basin)
    page = term.state.streams.list_names(row.id, prefix, start_after, list_limit(limit))
    rows = [
        found.hot.row if found.hot is not None else decode_stream_row(found.row or b"")
        for found in page.streams
    ]
    return StreamPage(rows, page.has_more)
