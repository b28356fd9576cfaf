"""Reads: batches as large as allowed, whole across commits and epochs, none too large to send."""

import asyncio
from typing import Any

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.batch import ReadBatch
from bourn.layout.codec import encode_sequenced
from bourn.limits import FRAME_PAYLOAD_BYTES_MAX, MIB, READ_AHEAD_PARTS, U64_MAX
from bourn.log.cursor import make_request
from bourn.model.patch import StreamPatch, TimestampingPatch
from bourn.model.record import Record, SequencedRecord
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    eventually,
    read_one,
    seq_nums,
    session,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, with_stream

TAIL_FIELD_BYTES_MAX = 64  # what a frame may hold beside the records


def sizes(batches: list[ReadBatch]) -> list[int]:
    return [found.records_count for found in batches]


def test_small_batches_are_read_together_a_thousand_records_at_a_time(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await asyncio.gather(
                *(node.append(BASIN, STREAM, batch(*["x"] * 7)) for _ in range(150))
            )
            await asyncio.gather(
                *(node.append(BASIN, STREAM, batch(*["y"] * 145)) for _ in range(10))
            )
            async with session(node, from_start(wait=0)) as reader:
                assert sizes(await reader.rest()) == [1000, 1000, 500]
            assert (await read_one(node, seq_num=0)).records_count == 1000
            assert (await read_one(node, seq_num=0, count=5000)).records_count == 1000
            assert (await read_one(node, seq_num=1700, wait=60)).records_count == 800

    storage.run(scenario)


def test_large_records_are_read_together_up_to_a_mebibyte(storage: Storage) -> None:
    body = b"b" * (MIB // 10 - 8)

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            for _ in range(4):
                await node.append(BASIN, STREAM, batch(body, body, body))
            await node.append(BASIN, STREAM, batch(b"h" * (MIB - 8)))
            async with session(node, from_start(wait=0)) as reader:
                batches = await reader.rest()
            assert sizes(batches) == [10, 2, 1]
            assert all(found.metered_bytes <= MIB for found in batches)
            assert (await read_one(node, seq_num=0, bytes=10 * MIB)).records_count == 10
            assert (await read_one(node, seq_num=12, bytes=MIB)).records_count == 1
            assert (await read_one(node, seq_num=12, bytes=MIB - 1)).records_count == 0

    storage.run(scenario)


def test_a_read_from_within_a_batch_is_as_large_as_any_other(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            for _ in range(2):
                await node.append(BASIN, STREAM, batch(*[b"x" * 1040] * 1000))
            found = await read_one(node, seq_num=990)
            assert found.records_count == 1000
            async with session(node, make_request(seq_num=999, wait=0)) as reader:
                assert sizes(await reader.rest()) == [1000, 1]

    storage.run(scenario)


def test_records_that_are_all_headers_never_outgrow_a_frame(storage: Storage) -> None:
    # A header weighs 4 here and takes 8 bytes; a full batch of them fits no frame, if only just.
    headers = tuple((b"n", b"v") for _ in range(260))
    longer = (*headers[:-1], (b"n", b"vv"))
    late = U64_MAX - 5  # ten bytes to encode
    heavy = [Record(b"", longer if i < 576 else headers, late) for i in range(1000)]
    uncapped = StreamPatch(timestamping=TimestampingPatch(uncapped=True))

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.reconfigure_stream(BASIN, STREAM, uncapped)
            assert batch(*heavy).metered_bytes == MIB
            await node.append(BASIN, STREAM, batch(*["light"] * 10))
            for _ in range(2):
                await node.append(BASIN, STREAM, batch(*heavy))
            async with session(node, make_request(seq_num=10, wait=0)) as reader:
                batches = await reader.rest()
            assert seq_nums(r for b in batches for r in b.records()) == list(range(10, 2010))
            frames = [sum(map(len, found.wire())) for found in batches]
            assert max(frames) <= FRAME_PAYLOAD_BYTES_MAX - TAIL_FIELD_BYTES_MAX
            assert sum(frames) > 2 * FRAME_PAYLOAD_BYTES_MAX
            assert len(batches) == 3, "a larger frame was possible"

    storage.run(scenario)


def test_a_batch_has_one_content_whether_sent_as_bytes_or_as_records(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await with_stream(node)
            records = [Record(b"%d" % i, ((b"k", b"%d" % i),), 10 + i) for i in range(9)]
            await node.append(BASIN, STREAM, batch(*records[:5]))
            await node.append(BASIN, STREAM, batch(*records[5:]))
            found = await read_one(node, seq_num=3, count=4)
            assert found.records() == [
                SequencedRecord(i, 10 + i, b"%d" % i, ((b"k", b"%d" % i),)) for i in range(3, 7)
            ]
            alone = batch(*records[3:7])
            assert alone.timestamps is not None
            expected = encode_sequenced(alone.payload, 4, 3, alone.timestamps, 0, 4)
            assert b"".join(found.wire()) == expected
            assert found.last_seq_num == 6

    memory.run(scenario)


def test_reads_go_on_across_commits_and_across_writers(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        expected = []
        for epoch in range(3):
            async with node_on(bucket) as node:
                if epoch == 0:
                    await with_stream(node)
                texts = [f"{epoch}.{i}" for i in range(4)]
                await append_each(node, *texts)
                expected += [text.encode() for text in texts]
        async with node_on(bucket) as node:
            assert bodies((await read_one(node, seq_num=0)).records()) == expected
            for start in range(12):
                found = await read_one(node, seq_num=start, count=3)
                assert bodies(found.records()) == expected[start : start + 3]
            for offset in range(1, 14):
                found = await read_one(node, tail_offset=offset)
                assert bodies(found.records()) == expected[-offset:]

    storage.run(scenario)


def test_a_start_by_timestamp_is_the_first_of_the_records_that_share_it(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await with_stream(node)
            stamps = [5, 5, 7, 7, 7, 7, 9, 12, 12]
            for first in range(0, 9, 3):
                some = [Record(b"", (), stamp) for stamp in stamps[first : first + 3]]
                await node.append(BASIN, STREAM, batch(*some))
        async with node_on(bucket, clock=ManualClock()) as node:
            for timestamp in range(13):
                found = await read_one(node, timestamp=timestamp, count=1)
                first = next(i for i, stamp in enumerate(stamps) if stamp >= timestamp)
                assert seq_nums(found.records()) == [first], timestamp
                before = await read_one(node, seq_num=0, until=timestamp)
                assert before.records_count == first, timestamp

    storage.run(scenario)


# Waiting reads that limits cut


@pytest.mark.parametrize("limit", [{"until": 500}, {"bytes": 8}], ids=["until", "bytes"])
def test_a_live_batch_that_the_limits_exclude_ends_a_waiting_read_at_once(
    storage: Storage, limit: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(Record(b"", (), 100)))
            unary = asyncio.ensure_future(read_one(node, seq_num=1, wait=30, **limit))
            request = make_request(seq_num=1, wait=30, **limit)
            async with session(node, request) as follower:
                assert (await follower.next()).is_heartbeat
                await turns()
                assert not unary.done()
                await node.append(BASIN, STREAM, batch(Record(b"long", (), 500)))
                assert (await soon(unary)).records() == []
                assert await follower.rest() == []

    storage.run(scenario)


@pytest.mark.parametrize(
    "limit", [{"until": 500}, {"bytes": 20}, {"count": 2}], ids=["until", "bytes", "count"]
)
def test_a_live_batch_that_the_limits_cut_shows_the_tail_behind_it(
    storage: Storage, limit: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await with_stream(node)
            unary = asyncio.ensure_future(read_one(node, seq_num=0, wait=30, **limit))
            request = make_request(seq_num=0, wait=30, **limit)
            async with session(node, request) as follower:
                assert (await follower.next()).is_heartbeat
                await turns()
                ack = await node.append(
                    BASIN, STREAM, batch(*(Record(b"x", (), stamp) for stamp in (1, 2, 500)))
                )
                found = await soon(unary)
                assert (seq_nums(found.records()), found.tail) == ([0, 1], ack.tail)
                (last,) = await follower.rest()
                assert (seq_nums(last.records()), last.tail) == ([0, 1], ack.tail)

    storage.run(scenario)


def test_a_follower_that_falls_behind_is_told_the_tail_when_it_has_caught_up(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            async with session(node) as follower:
                assert (await follower.next()).is_heartbeat
                await asyncio.gather(
                    *(node.append(BASIN, STREAM, batch(*["x"] * 600)) for _ in range(3))
                )
                behind = await follower.next()
                assert (behind.records_count, behind.tail) == (1000, None)
                rest = await follower.next()
                assert rest.records_count == 800
                caught_up = rest if rest.tail is not None else await follower.next()
                assert caught_up.tail is not None
                assert caught_up.tail.seq_num == 1800

    storage.run(scenario)


def test_a_read_fetches_no_more_than_it_can_deliver(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, EngineSettings(tail_cache_bytes=0)) as node:
            await with_stream(node)
            await append_each(node, *["x"] * 40)
            gated.fetches = 0
            assert (await read_one(node, seq_num=39)).records_count == 1
            assert gated.fetches == 1
            ahead = 1 + 16
            assert (await read_one(node, seq_num=5, count=1)).records_count == 1
            await turns()
            assert gated.fetches <= 1 + ahead
            before = node.term.reader.hits + gated.fetches
            assert (await read_one(node, seq_num=6, count=2)).records_count == 2
            assert node.term.reader.hits + gated.fetches == before + 2

    storage.run(scenario)


def test_more_is_read_ahead_while_what_was_read_ahead_is_taken(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        gated = GatedBucket(bucket)
        async with node_on(gated, EngineSettings(tail_cache_bytes=0)) as node:
            await with_stream(node)
            await append_each(node, *["x" * 1_000_000] * 16)
            gated.fetches = 0
            async with session(node) as follower:
                await follower.next()
                reader = node.term.reader
                await eventually(lambda: not reader._fetching)
                ahead = gated.fetches
                assert 4 < ahead < 16
                for _ in range(READ_AHEAD_PARTS):
                    await follower.next()
                assert reader.fetches > ahead, "before anything was missing"

    storage.run(scenario)


def test_an_empty_body_and_an_empty_header_value_come_back_as_they_were(storage: Storage) -> None:
    records = [
        Record(b""),
        Record(b"", ((b"k", b""),)),
        Record(b"\x00" * 3, ((b"k", b"v"), (b"k", b"w"))),
        Record(bytes(range(256)), ((b"\xff", b"\x00"),)),
    ]

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(*records))
        async with node_on(bucket) as node:
            found = await read_all(node)
            assert [(r.body, r.headers) for r in found] == [(r.body, r.headers) for r in records]

    storage.run(scenario)
