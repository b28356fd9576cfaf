"""A declarative pipeline: a stream is read, its records are shaped, and another gets them."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its usual name

spark = SparkSession.active()
WHERE = {"endpoint": os.environ["BOURN_ENDPOINT"], "basin": os.environ["BOURN_BASIN"]}

dp.create_sink(
    "pages", "bourn", {**WHERE, "stream": "pages", "stagingLocation": os.environ["BOURN_STAGING"]}
)


@dp.append_flow(target="pages")
def shaped() -> DataFrame:
    """Take the page of each click."""
    clicks = (
        spark.readStream.format("bourn")
        .options(**WHERE, stream="clicks", startingOffsets="earliest")
        .load()
    )
    return clicks.select(F.get_json_object(F.col("body").cast("string"), "$.page").alias("body"))
