"""Sessions that the SDK carries over to the next server process."""

import asyncio
import sys
from typing import Self
from unittest.mock import patch

from s2_sdk import (
    AppendAck,
    AppendInput,
    AppendRetryPolicy,
    BasinConfig,
    CommandRecord,
    Compression,
    FencingTokenMismatchError,
    ReadLimit,
    S2Stream,
    SeqNum,
    StreamConfig,
)
from s2_sdk._s2s import _append_session

from tests.compat.pysdk.appending import read_all
from tests.compat.pysdk.world import World, batch, bodies_of, fails

BATCHES = 1500
RESTART_AT = 400
SESSIONS_MAX = 5


async def everything_is_there_after_a_restart(world: World) -> None:
    s2 = world.patient()
    config = BasinConfig(create_stream_on_append=True)
    basin = await world.basin(config=config)
    made = await basin.create_stream("stream", config=StreamConfig(retention_policy="infinite"))
    stream = s2.basin(basin.name).stream("stream")
    await stream.append(batch(*[b"%d" % number for number in range(10)]))
    await stream.append(AppendInput(records=[CommandRecord.trim(4), CommandRecord.fence("mine")]))
    before = await stream.read(start=SeqNum(0))
    for ending in ("kill", "stop"):
        await world.restart(ending)
        assert await stream.read(start=SeqNum(0)) == before
        assert [info async for info in s2.basin(basin.name).list_all_streams()] == [made]
        assert (await s2.get_basin_config(basin.name)).create_stream_on_append
        found = await s2.basin(basin.name).get_stream_config("stream")
        assert found.retention_policy == "infinite"
        assert (await stream.check_tail()).seq_num == 12
        with fails(FencingTokenMismatchError) as failure:
            await stream.append(batch(b"", fencing_token="yours"))
        assert failure.error.expected_fencing_token == "mine"


class Sent:
    """Sees which batch the SDK sends next, and whether it has forgotten one.

    s2-sdk 0.13.0 forgets the batch that it takes from its queue in the very turn in which its
    connection is lost: it is neither sent nor put back, and whoever waits for its ack waits for
    ever, whatever the server is. So a session that skips a batch ends at once, and says so.
    """

    def __init__(self) -> None:
        self.forgotten: int | None = None
        self._next = 0
        self._encode = _append_session._encode_input

    def __enter__(self) -> Self:
        self._patch = patch.object(_append_session, "_encode_input", self._watched)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _watched(self, batch: AppendInput, compression: Compression) -> bytes:
        if batch.records[0].body != body_of(self._next):
            self.forgotten = self._next
            raise ValueError(f"the SDK has forgotten batch {self._next}")
        self._next += 1
        encoded: bytes = self._encode(batch, compression)
        return encoded


async def append_through(
    world: World, policy: AppendRetryPolicy, ending: str, *, match: bool
) -> tuple[S2Stream, list[AppendAck]]:
    """Append all batches in one session while the server is restarted.

    Again on another stream where the SDK has forgotten a batch: only what it sends can be acked.
    """
    for _ in range(SESSIONS_MAX):
        stream = await world.patient_stream(policy)
        with Sent() as sent:
            try:
                return stream, await append_all(world, stream, ending, match=match)
            except Exception:
                if sent.forgotten is None:
                    raise
        print(f"the SDK has forgotten batch {sent.forgotten}", file=sys.stderr, flush=True)
    raise AssertionError(f"the SDK has forgotten a batch in each of {SESSIONS_MAX} sessions")


async def append_all(
    world: World, stream: S2Stream, ending: str, *, match: bool
) -> list[AppendAck]:
    restarting: asyncio.Task[None] | None = None
    try:
        async with stream.append_session(max_unacked_batches=50) as session:
            tickets = []
            for number in range(BATCHES):
                condition = {"match_seq_num": number} if match else {}
                tickets.append(await session.submit(batch(body_of(number), **condition)))
                if number == RESTART_AT:
                    restarting = asyncio.create_task(world.restart(ending))
            return [await ticket for ticket in tickets]
    finally:
        if restarting is not None:
            await restarting


def body_of(number: int) -> bytes:
    return b"%d:" % number + bytes([number % 256]) * (number % 500)


async def an_append_session_outlives_a_kill(world: World) -> None:
    stream, acks = await append_through(world, AppendRetryPolicy.ALL, "kill", match=False)
    tail = await stream.check_tail()
    found = await read_all(stream, tail.seq_num)
    for number, ack in enumerate(acks):
        assert ack.end.seq_num == ack.start.seq_num + 1
        assert found[ack.start.seq_num] == body_of(number)
    starts = [ack.start.seq_num for ack in acks]
    assert starts == sorted(set(starts))
    # What was under way may be there twice; nothing else may.
    repeats = len(found) - BATCHES
    assert 0 <= repeats <= 50
    assert sorted(set(found)) == sorted(body_of(number) for number in range(BATCHES))


async def an_append_session_outlives_a_stop_without_repeating(world: World) -> None:
    """A draining server lets clients leave between two batches: no append is ever in doubt."""
    policy = AppendRetryPolicy.NO_SIDE_EFFECTS
    stream, acks = await append_through(world, policy, "stop", match=True)
    assert [ack.start.seq_num for ack in acks] == list(range(BATCHES))
    assert await read_all(stream, BATCHES) == [body_of(number) for number in range(BATCHES)]


async def a_read_session_outlives_a_kill(world: World) -> None:
    await read_through(world, "kill")


async def a_read_session_outlives_a_stop(world: World) -> None:
    await read_through(world, "stop")


async def read_through(world: World, ending: str) -> None:
    stream = await world.patient_stream()
    bodies = [body_of(number) for number in range(BATCHES)]
    await stream.append(batch(*bodies[:500]))
    found: list[bytes] = []
    restarted = False
    session = stream.read_session(start=SeqNum(0), limit=ReadLimit(count=BATCHES), wait=60)
    writing: asyncio.Task[None] | None = None

    async def write_on() -> None:
        await world.restart(ending)
        for number in range(500, BATCHES, 100):
            await stream.append(batch(*bodies[number : number + 100]))

    async for one in session:
        found += bodies_of(one.records)
        if not restarted:
            restarted = True
            writing = asyncio.create_task(write_on())
    assert writing is not None
    await writing
    assert found == bodies
