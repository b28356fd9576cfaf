"""Where reads start, stop and wait; following; timestamps."""

import asyncio

from s2_sdk import (
    AppendInput,
    ReadLimit,
    ReadUnwrittenError,
    Record,
    S2ServerError,
    S2Stream,
    SeqNum,
    StreamConfig,
    TailOffset,
    Timestamp,
    Timestamping,
    TimestampingMode,
)

from tests.compat.pysdk.world import World, batch, bodies_of, fails, refused

FUTURE_MS = 1 << 45


def stamped(*timestamps: int | None) -> AppendInput:
    return AppendInput(
        records=[Record(body=b"%d" % (one or 0), timestamp=one) for one in timestamps]
    )


async def stamps_of(stream: S2Stream) -> list[int]:
    return [one.timestamp for one in (await stream.read(start=SeqNum(0))).records]


async def timestamps_follow_the_mode_of_the_stream(world: World) -> None:
    async def stream_with(mode: TimestampingMode, *, uncapped: bool = False) -> S2Stream:
        stamping = Timestamping(mode=mode, uncapped=uncapped)
        return await world.stream(config=StreamConfig(timestamping=stamping))

    prefer = await stream_with(TimestampingMode.CLIENT_PREFER)
    await prefer.append(stamped(5, 3, 9, FUTURE_MS, None))
    found = await stamps_of(prefer)
    assert found[:3] == [5, 5, 9]
    assert 9 < found[3] <= found[4] < FUTURE_MS
    uncapped = await stream_with(TimestampingMode.CLIENT_PREFER, uncapped=True)
    await uncapped.append(stamped(0, FUTURE_MS, 7))
    assert await stamps_of(uncapped) == [0, FUTURE_MS, FUTURE_MS]
    require = await stream_with(TimestampingMode.CLIENT_REQUIRE)
    await refused(require.append(stamped(1, None)), 422, "invalid")
    ack = await require.append(stamped(1, 2))
    assert (ack.start.seq_num, ack.start.timestamp, ack.end.timestamp) == (0, 1, 2)
    arrival = await stream_with(TimestampingMode.ARRIVAL)
    ack = await arrival.append(stamped(5))
    assert 5 < ack.start.timestamp < FUTURE_MS


async def reads_start_and_stop_where_told(world: World) -> None:
    stream = await world.stream()
    await stream.append(stamped(*range(10, 20)))

    async def read(start: SeqNum | Timestamp | TailOffset, **how: object) -> list[int]:
        unary = [one.seq_num for one in (await stream.read(start=start, **how)).records]
        how.setdefault("wait", 0)
        session = stream.read_session(start=start, **how)
        assert [one.seq_num async for found in session for one in found.records] == unary
        return unary

    assert await read(SeqNum(0)) == list(range(10))
    assert await read(SeqNum(4), limit=ReadLimit(count=3)) == [4, 5, 6]
    assert await read(SeqNum(4), limit=ReadLimit(bytes=25)) == [4, 5]
    assert await read(SeqNum(4), limit=ReadLimit(count=0)) == []
    assert await read(TailOffset(3)) == [7, 8, 9]
    assert await read(TailOffset(99)) == list(range(10))
    assert await read(Timestamp(15)) == [5, 6, 7, 8, 9]
    assert await read(SeqNum(2), until_timestamp=15) == [2, 3, 4]
    assert await read(SeqNum(99), clamp_to_tail=True, wait=1) == []
    await refused(stream.read(start=Timestamp(5), until_timestamp=5), 422, "invalid")


async def reading_what_is_unwritten_says_the_tail(world: World) -> None:
    stream = await world.stream()
    await stream.append(stamped(10, 20))
    limit = ReadLimit(count=1)
    for start in (SeqNum(2), SeqNum(7), Timestamp(21), TailOffset(0)):
        with fails(ReadUnwrittenError) as failure:
            await stream.read(start=start)
        assert (
            failure.error.status_code,
            failure.error.tail.seq_num,
            failure.error.tail.timestamp,
        ) == (416, 2, 20)
        with fails(ReadUnwrittenError) as failure:
            async for _ in stream.read_session(start=start, limit=limit):
                raise AssertionError(f"read beyond the tail from {start}")
        assert failure.error.tail.seq_num == 2


async def a_reader_follows_and_knows_when_it_has_caught_up(world: World) -> None:
    stream = await world.stream()
    await stream.append(batch(b"history"))
    session = stream.read_session(start=SeqNum(0))
    found = bodies_of((await anext(session)).records)
    tail = await session.caught_up()
    assert tail.seq_num == 1
    assert session.is_caught_up()
    expected = [b"history"]
    for number in range(20):
        expected.append(b"%d" % number * 300)
        await stream.append(batch(expected[-1]))
        live = await anext(session)
        assert live.tail is not None
        assert live.tail.seq_num == number + 2
        found += bodies_of(live.records)
    assert found == expected
    await session.close()


async def a_reader_ends_when_its_stream_is_deleted(world: World) -> None:
    client = world.client(attempts=1)
    basin = await world.basin()
    await basin.create_stream("stream")
    await basin.stream("stream").append(batch(b"seen"))
    session = client.basin(basin.name).stream("stream").read_session(start=SeqNum(0))
    assert bodies_of((await anext(session)).records) == [b"seen"]
    await session.caught_up()
    await basin.delete_stream("stream")
    with fails(S2ServerError) as failure:
        async with asyncio.timeout(30):
            async for _ in session:
                pass
    assert failure.error.status_code in {404, 409, 503}, repr(failure.error)
    await client.close()
