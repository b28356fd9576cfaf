"""Which commits the log has: those that a restart would keep, through epochs, gaps and holes."""

import random

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.errors import Damaged
from bourn.layout.commit import CommitHeader, decode_commit, encode_commit
from bourn.layout.keys import parse_wal_key, wal_key
from bourn.model.resource import CreateStream
from bourn.pipeline.scan import LogScan, LogSpan
from bourn.pipeline.tier import cut
from tests.engine.harness import crash, keys_of, trim
from tests.engine.test_collection import AT_ONCE, snapshot
from tests.engine.test_collection import make as make_kept_streams
from tests.pipeline.harness import (
    BASIN,
    InProcessTier,
    Wrote,
    a_log,
    append,
    make_streams,
    quiet,
    retry,
    rows_in,
)
from tests.support import BASIN as KEPT_BASIN
from tests.support import batch, node_on, run

EVERYTHING = {"commits_max": 10**6, "bytes_max": 1 << 40}


def scan(bucket) -> LogScan:
    return LogScan(bucket, retry())


async def span_of(bucket, first: int = 0) -> LogSpan:
    return await scan(bucket).span(first, **EVERYTHING)


def test_an_empty_bucket_has_no_commits():
    async def main():
        assert await span_of(MemoryBucket()) == (0, 0, [], False)

    run(main())


@pytest.mark.parametrize("is_clean", [True, False], ids=["with-snapshots", "without"])
def test_ordinals_run_through_epochs_and_leave_tombstones_out(is_clean):
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=3, is_clean=is_clean)
        span = await span_of(bucket)
        assert [commit.ordinal for commit in span.commits] == list(range(span.end))
        epochs = {place.epoch for c in span.commits if (place := parse_wal_key(c.key))}
        assert epochs == {1, 2, 3}
        for commit in span.commits:
            found = decode_commit(await bucket.get(commit.key), commit.key)
            assert not found.header.is_tombstone
        for first in range(0, span.end, 5):
            part = await span_of(bucket, first)
            assert part.commits == span.commits[first:]

    run(main())


def test_epochs_that_were_claimed_and_never_written_are_passed_over():
    async def main():
        bucket = MemoryBucket()
        wrote = Wrote([])
        async with node_on(bucket) as node:
            await make_streams(node, "one")
            await append(node, wrote, "one", b"a")
            await crash(node)
        for _ in range(3):  # each start seals the one before it, which is empty
            async with node_on(bucket) as node:
                await crash(node)
        async with node_on(bucket) as node:
            await append(node, wrote, "one", b"b")
            await crash(node)
        reader = scan(bucket)
        span = await reader.span(0, **EVERYTHING)
        last = span.commits[-1]
        assert last.key == wal_key(5, 0)
        assert [commit.ordinal for commit in span.commits] == list(range(span.end))
        assert await reader.span(last.ordinal, **EVERYTHING) == (
            last.ordinal,
            span.end,
            [last],
            False,
        )

    run(main())


def test_the_newest_epoch_ends_at_its_first_gap_and_goes_on_when_that_is_filled():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=1, is_clean=False)
        keys = await keys_of(bucket, "wal/")
        # As a writer with several commits under way leaves it for a moment.
        for at, key in enumerate(keys[-3:]):
            place = parse_wal_key(key)
            assert place is not None
            commit = decode_commit(await bucket.get(key), key)
            header = commit.header._replace(durable_id=len(keys) - 3)
            groups = [(location.stream_id, entries) for location, entries in commit.runs]
            await bucket.put(key, encode_commit(header, commit.changes, groups)[0])
            assert place.id == len(keys) - 3 + at
        missing = keys[-3]
        data = await bucket.get(missing)
        await bucket.delete(missing)
        reader = scan(bucket)
        before = await reader.span(0, **EVERYTHING)
        assert before.end == len(keys) - 3
        await bucket.put_if_absent(missing, data)
        after = await reader.span(before.end, **EVERYTHING)
        assert [commit.key for commit in after.commits] == keys[-3:]

    run(main())


@pytest.mark.parametrize("is_clean", [True, False], ids=["with-snapshots", "without"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_commit_that_was_durable_and_is_missing_is_named(is_clean, epochs):
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=epochs, is_clean=is_clean)
        keys = await keys_of(bucket, "wal/")
        await bucket.delete(keys[4])
        with pytest.raises(Damaged, match=keys[4]):
            await span_of(bucket)

    run(main())


def test_what_the_server_has_collected_is_passed_over_and_nothing_else():
    async def main():
        bucket = MemoryBucket()
        async with node_on(bucket, AT_ONCE) as node:
            await make_kept_streams(node, "a", "b")
            for number in range(6):
                await node.append(KEPT_BASIN, "a", batch(f"a{number}"))
                await node.append(KEPT_BASIN, "b", batch(f"b{number}"))
            await node.append(KEPT_BASIN, "a", batch(trim(5)))
            node.housekeeping.expire()
            for _ in range(3):
                await snapshot(node)
            await node.housekeeping.collect()
            held = await keys_of(bucket, "wal/")
            span = await span_of(bucket)
            assert [commit.key for commit in span.commits] == held
            assert len(held) < span.end, "nothing was collected: the test shows nothing"
            assert sum(run_.end_ordinal - run_.first_ordinal for run_ in cut(span, 4)) == span.end
            await InProcessTier(bucket).run(quiet())
            bodies = {(stream, body) for _, stream, _, _, body in await rows_in(bucket)}
            assert {body for stream, body in bodies if stream == "b"} == {
                b"b%d" % number for number in range(6)
            }
            needed = next(c.key for c in span.commits if c.ordinal >= 8)
            await bucket.delete(needed)
            with pytest.raises(Damaged, match=needed):
                await span_of(bucket)

    run(main())


def test_a_new_scan_and_an_old_one_agree_while_snapshots_come_and_nodes_are_killed():
    async def main():
        bucket = MemoryBucket()
        rng = random.Random(5)
        old = scan(bucket)
        end = 0
        for round_ in range(6):
            async with node_on(bucket, AT_ONCE) as node:
                if round_ == 0:
                    await make_kept_streams(node, "a", "b")
                for number in range(rng.randint(1, 5)):
                    await node.append(KEPT_BASIN, rng.choice("ab"), batch(f"{round_}.{number}"))
                if rng.random() < 0.6:
                    await snapshot(node)
                await crash(node)
            found = await old.span(end, **EVERYTHING)
            assert found == await span_of(bucket, end)
            assert dict(await old.names(found.end)) == dict(await named(bucket, found.end))
            end = found.end if rng.random() < 0.7 else end

    async def named(bucket, end):
        fresh = scan(bucket)
        await fresh.span(0, **EVERYTHING)
        return await fresh.names(end)

    run(main())


def test_limits_cut_a_span_and_the_next_one_goes_on_behind_it():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket)
        whole = await span_of(bucket)
        commits, first = [], 0
        reader = scan(bucket)
        while True:
            part = await reader.span(first, commits_max=4, bytes_max=3 * 1024)
            assert len(part.commits) <= 4
            assert part.size_bytes <= 3 * 1024 or len(part.commits) == 1
            commits += part.commits
            first = part.end
            if not part.is_cut:
                break
        assert (commits, first) == (whole.commits, whole.end)

    run(main())


def test_a_span_is_cut_into_runs_without_a_gap():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket)
        span = await span_of(bucket)
        big = span._replace(
            commits=[commit._replace(size_bytes=3 << 20) for commit in span.commits]
        )
        for tasks in (1, 2, 7, 1000):
            runs = cut(big, tasks)
            assert runs[0].first_ordinal == 0
            assert runs[-1].end_ordinal == span.end
            assert [r.end_ordinal for r in runs[:-1]] == [r.first_ordinal for r in runs[1:]]
            assert [key for r in runs for key in r.keys] == [c.key for c in span.commits]
            assert all(r.size_bytes <= (32 + 3) << 20 for r in runs)

    run(main())


def test_streams_and_basins_that_go_have_no_names_and_no_rows():
    async def main():
        bucket = MemoryBucket()
        wrote = Wrote([])
        async with node_on(bucket) as node:
            await make_streams(node, "stays", "goes")
            await make_streams(node, "gone", basin="second-basin")
            await node.append("second-basin", "gone", batch("x"))
            await append(node, wrote, "stays", b"a")
            await append(node, wrote, "goes", b"b")
            await node.housekeeping.snapshots.take()
            await node.delete_stream(BASIN, "goes")
            await node.delete_basin("second-basin")
            await node.housekeeping.purge()
            await node.create_stream(BASIN, CreateStream("goes"))
            again = Wrote([])
            await append(node, again, "goes", b"anew")
            reader = scan(bucket)
            span = await reader.span(0, **EVERYTHING)
            names = await reader.names(span.end)
            assert sorted(names.values()) == [(BASIN, "goes"), (BASIN, "stays")]
            assert len(names) == 2
            await InProcessTier(bucket).run(quiet())
        kept = [row for row in wrote.rows if row[1] == "stays"]
        assert await rows_in(bucket) == sorted(kept + again.rows)

    run(main())


def test_a_tombstone_is_known_by_its_header_not_by_its_size():
    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=1)
        keys = await keys_of(bucket, "wal/")
        empty = CommitHeader(1, len(keys), 1, len(keys), b"w" * 16)
        await bucket.put(wal_key(1, len(keys)), encode_commit(empty, [], [])[0])
        assert (await span_of(bucket)).end == len(keys) + 1

    run(main())
