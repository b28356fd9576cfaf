"""The store as its callers see it: basins, streams, appends, reads.

How a node starts, fails, rebuilds itself and ends is `lifecycle`'s.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from bourn.catalog.basins import (
    basin_config,
    decide_create_basin,
    decide_delete_basin,
    decide_ensure_basin,
    decide_reconfigure_basin,
)
from bourn.catalog.changes import Decision
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.catalog.streams import (
    AutoCreateOn,
    decide_create_stream,
    decide_delete_stream,
    decide_ensure_stream,
    decide_reconfigure_stream,
    stream_config,
)
from bourn.engine.at_once import AtOnce
from bourn.engine.batch import ReadBatch
from bourn.engine.follower import Read, open_read
from bourn.engine.lifecycle import NodeState
from bourn.engine.pages import BasinPage, StreamPage, basin_page, stream_page
from bourn.engine.quotas import check_quota
from bourn.engine.sealing import Opener, opener_for
from bourn.engine.term import Term
from bourn.errors import BournError
from bourn.log.cursor import ReadRequest
from bourn.model.config import BasinConfig, ResolvedStreamConfig, StreamConfig
from bourn.model.keys import NO_KEY, CustomerKey
from bourn.model.patch import BasinPatch, StreamPatch
from bourn.model.record import StreamPosition
from bourn.model.resource import CreateBasin, CreateStream, EnsureBasin

T = TypeVar("T")

__all__ = ["BasinPage", "Node", "NodeState", "StreamPage"]


class Node(AtOnce):
    """A running store on one bucket. Made by `Node.open`, ended by `close`."""

    # Basins

    async def create_basin(
        self, request: CreateBasin, request_token: str | None = None
    ) -> Decision[BasinRow]:
        """Create a basin; durable when it returns."""
        term = await self._leading()
        return await term.decide(
            lambda: self._numbered(
                term,
                decide_create_basin(
                    term.state.basins.get(request.name),
                    request,
                    request_token=request_token,
                    location=self._settings.location,
                    now_ms=self._clock.now_ms(),
                    new_id=term.state.next_resource_id,
                ),
            )
        )

    async def ensure_basin(
        self, name: str, request: EnsureBasin | None = None
    ) -> Decision[BasinRow]:
        """Make the basin be as requested."""
        term = await self._leading()
        return await term.decide(
            lambda: self._numbered(
                term,
                decide_ensure_basin(
                    term.state.basins.get(name),
                    name,
                    request or EnsureBasin(),
                    location=self._settings.location,
                    now_ms=self._clock.now_ms(),
                    new_id=term.state.next_resource_id,
                ),
            )
        )

    async def reconfigure_basin(self, name: str, patch: BasinPatch) -> BasinConfig:
        """Change members of a basin's config."""
        term = await self._leading()
        decision = await term.decide(
            lambda: decide_reconfigure_basin(term.state.basins.get(name), name, patch)
        )
        return decision.row.config

    async def delete_basin(self, name: str) -> None:
        """Begin the deletion of a basin and of all its streams."""
        term = await self._leading()
        now_ms = self._clock.now_ms()
        await term.decide(lambda: decide_delete_basin(term.state.basins.get(name), name, now_ms))

    async def basin_config(self, name: str) -> BasinConfig:
        """Return a basin's config."""
        term = await self._leading()
        return await term.answer(lambda: basin_config(term.state.basins.get(name), name))

    async def list_basins(
        self, prefix: str = "", start_after: str = "", limit: int | None = None
    ) -> BasinPage:
        """Return a page of basin rows in byte order."""
        term = await self._leading()
        return await term.answer(lambda: basin_page(term, prefix, start_after, limit))

    # Streams

    async def create_stream(
        self, basin: str, request: CreateStream, request_token: str | None = None
    ) -> Decision[StreamRow]:
        """Create a stream; durable when it returns."""
        term = await self._leading()
        return await term.decide(
            lambda: self._numbered(
                term,
                decide_create_stream(
                    term.lookup(basin, request.name),
                    request.config,
                    request_token=request_token,
                    now_ms=self._clock.now_ms(),
                    new_id=term.state.next_resource_id,
                ),
            )
        )

    async def ensure_stream(
        self, basin: str, name: str, config: StreamConfig | None = None
    ) -> Decision[StreamRow]:
        """Make the stream be as requested."""
        term = await self._leading()
        return await term.decide(
            lambda: self._numbered(
                term,
                decide_ensure_stream(
                    term.lookup(basin, name),
                    config or StreamConfig(),
                    now_ms=self._clock.now_ms(),
                    new_id=term.state.next_resource_id,
                ),
            )
        )

    async def reconfigure_stream(
        self, basin: str, name: str, patch: StreamPatch
    ) -> ResolvedStreamConfig:
        """Change members of a stream's config."""
        term = await self._leading()
        decision = await term.decide(
            lambda: decide_reconfigure_stream(term.lookup(basin, name), patch)
        )
        return decision.row.config

    async def delete_stream(self, basin: str, name: str) -> None:
        """Begin the deletion of a stream."""
        term = await self._leading()
        now_ms = self._clock.now_ms()
        await term.decide(lambda: decide_delete_stream(term.lookup(basin, name), now_ms))

    async def stream_config(self, basin: str, name: str) -> ResolvedStreamConfig:
        """Return a stream's config."""
        term = await self._leading()
        return await term.answer(lambda: stream_config(term.lookup(basin, name)))

    async def list_streams(
        self, basin: str, prefix: str = "", start_after: str = "", limit: int | None = None
    ) -> StreamPage:
        """Return a page of stream rows in byte order."""
        term = await self._leading()
        return await term.answer(lambda: stream_page(term, basin, prefix, start_after, limit))

    # Usage

    async def ask_usage(self, ask: Callable[[Term], T]) -> T:
        """Ask about usage; what the answer counts is durable when this returns."""
        term = await self._leading()
        answer = ask(term)
        counted = max(term.last_change, term.committer.next_ordinal - 1)
        durable = term.committer.after(counted)
        if durable is not None:
            await durable
        return answer

    # Records

    async def check_tail(self, basin: str, name: str) -> StreamPosition:
        """Return the durable tail."""
        term = await self._leading()
        stream = await term.open_stream(basin, name, AutoCreateOn.READ, None)
        await term.readable(stream)
        return stream.tail

    async def read(
        self,
        basin: str,
        name: str,
        request: ReadRequest,
        config: StreamConfig | None = None,
        key: CustomerKey = NO_KEY,
    ) -> ReadBatch:
        """Read one batch; waits as the request says."""
        read, opener = await self._open_read(basin, name, request, config, key, is_unary=True)
        with read:
            batch = await read.one()
        return batch if opener is None else opener.open(batch)

    @asynccontextmanager
    async def read_session(
        self,
        basin: str,
        name: str,
        request: ReadRequest,
        config: StreamConfig | None = None,
        key: CustomerKey = NO_KEY,
    ) -> AsyncIterator[AsyncIterator[ReadBatch]]:
        """Open a session: batches and heartbeats until it ends cleanly; errors are raised.

        What refuses the session is raised on entering, before anything is read.
        """
        read, opener = await self._open_read(basin, name, request, config, key, is_unary=False)
        batches = read.session(self._rng)
        if opener is not None:
            batches = opener.session(batches)
        del key  # the session may be long
        try:
            yield batches
        finally:
            await batches.aclose()
            read.close()

    def hurry_readers(self) -> None:
        """Have every session that waits at a tail deliver a heartbeat at once."""
        if self._term is not None:
            self._term.hurry_readers()

    def end_reads(self, error: BournError) -> None:
        """End every session and every read that waits, with this error."""
        if self._term is not None:
            self._term.end_reads(error)

    async def _open_read(
        self,
        basin: str,
        name: str,
        request: ReadRequest,
        config: StreamConfig | None,
        key: CustomerKey,
        *,
        is_unary: bool,
    ) -> tuple[Read, Opener | None]:
        term = await self._leading()
        stream = await term.open_stream(basin, name, AutoCreateOn.READ, config)
        stream.users += 1  # from here on this object stays the stream's only one
        try:
            await term.readable(stream)
            opener = opener_for(basin, stream.row, key)
            return await open_read(term, stream, request, is_unary=is_unary), opener
        finally:
            stream.users -= 1

    def _numbered(self, term: Term, decision: Decision[Any]) -> Decision[Any]:
        """Use the number up where a decision has made a new resource of it, if there is a place."""
        check_quota(decision, term.state, self._settings)
        if decision.change is not None and decision.row.id == term.state.next_resource_id:
            term.state.take_id()
        return decision
