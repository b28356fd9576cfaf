"""Every record comes into the table once: killed anywhere, run twice, run by several at once."""

import asyncio
import random

import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.errors import Damaged
from bourn.layout.commit import decode_commit, encode_commit
from bourn.layout.history.delta import DELTA_PREFIX, HISTORY_PREFIX, parse_segment_key
from bourn.layout.keys import wal_key
from bourn.pipeline.table import HistoryTable, Superseded, TableChange
from bourn.pipeline.tasks import Vanished
from tests.pipeline.harness import (
    CLOCK,
    InProcessTier,
    Killed,
    Trap,
    Wrote,
    a_log,
    append,
    copied,
    make_streams,
    objects_in,
    quiet,
    retry,
    rows_in,
)
from tests.support import node_on, run


def test_a_log_of_several_epochs_becomes_the_table_once():
    async def main():
        bucket = MemoryBucket()
        wrote = await a_log(bucket)
        report = await InProcessTier(bucket).run(quiet())
        assert await rows_in(bucket) == sorted(wrote.rows)
        assert report.records == len(wrote.rows)
        assert report.rounds == 1
        before = await objects_in(bucket, "")
        again = await InProcessTier(bucket, 2).run(quiet())
        assert (again.rounds, again.records) == (0, 0)
        assert await objects_in(bucket, "") == before, "a run without work leaves nothing"

    run(main())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_and_run_again_each_record_is_there_once(after):
    async def main():
        log = MemoryBucket()
        wrote = await a_log(log, each=2)
        whole = Trap(await copied(log))
        await InProcessTier(whole).run(quiet())
        assert any(DELTA_PREFIX in step for step in whole.operations)
        for at in range(len(whole.operations)):
            bucket = await copied(log)
            with pytest.raises(Killed):
                await InProcessTier(Trap(bucket, at, after=after)).run(quiet())
            step = whole.operations[at]
            seen = await rows_in(bucket)
            assert seen in ([], sorted(wrote.rows)), f"a part of it, killed at {step}"
            await InProcessTier(bucket, 2).run(quiet())
            assert await rows_in(bucket) == sorted(wrote.rows), f"killed at {step}"

    run(main())


def test_lost_replies_change_nothing():
    async def main():
        bucket = MemoryBucket()
        wrote = await a_log(bucket)
        trap = Trap(bucket)
        trap.replies_lost = True
        report = await InProcessTier(trap).run(quiet())
        assert report.superseded == 0, "its own version was taken for somebody else's"
        assert await rows_in(bucket) == sorted(wrote.rows)
        assert (await read_table(bucket)).version == 1

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_several_at_once_while_appends_go_on(seed):
    async def main():
        bucket = MemoryBucket()
        wrote = Wrote([])
        rng = random.Random(seed)
        async with node_on(bucket) as node:
            await make_streams(node, "one", "two")
            writing = True

            async def write():
                nonlocal writing
                for number in range(40):
                    await append(node, wrote, rng.choice(["one", "two"]), b"%d" % number)
                    await asyncio.sleep(0)  # noqa: TID251  a bare yield
                writing = False

            async def tier(number):
                job = InProcessTier(Trap(bucket), number, tasks=rng.randint(1, 4))
                superseded = 0
                while writing:
                    superseded += (await job.run(quiet())).superseded
                return superseded

            _, *superseded = await asyncio.gather(write(), *(tier(number) for number in range(3)))
        await InProcessTier(bucket, 9).run(quiet())
        assert await rows_in(bucket) == sorted(wrote.rows)
        assert sum(superseded) > 0, "they never met: the test shows nothing"

    run(main())


def test_who_comes_too_late_leaves_no_orphans():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket)
        jobs = [InProcessTier(Trap(bucket), seed).run(quiet()) for seed in (1, 2, 3)]
        reports = await asyncio.gather(*jobs)
        assert sum(report.superseded for report in reports) == 2
        live = {add.key for add in (await read_table(bucket)).live.values()}
        found = {key for key in await objects_in(bucket, HISTORY_PREFIX) if parse_segment_key(key)}
        assert {key for key in found if key.endswith(".parquet")} == live
        assert len(found) == 2 * len(live)

    run(main())


def test_a_rival_that_came_half_as_far_makes_the_whole_round_void():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket)
        table = HistoryTable(bucket, CLOCK, random.Random(1), retry())
        await table.commit(TableChange("WRITE", first_ordinal=0, end_ordinal=3))
        with pytest.raises(Superseded, match="from 0 to 3"):
            await table.commit(TableChange("WRITE", first_ordinal=0, end_ordinal=9))
        assert (await table.refresh()).end_ordinal == 3

    run(main())


def test_versions_of_others_in_between_only_take_the_number():
    async def main():
        bucket = MemoryBucket()
        ours = HistoryTable(bucket, CLOCK, random.Random(1), retry())
        others = HistoryTable(bucket, CLOCK, random.Random(2), retry())
        await ours.create()
        await others.commit(TableChange("OPTIMIZE"))
        state = await ours.commit(TableChange("WRITE", first_ordinal=0, end_ordinal=5))
        assert (state.version, state.end_ordinal) == (2, 5)

    run(main())


def test_many_committers_lose_nothing_and_repeat_nothing():
    async def main():
        bucket = MemoryBucket()

        async def count_up(seed):
            table = HistoryTable(Trap(bucket), CLOCK, random.Random(seed), retry())
            made = 0
            while made < 20:
                at = (await table.refresh()).end_ordinal
                try:
                    await table.commit(TableChange("WRITE", first_ordinal=at, end_ordinal=at + 1))
                    made += 1
                except Superseded:
                    continue

        await asyncio.gather(*(count_up(seed) for seed in range(4)))
        state = await read_table(bucket)
        assert (state.version, state.end_ordinal) == (80, 80)

    run(main())


def test_a_damaged_commit_stops_the_run_and_names_the_object():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket)
        key = next(key for key in await objects_in(bucket, "wal/") if key.endswith("7"))
        data = bytearray(await bucket.get(key))
        data[len(data) // 2] ^= 1
        await bucket.put(key, bytes(data))
        with pytest.raises(Damaged, match=key):
            await InProcessTier(bucket).run(quiet())
        assert await rows_in(bucket) == []

    run(main())


def test_a_record_that_is_there_twice_in_the_log_is_refused_not_tiered_twice():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=1, is_clean=False)
        keys = await objects_in(bucket, "wal/")
        last = decode_commit(await bucket.get(keys[-1]), keys[-1])
        groups = [(location.stream_id, entries) for location, entries in last.runs]
        again = last.header._replace(id=last.header.id + 1)
        key = wal_key(again.epoch, again.id)
        await bucket.put_if_absent(key, encode_commit(again, [], groups)[0])
        with pytest.raises(Damaged, match="not sorted"):
            await InProcessTier(bucket).run(quiet())
        assert await rows_in(bucket) == []

    run(main())


def test_a_commit_that_goes_between_listing_and_reading_makes_it_look_again(monkeypatch):
    async def main():
        bucket = MemoryBucket()
        wrote = await a_log(bucket)
        job = InProcessTier(bucket)
        real, looks = job._segments, 0

        async def vanishing(*arguments):
            nonlocal looks
            looks += 1
            if looks < 3:
                raise Vanished("wal/1/7", "it was listed and cannot be found")
            return await real(*arguments)

        monkeypatch.setattr(job, "_segments", vanishing)
        report = await job.run(quiet())
        assert (report.rounds, looks) == (1, 3)
        assert await rows_in(bucket) == sorted(wrote.rows)
        lost = InProcessTier(await copied(MemoryBucket()))
        await a_log(lost._bucket)
        looks = -100
        monkeypatch.setattr(lost, "_segments", vanishing)
        with pytest.raises(Damaged, match="cannot be found"):
            await lost.run(quiet())

    run(main())
