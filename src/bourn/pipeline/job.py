"""What the jobs share: their shape, what they are given, and how they work on Spark."""

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.errors import BournError
from bourn.layout.reports import JobReport
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings

if TYPE_CHECKING:
    import random

    from pyspark import Accumulator, SparkContext

LOOK_SECS: Final = 0.5  # between two looks at work that runs
STOPPED: Final = "stopped SparkContext"  # a consequence, not a cause
_TOLD: Final = re.compile(r"[A-Za-z_.]+(?:Error|Exception|Exit|Mismatch)\b.*:")

T = TypeVar("T")
Note = Callable[[int, int, int], None]  # units, bytes and records that are done


class Job(Protocol):
    """Something that can be done, again and again, and changes nothing where nothing is to do."""

    @property
    def name(self) -> str:
        """What `--jobs` calls it."""
        ...

    async def is_due(self, settings: PipelineSettings) -> bool:
        """Whether there is enough to do for those who follow; must cost little."""
        ...

    async def run(self, progress: Progress) -> JobReport:
        """Do what there is to do."""
        ...


class Tools(NamedTuple):
    """What a job works with."""

    bucket: Bucket
    place: Place
    spark: Spark
    clock: Clock
    rng: "random.Random"
    retry: Retry
    settings: PipelineSettings


class TaskFailed(BournError):
    """A task met what another attempt would meet again; the text is the task's."""

    code = "storage"


class SparkFailed(BournError):
    """Spark itself failed, or a task in a way that nobody foresaw."""


async def run_on_spark(
    spark: Spark, progress: Progress, enter: Callable[[], None], build: "Build[T]"
) -> list[T]:
    """Return what some work on Spark returns; TaskFailed where it failed, cancelled with us.

    `enter` says that the work begins, once Spark is there. `build` is called in a thread with
    the context and with what tasks call to tell how far they are.
    """
    progress.enter("starting Spark")
    context = await asyncio.to_thread(spark.context)
    enter()
    work = _Work(context, build)
    waiting = asyncio.create_task(asyncio.to_thread(work.collect))
    try:
        while not (await asyncio.wait({waiting}, timeout=LOOK_SECS))[0]:
            progress.at(*work.done())
        found = await waiting
    except SparkFailed as error:
        why = error.message
        if not why or STOPPED in why:
            why = spark.last_error() or why or "it has gone"
        # Whatever ended it may have left Spark half dead: the next round gets a new one.
        await asyncio.to_thread(spark.close)
        raise TaskFailed(f"Spark failed on {spark.master}: {why}") from error
    finally:
        if not waiting.done():
            # What it ends with is no news to anyone, and must not be logged as if it were.
            waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            spark.cancel()
    progress.at(*work.done())
    return found


Build = Callable[["SparkContext", Note], list[T]]


class _Work(Generic[T]):
    """Work that runs on Spark, and its counters."""

    def __init__(self, context: "SparkContext", build: Build[T]) -> None:
        self._context = context
        self._build = build
        self._counters: list[Accumulator[int]] = []

    def collect(self) -> list[T]:
        """Do it; SparkFailed where that cannot be done. Blocks."""
        try:
            counters = [self._context.accumulator(0) for _ in range(3)]
            self._counters = counters

            def note(*amounts: int) -> None:
                for counter, amount in zip(counters, amounts, strict=True):
                    counter.add(amount)

            return self._build(self._context, note)
        except Exception as error:
            raise SparkFailed(cause_of(error)) from error

    def done(self) -> tuple[int, int, int]:
        """Units, bytes and records of the tasks that have ended; repetitions count again."""
        units, size_bytes, records = [counter.value for counter in self._counters] or [0, 0, 0]
        return units, size_bytes, records


def cause_of(error: Exception) -> str:
    """Return the line of Spark's many that says what happened; nothing where none can be had."""
    try:
        lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]
    except Exception:  # noqa: BLE001  py4j asks the Java for the text, which may have gone
        return ""
    told = [line for line in lines if _TOLD.match(line) and not line.endswith("last):")]
    told.sort(key=lambda line: line.startswith("org.apache.spark"))  # a task's own words first
    return told[0][:500] if told else ""
