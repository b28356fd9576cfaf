"""Read sessions as server-sent events."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.http.clients import EVENTS, Api, Call
from tests.http.conftest import BASIN
from tests.http.server import Server, eventually

STREAMS = "/v1/streams"
PING = re.compile(
    rb'event: ping\ndata: {"timestamp":(\d+),"tail":{"seq_num":(\d+),"timestamp":(\d+)}}\n\n'
)


class Event(NamedTuple):
    kind: str | None
    id: str | None
    data: str

    @property
    def document(self) -> Any:
        return json.loads(self.data)


class Events:
    """The events of a response, as they come; their lines are checked on the way."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._buffer = b""

    def next(self) -> Event | None:
        while b"\n\n" not in self._buffer:
            data = self._call.receive()
            if not data:
                assert not self._buffer, "the stream ends inside an event"
                return None
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\n\n")
        assert b"\r" not in text
        fields: dict[str, str] = {}
        for line in text.decode().split("\n"):
            name, colon, value = line.partition(": ")
            assert colon
            assert name in {"event", "id", "data"}
            assert name not in fields
            fields[name] = value
        return Event(fields.get("event"), fields.get("id"), fields["data"])

    def take(self) -> Event:
        found = self.next()
        assert found is not None, "the stream has ended"
        return found

    def rest(self) -> list[Event]:
        events = []
        while (found := self.next()) is not None:
            events.append(found)
        return events


DONE = Event(None, None, "[DONE]")


def opened(api: Api, stream: str, query: str, headers: dict[str, str] | None = None) -> Events:
    path = f"{STREAMS}/{stream}/records?{query}"
    call = api.open("GET", path, EVENTS | (headers or {}), body=b"")
    assert call.status == 200
    return Events(call)


def bodies(event: Event) -> list[str]:
    assert event.kind == "batch"
    return [record.get("body", "") for record in event.document["records"]]


@pytest.fixture
def writer(another: Callable[[], Api]) -> Api:
    return another()


def test_a_bounded_stream_is_the_documented_bytes(api: Api, stream: str) -> None:
    records = [
        {"timestamp": 7, "body": "hi"},
        {"timestamp": 8, "headers": [["a", "b\n"]], "body": "line\r\nbreak"},
    ]
    api.post(f"{STREAMS}/{stream}/records", {"records": records})
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0&count=2", EVENTS)
    assert reply.body == (
        b"event: batch\n"
        b"id: 1,2,34\n"
        b'data: {"records":[{"seq_num":0,"timestamp":7,"body":"hi"},'
        b'{"seq_num":1,"timestamp":8,"headers":[["a","b\\n"]],"body":"line\\r\\nbreak"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    fields = reply.named
    if api.version == "h1":
        assert fields.pop("transfer-encoding") == "chunked"
    assert fields == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }


def test_history_is_followed_by_a_ping_and_by_what_is_appended(
    api: Api, writer: Api, stream: str
) -> None:
    writer.append(stream, "a", "b")
    events = opened(api, stream, "seq_num=0")
    history = events.take()
    assert (bodies(history), history.id) == (["a", "b"], "1,2,18")
    assert history.document.keys() == {"records"}
    ping = events.take()
    assert (ping.kind, ping.id) == ("ping", None)
    assert ping.document.keys() == {"timestamp", "tail"}
    assert ping.document["tail"]["seq_num"] == 2
    assert ping.document["timestamp"] >= ping.document["tail"]["timestamp"]
    tail = writer.append(stream, "c").json["tail"]
    live = events.take()
    assert (bodies(live), live.id) == (["c"], "2,3,27")
    assert live.document["tail"] == tail


def test_a_ping_is_the_documented_bytes(api: Api, stream: str) -> None:
    call = api.open("GET", f"{STREAMS}/{stream}/records", EVENTS, body=b"")
    text = b""
    while not text.endswith(b"\n\n"):
        text += call.receive()
    match = PING.fullmatch(text)
    assert match
    assert (int(match[1]) > 1_700_000_000_000, match[2], match[3]) == (True, b"0", b"0")
    call.abort()


def test_ids_count_what_was_delivered(api: Api, writer: Api, stream: str) -> None:
    writer.append(stream, "", "", "")
    events = opened(api, stream, "seq_num=0")
    assert events.take().id == "2,3,24"
    assert events.take().kind == "ping"
    writer.append(stream, "", "")
    assert events.take().id == "4,5,40"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0&count=2", ["0", "1"]),
        ("seq_num=3&count=9", ["3", "4"]),
        ("seq_num=0&bytes=27", ["0", "1", "2"]),
        ("seq_num=0&until=101", ["0"]),
        ("seq_num=0&wait=0", ["0", "1", "2", "3", "4"]),
        ("seq_num=0&count=0", []),
        ("seq_num=99&bytes=0", []),
        ("seq_num=0&bytes=8", []),
    ],
)
def test_a_clean_end_is_done(api: Api, stream: str, query: str, expected: list[str]) -> None:
    records = [{"timestamp": 100 + index, "body": str(index)} for index in range(5)]
    api.post(f"{STREAMS}/{stream}/records", {"records": records})
    *batches, last = opened(api, stream, query).rest()
    assert [body for event in batches for body in bodies(event)] == expected
    assert last == DONE


def test_a_wait_in_vain_ends_with_done(api: Api, stream: str) -> None:
    ping, done = opened(api, stream, "seq_num=0&wait=1").rest()
    assert (ping.kind, done) == ("ping", DONE)


def test_base64_carries_any_bytes(api: Api, stream: str) -> None:
    coded = {"s2-format": "base64"}
    api.post(f"{STREAMS}/{stream}/records", {"records": [{"body": "AP8="}]}, coded)
    batch, done = opened(api, stream, "seq_num=0&count=1", coded).rest()
    assert (bodies(batch), done) == (["AP8="], DONE)
    batch, _ = opened(api, stream, "seq_num=0&count=1").rest()
    assert bodies(batch) == ["\0\ufffd"]


# Errors


def test_a_deleted_stream_ends_with_an_error_and_without_done(
    api: Api, writer: Api, stream: str
) -> None:
    events = opened(api, stream, "seq_num=0")
    assert events.take().kind == "ping"
    assert writer.delete(f"{STREAMS}/{stream}").status == 202
    error = events.take()
    assert (error.kind, error.id, error.document["code"]) == ("error", None, "unavailable")
    assert error.document.keys() == {"code", "message"}
    assert events.next() is None


def test_what_is_known_before_the_first_event_is_an_ordinary_response(
    api: Api, stream: str
) -> None:
    tail = api.append(stream, "x").json["tail"]
    path = f"{STREAMS}/{stream}/records"
    for query in ("seq_num=1&count=1", "seq_num=2", "until=5"):
        reply = api.get(f"{path}?{query}", EVENTS)
        assert (reply.status, reply.json) == (416, {"tail": tail})
    assert api.get(f"{path}?seq_num=x", EVENTS).error == (400, "bad_query")
    assert api.get(f"{path}?seq_num=0&timestamp=0", EVENTS).error == (422, "invalid")
    assert api.get(f"{STREAMS}/missing/records", EVENTS).error == (404, "stream_not_found")


# Resuming


@pytest.mark.parametrize("event_id", ["1,2,18", "1:2:18", "01,002,0018"])
def test_a_stream_goes_on_behind_the_last_event(api: Api, stream: str, event_id: str) -> None:
    api.append(stream, *"abcde")
    resume = {"last-event-id": event_id}
    batch, done = opened(api, stream, "seq_num=0&wait=0", resume).rest()
    assert (bodies(batch), batch.id, done) == (["c", "d", "e"], "4,5,45", DONE)


@pytest.mark.parametrize("start", ["seq_num=4", "timestamp=1", "tail_offset=0", ""])
def test_the_event_overrides_every_start(api: Api, stream: str, start: str) -> None:
    api.append(stream, *"abcde")
    resume = {"last-event-id": "2,0,0"}
    batch, _ = opened(api, stream, f"{start}&wait=0", resume).rest()
    assert bodies(batch) == ["d", "e"]


@pytest.mark.parametrize(
    ("query", "event_id", "expected"),
    [
        ("count=4", "1,2,18", ["c", "d"]),
        ("count=2", "1,2,18", []),
        ("count=1", "1,2,18", []),
        ("bytes=36", "1,2,18", ["c", "d"]),
        ("bytes=18", "1,2,18", []),
        ("count=9&bytes=27", "1,2,18", ["c"]),
        ("count=1", "99,1,9", []),
    ],
)
def test_limits_shrink_by_what_was_delivered(
    api: Api, stream: str, query: str, event_id: str, expected: list[str]
) -> None:
    api.append(stream, *"abcde")
    *batches, done = opened(api, stream, query, {"last-event-id": event_id}).rest()
    assert [body for event in batches for body in bodies(event)] == expected
    assert done == DONE


def test_a_resumed_stream_counts_on_and_stays_at_the_largest_number(api: Api, stream: str) -> None:
    api.append(stream, "a", "b")
    most = 2**64 - 1
    resume = {"last-event-id": f"0,{most},{most - 3}"}
    batch, _ = opened(api, stream, "wait=0", resume).rest()
    assert batch.id == f"1,{most},{most}"


def test_resuming_at_and_behind_the_tail(api: Api, stream: str) -> None:
    tail = api.append(stream, "a").json["tail"]
    path = f"{STREAMS}/{stream}/records"
    for query, event_id, status in (
        ("count=5", "0,1,9", 416),
        ("", "1,0,0", 416),
        ("", f"{2**64 - 1},0,0", 416),
    ):
        reply = api.get(f"{path}?{query}", EVENTS | {"last-event-id": event_id})
        assert (reply.status, reply.json) == (status, {"tail": tail})
    for query, event_id in (("", "0,1,9"), ("clamp=true", "7,0,0")):
        events = opened(api, stream, query, {"last-event-id": event_id})
        assert events.take().document["tail"] == tail


@pytest.mark.parametrize(
    "event_id", ["", "1", "1,2", "1,2,3,4", "1,2:3", "a,b,c", "-1,0,0", f"{2**64},0,0", "1, 2, 3"]
)
def test_an_event_id_that_is_none_of_ours_is_a_bad_header(
    api: Api, stream: str, event_id: str
) -> None:
    api.append(stream, "a")
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    assert api.get(path, EVENTS | {"last-event-id": event_id}).error == (400, "bad_header")


def test_other_reads_do_not_look_at_the_last_event(api: Api, stream: str) -> None:
    api.append(stream, "a")
    path = f"{STREAMS}/{stream}/records?seq_num=0&count=1"
    for headers in ({}, {"content-type": "s2s/proto"}):
        assert api.get(path, headers | {"last-event-id": "nonsense"}).status == 200


def test_a_stream_of_events_lets_the_stream_go_when_it_ends(
    server: Server, api: Api, stream: str
) -> None:
    api.append(stream, "x")
    assert opened(api, stream, "seq_num=0&count=1").rest()[-1] == DONE
    eventually(lambda: server.users(BASIN, stream) == 0)
