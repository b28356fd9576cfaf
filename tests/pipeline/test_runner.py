"""When work begins, what is kept of a run, and what happens behind a failure."""

import asyncio
import random

import msgspec
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.local import LocalBucket
from bourn.errors import BucketUnavailable
from bourn.layout.history.delta import INDEX_PREFIX
from bourn.layout.reports import REPORT_PREFIX, JobReport, RunReport, decode_report
from bourn.pipeline import runner as runner_module
from bourn.pipeline.merge import Merge
from bourn.pipeline.place import Place
from bourn.pipeline.retain import Retain
from bourn.pipeline.runner import Runner
from bourn.settings import PipelineSettings
from tests.engine.harness import soon
from tests.pipeline.harness import (
    CLOCK,
    InProcessFiles,
    InProcessTier,
    Wrote,
    a_log,
    append,
    make_streams,
    objects_in,
    rows_in,
)
from tests.support import node_on, run

PROMPT = PipelineSettings(backlog_bytes=1, poll_secs=0.001, retry_secs_max=0.01)
PATIENT = PipelineSettings(backlog_bytes=1 << 40, age_secs=1e9, poll_secs=0.001)


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch):
    monkeypatch.setattr(
        runner_module, "Tier", lambda bucket, *_: InProcessTier(bucket, random.getrandbits(32))
    )
    monkeypatch.setattr(runner_module, "Merge", lambda tools: Merge(tools, InProcessFiles(tools)))
    monkeypatch.setattr(runner_module, "Retain", lambda tools: Retain(tools, InProcessFiles(tools)))


def runner_on(tmp_path, settings=PROMPT, told=None, jobs=("tier",)) -> Runner:
    return Runner(
        Place("file", str(tmp_path / "b"), "", "", ""),
        settings,
        CLOCK,
        random.Random(),
        listen=lambda _: None,
        told=(lambda _: None) if told is None else told,
        jobs=jobs,
    )


async def until(condition) -> None:
    async def poll():
        while not await condition():
            await CLOCK.sleep(0.005)

    await soon(poll())


def test_following_tiers_what_comes_until_it_is_stopped(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "b")
        runner = runner_on(tmp_path)
        stop = asyncio.Event()
        following = asyncio.create_task(runner.follow(stop))
        wrote = await a_log(bucket)

        async def all_there():
            return await rows_in(bucket) == sorted(wrote.rows)

        await until(all_there)
        stop.set()
        await soon(following)
        await runner.close()
        await bucket.close()

    run(main())


def test_following_merges_and_retains_when_there_is_enough_to_do(tmp_path):
    settings = msgspec.structs.replace(PROMPT, merge_files=2, retain_secs=0.0, grace_secs=0.0)

    async def main():
        bucket = LocalBucket(tmp_path / "b")
        told: list[RunReport] = []
        runner = runner_on(tmp_path, settings, told.append, ("tier", "merge", "retain"))
        stop = asyncio.Event()
        following = asyncio.create_task(runner.follow(stop))
        wrote = Wrote([])
        async with node_on(bucket) as node:
            await make_streams(node, "one")
            for number in range(3):
                end = (await read_table(bucket)).end_ordinal
                await append(node, wrote, "one", b"%d" % number)

                async def has_grown(end=end):
                    return (await read_table(bucket)).end_ordinal > end

                await until(has_grown)

        async def is_merged():
            live = (await read_table(bucket)).live.values()
            one_file = len(live) == 1 and await rows_in(bucket) == sorted(wrote.rows)
            return one_file and len(await objects_in(bucket, INDEX_PREFIX)) == 1

        await until(is_merged)

        async def is_told():  # when the run that did it has ended; both of them join what is small
            worked = {job.name for report in told for job in report.jobs if job.rounds}
            return "tier" in worked and worked & {"merge", "retain"}

        await until(is_told)
        stop.set()
        await soon(following)
        await runner.close()
        await bucket.close()

    run(main())


def test_a_job_that_fails_does_not_keep_the_others_from_theirs(tmp_path, monkeypatch):
    async def main():
        bucket = LocalBucket(tmp_path / "b")
        await a_log(bucket)
        told: list[RunReport] = []
        runner = runner_on(tmp_path, PROMPT, told.append, ("tier", "retain"))

        async def failing(*_):
            raise BucketUnavailable("history/x", "it is not there at the moment")

        monkeypatch.setattr(runner.tier, "_segments", failing)
        with pytest.raises(BucketUnavailable):
            await runner.once()
        assert [job.name for job in told[0].jobs] == ["retain"]
        assert "not there at the moment" in told[0].error
        await runner.close()
        await bucket.close()

    run(main())


def test_nothing_is_done_for_a_backlog_that_is_small_and_young(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "b")
        await a_log(bucket)
        runner = runner_on(tmp_path, PATIENT)
        assert not await runner._due()
        young = await runner.tier.backlog()
        assert young.commits > 0
        assert young.size_bytes > 0
        for settings in (
            PipelineSettings(backlog_bytes=young.size_bytes, age_secs=1e9),
            PipelineSettings(backlog_bytes=1 << 40, age_secs=0.0),
        ):
            runner._settings = settings
            assert await runner._due()
        await runner.once()
        assert not await runner._due(), "there is nothing left"
        await runner.close()
        await bucket.close()

    run(main())


def test_a_run_that_fails_leaves_a_report_and_following_goes_on(tmp_path, monkeypatch):
    async def main():
        bucket = LocalBucket(tmp_path / "b")
        wrote = await a_log(bucket)
        told: list[RunReport] = []
        runner = runner_on(tmp_path, told=told.append)
        real = runner.tier._segments
        failures = 2

        async def failing(*arguments):
            nonlocal failures
            if failures:
                failures -= 1
                raise BucketUnavailable("history/x", "it is not there at the moment")
            return await real(*arguments)

        monkeypatch.setattr(runner.tier, "_segments", failing)
        stop = asyncio.Event()
        following = asyncio.create_task(runner.follow(stop))

        async def all_there():
            return await rows_in(bucket) == sorted(wrote.rows)

        await until(all_there)
        await until(lambda: asyncio.sleep(0, len(told) >= 3))  # noqa: TID251  a bare yield
        stop.set()
        await soon(following)
        keys = await objects_in(bucket, REPORT_PREFIX)
        errors = [decode_report(await bucket.get(key), key).error for key in keys]
        assert sorted(map(bool, errors)) == [False, True, True]
        assert all("not there at the moment" in error for error in errors if error)
        await runner.close()
        await bucket.close()

    run(main())


def test_reports_are_kept_up_to_a_number_and_none_of_runs_without_work(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "PIPELINE_REPORTS_KEPT", 3)

    async def main():
        runner = runner_on(tmp_path)
        for number in range(6):
            job = JobReport(name="tier", rounds=1)
            report = RunReport(run="a" * 16, master="x", started_at_ms=number, jobs=[job])
            await runner._keep(report)
        await runner.once()
        await runner.close()

    run(main())
    kept = sorted(path.name[:15] for path in (tmp_path / "b" / "pipeline").iterdir())
    assert kept == [f"{number:015d}" for number in (3, 4, 5)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"master": ""}, "master"),
        ({"backlog_bytes": 0}, "backlog_bytes"),
        ({"poll_secs": 0.0}, "poll_secs"),
        ({"age_secs": -1.0}, "age_secs"),
        ({"checkpoint_versions": 0}, "checkpoint_versions"),
        ({"merge_files": 1}, "merge_files"),
        ({"retain_secs": -1.0}, "retain_secs"),
        ({"grace_secs": -1.0}, "grace_secs"),
        ({"log_keep_secs": -1.0}, "log_keep_secs"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        PipelineSettings(**changes)
