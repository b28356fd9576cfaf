"""The server on the ASGI edge, `bourn serve --edge asgi`: under granian, with our own limits."""

import asyncio
import importlib.util
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from bourn.cli.access import is_loopback
from bourn.cli.failures import DONE, FAILED, Misused
from bourn.cli.places import log_to_stderr
from bourn.cli.serve import STOP_SECS, Plan, make_plan, opened_app, say_ready
from bourn.clock import SystemClock
from bourn.engine.give_back import giving_back
from bourn.engine.process import end_with_parent, leave_out_pandas, tune_process
from bourn.http.app import App
from bourn.http.asgi import AsgiApp
from bourn.limits import (
    BACKLOG,
    CONCURRENT_STREAMS_MAX,
    CONNECTION_WINDOW_BYTES,
    GOAWAY_LAG_SECS,
    HEAD_BYTES_MAX,
    HEAD_READ_SECS,
    SEND_BUFFER_BYTES_MAX,
    STREAM_WINDOW_BYTES,
)
from bourn.settings import ServeSettings

LEAVE_SECS: Final = 5  # for a client that does not read, nor goes, once all calls have ended
KILL_SECS: Final = int(STOP_SECS) + LEAVE_SECS
CONNECTIONS_MAX: Final = 1 << 20  # the limit of open files comes first
KEEP_ALIVE_MS: Final = 60_000  # a client that vanished without a word is noticed by pings
READY_POLL_SECS: Final = 0.02


def http_options(head_secs: float = HEAD_READ_SECS) -> dict[str, Any]:
    """The limits of HTTP, in granian's words."""
    from granian.http import HTTP1Settings, HTTP2Settings  # noqa: PLC0415  not everybody has it

    return {
        "backlog": BACKLOG,
        "backpressure": CONNECTIONS_MAX,
        "websockets": False,
        "http1_settings": HTTP1Settings(
            header_read_timeout=int(head_secs * 1000), max_buffer_size=HEAD_BYTES_MAX
        ),
        "http2_settings": HTTP2Settings(
            initial_connection_window_size=CONNECTION_WINDOW_BYTES,
            initial_stream_window_size=STREAM_WINDOW_BYTES,
            keep_alive_interval=KEEP_ALIVE_MS,
            max_concurrent_streams=CONCURRENT_STREAMS_MAX,
            max_headers_size=HEAD_BYTES_MAX,
            max_send_buffer_size=SEND_BUFFER_BYTES_MAX,
        ),
    }


# The worker: the application, in a process of granian's


def _loaded(settings: ServeSettings) -> AsgiApp:
    end_with_parent()
    leave_out_pandas()
    application = make_application(settings)
    _stop_behind(application)
    return application


def make_application(settings: ServeSettings) -> AsgiApp:
    """Return the application of these settings; its lifespan opens the bucket and the node."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[App]:
        log_to_stderr(settings.log_level)
        plan = make_plan(settings, will_listen=False)
        async with opened_app(plan, SystemClock()) as found:
            tune_process()
            async with giving_back(SystemClock()):
                yield found.app

    return AsgiApp(opened, stop_secs=STOP_SECS)


def _stop_behind(application: AsgiApp) -> None:
    """Have granian hear of a signal only when the application has told its clients to go.

    It would say GOAWAY at once, which some clients take for the end of all that they are doing.
    They never confirm it either, and granian would wait for that. Nothing is open by then but its
    connections, so the process ends without them.
    """
    from granian import _signals  # noqa: PLC0415  not everybody has it

    usual = _signals.set_loop_signals
    stops: list[asyncio.Task[None]] = []

    def set_loop_signals(loop: asyncio.AbstractEventLoop) -> Any:
        told = usual(loop)  # type: ignore[no-untyped-call]  # untyped

        def tell() -> None:
            told.set()
            # The loop may have ended by then.
            end = threading.Timer(LEAVE_SECS, os._exit, (DONE,))
            end.daemon = True
            end.start()

        def begin() -> None:
            stop = loop.create_task(application.stop())
            stop.add_done_callback(lambda _: loop.call_later(GOAWAY_LAG_SECS, tell))
            stops.append(stop)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, begin)
        return told

    _signals.set_loop_signals = set_loop_signals


# The parent: granian itself


def run(plan: Plan) -> int:
    """Serve under granian until a signal asks to stop; returns the exit code."""
    settings = plan.settings
    if importlib.util.find_spec("granian") is None:
        raise Misused("the asgi edge needs granian: pip install 'bourn[asgi]'")
    if settings.tls_self:
        raise Misused("tls_self is for the native edge: give tls_cert and tls_key")
    from granian import Granian  # noqa: PLC0415  not everybody has it
    from granian.constants import Interfaces  # noqa: PLC0415  as above
    from granian.log import LogLevels  # noqa: PLC0415  as above

    with _reserved(settings.host, settings.port) as port:
        server = Granian(
            "bourn",
            address=settings.host,
            port=port,
            interface=Interfaces.ASGI,
            workers=1,
            workers_kill_timeout=KILL_SECS,
            log_level=LogLevels.warning,
            ssl_cert=Path(settings.tls_cert) if settings.tls_cert else None,
            ssl_key=Path(settings.tls_key) if settings.tls_key else None,
            **http_options(),
        )
        is_open = settings.auth is False or (
            settings.auth is None and not settings.root_token and is_loopback(settings.host)
        )
        _when_listening(
            settings.host,
            port,
            lambda: say_ready(settings, port, settings.bucket, is_open=is_open),
        )
        # A fork would take over the state of threads that it does not have.
        multiprocessing.set_start_method("spawn", force=True)
        try:
            server.serve(target_loader=partial(_loaded, settings), wrap_loader=False)
        except SystemExit as end:
            return FAILED if end.code else DONE
    return DONE


class _reserved:  # noqa: N801  used as a function
    """Hold a port while granian's processes bind it again: port 0 must be one and the same."""

    def __init__(self, host: str, port: int) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(address)

    def __enter__(self) -> int:
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _when_listening(host: str, port: int, say: Callable[[], None]) -> None:
    """Call once a connection is taken; whoever holds the port without listening takes none."""

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(READY_POLL_SECS):
            with suppress(OSError), socket.create_connection((host, port), 1.0):
                say()
                return

    threading.Thread(target=watch, name="bourn-ready", daemon=True).start()
