"""An audit finds nothing wrong where nothing is, and whatever somebody has done to a bucket.

Each test does one thing to a bucket and sees it named: kind, object, stream and number.
"""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.clock import ManualClock
from bourn.layout.commit import CommitHeader, decode_commit, encode_tombstone
from bourn.layout.history.delta import (
    Actions,
    delta_key,
    encode_actions,
)
from bourn.layout.history.facts import remove_of
from bourn.model.record import trim_record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings
from tests.engine.harness import crash, eventually
from tests.pipeline.audit_harness import (
    BASIN,
    FINITE,
    KEPT,
    OURS,
    a_bucket,
    audited,
    commits_in,
    flipped,
    forge_commit,
    forge_segment,
    hard_records,
    keys_in,
    live,
    only,
    rows_of,
    tiered,
)
from tests.pipeline.harness import merge_on, quiet, retain_on
from tests.support import batch, node_on, run


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("bourn.pipeline.audit.LOOK_AGAIN_SECS", 0.0)


def column(rows: pa.Table, name: str, values) -> pa.Table:
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(name)
    return rows.set_column(at, field, pa.array(values, field.type))


# Clean


@pytest.mark.parametrize("is_tiered", [False, True])
def test_a_bucket_of_every_hard_kind_of_record_is_clean(is_tiered):
    async def main():
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await hard_records(node)
        if is_tiered:
            await tiered(bucket)
        report = await audited(bucket)
        assert report.violations == []
        assert report.counts["log records"] == 25
        assert report.counts["streams"] == 5
        if is_tiered:
            assert report.counts["history records"] == report.counts["records in both"] == 25

    run(main())


def test_an_empty_bucket_is_clean_and_said_to_be_empty():
    report = run(audited(MemoryBucket()))
    assert report.is_clean
    assert "no server has ever written" in report.notes[0]


def test_a_bucket_is_clean_after_crashes_trims_deletions_and_a_stream_made_anew():
    async def main():
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            for stream in ("trimmed", "deleted", "anew", "idle"):
                await node.create_stream(BASIN, CreateStream(stream))
            for _ in range(5):
                for stream in ("trimmed", "deleted", "anew"):
                    await node.append(BASIN, stream, batch(b"a", b"b"))
            await crash(node)
        await tiered(bucket)
        async with node_on(bucket) as node:
            await node.append(BASIN, "trimmed", batch(trim_record(7)))
            await node.delete_stream(BASIN, "deleted")
            await node.delete_stream(BASIN, "anew")
            await crash(node)
        assert (await audited(bucket)).violations == []
        async with node_on(bucket) as node:
            state = node.term.state
            await eventually(lambda: state.streams.count() == 2)
            await node.create_stream(BASIN, CreateStream("anew"))
            await node.append(BASIN, "anew", batch(b"new"))
            await node.append(BASIN, "trimmed", batch(b"more"))
        assert (await audited(bucket)).violations == []
        await tiered(bucket)
        report = await audited(bucket)
        assert report.violations == []
        assert report.counts["records of deleted streams"] >= 20

    run(main())


def test_commits_that_were_collected_are_not_missed():
    async def main():
        bucket = MemoryBucket()
        settings = EngineSettings(collect_grace_secs=0, snapshots_kept=1, housekeeping_secs=1e9)
        async with node_on(bucket, settings) as node:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            await node.create_stream(BASIN, CreateStream("one"))
            for _ in range(10):
                await node.append(BASIN, "one", batch(b"x"))
            before = len(await commits_in(bucket))
            await node.append(BASIN, "one", batch(trim_record(8)))
            node.housekeeping.expire()
            for _ in range(2):
                await node.append(BASIN, "one", batch(b"y"))
                await node.housekeeping.snapshots.take()
                await node.housekeeping.collect()
        assert len(await commits_in(bucket)) < before
        report = await audited(bucket)
        assert report.violations == []
        assert report.counts["collected commits"] >= 7

    run(main())


def test_a_bucket_is_clean_after_merge_retain_and_vacuum():
    async def main():
        clock = ManualClock()
        bucket = MemoryBucket()
        async with node_on(bucket, clock=clock) as node:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            await node.create_basin(CreateBasin("finite-basin", FINITE))
            await node.create_stream("finite-basin", CreateStream("expires"))
            for stream in ("kept", "trimmed", "deleted"):
                await node.create_stream(BASIN, CreateStream(stream))
            for number in range(4):
                for stream in ("kept", "trimmed", "deleted"):
                    await node.append(BASIN, stream, batch(b"%d" % number, b"x" * 100))
                await node.append("finite-basin", "expires", batch(b"a", b"b"))
                clock.set_wall(clock.now_ms() + 20_000)
                await tiered(bucket)
            await node.append(BASIN, "trimmed", batch(trim_record(5)))
            await node.delete_stream(BASIN, "deleted")
        async with node_on(bucket, clock=clock) as node:
            await node.append(BASIN, "kept", batch(b"tail"))
        await tiered(bucket)
        for _ in range(3):
            await merge_on(bucket, clock=clock).run(quiet())
            assert (await audited(bucket, clock)).violations == []
            await retain_on(bucket, clock=clock).run(quiet())
            report = await audited(bucket, clock)
            assert report.violations == []
            clock.set_wall(clock.now_ms() + 7200_000)
        assert report.counts["history records"] < 16 + 8

    run(main())


# Objects


def test_a_flipped_byte_in_a_commit_is_named():
    async def main():
        bucket = await a_bucket()
        for at in (100, -60, -10):
            key = (await commits_in(bucket))[-1]
            spoilt = MemoryBucket()
            for other in await keys_in(bucket, ""):
                await spoilt.put(other, await bucket.get(other))
            await flipped(spoilt, key, at)
            violation = only(await audited(spoilt), "damaged")
            assert violation.key == key

    run(main())


def test_a_flipped_byte_in_a_row_group_is_named_with_its_stream():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        await flipped(bucket, add.key, 200)
        report = await audited(bucket)
        violation = only(report, "damaged")
        assert violation.key == add.key
        assert "checksum" in violation.what
        assert violation.stream_id is not None
        assert violation.seq_num == 0
        assert {found.kind for found in report.violations} <= {"damaged", "disagree"}

    run(main())


def test_a_flipped_byte_in_a_sidecar_is_named_and_the_rows_are_still_looked_at():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        await flipped(bucket, add.index_key, 50)
        report = await audited(bucket)
        (violation,) = report.violations
        assert (violation.kind, violation.key) == ("damaged", add.index_key)
        assert report.counts["history records"] == 72

    run(main())


def test_a_flipped_byte_in_a_parquet_footer_is_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        await flipped(bucket, add.key, -5)
        assert only(await audited(bucket), "damaged").key == add.key

    run(main())


@pytest.mark.parametrize("prefix", ["catalog/", "epoch/", "history/_delta_log/"])
def test_a_damaged_object_of_any_other_kind_is_named(prefix):
    async def main():
        bucket = await a_bucket()
        key = (await keys_in(bucket, prefix))[0]
        await bucket.put(key, b"{" + (await bucket.get(key))[5:])
        assert only(await audited(bucket), "damaged").key == key

    run(main())


@pytest.mark.parametrize("what", ["key", "index_key"])
def test_a_deleted_segment_or_sidecar_is_named(what):
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        await bucket.delete(getattr(add, what))
        report = await audited(bucket)
        assert only(report, "missing").key == getattr(add, what)
        if what == "key":
            assert only(report, "lost").seq_num == 0

    run(main())


@pytest.mark.parametrize("is_tiered", [False, True])
def test_a_commit_that_was_dropped_is_named(is_tiered):
    async def main():
        bucket = await a_bucket(tier=is_tiered)
        key = (await commits_in(bucket))[-2]
        await bucket.delete(key)
        report = await audited(bucket)
        assert only(report, "missing").key == key
        assert only(report, "lost").stream_id is not None

    run(main())


def test_a_commit_that_a_snapshot_still_needs_is_named_when_it_is_gone():
    async def main():
        bucket = await a_bucket(tier=False, tail=False)
        key = (await commits_in(bucket))[4]
        await bucket.delete(key)
        assert only(await audited(bucket), "missing").key == key

    run(main())


def test_a_missing_tombstone_and_a_missing_claim_are_named():
    async def main():
        bucket = await a_bucket()
        sealed = [
            key
            for key in await keys_in(bucket, "wal/")
            if decode_commit(await bucket.get(key), key).header.is_tombstone
        ]
        await bucket.delete(sealed[0])
        assert only(await audited(bucket), "unsealed").key == sealed[0]
        bucket = await a_bucket()
        (first, *_) = await keys_in(bucket, "epoch/")
        await bucket.delete(first)
        assert only(await audited(bucket), "missing").key == first

    run(main())


def test_a_tombstone_in_the_middle_of_an_epoch_is_named():
    async def main():
        bucket = await a_bucket(tier=False)
        key = (await commits_in(bucket))[3]
        header = decode_commit(await bucket.get(key), key).header
        await bucket.put(
            key, encode_tombstone(CommitHeader(header.epoch, header.id, 0, 0, header.writer))
        )
        assert not (await audited(bucket)).is_clean

    run(main())


def test_a_version_of_the_table_that_is_missing_is_named():
    async def main():
        bucket = await a_bucket()
        await tiered(bucket)
        await bucket.delete(delta_key(1))
        assert not (await audited(bucket)).is_clean

    run(main())


# Rows


def test_rows_that_are_twice_in_the_table_are_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        forged = await forge_segment(bucket, rows.slice(3, 5))
        violation = only(await audited(bucket), "repeated")
        assert violation.key in {forged.key, add.key}
        assert violation.seq_num == 3
        assert "5 records" in violation.what

    run(main())


def test_a_version_that_takes_live_rows_away_is_noticed():
    async def main():
        bucket = await a_bucket()
        state = await read_table(bucket)
        (add,) = state.live.values()
        actions = Actions(removes=(remove_of(add, 1),), info={"operation": "DELETE"})
        key = delta_key(state.version + 1)
        await bucket.put(key, encode_actions(actions))
        report = await audited(bucket)
        assert only(report, "stray").key == key
        assert only(report, "lost").seq_num == 0
        for key in await commits_in(bucket):
            if key.startswith("wal/000000000001"):
                await bucket.delete(key)
        report = await audited(bucket)
        assert {violation.kind for violation in report.violations} == {"stray"}
        assert report.notes == [
            "2 files of the history are in no version; vacuum removes them in time",
            "72 records are gone and may have expired: no proof",
        ]

    run(main())


def test_rows_missing_in_the_middle_of_a_stream_are_named():
    async def main():
        bucket = await a_bucket()
        for key in await commits_in(bucket):
            if key.startswith("wal/000000000001"):
                await bucket.delete(key)
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        kept = pa.concat_tables([rows.slice(0, 5), rows.slice(8)])
        await forge_segment(bucket, kept, instead_of=add)
        violation = only(await audited(bucket), "lost")
        assert violation.seq_num == 5
        assert "3 records" in violation.what

    run(main())


def test_rows_that_are_in_the_log_below_the_tables_end_and_not_in_it_are_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        kept = pa.concat_tables([rows.slice(0, 5), rows.slice(8)])
        await forge_segment(bucket, kept, instead_of=add)
        report = await audited(bucket)
        assert any("should be in the table" in found.what for found in report.violations)

    run(main())


def test_a_body_that_differs_between_log_and_history_is_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        bodies = rows.column("body").to_pylist()
        bodies[9] = b"9"
        await forge_segment(bucket, column(rows, "body", bodies), instead_of=add)
        violation = only(await audited(bucket), "disagree")
        assert violation.key.startswith("wal/")
        assert violation.seq_num == 8

    run(main())


@pytest.mark.parametrize("name", ["timestamp", "arrival", "retention_secs"])
def test_another_timestamp_arrival_or_retention_in_the_history_is_named(name):
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        values = rows.column(name).cast(pa.int64()).to_numpy().tolist()
        values[9] += 1000 if name == "arrival" else 1
        forged = pa.chunked_array([pa.array(values, pa.int64())]).cast(rows.schema.field(name).type)
        at = rows.schema.get_field_index(name)
        await forge_segment(
            bucket, rows.set_column(at, rows.schema.field(name), forged), instead_of=add
        )
        assert only(await audited(bucket), "disagree").seq_num == 8

    run(main())


def test_a_part_of_a_commit_that_is_left_in_the_history_is_still_compared():
    async def main():
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await node.create_basin(CreateBasin(BASIN, KEPT))
            await node.create_stream(BASIN, CreateStream("one"))
            await node.append(BASIN, "one", batch(*[b"%d" % n for n in range(10)]))
            await node.append(BASIN, "one", batch(trim_record(5)))
        await tiered(bucket)
        (add,) = await live(bucket)
        rows = (await rows_of(bucket, add)).slice(5)
        await forge_segment(bucket, rows, instead_of=add)
        assert (await audited(bucket)).is_clean
        (add,) = await live(bucket)
        bodies = rows.column("body").to_pylist()
        bodies[1] = b"7"
        await forge_segment(bucket, column(rows, "body", bodies), instead_of=add)
        assert only(await audited(bucket), "disagree").seq_num == 5

    run(main())


def test_a_wrong_metered_size_is_named_in_a_row_and_in_a_batch():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        sizes = rows.column("metered_bytes").to_numpy().tolist()
        sizes[9] += 1
        forged = await forge_segment(bucket, column(rows, "metered_bytes", sizes), instead_of=add)
        violation = only(await audited(bucket), "damaged")
        assert violation.key == forged.key
        assert violation.stream_id is not None

        bucket = await a_bucket()
        key = (await commits_in(bucket))[-1]

        def heavier(commit):
            (location, (entry,)) = commit.runs[0]
            other = msgspec.structs.replace(entry, metered_bytes=entry.metered_bytes + 1)
            return commit._replace(runs=((location, (other,)),))

        await forge_commit(bucket, key, heavier)
        violations = (await audited(bucket)).violations
        assert any(found.key == key and "metered" in found.what for found in violations)

    run(main())


def test_timestamps_that_go_back_are_named_in_a_batch_between_batches_and_in_rows():
    async def main():
        bucket = await a_bucket()
        key = (await commits_in(bucket))[-1]

        def earlier(commit):
            (location, (entry,)) = commit.runs[0]
            other = msgspec.structs.replace(entry, timestamps=5, last_timestamp=5)
            return commit._replace(runs=((location, (other,)),))

        await forge_commit(bucket, key, earlier)
        violation = only(await audited(bucket), "order")
        assert violation.key == key
        assert violation.seq_num == 26

        bucket = await a_bucket()
        key = (await commits_in(bucket))[1]

        def falling(commit):
            (location, (entry,)) = commit.runs[0]
            stamps = np.array([3, 2, 1, 9], np.uint64)
            other = msgspec.structs.replace(entry, timestamps=stamps, last_timestamp=9)
            return commit._replace(runs=((location, (other,)),))

        await forge_commit(bucket, key, falling)
        assert only(await audited(bucket), "order").key == key

        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        stamps = rows.column("timestamp").to_numpy().tolist()
        stamps[9] = 0
        forged = await forge_segment(bucket, column(rows, "timestamp", stamps), instead_of=add)
        violation = only(await audited(bucket), "order")
        assert (violation.key, violation.seq_num) == (forged.key, 9)

    run(main())


def test_rows_of_one_stream_under_the_id_of_another_are_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        ids = rows.column("stream_id").to_pylist()
        other = [4 if value == 3 else 3 if value == 4 else value for value in ids]
        swapped = column(rows, "stream_id", other).sort_by(
            [("stream_id", "ascending"), ("seq_num", "ascending")]
        )
        await forge_segment(bucket, swapped, instead_of=add)
        report = await audited(bucket)
        violation = only(report, "disagree")
        assert violation.stream_id in {3, 4}
        assert "another stream" in violation.what

    run(main())


def test_rows_of_a_stream_that_never_was_and_rows_behind_the_tail_are_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = (await rows_of(bucket, add)).slice(0, 4)
        await forge_segment(bucket, column(rows, "stream_id", [99] * 4))
        violation = only(await audited(bucket), "stray")
        assert (violation.stream_id, violation.seq_num) == (99, 0)

        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = (await rows_of(bucket, add)).slice(0, 4)
        rows = column(rows, "seq_num", pc.add(rows.column("seq_num"), 27).to_pylist())
        rows = column(rows, "timestamp", [200] * 4)
        await forge_segment(bucket, rows)
        violation = only(await audited(bucket), "stray")
        assert violation.stream_id == 2
        assert "tail" in violation.what

    run(main())


def test_a_sidecar_of_other_rows_is_named():
    async def main():
        bucket = await a_bucket()
        (add,) = await live(bucket)
        rows = await rows_of(bucket, add)
        stamps = rows.column("timestamp").to_numpy().tolist()
        stamps[0] -= 1
        other = await forge_segment(bucket, column(rows, "timestamp", stamps))
        data = await bucket.get(other.index_key)
        state = await read_table(bucket)
        await bucket.put(
            delta_key(state.version + 1),
            encode_actions(Actions(removes=(remove_of(other, 1),), info=OURS)),
        )
        await bucket.put(add.index_key, data)
        report = await audited(bucket)
        assert not report.is_clean
        assert any(found.key in {add.index_key, add.key} for found in report.violations)

    run(main())


def test_a_snapshot_that_says_something_else_of_a_commit_is_named():
    async def main():
        bucket = await a_bucket(tier=False, tail=False)
        key = (await commits_in(bucket))[2]

        def shorter(commit):
            (location, (entry,)) = commit.runs[0]
            other = msgspec.structs.replace(entry, first_seq_num=entry.first_seq_num + 1)
            return commit._replace(runs=((location, (other,)),))

        await forge_commit(bucket, key, shorter)
        report = await audited(bucket)
        assert any("snapshot says" in found.what for found in report.violations)

    run(main())
