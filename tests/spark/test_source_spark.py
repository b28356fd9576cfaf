"""The source on a real Spark: tasks that fail, queries, checkpoints, a server that is killed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import LongType, StructType

from bourn.client import Client, Settings
from tests.compat.server import Place
from tests.spark.readers import fill, options_of

PATIENCE_SECS = 120


def load(spark: SparkSession, client: Client, stream: str, **options: Any) -> DataFrame:
    return spark.read.format("bourn").options(**options_of(client, stream, **options)).load()


def following(spark: SparkSession, client: Client, stream: str, **options: Any) -> DataStreamReader:
    return spark.readStream.format("bourn").options(**options_of(client, stream, **options))


def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Let the second task fail in the middle, the first time."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("injected")
        yield batch


def test_a_batch_read_is_cut_into_tasks_and_a_failed_one_is_run_again(spark, home, capsys):
    fill(home, "s", 3000)
    frame = load(spark, home, "s", minPartitions=3, accessToken="secret-of-somebody")
    survived = frame.mapInArrow(fail_once, frame.schema)
    found = survived.collect()
    assert [row.seq_num for row in found] == list(range(3000))
    assert found[7] == Row(
        basin=home.settings.basin,
        stream="s",
        seq_num=7,
        timestamp=7,
        headers=[Row(name=b"n", value=b"7")],
        body=b"7",
    )
    frame.explain(mode="extended")
    shown = capsys.readouterr().out
    assert "bourn" in shown
    assert "secret-of-somebody" not in shown


def test_the_format_is_found_unregistered_and_its_errors_reach_the_user(spark, home):
    import pyspark_bourn  # noqa: PLC0415

    assert pyspark_bourn.DefaultSource.name() == "bourn"
    with pytest.raises(AnalysisException, match=r"option straem: .* did you mean stream\?"):
        load(spark.newSession(), home, "s", straem="s")
    with pytest.raises(PySparkException, match=r"option stream: there is no stream 'none'"):
        load(spark, home, "none").collect()
    assert load(spark, home, "none*").count() == 0


def test_a_query_goes_on_from_its_checkpoint_and_finds_new_streams(spark, home, checkpoint):
    fill(home, "in/a", 40)
    batches: list[list[tuple[str, int]]] = []

    def keep(frame: DataFrame, _number: int) -> None:
        batches.append([(row.stream, row.seq_num) for row in frame.collect()])

    def run() -> None:
        frame = following(
            spark, home, "in/*", startingOffsets="earliest", maxRecordsPerTrigger=30
        ).load()
        survived = frame.mapInArrow(fail_once, frame.schema)
        query = survived.writeStream.foreachBatch(keep)
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start().awaitTermination()

    run()
    assert [len(batch) for batch in batches] == [30, 10]
    fill(home, "in/a", 5, start=40)
    fill(home, "in/b", 7)
    run()
    seen = [row for batch in batches for row in batch]
    assert sorted(seen) == [("in/a", n) for n in range(45)] + [("in/b", n) for n in range(7)]


def test_a_query_outlives_its_server(spark: SparkSession, checkpoint: str, tmp_path: Path):
    seen: list[int] = []
    is_enough = threading.Event()

    def keep(frame: DataFrame, _number: int) -> None:
        seen.extend(row.seq_num for row in frame.collect())
        if len(seen) >= 900:
            is_enough.set()

    with Place("disk", tmp_path / "data", "--pipeline", "off") as place:
        settings = Settings.of("restarts", place.url, environ={})
        with Client(settings) as client:
            client.create_basin("restarts")
            fill(client, "s", 300)
            frame = following(spark, client, "s", startingOffsets="earliest").load()
            query = frame.writeStream.foreachBatch(keep)
            running = query.option("checkpointLocation", checkpoint).start()
            try:
                for start in (300, 600):
                    place.restart("kill")
                    fill(client, "s", 300, start=start)
                assert is_enough.wait(PATIENCE_SECS), running.exception()
            finally:
                running.stop()
    assert seen == list(range(900))


class Pushing(DataSource):
    """Ten numbers, of which it leaves out what a filter does not want."""

    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> StructType:
        return StructType().add("a", LongType())

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader()


class PushingReader(DataSourceReader):
    def __init__(self) -> None:
        self.only: list[int] = list(range(10))

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for found in filters:
            if isinstance(found, EqualTo):
                self.only = [found.value]
            else:
                yield found

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(tuple(self.only))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in partition.value])


def test_spark_still_keeps_a_pushed_filter_for_the_next_query(spark: SparkSession):
    """Why the source takes ranges as options. Once this fails, filters can be pushed down."""
    spark.dataSource.register(Pushing)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushing").load()
        assert frame.where("a = 3").count() == 1
        assert frame.count() == 1, "it is 10: pushdown works, see docs/adr/0014-spark-source.md"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
