"""`bourn serve`: the one place where a bucket, a node and the HTTP server are put together.

Everything that can be wrong with the settings is found before the bucket is touched: opening it
takes it over from whoever serves it. Standard output carries what a person or a script waits for
(how to reach the server, and that it is ready), standard error everything else.
"""

import argparse
import asyncio
import errno
import os
import signal
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bourn.bucket.location import Location
from bourn.bucket.port import Bucket
from bourn.bucket.spool import SpooledBucket, open_spool
from bourn.cli import render
from bourn.cli.access import open_audit_log, prepare_access, say_access
from bourn.cli.config import load_settings
from bourn.cli.failures import DONE, Misused, Refused
from bourn.cli.places import locate, log_to_stderr
from bourn.cli.spec import BasinSpec, apply_spec, read_spec
from bourn.cli.supervise import Supervision, supervised
from bourn.cli.supervise_plan import NoPipeline, plan_pipeline
from bourn.cli.tls import server_context
from bourn.clock import SystemClock
from bourn.engine.give_back import giving_back
from bourn.engine.node import Node
from bourn.engine.process import leave_out_pandas, page_out, tune_process
from bourn.errors import BadName, BournError, BucketRefused
from bourn.http import lane_kernel
from bourn.http.app import App
from bourn.http.native import NativeServer
from bourn.layout import codec, joined, json_records
from bourn.layout.history import rows
from bourn.model import names
from bourn.settings import ServeSettings
from bourn.wire import json_check

STOP_SECS: Final = 10.0  # for what is under way, once a stop is asked for
PATIENCE_SECS: Final = 2.0  # a part of the start that takes longer is named
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  to show, not to bind


class Plan(NamedTuple):
    """The settings, and what they name, found to be usable."""

    settings: ServeSettings
    location: Location
    tls: ssl.SSLContext | None
    basins: list[BasinSpec]
    pipeline: Supervision | None
    no_pipeline: str  # why there is none, where that is worth a word


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal asks to stop; returns the exit code."""
    plan = make_plan(load_settings(arguments, os.environ, Path.cwd()))
    leave_out_pandas()
    if plan.settings.edge == "asgi":
        from bourn.cli import asgi  # noqa: PLC0415  it imports this module

        return asgi.run(plan)
    log_to_stderr(plan.settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(plan))
    return DONE


def make_plan(settings: ServeSettings, *, will_listen: bool = True) -> Plan:
    """Check what the settings name, without touching the bucket; Misused says what to mend.

    Who does not `will_listen` leaves that to another process, and TLS with it.
    """
    try:
        names.location_name(settings.engine.location)
    except BadName as error:
        raise Misused(f"location: {error.message}") from None
    location = locate(settings.bucket, settings.path)
    pipeline, no_pipeline = None, ""
    try:
        pipeline = plan_pipeline(settings, location, os.environ)
    except NoPipeline as why:
        no_pipeline = str(why)
    plan = Plan(
        settings,
        location,
        server_context(settings, SystemClock().now_ms()) if will_listen else None,
        read_spec(Path(settings.init_file)) if settings.init_file else [],
        pipeline,
        no_pipeline,
    )
    if will_listen:
        _check_port(settings.host, settings.port)
    return plan


def _check_port(host: str, port: int) -> None:
    """Find out that the port is taken before the bucket is: else both servers would be gone."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: Exception) -> Misused:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        remedy = "the port is taken: stop who has it, or choose another port"
    elif code == errno.EACCES:
        remedy = "the port needs privileges: choose one above 1023"
    else:
        remedy = "this machine has no such address: choose another host, such as 127.0.0.1"
    return Misused(f"cannot listen on {host} port {port}: {remedy}")


async def _serve(plan: Plan) -> None:
    stop = StopSignals()
    async with opened_app(plan, SystemClock()) as opened:
        await _listen_until(stop, opened, plan)
    render.note("stopped; everything acknowledged is durable")


class Opened(NamedTuple):
    """The API on an open node, and the name of its bucket."""

    app: App
    bucket: str


@asynccontextmanager
async def opened_app(plan: Plan, clock: SystemClock) -> AsyncIterator[Opened]:
    """Open the bucket and the node, apply the spec, and close them again behind the block."""
    settings = plan.settings
    open_audit_log(settings.audit_log)
    bucket = spooled(await _open_bucket(plan.location, clock), settings)
    try:
        node = await _open_node(bucket, plan, clock)
        try:
            access = await prepare_access(node, settings)
            say_access(access)
            app = App(
                node,
                clock,
                location=settings.engine.location,
                basin_suffixes=settings.basin_domain,
                cors=settings.cors,
                auth_required=access.is_required,
                prices=settings.usage_prices,
                limits=settings.traffic,
            )
            if plan.no_pipeline:
                render.note(f"no pipeline: {plan.no_pipeline}")
            async with supervised(plan.pipeline, node, bucket, clock, app.telemetry.pipeline):
                yield Opened(app, bucket.name)
        finally:
            await node.close()
    finally:
        await bucket.close()


class StopSignals:
    """The first signal asks for a stop; the next one, or one during the start, ends it at once.

    A start holds nothing that its end could lose: a node is made to be killed.
    """

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self.is_serving = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.is_serving:
            render.note("stopped before it was ready")
            os._exit(DONE)
        if self._wanted.is_set():
            os._exit(128 + number)
        render.note(f"stopping: up to {STOP_SECS:.0f} s for what is under way; again to end it now")
        self._wanted.set()

    async def wait(self) -> None:
        """Return when a stop is asked for."""
        await self._wanted.wait()


async def _open_bucket(location: Location, clock: SystemClock) -> Bucket:
    try:
        with _patience(clock, "loading the codecs; the first start on a machine compiles them"):
            # In threads, because the loop must hear a signal meanwhile.
            await asyncio.to_thread(page_out)
            await asyncio.to_thread(codec.warm, render.note)
            await asyncio.to_thread(json_check.warm, render.note)
            await asyncio.to_thread(json_records.warm, render.note)
            await asyncio.to_thread(joined.warm, render.note)
            await asyncio.to_thread(rows.warm, render.note)
            await asyncio.to_thread(lane_kernel.load)
            return await asyncio.to_thread(location.open)
    except BucketRefused as error:
        raise Misused(f"cannot open the bucket: {error.message}") from None


def spooled(bucket: Bucket, settings: ServeSettings) -> Bucket:
    """Return the bucket, with its newest commits on this machine where it is a remote one."""
    if not bucket.is_remote or not settings.spool_bytes:
        return bucket
    directory = Path(settings.spool_directory or tempfile.gettempdir())
    spool = open_spool(directory, settings.spool_bytes)
    if isinstance(spool, str):
        if settings.spool_directory:
            raise Misused(f"spool_directory: {spool}: name another one, or --spool-bytes 0")
        render.note(f"no spool: {spool}; --spool-directory names another place")
        return bucket
    return SpooledBucket(bucket, spool)


async def _open_node(bucket: Bucket, plan: Plan, clock: SystemClock) -> Node:
    try:
        with _patience(clock, f"reading what {bucket.name} holds"):
            node = await Node.open(bucket, plan.settings.engine, clock=clock, say=render.note)
    except BucketRefused as error:
        raise Misused(f"cannot use the bucket: {error.message}") from None
    except BournError as error:
        raise Refused(f"cannot start on {bucket.name}: {error.message}") from None
    try:
        with _patience(clock, f"applying {plan.settings.init_file}"):
            await _apply(node, plan)
    except BaseException:
        await node.close()
        raise
    return node


async def _apply(node: Node, plan: Plan) -> None:
    if not plan.basins:
        return
    name = plan.settings.init_file
    counts: Counter[str] = Counter()
    try:
        async for applied in apply_spec(node, plan.basins):
            counts[applied.provision.value] += 1
    except BournError as error:
        raise Refused(f"cannot apply {name}: {error.message}") from None
    render.note(
        f"applied {name}: {counts['created']} created, {counts['updated']} updated, "
        f"{counts['noop']} unchanged"
    )


async def _listen_until(stop: StopSignals, opened: Opened, plan: Plan) -> None:
    settings = plan.settings
    server = NativeServer(opened.app)
    stop.is_serving = True
    try:
        port = await server.listen(settings.host, settings.port, plan.tls)
    except OSError as error:
        raise _cannot_listen(settings.host, settings.port, error) from None
    tune_process()
    async with giving_back(SystemClock()):
        say_ready(settings, port, opened.bucket, is_open=not opened.app.auth.is_required)
        try:
            await stop.wait()
        finally:
            await server.stop(STOP_SECS)


def say_ready(settings: ServeSettings, port: int, bucket: str, *, is_open: bool) -> None:
    """Say how to reach the server, and that it is ready."""
    host = _ANY.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    url = f"{'https' if settings.is_encrypted else 'http'}://{host}:{port}"
    lines = [
        f'export S2_ACCOUNT_ENDPOINT="{url}"',
        f'export S2_BASIN_ENDPOINT="{url}"',
    ]
    if is_open:
        lines.append('export S2_ACCESS_TOKEN="ignored"')
    if settings.tls_self:
        lines.append('export S2_SSL_NO_VERIFY="true"')
    for line in lines:
        render.line(line)
    render.line(f"bourn is ready on {url}, data in {bucket}")


@contextmanager
def _patience(clock: SystemClock, what: str) -> Iterator[None]:
    """Say what takes long, if it does."""
    timer = clock.call_later(PATIENCE_SECS, lambda: render.note(what))
    try:
        yield
    finally:
        timer.cancel()
