"""What a node can tell at once: out of memory, with nothing to wait for or to make before.

Each call gives or raises exactly what the one that waits would, or None where only that one can
say. An error is raised where all that it rests on is durable, as the other does behind a wait.
"""

import asyncio
from typing import NamedTuple

from bourn.catalog.basins import basin_config
from bourn.catalog.changes import Provision
from bourn.catalog.rows import StreamRow
from bourn.catalog.streams import (
    AutoCreateOn,
    decide_auto_create,
    decide_ensure_stream,
    stream_config,
)
from bourn.engine.appends import Appends
from bourn.engine.batch import ReadBatch
from bourn.engine.glance import Glance, Sight
from bourn.engine.pages import BasinPage, StreamPage, basin_page, stream_page
from bourn.engine.stream import Stream
from bourn.engine.term import Term
from bourn.errors import BournError, RequestError, Unwritten
from bourn.log.cursor import (
    Exhausted,
    Locate,
    ReadRequest,
    may_follow,
    open_cursor,
    plan_start,
    settle_start,
)
from bourn.model.config import BasinConfig, ResolvedStreamConfig, StreamConfig
from bourn.model.record import AppendAck, StreamPosition


class CatalogMark(NamedTuple):
    """Stands for all that the catalog says: basins, streams and tokens, whatever the time is.

    A change that is not durable has no mark yet, and one that is can be joined by no other.
    """

    epoch: int
    last_change: int


class AtOnce(Appends):
    """The part of a node that answers without a wait."""

    def read_now(self, basin: str, name: str, request: ReadRequest) -> Glance | None:
        """Read one batch; raises Unwritten, or that there is no such stream.

        None where `read` must say what there is, or what else is wrong. The request is a `unary`
        one; one that may wait is answered here where it need not.
        """
        term = self._fresh_term()
        stream = None if term is None else self._seen(term, basin, name)
        if term is None or stream is None or stream.row.cipher is not None:
            return None
        try:
            return _glance(term, stream, request, self._clock.now_ms())
        except Unwritten:
            raise
        except BournError:
            return None

    def still_holds(self, sight: Sight, basin: str, name: str) -> bool:
        """Whether a read would give again what it gave, and would be allowed to."""
        term = self._fresh_term()
        stream = None if term is None else term.find(basin, name)
        return (
            stream is not None
            and stream.tail is sight.tail
            and stream.row.deleted_at_ms is None
            and stream.row.cipher is None
            and sight.from_ms <= self._clock.now_ms() < sight.until_ms
        )

    def tail_now(self, basin: str, name: str) -> StreamPosition | None:
        """Return the durable tail; raises that there is no such stream. None for `check_tail`."""
        term = self._fresh_term()
        stream = None if term is None else self._seen(term, basin, name)
        return None if stream is None else stream.tail

    def catalog_now(self) -> CatalogMark | None:
        """Return what stands for the catalog, if all that it says may be told here and now."""
        term = self._settled_term()
        return None if term is None else CatalogMark(term.epoch, term.last_change)

    def config_now(self, basin: str, name: str) -> ResolvedStreamConfig | None:
        """Return a stream's config; raises that there is none. None for `stream_config`."""
        term = self._settled_term()
        return None if term is None else stream_config(term.lookup(basin, name))

    def ensured_now(self, basin: str, name: str, config: StreamConfig) -> StreamRow | None:
        """Return a stream that is as it should be already; raises why it cannot be made so.

        None for `ensure_stream`, also where there is something to be done.
        """
        term = self._settled_term()
        if term is None:
            return None
        decision = decide_ensure_stream(term.lookup(basin, name), config, now_ms=0, new_id=0)
        return decision.row if decision.provision is Provision.NOOP else None

    def basin_config_now(self, name: str) -> BasinConfig | None:
        """Return a basin's config; raises that there is none. None for `basin_config`."""
        term = self._settled_term()
        return None if term is None else basin_config(term.state.basins.get(name), name)

    def basins_now(self, prefix: str, start_after: str, limit: int | None) -> BasinPage | None:
        """Return a page of basin rows. None for `list_basins`."""
        term = self._settled_term()
        return None if term is None else basin_page(term, prefix, start_after, limit)

    def streams_now(
        self, basin: str, prefix: str, start_after: str, limit: int | None
    ) -> StreamPage | None:
        """Return a page of stream rows; raises that there is no basin. None for `list_streams`."""
        term = self._settled_term()
        return None if term is None else stream_page(term, basin, prefix, start_after, limit)

    def refusal_now(self, ack: asyncio.Future[AppendAck]) -> RequestError | None:
        """Return why an append was refused, if that can be told; None for `settled_append`."""
        if not ack.done() or self._fresh_term() is None:
            return None
        error = ack.exception()
        return error if isinstance(error, RequestError) else None

    def _fresh_term(self) -> Term | None:
        """Return the term, if it may tell of its state here and now."""
        housekeeping = self._housekeeping
        return None if housekeeping is None or not housekeeping.is_fresh() else self._term

    def _settled_term(self) -> Term | None:
        """Return the term, if all that its catalog says is durable as well."""
        term = self._fresh_term()
        return term if term is not None and _is_durable(term, term.last_change) else None

    def _seen(self, term: Term, basin: str, name: str) -> Stream | None:
        """Return a stream that may be seen here and now; raises that there is none.

        None where it has to be made first, or where something is not durable yet.
        """
        stream = term.find(basin, name)
        if stream is not None and stream.row.deleted_at_ms is None:
            return stream if _is_durable(term, stream.created_commit) else None
        if _is_durable(term, term.last_change):
            found = term.lookup(basin, name)
            decide_auto_create(found, AutoCreateOn.READ, None, now_ms=0, new_id=0)
        return None


def _glance(term: Term, stream: Stream, request: ReadRequest, now_ms: int) -> Glance | None:
    tail = stream.tail
    start = plan_start(request, tail)
    if isinstance(start, Exhausted):
        return Glance(ReadBatch((), 0, 0, term.encoded), tail, now_ms)
    if isinstance(start, Locate):
        located = term.reader.locate_now(stream, start.timestamp, now_ms)
        if located is None:
            return None
        start = located
    cursor = open_cursor(request, settle_start(request, start, tail))
    found = term.reader.collect_now(stream, cursor, now_ms)
    if found is None:
        return None
    batch, left_out = found
    is_to_wait = not batch.slices and left_out is None and may_follow(request)
    return None if is_to_wait else Glance(batch, tail, now_ms, left_out)


def _is_durable(term: Term, ordinal: int) -> bool:
    return ordinal < term.committer.durable_ordinal
