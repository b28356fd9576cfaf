"""Group commit: when the open commit is flushed, and what goes into it."""

import asyncio
from typing import Any

from bourn.bucket.port import Bucket
from bourn.clock import ManualClock
from bourn.engine.committer import PIPELINE_BYTES
from bourn.engine.node import Node
from bourn.errors import BournError, OutcomeUnknown
from bourn.layout.keys import WAL_PREFIX
from bourn.model.record import AppendAck
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import (
    Storage,
    append_each,
    commits_of,
    eventually,
    gated_node,
    keys_of,
    pass_time_until,
    soon,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, with_stream

NOW_MS = 1_700_000_000_000
INTERVAL = EngineSettings(flush_interval_ms=50)


def begun(node: Node, body: bytes, stream: str = STREAM) -> "asyncio.Future[AppendAck]":
    return asyncio.ensure_future(node.append(BASIN, stream, batch(body)))


def test_an_append_to_an_idle_node_is_put_at_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, clock=ManualClock(NOW_MS)) as (gated, node):
            await with_stream(node)
            gated.shut = True
            append = begun(node, b"x")
            await turns(5)  # no time passes
            assert len(gated.held) == 1
            gated.open()
            await soon(append)

    storage.run(scenario)


def test_small_appends_wait_for_the_put_that_is_under_way_and_share_the_next(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            first = begun(node, b"first")
            (key,) = await gated.until_held(1)
            others = [begun(node, b"%d" % i) for i in range(20)]
            await turns(50)
            assert list(gated.held) == [key]
            gated.let(key)
            await soon(first)
            await gated.until_held(1)
            await turns(50)
            assert len(gated.held) == 1
            gated.open()
            acks = await soon(asyncio.gather(*others))
            assert {ack.tail.seq_num for ack in acks} == {21}, "one commit, one tail"

    storage.run(scenario)


def test_a_commit_that_is_worth_a_put_of_its_own_does_not_wait(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            appends = [begun(node, b"first")]
            await gated.until_held(1)
            appends.append(begun(node, b"x" * PIPELINE_BYTES))
            await gated.until_held(2)
            appends.append(begun(node, b"x" * PIPELINE_BYTES))  # for the third it takes more
            await turns(50)
            assert len(gated.held) == 2
            appends.append(begun(node, b"x" * PIPELINE_BYTES))
            await gated.until_held(3)
            gated.open()
            await soon(asyncio.gather(*appends))

    storage.run(scenario)


def test_no_more_puts_are_in_flight_than_allowed(storage: Storage) -> None:
    settings = EngineSettings(commits_in_flight=3, commit_split_bytes=1000)

    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket, settings) as (gated, node):
            await with_stream(node)
            gated.shut = True
            appends = [begun(node, b"x" * 1000) for _ in range(10)]
            most = 0
            while True:
                await eventually(lambda: gated.held or all(a.done() for a in appends))
                await turns(30)
                if not gated.held:
                    break
                most = max(most, len(gated.held))
                assert len(gated.held) <= 3
                newest = max(gated.held)
                gated.let(newest)  # the oldest keeps them all waiting
                await eventually(lambda newest=newest: newest not in gated.held)  # type: ignore[misc]
                await turns(30)
            assert most == 3
            assert node.term.committer.in_flight == 0

    storage.run(scenario)


def test_with_an_interval_there_is_one_commit_for_each(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, INTERVAL, clock=clock) as node:
            creating = asyncio.ensure_future(with_stream(node))
            await pass_time_until(clock, creating.done, 0.05)
            clock.advance(1)
            before = len(await keys_of(bucket, WAL_PREFIX))
            await soon(begun(node, b"at once, for the last flush is long ago"))
            appends = []
            for _ in range(10):  # one each 10 ms: five share a commit
                appends.append(begun(node, b"x"))
                await turns(5)
                clock.advance(0.010_001)
                await turns(5)
            await pass_time_until(clock, lambda: all(a.done() for a in appends), 0.05)
            stored = len(await keys_of(bucket, WAL_PREFIX)) - before
            assert 3 <= stored <= 4

    storage.run(scenario)


def test_a_full_commit_does_not_wait_for_its_interval(storage: Storage) -> None:
    settings = EngineSettings(flush_interval_ms=1_000_000, commit_split_bytes=5000)

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
        async with node_on(bucket, settings, clock=clock) as node:
            await soon(begun(node, b"at once, for nothing was flushed before"))
            small = begun(node, b"this one would have to wait")
            await turns(50)
            assert not small.done()
            await soon(asyncio.gather(small, *(begun(node, b"x" * 1000) for _ in range(5))))

    storage.run(scenario)


def test_a_commit_that_is_worth_a_put_does_not_wait_for_its_interval(storage: Storage) -> None:
    settings = EngineSettings(flush_interval_ms=1_000_000)

    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(bucket, clock=clock) as node:
            await with_stream(node)
        async with gated_node(bucket, settings, clock=clock) as (gated, node):
            await soon(begun(node, b"at once, for nothing was flushed before"))
            gated.shut = True
            appends = [begun(node, b"this one would have to wait")]
            await turns(50)
            assert not gated.held
            for in_flight in range(1, 4):  # the more is under way, the more the next must hold
                appends += [
                    begun(node, b"x" * PIPELINE_BYTES) for _ in range(max(1, in_flight - 1))
                ]
                await gated.until_held(in_flight)
            appends.append(begun(node, b"x" * 2 * PIPELINE_BYTES))
            await turns(50)
            assert len(gated.held) == 3
            gated.let(min(gated.held))
            await gated.until_held(3)  # what was too little beside three is enough beside two
            gated.open()
            await soon(asyncio.gather(*appends))

    storage.run(scenario)


def test_a_commit_holds_changes_first_and_then_each_streams_batches_in_order(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            for name in ("a", "b"):
                await node.create_stream(BASIN, CreateStream(name))
            gated.shut = True
            first = begun(node, b"first")
            await gated.until_held(1)
            works: list[asyncio.Future[Any]] = []
            for i in range(3):
                works += [begun(node, b"%d" % i, name) for name in ("b", "a")]
                works.append(asyncio.ensure_future(node.ensure_stream(BASIN, f"new {i}")))
            await turns()
            gated.open()
            await soon(asyncio.gather(first, *works))
            commit = max((await commits_of(bucket)).items())[1]
            assert len(commit.changes) == 3
            ids = [location.stream_id for location, _ in commit.runs]
            assert ids == sorted(ids)
            assert len(ids) == 2
            for _, entries in commit.runs:
                assert [entry.first_seq_num for entry in entries] == [0, 1, 2]

    storage.run(scenario)


def test_a_header_says_what_was_durable_when_the_commit_was_made(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        settings = EngineSettings(flush_interval_ms=1)
        async with gated_node(bucket, settings, clock=clock) as (gated, node):
            creating = asyncio.ensure_future(with_stream(node))
            await pass_time_until(clock, creating.done, 0.001)
            gated.shut = True
            appends = []
            for i in range(3):
                appends.append(begun(node, b"x"))
                await turns(3)
                clock.advance(0.001)
                await gated.until_held(i + 1)
            gated.open()
            await soon(asyncio.gather(*appends))
            append = begun(node, b"y")
            await pass_time_until(clock, append.done, 0.001)
            headers = [commit.header for commit in (await commits_of(bucket)).values()]
            assert [header.id for header in headers] == [0, 1, 2, 3, 4, 5]
            assert [header.durable_id for header in headers] == [0, 1, 2, 2, 2, 5]
            assert {header.writer for header in headers} == {node.term.recovered.writer}

    storage.run(scenario)


def test_what_was_admitted_is_durable_when_a_drain_returns(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with node_on(bucket) as node:
            await with_stream(node)
            appends = [begun(node, b"%d" % i) for i in range(5)]
            await turns(2)
            await soon(node.term.committer.drain())
            assert all(append.done() for append in appends)
            await append_each(node, "after")
            await soon(node.term.committer.drain())  # nothing to wait for

    storage.run(scenario)


class Told:
    """Waits for acks by plain calls."""

    def __init__(self) -> None:
        self.acks: list[AppendAck] = []
        self.errors: list[BournError] = []

    def acked(self, ack: AppendAck) -> None:
        self.acks.append(ack)
        if len(self.acks) == 1:
            raise ValueError("one that fails harms no other")

    def failed(self, error: BournError) -> None:
        self.errors.append(error)


def test_who_waits_by_a_call_is_told_in_order_and_only_when_it_is_durable(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            told = Told()
            for _ in range(3):
                assert node.append_now(BASIN, STREAM, batch(b"x"), None, None, told) is True
            future = begun(node, b"y")
            await gated.until_held(1)
            await turns(20)
            assert not told.acks
            gated.open()
            last = await soon(future)
            await eventually(lambda: len(told.acks) == 3)
            assert [ack.start.seq_num for ack in told.acks] == [0, 1, 2]
            assert last.start.seq_num == 3
            assert not told.errors

    storage.run(scenario)


def test_who_waits_by_a_call_hears_that_the_outcome_is_unknown(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            gated.shut = True
            told = Told()
            assert node.append_now(BASIN, STREAM, batch(b"x"), None, None, told) is True
            await gated.until_held(1)
            node.term.committer.fail(OutcomeUnknown("the disk is gone"))
            await eventually(lambda: len(told.errors) == 1)
            assert isinstance(told.errors[0], OutcomeUnknown)
            gated.open()
            await turns(20)
            assert not told.acks

    memory.run(scenario)
