"""Read sessions over frames: history, then a heartbeat, then whatever comes; and how they end."""

from collections.abc import Callable

import pytest

from bourn.limits import MIB
from tests.http.clients import SESSION, Api, Call, rest_of
from tests.http.conftest import BASIN
from tests.http.frames import GZIP, ZSTD, Frame, Frames
from tests.http.server import Server, eventually

STREAMS = "/v1/streams"


def opened(
    api: Api, stream: str, query: str, headers: dict[str, str] | None = None
) -> tuple[Call, Frames]:
    path = f"{STREAMS}/{stream}/records?{query}"
    call = api.open("GET", path, SESSION | (headers or {}), body=b"")
    assert call.status == 200
    return call, Frames(call)


def bodies(frame: Frame) -> list[bytes]:
    return [record.body for record in frame.batch.records]


def is_heartbeat(frame: Frame, seq_num: int) -> bool:
    batch = frame.batch
    return not batch.records and batch.HasField("tail") and batch.tail.seq_num == seq_num


@pytest.fixture
def writer(another: Callable[[], Api]) -> Api:
    return another()


def test_the_head_comes_at_once_with_the_headers_of_a_stream(api: Api, stream: str) -> None:
    call, frames = opened(api, stream, "seq_num=0")
    fields = dict(call.fields)
    fields.pop("date")
    assert fields.pop("server", "bourn") == "bourn"
    if api.version == "h1":
        assert fields.pop("transfer-encoding") == "chunked"
    assert fields == {
        "content-type": "s2s/proto",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    first = frames.take()
    assert (first.flag, first.payload) == (0, b"\x12\x00"), "an empty stream has its tail at {0,0}"
    call.abort()


def test_history_comes_first_then_a_heartbeat_then_what_is_appended(
    api: Api, writer: Api, stream: str
) -> None:
    writer.append(stream, "a", "b")
    writer.append(stream, "c")
    call, frames = opened(api, stream, "seq_num=1")
    history = frames.take()
    assert bodies(history) == [b"b", b"c"]
    assert not history.batch.HasField("tail")
    assert is_heartbeat(frames.take(), 3)
    for index in range(3):
        end = writer.append(stream, f"live {index}").json["end"]
        live = frames.take()
        assert bodies(live) == [b"live %d" % index]
        tail = live.batch.tail
        assert {"seq_num": tail.seq_num, "timestamp": tail.timestamp} == end
    call.abort()


def test_records_come_as_they_were_appended(api: Api, writer: Api, stream: str) -> None:
    document = {
        "records": [
            {"timestamp": 3, "headers": [["bg==", "/w=="], ["bg==", ""]], "body": "AP8="},
            {"timestamp": 4},
        ]
    }
    writer.post(f"{STREAMS}/{stream}/records", document, {"s2-format": "base64"})
    _, frames = opened(api, stream, "seq_num=0&count=2")
    first, second = frames.take().batch.records
    assert (first.seq_num, first.timestamp, first.body) == (0, 3, b"\x00\xff")
    assert [(h.name, h.value) for h in first.headers] == [(b"n", b"\xff"), (b"n", b"")]
    assert (second.seq_num, second.timestamp, second.body) == (1, 4, b"")
    assert frames.next() is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0&count=100", 5),
        ("seq_num=0&count=5", 5),
        ("seq_num=0&count=3", 3),
        ("seq_num=0&bytes=18", 2),
        ("seq_num=0&bytes=8", 0),
        ("seq_num=0&until=103", 3),
        ("seq_num=0&until=100", 0),
        ("seq_num=0&wait=0", 5),
        ("seq_num=0&count=100&wait=0", 5),
        ("tail_offset=2&count=9", 2),
        ("timestamp=104&bytes=1000", 1),
        ("seq_num=77&count=0", 0),
        ("seq_num=77&bytes=0", 0),
    ],
)
def test_a_bounded_session_ends_cleanly(api: Api, stream: str, query: str, expected: int) -> None:
    records = [{"timestamp": 100 + index, "body": str(index)} for index in range(5)]
    assert api.post(f"{STREAMS}/{stream}/records", {"records": records}).status == 200
    _, frames = opened(api, stream, query)
    found = frames.rest()
    assert sum(len(frame.batch.records) for frame in found) == expected
    assert not any(frame.batch.HasField("tail") for frame in found)


def test_a_session_that_waits_ends_cleanly_when_nothing_comes(api: Api, stream: str) -> None:
    _, frames = opened(api, stream, "seq_num=0&wait=1")
    assert is_heartbeat(frames.take(), 0)
    assert frames.next() is None


def test_a_session_with_a_count_follows_until_it_has_it(api: Api, writer: Api, stream: str) -> None:
    _, frames = opened(api, stream, "seq_num=0&count=3&wait=60")
    assert is_heartbeat(frames.take(), 0)
    writer.append(stream, "a", "b")
    assert bodies(frames.take()) == [b"a", b"b"]
    writer.append(stream, "c", "d")
    last = frames.take()
    assert bodies(last) == [b"c"]
    assert last.batch.tail.seq_num == 4
    assert frames.next() is None


@pytest.mark.parametrize(
    "query", ["seq_num=1&count=5", "seq_num=2", "count=1", "seq_num=1&until=9"]
)
def test_what_is_not_written_is_416_as_a_response(api: Api, stream: str, query: str) -> None:
    tail = api.append(stream, "x").json["tail"]
    reply = api.get(f"{STREAMS}/{stream}/records?{query}", SESSION)
    assert (reply.status, reply.json) == (416, {"tail": tail})


def test_a_session_may_start_at_the_tail_and_beyond_it_only_if_clamped(
    api: Api, writer: Api, stream: str
) -> None:
    writer.append(stream, "x")
    for query in ("", "seq_num=1", "seq_num=9&clamp=true", "timestamp=99999999999999&clamp=true"):
        call, frames = opened(api, stream, query)
        assert is_heartbeat(frames.take(), 1), query
        call.abort()


def test_a_deleted_stream_ends_its_readers_with_an_error(
    api: Api, writer: Api, stream: str
) -> None:
    writer.append(stream, "x")
    _, frames = opened(api, stream, "seq_num=0")
    assert bodies(frames.take()) == [b"x"]
    assert is_heartbeat(frames.take(), 1)
    assert writer.delete(f"{STREAMS}/{stream}").status == 202
    assert frames.take().code == (503, "unavailable")
    assert frames.next() is None


def test_history_comes_in_batches_as_large_as_allowed(api: Api, stream: str) -> None:
    for _ in range(3):
        api.post(f"{STREAMS}/{stream}/records", {"records": [{}] * 800})
    api.append(stream, "x" * (MIB // 2))
    api.append(stream, "x" * (MIB // 2))
    _, frames = opened(api, stream, "seq_num=0&wait=0")
    sizes = [len(frame.batch.records) for frame in frames.rest()]
    assert sizes == [1000, 1000, 401, 1]


def test_followers_of_one_stream_see_the_same(
    api: Api, another: Callable[[], Api], writer: Api, stream: str
) -> None:
    clients = [api, api if api.version == "h2" else another(), another()]
    followers = [opened(client, stream, "seq_num=0")[1] for client in clients]
    for frames in followers:
        assert is_heartbeat(frames.take(), 0)
    for index in range(5):
        writer.append(stream, f"{index}")
        payloads = {frames.take().payload for frames in followers}
        assert len(payloads) == 1


# Compression


@pytest.mark.parametrize(
    ("accepted", "flag"),
    [
        (None, 0),
        ("identity", 0),
        ("br, *", 0),
        ("gzip", GZIP),
        ("zstd", ZSTD),
        ("gzip;q=1, zstd;q=0.1", ZSTD),
        ("gzip, zstd;q=0", GZIP),
    ],
)
def test_large_frames_are_compressed_as_the_client_can(
    api: Api, stream: str, accepted: str | None, flag: int
) -> None:
    api.append(stream, "x" * 5000)
    headers = {} if accepted is None else {"accept-encoding": accepted}
    call, frames = opened(api, stream, "seq_num=0&count=1", headers)
    assert "content-encoding" not in dict(call.fields)
    found = frames.take()
    assert found.flag == flag
    assert bodies(found) == [b"x" * 5000]
    assert (len(found.payload) < 5000) is bool(flag)


def test_frames_are_compressed_from_1024_bytes_on(api: Api, stream: str) -> None:
    sizes = []
    for length in (900, 1100):
        api.append(stream, "x" * length)
    for start in (0, 1):
        query = f"seq_num={start}&count=1"
        _, frames = opened(api, stream, query, {"accept-encoding": "zstd"})
        found = frames.take()
        sizes.append((len(found.content) >= 1024, found.flag))
    assert sizes == [(False, 0), (True, ZSTD)]


def test_a_terminal_frame_is_never_compressed(api: Api, writer: Api, stream: str) -> None:
    _, frames = opened(api, stream, "seq_num=0", {"accept-encoding": "zstd, gzip"})
    assert is_heartbeat(frames.take(), 0)
    writer.delete(f"{STREAMS}/{stream}")
    assert frames.take().code == (503, "unavailable")


def test_a_session_lets_the_stream_go_when_it_ends(server: Server, api: Api, stream: str) -> None:
    api.append(stream, "x")
    call, _ = opened(api, stream, "seq_num=0&count=1")
    assert rest_of(call)
    eventually(lambda: server.users(BASIN, stream) == 0)
