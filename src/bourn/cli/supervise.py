"""Runs the pipeline beside the server: a process that is there only while there is work for it.

```
            enough waits, or has waited long enough
   watching ───────────────────────────────────────► running ──┐ reports
      ▲ ▲                                              │ │     ▼
      │ └────────────── nothing to do for a while ─────┘ │   state
      └──────── a pause that grows ◄──── it ended ───────┘
```

A process that only looks now and then would take 230 MB and, on a remote bucket, some requests each
second. So the server watches the log itself, by numbers that it has in memory anyway.
"""

import asyncio
import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from bourn.bucket.local import LocalBucket
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff
from bourn.cli.log_watch import LogWatch
from bourn.cli.supervise_child import Child
from bourn.clock import Clock
from bourn.engine.node import Node, NodeState
from bourn.engine.process import ARROW_POOL
from bourn.errors import BournError
from bourn.http.pipeline_state import PipelineState
from bourn.layout.reports import JobReport, RunReport, encode_report
from bourn.limits import (
    PIPELINE_GRACE_SECS,
    PIPELINE_IDLE_SECS,
    PIPELINE_POLL_SECS,
    PIPELINE_RESTART_SECS_MAX,
    PIPELINE_RESTART_SECS_MIN,
    PIPELINE_SILENCE_SECS,
    PIPELINE_STOP_SECS,
    PIPELINE_UPKEEP_SECS,
)

log = logging.getLogger(__name__)

_OUR_VARIABLES: Final = ("BOURN_", ARROW_POOL)  # settings of the server, its root token among them
ERROR_CHARS_MAX: Final = 500
NEVER: Final = float("-inf")
TIER: Final = "tier"  # the job that brings the log into the table


class Beat(msgspec.Struct):
    """What the process says while it works."""

    stage: str


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and when."""

    command: tuple[str, ...]
    master: str
    backlog_bytes: int
    age_secs: float
    poll_secs: float = PIPELINE_POLL_SECS
    grace_secs: float = PIPELINE_GRACE_SECS  # behind a start of the server, which goes first
    idle_secs: float = PIPELINE_IDLE_SECS
    silence_secs: float = PIPELINE_SILENCE_SECS
    upkeep_secs: float = PIPELINE_UPKEEP_SECS
    restart_secs_min: float = PIPELINE_RESTART_SECS_MIN
    restart_secs_max: float = PIPELINE_RESTART_SECS_MAX
    stop_secs: float = PIPELINE_STOP_SECS


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the child needs: the bucket's credentials, and none of the server's settings."""
    return {name: text for name, text in environ.items() if not name.startswith(_OUR_VARIABLES)}


@asynccontextmanager
async def supervised(
    plan: Supervision | None, node: Node, bucket: Bucket, clock: Clock, state: PipelineState
) -> AsyncIterator[None]:
    """Watch the log in the block and, with a plan, have the pipeline work on it.

    Behind the block no process of it is left.
    """
    rng = random.SystemRandom()
    watch = LogWatch(node, bucket, clock, rng, state)
    tasks: list[asyncio.Task[None]] = []
    if bucket.is_remote or plan is not None or isinstance(bucket, LocalBucket):
        tasks.append(asyncio.create_task(watch.run(), name="log watch"))
    if plan is not None:
        supervisor = Supervisor(plan, node, bucket, watch, clock, rng)
        tasks.append(asyncio.create_task(supervisor.run(), name="pipeline"))
    for task in tasks:
        task.add_done_callback(_tell_of_bugs)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_of_bugs(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the %s has ended", task.get_name(), exc_info=task.exception())


class Supervisor:
    """The pipeline of one server. `run` is its life; cancelling it ends the process too."""

    def __init__(
        self,
        plan: Supervision,
        node: Node,
        bucket: Bucket,
        watch: LogWatch,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._plan = plan
        self._node = node
        self._bucket = bucket
        self._watch = watch
        self._clock = clock
        self._rng = rng
        self.state: PipelineState = watch.state
        self._beat_at = NEVER  # when it told the last time that it works
        self._busy_at = 0.0  # when there was something to do the last time
        self._upkeep_at = clock.monotonic()
        self._backoff = self._new_backoff()
        self._started_ms = 0
        self._said = ""  # the last line on standard error
        self._is_told = False  # that it failed, to whoever asks for the status

    def _new_backoff(self) -> Backoff:
        plan = self._plan
        return Backoff(self._clock, self._rng, plan.restart_secs_min, plan.restart_secs_max)

    async def run(self) -> None:
        """Watch, start, restart; for ever."""
        self.state.is_enabled = True
        await self._clock.sleep(min(self._plan.grace_secs, self._plan.age_secs))
        while True:
            await self._clock.sleep(self._plan.poll_secs)
            if self._may_run and self._is_due():
                await self._attend()

    @property
    def _may_run(self) -> bool:
        return self._node.state in {NodeState.SERVING, NodeState.REBUILDING}

    def _is_due(self) -> bool:
        """Whether somebody should look, because of the log or because none has for long."""
        if self._watch.has_work:
            lag = self._watch.lag()
            if lag.size_bytes >= self._plan.backlog_bytes or lag.secs >= self._plan.age_secs:
                return True
        since = self._clock.monotonic() - self._upkeep_at
        return self.state.table_version >= 0 and since >= self._plan.upkeep_secs

    async def _attend(self) -> None:
        """Run the process until it ends or nothing is left to do."""
        try:
            child = await Child.start(
                self._plan.command,
                child_environment(os.environ),
                out=self._on_report,
                err=self._on_line,
            )
        except OSError as error:
            await self._failed(f"the pipeline cannot be started: {error.strerror}")
            return
        state = self.state
        state.is_running, state.pid = True, child.pid
        state.starts += 1
        self._said = ""
        self._started_ms = self._clock.now_ms()
        self._busy_at = self._upkeep_at = self._clock.monotonic()
        self._beat_at = NEVER
        log.info("the pipeline starts as process %d on %s", child.pid, self._plan.master)
        ending = asyncio.create_task(child.ended())
        try:
            while not ending.done() and self._is_wanted():
                await asyncio.wait({ending}, timeout=self._plan.poll_secs)
        finally:
            if not ending.done():
                # Nothing must come between this and the end of the process.
                await asyncio.shield(child.stop(self._plan.stop_secs))
            with suppress(asyncio.CancelledError):
                await ending
            state.is_running, state.pid = False, 0
        code = ending.result()
        if self._is_wanted() and code:
            state.restarts += 1
            await self._failed(_how(code, self._said))

    def _is_wanted(self) -> bool:
        """Whether there is, or was a while ago, something to do."""
        if not self._may_run:
            return False
        now = self._clock.monotonic()
        if self._is_due():
            self._busy_at = now
        is_working = now - self._beat_at < self._plan.silence_secs  # as it says itself
        return is_working or now - self._busy_at < self._plan.idle_secs

    def _on_report(self, line: bytes) -> None:
        with suppress(ValueError):
            msgspec.json.decode(line, type=Beat)
            self._beat_at = self._clock.monotonic()
            return
        try:
            report = msgspec.json.decode(line, type=RunReport)
        except ValueError:
            self._on_line(line)
            return
        state = self.state
        state.runs += 1
        state.last_started_ms, state.last_ended_ms = report.started_at_ms, report.ended_at_ms
        state.last_error = report.error
        self._upkeep_at = self._clock.monotonic()
        self._beat_at = NEVER
        if report.error:
            state.failures += 1
            return  # the process says it, and goes on by itself
        self._backoff = self._new_backoff()
        self._is_told = False
        for job in report.jobs:
            if job.name == TIER:
                self._watch.table_reached(job.table_version, job.end_ordinal)
            if job.rounds:
                log.info("pipeline: %s", _job_line(job))

    def _on_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._said = text
            sys.stderr.write(f"pipeline: {text}\n")

    async def _failed(self, why: str) -> None:
        """Note an end that nobody had asked for, and wait a while."""
        state = self.state
        state.failures += 1
        now_ms = self._clock.now_ms()
        state.last_started_ms, state.last_ended_ms = self._started_ms or now_ms, now_ms
        state.last_error = why[:ERROR_CHARS_MAX]
        log.warning("%s; it will be started again", state.last_error)
        if not self._is_told:
            self._is_told = True  # once for each series: a report is an object
            await self._report(state)
        await self._backoff.pause()

    async def _report(self, state: PipelineState) -> None:
        report = RunReport(
            run=f"{self._rng.getrandbits(64):016x}",
            master=self._plan.master,
            started_at_ms=state.last_started_ms,
            ended_at_ms=state.last_ended_ms,
            error=state.last_error,
        )
        try:
            await self._bucket.put_if_absent(report.key, encode_report(report))
        except BournError as error:
            log.debug("the report of this end is lost: %s", error)


def _how(code: int, said: str) -> str:
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the pipeline's process ended with {ended}" + (f": {said}" if said else "")


def _job_line(job: JobReport) -> str:
    parts = [f"{job.commits:,} commits"] if job.commits else []
    parts += [f"{job.records:,} records in {job.files:,} files", f"{sum(job.secs.values()):,.1f} s"]
    return f"{job.name}: {', '.join(parts)}"
