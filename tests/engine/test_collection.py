"""Collection: objects that hold nothing any more go, in time; nothing else ever does."""

import asyncio
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.layout.commit import decode_header
from bourn.layout.keys import EPOCH_PREFIX, WAL_PREFIX, parse_wal_key, wal_key
from bourn.model.config import Age, BasinConfig, Infinite, StreamConfig
from bourn.model.patch import StreamPatch
from bourn.model.resource import CreateBasin, CreateStream, EnsureBasin
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    commits_of,
    crash,
    eventually,
    keys_of,
    pass_time,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, run

NOW_MS = 1_700_000_000_000
BY_HAND = EngineSettings(  # housekeeping is called by the tests, and reads come from objects
    housekeeping_secs=1e9, tail_cache_bytes=0, read_cache_bytes=1, collect_grace_secs=60
)
AT_ONCE = msgspec.structs.replace(BY_HAND, collect_grace_secs=0)
FOREVER = StreamConfig(retention_policy=Infinite())
STREAMS = ("a", "b", "c")


async def make(node: Node, *streams: str) -> None:
    """A basin of streams that keep their records for ever."""
    await node.create_basin(CreateBasin(BASIN, BasinConfig(default_stream_config=FOREVER)))
    for name in streams or (STREAM,):
        await node.create_stream(BASIN, CreateStream(name))


async def snapshot(node: Node) -> None:
    """A snapshot at a place of its own in the log."""
    config = await node.basin_config(BASIN)
    flipped = msgspec.structs.replace(
        config, create_stream_on_read=not config.create_stream_on_read
    )
    await node.ensure_basin(BASIN, EnsureBasin(flipped))
    await node.housekeeping.snapshots.take()


def test_a_dead_commit_goes_only_below_every_kept_snapshot_and_after_the_grace(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            house = node.housekeeping
            await make(node)
            await append_each(node, "a", "b")
            await node.append(BASIN, STREAM, batch(trim(2)))
            house.expire()
            everything = await keys_of(bucket, WAL_PREFIX)
            assert len(everything) == 5
            for _ in range(2):  # no snapshot, then one: a damaged one would leave no start
                clock.advance(1000)
                await house.collect()
                assert set(await keys_of(bucket, WAL_PREFIX)) >= set(everything)
                await snapshot(node)
            await house.collect()
            clock.advance(59)
            await house.collect()
            assert set(await keys_of(bucket, WAL_PREFIX)) >= set(everything)
            clock.advance(1)
            await house.collect()
            kept = await keys_of(bucket, WAL_PREFIX)
            assert not set(kept) & set(everything[:4]), "all but the trim itself"
            assert everything[4] in kept
            assert house.collected == 5, "and the change before the first snapshot"
            assert len(await read_all(node)) == 1
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            assert len(await read_all(node)) == 1
            assert (await node.check_tail(BASIN, STREAM)).seq_num == 3

    storage.run(scenario)


@pytest.mark.parametrize("kind", ["trimmed", "expired", "deleted"])
def test_what_is_gone_for_readers_is_gone_from_the_bucket_in_the_end(
    storage: Storage, kind: str
) -> None:
    body = b"x" * 10_000

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            await make(node, STREAM, "kept")
            if kind == "expired":
                brief = StreamPatch(retention_policy=Age(5))
                await node.reconfigure_stream(BASIN, STREAM, brief)
            await append_each(node, "kept", stream="kept")
            for _ in range(5):
                await node.append(BASIN, STREAM, batch(body))
            if kind == "trimmed":
                await node.append(BASIN, STREAM, batch(trim(6)))
            elif kind == "deleted":
                await node.delete_stream(BASIN, STREAM)
                await eventually(lambda: node.term.find(BASIN, STREAM) is None)
            clock.advance(6)
            node.housekeeping.expire()
            for _ in range(3):
                await snapshot(node)
                await node.housekeeping.collect()
            left = [info.size_bytes async for info in bucket.list(WAL_PREFIX)]
            assert sum(left) < len(body)
            assert bodies(await read_all(node, BASIN, "kept")) == [b"kept"]

    storage.run(scenario)


def test_a_commit_that_holds_one_live_record_stays_whole(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            await make(node, *STREAMS)
            shared = [
                asyncio.ensure_future(node.append(BASIN, name, batch("x"))) for name in STREAMS
            ]
            await asyncio.gather(*shared)
            for name in ("a", "b"):
                await node.append(BASIN, name, batch(trim(2)))
            node.housekeeping.expire()
            for _ in range(3):
                await snapshot(node)
                await node.housekeeping.collect()
            assert bodies(await read_all(node, BASIN, "c")) == [b"x"]
            await node.append(BASIN, "c", batch(trim(2)))
            node.housekeeping.expire()
            for _ in range(3):
                await snapshot(node)
                await node.housekeeping.collect()
            commits = await commits_of(bucket)
            assert not any(commit.runs for commit in commits.values())

    storage.run(scenario)


# What crashes leave behind


def test_commits_that_were_dead_before_a_restart_are_collected_after_it(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            await make(node)
            for _ in range(4):
                await node.append(BASIN, STREAM, batch(b"x" * 5000))
            await node.append(BASIN, STREAM, batch("live", trim(4)))
            node.housekeeping.expire()
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            for _ in range(3):
                await snapshot(node)
                await node.housekeeping.collect()
            left = [info.size_bytes async for info in bucket.list(WAL_PREFIX)]
            assert max(left) < 5000
            assert bodies(await read_all(node))[:1] == [b"live"]

    storage.run(scenario)


def test_objects_behind_a_gap_are_collected_and_seals_and_claims_stay(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        gated = GatedBucket(bucket)
        each = msgspec.structs.replace(AT_ONCE, flush_interval_ms=1)
        node = await Node.open(gated, each, clock=clock)
        creating = asyncio.ensure_future(make(node))
        while not creating.done():
            clock.advance(0.001)
            await turns(3)
        gated.shut = True
        appends = []
        for i in range(4):  # four puts in flight
            appends.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}"))))
            await turns(3)
            clock.advance(0.001)
            await gated.until_held(i + 1)
        first, second, third, fourth = sorted(gated.held)
        for key in (first, third, fourth):
            gated.let(key)
            await eventually(lambda key=key: key not in gated.held)  # type: ignore[misc]
        await eventually(appends[0].done)
        await crash(node)
        await asyncio.gather(*appends, return_exceptions=True)
        assert second not in await keys_of(bucket, WAL_PREFIX)
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            assert bodies(await read_all(node)) == [b"0"]
            assert {third, fourth} <= set(await keys_of(bucket, WAL_PREFIX))
            for _ in range(3):
                await snapshot(node)
                await node.housekeeping.collect()
            left = await keys_of(bucket, WAL_PREFIX)
            assert not {third, fourth} & set(left)
            assert decode_header(await bucket.get(second), second).is_tombstone
            assert len(await keys_of(bucket, EPOCH_PREFIX)) == 2
            assert bodies(await read_all(node)) == [b"0"]
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            assert bodies(await read_all(node)) == [b"0"]

    storage.run(scenario)


def test_a_bucket_that_is_restarted_often_and_trimmed_does_not_grow(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        expected = b""
        for i in range(6):
            async with node_on(bucket, AT_ONCE, clock=clock) as node:
                if i == 0:
                    await make(node)
                else:
                    assert bodies(await read_all(node))[0] == expected
                tail = (await node.check_tail(BASIN, STREAM)).seq_num
                expected = b"%d" % i + b"x" * 5000
                await node.append(BASIN, STREAM, batch(expected, trim(tail)))
                node.housekeeping.expire()
                for _ in range(2):
                    await snapshot(node)
                    await node.housekeeping.collect()
        infos = [info async for info in bucket.list(WAL_PREFIX)]
        large = [info for info in infos if info.size_bytes > 5000]
        assert len(large) <= 2
        headers = [decode_header(await bucket.get(info.key), info.key) for info in infos]
        assert sum(header.is_tombstone for header in headers) == 5, "one for each earlier writer"

    storage.run(scenario)


# By chance


class Workload:
    """Writes, trims, expiry, deletions, snapshots, collection and restarts, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock(NOW_MS)
        self.bucket = MemoryBucket()
        self.settings = self.rng.choice([BY_HAND, AT_ONCE])
        self.records: dict[str, list[tuple[float, bytes]]] = {name: [] for name in STREAMS}
        self.trims = dict.fromkeys(STREAMS, 0)
        self.retention_secs: dict[str, float] = dict.fromkeys(STREAMS, float("inf"))

    async def run(self, steps: int) -> int:
        node = await Node.open(self.bucket, self.settings, clock=self.clock)
        await make(node, *STREAMS)
        collected = 0
        for _ in range(steps):
            before = node
            node = await self.step(node, self.rng.choice(STREAMS))
            if node is not before:
                collected += before.housekeeping.collected
            if self.rng.random() < 0.1:
                await self.check(node)
        collected += node.housekeeping.collected
        await self.check(node)
        await node.close()
        for _ in range(2):
            node = await Node.open(self.bucket, self.settings, clock=self.clock)
            await self.check(node)
            await crash(node)
        return collected

    async def step(self, node: Node, name: str) -> Node:
        rng, house = self.rng, node.housekeeping
        match rng.randint(0, 15):
            case 0:
                self.retention_secs[name] = rng.choice([2, 10, float("inf")])
                secs = self.retention_secs[name]
                policy = Infinite() if secs == float("inf") else Age(int(secs))
                patch = StreamPatch(retention_policy=policy)
                await node.reconfigure_stream(BASIN, name, patch)
            case 1:
                self.clock.advance(rng.choice([0.5, 3, 30, 70]))
                await turns()
            case 2 | 3:
                house.expire()
            case 4 | 5:
                await snapshot(node)
            case 6 | 7:
                await house.collect()
            case 8 if rng.random() < 0.5:
                await (node.close() if rng.random() < 0.5 else crash(node))
                return await Node.open(self.bucket, self.settings, clock=self.clock)
            case 9 if rng.random() < 0.3:
                await node.delete_stream(BASIN, name)
                await eventually(lambda: node.term.find(BASIN, name) is None)
                await node.create_stream(BASIN, CreateStream(name))
                self.records[name], self.trims[name] = [], 0
                self.retention_secs[name] = float("inf")
            case _:
                await self.append(node, name)
        return node

    async def append(self, node: Node, name: str) -> None:
        rng = self.rng
        texts = [rng.randbytes(rng.randint(0, 20)) for _ in range(rng.randint(1, 3))]
        expiry = self.clock.now_ms() + 1000 * self.retention_secs[name]
        if rng.random() < 0.3:
            point = rng.randint(0, len(self.records[name]) + 5)
            await node.append(BASIN, name, batch(*texts, trim(point)))
            texts.append(point.to_bytes(8, "big"))
            self.records[name] += [(expiry, text) for text in texts]
            point = min(point, len(self.records[name]))
            self.trims[name] = max(self.trims[name], point)
        else:
            await node.append(BASIN, name, batch(*texts))
            self.records[name] += [(expiry, text) for text in texts]

    async def check(self, node: Node) -> None:
        now_ms = self.clock.now_ms()
        for name in STREAMS:
            expected = [
                text
                for n, (expiry, text) in enumerate(self.records[name])
                if n >= self.trims[name] and expiry > now_ms
            ]
            if self.records[name]:
                assert bodies(await read_all(node, BASIN, name)) == expected
            assert (await node.check_tail(BASIN, name)).seq_num == len(self.records[name])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, 90))
def test_no_record_that_is_alive_is_ever_collected(seed: int, steps: int) -> None:
    run(Workload(seed).run(steps))


def test_the_workload_of_the_property_above_does_collect() -> None:
    assert run(Workload(1).run(150)) > 20


def test_every_key_that_is_left_is_one_that_a_start_can_need(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, AT_ONCE, clock=clock) as node:
            await make(node)
            for i in range(10):
                await node.append(BASIN, STREAM, batch(f"{i}", trim(2 * i)))
            node.housekeeping.expire()
            for _ in range(2):
                await snapshot(node)
            await node.housekeeping.collect()
            await pass_time(clock, 1)
            await node.housekeeping.collect()
            oldest_kept = node.housekeeping.snapshots._kept[0][1]
            live = {
                wal_key(*node.term.state.epochs.position(run.commit))
                for run in node.term.find(BASIN, STREAM).runs  # type: ignore[union-attr]
            }
            for key in await keys_of(bucket, WAL_PREFIX):
                position = parse_wal_key(key)
                assert position is not None
                assert key in live or position >= oldest_kept

    memory.run(scenario)
