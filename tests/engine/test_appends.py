"""Appends: whole batches, gapless numbers, and acks that say no more than is durable."""

import asyncio
from random import Random

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.errors import BucketRefused, Invalid, OutcomeUnknown, SeqNumMismatch, Unwritten
from bourn.model.config import TimestampMode
from bourn.model.patch import StreamPatch, TimestampingPatch
from bourn.model.record import AppendAck, Record, StreamPosition
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    Storage,
    bodies,
    eventually,
    gated_node,
    read_one,
    seq_nums,
    soon,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream

NOW_MS = 1_700_000_000_000
EACH_PUT = EngineSettings(flush_interval_ms=1)  # with time by hand: a commit for each millisecond


def at(timestamp: int | None, body: str = "x") -> Record:
    return Record(body.encode(), (), timestamp)


def timestamping(mode: TimestampMode, *, uncapped: bool = False) -> StreamPatch:
    return StreamPatch(timestamping=TimestampingPatch(mode=mode, uncapped=uncapped))


def test_an_ack_says_where_the_batch_begins_where_it_ends_and_where_the_tail_is(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            first = await node.append(BASIN, STREAM, batch(at(5), at(7), at(9)))
            end = StreamPosition(3, 9)
            assert first == AppendAck(StreamPosition(0, 5), end, end)
            clock.advance(1)
            second = await node.append(BASIN, STREAM, batch("d"))
            end = StreamPosition(4, NOW_MS + 1000)
            assert second == AppendAck(StreamPosition(3, NOW_MS + 1000), end, end)

    storage.run(scenario)


def test_concurrent_appends_to_one_stream_get_disjoint_ranges_without_a_gap(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            sent = [[f"{i}.{j}" for j in range(1 + i % 5)] for i in range(60)]
            acks = await asyncio.gather(
                *(node.append(BASIN, STREAM, batch(*texts)) for texts in sent)
            )
            found = await read_all(node)
            assert seq_nums(found) == list(range(sum(map(len, sent))))
            for texts, ack in zip(sent, acks, strict=True):
                assert ack.end.seq_num - ack.start.seq_num == len(texts)
                mine = found[ack.start.seq_num : ack.end.seq_num]
                assert bodies(mine) == [text.encode() for text in texts]
                assert mine[0].timestamp == ack.start.timestamp
                assert mine[-1].timestamp == ack.end.timestamp
                assert ack.tail.seq_num >= ack.end.seq_num

    storage.run(scenario)


def test_streams_that_share_commits_keep_their_own_numbers(storage: Storage) -> None:
    names = [f"s{i}" for i in range(12)]

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            for name in names:
                await node.create_stream(BASIN, CreateStream(name))

            async def write(name: str, seed: int) -> list[bytes]:
                rng = Random(seed)
                sent: list[bytes] = []
                for i in range(8):
                    texts = [f"{name}.{i}.{j}" for j in range(rng.randint(1, 3))]
                    ack = await node.append(BASIN, name, batch(*texts))
                    assert ack.start.seq_num == len(sent)
                    sent += [text.encode() for text in texts]
                return sent

            written = await asyncio.gather(*(write(name, i) for i, name in enumerate(names)))
            for name, expected in zip(names, written, strict=True):
                found = await read_all(node, BASIN, name)
                assert bodies(found) == expected
                assert seq_nums(found) == list(range(len(expected)))
            assert node.term.committer.commits < 12 * 8, "nothing was grouped"

    storage.run(scenario)


def test_batches_submitted_without_waiting_are_acked_in_their_order(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        settings = EngineSettings(commit_split_bytes=4096)
        async with node_on(bucket, settings) as node:
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            order: list[int] = []
            futures = []
            for i in range(100):
                many = batch(*(bytes([i]) * 500 for _ in range(3)))
                await appender.room_for(many)
                future = appender.submit(many)
                future.add_done_callback(lambda _, i=i: order.append(i))  # type: ignore[misc]
                futures.append(future)
            acks = await soon(asyncio.gather(*futures))
            await turns(2)
            appender.close()
            assert order == list(range(100))
            assert [ack.start.seq_num for ack in acks] == list(range(0, 300, 3))
            assert node.term.committer.commits > 10, "all went into one commit"

    storage.run(scenario)


def test_a_batch_is_refused_whole(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            patch = timestamping(TimestampMode.CLIENT_REQUIRE)
            await node.reconfigure_stream(BASIN, STREAM, patch)
            with pytest.raises(Invalid, match="timestamp was required"):
                await node.append(BASIN, STREAM, batch(at(1), at(2), at(None)))
            ack = await node.append(BASIN, STREAM, batch(at(3)))
            assert ack.start == StreamPosition(0, 3)
            assert seq_nums(await read_all(node)) == [0]

    storage.run(scenario)


def test_the_largest_batches_are_stored_and_read_back(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            huge = b"h" * ((1 << 20) - 8)
            many = [b"m" * 1040] * 1000
            await node.append(BASIN, STREAM, batch(huge))
            await node.append(BASIN, STREAM, batch(*many))
            assert bodies(await read_all(node)) == [huge, *many]

    storage.run(scenario)


def test_commands_are_records_like_others(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            ack = await node.append(BASIN, STREAM, batch("a", trim(0), "b"))
            assert ack.end.seq_num == 3
            found = await read_all(node)
            assert found[1].headers == ((b"", b"trim"),)
            assert found[1].body == bytes(8)

    storage.run(scenario)


# Timestamps


def test_timestamps_follow_the_mode_that_holds_when_the_batch_is_admitted(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)

            async def append(*records: Record) -> list[int]:
                ack = await node.append(BASIN, STREAM, batch(*records))
                found = await read_one(node, seq_num=ack.start.seq_num)
                return [record.timestamp for record in found.records()]

            async def use(mode: TimestampMode, *, uncapped: bool = False) -> None:
                patch = timestamping(mode, uncapped=uncapped)
                await node.reconfigure_stream(BASIN, STREAM, patch)

            assert await append(at(0), at(4), at(2)) == [0, 4, 4]
            assert await append(at(NOW_MS + 50), at(None)) == [NOW_MS, NOW_MS]
            await use(TimestampMode.ARRIVAL)
            clock.advance(0.1)
            assert await append(at(NOW_MS - 5)) == [NOW_MS + 100]
            await use(TimestampMode.CLIENT_REQUIRE)
            assert await append(at(NOW_MS + 60), at(NOW_MS + 999)) == [NOW_MS + 100] * 2
            with pytest.raises(Invalid):
                await append(trim(0))
            await use(TimestampMode.CLIENT_PREFER, uncapped=True)
            ahead = NOW_MS + 10_000_000
            assert await append(at(ahead)) == [ahead]
            await use(TimestampMode.ARRIVAL)
            assert await append(at(1)) == [ahead], "the floor stays"

    memory.run(scenario)


def test_a_clock_that_goes_back_does_not_take_timestamps_with_it(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("a"))
            clock.set_wall(NOW_MS - 60_000)
            ack = await node.append(BASIN, STREAM, batch("b"))
            assert ack.end == StreamPosition(2, NOW_MS)

    storage.run(scenario)


def test_a_patch_holds_for_an_open_appender_from_its_ack_on(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            before = await appender.append(batch(at(5)))
            await node.reconfigure_stream(BASIN, STREAM, timestamping(TimestampMode.ARRIVAL))
            after = await appender.append(batch(at(6)))
            appender.close()
            assert (before.end.timestamp, after.end.timestamp) == (5, NOW_MS)

    storage.run(scenario)


# Durability


def test_nothing_is_acked_or_shown_before_it_is_durable(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await node.append(BASIN, STREAM, batch("seen"))
            tail = await node.check_tail(BASIN, STREAM)
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("unseen")))
            (key,) = await gated.until_held(1)
            await turns()
            assert not append.done()
            assert await node.check_tail(BASIN, STREAM) == tail
            assert bodies((await read_one(node, seq_num=0)).records()) == [b"seen"]
            with pytest.raises(Unwritten):
                await read_one(node, seq_num=1)
            gated.let(key)
            ack = await soon(append)
            assert ack.end.seq_num == 2
            assert await node.check_tail(BASIN, STREAM) == ack.end
            assert bodies((await read_one(node, seq_num=1)).records()) == [b"unseen"]

    storage.run(scenario)


@pytest.mark.parametrize("last_first", [True, False])
def test_puts_that_end_out_of_order_release_their_acks_in_order(
    storage: Storage, last_first: bool
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, EACH_PUT, clock=clock) as (gated, node):
            gated.prefix = "nothing/"
            creating = asyncio.ensure_future(with_stream(node))
            await pass_until_done(clock, creating)
            gated.prefix, gated.shut = "wal/", True
            acked: list[int] = []
            appends = []
            for i in range(4):
                append = asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}")))
                append.add_done_callback(lambda _, i=i: acked.append(i))  # type: ignore[misc]
                appends.append(append)
                await turns(2)
                clock.advance(0.001)
                await gated.until_held(i + 1)
            keys = sorted(gated.held)
            behind = keys[:0:-1] if last_first else keys[1:]
            for key in behind:
                gated.let(key)
                await eventually(lambda key=key: key not in gated.held)  # type: ignore[misc]
            await eventually(lambda: len(node.term.committer._durability._stored) == 3)
            assert acked == []
            assert stream_of(node).tail.seq_num == 0
            with pytest.raises(Unwritten):
                await read_one(node, seq_num=0)
            gated.let(keys[0])
            acks = await soon(asyncio.gather(*appends))
            assert acked == [0, 1, 2, 3]
            assert [ack.start.seq_num for ack in acks] == [0, 1, 2, 3]
            assert bodies((await read_one(node, seq_num=0)).records()) == [b"0", b"1", b"2", b"3"]

    storage.run(scenario)


async def pass_until_done(clock: ManualClock, work: "asyncio.Future[None]") -> None:
    while not work.done():
        clock.advance(0.001)
        await turns(3)
    await work


def test_an_append_whose_client_has_gone_is_stored_and_its_numbers_are_used_up(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a", "b")))
            await gated.until_held(1)
            append.cancel()
            await asyncio.wait([append])
            gated.open()
            ack = await node.append(BASIN, STREAM, batch("c"))
            assert ack.start.seq_num == 2
            assert bodies(await read_all(node)) == [b"a", b"b", b"c"]
            assert node.term.room.bytes_taken == 0

    storage.run(scenario)


def test_an_append_that_waits_for_nothing_but_its_own_put_is_one_commit(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            before = node.term.committer.commits
            await asyncio.gather(*(node.append(BASIN, STREAM, batch(f"{i}")) for i in range(50)))
            assert node.term.committer.commits == before + 1

    storage.run(scenario)


def test_every_ack_is_true_for_whoever_reads_next(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)

            async def write_and_look(i: int) -> None:
                ack = await node.append(BASIN, STREAM, batch(f"{i}"))
                assert (await node.check_tail(BASIN, STREAM)).seq_num >= ack.tail.seq_num
                found = await read_one(node, seq_num=ack.start.seq_num, count=1)
                assert bodies(found.records()) == [f"{i}".encode()]

            await asyncio.gather(*(write_and_look(i) for i in range(40)))

    storage.run(scenario)


def test_records_of_a_failed_put_are_in_doubt_and_numbered_only_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            doubtful = asyncio.ensure_future(node.append(BASIN, STREAM, batch("lost")))
            (key,) = await gated.until_held(1)
            gated.let(key, BucketRefused(key, "no"))
            gated.open()
            with pytest.raises(OutcomeUnknown):
                await soon(doubtful)
            ack = await soon(node.append(BASIN, STREAM, batch("kept")))
            assert ack.start.seq_num == 0
            assert bodies(await read_all(node)) == [b"kept"]
            with pytest.raises(SeqNumMismatch) as mismatch:
                await node.append(BASIN, STREAM, batch("late"), match_seq_num=0)
            assert mismatch.value.next_seq_num == 1

    storage.run(scenario)
