"""Storage that fails: retried, settled, or owned up to; and the node comes back by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from bourn.bucket.port import Bucket, Data, ObjectInfo
from bourn.clock import ManualClock
from bourn.engine.node import Node, NodeState
from bourn.errors import (
    BournError,
    BucketError,
    BucketRefused,
    BucketUnavailable,
    OutcomeUnknown,
    Unavailable,
)
from bourn.layout.keys import EPOCH_PREFIX, SNAPSHOT_PREFIX, WAL_PREFIX
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    Storage,
    append_each,
    bodies,
    eventually,
    gated_node,
    keys_of,
    pass_time_until,
    read_one,
    soon,
    stream_of,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, read_all, with_stream

NOW_MS = 1_700_000_000_000
EACH_PUT = EngineSettings(flush_interval_ms=1)  # with time by hand: a commit for each millisecond

Fault = Callable[[str], BucketError | Exception | None]


class FaultyBucket(GatedBucket):
    """Fails the requests that `before` and `after` say, before or after they have their effect."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner, prefix="nothing/")
        self.before: Fault = lambda key: None
        self.after: Fault = lambda key: None
        self.reads: Fault = lambda key: None
        self.tries = 0

    async def put_if_absent(self, key: str, data: Data) -> None:
        self.tries += 1
        if (error := self.before(key)) is not None:
            raise error
        await super().put_if_absent(key, data)
        if (error := self.after(key)) is not None:
            raise error

    async def get(self, key: str) -> bytes:
        if (error := self.reads(key)) is not None:
            raise error
        return await super().get(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        if (error := self.reads(prefix)) is not None:
            raise error
        async for info in self.inner.list(prefix, after):
            yield info


def first_times(count: int, prefix: str = WAL_PREFIX) -> Fault:
    """Fail the first requests under a prefix, in a way that may pass."""
    left = count

    def fault(key: str) -> BucketError | None:
        nonlocal left
        if left and key.startswith(prefix):
            left -= 1
            return BucketUnavailable(key, "try again")
        return None

    return fault


def state_of(node: Node) -> NodeState:
    return node.state


def always(prefix: str) -> Fault:
    return lambda key: BucketUnavailable(key, "down") if key.startswith(prefix) else None


def test_a_put_that_fails_for_a_while_is_repeated_and_nobody_notices(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        faulty = FaultyBucket(bucket)
        async with node_on(faulty) as node:
            await with_stream(node)
            faulty.tries = 0
            faulty.before = first_times(3)
            ack = await soon(node.append(BASIN, STREAM, batch("a")))
            assert ack.end.seq_num == 1
            assert faulty.tries == 4
            assert node.term.epoch == 1
            assert bodies(await read_all(node)) == [b"a"]

    storage.run(scenario)


def test_a_put_whose_reply_is_lost_is_recognised_and_acked_once(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        faulty = FaultyBucket(bucket)
        async with node_on(faulty) as node:
            await with_stream(node)
            faulty.after = first_times(1)
            faulty.reads = first_times(2)  # nor is it easy to find out
            ack = await soon(node.append(BASIN, STREAM, batch("a")))
            assert ack.end.seq_num == 1
            await append_each(node, "b")
            assert bodies(await read_all(node)) == [b"a", b"b"]
            assert node.term.epoch == 1

    storage.run(scenario)


@pytest.mark.parametrize("kind", ["refused", "unforeseen"])
def test_a_put_that_fails_for_good_fails_everything_in_flight_and_the_node_comes_back(
    storage: Storage, kind: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        async with gated_node(bucket) as (gated, node):
            await with_stream(node)
            await append_each(node, "durable")
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            doubtful = [asyncio.ensure_future(node.append(BASIN, STREAM, batch("in flight")))]
            (key,) = await gated.until_held(1)
            doubtful.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch("waiting"))))
            doubtful.append(asyncio.ensure_future(appender.append(batch("session"))))
            await turns()
            if kind == "refused":
                gated.let(key, BucketRefused(key, "no permission"))
            else:
                gated.held[key].set_exception(RuntimeError("a bug in an adapter"))
            gated.shut = False
            for append in doubtful:
                with pytest.raises(OutcomeUnknown):
                    await soon(append)
            with pytest.raises(Unavailable):
                await soon(appender.append(batch("a session is of one term")))
            ack = await soon(node.append(BASIN, STREAM, batch("afterwards")))
            assert ack.start.seq_num == 1
            assert node.state is NodeState.SERVING
            assert node.term.epoch == 2
            assert bodies(await read_all(node)) == [b"durable", b"afterwards"]
            assert node.term.room.bytes_taken == 0
        async with node_on(bucket) as node:
            assert bodies(await read_all(node)) == [b"durable", b"afterwards"]

    storage.run(scenario)


def test_of_puts_in_flight_the_ones_before_the_failed_one_are_acked_and_kept_once(
    storage: Storage,
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, EACH_PUT, clock=clock) as (gated, node):
            creating = asyncio.ensure_future(with_stream(node))
            await pass_time_until(clock, creating.done, 0.001)
            gated.shut = True
            appends = []
            for i in range(5):
                appends.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch(f"{i}"))))
                await turns(3)
                clock.advance(0.001)
                await gated.until_held(i + 1)
            keys = sorted(gated.held)
            for key in (keys[4], keys[0], keys[3], keys[1]):
                gated.let(key)
                await eventually(lambda key=key: key not in gated.held)  # type: ignore[misc]
            await soon(asyncio.gather(*appends[:2]))
            gated.let(keys[2], BucketRefused(keys[2], "no"))
            gated.shut = False
            for append in appends[2:]:
                with pytest.raises(OutcomeUnknown):
                    await soon(append)
            await pass_time_until(clock, lambda: node.state is NodeState.SERVING, 0.001)
            assert bodies(await read_all(node)) == [b"0", b"1"]
            new = asyncio.ensure_future(node.append(BASIN, STREAM, batch("new")))
            await pass_time_until(clock, new.done, 0.001)
            assert (await new).start.seq_num == 2
            assert bodies(await read_all(node)) == [b"0", b"1", b"new"]

    storage.run(scenario)


def test_a_put_that_never_answers_is_given_up_and_repeated(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, clock=clock) as (gated, node):
            await with_stream(node)
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("a")))
            (key,) = await gated.until_held(1)
            stuck = gated.held[key]
            gated.shut = False
            await pass_time_until(clock, append.done)
            assert (await append).end.seq_num == 1
            assert stuck.cancelled()
            assert node.term.epoch == 1
            assert clock.monotonic() <= 20

    memory.run(scenario)


def test_an_outcome_that_cannot_be_known_in_time_is_called_unknown(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        faulty = FaultyBucket(bucket)
        async with node_on(faulty, clock=clock) as node:
            await with_stream(node)
            faulty.after = always(WAL_PREFIX)  # it is stored each time, and nobody is told
            faulty.reads = always("")
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("stored")))
            await pass_time_until(clock, append.done)
            with pytest.raises(OutcomeUnknown):
                await append
            assert 29 <= clock.monotonic() <= 45
            assert node.state is NodeState.REBUILDING
            waiting = asyncio.ensure_future(node.append(BASIN, STREAM, batch("too early")))
            await pass_time_until(clock, waiting.done)
            with pytest.raises(Unavailable):
                await waiting
            faulty.after = faulty.reads = lambda key: None
            await pass_time_until(clock, lambda: node.state is NodeState.SERVING)
            assert bodies(await read_all(node)) == [b"stored"], "unknown does not mean lost"
            assert (await node.append(BASIN, STREAM, batch("next"))).start.seq_num == 1

    memory.run(scenario)


def test_requests_wait_for_a_rebuild_that_does_not_take_long(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        async with gated_node(bucket, clock=clock) as (gated, node):
            await with_stream(node)
            await append_each(node, "a")
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
            (key,) = await gated.until_held(1)
            gated.prefix = EPOCH_PREFIX  # the rebuild gets stuck at its claim
            gated.let(key, BucketRefused(key, "no"))
            with pytest.raises(OutcomeUnknown):
                await soon(append)
            await eventually(lambda: any(k.startswith(EPOCH_PREFIX) for k in gated.held))
            patient = [
                asyncio.ensure_future(read_one(node, seq_num=0)),
                asyncio.ensure_future(node.append(BASIN, STREAM, batch("b"))),
                asyncio.ensure_future(node.list_basins()),
            ]
            await turns()
            assert not any(request.done() for request in patient)
            gated.open()
            await soon(asyncio.gather(*patient))
            assert bodies(await read_all(node)) == [b"a", b"b"]

    storage.run(scenario)


def test_requests_that_have_waited_for_a_rebuild_leave_nothing_behind(memory: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        faulty = FaultyBucket(bucket)
        async with node_on(faulty, clock=clock) as node:
            await with_stream(node)
            faulty.before = lambda key: BucketRefused(key, "no")
            for _ in range(30):
                append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
                await pass_time_until(clock, append.done)
                with pytest.raises((OutcomeUnknown, Unavailable)):
                    await append
            assert len(node._waiters) == 0
            faulty.before = lambda key: None
            await pass_time_until(clock, lambda: node.state is NodeState.SERVING)

    memory.run(scenario)


@pytest.mark.parametrize("prefix", [SNAPSHOT_PREFIX, WAL_PREFIX, EPOCH_PREFIX])
def test_a_node_whose_rebuild_fails_half_way_does_not_take_itself_for_another(
    memory: Storage, prefix: str
) -> None:
    async def scenario(bucket: Bucket) -> None:
        clock = ManualClock(NOW_MS)
        faulty = FaultyBucket(bucket)
        async with node_on(faulty, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "a")
            failures = iter([BucketRefused("x", "no")])
            faulty.before = lambda key: next(failures, None)
            # The claim of the first rebuild succeeds, and what follows it does not.
            faulty.after = (
                first_times(1, EPOCH_PREFIX) if prefix == EPOCH_PREFIX else lambda k: None
            )
            faulty.reads = always(prefix)
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
            with pytest.raises(OutcomeUnknown):
                await soon(append)
            began = clock.monotonic()
            await pass_time_until(clock, lambda: clock.monotonic() - began > 100, 2)
            assert state_of(node) is NodeState.REBUILDING
            faulty.reads = lambda key: None
            await pass_time_until(clock, lambda: node.state is not NodeState.REBUILDING)
            assert state_of(node) is NodeState.SERVING, node.failure
            assert bodies(await read_all(node)) == [b"a"]

    memory.run(scenario)


def test_appends_that_wait_for_room_are_turned_away_when_the_log_fails(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        small = EngineSettings(append_inflight_bytes=1 << 20)
        large = batch(b"x" * 1_000_000)
        async with gated_node(bucket, small) as (gated, node):
            await with_stream(node)
            appender = await node.appender(BASIN, STREAM)
            gated.shut = True
            inside = asyncio.ensure_future(node.append(BASIN, STREAM, large))
            (key,) = await gated.until_held(1)
            outside = [
                asyncio.ensure_future(node.append(BASIN, STREAM, large)),
                asyncio.ensure_future(appender.append(large)),
            ]
            await turns()
            assert node.term.room.waiting == 2
            gated.let(key, BucketRefused(key, "no"))
            gated.shut = False
            with pytest.raises(OutcomeUnknown):
                await soon(inside)
            for append in outside:
                with pytest.raises(Unavailable):
                    await soon(append)
            with pytest.raises(Unavailable):
                await soon(appender.room_for(large))  # the failed term never has room again
            assert (await soon(node.append(BASIN, STREAM, large))).start.seq_num == 0

    storage.run(scenario)


def test_a_node_can_be_closed_while_it_rebuilds_itself(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        before = asyncio.all_tasks()
        faulty = FaultyBucket(bucket)
        node = await Node.open(faulty)
        await with_stream(node)
        faulty.before = lambda key: BucketRefused(key, "no")
        with pytest.raises(OutcomeUnknown):
            await node.append(BASIN, STREAM, batch("x"))
        waiting = asyncio.ensure_future(node.append(BASIN, STREAM, batch("y")))
        await turns()
        await soon(node.close())
        with pytest.raises(BournError):
            await soon(waiting)
        assert node.state is NodeState.CLOSED
        assert asyncio.all_tasks() == before

    storage.run(scenario)


def test_a_failing_bucket_does_not_stop_housekeeping(memory: Storage) -> None:
    class Undeletable(GatedBucket):
        async def delete(self, key: str) -> None:
            if self.reads_shut:
                raise BucketUnavailable(key, "not now")
            await super().delete(key)

    async def scenario(bucket: Bucket) -> None:
        settings = EngineSettings(
            housekeeping_secs=0.01, collect_grace_secs=0, snapshot_interval_secs=0.03
        )
        undeletable = Undeletable(bucket)
        async with node_on(undeletable, settings) as node:
            await with_stream(node)
            undeletable.reads_shut = True
            snapshots = node.housekeeping.snapshots
            while snapshots.taken < 3:
                await node.append(BASIN, STREAM, batch("x"))
                await eventually(lambda: node.term.state.streams.dirty_count == 0)
            undeletable.reads_shut = False
            await eventually(lambda: node.housekeeping.collected)
            assert len(await read_all(node)) == (await node.check_tail(BASIN, STREAM)).seq_num
        assert len(await keys_of(bucket, SNAPSHOT_PREFIX)) == 2

    memory.run(scenario)


def test_streams_of_a_failed_term_are_not_used_by_the_next(storage: Storage) -> None:
    async def scenario(bucket: Bucket) -> None:
        faulty = FaultyBucket(bucket)
        uncached = msgspec.structs.replace(EngineSettings(), tail_cache_bytes=0)
        async with node_on(faulty, uncached) as node:
            await with_stream(node)
            await append_each(node, "a")
            old = stream_of(node)
            failures = iter([BucketRefused("x", "no")])
            faulty.before = lambda key: next(failures, None)
            with pytest.raises(OutcomeUnknown):
                await node.append(BASIN, STREAM, batch("lost"))
            assert (await soon(node.check_tail(BASIN, STREAM))).seq_num == 1
            assert stream_of(node) is not old
            assert old.ended is not None
            assert old.tail.seq_num == 1

    storage.run(scenario)
