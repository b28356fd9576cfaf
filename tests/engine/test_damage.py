"""Damage: found, named, never served; and no more of it than there is."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

import msgspec
import pytest

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine import fetches
from bourn.engine.node import Node
from bourn.errors import BournError, Damaged
from bourn.layout.commit import decode_header
from bourn.layout.keys import EPOCH_PREFIX, SNAPSHOT_PREFIX, WAL_PREFIX, epoch_key, wal_key
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    crash,
    eventually,
    keys_of,
    read_one,
    session,
    soon,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, from_start, node_on, read_all, with_stream

NOW_MS = 1_700_000_000_000
TEXTS = [f"text {i}" for i in range(6)]
UNCACHED = EngineSettings(tail_cache_bytes=0, read_cache_bytes=1)


async def filled(bucket: Bucket, *, snapshots: int = 0) -> list[str]:
    """Six appends in six commits and a crash; returns the keys of these commits."""
    node = await Node.open(bucket)
    await with_stream(node)
    before = set(await keys_of(bucket, WAL_PREFIX))
    for i, text in enumerate(TEXTS):
        await append_each(node, text)
        if i < snapshots:
            await node.housekeeping.snapshots.take()
    await crash(node)
    return [key for key in await keys_of(bucket, WAL_PREFIX) if key not in before]


def flipped(data: bytes, at: float) -> bytes:
    index = int(at * (len(data) - 1))
    return data[:index] + bytes([data[index] ^ 0x10]) + data[index + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut in the header": lambda data: data[:40],
    "cut in half": lambda data: data[: len(data) // 2],
    "cut by a byte": lambda data: data[:-1],
    "longer by a byte": lambda data: data + b"\0",
    "flipped at the start": lambda data: flipped(data, 0),
    "flipped in the header": lambda data: flipped(data, 0.15),
    "flipped in the middle": lambda data: flipped(data, 0.5),
    "flipped near the end": lambda data: flipped(data, 0.9),
    "flipped at the end": lambda data: flipped(data, 1),
    "zeroes": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_start_that_needs_a_damaged_commit_is_refused_with_its_name(
    memory: Storage, damage: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        key = (await filled(bucket))[3]
        whole = await bucket.get(key)
        await bucket.put(key, DAMAGES[damage](whole))
        for _ in range(2):
            with pytest.raises(Damaged) as damaged:
                await Node.open(bucket)
            assert damaged.value.key == key
            assert key in str(damaged.value)
        await bucket.put(key, whole)  # from a backup, say
        async with node_on(bucket) as node:
            assert bodies(await read_all(node)) == [text.encode() for text in TEXTS]

    memory.run(scenario)


@pytest.mark.parametrize("which", range(-1, 6))
def test_a_lost_commit_that_others_followed_refuses_the_start_with_its_name(
    storage: Storage, which: int
) -> None:
    async def scenario(bucket: Bucket) -> None:
        keys = await filled(bucket)
        async with node_on(bucket) as node:  # another writer has sealed the first one's log
            await append_each(node, "behind")
            await crash(node)
        key = keys[which] if which >= 0 else wal_key(1, 0)
        lost = await bucket.get(key)
        await bucket.delete(key)
        for snapshot in await keys_of(bucket, SNAPSHOT_PREFIX):
            await bucket.delete(snapshot)
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == key
        await bucket.put(key, lost)
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 7

    storage.run(scenario)


def test_a_lost_commit_below_what_its_followers_knew_to_be_durable_refuses_the_start(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        keys = await filled(bucket)  # not sealed: only the commits behind it can tell
        await bucket.delete(keys[2])
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == keys[2]
        assert "missing" in str(damaged.value)

    storage.run(scenario)


def test_two_commits_that_were_exchanged_are_found_out(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        keys = await filled(bucket)
        first, second = await bucket.get(keys[1]), await bucket.get(keys[2])
        await bucket.put(keys[1], second)
        await bucket.put(keys[2], first)
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == keys[1]

    storage.run(scenario)


def test_a_damaged_seal_refuses_the_start_with_its_name(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        await filled(bucket)
        await crash(await Node.open(bucket))
        seal = (await keys_of(bucket, WAL_PREFIX))[-1]
        assert decode_header(await bucket.get(seal), seal).is_tombstone
        await bucket.put(seal, flipped(await bucket.get(seal), 0.5))
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == seal

    storage.run(scenario)


# Gaps


async def pipelined(bucket: Bucket, stored: list[bool]) -> list[str]:
    """One commit in flight for each, some of them stored, then a crash; returns their keys."""
    clock = ManualClock(NOW_MS)
    gated = GatedBucket(bucket)
    node = await Node.open(gated, EngineSettings(flush_interval_ms=1), clock=clock)
    creating = asyncio.ensure_future(with_stream(node))
    while not creating.done():
        clock.advance(0.001)
        await turns(3)
    gated.shut = True
    appends = []
    for i in range(len(stored)):
        appends.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}"))))
        await turns(3)
        clock.advance(0.001)
        await gated.until_held(i + 1)
    keys = sorted(gated.held)
    for key, is_stored in zip(keys, stored, strict=True):
        if is_stored:
            gated.let(key)
            await eventually(lambda key=key: key not in gated.held)  # type: ignore[misc]
    prefix = [*stored, False].index(False)
    await eventually(lambda: sum(append.done() for append in appends) == prefix)
    await crash(node)
    await asyncio.gather(*appends, return_exceptions=True)
    return keys


@pytest.mark.parametrize(
    "stored",
    [
        [False, True],
        [True, False, True],
        [True, True, False, False, True, True],
        [False, False, False, True],
    ],
    ids=lambda stored: "".join("x" if one else "-" for one in stored),
)
def test_a_gap_that_a_crash_left_is_sealed_and_what_lies_behind_it_is_never_served(
    storage: Storage, stored: list[bool]
) -> None:
    async def scenario(bucket: Bucket) -> None:
        keys = await pipelined(bucket, stored)
        acked = [b"%d" % i for i in range(stored.index(False))]
        clock = ManualClock(NOW_MS)
        for _ in range(2):
            async with node_on(bucket, clock=clock) as node:
                tail = await node.check_tail(BASIN, STREAM)
                assert tail.seq_num == len(acked)
                if acked:
                    assert bodies(await read_all(node)) == acked
                await crash(node)
        gap = keys[stored.index(False)]
        assert decode_header(await bucket.get(gap), gap).is_tombstone
        async with node_on(bucket, clock=clock) as node:
            ack = await node.append(BASIN, STREAM, batch("new"))
            assert ack.start.seq_num == len(acked)
        async with node_on(bucket, clock=clock) as node:
            assert bodies(await read_all(node)) == [*acked, b"new"]

    storage.run(scenario)


def test_a_damaged_object_behind_a_seal_harms_nobody(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        keys = await pipelined(bucket, [True, False, True])
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await crash(node)
        await bucket.put(keys[2], b"garbage")
        async with node_on(bucket, clock=clock) as node:
            assert bodies(await read_all(node)) == [b"0"]

    storage.run(scenario)


# Snapshots


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_snapshot_leaves_the_one_before_and_loses_nothing(
    memory: Storage, damage: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        await filled(bucket, snapshots=4)
        _, newest = await keys_of(bucket, SNAPSHOT_PREFIX)
        await bucket.put(newest, DAMAGES[damage](await bucket.get(newest)))
        async with node_on(bucket) as node:
            assert node.term.recovered.replayed_commits == 3
            assert bodies(await read_all(node)) == [text.encode() for text in TEXTS]

    memory.run(scenario)


def test_a_damaged_snapshot_does_not_count_as_one_that_is_kept(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        await filled(bucket, snapshots=4)
        _, newest = await keys_of(bucket, SNAPSHOT_PREFIX)
        await bucket.put(newest, b"damaged")
        async with node_on(bucket) as node:
            await append_each(node, "more")  # the next snapshot is taken at the end
        newest = (await keys_of(bucket, SNAPSHOT_PREFIX))[-1]
        await bucket.put(newest, b"damaged as well")
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 7

    storage.run(scenario)


def test_a_start_is_refused_where_no_snapshot_is_left_and_the_log_begins_later(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        at_once = EngineSettings(collect_grace_secs=0, housekeeping_secs=1e9)
        async with node_on(bucket, at_once) as node:
            await with_stream(node)
            await append_each(node, "a", "b")
            await node.append(BASIN, STREAM, batch(trim(2)))
            node.housekeeping.expire()
            for i in range(3):
                await node.create_stream(BASIN, CreateStream(f"{i}"))
                await node.housekeeping.snapshots.take()
                await node.housekeeping.collect()
            assert node.housekeeping.collected
        kept = {key: await bucket.get(key) for key in await keys_of(bucket, SNAPSHOT_PREFIX)}
        for key in kept:
            await bucket.put(key, b"damaged")
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == max(kept)
        for key in kept:
            await bucket.delete(key)
        with pytest.raises(Damaged) as damaged:
            await Node.open(bucket)
        assert damaged.value.key == wal_key(1, 0)
        for key, data in kept.items():
            await bucket.put(key, data)
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 1

    storage.run(scenario)


# Claims


def test_a_damaged_claim_hides_no_record(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        await filled(bucket)
        async with node_on(bucket) as node:
            await append_each(node, "second")
            await crash(node)
        for epoch in (1, 2):
            await bucket.put(epoch_key(epoch), b"{")
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 7

    storage.run(scenario)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_lost_claim_hides_no_record(storage: Storage, epoch: int) -> None:
    async def scenario(bucket: Bucket) -> None:
        await filled(bucket)
        for i in range(2):
            async with node_on(bucket) as node:
                await append_each(node, f"writer {i}")
                await crash(node)
        await bucket.delete(epoch_key(epoch))
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 8
            ack = await node.append(BASIN, STREAM, batch("new"))
            assert ack.start.seq_num == 8
        async with node_on(bucket) as node:
            assert len(await read_all(node)) == 9
        assert len(await keys_of(bucket, EPOCH_PREFIX)) >= 4

    storage.run(scenario)


# Damage that a running node meets


@pytest.mark.parametrize("damage", ["flipped in the middle", "cut in half", "lost"])
def test_a_damaged_object_spoils_what_it_holds_and_nothing_else(
    storage: Storage, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "FETCH_BACKOFF_SECS", 0.0001)  # it is tried four times

    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket, UNCACHED) as node:
            await with_stream(node)
            await node.create_stream(BASIN, CreateStream("other"))
            for i in range(5):
                await node.append(BASIN, STREAM, batch(f"{i}"))
                await node.append(BASIN, "other", batch(f"{i}"))
            stream = node.term.find(BASIN, STREAM)
            assert stream is not None
            key = wal_key(*node.term.state.epochs.position(stream.runs.row(2).commit))
            if damage == "lost":
                await bucket.delete(key)
            else:
                await bucket.put(key, DAMAGES[damage](await bucket.get(key)))
            with pytest.raises(Damaged) as damaged:
                await read_one(node, seq_num=2)
            assert damaged.value.key == key
            assert bodies((await read_one(node, seq_num=0)).records()) == [b"0", b"1"]
            assert bodies((await read_one(node, seq_num=3)).records()) == [b"3", b"4"]
            assert len(await read_all(node, BASIN, "other")) == 5
            async with session(node, from_start()) as follower:
                assert bodies((await follower.next()).records()) == [b"0", b"1"]
                with pytest.raises(Damaged):
                    await follower.next()
            assert (await node.append(BASIN, STREAM, batch("5"))).start.seq_num == 5

    storage.run(scenario)


def test_a_reply_that_was_spoiled_on_its_way_is_fetched_again(memory: Storage) -> None:
    class Flaky(GatedBucket):
        """The first reply of each kind is cut short."""

        seen: ClassVar[set[str]] = set()

        async def get_range(self, key: str, start: int, length: int) -> bytes:
            return self.spoilt(f"range {key}", await super().get_range(key, start, length))

        async def get(self, key: str) -> bytes:
            return self.spoilt(key, await super().get(key))

        def spoilt(self, what: str, data: bytes) -> bytes:
            is_first = what not in self.seen
            self.seen.add(what)
            return data[:-1] if is_first else data

    async def scenario(bucket: Bucket) -> None:
        await filled(bucket)
        async with node_on(Flaky(bucket), UNCACHED) as node:
            assert bodies(await read_all(node)) == [text.encode() for text in TEXTS]
            assert len(Flaky.seen) > 10

    memory.run(scenario)


def test_a_refused_start_leaves_nothing_running(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        key = (await filled(bucket))[0]
        await bucket.put(key, b"damaged")
        before = asyncio.all_tasks()
        with pytest.raises(BournError):
            await soon(Node.open(bucket, msgspec.structs.replace(UNCACHED)))
        assert asyncio.all_tasks() == before

    storage.run(scenario)
