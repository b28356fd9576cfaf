"""One request from its route to its answer; the same for every adapter."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bourn.clock import Clock
from bourn.engine.node import Node, NodeState
from bourn.errors import BournError
from bourn.http.absent import AbsentParts
from bourn.http.control_plane import ControlPlane
from bourn.http.cors import answer_fields, preflight_fields
from bourn.http.data_plane import DataPlane
from bourn.http.draining import Draining
from bourn.http.events import Events
from bourn.http.exchange import ClientGone, Exchange, while_present
from bourn.http.media import Media
from bourn.http.problems import problem_of
from bourn.http.request import Request
from bourn.http.routing import METHODS, Match, Route, match_path
from bourn.http.sessions import Sessions
from bourn.http.telemetry import Telemetry

log = logging.getLogger(__name__)

TEXT: Final = ("content-type", "text/plain; charset=utf-8")
PROMETHEUS: Final = ("content-type", "text/plain; version=0.0.4")
OPERATIONAL: Final = frozenset({Route.HEALTH, Route.METRICS})


class App:
    """The API on a node. With `cors`, pages of every origin may use it."""

    def __init__(
        self,
        node: Node,
        clock: Clock,
        *,
        location: str,
        basin_suffixes: tuple[str, ...] = (),
        cors: bool = True,
    ) -> None:
        self._node = node
        self._basin_suffixes = tuple(suffix.lower().strip(".") for suffix in basin_suffixes)
        self._cors = cors
        self.draining = Draining(node)
        self.telemetry = Telemetry(node, clock)
        self._control = ControlPlane(node, location)
        self._data = DataPlane(node, self.telemetry)
        self._sessions = Sessions(node, self.telemetry, self.draining, clock)
        self._events = Events(node, self.telemetry, clock)
        absent = AbsentParts()
        control = self._control
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
            (Route.ACCESS_TOKENS, "GET"): absent.list_tokens,
            (Route.ACCESS_TOKENS, "POST"): absent.issue_token,
            (Route.ACCESS_TOKEN, "DELETE"): absent.revoke_token,
            (Route.USAGE_ACCOUNT, "GET"): absent.account_usage,
            (Route.USAGE_BASIN, "GET"): absent.basin_usage,
            (Route.USAGE_STREAM, "GET"): absent.stream_usage,
            (Route.HEALTH, "GET"): self._health,
            (Route.METRICS, "GET"): self._metrics,
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
        request = Request(exchange, self._basin_suffixes)
        if match.route not in OPERATIONAL:
            if self.draining.wanted:
                raise self.draining.refusal()
            request.check_codings()
        await self._handlers[match.route, method](request, *match.segments)

    async def _append(self, request: Request, segment: str) -> None:
        basin, name = request.basin(), request.stream_segment(segment)
        await self._append_to(request, basin, name)

    async def _append_alias(self, request: Request, basin: str, stream: str) -> None:
        await self._append_to(request, request.basin_segment(basin), request.stream_segment(stream))

    async def _append_to(self, request: Request, basin: str, name: str) -> None:
        if request.content_type() is Media.SESSION:
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
        if request.content_type() is Media.SESSION or accept is Media.SESSION:
            await while_present(request.exchange, self._sessions.read(request, basin, name))
        elif accept is Media.EVENTS:
            await while_present(request.exchange, self._events.read(request, basin, name))
        else:
            await self._data.read(request, basin, name)

    async def _tail(self, request: Request, segment: str) -> None:
        basin, name = request.basin(), request.stream_segment(segment)
        await self._data.check_tail(request, basin, name)

    async def _health(self, request: Request) -> None:
        if self._node.state in {NodeState.SERVING, NodeState.DRAINING}:
            await request.exchange.respond(200, [TEXT], b"OK")
        else:
            why = self._node.unavailable().message
            await request.exchange.respond(503, [TEXT], why.encode())

    async def _metrics(self, request: Request) -> None:
        await request.exchange.respond(200, [PROMETHEUS], self.telemetry.render())
