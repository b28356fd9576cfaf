"""`bourn pipeline audit`: proves that the bucket holds what it must, and says what it does not."""

import argparse
import asyncio
import os
import random
import signal
from typing import Any, Final

from bourn.bucket.retry import Retry
from bourn.cli import render
from bourn.cli.failures import DONE, REFUSED, Misused
from bourn.cli.pipeline import ending_of, mib, place_in, settings_of_server, show_standing
from bourn.cli.places import log_to_stderr
from bourn.clock import SystemClock
from bourn.errors import BournError
from bourn.layout.audits import KINDS, AuditReport, Violation
from bourn.layout.reports import report_shape
from bourn.pipeline.audit import Audit
from bourn.pipeline.job import Tools
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.runner import RETRY_SECS
from bourn.pipeline.session import Spark, SparkMissing, require_packages
from bourn.settings import PipelineSettings

_SHOWN: Final = (
    "streams",
    "log records",
    "history records",
    "records in both",
    "commits",
    "log bytes",
    "segments",
    "history bytes",
    "snapshots",
    "versions",
)


def audit(arguments: argparse.Namespace) -> int:
    """Audit a bucket; 0 where it is clean, 1 where it is not."""
    serve_settings = settings_of_server(arguments)
    log_to_stderr(serve_settings.log_level)
    place = place_in(serve_settings)
    settings = _settings(arguments.master)
    try:
        require_packages()
        if settings.is_local:
            os.nice(settings.niceness)
        report, names = asyncio.run(_audit(place, settings))
    except (BournError, SparkMissing) as error:
        raise ending_of(error) from None
    render.progress("")
    if arguments.json:
        render.json_line(_shape(report, names))
    else:
        _tell(report, names, arguments.show)
    return DONE if report.is_clean else REFUSED


def _settings(master: str | None) -> PipelineSettings:
    try:
        return PipelineSettings() if master is None else PipelineSettings(master=master)
    except ValueError as error:
        raise Misused(str(error)) from None


async def _audit(
    place: Place, settings: PipelineSettings
) -> tuple[AuditReport, StreamNames | None]:
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    clock, rng = SystemClock(), random.SystemRandom()
    bucket = await asyncio.to_thread(place.open)
    spark = Spark(settings)
    tools = Tools(bucket, place, spark, clock, rng, Retry(clock, rng, RETRY_SECS), settings)
    job = Audit(tools)
    try:
        report = await job.audit(Progress(clock, show_standing))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        await asyncio.to_thread(spark.close)
        await bucket.close()
    return report, job.names


def _tell(report: AuditReport, names: StreamNames | None, shown: int) -> None:
    counts = report.counts
    lines: dict[str, Any] = {
        name: mib(counts[name]) if name.endswith("bytes") else f"{counts[name]:,}"
        for name in _SHOWN
        if name in counts
    }
    secs = (report.ended_at_ms - report.started_at_ms) / 1000
    render.config(lines | {"took": f"{secs:,.1f} s", "report": report.key})
    for note in report.notes:
        render.line(f"note: {note}")
    for violation in report.violations[: max(shown, 0)]:
        render.line(_line(violation, names))
    hidden = report.violations_total - min(len(report.violations), max(shown, 0))
    if hidden:
        render.line(f"and {hidden:,} more; the report has {len(report.violations):,} of them")
    if report.is_clean:
        render.line("clean: nothing is missing, altered, repeated or out of order")
    else:
        kinds = sorted({violation.kind for violation in report.violations})
        for kind in kinds:
            render.line(f"{kind}: {KINDS[kind]}")
        render.line(f"{report.violations_total:,} violations")


def _line(violation: Violation, names: StreamNames | None) -> str:
    parts = [f"{violation.kind}:", violation.key + ":"]
    if violation.stream_id is not None:
        parts.append(f"stream {_stream(violation.stream_id, names)}")
        if violation.seq_num is not None:
            parts.append(f"at {violation.seq_num}")
        parts[-1] += ":"
    return render.printable(" ".join([*parts, violation.what]))


def _stream(stream_id: int, names: StreamNames | None) -> str:
    found = None if names is None else names.get(stream_id)
    return f"{found[0]}/{found[1]} ({stream_id})" if found else str(stream_id)


def _shape(report: AuditReport, names: StreamNames | None) -> dict[str, Any]:
    """Return the report with the names of streams, which the stored one has not."""
    shape = report_shape(report) | {"key": report.key, "clean": report.is_clean}
    for violation in shape["violations"]:
        found = None if names is None else names.get(violation["stream_id"])
        violation["basin"], violation["stream"] = found or (None, None)
    return shape
