"""What has died leaves the table and the bucket; what may be read never does."""

import asyncio
import io
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import Damaged
from bourn.layout.history.segment import encode_segment
from bourn.model.config import Age, Infinite, StreamConfig
from bourn.model.patch import StreamPatch
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.retain import Verdict, plan
from bourn.settings import EngineSettings, PipelineSettings
from tests.engine.harness import trim
from tests.pipeline.harness import (
    BASIN,
    CLOCK,
    InProcessTier,
    Killed,
    Trap,
    check_files,
    copied,
    merge_on,
    quiet,
    retain_on,
    table_bytes,
    whole_rows_in,
)
from tests.pipeline.test_merge import an_add
from tests.support import batch, node_on, run

BY_HAND = EngineSettings(housekeeping_secs=1e9, collect_grace_secs=0)
HOUR = 3600
SETTINGS = PipelineSettings(grace_secs=600, merge_files=2)
AT_ONCE = PipelineSettings(grace_secs=0, merge_files=2)
Key = tuple[str, int]


class Model:
    """A node with a clock of its own, and all that was ever appended to it."""

    def __init__(self, bucket, seed: int = 1) -> None:
        self.bucket = bucket
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.rows: dict[Key, int] = {}  # when it expires, in ms; -1: never
        self.trims: dict[str, int] = {}
        self.ages: dict[str, int] = {}
        self.settings = SETTINGS

    async def make(self, node: Node, **ages: int) -> None:
        """Create streams; an age of 0 is for ever."""
        if not self.ages:
            await node.create_basin(CreateBasin(BASIN))
        for stream, age in ages.items():
            policy = Age(age) if age else Infinite()
            await node.create_stream(
                BASIN, CreateStream(stream, StreamConfig(retention_policy=policy))
            )
            self.ages[stream] = age

    async def append(self, node: Node, stream: str, count: int = 10, size: int = 300) -> None:
        tail = await node.check_tail(BASIN, stream)
        at_once = max(1, 900_000 // (size + 8))
        for first in range(0, count, at_once):
            bodies = [self.rng.randbytes(size) for _ in range(min(at_once, count - first))]
            await node.append(BASIN, stream, batch(*bodies))
        age = self.ages[stream]
        expires = self.clock.now_ms() + age * 1000 if age else -1
        for number in range(count):
            self.rows[stream, tail.seq_num + number] = expires

    async def trim(self, node: Node, stream: str, to: int) -> None:
        tail = await node.check_tail(BASIN, stream)
        await node.append(BASIN, stream, batch(trim(to)))
        self.rows[stream, tail.seq_num] = (
            -1 if not self.ages[stream] else (self.clock.now_ms() + self.ages[stream] * 1000)
        )
        self.trims[stream] = to

    async def delete(self, node: Node, stream: str) -> None:
        await node.delete_stream(BASIN, stream)
        self.rows = {key: at for key, at in self.rows.items() if key[0] != stream}

    def visible(self) -> list[Key]:
        now = self.clock.now_ms()
        return sorted(
            key
            for key, expires in self.rows.items()
            if (expires < 0 or expires > now) and key[1] >= self.trims.get(key[0], 0)
        )

    async def tier(self, seed: int = 1, tasks: int = 1) -> None:
        await InProcessTier(self.bucket, seed, tasks=tasks).run(quiet())

    async def retain(self, **more):
        job = retain_on(self.bucket, clock=self.clock, settings=self.settings, **more)
        return await job.run(quiet())

    async def stored(self) -> list[Key]:
        return [(row[1], row[3]) for row in await whole_rows_in(self.bucket)]

    async def check(self) -> None:
        """No visible row is missing; nothing is there that never was, or twice."""
        stored = await self.stored()
        assert len(set(stored)) == len(stored)
        assert set(self.visible()) <= set(stored)
        await check_files(self.bucket)

    async def fresh_bytes(self) -> int:
        """What a table of the visible rows alone would take."""
        visible = set(self.visible())
        tables = []
        for add in (await read_table(self.bucket)).live.values():
            table = pq.read_table(io.BytesIO(await self.bucket.get(add.key)))
            keys = zip(table["stream"].to_pylist(), table["seq_num"].to_pylist(), strict=True)
            tables.append(table.filter(pa.array([key in visible for key in keys], pa.bool_())))
        rows = pa.concat_tables(tables).sort_by(
            [("stream_id", "ascending"), ("seq_num", "ascending")]
        )
        segment = encode_segment(rows)
        return len(segment.parquet) + len(segment.index)


def model_test(work, bucket=None):
    async def main():
        model = Model(bucket or MemoryBucket())
        async with node_on(model.bucket, BY_HAND, clock=model.clock) as node:
            await work(model, node)

    run(main())


def test_a_file_whose_rows_are_all_dead_goes_unread():
    async def work(model, node):
        await model.make(node, short=60, kept=0)
        await model.append(node, "short")
        await model.tier()
        await model.append(node, "kept", size=400_000)
        await model.tier()
        model.clock.advance(62)
        trap = Trap(model.bucket)
        report = await retain_on(trap, clock=model.clock, settings=SETTINGS).run(quiet())
        assert await model.stored() == [("kept", seq) for seq in range(10)]
        assert report.facts["records_dropped"] == 10
        assert not [step for step in trap.operations if ".parquet" in step and "get " in step]
        again = await model.retain()
        assert again.rounds == 0

    model_test(work)


def test_nothing_goes_before_its_time_and_rows_say_themselves_when_that_is():
    async def work(model, node):
        await model.make(node, s=100)
        await model.append(node, "s")
        await node.reconfigure_stream(BASIN, "s", StreamPatch(retention_policy=Infinite()))
        model.ages["s"] = 0
        await model.append(node, "s")
        await model.tier()
        model.clock.advance(100)  # expired by now, but clocks may differ
        await model.retain()
        assert len(await model.stored()) == 20
        model.clock.advance(2)
        await model.retain()
        assert await model.stored() == [("s", seq) for seq in range(10, 20)]
        await model.check()

    model_test(work)


def test_a_deleted_stream_goes_at_once_however_small_its_part_is():
    async def work(model, node):
        await model.make(node, large=0, small=0)
        await model.append(node, "large", 100, 3000)
        await model.append(node, "small", 1, 10)
        await model.tier()
        await model.delete(node, "small")
        await model.tier()  # the table has seen it
        await model.retain()
        assert await model.stored() == model.visible()
        await model.check()

    model_test(work)


def test_a_stream_made_again_under_the_name_keeps_its_own_records():
    async def work(model, node):
        await model.make(node, s=0)
        await model.append(node, "s", 5)
        await model.tier()
        await model.delete(node, "s")
        await node.housekeeping.purge()
        await model.make(node, s=0)
        await model.append(node, "s", 3)
        await model.tier(2)
        await model.retain()
        assert await model.stored() == [("s", 0), ("s", 1), ("s", 2)]

    model_test(work)


def test_a_deleted_basin_takes_everything_with_it():
    async def work(model, node):
        await node.create_basin(CreateBasin("other-basin"))
        await node.create_stream("other-basin", CreateStream("kept"))
        await node.append("other-basin", "kept", batch("kept"))
        await model.make(node, a=0, b=60)
        await model.append(node, "a")
        await model.append(node, "b")
        await model.tier()
        await node.delete_basin(BASIN)
        await model.tier(2)
        await model.retain()
        assert [row[0] for row in await whole_rows_in(model.bucket)] == ["other-basin"]

    model_test(work)


def test_what_is_trimmed_goes_with_the_next_snapshot_and_nothing_above_it():
    async def work(model, node):
        await model.make(node, s=0, t=0)
        await model.append(node, "s", 50)
        await model.append(node, "t", 50)
        await model.trim(node, "s", 40)
        await model.tier()
        await model.retain()
        assert len(await model.stored()) == 101, "no snapshot has it yet"
        await node.housekeeping.snapshots.take()
        await model.retain()
        assert await model.stored() == model.visible()
        await model.trim(node, "s", 10_000)  # beyond the tail: up to the trim itself
        await node.housekeeping.snapshots.take()
        await model.tier(2)
        await model.retain()
        assert {key for key in await model.stored() if key[0] == "s"} <= {("s", 51)}

    model_test(work)


def test_a_little_that_is_dead_stays_for_a_day_and_no_longer():
    async def work(model, node):
        await model.make(node, large=0, small=60)
        await model.append(node, "large", 300, 20_000)
        await model.append(node, "small", 1, 10)
        await model.tier()
        model.clock.advance(HOUR)
        made_ms = model.clock.now_ms()
        report = await model.retain()
        assert report.facts.get("records_dropped", 0) == 0, "a whole file for one record"
        await model.check()
        model.clock.set_wall(max(made_ms, CLOCK.now_ms()) + 2 * 86_400_000)
        model.rows = {key: at for key, at in model.rows.items() if at < 0}
        await model.retain()
        assert ("small", 0) not in await model.stored()
        await model.check()

    model_test(work)


def test_neighbours_that_are_small_become_one():
    async def work(model, node):
        await model.make(node, a=0, b=0)
        for number in range(9):
            await model.append(node, "a" if number % 2 else "b")
            await model.tier(number)
        await model.retain()
        assert len((await read_table(model.bucket)).live) == 1
        assert await model.stored() == model.visible()
        await model.check()

    model_test(work)


@pytest.mark.parametrize("seed", range(3))
def test_behind_retain_the_bucket_holds_what_is_live_and_a_fifth_more_at_most(seed):
    async def work(model, node):
        rng = random.Random(seed)
        model.settings = AT_ONCE
        ages = {f"s{number}": rng.choice([0, 600, HOUR, 8 * HOUR]) for number in range(12)}
        await model.make(node, **ages)
        for turn in range(24):
            for stream in list(model.ages):
                if rng.random() < 0.7:
                    await model.append(node, stream, rng.randrange(1, 60), rng.randrange(900))
            if turn % 5 == 4:
                await model.delete(node, gone := rng.choice(sorted(model.ages)))
                del model.ages[gone]
                await model.trim(node, rng.choice(sorted(model.ages)), rng.randrange(300))
            await model.tier(turn, rng.randrange(1, 3))
            if turn % 3 == 2:
                await merge_on(model.bucket, turn, clock=model.clock).run(quiet())
            model.clock.advance(rng.randrange(60, 900))
            if turn % 6 == 5:
                await node.housekeeping.snapshots.take()
                model.clock.advance(2)
                await model.retain()
                await model.check()
                held, fresh = await table_bytes(model.bucket), await model.fresh_bytes()
                assert held <= 1.2 * fresh, f"{held:,} bytes where {fresh:,} would do"

    model_test(work)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_nothing_that_may_be_read_is_lost(after):
    async def main():
        model = Model(MemoryBucket())
        model.settings = AT_ONCE
        async with node_on(model.bucket, BY_HAND, clock=model.clock) as node:
            await model.make(node, a=0, b=60, c=0)
            for number in range(3):
                for stream in "abc":
                    await model.append(node, stream)
                await model.tier(number)
            await model.delete(node, "c")
            await model.tier(9)
            model.clock.advance(70)
        start = model.bucket
        whole = Trap(await copied(start))
        await retain_on(whole, clock=model.clock, settings=AT_ONCE).run(quiet())
        for at, step in enumerate(whole.operations):
            if step.startswith(("get", "list")):
                continue  # between two changes it does not matter where
            model.bucket = await copied(start)
            job = retain_on(
                Trap(model.bucket, at, after=after), clock=model.clock, settings=AT_ONCE
            )
            with pytest.raises(Killed):
                await job.run(quiet())
            await model.check()
            await model.retain(seed=2)
            assert await model.stored() == model.visible(), f"killed at {step}"

    run(main())


async def write_while(model: Model, node: Node, rng: random.Random) -> None:
    """Append, delete, take snapshots, let time pass."""
    for number in range(30):
        stream = rng.choice(sorted(model.ages))
        await model.append(node, stream, rng.randrange(1, 6), 50)
        if number % 10 == 9:
            await model.delete(node, stream)
            del model.ages[stream]
        if number % 7 == 6:
            await node.housekeeping.snapshots.take()
        model.clock.advance(rng.randrange(5))
        await asyncio.sleep(0)  # noqa: TID251  a bare yield


async def run_and_die(model: Model, kind: str, rng: random.Random) -> str:
    """Run a job that may be killed; says how it went."""
    at = rng.randrange(40) if rng.random() < 0.5 else -1
    trap = Trap(model.bucket, at, after=rng.random() < 0.5)
    seed, clock = rng.getrandbits(32), model.clock
    try:
        match kind:
            case "tier":
                report = await InProcessTier(trap, seed, tasks=2).run(quiet())
            case "merge":
                report = await merge_on(trap, seed, clock=clock).run(quiet())
            case _:
                job = retain_on(trap, seed, clock=clock, settings=model.settings)
                report = await job.run(quiet())
    except Killed:
        return "killed"
    except Damaged as error:
        if "cannot be found" not in error.message:
            raise
        return "vacuumed by a rival"
    return "late" if report.superseded else "done"


@pytest.mark.parametrize("seed", range(6))
def test_all_jobs_at_once_and_killed_at_random_while_appends_go_on(seed):
    async def main():
        model = Model(MemoryBucket(), seed)
        model.settings = AT_ONCE
        rng = random.Random(seed)
        ends: Counter[str] = Counter()

        async def work(kind, writing):
            while not writing.done():
                ends[await run_and_die(model, kind, rng)] += 1
                await asyncio.sleep(0)  # noqa: TID251  a bare yield

        async with node_on(model.bucket, BY_HAND, clock=model.clock) as node:
            await model.make(node, a=0, b=0, c=30, d=0, e=20)
            writing = asyncio.create_task(write_while(model, node, rng))
            kinds = ("tier", "tier", "merge", "merge", "retain", "retain")
            await asyncio.gather(writing, *(work(kind, writing) for kind in kinds))
            assert ends["killed"], "nobody was killed: the test shows nothing"
            assert ends["late"], "they never met: the test shows nothing"
            await model.tier(99)
            await model.check()
            await merge_on(model.bucket, 98, clock=model.clock).run(quiet())
            await model.retain(seed=97)
            await model.check()
            model.clock.advance(100)
            await model.retain(seed=96)
            await model.check()

    run(main())


def verdict(name: str, weight: int, dead: float, **more: bool) -> Verdict:
    flags = {"is_all_dead": False, "has_gone": False, "is_settled": False} | more
    return Verdict(an_add(0, 1, weight, name), dead, **flags)


def test_only_as_much_is_rewritten_as_makes_little_dead():
    names = lambda adds: [add.path for add in adds]  # noqa: E731
    drops, rewrites = plan([verdict("a", 1000, 40), verdict("b", 1000, 20)])
    assert (names(drops), names(rewrites)) == ([], [])
    drops, rewrites = plan([verdict("a", 1000, 900), verdict("b", 1000, 10)])
    assert names(rewrites) == ["a"]
    drops, rewrites = plan(
        [verdict("a", 10, 10, is_all_dead=True), verdict("b", 1000, 1, has_gone=True)]
    )
    assert (names(drops), names(rewrites)) == (["a"], ["b"])
    _, rewrites = plan([verdict("a", 1000, 1, is_settled=True)])
    assert names(rewrites) == ["a"]
    assert plan([]) == ([], [])


def test_damage_in_a_file_without_dead_rows_concerns_nobody():
    async def work(model, node):
        await model.make(node, s=60, t=0)
        await model.append(node, "t", size=500_000)
        await model.tier()
        key = next(iter((await read_table(model.bucket)).live.values())).key
        await model.bucket.put(key, b"not what was written")
        await model.append(node, "s")
        await model.tier(2)
        model.clock.advance(62)
        await model.retain()
        assert len((await read_table(model.bucket)).live) == 1

    model_test(work)


def test_headers_and_numbers_come_through_a_rewrite_as_they_were():
    async def work(model, node):
        await model.make(node, s=0, gone=0)
        await model.append(node, "gone")
        record = Record(b"\xff\x00", ((b"\xfe", b""), (b"\xfe", b"\x80")), 7)
        await node.append(BASIN, "s", batch(record, Record(b"")))
        await model.tier()
        before = [row for row in await whole_rows_in(model.bucket) if row[1] == "s"]
        await model.delete(node, "gone")
        await model.tier(2)
        await model.retain()
        assert await whole_rows_in(model.bucket) == before

    model_test(work)
