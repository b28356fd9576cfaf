"""The audit on a real Spark, on local disk and on an S3 server."""

import random

import pytest

from bourn.bucket.retry import Retry
from bourn.layout.history.delta import parse_segment_key
from bourn.pipeline.audit import Audit
from bourn.pipeline.job import Tools
from bourn.pipeline.place import Place
from tests.pipeline.audit_harness import (
    BASIN,
    flipped,
    forge_segment,
    hard_records,
    keys_in,
    live,
    rows_of,
    tiered,
)
from tests.pipeline.harness import CLOCK, quiet
from tests.sparks import LOCAL, S3_BUCKET
from tests.support import batch, node_on, run


@pytest.mark.long
@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_a_bucket_is_proven_and_a_vandal_is_named_on_spark(kind, tmp_path, moto, spark):
    place = Place("file", str(tmp_path / "b"), "", "", "")
    if kind == "s3":
        prefix = f"audit-{random.getrandbits(64):x}"
        place = Place("s3", S3_BUCKET, prefix, moto.endpoint, "us-east-1")

    async def main():
        bucket = place.open()
        try:
            async with node_on(bucket) as node:
                await hard_records(node)
            await tiered(bucket)
            async with node_on(bucket) as node:
                await node.append(BASIN, "commands", batch(b"tail"))
                rng = random.Random(1)
                tools = Tools(bucket, place, spark, CLOCK, rng, Retry(CLOCK, rng, 5.0), LOCAL)
                audit = Audit(tools)
                report = await audit.audit(quiet())
            assert report.violations == []
            assert report.counts["log records"] == 26
            assert report.counts["history records"] == report.counts["records in both"] == 25
            assert report.counts["streams"] == 5
            (add,) = await live(bucket)
            await forge_segment(bucket, (await rows_of(bucket, add)).slice(2, 3))
            commit = (await keys_in(bucket, "wal/"))[3]
            await flipped(bucket, commit)
            report = await audit.audit(quiet())
            kinds = {(violation.kind, violation.key) for violation in report.violations}
            assert ("damaged", commit) in kinds
            assert any(
                name == "repeated" and parse_segment_key(key) is not None for name, key in kinds
            )
        finally:
            await bucket.close()

    run(main())
