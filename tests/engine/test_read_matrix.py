"""Every row of the outcome matrix: ten records, the first four trimmed, the tail at {10, T}."""

import asyncio
from typing import Any, NamedTuple

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import Invalid, Unwritten
from bourn.log.cursor import make_request
from bourn.model.record import Record, StreamPosition, trim_record
from tests.engine.harness import (
    Session,
    Storage,
    pass_time,
    pass_time_until,
    read_one,
    seq_nums,
    session,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, with_stream

T = 190  # the timestamp of record 9; record i has 100 + 10 * i
TAIL = StreamPosition(10, T)
KEPT = [4, 5, 6, 7, 8, 9]


class Row(NamedTuple):
    request: dict[str, Any]
    seq_nums: list[int]


UNARY = [
    Row({"seq_num": 0}, KEPT),
    Row({"seq_num": 3}, KEPT),
    Row({"seq_num": 9, "count": 5}, [9]),
    Row({"seq_num": 8, "wait": 30}, [8, 9]),
    Row({"tail_offset": 3}, [7, 8, 9]),
    Row({"tail_offset": 100}, KEPT),
    Row({"timestamp": T}, [9]),
    Row({"timestamp": 161}, [7, 8, 9]),
    Row({"timestamp": 160}, [6, 7, 8, 9]),
    Row({"timestamp": 0}, KEPT),
    Row({"timestamp": 115}, KEPT),
    Row({"seq_num": 4, "count": 0}, []),
    Row({"seq_num": 99, "count": 0}, []),
    Row({"seq_num": 99, "bytes": 0}, []),
    Row({"seq_num": 4, "bytes": 7}, []),
    Row({"seq_num": 4, "bytes": 9 * 2}, [4, 5]),
    Row({"seq_num": 4, "bytes": 9 * 3 - 1}, [4, 5]),
    Row({"seq_num": 4, "until": 160}, [4, 5]),
    Row({"seq_num": 4, "until": 161}, [4, 5, 6]),
    Row({"seq_num": 4, "until": 100}, []),
    Row({"timestamp": 150, "until": 170}, [5, 6]),
    Row({"seq_num": 4, "count": 2, "until": 190, "bytes": 1000}, [4, 5]),
    Row({"seq_num": 4, "count": 3, "wait": 30}, [4, 5, 6]),
    Row({"seq_num": 4, "bytes": 7, "wait": 30}, []),
]
UNWRITTEN: list[dict[str, Any]] = [
    {"seq_num": 10},
    {"seq_num": 11},
    {"seq_num": 11, "wait": 30},
    {"seq_num": 11, "clamp": True},
    {"seq_num": 10, "wait": 0},
    {"seq_num": 10, "clamp": True, "count": 5},
    {},
    {"tail_offset": 0},
    {"tail_offset": 0, "clamp": True},
    {"timestamp": T + 1},
    {"timestamp": T + 1, "clamp": True},
    {"timestamp": T + 1, "wait": 30},
]
WAITING: list[dict[str, Any]] = [
    {"seq_num": 10, "wait": 2},
    {"seq_num": 11, "clamp": True, "wait": 2},
    {"tail_offset": 0, "wait": 2},
    {"wait": 2},
    {"timestamp": T + 1, "clamp": True, "wait": 2},
    {"seq_num": 10, "count": 5, "bytes": 1000, "until": 10_000, "wait": 2},
]
SESSIONS_THAT_END = [
    Row({"seq_num": 0, "count": 100}, KEPT),
    Row({"seq_num": 0, "bytes": 100_000}, KEPT),
    Row({"seq_num": 0, "until": 10_000}, KEPT),
    Row({"seq_num": 0, "wait": 0}, KEPT),
    Row({"seq_num": 0, "count": 3}, [4, 5, 6]),
    Row({"seq_num": 0, "count": 3, "wait": 60}, [4, 5, 6]),
    Row({"seq_num": 0, "until": 150, "wait": 60}, [4]),
    Row({"seq_num": 0, "bytes": 9 * 3 + 8, "wait": 60}, [4, 5, 6]),
    Row({"seq_num": 0, "bytes": 9 * 3, "wait": 60}, [4, 5, 6]),
    Row({"seq_num": 4, "bytes": 7}, []),
    Row({"seq_num": 0, "count": 0}, []),
    Row({"seq_num": 99, "count": 0}, []),
    Row({"tail_offset": 2, "count": 9}, [8, 9]),
    Row({"timestamp": 171, "wait": 0}, [8, 9]),
    Row({"seq_num": 10, "wait": 0, "clamp": True}, []),
]
SESSIONS_REFUSED: list[dict[str, Any]] = [
    {"seq_num": 10, "count": 5},
    {"seq_num": 10, "count": 5, "clamp": True},
    {"seq_num": 10, "bytes": 5},
    {"seq_num": 10, "until": 500, "wait": 0},
    {"seq_num": 11},
    {"seq_num": 11, "wait": 60},
    {"timestamp": T + 1},
]
SESSIONS_THAT_FOLLOW: list[dict[str, Any]] = [
    {},
    {"wait": 60},
    {"seq_num": 10},
    {"seq_num": 11, "clamp": True},
    {"timestamp": T + 1, "clamp": True},
    {"seq_num": 10, "count": 5, "wait": 60},
    {"seq_num": 10, "bytes": 500, "wait": 60},
    {"seq_num": 10, "until": 500, "wait": 60},
]


def named(case: Row | dict[str, Any]) -> str:
    request = case.request if isinstance(case, Row) else case
    return "&".join(f"{name}={value}" for name, value in request.items()) or "nothing"


async def fill(node: Node) -> None:
    """Ten records in three commits; the last one is the trim of the first four."""
    await with_stream(node)
    records = [Record(b"%d" % i, (), 100 + 10 * i) for i in range(9)]
    await node.append(BASIN, STREAM, batch(*records[:3]))
    await node.append(BASIN, STREAM, batch(*records[3:7]))
    ack = await node.append(BASIN, STREAM, batch(*records[7:], trim_record(4, T)))
    assert ack.tail == TAIL


async def check_unary(node: Node, row: Row) -> None:
    found = await read_one(node, **row.request)
    assert seq_nums(found.records()) == row.seq_nums, row.request
    assert found.tail is None, "nothing of it came while the read waited"


async def check_ending_session(node: Node, row: Row) -> None:
    async with session(node, make_request(**row.request)) as follower:
        batches = await follower.rest()
    records = [record for found in batches for record in found.records()]
    assert seq_nums(records) == row.seq_nums, row.request
    assert all(found.tail is None for found in batches), "all of it is history"


async def refuse(node: Node, request: dict[str, Any]) -> None:
    with pytest.raises(Unwritten) as unwritten:
        await read_one(node, **request)
    assert (unwritten.value.tail_seq_num, unwritten.value.tail_timestamp) == TAIL, request


async def refuse_session(node: Node, request: dict[str, Any]) -> None:
    with pytest.raises(Unwritten) as unwritten:
        async with session(node, make_request(**request)):
            pass
    assert (unwritten.value.tail_seq_num, unwritten.value.tail_timestamp) == TAIL, request


@pytest.mark.parametrize("row", UNARY, ids=named)
def test_a_unary_read_returns_what_is_there(memory: Storage, row: Row) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await fill(node)
            await check_unary(node, row)

    memory.run(scenario)


@pytest.mark.parametrize("request_", UNWRITTEN, ids=named)
def test_a_unary_read_of_what_is_not_written_is_refused_with_the_tail(
    memory: Storage, request_: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await fill(node)
            await refuse(node, request_)

    memory.run(scenario)


@pytest.mark.parametrize("request_", WAITING, ids=named)
def test_a_unary_read_at_the_tail_waits_and_then_returns_nothing(
    memory: Storage, request_: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await fill(node)
            read = asyncio.ensure_future(read_one(node, **request_))
            await pass_time(clock, 1.9, step=0.1)
            assert not read.done()
            await pass_time(clock, 0.2, step=0.1)
            found = await soon(read)
            assert found.records() == []
            assert found.tail is None

    memory.run(scenario)


@pytest.mark.parametrize("request_", WAITING, ids=named)
def test_a_unary_read_at_the_tail_returns_the_first_batch_that_comes(
    storage: Storage, request_: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await fill(node)
            read = asyncio.ensure_future(read_one(node, **request_))
            await turns()
            later = [Record(b"x", (), 200 + i) for i in range(3)]
            ack = await node.append(BASIN, STREAM, batch(*later))
            found = await soon(read)
            assert seq_nums(found.records()) == [10, 11, 12]
            assert found.tail == ack.tail == StreamPosition(13, 202)

    storage.run(scenario)


@pytest.mark.parametrize("row", SESSIONS_THAT_END, ids=named)
def test_a_session_delivers_history_and_ends_by_its_limits(memory: Storage, row: Row) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await fill(node)
            await check_ending_session(node, row)

    memory.run(scenario)


@pytest.mark.parametrize("request_", SESSIONS_REFUSED, ids=named)
def test_a_session_that_may_not_begin_is_refused_before_it_does(
    memory: Storage, request_: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await fill(node)
            await refuse_session(node, request_)

    memory.run(scenario)


@pytest.mark.parametrize("request_", SESSIONS_THAT_FOLLOW, ids=named)
def test_a_session_at_the_tail_says_so_at_once_and_goes_on(
    memory: Storage, request_: dict[str, Any]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await fill(node)
            async with session(node, make_request(**request_)) as follower:
                await check_follows(node, follower)

    memory.run(scenario)


async def check_follows(node: Node, follower: Session) -> None:
    heartbeat = await follower.next()
    assert heartbeat.is_heartbeat
    assert heartbeat.tail == TAIL
    asked = follower.ask()
    await turns()
    assert not asked.done()
    ack = await node.append(BASIN, STREAM, batch(Record(b"x", (), 200), Record(b"y", (), 201)))
    found = await soon(asked)
    assert seq_nums(found.records()) == [10, 11]
    assert found.tail == ack.tail


def test_a_session_from_the_start_delivers_then_reports_the_tail_then_follows(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await fill(node)
            async with session(node) as follower:
                history = await follower.next()
                assert seq_nums(history.records()) == KEPT
                assert history.tail is None
                await check_follows(node, follower)

    storage.run(scenario)


def test_a_session_with_a_count_and_a_wait_ends_when_the_count_has_come(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, clock=ManualClock()) as node:
            await fill(node)
            async with session(node, make_request(seq_num=10, count=5, wait=60)) as follower:
                assert (await follower.next()).is_heartbeat
                await node.append(BASIN, STREAM, batch("a", "b", "c"))
                first = await follower.next()
                await node.append(BASIN, STREAM, batch("d", "e", "f"))
                second = await follower.next()
                assert seq_nums(first.records()) == [10, 11, 12]
                assert seq_nums(second.records()) == [13, 14]
                assert second.tail is not None
                assert second.tail.seq_num == 16, "behind the whole live batch"
                assert await follower.rest() == []

    memory.run(scenario)


def test_requests_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(Invalid):
        make_request(timestamp=5, until=5)
    with pytest.raises(Invalid):
        make_request(seq_num=1, timestamp=1)
    with pytest.raises(Invalid):
        make_request(seq_num=1, tail_offset=1)


def test_a_stream_that_is_trimmed_to_its_end_reads_as_empty_and_keeps_its_tail(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock()
        async with node_on(bucket, clock=clock) as node:
            await fill(node)
            ack = await node.append(BASIN, STREAM, batch(trim_record(11, T)))
            assert ack.tail == StreamPosition(11, T)
            empty: list[dict[str, Any]] = [{"seq_num": 0}, {"seq_num": 10}, {"tail_offset": 5}]
            for request in empty:
                assert (await read_one(node, **request)).records() == []
            beyond: list[dict[str, Any]] = [{"tail_offset": 0}, {"timestamp": T}, {"seq_num": 11}]
            for request in beyond:
                with pytest.raises(Unwritten):
                    await read_one(node, **request)
            read = asyncio.ensure_future(read_one(node, seq_num=0, wait=5))
            await turns()
            assert not read.done()
            await pass_time_until(clock, read.done)
            assert (await read).records() == []
            async with session(node, make_request(seq_num=0)) as follower:
                assert (await follower.next()).is_heartbeat
            async with session(node, make_request(seq_num=0, count=5)) as follower:
                assert await follower.rest() == []
            assert await node.check_tail(BASIN, STREAM) == StreamPosition(11, T)

    storage.run(scenario)


def test_a_new_stream_has_nothing_to_read(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            requests: list[dict[str, Any]] = [
                {"seq_num": 0},
                {},
                {"timestamp": 0},
                {"seq_num": 0, "clamp": True},
            ]
            for request in requests:
                with pytest.raises(Unwritten) as unwritten:
                    await read_one(node, **request)
                assert unwritten.value.tail_seq_num == 0
            async with session(node) as follower:
                heartbeat = await follower.next()
                assert heartbeat.tail == StreamPosition(0, 0)

    storage.run(scenario)


def test_the_whole_matrix_holds_when_everything_comes_from_the_bucket(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await fill(node)
        async with node_on(bucket, clock=ManualClock()) as node:
            for row in UNARY:
                await check_unary(node, row)
            for row in SESSIONS_THAT_END:
                await check_ending_session(node, row)
            for request in UNWRITTEN:
                await refuse(node, request)
            for request in SESSIONS_REFUSED:
                await refuse_session(node, request)

    storage.run(scenario)
