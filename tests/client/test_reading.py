"""Read sessions: where they start and end, what they skip, and how they go on."""

import threading
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pytest

from bourn.client import Client, ConnectionLost, ReadSession, ReadStart, Refused, Unwritten
from bourn.client import reading as module
from bourn.client.failures import NotS2
from bourn.layout.arrow import Columns, Gap, encode_inputs
from bourn.model.record import Record, SequencedRecord, StreamPosition, trim_record
from bourn.wire.compression import Compression
from bourn.wire.protobuf import encode_tail
from tests.client.conftest import Connect
from tests.client.proxy import Proxy
from tests.client.script import Scripted, answer, frame, refusal, session
from tests.layout.test_arrow import message_of

START = ReadStart(seq_num=0)


def fill(client: Client, stream: str, count: int, size: int = 10) -> list[bytes]:
    bodies = [b"%0*d" % (size, number) for number in range(count)]
    with client.append_session(stream) as appends:
        for each in encode_inputs(pa.array(bodies), None, pa.array(range(count), pa.int64())):
            appends.submit(each)
    return bodies


def bodies_of(found: ReadSession) -> list[bytes]:
    bodies: list[Any] = []
    for batch in found:
        batch.validate(full=True)
        bodies += batch.column("body").to_pylist()
    return bodies


def numbers_of(found: ReadSession) -> list[Any]:
    return [number for batch in found for number in batch.column("seq_num").to_pylist()]


@pytest.mark.parametrize("compression", list(Compression))
def test_all_records_come_in_large_batches(connect: Connect, client, stream, compression):
    bodies = fill(client, stream, 25_000)
    found = connect(compression=compression).read_session(stream, START)
    sizes = []
    seen = []
    for batch in found:
        sizes.append(batch.num_rows)
        seen += batch.column("body").to_pylist()
    assert seen == bodies
    assert len(sizes) <= 4
    assert (found.next_seq_num, found.gap) == (25_000, None)


def test_a_session_starts_and_ends_where_it_is_told(client: Client, stream: str):
    bodies = fill(client, stream, 3000)
    cases: list[tuple[ReadStart, dict[str, Any], list[bytes]]] = [
        (ReadStart(seq_num=1990), {"end_seq_num": 2010}, bodies[1990:2010]),
        (ReadStart(timestamp=2500), {}, bodies[2500:]),
        (ReadStart(timestamp=2500), {"end_seq_num": 2600}, bodies[2500:2600]),
        (ReadStart(tail_offset=7), {}, bodies[-7:]),
        (ReadStart(tail_offset=7), {"wait_secs": 1}, bodies[-7:]),
        (ReadStart(seq_num=10), {"count": 5}, bodies[10:15]),
        (ReadStart(seq_num=10), {"until": 20}, bodies[10:20]),
        (ReadStart(seq_num=2990), {"end_seq_num": 5000}, bodies[2990:]),
        (ReadStart(seq_num=50), {"end_seq_num": 50}, []),
        (ReadStart(seq_num=3000), {}, []),
        (ReadStart(seq_num=3000), {"count": 1}, []),
        (ReadStart(tail_offset=0), {}, []),
        (ReadStart(timestamp=9999), {"count": 1}, []),
    ]
    for start, options, expected in cases:
        assert bodies_of(client.read_session(stream, start, **options)) == expected, start
    with pytest.raises(Unwritten):
        bodies_of(client.read_session(stream, ReadStart(seq_num=3001)))
    with pytest.raises(Refused) as refused:
        bodies_of(client.read_session("none", START))
    assert refused.value.code == "stream_not_found"


def test_only_the_columns_that_are_wanted_are_made(client: Client, stream: str):
    fill(client, stream, 3)
    wanted = Columns(headers=False, body=False, metered_bytes=True)
    (batch,) = client.read_session(stream, START, columns=wanted)
    assert batch.schema.names == ["seq_num", "timestamp", "metered_bytes"]
    assert batch.column("metered_bytes").to_pylist() == [18, 18, 18]


def test_what_was_trimmed_is_skipped_and_told(client: Client, stream: str):
    fill(client, stream, 100)
    client.append(stream, [trim_record(40)])
    found = client.read_session(stream, ReadStart(seq_num=10), end_seq_num=60)
    assert numbers_of(found) == list(range(40, 60)), "records behind the end must not come"
    assert found.gap == Gap(10, 40)
    found = client.read_session(stream, ReadStart(seq_num=10), end_seq_num=30)
    assert numbers_of(found) == []
    assert (found.next_seq_num, found.gap) == (10, None)


@pytest.mark.parametrize("cut", [1, 100, 400, 5_000, 70_000])
def test_a_session_goes_on_where_its_connection_broke(
    connect: Connect, client: Client, server, stream: str, cut: int
):
    bodies = fill(client, stream, 12_000)
    with Proxy(server.port, cut, cut, 3 * cut) as proxy:
        found = connect(proxy.url).read_session(stream, START, end_seq_num=11_999)
        assert bodies_of(found) == bodies[:-1]
        assert proxy.connections == (3 if cut == 70_000 else 4)
        assert found.gap is None
        assert proxy.heads[-1].count(b"seq_num=") == 1
        asked = [dict(parse_qsl(head.split()[1].split(b"?")[1])) for head in proxy.heads]
        assert {int(one[b"seq_num"]) + int(one[b"count"]) for one in asked} == {11_999}


def test_a_session_gives_up_where_nothing_comes_any_more(connect: Connect):
    broken = session(is_ended=False)
    with Scripted(broken, broken, broken, broken) as scripted, pytest.raises(ConnectionLost):
        list(connect(scripted.url).read_session("s", START))
    with Scripted(
        session(refusal(503, b'{"code":"unavailable","message":"m"}')),
        answer(404, b'{"code":"stream_not_found","message":"gone"}'),
    ) as scripted:
        with pytest.raises(Refused, match="gone"):
            list(connect(scripted.url).read_session("s", START))
        assert len(scripted.asked) == 2


def test_attempts_begin_anew_with_every_record(connect: Connect):
    one = [
        session(frame(message_of([SequencedRecord(n, 0, b"x")])), is_ended=False) for n in range(9)
    ]
    with Scripted(*one, session()) as scripted:
        found = connect(scripted.url).read_session("s", START)
        assert numbers_of(found) == list(range(9))
        assert b"seq_num=9&" in scripted.asked[-1]


def test_a_server_that_is_about_to_stop_is_left_once_and_for_no_loss(connect: Connect):
    first = frame(message_of([SequencedRecord(0, 0, b"a")]), reconnect=True)
    second = frame(message_of([SequencedRecord(1, 0, b"b")]), reconnect=True)
    third = frame(message_of([SequencedRecord(2, 0, b"c")]))
    drained = answer(503, b'{"code":"server_draining","message":"m"}')
    with Scripted(session(first), drained, session(second, third)) as scripted:
        found = connect(scripted.url).read_session("s", START)
        assert bodies_of(found) == [b"a", b"b", b"c"]
        assert len(scripted.asked) == 3


def test_a_follower_gets_what_comes_as_it_comes(client: Client, connect: Connect, stream: str):
    found = client.read_session(stream, ReadStart(tail_offset=0), wait_secs=None)
    writer, other = connect(), connect()
    seen: list[Any] = []

    def follow() -> None:
        for batch in found:
            seen.extend(batch.column("body").to_pylist())
            if len(seen) < 3:
                writer.append(stream, [Record(b"%d" % len(seen))])
            else:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    while found.tail is None and thread.is_alive():
        thread.join(0.01)
    other.append(stream, [Record(b"0")])
    thread.join(30)
    assert seen == [b"0", b"1", b"2"]
    found.close()


def test_a_heartbeat_says_where_to_go_on(connect: Connect):
    beat = frame(encode_tail(StreamPosition(17, 4)))
    with Scripted(session(beat, is_ended=False), session()) as scripted:
        found = connect(scripted.url).read_session("s", ReadStart(tail_offset=0), wait_secs=None)
        assert bodies_of(found) == []
        assert found.tail == (17, 4)
        assert b"?seq_num=17" in scripted.asked[1]


@pytest.mark.parametrize(
    "said",
    [
        session(frame(b"\x0a\x05x")),
        session(b"\x00\x00\x00\x00"),
        session(frame(message_of([SequencedRecord(5, 0, b"x")])) * 2),
        session(b"\x00\x00\x05\x00ab"),
    ],
)
def test_frames_that_are_none_are_refused(connect: Connect, said: bytes):
    with Scripted(said) as scripted, pytest.raises(NotS2, match="no proper frames"):
        list(connect(scripted.url).read_session("s", START))


def test_large_records_come_a_few_at_a_time(client: Client, stream: str, monkeypatch):
    monkeypatch.setattr(module, "CLIENT_BATCH_BYTES", 2**20)
    for number in range(6):
        client.append(stream, [Record(b"%d" % number + bytes(2**20 - 9))])
    sizes = [batch.num_rows for batch in client.read_session(stream, START)]
    assert sizes == [1] * 6
