"""The three steps of an audit, on Spark: commits, segments, then streams.

What the first two find of streams does not come to the driver. It is kept where it was found, and
shuffled by stream to the tasks of the third step, so that no process holds all of it.
"""

import asyncio
import importlib.metadata
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.pipeline.audit_commits import CommitsAudit, CommitsOutcome, CommitsTask
from bourn.pipeline.audit_facts import RANGE, Facts, Findings, together
from bourn.pipeline.audit_segments import SegmentAudit, SegmentOutcome, SegmentTask
from bourn.pipeline.audit_streams import Standard, check_streams
from bourn.pipeline.job import Note, run_on_spark
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.session import Spark
from bourn.pipeline.tasks import check_version

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

RETRY_SECS: Final = 60.0
COMMITS: Final = "checking the log"
SEGMENTS: Final = "checking the history"
STREAMS: Final = "putting streams together"

Outcome = TypeVar("Outcome", CommitsOutcome, SegmentOutcome)
T = TypeVar("T")


class Known(NamedTuple):
    """What segments are compared with."""

    names: StreamNames
    in_log: Facts  # SUM, by stream and number


class Work(Protocol):
    """Who does the three steps; outcomes come without their ranges."""

    async def commits(
        self, tasks: Sequence[CommitsTask], progress: Progress
    ) -> list[CommitsOutcome]:
        """Check commits."""
        ...

    async def segments(
        self, tasks: Sequence[SegmentTask], known: Known, progress: Progress
    ) -> list[SegmentOutcome]:
        """Check segments."""
        ...

    async def streams(
        self, streams: Facts, standard: Standard, shards: int, progress: Progress
    ) -> list[Findings]:
        """Put the ranges of the steps before together, by stream."""
        ...

    async def close(self) -> None:
        """Forget what was kept."""
        ...


class SparkWork:
    """The steps as jobs of a Spark."""

    def __init__(self, spark: Spark, place: Place) -> None:
        self._spark = spark
        self._place = place
        self._version = importlib.metadata.version("bourn")
        self._kept: list[RDD[Any]] = []

    async def commits(
        self, tasks: Sequence[CommitsTask], progress: Progress
    ) -> list[CommitsOutcome]:
        """Check commits."""
        place = self._place

        def work(task: CommitsTask) -> CommitsOutcome:
            return asyncio.run(_alone(place, CommitsAudit(task).run))

        def enter() -> None:
            objects = sum(len(task.places) for task in tasks)
            progress.enter(COMMITS, objects, sum(task.size_bytes for task in tasks))

        def size(task: CommitsTask) -> tuple[int, int]:
            return len(task.places), task.size_bytes

        return await self._step(list(tasks), work, size, enter, progress)

    async def segments(
        self, tasks: Sequence[SegmentTask], known: Known, progress: Progress
    ) -> list[SegmentOutcome]:
        """Check segments."""
        place = self._place
        context = await asyncio.to_thread(self._spark.context)
        shared = context.broadcast((known.names, known.in_log.tobytes(), known.in_log.dtype.descr))

        def work(task: SegmentTask) -> SegmentOutcome:
            names, data, descr = shared.value
            in_log: Facts = np.frombuffer(data, np.dtype(descr))
            return asyncio.run(_alone(place, SegmentAudit(task, names, in_log).run))

        def enter() -> None:
            total = sum(task.size_bytes for task in tasks)
            progress.enter(SEGMENTS, len(tasks), total, "files")

        return await self._step(
            list(tasks), work, lambda task: (1, task.size_bytes), enter, progress
        )

    async def streams(
        self, streams: Facts, standard: Standard, shards: int, progress: Progress
    ) -> list[Findings]:
        """Put the ranges of the steps before together, by stream."""
        kept, version = self._kept, self._version

        def build(context: "SparkContext", note: Note) -> list[Findings]:
            shared = context.broadcast((streams.tobytes(), streams.dtype.descr, standard))

            def check(shard: tuple[int, Iterable[bytes]]) -> Findings:
                check_version(version)
                data, descr, measure = shared.value
                every: Facts = np.frombuffer(data, np.dtype(descr))
                mine = every[every["stream_id"] % np.uint64(shards) == np.uint64(shard[0])]
                found = check_streams(together(shard[1]), mine, measure)
                note(1, 0, 0)
                return found

            context.setJobDescription("bourn audit: streams")
            # An empty part for each, so that streams without any record are looked at too.
            parts = context.parallelize([(shard, b"") for shard in range(shards)], 1)
            for rdd in kept:
                parts = parts.union(rdd.flatMap(lambda found: sharded(found.ranges, shards)))
            return parts.groupByKey(shards).map(check).collect()

        return await run_on_spark(
            self._spark, progress, lambda: progress.enter(STREAMS, shards, 0, "shards"), build
        )

    async def close(self) -> None:
        """Forget what was kept."""
        kept, self._kept = self._kept, []
        for rdd in kept:
            with suppress(Exception):  # Spark may have gone, and it with it
                await asyncio.to_thread(rdd.unpersist)

    async def _step(
        self,
        tasks: list[Any],
        work: Callable[[Any], Outcome],
        size: Callable[[Any], tuple[int, int]],
        enter: Callable[[], None],
        progress: Progress,
    ) -> list[Outcome]:
        if not tasks:
            return []
        version, kept = self._version, self._kept

        def build(context: "SparkContext", note: Note) -> list[Outcome]:
            from pyspark import StorageLevel  # noqa: PLC0415  not everybody has it

            def do(some: Iterable[Any]) -> Iterator[Outcome]:
                check_version(version)
                for task in some:
                    found = work(task)
                    note(*size(task), _records(found.findings))
                    yield found

            context.setJobDescription("bourn audit")
            rdd = context.parallelize(tasks, len(tasks)).mapPartitions(do)
            rdd = rdd.persist(StorageLevel.MEMORY_AND_DISK)
            kept.append(rdd)
            return rdd.map(lambda found: found._replace(ranges=b"")).collect()

        return await run_on_spark(self._spark, progress, enter, build)


def sharded(ranges: bytes, shards: int) -> Iterator[tuple[int, bytes]]:
    """Yield ranges by the shard that their streams belong to."""
    facts: Facts = np.frombuffer(ranges, RANGE)
    if not len(facts):
        return
    of = facts["stream_id"] % np.uint64(shards)
    order = np.argsort(of, kind="stable")
    shown, starts = np.unique(of[order], return_index=True)
    ends = [*starts.tolist()[1:], len(order)]
    for shard, start, end in zip(shown.tolist(), starts.tolist(), ends, strict=True):
        yield shard, facts[order[start:end]].tobytes()


def _records(findings: Findings) -> int:
    return findings.counts.get("log records", 0) + findings.counts.get("history records", 0)


async def _alone(place: Place, run: Callable[[Bucket, Retry], Awaitable[T]]) -> T:
    """Do a task on a bucket of its own."""
    bucket = place.open()
    try:
        return await run(bucket, Retry(SystemClock(), random.Random(), RETRY_SECS))  # noqa: S311
    finally:
        await bucket.close()
