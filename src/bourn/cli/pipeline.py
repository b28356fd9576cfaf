"""`bourn pipeline`: runs the data pipeline on a bucket, and shows how it stands."""

import argparse
import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any, Final

from bourn.bucket.port import Bucket
from bourn.cli import render
from bourn.cli.config import load_settings
from bourn.cli.failures import DONE, CommandError, Failed, Misused, Refused
from bourn.cli.options import SETTINGS
from bourn.cli.places import locate, log_to_stderr
from bourn.cli.units import parse_duration_ns, parse_size
from bourn.clock import SystemClock
from bourn.errors import BournError, BucketRefused, BucketUnavailable
from bourn.layout.reports import RunReport, report_shape
from bourn.limits import MIB
from bourn.model.instants import format_ms
from bourn.pipeline import status
from bourn.pipeline.place import Place, place_of
from bourn.pipeline.progress import Standing
from bourn.pipeline.runner import JOBS, Runner
from bourn.pipeline.session import SparkMissing, require_packages
from bourn.settings import PipelineSettings, ServeSettings

NS_PER_SEC: Final = 10**9


def run(arguments: argparse.Namespace) -> int:
    """Do the jobs once, or follow the log until a signal asks to stop."""
    settings = _settings(arguments)
    serve_settings = _serve_settings(arguments)
    log_to_stderr(serve_settings.log_level)
    place = _place(serve_settings)
    jobs = _jobs(arguments.jobs)
    try:
        require_packages()
        if settings.is_local:
            os.nice(settings.niceness)
        asyncio.run(_run(arguments, place, settings, jobs))
    except (BournError, SparkMissing) as error:
        raise _ending(error) from None
    return DONE


def show_status(arguments: argparse.Namespace) -> int:
    """Show how the table and the log stand, and the last runs."""
    place = _place(_serve_settings(arguments))
    try:
        found = asyncio.run(_look(place))
    except BournError as error:
        raise _ending(error) from None
    if arguments.json:
        render.json_line(found.shape())
    else:
        render.config(_status_lines(found))
    return DONE


async def _run(
    arguments: argparse.Namespace, place: Place, settings: PipelineSettings, jobs: list[str]
) -> None:
    stop = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(
            number, stop.set if arguments.follow else main.cancel
        )
    runner = Runner(
        place,
        settings,
        SystemClock(),
        random.SystemRandom(),
        listen=_show,
        told=_tell_json if arguments.json else _tell,
        jobs=jobs,
    )
    try:
        if arguments.follow:
            render.note(f"following the log of {place.uri}")
            await runner.follow(stop)
        else:
            await runner.once()
    except asyncio.CancelledError:
        render.note("interrupted: what was under way does not count, and can be run again")
        raise KeyboardInterrupt from None
    finally:
        await runner.close()


async def _look(place: Place) -> status.PipelineStatus:
    bucket: Bucket = await asyncio.to_thread(place.open)
    try:
        return await status.look(bucket, SystemClock(), random.SystemRandom())
    finally:
        await bucket.close()


def _settings(arguments: argparse.Namespace) -> PipelineSettings:
    given: dict[str, Any] = {}
    if arguments.master is not None:
        given["master"] = arguments.master
    try:
        if arguments.backlog is not None:
            given["backlog_bytes"] = parse_size(arguments.backlog)
        if arguments.age is not None:
            given["age_secs"] = parse_duration_ns(arguments.age) / NS_PER_SEC
        return PipelineSettings(**given)
    except ValueError as error:
        raise Misused(str(error)) from None


def _serve_settings(arguments: argparse.Namespace) -> ServeSettings:
    """Read the server's own settings: a pipeline finds the bucket as its server does."""
    every = {setting.name: getattr(arguments, setting.name, None) for setting in SETTINGS}
    known = argparse.Namespace(config=arguments.config, **every)
    return load_settings(known, os.environ, Path.cwd())


def _place(settings: ServeSettings) -> Place:
    try:
        return place_of(locate(settings.bucket, settings.path), os.environ)
    except BucketRefused as error:
        raise Misused(error.message) from None


def _jobs(text: str | None) -> list[str]:
    if text is None:
        return list(JOBS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in JOBS:
            raise Misused(f"--jobs: there is no job {name!r}: write some of {','.join(JOBS)}")
    return names


def _ending(error: BournError | SparkMissing) -> CommandError:
    match error:
        case SparkMissing():
            return Misused(str(error))
        case BucketUnavailable():
            return Failed(error.message)
        case _:
            return Refused(error.message)


def _show(standing: Standing) -> None:
    parts = [standing.stage]
    if standing.commits_all:
        parts += [
            f"{standing.commits:,} of {standing.commits_all:,} commits",
            f"{_mib(standing.bytes)} of {_mib(standing.bytes_all)}",
            f"{standing.records:,} records",
            f"{_mib(standing.bytes_per_sec)}/s",
        ]
    render.progress(", ".join(filter(None, parts)))


def _tell(report: RunReport) -> None:
    render.progress("")
    if report.error:
        return  # the command's last line, or the log, says it
    for job in report.jobs:
        if not job.rounds:
            render.line(f"{job.name}: nothing to do, the table has every commit")
            continue
        secs = job.secs.get("tiering", 0.0)
        rate = f", {_mib(job.log_bytes / secs)}/s" if secs else ""
        shown = " ".join(f"{stage} {taken:.1f} s," for stage, taken in job.secs.items())
        render.line(
            f"{job.name}: {job.commits:,} commits, {_mib(job.log_bytes)}, {job.records:,} records "
            f"in {job.files} files of {_mib(job.file_bytes)}{rate}; {shown.rstrip(',')}"
        )


def _tell_json(report: RunReport) -> None:
    render.json_line(report_shape(report))


def _mib(size: float) -> str:
    return f"{size / MIB:,.1f} MiB"


def _status_lines(found: status.PipelineStatus) -> dict[str, Any]:
    more = " or more" if found.lag_is_cut else ""
    lines: dict[str, Any] = {
        "table": f"version {found.table_version}" if found.table_version >= 0 else "none yet",
        "log in it": f"{found.table_end_ordinal:,} commits",
        "records": f"{found.records:,} in {found.files:,} files of {_mib(found.file_bytes)}",
        "waiting": f"{found.lag_commits:,} commits, {_mib(found.lag_bytes)}{more}",
        "oldest waits": f"{found.lag_secs:,.1f} s",
        "last run": _run_line(found.last_run),
    }
    if found.last_failure is not None:
        lines["last failure"] = _run_line(found.last_failure)
    return lines


def _run_line(report: RunReport | None) -> str:
    if report is None:
        return "none"
    secs = (report.ended_at_ms - report.started_at_ms) / 1000
    outcome = f"failed: {report.error}" if report.error else f"done in {secs:,.1f} s"
    return f"{format_ms(report.started_at_ms)} on {report.master}, {outcome}"
