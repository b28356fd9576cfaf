"""A year of records from Parquet into streams, and back, compared.

    python examples/backfill/run.py

The year is made here: a reading of each sensor every ten minutes. The write has a name (`writeId`),
so it can be run again after a crash, or by mistake, and writes nothing twice; it is run twice here.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its usual name

sys.path.insert(0, str(Path(__file__).parent.parent))
from session import endpoint_of, spark_session

from bourn.client import Client, Settings

BASIN = "backfill"
START_MS = 1_735_689_600_000  # the first moment of 2025
STEP_MS = 600_000
STEPS = 365 * 24 * 6


def make_year(directory: Path, sensors: int, steps: int) -> None:
    """Write a file a sensor: time, sensor, temperature."""
    times = START_MS + STEP_MS * np.arange(steps)
    hours = np.arange(steps) / 6
    for sensor in range(sensors):
        rng = np.random.default_rng(sensor)
        warmth = 10 - 9 * np.cos(hours / 8760 * 2 * np.pi) - 4 * np.cos(hours / 24 * 2 * np.pi)
        table = pa.table(
            {
                "time": pa.array(times).cast(pa.timestamp("ms", "UTC")),
                "sensor": pa.repeat(f"sensor-{sensor:02d}", steps),
                "celsius": np.round(warmth + rng.normal(0, 0.5, steps), 2),
            }
        )
        pq.write_table(table, directory / f"sensor-{sensor:02d}.parquet")


def to_records(readings: DataFrame) -> DataFrame:
    """One stream a sensor, in the order of time."""
    return readings.orderBy("sensor", "time").select(
        F.concat(F.lit("readings/"), "sensor").alias("stream"),
        F.to_json(F.struct("celsius")).alias("body"),
        F.col("time").alias("timestamp"),
    )


def to_readings(records: DataFrame) -> DataFrame:
    """The way back."""
    return records.select(
        F.timestamp_millis("timestamp").alias("time"),
        F.substring_index("stream", "/", -1).alias("sensor"),
        F.from_json(F.col("body").cast("string"), "celsius double")["celsius"].alias("celsius"),
    )


def run(spark: SparkSession, endpoint: str, sensors: int, steps: int) -> bool:
    where = {"endpoint": endpoint, "basin": BASIN}
    with Client(Settings.of(BASIN, endpoint, environ={})) as client:
        client.create_basin(
            BASIN,
            {
                "create_stream_on_append": True,
                "default_stream_config": {"retention_policy": {"infinite": {}}},
            },
        )
    with tempfile.TemporaryDirectory() as place:
        files, staging = Path(place, "parquet"), Path(place, "staging")
        files.mkdir()
        make_year(files, sensors, steps)
        readings = spark.read.parquet(str(files))
        for attempt in ("first", "again"):
            to_records(readings).write.format("bourn").mode("append").options(
                **where, writeId="year-2025", stagingLocation=str(staging)
            ).save()
            print(f"written, {attempt}", flush=True)
        there = spark.read.format("bourn").options(**where, stream="readings/*").load()
        back = to_readings(there).persist()
        kept = readings.select("time", "sensor", "celsius")
        lost, extra = kept.exceptAll(back).count(), back.exceptAll(kept).count()
        rows = back.count()
    print(f"{rows} records in {sensors} streams: {lost} lost, {extra} too many")
    return rows == sensors * steps and not lost and not extra


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", help="of a server that runs; otherwise one is started")
    parser.add_argument("--sensors", type=int, default=10, help="streams (10)")
    parser.add_argument("--steps", type=int, default=STEPS, help="readings a stream (52560)")
    options = parser.parse_args()
    with endpoint_of(options.endpoint) as url, spark_session() as session:
        sys.exit(0 if run(session, url, options.sensors, options.steps) else 1)
