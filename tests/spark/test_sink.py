"""The sink on real Spark and a real server."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its usual name
from pyspark.sql.streaming.query import StreamingQuery

from bourn.client import Client, ReadStart
from bourn.model.record import SequencedRecord
from tests.cli.process import Serving
from tests.spark.conftest import BASIN

WAIT_SECS = 200
FENCE = ((b"", b"fence"),)


@pytest.fixture
def stream() -> str:
    return f"sink/{random.getrandbits(64):x}"


@pytest.fixture
def options(server: Serving, client: Client, tmp_path: Path) -> dict[str, str]:
    return {"endpoint": server.url, "basin": BASIN}


def records_of(client: Client, stream: str) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    while some := client.read(stream, ReadStart(seq_num=len(found)), 1000):
        found += some
    return found


def bodies_of(client: Client, stream: str) -> list[bytes]:
    return [record.body for record in records_of(client, stream)]


def write(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("bourn").mode("append").options(**options, **more).save()


def source_of(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(directory))


def run_query(frame: DataFrame, options: dict[str, str], checkpoint: Path, **more: str) -> None:
    query: StreamingQuery = (
        frame.writeStream.format("bourn")
        .options(**options, **more)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(WAIT_SECS), "it does not end"
    finally:
        query.stop()


def put_ids(directory: Path, name: str, ids: range) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.json").write_text("".join(f'{{"id": {number}}}\n' for number in ids))


def test_a_frame_comes_into_its_streams_in_order_with_headers_and_timestamps(
    spark, client, options, stream, tmp_path
):
    frame = spark.range(0, 6000, 1, 3).select(
        F.concat(F.lit(f"{stream}/"), (F.col("id") % 2).cast("string")).alias("stream"),
        F.col("id").cast("string").alias("body"),
        F.expr("array(named_struct('name', 'k', 'value', cast(id as string)))").alias("headers"),
        F.expr("if(id >= 5000, null, timestamp_millis(1000000 + id))").alias("timestamp"),
        F.lit(7).alias("seq_num"),
    )
    staging = tmp_path / "staging"
    write(frame, options, stagingLocation=str(staging))
    for rest in (0, 1):
        records = records_of(client, f"{stream}/{rest}")
        wanted = [number for number in range(6000) if number % 2 == rest]
        assert [int(record.body) for record in records] == wanted
        assert all(record.headers[0] == (b"k", record.body) for record in records)
        stamps = {int(record.body): record.timestamp for record in records}
        assert all(stamps[number] == 1_000_000 + number for number in wanted if number < 5000)
        assert stamps[wanted[-1]] > 1_600_000_000_000, "it has none of its own"
    assert not [path for path in staging.rglob("*") if path.is_file()]


def test_a_task_that_fails_and_is_repeated_writes_its_rows_once(
    spark, client, options, stream, tmp_path
):
    done = tmp_path / "failed"

    def fail_once(batches: Iterator[object]) -> Iterator[object]:
        for number, batch in enumerate(batches):
            yield batch
            if number and not done.exists():
                done.touch()
                raise RuntimeError("injected")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    frame = spark.range(0, 4000, 1, 2).selectExpr("unhex(lpad(hex(id), 16, '0')) as body")
    frame = frame.mapInArrow(fail_once, frame.schema)
    try:
        write(frame, options, stream=stream)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert done.exists()
    assert bodies_of(client, stream) == [number.to_bytes(8, "big") for number in range(4000)]


def test_a_write_with_a_name_is_done_once_however_often_it_is_run(
    spark, client, options, stream, tmp_path
):
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as body")
    for _ in range(2):
        write(frame, options, stream=stream, writeId="load-1", stagingLocation=str(tmp_path))
    assert len(bodies_of(client, stream)) == 100


def test_at_least_once_tasks_append_by_themselves(spark, client, options, stream):
    frame = spark.range(0, 3000, 1, 3).selectExpr("cast(id as string) as body")
    write(frame, options, stream=stream, delivery="at-least-once")
    records = records_of(client, stream)
    assert sorted(int(record.body) for record in records) == list(range(3000))
    assert not any(record.headers for record in records)


def test_a_query_goes_on_where_it_was_with_another_number_of_partitions(
    spark, client, options, stream, tmp_path
):
    put_ids(tmp_path / "in", "a", range(1500))
    put_ids(tmp_path / "in", "b", range(1500, 2500))
    rows = source_of(spark, tmp_path / "in").selectExpr("cast(id as string) as body")
    run_query(rows, options, tmp_path / "ck", stream=stream)
    put_ids(tmp_path / "in", "c", range(2500, 2600))
    run_query(rows.repartition(4), options, tmp_path / "ck", stream=stream)
    found = [int(body) for body in bodies_of(client, stream)]
    assert sorted(found[:2500]) == list(range(2500))
    assert sorted(found[2500:]) == list(range(2500, 2600))
    staged = [path.name for path in (tmp_path / "ck" / "bourn").rglob("*") if path.is_file()]
    assert sorted(staged) == ["done", "done", "manifest", "manifest"]


def test_a_batch_that_spark_runs_again_is_not_written_again(
    spark, client, options, stream, tmp_path
):
    """As after a crash between the sink's commit and Spark's own note of it."""
    put_ids(tmp_path / "in", "a", range(50))
    rows = source_of(spark, tmp_path / "in").selectExpr("cast(id as string) as body")
    run_query(rows, options, tmp_path / "ck", stream=stream, exclusive="true")
    for note in (tmp_path / "ck" / "commits").iterdir():
        note.unlink()
    run_query(rows.repartition(3), options, tmp_path / "ck", stream=stream, exclusive="true")
    records = [record for record in records_of(client, stream) if record.headers[:1] != FENCE]
    assert [int(record.body) for record in records if record.body.isdigit()] == list(range(50))


def test_what_is_wrong_with_a_frame_is_told_by_spark(spark, client, options):
    frame = spark.range(1).selectExpr("'x' as stream", "'x' as body")
    with pytest.raises(PySparkException, match="option delivery: takes exactly-once or"):
        write(frame, options, delivery="twice")
    with pytest.raises(PySparkException, match="a stream cannot be overwritten"):
        frame.write.format("bourn").mode("overwrite").options(**options).save()
    with pytest.raises(PySparkException, match="column `colour` has no place in a record"):
        write(frame.selectExpr("*", "1 as colour"), options)
    rows = spark.createDataFrame([("nobody", b"x"), ("nobody", None)], "stream string, body binary")
    with pytest.raises(PySparkException, match="for stream 'nobody', has a null `body`"):
        write(rows.coalesce(1), options)
    assert "nobody" not in {info.name for info in client.list_streams("nobody")}
