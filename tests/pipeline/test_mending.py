"""A table that an early version made: the next commit lets everybody find its streams again."""

import asyncio
import random
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from bourn.bucket.delta_log import read_table
from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.layout.history.delta import (
    HISTORY_PREFIX,
    Actions,
    MetaData,
    decode_actions,
    delta_key,
    encode_actions,
)
from bourn.layout.history.facts import first_actions
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.place import Place
from bourn.pipeline.table import HistoryTable, TableChange, checkpoint
from tests.pipeline.harness import CLOCK, InProcessTier, Trap, quiet, retry
from tests.support import batch, node_on, run

PROPERTY = "delta.dataSkippingStatsColumns"
COLUMNS = "stream_id,seq_num,timestamp,arrival"
BASIN = "old-shop"


def old_metadata(configuration: dict[str, str | None]) -> tuple[bytes, MetaData]:
    """Return the first version of a table as it was made before it said more."""
    protocol, now = first_actions("5d2f6f0c-0000-4000-8000-0123456789ab", 1_700_000_000_000)
    metadata = MetaData(
        id=now.id,
        name=now.name,
        description=now.description,
        format=now.format,
        schema_string=now.schema_string,
        partition_columns=[],
        configuration=configuration,
        created_time=now.created_time,
    )
    return encode_actions(Actions(protocol=protocol, metadata=metadata)), metadata


async def append(bucket: Bucket, *, is_first: bool = False) -> None:
    async with node_on(bucket) as node:
        if is_first:
            await node.create_basin(CreateBasin(BASIN))
        for stream in ("orders", "clicks"):
            if is_first:
                await node.create_stream(BASIN, CreateStream(stream))
            await node.append(BASIN, stream, batch(b"one", b"two", b"three"))


def found(root: Path) -> tuple[int, int]:
    """Return how many records of a stream deltalake and DuckDB find."""
    table = DeltaTable(root / "history")
    frame = table.to_pandas(filters=[("stream", "=", "orders")])
    shop = duckdb.connect()
    shop.register("history", table.to_pyarrow_dataset())
    ((rows,),) = shop.sql("select count(*) from history where stream = 'orders'").fetchall()
    return len(frame), rows


async def mendings(bucket: Bucket) -> list[MetaData]:
    """Return what the versions behind the first one say that the table is."""
    newest = (await read_table(bucket)).version
    keys = [delta_key(version) for version in range(1, newest + 1)]
    actions = [decode_actions(await bucket.get(key), key) for key in keys]
    return [one.metadata for one in actions if one.metadata is not None]


def test_the_next_tier_lets_queries_find_the_streams_of_an_old_table(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path)
        data, before = old_metadata({"delta.appendOnly": "false"})
        await bucket.put_if_absent(delta_key(0), data)
        await append(bucket, is_first=True)
        tier = InProcessTier(bucket)
        await tier.run(quiet())
        (mended,) = await mendings(bucket)
        assert found(tmp_path) == (3, 3)
        assert mended.configuration == {"delta.appendOnly": "false", PROPERTY: COLUMNS}
        assert (mended.id, mended.schema_string) == (before.id, before.schema_string)
        await append(bucket)
        await tier.run(quiet())
        assert len(await mendings(bucket)) == 1, "once is enough"
        assert found(tmp_path) == (6, 6)
        await bucket.close()

    run(main())


def test_files_that_an_old_table_had_before_it_was_mended_are_found_too(tmp_path, monkeypatch):
    async def main():
        bucket = LocalBucket(tmp_path)
        await bucket.put_if_absent(delta_key(0), old_metadata({})[0])
        await append(bucket, is_first=True)
        with monkeypatch.context() as early:
            early.setattr(HistoryTable, "mended", lambda *_: None)
            await InProcessTier(bucket).run(quiet())
        assert not await mendings(bucket)
        assert found(tmp_path) == (0, 0), "if this fails, deltalake needs no mending any more"
        await checkpoint(Place("file", str(tmp_path), "", "", ""))
        await HistoryTable(bucket, CLOCK, random.Random(1), retry()).commit(TableChange("OPTIMIZE"))
        assert len(await mendings(bucket)) == 1
        assert found(tmp_path) == (3, 3)
        await bucket.close()

    run(main())


def test_of_many_that_commit_at_once_one_mends():
    async def main():
        bucket = MemoryBucket()
        await bucket.put_if_absent(delta_key(0), old_metadata({})[0])

        async def commit(seed):
            table = HistoryTable(Trap(bucket), CLOCK, random.Random(seed), retry())
            for _ in range(5):
                await table.commit(TableChange("OPTIMIZE"))

        await asyncio.gather(*map(commit, range(4)))
        state = await read_table(bucket)
        assert state.version == 20
        assert state.metadata is not None
        assert state.metadata.configuration == {PROPERTY: COLUMNS}
        assert len(await mendings(bucket)) == 1

    run(main())


def test_what_somebody_has_set_by_hand_stays():
    async def main():
        bucket = MemoryBucket()
        await bucket.put_if_absent(delta_key(0), old_metadata({PROPERTY: "seq_num"})[0])
        table = HistoryTable(bucket, CLOCK, random.Random(1), retry())
        state = await table.commit(TableChange("OPTIMIZE"))
        assert state.metadata is not None
        assert state.metadata.configuration == {PROPERTY: "seq_num"}
        assert not await mendings(bucket)
        assert table.prefix == HISTORY_PREFIX

    run(main())
