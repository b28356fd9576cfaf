"""Objects that nobody needs go, in time; those that somebody may need never do."""

import asyncio
import random

import msgspec
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.layout.history.delta import (
    HISTORY_PREFIX,
    SegmentName,
    checkpoint_key,
    delta_key,
    parse_segment_key,
)
from bourn.layout.history.facts import add_of
from bourn.layout.reports import JobReport
from bourn.pipeline.generations import Generation
from bourn.pipeline.place import Place
from bourn.pipeline.table import HistoryTable, Superseded, TableChange, checkpoint
from bourn.pipeline.vacuum import Vacuum
from bourn.settings import PipelineSettings
from tests.pipeline.harness import (
    CLOCK,
    InProcessTier,
    a_log,
    merge_on,
    objects_in,
    quiet,
    retry,
    rows_in,
    tools_on,
)
from tests.pipeline.test_merge import a_table
from tests.support import run

GRACE = PipelineSettings(grace_secs=600, log_keep_secs=3600, merge_files=2)


def clock_now() -> ManualClock:
    return ManualClock(CLOCK.now_ms())


def table_on(bucket, clock, seed: int = 1) -> HistoryTable:
    return HistoryTable(bucket, clock, random.Random(seed), retry())


async def vacuum(bucket, clock, settings=GRACE) -> dict[str, int]:
    tools = tools_on(bucket, random.getrandbits(32), clock=clock, settings=settings)
    report = JobReport(name="retain")
    await Vacuum(tools, table_on(bucket, clock)).run(report)
    return report.facts


async def segments_in(bucket) -> set[str]:
    return {key for key in await objects_in(bucket, HISTORY_PREFIX) if parse_segment_key(key)}


async def live_in(bucket) -> set[str]:
    live = (await read_table(bucket)).live.values()
    return {key for add in live for key in (add.key, add.index_key)}


async def a_merged_table(bucket, clock) -> None:
    await a_table(bucket, files=3, streams=2)
    await merge_on(bucket, clock=clock).run(quiet())


def test_what_a_version_took_out_goes_a_grace_period_behind_it():
    async def main():
        bucket, clock = MemoryBucket(), clock_now()
        await a_merged_table(bucket, clock)
        rows, every = await rows_in(bucket), await segments_in(bucket)
        live = await live_in(bucket)
        assert live < every
        clock.advance(599)
        assert (await vacuum(bucket, clock))["objects_deleted"] == 0
        assert await segments_in(bucket) == every
        clock.advance(2)
        facts = await vacuum(bucket, clock)
        assert facts["objects_deleted"] == len(every - live)
        assert facts["deleted_bytes"] > 0
        assert await segments_in(bucket) == live
        assert await rows_in(bucket) == rows
        assert (await vacuum(bucket, clock))["objects_deleted"] == 0

    run(main())


@pytest.mark.parametrize("end", [".parquet", ".idx"])
def test_an_orphan_goes_when_it_is_old_and_half_of_one_too(end):
    async def main():
        bucket, clock = MemoryBucket(), clock_now()
        await a_merged_table(bucket, clock)
        before = await segments_in(bucket)
        name = SegmentName(3, 5, 0, f"{clock.now_ms() // 1000:08x}{7:08x}")
        key = name.key if end == ".parquet" else name.index_key
        await bucket.put_if_absent(key, b"rows of a run that was killed")
        await vacuum(bucket, clock)
        assert key in await segments_in(bucket), "its run may be under way"
        clock.advance(601)
        await vacuum(bucket, clock)
        assert key not in await segments_in(bucket)
        assert await live_in(bucket) <= before

    run(main())


def test_a_run_whose_files_were_vacuumed_under_it_cannot_name_them():
    async def main():
        bucket, clock = MemoryBucket(), clock_now()
        await a_merged_table(bucket, clock)
        slow = merge_on(bucket, 5, clock=clock)
        state = await slow.files.table.refresh()
        asleep, awake = asyncio.Event(), asyncio.Event()
        shuffled = slow.files._shuffled

        async def sleepy(*arguments):
            written = await shuffled(*arguments)
            asleep.set()
            await awake.wait()
            return written

        slow.files._shuffled = sleepy  # type: ignore[method-assign]
        everything = Generation(0, state.end_ordinal, tuple(state.live.values()))
        report = JobReport(name="merge")
        living = await slow.files.living()
        running = asyncio.create_task(slow.files.merge(everything, living, report, quiet()))
        await asleep.wait()
        clock.advance(601)
        await vacuum(bucket, clock)
        awake.set()
        assert await running is False
        assert report.superseded == 1
        assert (await read_table(bucket)).live == state.live
        assert await live_in(bucket) <= await segments_in(bucket)

    run(main())


def test_what_is_named_between_a_listing_and_its_fence_stays():
    async def main():
        bucket, clock = MemoryBucket(), clock_now()
        await a_log(bucket)
        tier = InProcessTier(bucket)
        await tier.table.create()
        span = await tier._span()
        facts = await tier._segments(span, await tier._scan.names(span.end), quiet())
        change = TableChange(
            "WRITE",
            adds=[add_of(found, clock.now_ms()) for found in facts],
            first_ordinal=span.first,
            end_ordinal=span.end,
            fence=0,
        )
        clock.advance(601)
        job = Vacuum(tools_on(bucket, clock=clock, settings=GRACE), table_on(bucket, clock))
        fence_off = job._fence_off

        async def quicker(fence):
            await tier.table.commit(change)
            return await fence_off(fence)

        job._fence_off = quicker  # type: ignore[method-assign]
        await job.run(JobReport(name="retain"))
        assert len(await live_in(bucket)) == 2 * len(facts)
        assert await live_in(bucket) <= await segments_in(bucket)
        late = InProcessTier(bucket, 2)
        with pytest.raises(Superseded, match="vacuumed"):
            await late.table.commit(change._replace(first_ordinal=None, end_ordinal=None))

    run(main())


def test_old_versions_go_once_a_checkpoint_has_them_and_nobody_loses_the_table(tmp_path):
    async def main():
        place = Place("file", str(tmp_path / "b"), "", "", "")
        bucket, clock = LocalBucket(tmp_path / "b"), clock_now()
        await a_table(bucket, files=2, streams=2)
        early = msgspec.structs.replace(await read_table(bucket), version=1)
        sleeper = table_on(bucket, clock)
        sleeper.state = early
        await merge_on(bucket, clock=clock).run(quiet())
        await checkpoint(place)
        await table_on(bucket, clock).commit(TableChange("OPTIMIZE"))
        newest = await read_table(bucket)
        rows = await rows_in(bucket)
        clock.advance(3000)
        assert (await vacuum(bucket, clock))["versions_deleted"] == 0, "younger than is kept"
        clock.advance(700)
        assert (await vacuum(bucket, clock))["versions_deleted"] == 3
        keys = await objects_in(bucket, HISTORY_PREFIX)
        assert delta_key(1) not in keys
        assert {checkpoint_key(3), delta_key(3), delta_key(4)} <= set(keys)
        assert await read_table(bucket) == newest
        assert await rows_in(bucket) == rows
        assert await read_table(bucket, early) == early, "it has slept too long to see anything"
        assert await read_table(bucket, early, is_sure=True) == newest
        # Who has slept so long must not make a version that is in the past.
        state = await sleeper.commit(TableChange("OPTIMIZE"))
        assert state.version == newest.version + 1
        await bucket.close()

    run(main())


def test_without_a_table_there_is_nothing_to_do():
    async def main():
        bucket = MemoryBucket()
        assert await vacuum(bucket, clock_now()) == {}

    run(main())


def test_two_vacuums_at_once_do_no_harm():
    async def main():
        bucket, clock = MemoryBucket(), clock_now()
        await a_merged_table(bucket, clock)
        name = SegmentName(0, 1, 0, f"{clock.now_ms() // 1000:08x}{7:08x}")
        await bucket.put_if_absent(name.key, b"an orphan")
        clock.advance(700)
        await asyncio.gather(*(vacuum(bucket, clock) for _ in range(3)))
        assert await segments_in(bucket) == await live_in(bucket)

    run(main())
