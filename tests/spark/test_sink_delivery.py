"""The sink's delivery on a real server: what it finds there, and what it makes of it."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from bourn.client import Client, ReadStart, Settings
from bourn.clock import SystemClock
from bourn.model.record import Record, fence_record, trim_record
from bourn.spark.sink_delivery import Manner, Sink
from bourn.spark.sink_manifest import Part, make_manifest
from bourn.spark.sink_parts import Marking
from bourn.spark.sink_protocol import (
    Agree,
    Deliver,
    SinkStopped,
    Superseded,
    Tails,
    Terms,
    commit,
    parse_marker,
)
from bourn.spark.sink_staging import Staging
from tests.spark.writers import MARKING, Writer, bodies, bodies_of, records_of

BASIN = "sink-tests"


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


@pytest.fixture
def writer(settings: Settings, tmp_path: Path) -> Writer:
    return Writer(settings, tmp_path)


def delete(client: Client, stream: str) -> None:
    place = client.settings.streams
    with closing(HTTPConnection(place.host, place.port)) as link:
        headers = {"s2-basin": BASIN}
        link.request("DELETE", f"/v1/streams/{quote(stream, safe='')}", headers=headers)
        assert link.getresponse().status == 202


def test_rows_come_in_order_and_each_append_is_marked(writer, client, stream):
    writer.commit({stream: bodies(2500)})
    records = records_of(client, stream)
    assert [record.body for record in records] == bodies(2500)
    marked = [(r.seq_num, dict(r.headers)[MARKING.name]) for r in records if r.headers]
    assert [seq_num for seq_num, _ in marked] == [999, 1999, 2499]
    assert [parse_marker(value) for _, value in marked] == [
        ("q1", 0, rows, 2500) for rows in (1000, 2000, 2500)
    ]


@pytest.mark.parametrize("count", [3, 2500])
def test_where_nothing_goes_wrong_nothing_is_read_back(writer, client, stream, count, monkeypatch):
    monkeypatch.delattr("bourn.spark.sink_delivery.look_at")
    for batch in range(2):
        writer.commit({stream: bodies(count)}, batch)
    assert bodies_of(client, stream) == bodies(count) * 2


def test_a_batch_that_is_done_is_not_written_again_and_leaves_nothing_staged(
    writer, client, stream
):
    writer.commit({stream: bodies(10)})
    writer.commit({stream: list(reversed(bodies(10)))}, run="again")
    assert bodies_of(client, stream) == bodies(10)
    assert writer.staged() == ["q1/000000000000/done", "q1/000000000000/manifest"]
    for batch in range(1, 5):
        writer.commit({stream: bodies(1)}, batch)
    assert len(bodies_of(client, stream)) == 14
    assert {key.split("/")[1] for key in writer.staged()} == {"000000000003", "000000000004"}


def test_a_retry_goes_by_the_manifest_of_the_first_attempt_whatever_its_own_rows_are(
    writer, client, stream
):
    other = f"{stream} other"
    writer.agree_only(client, {stream: bodies(1500), other: bodies(3)})
    # As much of it as one append: what the dead driver had sent.
    part = writer.part({stream: bodies(1500), other: bodies(3)})
    sink_marker = b"q1 0 1000 1500"
    records = [Record(body) for body in bodies(1000)]
    records[-1] = records[-1]._replace(headers=((MARKING.name, sink_marker),))
    client.append(stream, records, match_seq_num=0)
    assert part.regions
    writer.commit({stream: list(reversed(bodies(1500)))}, run="second")
    assert bodies_of(client, stream) == bodies(1500)
    assert bodies_of(client, other) == bodies(3)


@pytest.mark.parametrize("at", [0, 1000])
def test_what_others_append_in_between_does_no_harm(writer, client, stream, at):
    client.append(stream, [Record(b"before")])
    writer.agree_only(client, {stream: bodies(1500)})
    if at:
        records = [Record(body) for body in bodies(1000)]
        records[-1] = records[-1]._replace(headers=((MARKING.name, b"q1 0 1000 1500"),))
        client.append(stream, records, match_seq_num=1)
    foreign = Record(b"foreign", ((MARKING.name, b"q2 7 9 9"), (MARKING.name, b"no marker")))
    client.append(stream, [foreign])
    writer.commit({stream: bodies(2)}, run="second")
    found = bodies_of(client, stream)
    assert [body for body in found if body not in {b"before", b"foreign"}] == bodies(1500)
    assert found.index(b"foreign") == at + 1


def test_two_queries_may_write_to_one_stream(settings, tmp_path, client, stream):
    one, two = Writer(settings, tmp_path / "one"), Writer(settings, tmp_path / "two")
    two.name = "q2"
    for batch in range(3):
        one.commit({stream: [b"one %d" % batch]}, batch)
        two.commit({stream: [b"two %d" % batch]}, batch)
    assert bodies_of(client, stream) == [
        b"%s %d" % (who, batch) for batch in range(3) for who in (b"one", b"two")
    ]


def test_a_run_that_wakes_up_late_is_told_to_end(writer, client, stream):
    for batch in range(3):
        writer.commit({stream: [b"%d" % batch]}, batch)
    with pytest.raises(Superseded, match="batch 1 is behind batch 2"):
        writer.commit({stream: [b"late"]}, 1, run="old")
    assert bodies_of(client, stream) == [b"0", b"1", b"2"]


def test_a_run_that_has_slept_since_before_the_manifests_finds_the_markers(
    writer, client, stream, settings, tmp_path
):
    """It read the tails and saw no newer batch; then others did all and swept it away."""
    terms = Terms("q1", "old")
    steps = commit(terms, 0, writer.manifest({stream: bodies(3)}, run="old"))
    assert isinstance(next(steps), Tails)
    steps.send({stream: 0})
    agree = steps.send(None)
    assert isinstance(agree, Agree)
    for batch in range(4):
        writer.commit({stream: [b"%d" % batch]}, batch)
    with Staging(str(tmp_path)) as staging:
        assert staging.create("q1/000000000000/manifest", agree.manifest.encode())
        assert staging.get("q1/000000000000/done") is None
        sink = Sink(terms, Manner(settings, 5.0), staging, SystemClock())
        step = steps.send(agree.manifest)
        assert isinstance(step, Deliver)
        with sink._opened, pytest.raises(Superseded):
            sink._deliver(step, 0)
    assert bodies_of(client, stream) == [b"0", b"1", b"2", b"3"]


def test_the_largest_records_are_written_once_though_they_have_no_room_for_a_marker(
    writer, client, stream
):
    largest = b"x" * 1_048_568
    rows = [b"first", largest, largest, b"last"]
    writer.agree_only(client, {stream: rows})
    first = Record(b"first", ((MARKING.name, b"q1 0 1 4"),))
    client.append(stream, [first])
    client.append(stream, [Record(largest)])
    writer.commit({stream: rows}, run="second")
    assert [len(body) for body in bodies_of(client, stream)] == [5, 1_048_568, 1_048_568, 4]


def test_markers_may_be_records_of_their_own(writer, client, stream):
    writer.marking = Marking(b"mark", is_record=True)
    writer.agree_only(client, {stream: bodies(1200)})
    writer.commit({stream: bodies(1)}, run="second")
    writer.commit({stream: bodies(1)}, run="third")
    records = records_of(client, stream)
    plain = [record.body for record in records if not record.headers]
    assert plain == bodies(1200)
    assert [record.seq_num for record in records if record.headers] == [999, 1201]


def test_markers_that_were_trimmed_away_stop_the_batch_unless_that_is_accepted(
    settings, tmp_path, client, stream
):
    writer = Writer(settings, tmp_path)
    writer.agree_only(client, {stream: bodies(4)})
    client.append(stream, [Record(b"a"), Record(b"b")])
    client.append(stream, [trim_record(2)])
    while client.read(stream, ReadStart(seq_num=0), 1)[0].seq_num < 2:
        pass
    with pytest.raises(SinkStopped, match=r"between 0 and 2 .*failOnDataLoss"):
        writer.commit({stream: bodies(4)}, run="second")
    Writer(settings, tmp_path, may_repeat=True).commit({stream: bodies(4)}, run="third")
    assert bodies_of(client, stream)[1:] == bodies(4)


def test_a_marker_behind_the_gap_says_all(writer, client, stream):
    writer.agree_only(client, {stream: bodies(1200)})
    marked = Record(b"b", ((MARKING.name, b"q1 0 1000 1200"),))
    client.append(stream, [Record(b"gone"), marked])
    client.append(stream, [trim_record(1)])
    while client.read(stream, ReadStart(seq_num=0), 1)[0].seq_num < 1:
        pass
    writer.commit({stream: bodies(4)}, run="second")
    assert bodies_of(client, stream)[2:] == bodies(1200)[1000:]


def test_a_marker_that_no_append_of_ours_can_have_had_is_told(writer, client, stream):
    writer.agree_only(client, {stream: bodies(4)})
    client.append(stream, [Record(b"x", ((MARKING.name, b"q1 0 3 4"),))])
    with pytest.raises(SinkStopped, match="fits no append of this manifest"):
        writer.commit({stream: bodies(4)}, run="second")


def test_a_stream_that_was_made_anew_gets_the_whole_batch(writer, client, stream):
    client.append(stream, [Record(b"old")] * 3)
    writer.agree_only(client, {stream: bodies(2)})
    delete(client, stream)
    while True:
        try:
            client.append(stream, [Record(b"new")])
            break
        except Exception:  # noqa: BLE001  its deletion is pending
            continue
    writer.commit({stream: bodies(2)}, run="second")
    assert bodies_of(client, stream) == [b"new", *bodies(2)]


def test_an_exclusive_query_fences_its_streams_and_the_run_before_ends(
    settings, tmp_path, client, stream
):
    writer = Writer(settings, tmp_path, is_exclusive=True)
    writer.commit({stream: [b"0"]}, 0, run="first")
    writer.commit({stream: [b"1"]}, 1, run="second")
    with pytest.raises(Superseded, match="newer run"):
        writer.commit({stream: [b"2"]}, 2, run="first")
    writer.commit({stream: [b"no"]}, 2, run="second")
    assert bodies_of(client, stream) == [b"first", b"0", b"second", b"1", b"2"]
    other = Writer(settings, tmp_path / "other", is_exclusive=True)
    other.name = "q2"
    with pytest.raises(SinkStopped, match="fenced by somebody else, with token 'second'"):
        other.commit({stream: [b"no"]})
    client.append(stream, [fence_record("")])
    other.commit({stream: [b"not this, but what was agreed on"]}, run="third")
    assert bodies_of(client, stream)[-2:] == [b"third", b"no"]


def test_what_the_endpoint_refuses_is_told_with_the_name_of_the_stream(settings, tmp_path):
    with Client(settings) as client:
        client.create_basin("sink-strict", None)
    strict = Settings.of("sink-strict", settings.streams.url, environ={})
    with pytest.raises(SinkStopped, match=r"stream 'absent': .*stream_not_found 404"):
        Writer(strict, tmp_path).commit({"absent": [b"x"]})


def test_rows_that_were_staged_and_are_gone_are_told(writer, settings, tmp_path, stream):
    region = writer.part({stream: bodies(3)}).regions[0]
    manifest = make_manifest("q1", "r", 0, [Part("q1/000000000000/gone", b"", (region,))])
    with Staging(str(tmp_path)) as staging:
        sink = Sink(Terms("q1", "r"), Manner(settings, 5.0), staging, SystemClock())
        with pytest.raises(SinkStopped, match="stagingLocation must be a place"):
            sink.commit(0, manifest)


def test_many_streams_are_written_side_by_side(writer, client):
    rows = {f"many/{number}": [b"%d" % number] * 2 for number in range(40)}
    writer.commit(rows)
    for name, wanted in rows.items():
        assert bodies_of(client, name) == wanted
