"""What an audit makes of records that are gone, of others at work, and the report it leaves."""

import pyarrow as pa
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.layout.audits import AuditReport, Violation, decode_audit
from bourn.layout.history.delta import (
    Actions,
    delta_key,
    encode_actions,
)
from bourn.layout.history.facts import remove_of
from bourn.layout.reports import encode_report
from bourn.model.config import BasinConfig
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.audit import AuditFailed
from tests.pipeline.audit_harness import (
    BASIN,
    FINITE,
    KEPT,
    OURS,
    InlineWork,
    a_bucket,
    audit_on,
    audited,
    commits_in,
    forge_segment,
    keys_in,
    live,
    only,
    rows_of,
    tiered,
)
from tests.pipeline.harness import quiet
from tests.support import batch, node_on, run


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("bourn.pipeline.audit.LOOK_AGAIN_SECS", 0.0)


# Retention


def expiring(clock: ManualClock, config: BasinConfig):
    """A bucket of a stream with 3 batches a minute apart, tiered; returns rows and the bucket."""

    async def main():
        bucket = MemoryBucket()
        async with node_on(bucket, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN, config))
            await node.create_stream(BASIN, CreateStream("one"))
            for number in range(3):
                clock.set_wall(1_700_000_000_000 + number * 60_000)
                await node.append(BASIN, "one", batch(b"%d" % number, b"x"))
        await tiered(bucket)
        (add,) = await live(bucket)
        return bucket, add, await rows_of(bucket, add)

    return main()


async def without_log(bucket: MemoryBucket) -> None:
    for key in await commits_in(bucket):
        await bucket.delete(key)


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [(30, "lost"), (65, "records that may have expired"), (500, "expired records")],
)
def test_what_is_gone_must_have_had_the_time_to_expire(seconds, kind):
    async def main():
        clock = ManualClock()
        bucket, add, rows = await expiring(clock, FINITE)
        await without_log(bucket)
        await forge_segment(bucket, rows.slice(2), instead_of=add)
        clock.set_wall(1_700_000_000_000 + 1000 * seconds)
        report = await audited(bucket, clock)
        if kind == "lost":
            assert only(report, "lost").seq_num == 0
            assert "cannot have expired" in only(report, "lost").what
        else:
            assert report.violations == []
            assert report.counts[kind] == 2

    run(main())


@pytest.mark.parametrize(("kept", "is_lost"), [((0, 2, 4, 2), True), ((2, 4), False)])
def test_what_never_expires_is_lost_between_others_and_may_have_expired_before_them(kept, is_lost):
    async def main():
        clock = ManualClock()
        bucket, add, rows = await expiring(clock, KEPT)
        await without_log(bucket)
        parts = [rows.slice(at, count) for at, count in zip(kept[::2], kept[1::2], strict=True)]
        await forge_segment(bucket, pa.concat_tables(parts), instead_of=add)
        clock.set_wall(1_800_000_000_000)
        report = await audited(bucket, clock)
        if is_lost:
            assert "ever expires" in only(report, "lost").what
            assert only(report, "lost").seq_num == 2
        else:
            assert report.violations == []
            assert report.counts["records that may have expired"] == 2

    run(main())


def test_a_stream_all_of_whose_records_expired_is_clean():
    async def main(config):
        clock = ManualClock()
        bucket, add, _ = await expiring(clock, config)
        await without_log(bucket)
        state = await read_table(bucket)
        actions = Actions(removes=(remove_of(add, 1),), info=OURS)
        await bucket.put(delta_key(state.version + 1), encode_actions(actions))
        clock.set_wall(1_700_000_000_000 + 1_000_000)
        return await audited(bucket, clock)

    report = run(main(FINITE))
    assert report.violations == []
    assert report.counts["expired records"] == 6
    assert run(main(KEPT)).counts["records that may have expired"] == 6


# Beside others


def test_a_segment_that_a_newer_version_has_replaced_meanwhile_is_no_violation():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)

        class Hurried(InlineWork):
            done = False

            async def segments(self, tasks, known, progress):
                if not self.done:
                    self.done = True
                    await forge_segment(bucket, rows, instead_of=add)
                    await bucket.delete(add.key)
                    await bucket.delete(add.index_key)
                return await super().segments(tasks, known, progress)

        report = await audit_on(bucket, work=Hurried(bucket)).audit(quiet())
        assert report.violations == []
        assert report.rounds == 2

    run(main())


def test_commits_that_come_and_go_meanwhile_are_no_violation():
    async def main():
        bucket = await a_bucket()

        class Hurried(InlineWork):
            async def commits(self, tasks, progress):
                for key in await commits_in(bucket):
                    if key.startswith("wal/000000000001"):
                        await bucket.delete(key)
                async with node_on(bucket) as node:
                    await node.append(BASIN, "one", batch(Record(b"new", (), 200)))
                await tiered(bucket)
                return await super().commits(tasks, progress)

        report = await audit_on(bucket, work=Hurried(bucket)).audit(quiet())
        assert report.violations == []

    run(main())


# Reports


def test_a_report_is_kept_without_names_and_the_job_fails_where_it_is_not_clean():
    async def main():
        bucket = await a_bucket()
        report = await audited(bucket)
        stored = await bucket.get(report.key)
        assert decode_audit(stored, report.key) == report
        job = await audit_on(bucket).run(quiet())
        assert job.records == 72 + 78
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        await forge_segment(bucket, rows.slice(3, 5))
        with pytest.raises(AuditFailed, match="1 violations, the first: history/"):
            await audit_on(bucket).run(quiet())
        for key in await keys_in(bucket, "pipeline/"):
            assert BASIN.encode() not in await bucket.get(key)

    run(main())


def test_reports_come_back_and_others_are_refused():
    report = AuditReport(
        run="0" * 16, started_at_ms=1, violations=[Violation("lost", "k", "w", 1, 2)]
    )
    assert decode_audit(encode_report(report), report.key) == report
    with pytest.raises(Exception, match="no report"):
        decode_audit(b"[]", report.key)
