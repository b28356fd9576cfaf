"""The driver that is killed: a query from `in/*` to `out/*`.

It takes its settings as JSON, and says on standard output what it has come to: `started`, then
`batch N`, then `ended` where it was asked to take only what is there.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  its usual name

from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from bourn.spark import BournDataSource
from tests.connector_proof.check import OUT_STREAMS

POLL_SECS = 0.1


class Plan(NamedTuple):
    """What the parent wants."""

    endpoint: str
    basin: str
    checkpoint: str
    partitions: int  # 0: no shuffle
    failure_share: float  # of task attempts
    is_last: bool
    delivery: str = "exactly-once"
    staging: str = ""  # below the checkpoint
    starting: str = "earliest"
    is_sorted: bool = True


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort a partition: a shuffle brings its rows in any order, and a query may not sort."""
    held = list(batches)
    if held:
        rows = pa.Table.from_batches(held)
        yield from rows.sort_by([("stream", "ascending"), ("seq_num", "ascending")]).to_batches()


def reversed_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn a partition round, for a proof that must fail."""
    for batch in in_order(batches):
        yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))


def flaky(share: float) -> Work:
    """Return a task that fails now and then, in the middle of its rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rng = random.SystemRandom()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if rng.random() < share:
                raise RuntimeError("injected failure of a task")
            yield batch.slice(half)

    return work


def transformed(rows: DataFrame, plan: Plan) -> DataFrame:
    """Route by key and say where each record came from; shuffled or not, a key keeps its order."""
    keyed = rows.select(
        "stream",
        "seq_num",
        F.col("body").cast("string").alias("text"),
        F.substring_index(F.col("body").cast("string"), " ", 1).alias("key"),
    )
    if plan.partitions:
        keyed = keyed.repartition(plan.partitions, "key")
        keyed = keyed.mapInArrow(in_order if plan.is_sorted else reversed_order, keyed.schema)
    bucket = F.conv(F.substring(F.sha2(F.col("key"), 256), 1, 8), 16, 10).cast("long") % OUT_STREAMS
    out = keyed.select(
        F.concat(F.lit("out/"), bucket.cast("string")).alias("stream"),
        F.concat_ws(" ", "stream", F.col("seq_num").cast("string"), F.upper("text"))
        .cast("binary")
        .alias("body"),
    )
    return out.mapInArrow(flaky(plan.failure_share), out.schema)


def main() -> int:
    plan = Plan(**json.loads(sys.argv[1]))
    running = Spark(PipelineSettings(master="local[2,8]"))
    session = running.session()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.dataSource.register(BournDataSource)
    reader = session.readStream.format("bourn").options(
        endpoint=plan.endpoint,
        basin=plan.basin,
        stream="in/*",
        startingOffsets=plan.starting,
        maxRecordsPerTrigger="6000",
        minPartitions="3",
    )
    writer = (
        transformed(reader.load(), plan)
        .writeStream.format("bourn")
        .options(
            endpoint=plan.endpoint,
            basin=plan.basin,
            delivery=plan.delivery,
            checkpointLocation=plan.checkpoint,
            stagingLocation=plan.staging,
        )
    )
    query = (writer.trigger(availableNow=True) if plan.is_last else writer).start()
    say("started")
    told = -1
    while query.isActive:
        query.awaitTermination(POLL_SECS)  # type: ignore[arg-type]  # it takes fractions
        progress = query.lastProgress
        if progress is not None and progress.batchId > told:
            told = progress.batchId
            say(f"batch {told}")
    error = query.exception()
    if error is not None:
        say(f"failed {str(error)[:2000]!r}")
        return 1
    say("ended")
    running.close()
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
