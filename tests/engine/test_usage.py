"""Usage across restarts: what a recovered node has counted is what its log says, exactly."""

import asyncio
from random import Random

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Data
from bourn.catalog.usage import UsageTable
from bourn.clock import ManualClock
from bourn.engine.meter import MINUTES_CAUGHT_UP_MAX, Meter
from bourn.engine.node import Node, NodeState
from bourn.engine.state import State
from bourn.engine.usage import Usage
from bourn.errors import BournError, StorageFailed
from bourn.limits import USAGE_HOURS_KEPT, USAGE_PENDING_MAX, USAGE_STREAMS_FLUSHED_MAX
from bourn.model.config import Age, Infinite, StreamConfig
from bourn.model.patch import StreamPatch
from bourn.model.resource import CreateBasin, CreateStream
from bourn.model.usage import Gauge, Interval, UsageQuery, UsageSet, Window
from bourn.settings import EngineSettings
from tests.engine.harness import (
    GatedBucket,
    append_each,
    commits_of,
    crash,
    eventually,
    gated_node,
    pass_time,
    stream_of,
    trim,
    turns,
)
from tests.support import BASIN, STREAM, batch, node_on, run, with_stream

NOW_MS = 1_700_006_400_000
DAY = 86_400
ALL_TIME = (0, 2**32 - 1)
BY_HAND = EngineSettings(housekeeping_secs=1e9)
BASINS = ("basin-one", "basin-two")
STREAMS = ("a", "b", "c")


def table_of(node: Node) -> UsageTable:
    return node.term.state.metering.table


def total(node: Node, of: str, basin: str = BASIN, label: str | None = None) -> int:
    found = table_of(node).totals(basin, of, DAY, *ALL_TIME)
    return sum(
        sum(points.values()) for name, points in found.items() if label is None or name == label
    )


def held_bytes(node: Node, basin: str) -> int:
    """What the runs of a basin's streams hold, added up one by one."""
    row = node.term.state.basins.get(basin)
    assert row is not None
    streams = node.term.state.streams
    found = 0
    for chunk in streams.streams_of(row.id):
        for _, stream_id in chunk:
            stream = streams.by_id(stream_id)
            assert stream is not None
            found += sum(run.metered for run in stream.runs)
    return found


class World:
    """A node that works, is killed, and comes back, as a seed says."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.bucket = MemoryBucket()
        self.clock = ManualClock(NOW_MS)
        self.acked: dict[str, list[int]] = {basin: [0, 0] for basin in BASINS}
        self.reads = 0

    async def open(self) -> Node:
        seed = self.rng.getrandbits(32)
        return await Node.open(self.bucket, BY_HAND, clock=self.clock, rng=Random(seed))

    async def step(self, node: Node) -> None:
        rng = self.rng
        basin, stream = rng.choice(BASINS), rng.choice(STREAMS)
        match rng.randrange(9):
            case 0 | 1 | 2:
                sent = [batch(*["x" * rng.randrange(50)] * rng.randint(1, 4)) for _ in range(3)]
                done = await asyncio.gather(
                    *(node.append(basin, stream, one) for one in sent), return_exceptions=True
                )
                for one, ack in zip(sent, done, strict=True):
                    if not isinstance(ack, BaseException):
                        self.acked[basin][0] += 1
                        self.acked[basin][1] += one.metered_bytes
            case 3:
                node.meter.read_unary(basin, 100)
                self.reads += 1
            case 4:
                await node.housekeeping.flush_usage()
            case 5:
                await node.housekeeping.snapshots.take()
            case 6:
                self.clock.advance(rng.choice([1, 59, 3600, 3 * DAY]))
            case 7:
                tail = await node.check_tail(basin, stream)
                one = batch(trim(tail.seq_num))
                await node.append(basin, stream, one)
                self.acked[basin][0] += 1
                self.acked[basin][1] += one.metered_bytes
                node.housekeeping.expire()
            case 8:
                storage_class = rng.choice(["express", "standard", "cold"])
                patch = StreamPatch(storage_class=storage_class)
                await node.reconfigure_stream(basin, stream, patch)


@pytest.mark.parametrize("seed", range(12))
def test_a_node_recovered_at_any_moment_has_the_counters_of_the_one_that_was_killed(
    seed: int,
) -> None:
    async def scenario() -> None:
        world = World(seed)
        node = await world.open()
        for basin in BASINS:
            await node.create_basin(CreateBasin(basin))
            for stream in STREAMS:
                retention: Infinite | Age = Infinite() if world.rng.random() < 0.5 else Age(7200)
                config = StreamConfig(retention_policy=retention)
                await node.create_stream(basin, CreateStream(stream, config))
        for _ in range(6):
            for _ in range(world.rng.randint(1, 25)):
                await world.step(node)
            await node.housekeeping.flush_usage()
            expected = table_of(node).encode()
            sizes = {basin: node.term.state.metering.basin_bytes(basin) for basin in BASINS}
            assert sizes == {basin: held_bytes(node, basin) for basin in BASINS}
            await crash(node)
            node = await world.open()
            assert table_of(node).encode() == expected
            for basin in BASINS:
                assert node.term.state.metering.basin_bytes(basin) == held_bytes(node, basin)
                assert [
                    total(node, "append-ops", basin),
                    total(node, "append-throughput", basin),
                ] == world.acked[basin]
            reads = sum(total(node, "read-ops", basin) for basin in BASINS)
            assert reads == world.reads
        await crash(node)

    run(scenario())


def test_what_was_in_flight_at_the_end_counts_exactly_if_it_is_in_the_bucket() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        gated = GatedBucket(bucket)
        node = await Node.open(gated, BY_HAND, clock=ManualClock(NOW_MS), rng=Random(1))
        await with_stream(node)
        await append_each(node, "one")
        gated.shut = True
        tasks = []
        for text in ("two", "three", "four"):
            tasks.append(asyncio.ensure_future(node.append(BASIN, STREAM, batch(text))))
            node.term.committer.cut()
            await turns()
            node.term.committer.cut()
        held = await gated.until_held(3)
        gated.let(held[0])
        gated.let(held[2])  # behind a gap: it will never be acked, and does not count
        await eventually(tasks[0].done)
        await turns()
        await crash(node)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(outcome, BournError) for outcome in outcomes] == [False, True, True]
        async with node_on(bucket, BY_HAND, clock=ManualClock(NOW_MS)) as again:
            assert total(again, "append-ops") == 2
            assert total(again, "append-throughput") == 2 * 11

    run(scenario())


def test_counts_wait_for_the_log_half_a_minute_at_most_and_nothing_to_count_writes_nothing() -> (
    None
):
    async def scenario() -> None:
        bucket = MemoryBucket()
        clock = ManualClock(NOW_MS)
        settings = EngineSettings(snapshot_interval_secs=1e9)
        node = await Node.open(bucket, settings, clock=clock, rng=Random(1))
        await with_stream(node)
        await pass_time(clock, 120, step=1)
        idle = len(await commits_of(bucket))
        await pass_time(clock, 120, step=1)
        assert len(await commits_of(bucket)) == idle
        node.meter.read_unary(BASIN, 100)
        await pass_time(clock, 32, step=1)
        assert len(await commits_of(bucket)) == idle + 1
        node.meter.read_unary(BASIN, 100)
        await crash(node)
        async with node_on(bucket, settings, clock=clock) as again:
            assert total(again, "read-ops", label="unary") == 1, "the second one was too young"
            assert total(again, "read-throughput") == 100

    run(scenario())


def test_a_graceful_stop_loses_no_count() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        async with node_on(bucket, BY_HAND) as node:
            await with_stream(node)
            node.meter.read_unary(BASIN, 100)
        async with node_on(bucket, BY_HAND) as again:
            assert total(again, "read-ops") == 1

    run(scenario())


class DeafBucket(GatedBucket):
    """While it is shut, puts have their effect, but nobody hears of it."""

    async def put_if_absent(self, key: str, data: Data) -> None:
        if self.shut and key.startswith(self.prefix):
            await self.inner.put_if_absent(key, data)
        await super().put_if_absent(key, data)


@pytest.mark.parametrize(
    ("kind", "arrived"), [(GatedBucket, False), (DeafBucket, True)], ids=["lost", "arrived"]
)
def test_a_flush_whose_fate_is_unknown_counts_once(
    kind: type[GatedBucket], *, arrived: bool
) -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        gated = kind(bucket)
        async with node_on(gated, BY_HAND) as node:
            await with_stream(node)
            before = len(await commits_of(bucket))
            node.meter.read_unary(BASIN, 100)
            gated.shut = True
            flush = asyncio.ensure_future(node.housekeeping.flush_usage())
            await gated.until_held(1)
            assert len(await commits_of(bucket)) == before + arrived
            node.meter.read_unary(BASIN, 1)
            node.term.committer.fail(StorageFailed("the store has gone"))
            gated.open()
            with pytest.raises(BournError):
                await flush
            await eventually(lambda: node.state is NodeState.SERVING)
            pending = sum(value for _, _, value in node.meter.pending(BASIN, UsageSet.READ_OPS))
            assert pending + total(node, "read-ops") == 2
            assert total(node, "read-ops") == int(arrived)
            await node.housekeeping.flush_usage()
            assert total(node, "read-ops") == 2
            assert total(node, "read-throughput") == 101

    run(scenario())


def test_an_answer_about_usage_waits_until_what_it_counts_is_durable() -> None:
    async def scenario() -> None:
        async with gated_node(MemoryBucket(), BY_HAND) as (gated, node):
            await with_stream(node)
            gated.shut = True
            append = asyncio.ensure_future(node.append(BASIN, STREAM, batch("x")))
            await gated.until_held(1)
            asked = asyncio.ensure_future(node.ask_usage(lambda _: total(node, "append-ops")))
            await turns()
            assert not asked.done()
            gated.open()
            assert await asked == 1
            assert append.done()

    run(scenario())


def test_sizes_survive_a_restart_with_and_without_a_snapshot() -> None:
    async def scenario() -> None:
        bucket, clock = MemoryBucket(), ManualClock(NOW_MS)
        node = await Node.open(bucket, BY_HAND, clock=clock, rng=Random(1))
        await with_stream(node)
        hour, minute = NOW_MS // 3_600_000, NOW_MS // 60_000
        for taken in (False, True):
            await append_each(node, "x")
            await node.housekeeping.flush_usage()
            if taken:
                await node.housekeeping.snapshots.take()
            size = held_bytes(node, BASIN)
            stream_id = stream_of(node).id
            await crash(node)
            node = await Node.open(bucket, BY_HAND, clock=clock, rng=Random(2 + taken))
            assert dict(table_of(node).basins.held(BASIN, hour, hour + 1)) == {hour: size}
            assert dict(table_of(node).streams.held(stream_id, minute, minute + 1)) == {
                minute: size
            }
        await node.close()

    run(scenario())


def test_a_flush_tells_the_sizes_of_so_many_streams_and_the_next_one_of_the_others() -> None:
    async def scenario() -> None:
        async with node_on(MemoryBucket(), BY_HAND) as node:
            await node.create_basin(CreateBasin(BASIN))
            names = [f"s-{number}" for number in range(USAGE_STREAMS_FLUSHED_MAX + 7)]
            await asyncio.gather(*(node.create_stream(BASIN, CreateStream(name)) for name in names))
            await asyncio.gather(*(node.append(BASIN, name, batch("x")) for name in names))
            await node.housekeeping.flush_usage()
            assert len(table_of(node).streams) == USAGE_STREAMS_FLUSHED_MAX
            await node.housekeeping.flush_usage()
            assert len(table_of(node).streams) == len(names)
            await node.delete_stream(BASIN, names[0])
            await eventually(lambda: len(table_of(node).streams) == len(names) - 1)
            assert node.term.state.metering.basin_bytes(BASIN) == 9 * (len(names) - 1)

    run(scenario())


def test_a_basin_that_is_gone_takes_its_usage_and_its_name_along() -> None:
    async def scenario() -> None:
        bucket, clock = MemoryBucket(), ManualClock(NOW_MS)
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "x")
            node.meter.count("", UsageSet.ACCOUNT_OPS, "create-basin")
            await node.housekeeping.flush_usage()
            assert BASIN.encode() in table_of(node).encode()
            clock.advance(2 * 3600)
            node.meter.read_unary(BASIN, 100)
            await node.delete_basin(BASIN)
            await eventually(lambda: not len(node.term.state.basins))
            await node.housekeeping.flush_usage()
            assert total(node, "append-ops") == total(node, "read-ops") == 0
            assert BASIN.encode() not in table_of(node).encode()
            assert total(node, "account-ops", "") == 1
            last = table_of(node).encode()
            await crash(node)
        async with node_on(bucket, BY_HAND, clock=clock) as node:
            assert table_of(node).encode() == last
            await with_stream(node)
            await append_each(node, "x")
            assert total(node, "append-ops") == 1

    run(scenario())


def test_a_snapshot_of_before_usage_begins_it_with_the_streams_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        bucket, clock = MemoryBucket(), ManualClock(NOW_MS)
        node = await Node.open(bucket, BY_HAND, clock=clock, rng=Random(1))
        await with_stream(node)
        await append_each(node, "x")
        with monkeypatch.context() as patch:
            patch.setattr(State, "_extra", lambda _: {})
            await node.housekeeping.snapshots.take()
        await crash(node)
        async with node_on(bucket, BY_HAND, clock=clock) as again:
            assert total(again, "append-ops") == 0
            assert again.term.state.metering.basin_bytes(BASIN) == 9
            assert table_of(again).activity.active(NOW_MS // 1000, NOW_MS // 1000 + 1) == [BASIN]

    run(scenario())


# The meter by itself


def counted(meter: Meter, basin: str = BASIN) -> dict[int, int]:
    return {minute: value for minute, _, value in meter.pending(basin, UsageSet.READ_OPS)}


def test_a_session_counts_in_every_minute_that_sees_it() -> None:
    clock = ManualClock(NOW_MS)
    meter = Meter(clock)
    minute = NOW_MS // 60_000
    meter.session_opened(BASIN)
    meter.session_opened(BASIN)
    clock.advance(59)
    meter.session_closed(BASIN)
    clock.advance(121)
    assert counted(meter) == {minute: 2, minute + 1: 1, minute + 2: 1, minute + 3: 1}
    meter.session_closed(BASIN)
    clock.advance(600)
    assert sum(counted(meter).values()) == 5


def test_a_clock_that_jumps_or_goes_back_invents_no_minutes_of_sessions() -> None:
    clock = ManualClock(NOW_MS)
    meter = Meter(clock)
    meter.session_opened(BASIN)
    clock.set_wall(NOW_MS + 10_000 * DAY * 1000)
    assert sum(counted(meter).values()) == 1 + MINUTES_CAUGHT_UP_MAX
    clock.set_wall(NOW_MS)
    assert sum(counted(meter).values()) == 1 + MINUTES_CAUGHT_UP_MAX
    clock.advance(60)
    assert sum(counted(meter).values()) == 2 + MINUTES_CAUGHT_UP_MAX


def test_a_log_that_is_out_of_reach_for_long_costs_when_and_not_how_much() -> None:
    clock = ManualClock(NOW_MS)
    meter = Meter(clock)
    for _ in range(USAGE_PENDING_MAX + 50):
        meter.count(BASIN, UsageSet.READ_OPS, "unary")
        clock.advance(60)
    assert sum(counted(meter).values()) == USAGE_PENDING_MAX + 50
    assert len(counted(meter)) < USAGE_PENDING_MAX // 50
    assert meter.lost == 0


# Older history


class Everything:
    """A history that knows of every hour, and of a basin that is long gone."""

    async def totals(
        self, basin: str, of: UsageSet, interval: Interval, start_s: int, end_s: int
    ) -> dict[str, dict[int, int]]:
        assert (basin, of, interval) == (BASIN, UsageSet.APPEND_OPS, Interval.HOUR)
        assert start_s < end_s
        first_s = -(-start_s // 3600) * 3600
        return {"express": dict.fromkeys(range(first_s, end_s, 3600), 1000)}

    async def sizes(self, basin: str, start_s: int, end_s: int) -> dict[int, int]:
        assert basin == BASIN
        return dict.fromkeys(range(-(-start_s // 3600) * 3600, end_s, 3600), 77)

    async def active_basins(self, start_s: int, end_s: int) -> list[str]:
        return ["ancient-basin"] if start_s < end_s else []

    async def basin_names(self, start_s: int, end_s: int) -> list[str]:
        return ["ancient-basin"] if start_s < end_s else []


def test_history_answers_for_the_periods_before_the_servers_own_and_for_no_other() -> None:
    async def scenario() -> None:
        clock = ManualClock(NOW_MS)
        async with node_on(MemoryBucket(), BY_HAND, clock=clock) as node:
            await with_stream(node)
            await append_each(node, "x")
            usage = Usage(node, clock, history=Everything())
            since_s = table_of(node).since_s(3600)
            assert since_s < NOW_MS // 1000
            for start_s, older in ((since_s - 7200, 2), (since_s - 1, 0), (since_s, 0)):
                window = Window(start_s, NOW_MS // 1000 + 1)
                query = UsageQuery(UsageSet.APPEND_OPS, window, Interval.HOUR)
                (metric,) = await usage.basin(BASIN, query)
                values = [(since_s - 3600 * at, 1000.0) for at in range(older, 0, -1)]
                assert metric.values == [*values, (NOW_MS // 1000, 1.0)]
            kept_s = NOW_MS // 1000 - USAGE_HOURS_KEPT * 3600
            for start_s, older in ((kept_s - 7200, 2), (kept_s, 0)):
                window = Window(start_s, NOW_MS // 1000 + 1)
                query = UsageQuery(UsageSet.ACTIVE_BASINS, window, None)
                (metric,) = await usage.account(query)
                assert metric.values == ["ancient-basin", BASIN][not older :]
                (gauge,) = await usage.basin(
                    BASIN, UsageQuery(UsageSet.STORAGE, window, Interval.HOUR)
                )
                assert isinstance(gauge, Gauge)
                assert [value for _, value in gauge.values[:older]] == [77.0] * older
                assert gauge.values[-1] == (NOW_MS // 1000, 9.0)
                assert len(gauge.values) == older + 1

    run(scenario())
