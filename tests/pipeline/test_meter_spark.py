"""The usage table as a real Spark writes it, and as others read it."""

import random
from collections import Counter

import duckdb
import pytest
from deltalake import DeltaTable

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.retry import Retry
from bourn.clock import ManualClock
from bourn.model.config import BasinConfig, Infinite, StreamConfig
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.job import Tools
from bourn.pipeline.meter import Meter
from bourn.pipeline.place import Place
from bourn.settings import EngineSettings
from tests.pipeline.harness import CLOCK, InProcessTier, quiet
from tests.sparks import LOCAL, S3_BUCKET
from tests.support import batch, node_on, run

KEPT = BasinConfig(default_stream_config=StreamConfig(retention_policy=Infinite()))
DAY = 86_400
START_MS = 1_700_006_400_000 // 86_400_000 * 86_400_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3"])
def test_usage_is_metered_on_spark_and_anyone_reads_it(kind, tmp_path, moto, spark):
    place = Place("file", str(tmp_path / "b"), "", "", "")
    if kind == "s3":
        prefix = f"meter-{random.getrandbits(64):x}"
        place = Place("s3", S3_BUCKET, prefix, moto.endpoint, "us-east-1")

    async def main():
        bucket = place.open()
        memory = MemoryBucket()
        clock = ManualClock(START_MS)
        wrote: Counter[str] = Counter()
        records = 0
        settings = EngineSettings(housekeeping_secs=1e9)
        rng = random.Random(1)
        tools = Tools(bucket, place, spark, clock, rng, Retry(CLOCK, rng, 5.0), LOCAL)
        try:
            async with node_on(memory, settings, clock=clock) as node:
                await node.create_basin(CreateBasin("metered-basin", KEPT))
                for stream in ("a", "b"):
                    await node.create_stream("metered-basin", CreateStream(stream))
                for number in range(8):
                    for stream in ("a", "b")[: 1 + number % 2]:
                        one = batch(*["x" * number] * (number + 1))
                        await node.append("metered-basin", stream, one)
                        wrote[stream] += one.metered_bytes
                        records += one.count
                    clock.set_wall(clock.now_ms() + 1800_000)
                await node.housekeeping.flush_usage()
                clock.set_wall(START_MS + 1000 * (DAY + 3600))
                await node.housekeeping.flush_usage()
                await node.housekeeping.snapshots.take()
            await InProcessTier(memory).run(quiet())
            async for info in memory.list(""):
                await bucket.put(info.key, await memory.get(info.key))
            report = await Meter(tools).run(quiet())
            assert report.rounds == 1
            report = await Meter(tools).run(quiet())
            assert report.rounds == 0
        finally:
            await bucket.close()
        usage = DeltaTable(f"{place.uri}/usage", storage_options=place.storage_options or None)
        database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        database.register("usage", usage.to_pyarrow_dataset())
        for interval in ("minute", "hour", "day"):
            found = database.sql(
                "select metric, sum(value), count(distinct stream_id) from usage "
                f"where interval = '{interval}' and metric like 'append-%' group by metric"
            ).fetchall()
            assert {name: (total, streams) for name, total, streams in found} == {
                "append-ops": (12, 1),
                "append-throughput": (sum(wrote.values()), 1),
                "append-bytes": (sum(wrote.values()), 2),
                "append-records": (records, 2),
            }
        held = database.sql(
            "select max(value) from usage where metric = 'storage' and stream_id = 0"
        ).fetchall()
        assert held == [(sum(wrote.values()),)]

    run(main())
