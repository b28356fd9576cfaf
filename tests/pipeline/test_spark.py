"""The whole job on a real Spark, on local disk and on an S3 server; others read what it wrote."""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bourn.layout.history.delta import DELTA_PREFIX
from bourn.layout.reports import REPORT_PREFIX, RunReport, decode_report
from bourn.model.config import BasinConfig, Infinite, StreamConfig, Timestamping
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline import status
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from bourn.pipeline.session import Spark
from tests.pipeline.harness import BASIN, CLOCK, Wrote, objects_in, rows_in
from tests.sparks import LOCAL, S3_BUCKET
from tests.support import batch, node_on, run

KEPT = BasinConfig(
    default_stream_config=StreamConfig(
        retention_policy=Infinite(), timestamping=Timestamping(uncapped=True)
    )
)
STAMPS = (0, 1, 1_700_000_000_000, 2**63 - 1, 2**63, 2**64 - 1)
LONG_SECS = 240


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path, moto) -> Place:
    if request.param == "disk":
        return Place("file", str(tmp_path / "bucket"), "", "", "")
    return Place("s3", S3_BUCKET, f"run-{random.getrandbits(64):x}", moto.endpoint, "us-east-1")


def runner_on(place: Place, spark: Spark, told: list[RunReport]) -> Runner:
    return Runner(
        place,
        LOCAL,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=told.append,
        jobs=["tier"],
        spark=spark,
    )


async def fill(bucket, wrote: Wrote, *, streams: int, batches: int, body_bytes: int = 300) -> None:
    """Append batches to streams: timestamps over all of u64, empty and non-UTF-8 bodies."""
    rng = random.Random(len(wrote.rows))
    async with node_on(bucket) as node:
        if not wrote.rows:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            for number in range(streams):
                await node.create_stream(BASIN, CreateStream(f"s{number}"))
        for _ in range(batches):
            stream = f"s{rng.randrange(streams)}"
            tail = await node.check_tail(BASIN, stream)
            stamp = max(rng.choice(STAMPS), tail.timestamp)
            records = [
                Record(rng.randbytes(rng.choice([0, 1, body_bytes])), ((b"\xff", b""),), stamp)
                for _ in range(rng.randint(1, 20))
            ]
            await node.append(BASIN, stream, batch(*records))
            wrote.extend(stream, tail.seq_num, records)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def as_stored(wrote: Wrote) -> list[tuple[object, ...]]:
    return sorted((*row[:3], signed(row[3]), row[4]) for row in wrote.rows)


def check_with_others(place: Place, wrote: Wrote) -> None:
    """Count, group and cut by time, in three engines that know nothing of us."""
    uri = f"{place.uri}/history"
    options = place.storage_options or None
    table = DeltaTable(uri, storage_options=options)
    by_stream = Counter(row[1] for row in wrote.rows)
    late = sum(1 for row in wrote.rows if 2 <= row[3] < 2**63)
    arrow = table.to_pyarrow_dataset()
    assert arrow.count_rows() == len(wrote.rows)
    found = pl.scan_delta(uri, storage_options=options)
    grouped = found.group_by("stream").len().collect()
    assert dict(zip(grouped["stream"], grouped["len"], strict=True)) == by_stream
    assert found.filter(pl.col("timestamp") >= 2).select(pl.len()).collect().item() == late
    database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    database.register("history", arrow)
    rows = database.sql("select stream, count(*) from history group by stream").fetchall()
    assert dict(rows) == by_stream
    cut = database.sql("select count(*) from history where timestamp >= 2").fetchall()
    assert cut == [(late,)]
    seen = arrow.to_table(columns=["basin", "stream", "seq_num", "timestamp", "body"])
    assert sorted(tuple(row.values()) for row in seen.to_pylist()) == as_stored(wrote)


@pytest.mark.slow
def test_a_log_becomes_a_table_that_everyone_reads(place, spark):
    async def main():
        bucket = place.open()
        wrote = Wrote([])
        told: list[RunReport] = []
        await fill(bucket, wrote, streams=7, batches=60)
        runner = runner_on(place, spark, told)
        before = await status.look(bucket, CLOCK, random.Random())
        assert (before.table_version, before.records) == (-1, 0)
        assert before.lag_commits > 0
        await runner.once()
        assert await rows_in(bucket) == as_stored(wrote)
        await fill(bucket, wrote, streams=7, batches=20)
        for _ in range(2):  # the second finds nothing to do
            await runner.once()
        check_with_others(place, wrote)
        # Two at once: one of them does it.
        await fill(bucket, wrote, streams=7, batches=20)
        other = runner_on(place, spark, told)
        await asyncio.gather(runner.once(), other.once())
        assert await rows_in(bucket) == as_stored(wrote)
        check_with_others(place, wrote)
        after = await status.look(bucket, CLOCK, random.Random())
        assert (after.lag_commits, after.records) == (0, len(wrote.rows))
        assert after.last_run is not None
        assert after.last_failure is None
        logs = await objects_in(bucket, DELTA_PREFIX)
        assert any(".checkpoint.parquet" in key for key in logs), "no checkpoint was written"
        reports = await objects_in(bucket, REPORT_PREFIX)
        kept = [decode_report(await bucket.get(key), key) for key in reports]
        assert sum(job.records for report in kept for job in report.jobs) == len(wrote.rows)
        for one in (runner, other):
            await one.close()
        await bucket.close()
        for report in told:
            assert not report.error

    run(main())


@pytest.mark.slow
def test_credentials_are_in_the_environment_alone(spark, tmp_path):
    context = spark.context()
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert secret == "test-secret"
    settings = "\n".join(f"{name}={value}" for name, value in context.getConf().getAll())
    assert secret not in settings
    assert spark._directory is not None
    assert secret not in (spark._directory / "spark.log").read_text()


def bourn(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "bourn.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_session_is_the_active_one_of_its_thread_though_another_thread_made_one_before(spark):
    with ThreadPoolExecutor(1) as another:
        another.submit(lambda: SparkSession(spark.context())).result()
    java = spark.context()._jvm.org.apache.spark.sql.classic.SparkSession
    java.clearActiveSession()
    SparkSession(spark.context())
    assert SparkSession.getActiveSession() is None, "pyspark does it by itself now"
    spark.session()
    assert SparkSession.getActiveSession() is not None


LIVES = """
from pyspark import SparkContext
from bourn.pipeline.session import Spark, SparkMissing
from bourn.settings import PipelineSettings

def killed():
    SparkContext._gateway.proc.kill()
    SparkContext._gateway.proc.wait()

def doomed(self, conf):
    made = initialize(self, conf)
    killed()
    return made

spark = Spark(PipelineSettings(master="local[1]"))
initialize, SparkContext._initialize_context = SparkContext._initialize_context, doomed
try:
    spark.context()
except SparkMissing:
    print("it did not start")
SparkContext._initialize_context = initialize
for _ in range(2):
    print(spark.context().range(3).count())
    killed()
    spark.close()
"""


@pytest.mark.long
def test_a_java_that_dies_in_the_start_or_later_is_followed_by_another():
    done = subprocess.run(
        [sys.executable, "-c", LIVES], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["it did not start", "3", "3"], done.stderr
