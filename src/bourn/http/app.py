"""One request from its route to its answer; the same for every adapter."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from bourn.clock import Clock
from bourn.engine.node import Node, NodeState
from bourn.engine.usage import Usage
from bourn.errors import BournError, Unauthenticated
from bourn.http.aside import Aside
from bourn.http.audit import Audit
from bourn.http.auth import Authenticator, Principal
from bourn.http.control_plane import ControlPlane
from bourn.http.cors import answer_fields, preflight_fields
from bourn.http.data_plane import DataPlane
from bourn.http.draining import Draining
from bourn.http.events import Events
from bourn.http.exchange import ClientGone, Exchange, while_present
from bourn.http.media import Media
from bourn.http.openapi import encoded_document
from bourn.http.operations import OPERATIONS
from bourn.http.problems import problem_of
from bourn.http.quick_shared import Quick
from bourn.http.request import Request, client_of
from bourn.http.routing import METHODS, Match, Route, match_path
from bourn.http.sessions import Sessions
from bourn.http.telemetry import Telemetry
from bourn.http.throttle import Throttle
from bourn.http.tokens import Tokens
from bourn.http.usage import OperationCounter, UsageMetrics
from bourn.model.access import Op
from bourn.settings import TrafficLimits, UsagePrices

log = logging.getLogger(__name__)

TEXT: Final = ("content-type", "text/plain; charset=utf-8")
PROMETHEUS: Final = ("content-type", "text/plain; version=0.0.4")


class App:
    """The API on a node. With `cors`, pages of every origin may use it.

    With `auth_required`, every request needs a token; without, nobody is asked for one.
    """

    def __init__(
        self,
        node: Node,
        clock: Clock,
        *,
        location: str,
        basin_suffixes: tuple[str, ...] = (),
        cors: bool = True,
        auth_required: bool = False,
        prices: UsagePrices | None = None,
        limits: TrafficLimits | None = None,
    ) -> None:
        self._node = node
        self.auth = Authenticator(node, clock, required=auth_required)
        self.audit = Audit(clock)
        self._anybody = Principal(node, clock, None)
        self._basin_suffixes = tuple(suffix.lower().strip(".") for suffix in basin_suffixes)
        self._cors = cors
        self.draining = Draining(node)
        self.telemetry = Telemetry(node, clock)
        self._throttle = None
        if limits is not None and limits.are_set:
            self._throttle = Throttle(limits, clock, self.telemetry)
        self.quick = None  # limits are the ordinary way's
        if self._throttle is None:
            self.quick = Quick(node, clock, self.auth, self.telemetry, self.draining, cors=cors)
        self._control = ControlPlane(node, location)
        aside = Aside()
        self._data = DataPlane(node, self.telemetry, aside)
        self._sessions = Sessions(node, self.telemetry, self.draining, clock)
        self._events = Events(node, self.telemetry, clock, aside)
        usage = UsageMetrics(Usage(node, clock, prices, node.usage_history), clock)
        self._counter = OperationCounter(node.meter)
        control = self._control
        tokens = Tokens(node, self.auth)
        self._handlers: dict[tuple[Route, str], Callable[..., Awaitable[None]]] = {
            (Route.BASINS, "GET"): control.list_basins,
            (Route.BASINS, "POST"): control.create_basin,
            (Route.BASIN, "GET"): control.basin_config,
            (Route.BASIN, "PUT"): control.ensure_basin,
            (Route.BASIN, "PATCH"): control.reconfigure_basin,
            (Route.BASIN, "DELETE"): control.delete_basin,
            (Route.STREAMS, "GET"): control.list_streams,
            (Route.STREAMS, "POST"): control.create_stream,
            (Route.STREAM, "GET"): control.stream_config,
            (Route.STREAM, "PUT"): control.ensure_stream,
            (Route.STREAM, "PATCH"): control.reconfigure_stream,
            (Route.STREAM, "DELETE"): control.delete_stream,
            (Route.LOCATIONS, "GET"): control.list_locations,
            (Route.DEFAULT_LOCATION, "GET"): control.default_location,
            (Route.DEFAULT_LOCATION, "PUT"): control.set_default_location,
            (Route.RECORDS, "GET"): self._read,
            (Route.RECORDS, "POST"): self._append,
            (Route.TAIL, "GET"): self._tail,
            (Route.READ_ALIAS, "GET"): self._read_alias,
            (Route.APPEND_ALIAS, "POST"): self._append_alias,
            (Route.ACCESS_TOKENS, "GET"): tokens.list_tokens,
            (Route.ACCESS_TOKENS, "POST"): tokens.issue_token,
            (Route.ACCESS_TOKEN, "DELETE"): tokens.revoke_token,
            (Route.USAGE_ACCOUNT, "GET"): usage.account,
            (Route.USAGE_BASIN, "GET"): usage.basin,
            (Route.USAGE_STREAM, "GET"): usage.stream,
            (Route.HEALTH, "GET"): self._health,
            (Route.METRICS, "GET"): self._metrics,
            (Route.OPENAPI, "GET"): self._openapi,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer a request; whatever goes wrong becomes an answer too."""
        self.telemetry.requests += 1
        if self._cors:
            if exchange.method == "OPTIONS":
                await exchange.respond(200, preflight_fields(exchange), b"")
                return
            exchange.fields = answer_fields(exchange)
        match = match_path(exchange.path)
        if match is None:
            await exchange.respond(404, [], b"")
            return
        method = "GET" if exchange.method == "HEAD" else exchange.method
        allowed = METHODS[match.route]
        if method not in allowed:
            shown = ",".join(("GET", "HEAD", *allowed[1:]) if allowed[0] == "GET" else allowed)
            await exchange.respond(405, [("allow", shown)], b"")
            return
        try:
            await self._dispatch(exchange, match, method)
        except ClientGone:
            log.debug("%s %s: the client has gone", exchange.method, exchange.path)
        except BournError as error:
            problem = problem_of(error)
            await exchange.respond(problem.status, problem.headers, problem.body)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            problem = problem_of(RuntimeError())
            await exchange.respond(problem.status, problem.headers, problem.body)

    async def _dispatch(self, exchange: Exchange, match: Match, method: str) -> None:
        handler = self._handlers[match.route, method]
        ops = OPERATIONS.get((match.route, method))
        if ops is None:
            await handler(self._request(exchange, self._anybody, ()))
            return
        if self.draining.wanted:
            raise self.draining.refusal()
        try:
            principal = await self.auth.principal(exchange)
        except Unauthenticated as error:
            self.audit.refused(ops[0], 401, error.code, client=client_of(exchange))
            raise
        request = self._request(exchange, principal, ops)
        request.check_codings()
        try:
            await handler(request, *match.segments)
        except Exception as error:
            request.note_failure(error)
            raise
        self._counter.answered(request, match.route, method, match.segments)

    def _request(self, exchange: Exchange, principal: Principal, ops: tuple[Op, ...]) -> Request:
        return Request(exchange, self._basin_suffixes, principal, ops, self.audit, self._throttle)

    async def _append(self, request: Request, segment: str) -> None:
        basin, name = request.basin(), request.stream_segment(segment)
        await self._append_to(request, basin, name)

    async def _append_alias(self, request: Request, basin: str, stream: str) -> None:
        await self._append_to(request, request.basin_segment(basin), request.stream_segment(stream))

    async def _append_to(self, request: Request, basin: str, name: str) -> None:
        is_session = request.content_type() is Media.SESSION
        request.permit(basin, name, is_session=is_session)
        if is_session:
            async with self._session(request, basin):
                await self._sessions.append(request, basin, name)
        else:
            await self._data.append(request, basin, name)

    async def _read(self, request: Request, segment: str) -> None:
        basin, name = request.basin(), request.stream_segment(segment)
        await self._read_from(request, basin, name)

    async def _read_alias(self, request: Request, basin: str, stream: str) -> None:
        await self._read_from(request, request.basin_segment(basin), request.stream_segment(stream))

    async def _read_from(self, request: Request, basin: str, name: str) -> None:
        accept = request.accept()
        session: Callable[[Request, str, str], Coroutine[Any, Any, None]] | None = None
        if request.content_type() is Media.SESSION or accept is Media.SESSION:
            session = self._sessions.read
        elif accept is Media.EVENTS:
            session = self._events.read
        request.permit(basin, name, is_session=session is not None)
        if session is None:
            await self._data.read(request, basin, name)
            return
        async with self._session(request, basin):
            await while_present(request.exchange, request.guarded(session(request, basin, name)))

    @asynccontextmanager
    async def _session(self, request: Request, basin: str) -> AsyncIterator[None]:
        async with request.as_session(basin):
            if self.draining.wanted:  # it may have had to wait
                raise self.draining.refusal()
            yield

    async def _tail(self, request: Request, segment: str) -> None:
        basin, name = request.basin(), request.stream_segment(segment)
        request.permit(basin, name)
        await self._data.check_tail(request, basin, name)

    async def _health(self, request: Request) -> None:
        if self._node.state in {NodeState.SERVING, NodeState.DRAINING}:
            await request.exchange.respond(200, [TEXT], b"OK")
        else:
            why = self._node.unavailable().message
            await request.exchange.respond(503, [TEXT], why.encode())

    async def _metrics(self, request: Request) -> None:
        await request.exchange.respond(200, [PROMETHEUS], self.telemetry.render())

    async def _openapi(self, request: Request) -> None:
        await request.answer(200, encoded_document())
