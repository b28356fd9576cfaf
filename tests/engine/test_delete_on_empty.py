"""Delete-on-empty: streams that hold nothing and are not written any more go by themselves."""

import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import StreamNotFound
from bourn.model.config import Age, BasinConfig, DeleteOnEmpty, Infinite, StreamConfig
from bourn.model.patch import DeleteOnEmptyPatch, StreamPatch
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import Storage, pass_time, pass_time_until, read_one, trim
from tests.support import BASIN, STREAM, batch, node_on

NOW_MS = 1_700_000_000_000
MIN_AGE_SECS = 60
# Hours pass here in the time that a disk takes to sync: that is no reason to give a put up.
PATIENT = EngineSettings(put_attempt_secs=1e9, put_deadline_secs=1e9)


def config(retention_secs: int | None = None, min_age_secs: int = MIN_AGE_SECS) -> StreamConfig:
    return StreamConfig(
        retention_policy=Infinite() if retention_secs is None else Age(retention_secs),
        delete_on_empty=DeleteOnEmpty(min_age_secs),
    )


def is_there(node: Node) -> bool:
    return node.term.find(BASIN, STREAM) is not None


async def gone_after(node: Node, clock: ManualClock, low: float) -> None:
    """Let time pass; the stream must go when this many seconds have, and soon after."""
    began = clock.monotonic()
    while clock.monotonic() - began < low:
        await pass_time(clock, 1, 0.5)
        if clock.monotonic() - began < low:
            assert is_there(node), f"gone after {clock.monotonic() - began} s"
    await pass_time_until(clock, lambda: not is_there(node), 0.25)
    assert clock.monotonic() - began <= low + 60  # snapshots take real time meanwhile


async def make(node: Node, stream_config: StreamConfig, *, auto: bool = False) -> None:
    await node.create_basin(CreateBasin(BASIN, BasinConfig(create_stream_on_append=auto)))
    await node.create_stream(BASIN, CreateStream(STREAM, stream_config))


def test_a_stream_that_was_never_written_goes(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config())
            await gone_after(node, clock, 59)
            with pytest.raises(StreamNotFound):
                await node.check_tail(BASIN, STREAM)

    storage.run(scenario)


def test_a_stream_that_is_trimmed_to_its_end_goes_once_its_last_write_is_old(
    memory: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config())
            await node.append(BASIN, STREAM, batch("a"))
            await pass_time(clock, 200)
            assert is_there(node)
            await node.append(BASIN, STREAM, batch(trim(2)))
            await gone_after(node, clock, 59)

    memory.run(scenario)


def test_a_stream_whose_records_have_expired_goes(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config(retention_secs=100))
            await node.append(BASIN, STREAM, batch("a"))
            await gone_after(node, clock, 99)

    memory.run(scenario)


def test_an_append_keeps_the_stream(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config())
            await pass_time(clock, 55)
            await node.append(BASIN, STREAM, batch("a"))
            await pass_time(clock, 300)
            assert (await read_one(node, seq_num=0)).records_count == 1
            await node.append(BASIN, STREAM, batch(trim(2)))
            await pass_time(clock, 55)
            await node.append(BASIN, STREAM, batch(trim(3)))  # also a write
            await gone_after(node, clock, 59)

    memory.run(scenario)


def test_a_record_of_infinite_retention_keeps_the_stream_for_ever(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config())
            await node.append(BASIN, STREAM, batch("a", trim(1)))  # the trim itself stays
            await pass_time(clock, 10_000, 500)
            assert is_there(node)

    memory.run(scenario)


def test_it_can_be_switched_on_and_off(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config())

            async def set_min_age(secs: int | None) -> None:
                patch = StreamPatch(delete_on_empty=DeleteOnEmptyPatch(min_age_secs=secs))
                await node.reconfigure_stream(BASIN, STREAM, patch)

            await pass_time(clock, 50)
            await set_min_age(None)
            await pass_time(clock, 300, 5)
            assert is_there(node)
            await set_min_age(1000)
            await gone_after(node, clock, 645)

    memory.run(scenario)


@pytest.mark.parametrize("kind", ["never written", "trimmed", "expired"])
def test_streams_at_rest_go_too(storage: Storage, kind: str) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config(30 if kind == "expired" else None))
            if kind != "never written":
                await node.append(BASIN, STREAM, batch("a"))
            if kind == "trimmed":
                await node.append(BASIN, STREAM, batch(trim(2)))
            for _ in range(2):
                await node.housekeeping.snapshots.take()
            assert node.term.state.streams.hot() == []
            await pass_time(clock, 50)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            assert len((await node.list_streams(BASIN)).rows) == 1
            await pass_time_until(clock, lambda: node.term.state.streams.count() == 0)
            assert (await node.list_streams(BASIN)).rows == []

    storage.run(scenario)


def test_a_stream_that_went_is_made_again_by_the_next_append_from_zero(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, PATIENT, clock=clock) as node:
            await make(node, config(), auto=True)
            await node.append(BASIN, STREAM, batch("a", trim(2)))
            await gone_after(node, clock, 59)
            ack = await node.append(BASIN, STREAM, batch("b"))
            assert ack.start.seq_num == 0
            assert node.term.find(BASIN, STREAM) is not None

    memory.run(scenario)
