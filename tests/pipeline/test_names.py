"""Names of streams: what a snapshot says, and each change that came since."""

import pickle

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.catalog.changes import DropBasin, DropStream, PutBasin, PutStream
from bourn.catalog.rows import BasinRow, StreamRow, encode_basin_row, encode_stream_row
from bourn.layout.keys import LogPosition
from bourn.layout.snapshot import Snapshot, SnapshotMeta, StreamColumns, StreamImage
from bourn.model.config import BasinConfig, ResolvedStreamConfig
from bourn.pipeline.names import Catalog
from tests.pipeline.harness import InProcessTier, a_log
from tests.support import run


def basin(number: int, name: str, *, is_going: bool = False) -> PutBasin:
    return PutBasin(BasinRow(number, name, BasinConfig(), None, 1, 2 if is_going else None))


def stream(number: int, basin_id: int, name: str, *, is_going: bool = False) -> PutStream:
    config = ResolvedStreamConfig()
    deleted = 2 if is_going else None
    return PutStream(StreamRow(number, basin_id, name, config, None, 1, deleted))


def begun() -> Catalog:
    catalog = Catalog()
    for change in (basin(1, "basin-one"), stream(2, 1, "a"), stream(3, 1, "b")):
        catalog.apply(change)
    return catalog


@pytest.mark.parametrize(
    "change",
    [
        DropStream(2, 1),
        stream(2, 1, "a", is_going=True),
    ],
)
def test_a_stream_that_goes_has_no_name(change):
    catalog = begun()
    before = catalog.names()
    catalog.apply(change)
    assert dict(catalog.names()) == {3: ("basin-one", "b")}
    assert dict(before) == {2: ("basin-one", "a"), 3: ("basin-one", "b")}, "it was handed out"


@pytest.mark.parametrize("change", [DropBasin(1), basin(1, "basin-one", is_going=True)])
def test_streams_of_a_basin_that_goes_have_no_names(change):
    catalog = begun()
    catalog.apply(change)
    assert dict(catalog.names()) == {}


def test_names_are_the_same_at_the_other_end():
    names = begun().names()
    there = pickle.loads(pickle.dumps(names))
    assert dict(there) == dict(names)
    assert 99 not in there


def test_names_of_a_snapshot_are_those_of_its_log():
    async def main():
        found = []
        for is_clean in (True, False):
            bucket = MemoryBucket()
            await a_log(bucket, is_clean=is_clean)
            scan = InProcessTier(bucket)._scan
            span = await scan.span(0, commits_max=10**6, bytes_max=1 << 40)
            found.append(sorted(dict(await scan.names(span.end)).values()))
        assert found[0] == found[1]
        assert len(found[0]) == 3

    run(main())


def test_a_stream_that_a_snapshot_says_is_going_has_no_name():
    def image(number: int, name: str, *, is_going: bool) -> StreamImage:
        row = encode_stream_row(stream(number, 1, name, is_going=is_going).row)
        return StreamImage(number, 1, name, row, 0, 0, "", 7, 0, b"", 0 if is_going else 2**32 - 1)

    rows = [image(2, "a", is_going=True), image(3, "b", is_going=False)]
    meta = SnapshotMeta(
        LogPosition(1, 0), 0, [(1, 0)], 9, 1, [encode_basin_row(basin(1, "basin-one").row)]
    )
    catalog = Catalog(Snapshot(meta, StreamColumns.of(rows)))
    assert dict(catalog.names()) == {3: ("basin-one", "b")}
    assert catalog.living_ids().tolist() == [3]
    catalog.apply(stream(4, 1, "c"))
    assert catalog.living_ids().tolist() == [3, 4]
    catalog.apply(DropBasin(1))
    assert catalog.living_ids().tolist() == []
