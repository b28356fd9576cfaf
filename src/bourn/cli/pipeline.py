"""`bourn pipeline`: runs the data pipeline on a bucket, and shows how it stands."""

import argparse
import asyncio
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from bourn.bucket.port import Bucket
from bourn.cli import render
from bourn.cli.config import load_settings
from bourn.cli.failures import DONE, CommandError, Failed, Misused, Refused
from bourn.cli.options import SETTINGS
from bourn.cli.places import locate, log_to_stderr
from bourn.cli.units import parse_duration_ns, parse_size
from bourn.clock import Clock, SystemClock
from bourn.errors import BournError, BucketRefused, BucketUnavailable
from bourn.layout.reports import JobReport, RunReport, report_shape
from bourn.limits import MIB, PIPELINE_BEAT_SECS
from bourn.model.instants import format_ms
from bourn.pipeline import status
from bourn.pipeline.place import Place, place_of
from bourn.pipeline.priority import go_behind_others
from bourn.pipeline.progress import Standing
from bourn.pipeline.runner import JOBS, ON_REQUEST, Runner
from bourn.pipeline.session import SparkMissing, require_packages
from bourn.settings import PipelineSettings, ServeSettings

NS_PER_SEC: Final = 10**9


def run(arguments: argparse.Namespace) -> int:
    """Do the jobs once, or follow the log until a signal asks to stop."""
    settings = _settings(arguments)
    serve_settings = settings_of_server(arguments)
    log_to_stderr(serve_settings.log_level)
    place = place_in(serve_settings)
    jobs = _jobs(arguments.jobs)
    if arguments.tied:
        _end_with_input()
    try:
        require_packages()
        go_behind_others(settings)
        asyncio.run(_run(arguments, place, settings, jobs))
    except (BournError, SparkMissing) as error:
        raise ending_of(error) from None
    return DONE


def show_status(arguments: argparse.Namespace) -> int:
    """Show how the table and the log stand, and the last runs."""
    place = place_in(settings_of_server(arguments))
    try:
        found = asyncio.run(_look(place))
    except BournError as error:
        raise ending_of(error) from None
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
        listen=Beats(SystemClock()) if arguments.tied else show_standing,
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


class Beats:
    """Tells a parent now and then that work is under way: {"stage": …} as a line of the output."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_at = float("-inf")

    def __call__(self, standing: Standing) -> None:
        """Tell it, unless that was just done."""
        now = self._clock.monotonic()
        if now - self._told_at >= PIPELINE_BEAT_SECS:
            self._told_at = now
            render.json_line({"stage": standing.stage})


def _end_with_input() -> None:
    """End this process, and its group if it leads one, as soon as standard input ends.

    However the parent went: nobody would know of the work any more, and none of it is lost.
    """

    def watch() -> None:
        try:
            while os.read(sys.stdin.fileno(), 1):
                pass
        finally:
            os.kill(0 if os.getpgid(0) == os.getpid() else os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="bourn-parent", daemon=True).start()


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
        if arguments.grace is not None:
            given["grace_secs"] = parse_duration_ns(arguments.grace) / NS_PER_SEC
        return PipelineSettings(**given)
    except ValueError as error:
        raise Misused(str(error)) from None


def settings_of_server(arguments: argparse.Namespace) -> ServeSettings:
    """Read the server's own settings: a pipeline finds the bucket as its server does."""
    every = {setting.name: getattr(arguments, setting.name, None) for setting in SETTINGS}
    known = argparse.Namespace(config=arguments.config, **every)
    return load_settings(known, os.environ, Path.cwd())


def place_in(settings: ServeSettings) -> Place:
    """Return the server's bucket."""
    try:
        return place_of(locate(settings.bucket, settings.path), os.environ)
    except BucketRefused as error:
        raise Misused(error.message) from None


def _jobs(text: str | None) -> list[str]:
    if text is None:
        return list(JOBS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (*JOBS, *ON_REQUEST):
            known = ",".join((*JOBS, *ON_REQUEST))
            raise Misused(f"--jobs: there is no job {name!r}: write some of {known}")
    return names


def ending_of(error: BournError | SparkMissing) -> CommandError:
    """Return how a command ends for an error of the pipeline."""
    match error:
        case SparkMissing():
            return Misused(str(error))
        case BucketUnavailable():
            return Failed(error.message)
        case _:
            return Refused(error.message)


def show_standing(standing: Standing) -> None:
    """Show how far the work has come, to whoever looks at a terminal."""
    parts = [standing.stage]
    if standing.commits_all:
        parts += [
            f"{standing.commits:,} of {standing.commits_all:,} {standing.unit}",
            f"{mib(standing.bytes)} of {mib(standing.bytes_all)}",
            f"{standing.records:,} records",
            f"{mib(standing.bytes_per_sec)}/s",
        ]
    render.progress(", ".join(filter(None, parts)))


def _tell(report: RunReport) -> None:
    render.progress("")
    if report.error:
        return  # the command's last line, or the log, says it
    for job in report.jobs:
        render.line(f"{job.name}: {_job_line(job)}")


def _job_line(job: JobReport) -> str:
    """Say what a job did, of whichever kind it is."""
    if not job.rounds:
        return "nothing to do"
    said: list[str] = []
    if job.commits:
        said += [f"{job.commits:,} commits", mib(job.log_bytes)]
    if job.files:
        said.append(f"{job.records:,} records in {job.files} files of {mib(job.file_bytes)}")
    for name, value in job.facts.items():
        what, size, _ = name.rpartition("_bytes")
        shown = f"{mib(value)} {what}" if size else f"{value:,} {name}"
        said += [shown.replace("_", " ")] if value else []
    secs = job.secs.get("tiering", 0.0)
    said += [f"{mib(job.log_bytes / secs)}/s"] if secs else []
    taken = ", ".join(f"{stage} {secs:.1f} s" for stage, secs in job.secs.items())
    return "; ".join(filter(None, (", ".join(said), taken)))


def _tell_json(report: RunReport) -> None:
    render.json_line(report_shape(report))


def mib(size: float) -> str:
    """Return a size as people read it."""
    return f"{size / MIB:,.1f} MiB"


def _status_lines(found: status.PipelineStatus) -> dict[str, Any]:
    more = " or more" if found.lag_is_cut else ""
    lines: dict[str, Any] = {
        "table": f"version {found.table_version}" if found.table_version >= 0 else "none yet",
        "log in it": f"{found.table_end_ordinal:,} commits",
        "records": f"{found.records:,} in {found.files:,} files of {mib(found.file_bytes)}",
        "waiting": f"{found.lag_commits:,} commits, {mib(found.lag_bytes)}{more}",
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
