"""`bourn pipeline export`, `import`, `replay`: records of streams to files, back, and across."""

import argparse
import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from bourn.bucket.location import parse_bucket
from bourn.bucket.retry import Retry
from bourn.cli import render
from bourn.cli.address import SCHEME
from bourn.cli.failures import DONE, CommandError, Failed, Misused, Refused
from bourn.cli.keys import key_in
from bourn.cli.pipeline import ending_of, mib, place_in, settings_of_server
from bourn.cli.places import log_to_stderr
from bourn.client import BadAddress, Client, ClientError, Retries, Settings
from bourn.clock import SystemClock
from bourn.errors import BadName, BournError, BucketRefused
from bourn.limits import MIB
from bourn.model import names
from bourn.pipeline.export import Export
from bourn.pipeline.export_endpoint import EndpointExport
from bourn.pipeline.export_plan import Bounds, Wanted
from bourn.pipeline.export_target import ExportReport, ExportTarget
from bourn.pipeline.job import Tools
from bourn.pipeline.load import Load, TransferReport
from bourn.pipeline.load_place import open_source
from bourn.pipeline.load_stream import CopyOptions
from bourn.pipeline.place import Place, place_of
from bourn.pipeline.progress import Progress, Standing
from bourn.pipeline.replay import Replay
from bourn.pipeline.session import Spark, SparkMissing, require_packages
from bourn.settings import PipelineSettings

RETRY_SECS: Final = 30.0
# A server that starts again is waited for: half a minute.
RETRIES: Final = Retries(attempts=14, pause_secs_min=0.2, pause_secs_max=3.0)
SHOW_SECS: Final = 0.2
AGAIN: Final = ": run it again, and it goes on where it stopped"

Connect = Callable[[], Client]


def export(arguments: argparse.Namespace) -> int:
    """Write records of streams to files."""
    wanted = parse_streams(arguments.streams)
    bounds = Bounds(
        arguments.from_seq_num or 0,
        arguments.to_seq_num,
        arguments.from_timestamp or 0,
        arguments.to_timestamp,
    )
    clock, rng = SystemClock(), random.SystemRandom()
    retry = Retry(clock, rng, RETRY_SECS)
    target = ExportTarget(_place(arguments.to, "--to"), arguments.format, clock, rng, retry)
    try:
        if arguments.endpoint is not None:
            connect = _connector(arguments.endpoint, wanted.basin, arguments.token, arguments)
            meter = Meter("exporting", clock)
            work = EndpointExport(connect, target, clock, meter.note).run(wanted, bounds)
            report = asyncio.run(_until_signal(work))
        else:
            report = _export_from_bucket(arguments, target, wanted, bounds, retry)
    except (BournError, SparkMissing, ClientError) as error:
        raise _ending(error) from None
    finally:
        render.progress("")
    _tell_export(report, arguments)
    return DONE


def _export_from_bucket(
    arguments: argparse.Namespace,
    target: ExportTarget,
    wanted: Wanted,
    bounds: Bounds,
    retry: Retry,
) -> ExportReport:
    try:
        settings = PipelineSettings(**({"master": arguments.master} if arguments.master else {}))
    except ValueError as error:
        raise Misused(str(error)) from None
    serve_settings = settings_of_server(arguments)
    log_to_stderr(serve_settings.log_level)
    place = place_in(serve_settings)
    require_packages()
    clock, rng = SystemClock(), random.SystemRandom()

    async def work() -> ExportReport:
        spark = Spark(settings)
        bucket = await asyncio.to_thread(place.open)
        try:
            tools = Tools(bucket, place, spark, clock, rng, retry, settings)
            progress = Progress(clock, _show)
            return await Export(tools, target).run(wanted, bounds, progress)
        finally:
            await asyncio.to_thread(spark.close)
            await bucket.close()

    return asyncio.run(_until_signal(work()))


async def _until_signal(work: Coroutine[object, object, ExportReport]) -> ExportReport:
    """Do the work, or end it in order where a signal asks for that."""
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        render.note("interrupted: nothing of the export stays")
        raise KeyboardInterrupt from None


def load(arguments: argparse.Namespace) -> int:
    """Append the records of files to streams."""
    to = parse_streams(arguments.to)
    if to.is_prefix and to.stream:
        raise Misused(f"--to: {arguments.to!r} names no stream: write {SCHEME}basin/stream")
    if arguments.at and to.is_prefix:
        raise Misused("--at is for one stream: write --to s2://basin/stream")
    clock = SystemClock()
    meter = Meter("importing", clock)
    connect = _connector(arguments.endpoint, to.basin, arguments.token, arguments)
    options = CopyOptions(arguments.at, arguments.new_timestamps)
    stream = None if to.is_prefix else to.stream
    try:
        source = open_source(_place(arguments.source, "PLACE"), arguments.format)
        report = Load(connect, options, clock, meter.note, to=stream).run(source)
    except (BournError, ClientError) as error:
        raise _ending(error, AGAIN) from None
    finally:
        render.progress("")
    _tell(report, "imported", arguments)
    return DONE


def replay(arguments: argparse.Namespace) -> int:
    """Append the records of streams to other streams."""
    wanted, to = parse_streams(arguments.streams), parse_streams(arguments.to)
    if to.is_prefix and to.stream:
        raise Misused(f"--to: {arguments.to!r} names no stream: write {SCHEME}basin/stream")
    if wanted.is_prefix and not to.is_prefix:
        raise Misused("--to names one stream, and several are read: write --to s2://basin")
    clock = SystemClock()
    meter = Meter("replaying", clock)
    if (wanted.basin, arguments.from_endpoint) == (to.basin, arguments.to_endpoint) and (
        to.is_prefix or wanted.stream == to.stream
    ):
        raise Misused("a stream cannot be replayed to itself: name another with --to")
    work = Replay(
        _end(arguments, "from", wanted.basin),
        _end(arguments, "to", to.basin),
        clock,
        meter.note,
        new_timestamps=arguments.new_timestamps,
        speed=arguments.speed,
    )
    try:
        report = work.run(work.routes(wanted, None if to.is_prefix else to.stream))
    except (BournError, ClientError) as error:
        raise _ending(error, AGAIN) from None
    finally:
        render.progress("")
    _tell(report, "replayed", arguments)
    return DONE


def _end(arguments: argparse.Namespace, side: str, basin: str) -> Connect:
    """Return one of the two ends of a replay."""
    file = getattr(arguments, f"{side}_encryption_key_file")
    given = argparse.Namespace(encryption_key_file=file)
    url, token = getattr(arguments, f"{side}_endpoint"), getattr(arguments, f"{side}_token")
    return _connector(url, basin, token, given, f"--{side}-endpoint")


def parse_streams(text: str) -> Wanted:
    """Read `s2://basin`, `s2://basin/stream` and `s2://basin/prefix*`."""
    basin, _, stream = text.removeprefix(SCHEME).partition("/")
    try:
        names.basin_name(basin)
        if stream and not stream.endswith("*"):
            names.stream_name(stream)
    except BadName as error:
        raise Misused(
            f"{text!r} names no streams: {error.message}: write s2://basin/stream, "
            "s2://basin/prefix* or s2://basin"
        ) from None
    return Wanted(basin, stream.removesuffix("*"), not stream or stream.endswith("*"))


class Meter:
    """Shows how far the records of several threads have come."""

    def __init__(self, stage: str, clock: SystemClock) -> None:
        self._stage = stage
        self._clock = clock
        self._turn = threading.Lock()
        self._began = clock.monotonic()
        self._shown = self._began
        self._records = self._bytes = 0

    def note(self, records: int, size_bytes: int) -> None:
        """Add to what is done."""
        with self._turn:
            self._records += records
            self._bytes += size_bytes
            now = self._clock.monotonic()
            if now - self._shown < SHOW_SECS:
                return
            self._shown = now
            rate = self._bytes / (now - self._began)
            render.progress(
                f"{self._stage}, {self._records:,} records, {mib(self._bytes)}, {mib(rate)}/s"
            )


def _connector(
    url: str | None,
    basin: str,
    token: str | None,
    arguments: argparse.Namespace,
    origin: str = "--endpoint",
) -> Connect:
    try:
        settings = Settings.of(
            basin,
            url,
            token=token,
            encryption_key=key_in(arguments),
            retries=RETRIES,
            origin=origin,
        )
    except BadAddress as error:
        raise Misused(error.message) from None
    return lambda: Client(settings)


def _place(text: str, flag: str) -> Place:
    try:
        location = parse_bucket(text)
        if location.scheme == "memory":
            raise Misused(f"{flag}: files in memory are gone with the command: name a place")
        return place_of(location, os.environ)
    except BucketRefused as error:
        raise Misused(f"{flag}: {error.message}") from None


def _ending(error: BournError | SparkMissing | ClientError, remedy: str = "") -> CommandError:
    if isinstance(error, ClientError):
        return Failed(f"{error}{remedy}") if error.is_retryable else Refused(str(error))
    return ending_of(error)


def _show(standing: Standing) -> None:
    parts = [standing.stage]
    if standing.commits_all:
        parts += [
            f"{standing.commits:,} of {standing.commits_all:,} parts",
            f"{standing.records:,} records",
            f"{mib(standing.bytes_per_sec)}/s",
        ]
    render.progress(", ".join(parts))


def _tell_export(report: ExportReport, arguments: argparse.Namespace) -> None:
    if arguments.json:
        render.json_line(msgspec.to_builtins(report))
        return
    rate = report.metered_bytes / MIB / report.secs if report.secs else 0.0
    render.line(
        f"exported {report.records:,} records of {report.streams:,} streams to {report.to}: "
        f"{report.parts:,} parts, {mib(report.part_bytes)}, in {report.secs:,.1f} s, "
        f"{rate:,.1f} MiB/s"
    )


def _tell(report: TransferReport, what: str, arguments: argparse.Namespace) -> None:
    if arguments.json:
        shape: dict[str, Any] = msgspec.to_builtins(report)
        render.json_line(shape)
        return
    there = f", {report.skipped:,} were there already" if report.skipped else ""
    left = f", {report.commands:,} commands were left out" if report.commands else ""
    render.line(
        f"{what} {report.records:,} records to {report.streams:,} streams{there}{left}, "
        f"in {report.secs:,.1f} s"
    )
