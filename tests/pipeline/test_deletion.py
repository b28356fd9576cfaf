"""Deletion is complete: no object of the bucket holds a byte of what was deleted."""

import io
import random

import pyarrow.parquet as pq
import pytest

from bourn.bucket.local import LocalBucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.layout.keys import SNAPSHOT_PREFIX
from bourn.layout.snapshot import decode_snapshot
from bourn.model.config import BasinConfig, Infinite, StreamConfig
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.place import Place
from bourn.pipeline.table import checkpoint
from bourn.settings import EngineSettings, PipelineSettings
from tests.engine.tiering import adopt
from tests.pipeline.harness import CLOCK, InProcessTier, merge_on, quiet, retain_on, rows_in
from tests.support import batch, node_on, run

ENGINE = EngineSettings(
    housekeeping_secs=1e9, history_poll_secs=1e9, epoch_poll_secs=1e9, collect_grace_secs=60
)
GRACE = PipelineSettings(merge_files=2)
KEPT = BasinConfig(default_stream_config=StreamConfig(retention_policy=Infinite()))
SPARED, DOOMED = "spared-basin", "doomed-basin-marker-1"
STREAM, OTHER = "doomed-stream-marker-2", "other-stream-marker-3"
MARKERS = (b"doomed-", b"marker-", b"SECRET")


def secret(rng: random.Random, count: int) -> list[Record]:
    """Records with a marker, some of them hard to compress."""
    return [
        Record(b"SECRET" + rng.randbytes(rng.choice([0, 900])), ((b"SECRET-name", b"SECRET"),))
        for _ in range(count)
    ]


async def scan(bucket) -> list[str]:
    """Search every object, as it lies there and as its columns read."""
    found: list[str] = []
    async for info in bucket.list(""):
        data = await bucket.get(info.key)
        texts = [data]
        if data.startswith(b"PAR1"):
            file = pq.ParquetFile(io.BytesIO(data))
            texts.append(repr(file.metadata.metadata).encode())
            texts.append(repr(file.read().to_pylist()).encode())
        if info.key.startswith(SNAPSHOT_PREFIX):  # there is base64 in it
            meta = decode_snapshot(data, info.key).meta
            extra = dict(meta.extra)
            texts.append(repr((meta.basins, extra)).encode())
        found += [
            f"{info.key}: {marker!r}" for marker in MARKERS for text in texts if marker in text
        ]
        found += [info.key for marker in MARKERS if marker in info.key.encode()]
    return found


async def fill(node: Node, rng: random.Random) -> None:
    for basin, stream in ((SPARED, "kept"), (SPARED, STREAM), (DOOMED, OTHER), (DOOMED, "more")):
        records = [Record(rng.randbytes(300))] if stream == "kept" else secret(rng, 5)
        await node.append(basin, stream, batch(*records))


@pytest.mark.parametrize("is_merged", [False, True], ids=["tiered", "merged"])
def test_of_a_deleted_stream_and_basin_no_byte_stays(tmp_path, is_merged):
    async def main():
        bucket, clock, rng = (
            LocalBucket(tmp_path / "b"),
            ManualClock(CLOCK.now_ms()),
            random.Random(1),
        )
        async with node_on(bucket, ENGINE, clock=clock) as node:
            for basin, streams in ((SPARED, ("kept", STREAM)), (DOOMED, (OTHER, "more"))):
                await node.create_basin(CreateBasin(basin, KEPT))
                for stream in streams:
                    await node.create_stream(basin, CreateStream(stream))
            for number in range(3):
                await fill(node, rng)
                await InProcessTier(bucket, number).run(quiet())
            await checkpoint(Place("file", str(tmp_path / "b"), "", "", ""))
            if is_merged:
                await merge_on(bucket, clock=clock).run(quiet())
            await adopt(node)
            await fill(node, rng)  # and some that never was in the table
            await node.housekeeping.snapshots.take()
            assert await scan(bucket)
            await node.delete_stream(SPARED, STREAM)
            await node.delete_basin(DOOMED)
            await node.housekeeping.purge()
            rows = [row for row in await rows_in(bucket) if row[1] == "kept"]
            for step in range(4):
                await InProcessTier(bucket, 10 + step).run(quiet())
                await retain_on(bucket, step, clock=clock, settings=GRACE).run(quiet())
                await adopt(node)
                await node.append(SPARED, "kept", batch(b"so that there is something new"))
                await node.housekeeping.flush_usage()
                await node.housekeeping.snapshots.take()
                await node.housekeeping.collect()
                clock.advance(601)
            assert await scan(bucket) == []
            assert set(rows) <= set(await rows_in(bucket))
        await bucket.close()

    run(main())
