"""What a source does where streams, options and servers change under it."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bourn.client import Client, Refused, Settings
from bourn.model.record import Record, fence_record
from bourn.spark.datasource import BournDataSource
from bourn.spark.source import DataLost
from bourn.spark.source_look import Looker
from tests.client.proxy import Proxy
from tests.client.script import answer
from tests.spark.readers import KEEP, Query, fill, numbers, options_of, rows
from tests.spark.test_source_stream import remade

LIMITED = answer(429, b'{"code":"rate_limited","message":"slow"}', "retry-after-ms: 20")
FAULTS = (
    LIMITED,
    answer(500, b'{"code":"storage","message":"no"}'),
    answer(503, b"a gateway's own words"),
    answer(502, b'{"code":"bad_gateway","message":"of somebody else"}'),
)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    Query.stop_all()


def delete(client: Client, stream: str) -> None:
    path = f"/streams/{quote(stream, safe='')}"
    client._ask("DELETE", path, client._headers("application/json"))


def planned(client: Client, stream: str, **options: Any) -> Iterator[int]:
    """Plan a batch read; its rows are read once they are asked for."""
    source = BournDataSource(options_of(client, stream, **options))
    reader: Any = source.reader(StructType([StructField("seq_num", LongType())]))
    parts = reader.partitions()
    return (
        row["seq_num"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()
    )


def test_a_query_that_is_started_again_with_fewer_streams_or_more_goes_on(world: Client):
    for name in ("in/a", "in/b"):
        fill(world, name, 3)
    query = Query(world, "in/a,in/b", startingOffsets="earliest")
    assert len(query.drain()) == 6
    fill(world, "in/a", 2, start=3)
    fill(world, "in/b", 2, start=3)
    fill(world, "in/c", 2)
    query.restart(stream="in/a, in/c", startingOffsets="latest")
    assert sorted(query.drain()) == [("in/a", 3), ("in/a", 4), ("in/c", 0), ("in/c", 1)]
    query.restart(stream="in/*", maxRecordsPerTrigger=3)
    assert query.drain() == [("in/b", 3), ("in/b", 4)], "it goes on where it was left"


def test_a_stream_that_is_not_chosen_any_more_may_be_deleted(home: Client):
    fill(home, "a", 3)
    fill(home, "b", 3)
    query = Query(home, "a,b", startingOffsets="earliest")
    query.drain()
    delete(home, "b")
    query.restart(stream="a")
    fill(home, "a", 1, start=3)
    assert query.drain() == [("a", 3)]


def test_a_stream_made_anew_that_ends_where_the_old_one_did_is_noticed(home: Client):
    fill(home, "s", 4)
    query = Query(home, "s", startingOffsets="earliest")
    lenient = Query(home, "s", startingOffsets="earliest", failOnDataLoss="false")
    assert query.drain() == lenient.drain() == [("s", n) for n in range(4)]
    remade(home, "s", 4)
    with pytest.raises(DataLost, match="'s' was deleted and made anew"):
        query.step()
    assert lenient.drain() == [("s", n) for n in range(4)]
    assert lenient.step() is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "'s' is gone"),
        (2, "'s' ends at 2, before record 5: it was made anew"),
        (7, "records 7 to 9 of 's' are gone"),
    ],
)
def test_a_stream_that_goes_between_the_plan_and_the_read_is_a_loss(home, count, text):
    fill(home, "s", 10)
    asked = {"startingOffsets": '{"s": 5}'}
    strict = planned(home, "s", **asked)
    lenient = planned(home, "s", failOnDataLoss="false", **asked)
    if count is None:
        delete(home, "s")
    else:
        remade(home, "s", count)
    with pytest.raises(DataLost, match=text):
        list(strict)
    assert list(lenient) == list(range(5, count or 0))


@pytest.mark.parametrize("count", [None, 2])
def test_a_stream_that_goes_while_its_bytes_are_counted_is_told_of_by_the_next_look(
    home: Client, monkeypatch, count
):
    fill(home, "in/a", 10)
    fill(home, "in/b", 10)
    limits = {"startingOffsets": '{"in/a": 5}', "maxBytesPerTrigger": 20}
    lenient = Query(home, "in/*", failOnDataLoss="false", **limits)
    strict = Query(home, "in/*", **limits)
    strict.kept = strict.reader.initialOffset()
    fitting = Looker.fitting

    def late(self: Looker, name: str, *more: int) -> tuple[int, int]:
        if name == "in/a":
            monkeypatch.setattr(Looker, "fitting", fitting)
            delete(home, name) if count is None else remade(home, name, count)
        return fitting(self, name, *more)

    monkeypatch.setattr(Looker, "fitting", late)
    left = [("in/a", n) for n in range(count or 0)] + [("in/b", n) for n in range(10)]
    assert sorted(lenient.drain()) == left
    with pytest.raises(DataLost, match=r"'in/a' (is gone|was deleted and made anew)"):
        strict.step()


def test_an_empty_stream_has_no_rows_wherever_a_read_starts(world: Client):
    world.create_stream("s", KEEP)
    for start in (
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"s": 0}'},
        {"startingTimestamp": 0},
        {"startingTimestamp": 2**64 - 1},
    ):
        assert rows(world, "s", **start) == []
        assert rows(world, "s", minPartitions=7, endingTimestamp=5, **start) == []
        assert Query(world, "s", **start).drain() == []


@pytest.mark.parametrize("is_bounded", [False, True])
def test_records_that_come_while_a_start_is_looked_for_are_no_error(
    home: Client, monkeypatch, is_bounded
):
    fill(home, "s", 3)
    first = Looker._first

    def late(self: Looker, client: Client, name: str, *more: Any) -> int:
        monkeypatch.setattr(Looker, "_first", first)
        fill(home, name, 4, start=3)
        return first(self, client, name, *more)

    query = Query(home, "s", startingTimestamp=5)
    if is_bounded:
        query.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(Looker, "_first", late)
    assert query.drain() == [("s", 5), ("s", 6)]
    fill(home, "t", 3)
    monkeypatch.setattr(Looker, "_first", late)
    assert numbers(home, "t", startingTimestamp=5) == [], "it takes what was there"


def test_timestamps_of_64_bits_are_places_to_start_and_end(world: Client):
    world.create_stream("s", KEEP)
    stamps = (0, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
    world.append("s", [Record(b"x", (), stamp) for stamp in stamps])
    for index, stamp in enumerate(stamps):
        assert numbers(world, "s", startingTimestamp=stamp) == list(range(index, 5))
        assert numbers(world, "s", endingTimestamp=stamp) == list(range(index))
    later = Query(world, "s", startingTimestamp=2**64 - 1)
    assert later.drain() == [("s", 4)]


def test_more_tasks_than_records_are_as_many_as_records(world: Client):
    fill(world, "s", 5)
    source = BournDataSource(options_of(world, "s", minPartitions=1000))
    assert len(source.reader(source.schema()).partitions()) == 5
    assert numbers(world, "s", minPartitions=1000) == list(range(5))


def test_command_records_come_as_they_are(world: Client):
    fill(world, "s", 1)
    world.append("s", [fence_record("token")])
    fence = rows(world, "s")[1]
    assert fence["headers"] == [{"name": b"", "value": b"fence"}]
    assert fence["body"] == b"token"


def test_a_server_that_limits_and_fails_is_asked_again(server, home: Client):
    fill(home, "s", 50)
    for faults in (FAULTS, [fault for each in FAULTS for fault in (b"", each)]):
        with Proxy(server.port, answers=faults) as way:
            settings = Settings.of(home.settings.basin, way.url, environ={})
            with Client(settings) as client:
                found = numbers(client, "s", minPartitions=5, retryTimeout=30)
                assert found == list(range(50))
            assert way.unsaid == 0


def test_a_server_that_only_fails_is_given_up_with_its_own_words(server, home: Client):
    fill(home, "s", 5)
    with Proxy(server.port, answers=[LIMITED] * 10) as way:
        client = Client(Settings.of(home.settings.basin, way.url, environ={}))
        with client, pytest.raises(Refused, match=r"slow \(rate_limited 429\)"):
            rows(client, "s", retryTimeout=0)
        assert way.unsaid == 7


@pytest.mark.long
def test_a_prefix_may_match_thousands_of_streams(home: Client):
    names = [f"many/{number:05}" for number in range(2500)]
    for name in names:
        home.create_stream(name, KEEP)
        home.append(name, [Record(b"1"), Record(b"2")])
    query = Query(home, "many/*", startingOffsets="earliest", maxRecordsPerTrigger=4000)
    seen = query.drain()
    assert sorted(seen) == [(name, number) for name in names for number in range(2)]
    assert sorted(rows(home, "many/*", {"seq_num": LongType()}), key=str) == (
        [{"seq_num": 0}] * 2500 + [{"seq_num": 1}] * 2500
    )
