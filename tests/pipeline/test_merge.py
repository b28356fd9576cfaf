"""Files become fewer and larger, and no row changes: killed anywhere, by several at once."""

import asyncio
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.bucket.delta_log import read_table
from bourn.bucket.memory import MemoryBucket
from bourn.errors import Damaged
from bourn.layout.entry import NEVER_S
from bourn.layout.history.delta import Add, parse_segment_key
from bourn.layout.history.schema import SCHEMA
from bourn.limits import MERGE_BYTES_MAX, MERGE_CLASS_BYTES_MIN, MIB, U64_MAX
from bourn.model.config import Age, BasinConfig, Infinite, StreamConfig, Timestamping
from bourn.model.patch import StreamPatch
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline import generations, rewrite
from bourn.pipeline.files import fault_in
from bourn.pipeline.generations import (
    CLASS_SECS_MIN,
    CLASSES_PER_RETENTION,
    classes_of,
    compactions,
    generations_of,
    merges,
    parts_of,
    places_of,
)
from bourn.pipeline.rewrite import Tally
from tests.pipeline.harness import (
    BASIN,
    InProcessTier,
    Killed,
    Trap,
    a_log,
    check_files,
    copied,
    merge_on,
    objects_in,
    quiet,
    retry,
    whole_rows_in,
)
from tests.support import batch, node_on, run

STAMPS = (0, 1, 1_700_000_000_000, 2**63 - 1, 2**63, U64_MAX)
UNCAPPED = BasinConfig(
    default_stream_config=StreamConfig(
        retention_policy=Infinite(), timestamping=Timestamping(uncapped=True)
    )
)


async def a_table(bucket, *, files: int = 4, streams: int = 5, seed: int = 1) -> None:
    """Leave a table of many small files: every kind of record, numbers over all of u64."""
    rng = random.Random(seed)
    async with node_on(bucket) as node:
        await node.create_basin(CreateBasin(BASIN, UNCAPPED))
        for number in range(streams):
            await node.create_stream(BASIN, CreateStream(f"s{number}"))
        for at in range(files):
            for number in rng.sample(range(streams), max(streams - 1, 1)):
                records = [
                    Record(
                        rng.randbytes(rng.choice([0, 1, 900])),
                        tuple(
                            (rng.randbytes(3), rng.randbytes(n)) for n in range(rng.randrange(4))
                        ),
                        STAMPS[min(at, len(STAMPS) - 1)],
                    )
                    for _ in range(rng.randrange(1, 30))
                ]
                await node.append(BASIN, f"s{number}", batch(*records))
            fence = Record(b"token", ((b"", b"fence"),), STAMPS[min(at, len(STAMPS) - 1)])
            await node.append(BASIN, "s0", batch(fence))
            await InProcessTier(bucket, at, tasks=1).run(quiet())


def test_many_files_become_few_and_every_row_is_what_it_was():
    async def main():
        bucket = MemoryBucket()
        await a_table(bucket, files=6)
        before = await whole_rows_in(bucket)
        old = await read_table(bucket)
        assert len(old.live) == 6
        report = await merge_on(bucket).run(quiet())
        state = await read_table(bucket)
        assert len(state.live) == 1
        assert (state.end_ordinal, state.version) == (old.end_ordinal, old.version + 1)
        assert {add.tag("level") for add in state.live.values()} == {2}
        assert await whole_rows_in(bucket) == before
        assert any(row[8] == [{"name": b"", "value": b"fence"}] for row in before)
        assert any(row[4] < 0 for row in before), "no timestamp beyond what a long can say"
        assert report.records == len(before)
        assert report.facts["files_replaced"] == 6
        await check_files(bucket)
        again = await merge_on(bucket, 2).run(quiet())
        assert again.rounds == 0

    run(main())


def test_a_merge_is_cut_into_shards_and_classes_that_never_intertwine(monkeypatch):
    for name in ("MERGE_PART_BYTES", "MERGE_CLASS_BYTES_MIN", "MERGE_SMALL_BYTES"):
        monkeypatch.setattr(generations, name, 2000 if "CLASS" in name else 40_000)

    async def main():
        bucket = MemoryBucket()
        await a_log(bucket, epochs=1)
        for seed in range(3):
            async with node_on(bucket) as node:
                for number in range(6):
                    age = [900_000, 100, 5_000][(number + seed) % 3]  # there and back again
                    patch = StreamPatch(retention_policy=Age(age))
                    await node.reconfigure_stream(BASIN, "one", patch)
                    for stream in ("one", "two", "three"):
                        await node.append(BASIN, stream, batch(*[b"x" * 300] * 12))
                    await InProcessTier(bucket, number, tasks=1).run(quiet())
            before = await whole_rows_in(bucket)
            await merge_on(bucket, seed).run(quiet())
            assert await whole_rows_in(bucket) == before
            await check_files(bucket)
        assert len((await read_table(bucket)).live) > 3, "one file: the test shows nothing"

    run(main())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_merge_that_is_killed_at_any_step_has_done_all_or_nothing(after):
    async def main():
        table = MemoryBucket()
        await a_table(table, files=3, streams=3)
        rows = await whole_rows_in(table)
        whole = Trap(await copied(table))
        await merge_on(whole).run(quiet())
        for at, step in enumerate(whole.operations):
            if step.startswith(("get", "list")):
                continue  # between two changes it does not matter where
            bucket = await copied(table)
            with pytest.raises(Killed):
                await merge_on(Trap(bucket, at, after=after)).run(quiet())
            assert await whole_rows_in(bucket) == rows, f"killed at {step}"
            await merge_on(bucket, 2).run(quiet())
            assert await whole_rows_in(bucket) == rows
            assert len((await read_table(bucket)).live) == 1

    run(main())


def test_of_two_merges_at_once_one_comes_too_late_and_leaves_nothing():
    async def main():
        bucket = MemoryBucket()
        await a_table(bucket, files=4)
        rows = await whole_rows_in(bucket)
        reports = await asyncio.gather(
            *(merge_on(Trap(bucket), seed).run(quiet()) for seed in (1, 2, 3))
        )
        assert sum(report.superseded for report in reports) == 2
        assert await whole_rows_in(bucket) == rows
        assert len((await read_table(bucket)).live) == 1
        segments = [key for key in await objects_in(bucket, "history/") if parse_segment_key(key)]
        assert len(segments) == 2 * (4 + 1), "the losers have left what they wrote"

    run(main())


def test_tier_goes_on_while_files_are_merged():
    async def main():
        bucket = MemoryBucket()
        await a_table(bucket, files=4)
        async with node_on(bucket) as node:
            for number in range(8):
                await node.append(BASIN, f"s{number % 3}", batch(b"later %d" % number))
        tier = InProcessTier(Trap(bucket), 7)
        reports = await asyncio.gather(merge_on(Trap(bucket)).run(quiet()), tier.run(quiet()))
        assert all(report.rounds for report in reports)
        rows = await whole_rows_in(bucket)
        alone = await copied(bucket)
        for key in await objects_in(alone, "history/"):
            await alone.delete(key)
        await InProcessTier(alone, 8).run(quiet())
        assert rows == await whole_rows_in(alone)
        await check_files(bucket)

    run(main())


@pytest.mark.parametrize("what", ["parquet", "sidecar", "missing"])
def test_a_damaged_file_stops_the_merge_and_is_named(what):
    async def main():
        bucket = MemoryBucket()
        await a_table(bucket, files=2)
        rows = (await read_table(bucket)).live
        add = next(iter(rows.values()))
        key = add.index_key if what == "sidecar" else add.key
        data = bytearray(await bucket.get(key))
        bodies = [row[9] for row in await whole_rows_in(bucket) if len(row[9]) == 900]
        # A bit that Parquet would not miss: in a body that lies there as it is.
        places = [data.find(body) for body in bodies if body in data]
        data[places[0] + 450 if places else len(data) // 3] ^= 1
        assert bool(places) is (what != "sidecar")
        await bucket.delete(key)
        if what != "missing":
            await bucket.put(key, bytes(data))
        with pytest.raises(Damaged, match=key):
            await merge_on(bucket).run(quiet())
        assert (await read_table(bucket)).live == rows

    run(main())


def an_add(first: int, end: int, weight: int = MIB, name: str = "") -> Add:
    tags = {"first_ordinal": first, "end_ordinal": end, "metered_bytes": weight, "rows": 0}
    return Add(
        path=name or f"{first}-{end}.parquet",
        partition_values={},
        size=weight,
        modification_time=0,
        data_change=True,
        tags={f"bourn.{tag}": str(value) for tag, value in tags.items()},
    )


def test_nothing_is_replaced_unless_every_row_is_accounted_for():
    adds = [an_add(0, 1, name="a"), an_add(1, 2, name="b")]
    whole = [Tally("a", 0, 0), Tally("b", 0, 0)]
    assert fault_in(adds, [], whole) == ""
    assert "nothing is replaced" in fault_in(adds, [], whole[:1])
    assert "nothing is replaced" in fault_in(adds, [], [*whole, whole[0]])
    assert "nothing is replaced" in fault_in(adds, [], [whole[0], Tally("b", 1, 1)])
    assert fault_in(adds, [], [whole[0], Tally("b", 0, 0, "no disk")]) == "no disk"
    more = [an_add(0, 1, name="a")]
    assert "were read" in fault_in(more, [], [Tally("a", 0, 5)])


sizes = st.lists(st.integers(1, 2 * MERGE_BYTES_MAX), max_size=40)


@given(sizes, st.integers(2, 6))
def test_neighbours_are_merged_until_it_ends_and_few_are_left(weights, width):
    adds = [an_add(at, at + 1, weight) for at, weight in enumerate(weights)]
    for _ in range(200):
        found = generations_of(adds)
        planned = merges(found, width)
        if not planned:
            break
        for one in planned:
            inside = [
                add
                for add in adds
                if one.first_ordinal <= add.tag("first_ordinal") < one.end_ordinal
            ]
            assert sorted(add.path for add in one.files) == sorted(add.path for add in inside)
            joined = an_add(one.first_ordinal, one.end_ordinal, one.weight)
            adds = [add for add in adds if add not in inside]
            adds.append(joined)
    else:
        raise AssertionError("it never ends")
    small = [found for found in generations_of(adds) if found.weight < MERGE_BYTES_MAX / 2**20]
    assert sum(found.weight for found in generations_of(adds)) == sum(weights)
    assert len(small) <= len(weights)


def test_many_equal_files_leave_few_generations():
    adds: list[Add] = []
    for at in range(500):
        adds.append(an_add(at, at + 1, 16 * MIB))
        for one in merges(generations_of(adds), 4):
            adds = [add for add in adds if add not in one.files]
            adds.append(an_add(one.first_ordinal, one.end_ordinal, one.weight))
    assert len(adds) <= 4 + 10
    assert max(add.tag("metered_bytes") for add in adds) >= MERGE_BYTES_MAX // 4


def test_small_neighbours_are_compacted_and_large_ones_left_alone():
    adds = [an_add(at, at + 1, weight) for at, weight in enumerate([1, 1, 64 * MIB, 1, 64 * MIB])]
    assert [len(one.files) for one in compactions(generations_of(adds))] == [2]
    together = [an_add(0, 9, 10, "a"), an_add(0, 9, 10, "b")]
    assert [len(one.files) for one in compactions(generations_of(together))] == [2]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),  # stream
        st.integers(1_700_000_000, 1_700_900_000),  # expires
        st.sampled_from([0, 1, 3600, 604_800, U64_MAX]),  # retention
        st.integers(1, 2 * MERGE_CLASS_BYTES_MIN),
    ),
    max_size=60,
)


@given(ROWS)
def test_classes_expire_together_and_a_stream_never_goes_back(rows):
    rows.sort(key=lambda row: row[0])
    ids = np.array([row[0] for row in rows], np.uint64)
    retentions = np.array([row[2] for row in rows], np.uint64)
    expires = np.array([row[1] if row[2] else NEVER_S for row in rows], np.int64)
    weights = np.array([row[3] for row in rows], np.int64)
    classes = classes_of(ids, expires, retentions, weights)
    assert len(classes) == len(rows)
    assert set(classes.tolist()) == set(range(len(set(classes.tolist()))))
    for stream in set(ids.tolist()):
        own = classes[ids == stream]
        assert np.all(own[1:] >= own[:-1])
    for number in set(classes.tolist()):
        if len(set(classes.tolist())) > 1:
            assert weights[classes == number].sum() >= MERGE_CLASS_BYTES_MIN


def test_what_comes_behind_a_longer_retention_stays_behind_it():
    expires = np.array([NEVER_S, 1_700_000_000, 1_700_000_000, NEVER_S], np.int64)
    retentions = np.array([0, 3600, 3600, 0], np.uint64)
    weights = np.full(4, 64 * MIB, np.int64)
    one = classes_of(np.zeros(4, np.uint64), expires, retentions, weights)
    assert one.tolist() == [0, 0, 0, 0]
    two = classes_of(np.array([1, 2, 3, 3], np.uint64), expires, retentions, weights)
    assert two.tolist() == [1, 0, 0, 1]


def test_a_class_is_an_eighth_of_the_retention_wide():
    week = 604_800
    expires = np.arange(0, 2 * week, 3600, dtype=np.int64) + 1_700_000_000
    weights = np.full(len(expires), 64 * MIB, np.int64)
    many = np.arange(len(expires)).astype(np.uint64)  # a stream each: nothing holds it back
    classes = classes_of(many, expires, np.full(len(expires), week, np.uint64), weights)
    for number in range(int(classes.max()) + 1):
        own = expires[classes == number]
        assert own.max() - own.min() <= max(week / CLASSES_PER_RETENTION, CLASS_SECS_MIN)
    assert int(classes.max()) + 1 <= 4 * CLASSES_PER_RETENTION + 1


@given(
    st.lists(st.tuples(st.integers(0, U64_MAX), st.integers(0, U64_MAX)), max_size=30),
    st.lists(st.tuples(st.integers(0, U64_MAX), st.integers(0, U64_MAX)), max_size=6),
)
def test_a_cut_falls_before_the_first_row_that_is_not_below_it(rows, cuts):
    rows, cuts = sorted(set(rows)), sorted(set(cuts))
    ids = np.array([row[0] for row in rows], np.uint64)
    seq_nums = np.array([row[1] for row in rows], np.uint64)
    assert places_of(cuts, ids, seq_nums) == [sum(row < cut for row in rows) for cut in cuts]


def test_pieces_are_small_and_together_they_are_the_rows(monkeypatch):
    monkeypatch.setattr(rewrite, "MERGE_PIECE_BYTES", 1500)

    async def main():
        bucket = MemoryBucket()
        await a_table(bucket, files=1)
        add = next(iter((await read_table(bucket)).live.values()))
        rows = await rewrite.read_rows(bucket, add, retry())
        middle = rows.num_rows // 2
        cuts = [(rows["stream_id"][middle].as_py(), rows["seq_num"][middle].as_py()), (10**6, 0)]
        pieces = list(rewrite.pieces_of(rows, cuts))
        tables = [pa.ipc.open_stream(piece).read_all() for _, piece in pieces]
        assert pa.concat_tables(tables).cast(SCHEMA).equals(rows.cast(SCHEMA))
        assert {part for part, _ in pieces} == {0, 1}
        assert sum(len(table) for (part, _), table in zip(pieces, tables, strict=True) if not part)
        assert len(pieces) > 4
        assert all(rewrite.weights_of(table[:-1]).sum() <= 1500 for table in tables)

    run(main())


def test_parts_are_as_many_as_memory_wants_and_cores_can_use():
    assert parts_of(0, 8) == 1
    assert parts_of(10 * MIB, 8) == 1
    assert parts_of(40 * MIB, 4) == 4
    assert parts_of(1024 * MIB, 2) == 16
