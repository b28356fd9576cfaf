"""merge and retain on a real Spark, by a real shuffle, on local disk and on an S3 server."""

import random

import msgspec
import pytest
from deltalake import DeltaTable

from bourn.bucket.delta_log import read_table
from bourn.errors import BournError
from bourn.layout.reports import RunReport
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from bourn.pipeline.session import Spark
from tests.pipeline.harness import (
    BASIN,
    CLOCK,
    Wrote,
    check_files,
    objects_in,
    table_bytes,
    whole_rows_in,
)
from tests.pipeline.test_spark import fill
from tests.sparks import LOCAL, S3_BUCKET
from tests.support import node_on, run

AT_ONCE = msgspec.structs.replace(LOCAL, grace_secs=0, log_keep_secs=0, merge_files=2)


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path, moto) -> Place:
    if request.param == "disk":
        return Place("file", str(tmp_path / "bucket"), "", "", "")
    return Place("s3", S3_BUCKET, f"jobs-{random.getrandbits(64):x}", moto.endpoint, "us-east-1")


async def do(place: Place, spark: Spark, *jobs: str) -> RunReport:
    runner = Runner(
        place,
        AT_ONCE,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=lambda _: None,
        jobs=jobs,
        spark=spark,
    )
    try:
        return await runner.once()
    finally:
        await runner.close()


@pytest.mark.slow
def test_files_are_merged_by_a_shuffle_and_what_is_deleted_leaves_the_bucket(place, spark):
    async def main():
        bucket = place.open()
        wrote = Wrote([])
        for _ in range(3):
            await fill(bucket, wrote, streams=6, batches=25)
            await do(place, spark, "tier")
        rows = await whole_rows_in(bucket)
        assert len(rows) == len(wrote.rows)
        assert len((await read_table(bucket)).live) == 3
        report = await do(place, spark, "merge", "retain")
        state = await read_table(bucket)
        assert {add.tag("level") for add in state.live.values()} == {2}
        assert await whole_rows_in(bucket) == rows
        merge, retain = report.jobs
        assert (merge.records, merge.facts["files_replaced"]) == (len(rows), 3)
        assert retain.facts["objects_deleted"] == 6
        async with node_on(bucket) as node:
            await node.delete_stream(BASIN, "s1")
            await node.delete_stream(BASIN, "s4")
        await do(place, spark, "tier", "retain")
        left = [row for row in rows if row[1] not in {"s1", "s4"}]
        assert await whole_rows_in(bucket) == left
        await check_files(bucket)
        live = (await read_table(bucket)).live.values()
        held = sum(add.size + add.tag("index_bytes") for add in live)
        assert await table_bytes(bucket) == held, "something else lies beside the table"
        found = DeltaTable(f"{place.uri}/history", storage_options=place.storage_options or None)
        assert found.to_pyarrow_dataset().count_rows() == len(left)
        # A file that is damaged is told, and stays what it is.
        await fill(bucket, wrote, streams=1, batches=5)
        await do(place, spark, "tier")
        victim = next(iter((await read_table(bucket)).live.values()))
        await bucket.put(victim.key, b"x" * victim.size)
        version = (await read_table(bucket)).version
        with pytest.raises(BournError, match=victim.path):
            await do(place, spark, "merge")
        assert (await read_table(bucket)).version == version
        assert await objects_in(bucket, "history/")
        await bucket.close()

    run(main())
