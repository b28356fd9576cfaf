"""Both adapters of the HTTP port behind one face; BOURN_TEST_EDGE=asgi runs the suite on granian.

`native` is what a reason to skip a test names where the two differ by nature.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import pytest

from bourn.cli.asgi import http_options
from bourn.http.app import App
from bourn.http.asgi import AsgiApp
from bourn.http.native import NativeServer
from bourn.limits import BACKLOG, HEAD_READ_SECS

EDGE = os.environ.get("BOURN_TEST_EDGE", "native")
assert EDGE in {"native", "asgi"}, "BOURN_TEST_EDGE is native or asgi"
IS_ASGI = EDGE == "asgi"
LEAVE_SECS = 1.0  # for granian to see that its connections have ended


def native_only(reason: str) -> pytest.MarkDecorator:
    """For what granian does not do; the reason says what it does instead."""
    return pytest.mark.skipif(IS_ASGI, reason=f"granian: {reason}")


class Edge(Protocol):
    """Serves an app on a port until it is stopped."""

    async def listen(self, host: str, port: int) -> int: ...
    async def stop(self, timeout_secs: float) -> None: ...
    def busy(self) -> int:
        """How many connections, or calls where those cannot be seen, are there."""
        ...


class NativeEdge(NativeServer):
    def busy(self) -> int:
        return len(self.connections)


class GranianEdge:
    """granian inside this process and this loop, so that tests can look into the node."""

    def __init__(self, app: App, *, head_secs: float = HEAD_READ_SECS) -> None:
        self._app = app
        self._head_secs = head_secs
        self.asgi = AsgiApp(self._opened, stop_secs=0.0)
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[App]:
        yield self._app

    async def listen(self, host: str, port: int) -> int:
        listener = socket.create_server((host, port), backlog=BACKLOG)
        listener.setblocking(False)
        found: int = listener.getsockname()[1]
        self._server = _embedded(self.asgi, listener.detach(), self._head_secs)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve())
        return found

    async def stop(self, timeout_secs: float) -> None:
        self._server.stop()
        await self.asgi.stop(timeout_secs)
        assert self._serving is not None
        _, pending = await asyncio.wait({self._serving}, timeout=LEAVE_SECS)
        if pending:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving

    def busy(self) -> int:
        return len(self.asgi._calls)


def _embedded(application: AsgiApp, descriptor: int, head_secs: float) -> Any:
    from granian._granian import SocketHolder  # noqa: PLC0415  not on the native edge
    from granian.constants import Interfaces  # noqa: PLC0415  as above
    from granian.server import embed  # noqa: PLC0415  as above

    class Embedded(embed.Server):
        def _init_shared_socket(self) -> None:
            holder: Any = SocketHolder
            self._shd = holder(descriptor, False, BACKLOG)
            self._ssp = None

    options = http_options(head_secs)
    return Embedded(application, interface=Interfaces.ASGI, log_enabled=False, **options)


def edge_of(app: App, **limits: Any) -> Edge:
    return GranianEdge(app, **limits) if IS_ASGI else NativeEdge(app, **limits)
