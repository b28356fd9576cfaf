"""Records, conditions, commands, sessions and producers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from s2_sdk import (
    AppendInput,
    Batching,
    CommandRecord,
    FencingTokenMismatchError,
    ReadLimit,
    Record,
    S2Error,
    S2Stream,
    SeqNum,
    SeqNumMismatchError,
    append_inputs,
    append_record_batches,
    metered_bytes,
)

from tests.compat.pysdk.world import World, batch, bodies_of, fails, refused

BATCHES = 3000
RECORD_BYTES_MAX = 1 << 20
BODIES = (b"", b"\x00", b"text", bytes(range(256)), "\u2603".encode(), b"\xff\xfe", b"z" * 5000)


async def records_are_read_back_exactly(world: World) -> None:
    stream = await world.stream()
    records = [
        Record(body=body, headers=[(b"n", b"%d" % number), (b"n", b"\xff"), (b"empty", b"")])
        for number, body in enumerate(BODIES)
    ]
    ack = await stream.append(AppendInput(records=records))
    assert (ack.start.seq_num, ack.end.seq_num, ack.tail.seq_num) == (0, len(BODIES), len(BODIES))
    found = await stream.read(start=SeqNum(0))
    assert [(one.body, one.headers) for one in found.records] == [
        (one.body, one.headers) for one in records
    ]
    assert [one.seq_num for one in found.records] == list(range(len(BODIES)))
    assert metered_bytes(found.records) == metered_bytes(records)
    tail = await stream.check_tail()
    assert (tail.seq_num, tail.timestamp) == (ack.tail.seq_num, found.records[-1].timestamp)


async def the_largest_batches_are_taken(world: World) -> None:
    stream = await world.stream()
    largest = bytes(range(256)) * 4096
    largest = largest[: RECORD_BYTES_MAX - 8]
    many = [b"%d" % number + b"x" * 1000 for number in range(1000)]
    await stream.append(batch(largest))
    await stream.append(batch(*many))
    async with stream.append_session() as session:
        for _ in range(8):
            await session.submit(batch(largest))
        await session.submit(batch(*many))
    assert bodies_of((await stream.read(start=SeqNum(0))).records) == [largest]
    found: list[bytes] = []
    async for one in stream.read_session(start=SeqNum(0), limit=ReadLimit(count=2009)):
        found += bodies_of(one.records)
    assert found == [largest, *many, *[largest] * 8, *many]


async def appends_are_conditional(world: World) -> None:
    stream = await world.stream()
    await stream.append(batch(b"0", match_seq_num=0))
    with fails(SeqNumMismatchError) as failure:
        await stream.append(batch(b"1", match_seq_num=7))
    assert (failure.error.status_code, failure.error.expected_seq_num) == (412, 1)
    await stream.append(batch(b"1", match_seq_num=1, fencing_token=""))
    fence = AppendInput(records=[CommandRecord.fence("mine")], fencing_token="")
    await stream.append(fence)
    with fails(FencingTokenMismatchError) as failure:
        await stream.append(batch(b"3", fencing_token="yours", match_seq_num=99))
    assert (failure.error.status_code, failure.error.expected_fencing_token) == (412, "mine")
    await stream.append(batch(b"3", fencing_token="mine", match_seq_num=3))
    await stream.append(batch(b"4"))
    found = await stream.read(start=SeqNum(0), ignore_command_records=True)
    assert bodies_of(found.records) == [b"0", b"1", b"3", b"4"]


async def a_session_fails_at_its_first_unmet_condition(world: World) -> None:
    stream = await world.stream()
    session = stream.append_session(max_unacked_batches=10)
    good = [
        await session.submit(batch(b"%d" % number, match_seq_num=number)) for number in range(3)
    ]
    bad = await session.submit(batch(b"bad", match_seq_num=99))
    later = await session.submit(batch(b"later"))
    assert [(await ticket).start.seq_num for ticket in good] == [0, 1, 2]
    for ticket in (bad, later):
        with fails(SeqNumMismatchError) as failure:
            await ticket
        assert failure.error.expected_seq_num == 3
    with fails(SeqNumMismatchError):
        await session.close()
    assert (await stream.check_tail()).seq_num == 3


async def fences_and_trims_take_effect(world: World) -> None:
    stream = await world.stream()
    await stream.append(batch(*[b"%d" % number for number in range(10)]))
    ack = await stream.append(AppendInput(records=[CommandRecord.trim(6)]))
    assert (ack.start.seq_num, ack.tail.seq_num) == (10, 11)
    found = await stream.read(start=SeqNum(0))
    assert [one.seq_num for one in found.records] == [6, 7, 8, 9, 10]
    assert [one.is_command_record() for one in found.records] == [False] * 4 + [True]
    command = found.records[-1]
    assert (command.headers, command.body) == ([(b"", b"trim")], (6).to_bytes(8, "big"))
    assert (await stream.check_tail()).seq_num == 11
    await stream.append(AppendInput(records=[CommandRecord.fence("first")]))
    await stream.append(AppendInput(records=[CommandRecord.fence("")], fencing_token="first"))
    await stream.append(batch(b"free", fencing_token=""))
    await refused(
        stream.append(AppendInput(records=[Record(body=b"", headers=[(b"", b"jump")])])),
        422,
        "invalid",
    )


async def a_session_of_thousands_of_batches_is_exact(world: World) -> None:
    stream = await world.stream()
    bodies = [
        b"%d:" % number + bytes([number % 256]) * (number % 2000) for number in range(BATCHES)
    ]
    async with stream.append_session() as session:
        tickets = [await session.submit(batch(body)) for body in bodies]
        acks = [await ticket for ticket in tickets]
    assert [ack.start.seq_num for ack in acks] == list(range(BATCHES))
    assert await read_all(stream, BATCHES) == bodies


async def read_all(stream: S2Stream, records: int) -> list[bytes]:
    found: list[bytes] = []
    async for one in stream.read_session(start=SeqNum(0), limit=ReadLimit(count=records)):
        found += bodies_of(one.records)
    return found


async def a_producer_batches_and_acks_each_record(world: World) -> None:
    stream = await world.stream()
    bodies = [b"%d" % number * (number % 50) for number in range(2500)]
    batching = Batching(max_records=100, linger=timedelta(milliseconds=20))
    async with stream.producer(batching=batching, match_seq_num=0, fencing_token="") as producer:
        tickets = [await producer.submit(Record(body=body)) for body in bodies]
        await producer.flush()
        acks = [await ticket for ticket in tickets]
    assert [ack.seq_num for ack in acks] == list(range(len(bodies)))
    assert all(ack.batch.end.seq_num - ack.batch.start.seq_num <= 100 for ack in acks)
    assert len({ack.batch.start.seq_num for ack in acks}) < len(bodies) / 10
    assert await read_all(stream, len(bodies)) == bodies
    late = stream.producer(match_seq_num=0)
    ticket = await late.submit(Record(body=b"late"))
    for failing in (ticket, late.close()):
        with fails(S2Error) as failure:
            await failing
        assert isinstance(failure.error, SeqNumMismatchError), repr(failure.error)


async def records_are_batched_by_helpers(world: World) -> None:
    stream = await world.stream()
    bodies = [b"%d" % number for number in range(250)]

    async def records() -> AsyncIterator[Record]:
        for body in bodies:
            yield Record(body=body)

    batching = Batching(max_records=100, linger=timedelta(0))
    sizes = [len(found) async for found in append_record_batches(records(), batching=batching)]
    assert sizes == [100, 100, 50]
    given = append_inputs(records(), match_seq_num=0, fencing_token="", batching=batching)
    async with stream.append_session() as session:
        async for one in given:
            await session.submit(one)
    assert await read_all(stream, len(bodies)) == bodies


async def many_sessions_share_a_client(world: World) -> None:
    basin = await world.basin()
    names = [f"stream-{number}" for number in range(30)]

    async def write(name: str) -> None:
        await basin.create_stream(name)
        async with basin.stream(name).append_session() as session:
            for number in range(20):
                await session.submit(batch(f"{name}:{number}".encode()))

    await asyncio.gather(*map(write, names))
    for name in names:
        expected = [f"{name}:{number}".encode() for number in range(20)]
        assert await read_all(basin.stream(name), 20) == expected
