"""When to do what: once, or again and again as the log grows; a report for each run.

Following costs a few requests a look and no Spark. That is started when enough of the log waits or
has waited long enough, stays warm from run to run, and is let go when nothing has come for a while.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff, Retry
from bourn.clock import Clock
from bourn.errors import BournError, ObjectExists
from bourn.layout.reports import (
    REPORT_PREFIX,
    RunReport,
    encode_report,
    is_report_key,
)
from bourn.limits import PIPELINE_REPORTS_KEPT
from bourn.pipeline.audit import Audit
from bourn.pipeline.job import Job, Tools
from bourn.pipeline.merge import Merge
from bourn.pipeline.meter import Meter
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress, Standing
from bourn.pipeline.retain import Retain
from bourn.pipeline.session import Spark, SparkMissing
from bourn.pipeline.table import checkpoint
from bourn.pipeline.tier import Tier
from bourn.settings import PipelineSettings

log = logging.getLogger(__name__)

JOBS: Final = ("tier", "merge", "retain", "meter")  # in this order
ON_REQUEST: Final = ("audit",)  # only where they are named
RETRY_SECS: Final = 30.0

Listen = Callable[[Standing], None]


class Runner:
    """The pipeline of one bucket. Ended by `close`."""

    def __init__(
        self,
        place: Place,
        settings: PipelineSettings,
        clock: Clock,
        rng: random.Random,
        *,
        listen: Listen,
        told: Callable[[RunReport], None],
        jobs: Sequence[str] = JOBS,
        spark: Spark | None = None,
    ) -> None:
        """`listen` hears of every step, `told` gets the report of every run.

        Without a `spark` of the caller's, one is started when it is needed, and ended by `close`.
        """
        self._place = place
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._listen = listen
        self._told = told
        self._spark = spark or Spark(settings)
        self._owns_spark = spark is None
        self._worked_at = clock.monotonic()
        self._checkpointed = -1  # the version of the table at the last checkpoint of ours
        self._bucket: Bucket = place.open()
        retry = Retry(clock, rng, RETRY_SECS)
        self.tier = Tier(self._bucket, place, self._spark, clock, rng, retry)
        tools = Tools(self._bucket, place, self._spark, clock, rng, retry, settings)
        known: dict[str, Job] = {
            "tier": self.tier,
            "merge": Merge(tools),
            "retain": Retain(tools),
            "meter": Meter(tools),
            "audit": Audit(tools),
        }
        self._jobs = [known[name] for name in jobs]

    async def close(self) -> None:
        """End Spark and let the bucket go."""
        if self._owns_spark:
            await asyncio.to_thread(self._spark.close)
        await self._bucket.close()

    async def once(self, jobs: Sequence[Job] | None = None) -> RunReport:
        """Do every job once, or only some; what fails is in the report, and raised."""
        report = RunReport(
            run=f"{self._rng.getrandbits(64):016x}",
            master=self._settings.master,
            started_at_ms=self._clock.now_ms(),
        )
        failed: BournError | None = None
        try:
            for job in self._jobs if jobs is None else jobs:
                try:
                    report.jobs.append(await job.run(Progress(self._clock, self._listen)))
                except BournError as error:  # the others need not suffer from it
                    failed = failed or error
            if failed is not None:
                raise failed
        except (BournError, SparkMissing) as error:
            report.error = str(error)
            raise
        finally:
            report.ended_at_ms = self._clock.now_ms()
            if any(job.rounds for job in report.jobs):
                self._worked_at = self._clock.monotonic()
            await self._keep(report)
            self._told(report)
        await self._checkpoint_if_due(report)
        return report

    async def follow(self, stop: asyncio.Event) -> None:
        """Work whenever there is enough to do, until `stop` is set."""
        backoff = self._backoff()
        self._worked_at = self._clock.monotonic()
        while not stop.is_set():
            try:
                due, before = await self._due(), self._worked_at
                if due:
                    await self._unless(stop, self.once(due))
                    backoff = self._backoff()
                if self._worked_at != before:
                    continue
            except (BournError, SparkMissing) as error:
                log.warning("%s; it will be tried again", error)
                await self._unless(stop, backoff.pause())
                continue
            is_idle = self._clock.monotonic() - self._worked_at >= self._settings.idle_secs
            if is_idle and self._owns_spark:
                await asyncio.to_thread(self._spark.close)
            await self._unless(stop, self._clock.sleep(self._settings.poll_secs))

    def _backoff(self) -> Backoff:
        settings = self._settings
        return Backoff(self._clock, self._rng, settings.poll_secs, settings.retry_secs_max)

    async def _due(self) -> list[Job]:
        return [job for job in self._jobs if await job.is_due(self._settings)]

    async def _unless(self, stop: asyncio.Event, work: Coroutine[object, object, object]) -> None:
        """Do some work, or give it up where a stop is asked for: nothing of it counts then."""
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not doing.done():
                doing.cancel()
            await asyncio.gather(doing, stopping, return_exceptions=True)
        if not doing.cancelled():
            doing.result()

    async def _keep(self, report: RunReport) -> None:
        """Put the report, unless nothing happened, and delete the oldest."""
        if not report.error and not any(job.rounds for job in report.jobs):
            return
        try:
            await self._bucket.put_if_absent(report.key, encode_report(report))
            listed = [info.key async for info in self._bucket.list(REPORT_PREFIX)]
            reports = [key for key in listed if is_report_key(key)]
            for key in reports[:-PIPELINE_REPORTS_KEPT]:
                await self._bucket.delete(key)
        except ObjectExists:
            return  # a put whose answer was lost
        except BournError as error:
            log.warning("the report of this run is lost: %s", error)

    async def _checkpoint_if_due(self, report: RunReport) -> None:
        every = self._settings.checkpoint_versions
        now = max((job.table_version for job in report.jobs), default=-1)
        if now // every == self._checkpointed // every or now < every:
            return
        try:
            await checkpoint(self._place)
            self._checkpointed = now
        except Exception as error:  # noqa: BLE001  deltalake has many; readers do without
            log.warning("no checkpoint of version %d: %s", now, type(error).__name__)
