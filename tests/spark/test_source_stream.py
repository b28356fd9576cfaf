"""What a query reads, micro-batch by micro-batch; nothing is lost, and nothing comes twice."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from bourn.client import Client, Refused
from bourn.model.record import Record, trim_record
from bourn.spark.options import OptionError
from bourn.spark.source import DataLost
from tests.spark.readers import KEEP, Query, fill
from tests.spark.test_source_batch import wait_until_trimmed


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    Query.stop_all()


def remade(client: Client, stream: str, count: int) -> None:
    """Delete a stream, and make one of its name, with some records."""
    client._ask("DELETE", f"/streams/{quote(stream, safe='')}", client._headers("application/json"))
    while True:
        try:
            client.create_stream(stream, KEEP)
        except Refused as error:
            assert error.code in {"stream_deletion_pending", "resource_already_exists"}  # noqa: PT017
        else:
            break
    fill(client, stream, count)


def test_a_query_starts_where_it_is_told(world: Client):
    fill(world, "s", 10)
    for options, first in [
        ({}, 10),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"s": 4}'}, 4),
        ({"startingTimestamp": "7"}, 7),
    ]:
        query = Query(world, "s", **options)
        assert query.drain() == [("s", n) for n in range(first, 10)], options
        assert query.kept is not None
        assert query.kept["offsets"] == {"s": 10}
        assert query.step() is None
    with pytest.raises(OptionError, match="startingOffsets: 11 is behind the end"):
        Query(world, "s", startingOffsets='{"s": 11}').step()
    with pytest.raises(OptionError, match="there is no stream 'none'"):
        Query(world, "none").step()


def test_new_records_and_new_streams_are_found_and_a_restart_repeats_nothing(world: Client):
    fill(world, "in/a", 3)
    query = Query(world, "in/*", startingOffsets="latest")
    assert query.drain() == []
    seen: list[tuple[str, int]] = []
    for turn in range(3):
        fill(world, "in/a", 4, start=3 + 4 * turn)
        fill(world, f"in/{turn}", 2 + turn)
        world.ensure_stream(f"in/empty-{turn}")
        seen += query.drain()
        query.restart()
    fill(world, "in/empty-1", 1)
    seen += query.drain()
    assert sorted(seen) == sorted(
        [("in/a", n) for n in range(3, 15)]
        + [(f"in/{turn}", n) for turn in range(3) for n in range(2 + turn)]
        + [("in/empty-1", 0)]
    )


def test_a_micro_batch_that_is_run_again_has_the_same_rows(world: Client):
    fill(world, "in/a", 5)
    query = Query(world, "in/*", startingOffsets="earliest")
    query.step()
    start = query.kept
    fill(world, "in/a", 5, start=5)
    fill(world, "in/b", 5)
    first = query.step()
    end = query.kept
    fill(world, "in/a", 5, start=10)
    query.restart()
    assert start is not None
    assert end is not None
    assert list(query.between(start, end)) == first
    assert json.loads(json.dumps(end)) == end


def test_a_micro_batch_keeps_its_limits_and_all_streams_get_their_share(world: Client):
    fill(world, "in/a", 50)
    fill(world, "in/b", 5)
    query = Query(world, "in/*", startingOffsets="earliest", maxRecordsPerTrigger=10)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
    sizes = []
    seen = []
    while (found := query.step()) is not None:
        sizes.append(len(found))
        seen += [(row["stream"], row["seq_num"]) for row in found]
    assert sizes == [10, 10, 10, 10, 10, 5]
    assert {stream for stream, _ in seen[:10]} == {"in/a", "in/b"}
    assert sorted(seen) == [("in/a", n) for n in range(50)] + [("in/b", n) for n in range(5)]
    everything = Query(world, "in/*", startingOffsets="earliest", maxRecordsPerTrigger=10)
    assert len(everything.step(ReadAllAvailable()) or []) == 55


def test_bytes_of_a_micro_batch_are_bounded_and_a_large_record_comes_alone(world: Client):
    fill(world, "s", 20, size=90)
    world.append("s", [Record(bytes(5000))])
    fill(world, "s", 3, start=21, size=90)
    query = Query(
        world, "s", startingOffsets="earliest", maxBytesPerTrigger=1020, includeMetered="true"
    )
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(1020)
    sizes = []
    while (found := query.step()) is not None:
        sizes.append([row["metered_bytes"] for row in found])
    assert [len(size) for size in sizes] == [10, 9, 1, 1, 3]
    assert [max(size) for size in sizes].index(5008) == 3
    assert sum(sizes[0]) == 1020, "a limit can be used up"
    both = Query(
        world, "s", startingOffsets="earliest", maxBytesPerTrigger=1000, maxRecordsPerTrigger=4
    )
    assert len(both.step() or []) == 4


def test_available_now_reads_what_is_there_and_no_more(world: Client):
    fill(world, "in/a", 10)
    query = Query(world, "in/*", startingOffsets="earliest", maxRecordsPerTrigger=3)
    query.reader.prepareForTriggerAvailableNow()
    first = query.step()
    fill(world, "in/a", 10, start=10)
    fill(world, "in/late", 3)
    assert len(first or []) + len(query.drain()) == 10
    query.restart()
    assert sorted(query.all_now()) == [("in/a", n) for n in range(10, 20)] + [
        ("in/late", n) for n in range(3)
    ]


def test_a_trim_behind_a_query_is_a_loss(world: Client):
    fill(world, "s", 20)
    query = Query(world, "s", startingOffsets='{"s": 5}')
    lenient = Query(world, "s", startingOffsets='{"s": 5}', failOnDataLoss="false")
    assert query.reader.initialOffset()["offsets"] == {"s": 5}
    assert len(lenient.step(ReadMaxRows(1)) or []) == 1
    world.append("s", [trim_record(12)])
    wait_until_trimmed(world, "s", 12)
    fill(world, "s", 5, start=21)
    with pytest.raises(DataLost, match="records 5 to 11 of 's' are gone"):
        query.step()
    assert lenient.drain() == [("s", n) for n in range(12, 26)]
    late = Query(world, "s", startingOffsets='{"s": 5}', failOnDataLoss="false")
    assert late.drain() == [("s", n) for n in range(12, 26)]
    fresh = Query(world, "s", startingOffsets="earliest")
    assert fresh.drain() == [("s", n) for n in range(12, 26)]


def test_a_stream_that_was_deleted_and_made_anew_is_a_loss(home: Client):
    fill(home, "in/s", 10)
    query = Query(home, "in/*", startingOffsets="earliest")
    lenient = Query(home, "in/*", startingOffsets="earliest", failOnDataLoss="false")
    assert query.drain() == lenient.drain() == [("in/s", n) for n in range(10)]
    remade(home, "in/s", 15)
    with pytest.raises(DataLost, match=r"the stream 'in/s' was deleted and made anew"):
        query.step()
    assert lenient.drain() == [("in/s", n) for n in range(15)]
    fill(home, "in/s", 1, start=15)
    assert lenient.drain() == [("in/s", 15)]


def test_a_stream_that_is_gone_is_a_loss(home: Client):
    fill(home, "in/a", 3)
    fill(home, "in/b", 3)
    query = Query(home, "in/*", startingOffsets="earliest")
    lenient = Query(home, "in/*", startingOffsets="earliest", failOnDataLoss="false")
    query.drain()
    lenient.drain()
    home._ask("DELETE", "/streams/in%2Fa", home._headers("application/json"))
    with pytest.raises(DataLost, match="the stream 'in/a' is gone"):
        query.step()
    fill(home, "in/b", 2, start=3)
    assert lenient.drain() == [("in/b", 3), ("in/b", 4)]


def test_a_checkpoint_of_something_else_is_refused(home: Client):
    fill(home, "s", 3)
    query = Query(home, "s")
    query.kept = {"s": 3}
    with pytest.raises(ValueError, match="no offset of this source"):
        query.step()


def test_a_token_that_may_not_list_streams_reads_them_by_name(home: Client, monkeypatch):
    fill(home, "s", 3)

    def refuse(*_: object) -> Iterator[None]:
        raise Refused(403, "permission_denied", "no")

    monkeypatch.setattr(Client, "list_streams", refuse)
    query = Query(home, "s", startingOffsets="earliest")
    assert query.drain() == [("s", n) for n in range(3)]
    assert query.kept == {"offsets": {"s": 3}}
    with pytest.raises(Refused):
        Query(home, "s*").step()


def test_the_progress_of_a_query_shows_the_tails(home: Client):
    fill(home, "s", 3)
    assert Query(home, "s").reader.reportLatestOffset() == {"offsets": {"s": 3}}
