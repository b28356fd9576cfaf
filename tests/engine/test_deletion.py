"""Deletion: a marker, then the purge, then the name is free; whole at every step in between."""

import asyncio

import pytest

from bourn.bucket.port import Bucket
from bourn.catalog.changes import PutStream, decode_change
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import (
    BasinNotFound,
    FencingTokenMismatch,
    Invalid,
    StreamDeletionPending,
    StreamNotFound,
    Unwritten,
)
from bourn.model.config import BasinConfig, Infinite
from bourn.model.patch import StreamPatch
from bourn.model.record import AppendAck, StreamPosition
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    commits_of,
    crash,
    eventually,
    fence,
    gated_node,
    read_one,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream

NOW_MS = 1_700_000_000_000
QUICK = EngineSettings(housekeeping_secs=0.02)


async def purged(node: Node, basin: str = BASIN, stream: str = STREAM) -> None:
    """Wait until a stream is gone for good."""
    await eventually(lambda: node.term.find(basin, stream) is None)


async def basin_purged(node: Node, basin: str = BASIN) -> None:
    """Wait until a basin is gone for good."""
    await eventually(lambda: node.term.state.basins.get(basin) is None)


def test_a_stream_made_again_under_the_name_has_nothing_of_the_old_one(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "old", "older")
            await node.append(BASIN, STREAM, batch(fence("old")))
            forever = StreamPatch(retention_policy=Infinite())
            await node.reconfigure_stream(BASIN, STREAM, forever)
            clock.advance(10)
            await node.delete_stream(BASIN, STREAM)
            await purged(node)
            with pytest.raises(StreamNotFound):
                await node.delete_stream(BASIN, STREAM)
            for call in (read_one(node, seq_num=0), node.check_tail(BASIN, STREAM)):
                with pytest.raises(StreamNotFound):
                    await call
            made = await node.create_stream(BASIN, CreateStream(STREAM), "token")
            assert made.row.created_at_ms == NOW_MS + 10_000
            assert made.row.config.retention_policy != Infinite()
            assert await node.check_tail(BASIN, STREAM) == StreamPosition(0, 0)
            with pytest.raises(Unwritten):
                await read_one(node, seq_num=0)
            with pytest.raises(FencingTokenMismatch) as mismatch:
                await node.append(BASIN, STREAM, batch("x"), fencing_token="old")
            assert mismatch.value.fencing_token == ""
            ack = await node.append(BASIN, STREAM, batch("new"), match_seq_num=0)
            assert ack.start.seq_num == 0
            assert bodies(await read_all(node)) == [b"new"]
        async with node_on(bucket, clock=clock) as node:
            assert bodies(await read_all(node)) == [b"new"]

    storage.run(scenario)


@pytest.mark.parametrize("ending", ["close", "crash"])
def test_incarnations_of_a_name_never_mix_whatever_happens_between_them(
    storage: Storage, ending: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        node = await Node.open(bucket, QUICK)
        await node.create_basin(CreateBasin(BASIN, BasinConfig(create_stream_on_append=True)))
        for i in range(5):
            acks = [await node.append(BASIN, STREAM, batch(f"{i}.{j}")) for j in range(3)]
            assert [ack.start.seq_num for ack in acks] == [0, 1, 2]
            assert bodies(await read_all(node)) == [f"{i}.{j}".encode() for j in range(3)]
            await node.delete_stream(BASIN, STREAM)
            if i % 2:
                await purged(node)
            await (node.close() if ending == "close" else crash(node))
            node = await Node.open(bucket, QUICK)
            await purged(node)
        assert (await node.list_streams(BASIN)).rows == []
        await node.close()

    storage.run(scenario)


def test_a_basin_goes_with_all_its_streams_and_its_name_is_free(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await append_each(node, "a")
            for i in range(5):
                await node.create_stream(BASIN, CreateStream(f"s{i}"))
            await with_stream(node, "other-basin", "kept")
        async with node_on(bucket) as node:  # most of the streams are at rest now
            await node.create_stream(BASIN, CreateStream("hot"))
            await node.delete_basin(BASIN)
            await basin_purged(node)
            with pytest.raises(BasinNotFound):
                await node.list_streams(BASIN)
            with pytest.raises(BasinNotFound):
                await node.delete_basin(BASIN)
            assert [row.name for row in (await node.list_basins()).rows] == ["other-basin"]
            await node.create_basin(CreateBasin(BASIN))
            assert (await node.list_streams(BASIN)).rows == []
            with pytest.raises(StreamNotFound):
                await append_each(node, "x")
        async with node_on(bucket) as node:
            assert (await node.list_streams(BASIN)).rows == []
            assert [row.name for row in (await node.list_streams("other-basin")).rows] == ["kept"]

    storage.run(scenario)


def test_a_basin_of_more_streams_than_one_step_takes_goes_whole(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN))
            await asyncio.gather(
                *(node.create_stream(BASIN, CreateStream(f"{i}")) for i in range(1100))
            )
            await node.delete_basin(BASIN)
            await basin_purged(node)
            assert node.housekeeping.purged == 1100
            assert node.term.state.streams.count() == 0

    memory.run(scenario)


def test_a_session_on_a_deleted_stream_never_writes_into_the_one_that_follows(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            await appender.append(batch("old"))
            await node.delete_stream(BASIN, STREAM)
            await purged(node)
            await node.create_stream(BASIN, CreateStream(STREAM))
            for _ in range(2):
                with pytest.raises((StreamDeletionPending, Invalid)):
                    await soon(appender.append(batch("old")))
            appender.close()
            assert await node.check_tail(BASIN, STREAM) == StreamPosition(0, 0)
            assert node.term.room.bytes_taken == 0

    storage.run(scenario)


def test_no_append_is_acked_behind_the_marker(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            stream_id = (await node.list_streams(BASIN)).rows[0].id
            outcomes: list[AppendAck | BaseException] = []

            async def hammer() -> None:
                while not outcomes or isinstance(outcomes[-1], AppendAck):
                    try:
                        outcomes.append(await node.append(BASIN, STREAM, batch("x")))
                    except (StreamDeletionPending, StreamNotFound) as error:
                        outcomes.append(error)

            hammers = [asyncio.ensure_future(hammer()) for _ in range(5)]
            await eventually(lambda: len(outcomes) > 20)
            await node.delete_stream(BASIN, STREAM)
            await soon(asyncio.gather(*hammers))
            acked = sum(isinstance(outcome, AppendAck) for outcome in outcomes)
            commits = await commits_of(bucket)
            marker = next(
                key
                for key, commit in commits.items()
                for change in map(decode_change, commit.changes)
                if isinstance(change, PutStream) and change.row.deleted_at_ms is not None
            )
            stored = {
                key: sum(e.count for location, entries in commit.runs for e in entries)
                for key, commit in commits.items()
                if any(location.stream_id == stream_id for location, _ in commit.runs)
            }
            assert sum(stored.values()) == acked
            assert all(key <= marker for key in stored)

    storage.run(scenario)


def test_a_purge_never_shares_a_commit_with_records_of_the_stream(storage: Storage) -> None:
    # Such a commit could not be replayed: it would drop the stream before it adds to it.
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await node.create_stream(BASIN, CreateStream("second"))
            gated.shut = True
            first = asyncio.ensure_future(node.delete_stream(BASIN, STREAM))
            (marker,) = await gated.until_held(1)
            gated.let(marker)
            await soon(first)
            await eventually(lambda: gated.held and marker not in gated.held)
            (purge,) = gated.held
            append = asyncio.ensure_future(node.append(BASIN, "second", batch("last words")))
            second = asyncio.ensure_future(node.delete_stream(BASIN, "second"))
            await turns()
            gated.let(purge)
            await turns()
            gated.open()
            assert (await soon(append)).end.seq_num == 1
            await soon(second)
            await purged(node, BASIN, "second")
            await node.create_stream(BASIN, CreateStream("second"))
            await crash(node)
        async with node_on(bucket) as node:
            assert [row.name for row in (await node.list_streams(BASIN)).rows] == ["second"]
            assert await node.check_tail(BASIN, "second") == StreamPosition(0, 0)

    storage.run(scenario)


@pytest.mark.parametrize("puts", range(6))
def test_a_deletion_that_a_crash_cuts_short_is_finished_by_the_next_start(
    storage: Storage, puts: int
) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        node = await Node.open(gated)
        await with_stream(node)
        await node.create_stream(BASIN, CreateStream("second"))
        await append_each(node, "a", "b")
        await with_stream(node, "other-basin", "kept")
        await append_each(node, "kept", basin="other-basin", stream="kept")
        gated.shut = True
        deletes = [
            asyncio.ensure_future(node.delete_stream(BASIN, STREAM)),
            asyncio.ensure_future(node.delete_basin(BASIN)),
        ]
        for _ in range(puts):
            await eventually(lambda: gated.held or node.term.state.basins.get(BASIN) is None)
            for key in sorted(gated.held)[:1]:
                gated.let(key)
                await eventually(lambda key=key: key not in gated.held)  # type: ignore[misc]
            await turns(50)
        was_durable = deletes[1].done()
        await crash(node)
        await asyncio.gather(*deletes, return_exceptions=True)
        async with node_on(bucket, QUICK) as restarted:
            if was_durable:
                await basin_purged(restarted)
                await restarted.create_basin(CreateBasin(BASIN))
                await restarted.create_stream(BASIN, CreateStream(STREAM))
                ack = await restarted.append(BASIN, STREAM, batch("new"))
                assert ack.start.seq_num == 0
            found = await read_all(restarted, "other-basin", "kept")
            assert bodies(found) == [b"kept"]
        async with node_on(bucket) as again:
            if was_durable:
                assert bodies(await read_all(again)) == [b"new"]
                names = [row.name for row in (await again.list_streams(BASIN)).rows]
                assert names == [STREAM]

    storage.run(scenario)
