"""A bucket of scaled history is one that a server starts on, and reads every record of."""

import asyncio
import random

import pytest

from bench.http.server import BASIN
from bench.scaling import tables
from bourn.bucket.local import LocalBucket
from bourn.engine.node import Node
from bourn.layout.history.index import decode_index
from bourn.log.cursor import make_request


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "STREAMS_PER_GB": 4,
        "SHARDS": 2,
        "GENERATIONS": 2,
        "BATCHES": 2,
        "RECORDS_IN_FILE": 2 * tables.BATCH_RECORDS,
        "RECORDS": 4 * tables.BATCH_RECORDS,
        "POOL_BODIES": 1000,
    }.items():
        monkeypatch.setattr(tables, name, value)


def test_every_stream_of_every_copy_can_be_read_from_its_first_record_to_its_last(small, tmp_path):
    said: list[str] = []
    first = tables.encode_first(tmp_path / "store", random.Random(1), said.append)
    facts = tables.make_bucket(tmp_path / "b", tmp_path / "store", first, 3, said.append)
    assert facts["streams"] == 12
    assert facts["segments"] == 12
    assert facts["records"] == 12 * tables.RECORDS
    assert len(list((tmp_path / "store").glob("*.parquet"))) == 12, "each file is one of its own"

    async def read() -> None:
        bucket = LocalBucket(tmp_path / "b")
        node = await Node.open(bucket)
        for number in range(12):
            name = tables.stream_name(number)
            assert (await node.check_tail(BASIN, name)).seq_num == tables.RECORDS
            for seq_num in (0, tables.RECORDS // 2 - 1, tables.RECORDS // 2, tables.RECORDS - 1):
                found = await node.read(BASIN, name, make_request(seq_num=seq_num, count=1))
                (record,) = found.records()
                assert record.seq_num == seq_num
                assert record.body.startswith(b'{"at":')
        assert node.history.segments == 12
        assert node.history.segments_missing == 0
        await node.close()
        await bucket.close()

    asyncio.run(read())


def test_a_shifted_sidecar_differs_in_its_streams_alone(small, tmp_path):
    (file, *_) = tables.encode_first(tmp_path / "store", random.Random(1), lambda _: None)
    before = decode_index(file.sidecar, "k")
    after = decode_index(tables.shifted(file.sidecar, 1000), "k")
    assert len(after) == len(before)
    for place in range(len(before)):
        old, new = before.block(place), after.block(place)
        assert new == old._replace(stream_id=old.stream_id + 1000)
    for at in range(before.row_groups):
        assert after.row_group(at) == before.row_group(at)
