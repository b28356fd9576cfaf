"""Usage becomes a table, every period once; from it the server answers what it has forgotten."""

import asyncio
import io
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import Clock, ManualClock
from bourn.engine.node import Node
from bourn.engine.usage import Usage
from bourn.errors import Damaged
from bourn.layout.history.delta import Actions, Add, delta_key, encode_actions
from bourn.layout.usage_table import (
    USAGE_PREFIX,
    UsageRow,
    add_of,
    closed_minutes,
    decode_usage,
    encode_usage,
    file_name,
    parse_usage_key,
    rows_table,
    usage_key,
)
from bourn.limits import USAGE_HOURS_KEPT
from bourn.model.config import BasinConfig, Infinite, StreamConfig
from bourn.model.resource import CreateBasin, CreateStream
from bourn.model.usage import (
    Accumulation,
    Gauge,
    Interval,
    Metric,
    Point,
    UsageQuery,
    UsageSet,
    Window,
)
from bourn.pipeline.meter import Meter
from bourn.pipeline.meter_counts import closing
from bourn.pipeline.meter_streams import MeterTask, grouped, sums_of, write_sums
from bourn.pipeline.meter_upkeep import plan
from bourn.settings import EngineSettings
from tests.engine.harness import eventually
from tests.pipeline.audit_harness import audited
from tests.pipeline.harness import (
    InProcessTier,
    Killed,
    Trap,
    objects_in,
    quiet,
    retry,
    tools_on,
)
from tests.support import batch, run

T0_MS = 1_700_006_400_000  # a whole hour, and no whole day
DAY = 86_400
Counts = Counter[tuple[str, str, int]]
BASINS = ("basin-one", "basin-two")
BY_HAND = EngineSettings(housekeeping_secs=1e9)
KEPT = BasinConfig(default_stream_config=StreamConfig(retention_policy=Infinite()))


def points_of(metrics: list[Metric]) -> list[Point]:
    found: list[Point] = []
    for metric in metrics:
        assert isinstance(metric, Accumulation | Gauge)
        found += metric.values
    return found


class Sleepless(ManualClock):
    """Time moved by hand, in which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        _ = seconds
        await super().sleep(0)


class InlineStreams:
    """Sums up here, one file after the other."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    async def run(self, task: MeterTask, progress) -> list[Add]:
        _ = progress
        parts = [await sums_of(self._bucket, file, task.spans, retry()) for file in task.files]
        if not parts:
            return []
        names = iter(lambda: (self._clock.now_ms() // 1000) << 32 | random.getrandbits(32), None)
        sums = grouped(pa.concat_tables(parts))
        return await write_sums(self._bucket, sums, task.until_minute, names, retry())


def meter_on(bucket: Bucket, clock: Clock, seed: int = 1, **more) -> Meter:
    tools = tools_on(bucket, seed, clock=clock, **more)
    return Meter(tools, InlineStreams(bucket, clock))


async def rows_in(bucket: Bucket) -> list[dict[str, Any]]:
    state = await read_table(bucket, table=USAGE_PREFIX)
    found = []
    for add in state.live.values():
        found += pq.read_table(io.BytesIO(await bucket.get(usage_key(add)))).to_pylist()
    return found


class World:
    """A node with weeks of use, and a model of what it counted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bucket = MemoryBucket()
        self.clock = ManualClock(T0_MS)
        self.appends: Counts = Counter()  # (basin, set, minute)
        self.reads: Counts = Counter()

    async def open(self) -> Node:
        seed = self.rng.getrandbits(32)
        return await Node.open(self.bucket, BY_HAND, clock=self.clock, rng=random.Random(seed))

    async def use(self, node: Node) -> None:
        basin = self.rng.choice(BASINS)
        minute = self.clock.now_ms() // 60_000
        if self.rng.random() < 0.6:
            one = batch(*["x" * self.rng.randrange(40)] * self.rng.randint(1, 3))
            await node.append(basin, "s", one)
            self.appends[basin, "append-ops", minute] += 1
            self.appends[basin, "append-throughput", minute] += one.metered_bytes
        else:
            node.meter.read_unary(basin, 100)
            self.reads[basin, "read-ops", minute] += 1
            self.reads[basin, "read-throughput", minute] += 100

    def expected(self, basin: str, of: str, secs: int, window: Window) -> dict[int, float]:
        found: Counter[int] = Counter()
        for (name, metric, minute), value in (self.appends + self.reads).items():
            start_s = minute * 60 // secs * secs
            if (name, metric) == (basin, of) and window.start_s <= start_s < window.end_s:
                found[start_s] += value
        return {start: float(value) for start, value in found.items()}


async def check(world: World, node: Node, days: int) -> None:
    """Whatever is asked of the last weeks is what the model says, at every interval."""
    usage = Usage(node, world.clock, None, node.usage_history)
    now_s = world.clock.now_ms() // 1000
    for basin in BASINS:
        for of in ("append-ops", "append-throughput", "read-ops", "read-throughput"):
            for interval in Interval:
                window = Window(T0_MS // 1000 - DAY, now_s + 1)
                if interval is Interval.MINUTE:
                    window = Window(max(now_s - min(days, 30) * DAY, 0), now_s + 1)
                metrics = await usage.basin(basin, UsageQuery(UsageSet(of), window, interval))
                found = dict(points_of(metrics))
                assert found == world.expected(basin, of, interval.secs, window), (of, interval)


@pytest.mark.parametrize("seed", [1])
def test_totals_of_weeks_are_what_was_used_while_the_server_keeps_them_and_after(seed):
    async def main():
        world = World(seed)
        node = await world.open()
        for basin in BASINS:
            await node.create_basin(CreateBasin(basin, KEPT))
            await node.create_stream(basin, CreateStream("s"))
        meter = meter_on(world.bucket, world.clock)
        for day in range(40):
            for _ in range(6):
                await world.use(node)
                world.clock.advance(world.rng.choice([1, 61, 1800, 4 * 3600]))
            world.clock.advance(60_000)
            await node.housekeeping.flush_usage()
            world.clock.advance(1000)
            if day % 7 == 3:
                await node.close()
                node = await world.open()
            else:
                await node.housekeeping.snapshots.take()
            await InProcessTier(world.bucket, day).run(quiet())
            await meter.run(quiet())
            if day % 13 == 5:
                meter = meter_on(world.bucket, world.clock, seed=day)
                await meter.run(quiet())
            if day in {0, 20, 39}:
                await check(world, node, day + 2)
        now_s = world.clock.now_ms() // 1000
        assert now_s - T0_MS // 1000 > USAGE_HOURS_KEPT * 3600
        await node.close()
        node = await world.open()
        await check(world, node, 30)
        usage = Usage(node, world.clock, None, node.usage_history)
        long_ago = Window(T0_MS // 1000 - 60, T0_MS // 1000 + 3 * 3600)
        (label,) = await usage.account(UsageQuery(UsageSet.ACTIVE_BASINS, long_ago, None))
        assert label.values == list(BASINS)
        later = Window(T0_MS // 1000 + 3 * DAY, T0_MS // 1000 + 5 * DAY)
        query = UsageQuery(UsageSet.STORAGE, later, Interval.HOUR)
        (gauge,) = await usage.basin(BASINS[0], query)
        points = points_of([gauge])
        assert [at for at, _ in points] == list(range(later.start_s, later.end_s, 3600))
        assert points[0][1] > 0
        await node.close()
        await check_streams(world)

    run(main())


async def check_streams(world: World) -> None:
    """What streams took in by the history's rows is what basins took in by the server's counts."""
    rows = await rows_in(world.bucket)
    until_s = (await read_table(world.bucket, table=USAGE_PREFIX)).txns["bourn-usage-streams"] * 60
    of_streams: Counter[str] = Counter()
    for row in rows:
        if row["metric"] == "append-bytes" and row["interval"] == "day":
            of_streams[row["basin"]] += row["value"]
    for basin in BASINS:
        day_s = until_s // DAY * DAY
        wanted = sum(
            value
            for (name, of, minute), value in world.appends.items()
            if (name, of) == (basin, "append-throughput") and minute * 60 < day_s
        )
        assert of_streams[basin] == wanted


async def a_world(days: int = 1, *, metered: bool = False) -> World:
    world = World(3)
    node = await world.open()
    for basin in BASINS:
        await node.create_basin(CreateBasin(basin, KEPT))
        await node.create_stream(basin, CreateStream("s"))
    for _ in range(days):
        for _ in range(8):
            await world.use(node)
            world.clock.advance(600)
        world.clock.advance(DAY)
        await node.housekeeping.flush_usage()
        await node.housekeeping.snapshots.take()
        if metered:
            await meter_on(world.bucket, world.clock).run(quiet())
    await node.close()
    await InProcessTier(world.bucket).run(quiet())
    return world


async def check_table(world: World, bucket: Bucket) -> None:
    """Every period is there once, with its value."""
    rows = await rows_in(bucket)
    places = [tuple(row[name] for name in row if name != "value") for row in rows]
    assert len(places) == len(set(places))
    for secs, interval in ((60, "minute"), (3600, "hour"), (DAY, "day")):
        state = await read_table(bucket, table=USAGE_PREFIX)
        end_s = closed_minutes(state)[0] * 60 // secs * secs
        for basin in BASINS:
            window = Window(0, end_s)
            found = {
                int(row["start"].timestamp()): row["value"]
                for row in rows
                if (row["metric"], row["basin"], row["interval"]) == ("append-ops", basin, interval)
            }
            assert found == world.expected(basin, "append-ops", secs, window)


def test_killed_at_every_step_and_run_again_every_period_is_there_once():
    async def main():
        world = await a_world()
        trap = Trap(world.bucket)
        reference = Trap(await copied(world.bucket))
        await meter_on(reference, world.clock).run(quiet())
        steps = len(reference.operations)
        assert steps > 8
        for at in range(steps):
            for after in (False, True):
                bucket = await copied(world.bucket)
                trap = Trap(bucket, at, after=after)
                with pytest.raises(Killed):
                    await meter_on(trap, world.clock, seed=at).run(quiet())
                await meter_on(bucket, world.clock, seed=at + 1).run(quiet())
                await check_table(world, bucket)

    run(main())


def test_several_at_once_write_every_period_once_and_lost_replies_change_nothing():
    async def main():
        world = await a_world()
        trap = Trap(world.bucket)
        trap.replies_lost = True
        clock = Sleepless(world.clock.now_ms())
        meters = [meter_on(trap, clock, seed=seed) for seed in range(4)]
        reports = await asyncio.gather(*(meter.run(quiet()) for meter in meters))
        assert sum(report.superseded for report in reports) >= 1
        await check_table(world, world.bucket)
        await meter_on(world.bucket, world.clock, 9).run(quiet())
        await check_table(world, world.bucket)

    run(main())


async def copied(bucket: MemoryBucket) -> MemoryBucket:
    copy = MemoryBucket()
    async for info in bucket.list(""):
        await copy.put(info.key, await bucket.get(info.key))
    return copy


def test_nothing_is_written_of_a_period_that_may_still_grow():
    async def main():
        world = World(4)
        node = await world.open()
        await node.create_basin(CreateBasin(BASINS[0], KEPT))
        await node.create_stream(BASINS[0], CreateStream("s"))
        await node.append(BASINS[0], "s", batch("x"))
        meter = meter_on(world.bucket, world.clock)
        assert not await meter.is_due(meter._tools.settings)
        await node.housekeeping.snapshots.take()
        await meter.run(quiet())
        assert [
            row
            for row in await rows_in(world.bucket)
            if row["value"] and row["metric"] == "append-ops"
        ] == []
        world.clock.advance(14 * 60)
        await node.append(BASINS[0], "s", batch("x"))
        await node.housekeeping.snapshots.take()
        await meter.run(quiet())
        assert "append-ops" not in {row["metric"] for row in await rows_in(world.bucket)}
        world.clock.advance(3 * 60)
        await node.append(BASINS[0], "s", batch("x"))
        await node.housekeeping.snapshots.take()
        await meter.run(quiet())
        (row,) = [row for row in await rows_in(world.bucket) if row["metric"] == "append-ops"]
        assert (row["interval"], row["value"], row["stream_id"]) == ("minute", 1, 0)
        await node.close()

    run(main())


def test_a_table_that_is_damaged_or_gone_costs_the_older_part_alone(caplog):
    async def main():
        world = await a_world(days=6, metered=True)
        await meter_on(world.bucket, world.clock).run(quiet())
        node = await world.open()
        await check(world, node, 8)
        await node.close()
        for key in await objects_in(world.bucket, USAGE_PREFIX):
            data = await world.bucket.get(key)
            await world.bucket.put(key, data[: len(data) // 2])
        node = await world.open()
        usage = Usage(node, world.clock, None, node.usage_history)
        now_s = world.clock.now_ms() // 1000
        window = Window(now_s - 8 * DAY, now_s + 1)
        query = UsageQuery(UsageSet.APPEND_OPS, window, Interval.MINUTE)
        found = {at for at, _ in points_of(await usage.basin(BASINS[0], query))}
        everything = world.expected(BASINS[0], "append-ops", 60, window)
        assert found < everything.keys()
        assert found == {at for at in everything if at > now_s - 2 * DAY - 3600}
        assert "older usage cannot be told" in caplog.text
        for key in await objects_in(world.bucket, USAGE_PREFIX):
            await world.bucket.delete(key)
        assert {at for at, _ in points_of(await usage.basin(BASINS[0], query))} == found
        await node.close()

    run(main())


def test_small_files_become_one_old_minutes_go_and_what_nobody_names_is_deleted():
    async def main():
        world = World(5)
        node = await world.open()
        for basin in BASINS:
            await node.create_basin(CreateBasin(basin, KEPT))
            await node.create_stream(basin, CreateStream("s"))
        meter = meter_on(world.bucket, world.clock)
        for _ in range(60):
            for _ in range(3):
                await world.use(node)
                world.clock.advance(3600)
            world.clock.advance(DAY - 3 * 3600)
            await node.housekeeping.flush_usage()
            await node.housekeeping.snapshots.take()
            await meter.run(quiet())
        await node.close()
        state = await read_table(world.bucket, table=USAGE_PREFIX)
        files = [
            key for key in await objects_in(world.bucket, USAGE_PREFIX) if parse_usage_key(key)
        ]
        assert len(state.live) < 40
        assert len(files) < 80
        assert (await audited(world.bucket, world.clock)).violations == []
        rows = await rows_in(world.bucket)
        now_s = world.clock.now_ms() // 1000
        minutes = [row for row in rows if row["interval"] == "minute"]
        assert min(int(row["start"].timestamp()) for row in minutes) > now_s - 50 * DAY
        days = [row for row in rows if (row["interval"], row["metric"]) == ("day", "append-ops")]
        end_s = closed_minutes(state)[0] * 60 // DAY * DAY
        assert sum(row["value"] for row in days) == sum(
            value
            for (_, of, minute), value in world.appends.items()
            if of == "append-ops" and minute * 60 < end_s
        )

    run(main())


def test_a_basin_that_is_deleted_leaves_the_table_and_its_files():
    async def main():
        world = await a_world(days=3, metered=True)
        node = await world.open()
        await node.delete_basin(BASINS[1])
        await eventually(lambda: len(node.term.state.basins) == 1)
        await node.housekeeping.snapshots.take()
        await node.housekeeping.snapshots.take()
        await node.close()
        before = await rows_in(world.bucket)
        for _ in range(3):
            await meter_on(world.bucket, world.clock).run(quiet())
            world.clock.advance(3600)
        rows = await rows_in(world.bucket)
        assert {row["basin"] for row in rows} == {BASINS[0]}
        kept = [row for row in before if row["basin"] == BASINS[0]]
        assert all(row in rows for row in kept if row["interval"] != "minute")
        for key in await objects_in(world.bucket, USAGE_PREFIX):
            assert BASINS[1].encode() not in await world.bucket.get(key), key

    run(main())


def test_an_audit_looks_at_the_usage_table_too():
    async def main():
        world = await a_world(metered=True)
        report = await audited(world.bucket, world.clock)
        assert report.violations == []
        assert report.counts["usage rows"] == len(await rows_in(world.bucket))
        state = await read_table(world.bucket, table=USAGE_PREFIX)
        add = min(state.live.values(), key=lambda add: add.path)
        key = usage_key(add)
        data = await world.bucket.get(key)
        twice = Actions(adds=(msgspec.structs.replace(add, path="basins-twice.parquet"),))
        await world.bucket.put(f"{USAGE_PREFIX}basins-twice.parquet", data)
        forged = delta_key(state.version + 1, USAGE_PREFIX)
        await world.bucket.put(forged, encode_actions(twice))
        (violation,) = (await audited(world.bucket, world.clock)).violations
        assert (violation.kind, violation.key) == ("repeated", USAGE_PREFIX)
        await world.bucket.delete(forged)
        clock = Sleepless(world.clock.now_ms())
        await world.bucket.put(key, data[:-1])
        (violation,) = (await audited(world.bucket, clock)).violations
        assert (violation.kind, violation.key) == ("damaged", key)
        await world.bucket.delete(key)
        (violation,) = (await audited(world.bucket, clock)).violations
        assert (violation.kind, violation.key) == ("missing", key)

    run(main())


def test_files_of_the_table_come_back_and_others_are_refused():
    rows = [UsageRow(3600, "b", 0, "append-ops", "express", 2**64), UsageRow(0, "a", 7, "m", "", 1)]
    table = rows_table(3600, rows)
    data = encode_usage(table)
    back = decode_usage(data, "usage/x").to_pylist()
    assert [(row["basin"], row["stream_id"], row["value"]) for row in back] == [
        ("a", 7, 1),
        ("b", 0, 2**63 - 1),
    ]
    for at in range(4, len(data), 7):
        spoilt = bytearray(data)
        spoilt[at] ^= 0x20
        with suppress(Damaged):  # and nothing else
            decode_usage(bytes(spoilt), "usage/x")
    with pytest.raises(Damaged, match="usage/x"):
        decode_usage(data[:-3], "usage/x")
    name = file_name("basins", 3600, 99, 5_000, 3)
    assert parse_usage_key(USAGE_PREFIX + name) == ("basins", "hour", 99, 5)
    assert parse_usage_key(USAGE_PREFIX + "other.parquet") is None
    add = add_of(name, table, len(data), 1)
    assert (add.tag("from_s"), add.tag("until_s"), add.tag("interval")) == (0, 3600, 3600)
    assert plan([add] * 8, DAY * 500).drops
    assert len(plan([add] * 8, DAY).joins) == 1


def test_a_period_closes_in_the_run_in_which_its_end_passes():
    assert closing(0, 59, 3600) == (0, 0)
    assert closing(59, 60, 3600) == (0, 3600)
    assert closing(60, 119, 3600) == (3600, 3600)
    assert closing(60, 120, 60) == (3600, 7200)
