"""The sink of the connector: records and bytes a second into streams, exactly and at least once.

A part of `python -m bench.connector`. Rows come from a cached DataFrame of two partitions, so that
only the sink is measured; the second write of each kind counts.
"""

import tempfile
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its usual name

from bourn.client import Client, Settings
from bourn.clock import SystemClock

CLOCK = SystemClock()
SIZES = (100, 1024)
DELIVERIES = ("exactly-once", "at-least-once")
BASIN = "bench-sink"
MIB = 1 << 20


def rows_of(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Rows for two streams, in memory."""
    body = F.rpad(F.col("id").cast("string"), size, "x").cast("binary")
    stream = F.concat(F.lit("bench/"), (F.col("id") % 2).cast("string"))
    frame = spark.range(0, count, 1, 2).select(stream.alias("stream"), body.alias("body")).cache()
    frame.count()
    return frame


def written(frame: DataFrame, options: dict[str, str]) -> float:
    """Write it once; return the seconds."""
    began = CLOCK.monotonic()
    frame.write.format("bourn").mode("append").options(**options).save()
    return CLOCK.monotonic() - began


def measure_sink(spark: SparkSession, endpoint: str, mib: int = 64) -> list[dict[str, Any]]:
    """Measure every size and delivery; rows of a table."""
    with Client(Settings.of(BASIN, endpoint, environ={})) as client:
        client.create_basin(BASIN, {"create_stream_on_append": True})
    found = []
    with tempfile.TemporaryDirectory() as staging:
        for size in SIZES:
            count = mib * MIB // (size + 8)
            frame = rows_of(spark, count, size)
            for delivery in DELIVERIES:
                options = {"endpoint": endpoint, "basin": BASIN, "delivery": delivery}
                if delivery == DELIVERIES[0]:
                    options["stagingLocation"] = staging
                secs = [written(frame, options) for _ in range(2)]
                found.append(
                    {
                        "delivery": delivery,
                        "body_bytes": size,
                        "records": count,
                        "first_secs": round(secs[0], 2),
                        "secs": round(secs[1], 2),
                        "records_per_sec": round(count / secs[1]),
                        "mb_per_sec": round(count * (size + 8) / secs[1] / 1e6, 1),
                    }
                )
            frame.unpersist()
    return found
