"""Append sessions over frames: duplex, in order, and ended by the first failure."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import zstandard

from bourn.clock import SystemClock
from bourn.http import lane_kernel, lanes
from bourn.http.append_session import UNACKED_INPUTS_MAX, AppendSession
from bourn.http.auth import Principal
from bourn.http.draining import Draining
from bourn.http.exchange import Headers, Intake
from bourn.http.telemetry import Telemetry
from bourn.limits import MIB
from tests.http.clients import SESSION, Api, Call, H1Call, rest_of
from tests.http.conftest import BASIN
from tests.http.edges import IS_ASGI
from tests.http.frames import GZIP, TERMINAL, ZSTD, Frames, append, frame, message
from tests.http.server import Server, eventually
from tests.support import STREAM, node_on, run, with_stream

STREAMS = "/v1/streams"
HEADERS = {
    "content-type": "s2s/proto",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


@pytest.fixture(params=["h1", "h2", "laned"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = request.param
    if found != "laned":
        return found
    if IS_ASGI:
        pytest.skip("granian: it has no lanes")
    lane_kernel.load()
    monkeypatch.setattr(lanes, "LANES_FROM", 1)
    return "h1"


def opened(api: Api, stream: str, headers: dict[str, str] | None = None) -> tuple[Call, Frames]:
    call = api.open("POST", f"{STREAMS}/{stream}/records", SESSION | (headers or {}))
    assert call.status == 200
    return call, Frames(call)


def tail_of(api: Api, stream: str) -> int:
    seq_num: int = api.get(f"{STREAMS}/{stream}/records/tail").json["tail"]["seq_num"]
    return seq_num


def test_the_head_of_the_response_comes_before_any_input(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    fields = dict(call.fields)
    fields.pop("date")
    assert fields.pop("server", "bourn") == "bourn"
    if api.version == "h1":
        assert fields.pop("transfer-encoding") == "chunked"
    assert fields == HEADERS
    call.end()
    assert frames.next() is None


def test_an_ack_comes_while_the_input_is_open_and_before_the_next_is_sent(
    api: Api, stream: str
) -> None:
    call, frames = opened(api, stream)
    for index in range(5):
        call.send(append(b"a", b"b"))
        ack = frames.take().ack
        assert (ack.start.seq_num, ack.end.seq_num) == (2 * index, 2 * index + 2)
        assert ack.tail.seq_num >= ack.end.seq_num
        assert ack.start.timestamp <= ack.end.timestamp <= ack.tail.timestamp
    call.end()
    assert frames.rest() == []


def test_inputs_sent_without_waiting_are_acked_in_order(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    for index in range(200):
        call.send(append(*[b"x%d" % index] * (index % 3 + 1)))
    call.end()
    expected = 0
    for index in range(200):
        ack = frames.take().ack
        assert ack.start.seq_num == expected
        expected += index % 3 + 1
        assert ack.end.seq_num == expected
    assert frames.next() is None
    assert tail_of(api.of(BASIN), stream) == expected


def test_the_first_ack_of_a_stream_is_the_documented_bytes(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    call.send(frame(bytes.fromhex("0a0608051a026869")))  # one record `hi` with timestamp 5
    found = frames.take()
    assert (found.flag, found.payload.hex()) == (0, "0a0210051204080110051a0408011005")
    call.end()


def test_a_session_without_inputs_ends_with_an_empty_body(api: Api, stream: str) -> None:
    call, _ = opened(api, stream)
    call.end()
    assert rest_of(call) == b""
    assert api.request("POST", f"{STREAMS}/{stream}/records", SESSION, b"").body == b""


def test_the_whole_input_may_come_with_its_length(api: Api, stream: str) -> None:
    body = append(b"a") + append(b"b", b"c")
    call = api.open("POST", f"{STREAMS}/{stream}/records", SESSION, body=body)
    assert [found.ack.end.seq_num for found in Frames(call).rest()] == [1, 3]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_chunks_and_frames_need_not_line_up(api: Api, stream: str, size: int) -> None:
    call, frames = opened(api, stream)
    data = append(b"one") + append(b"two", b"2") + append(b"x" * 40)
    for start in range(0, len(data), size):
        call.send(data[start : start + size])
    call.end()
    assert [found.ack.end.seq_num for found in frames.rest()] == [1, 3, 4]


# Failures


def is_poisoned_by(
    api: Api, stream: str, bad: bytes, *, before: int = 2, after: bytes = b""
) -> tuple[int, Any]:
    """Send good inputs, a bad one and good ones at once; return how the session ended."""
    start = tail_of(api, stream)
    call, frames = opened(api, stream)
    call.send(append(b"good") * before + bad + (after or append(b"late") * 3))
    acks = [frames.take().ack.end.seq_num for _ in range(before)]
    assert acks == list(range(start + 1, start + 1 + before))
    last = frames.take()
    assert last.flag == TERMINAL
    assert frames.next() is None, "nothing comes behind the terminal frame"
    assert tail_of(api, stream) == start + before, "nothing behind the failure takes effect"
    return last.error


def test_a_failed_condition_ends_the_session_behind_the_acks_before_it(
    api: Api, stream: str
) -> None:
    assert is_poisoned_by(api, stream, append(b"x", match_seq_num=9)) == (
        412,
        {"seq_num_mismatch": 2},
    )
    assert is_poisoned_by(api, stream, append(b"x", fencing_token="t"), before=0) == (
        412,
        {"fencing_token_mismatch": ""},
    )


def test_a_terminal_frame_is_the_documented_bytes(api: Api, stream: str) -> None:
    api.append(stream, *["x"] * 7)
    call, _ = opened(api, stream)
    call.send(append(b"x", match_seq_num=1))
    assert rest_of(call) == bytes.fromhex("00001980019c") + b'{"seq_num_mismatch":7}'


def test_an_input_against_the_rules_ends_the_session(api: Api, stream: str) -> None:
    for bad, text in (
        (frame(b""), "record batch must not be empty"),
        (append(*[b""] * 1001), "record batch must not exceed 1000 records"),
        (append(b"x" * (MIB - 7)), "record must have metered size less than 1 MiB"),
        (append(b"x", fencing_token="t" * 37), "fencing token must not exceed 36 bytes in length"),
        (frame(b"\x0a\x04\x12\x02\x12\x00"), "unknown command"),
    ):
        expected = (422, {"code": "invalid", "message": text})
        assert is_poisoned_by(api, stream, bad) == expected


BAD_FRAMES = {
    "an empty frame": b"\x00\x00\x00",
    "a frame that is too long": b"\x20\x00\x01\x00",
    "an unknown compression": frame(message(b"x"), 0x60),
    "no protobuf": frame(b"\xff"),
    "a token that is no text": frame(b"\x0a\x00\x1a\x01\xff"),
    "no zstd": frame(b"x" * 20, ZSTD),
    "no gzip": frame(b"x" * 20, GZIP),
    "half of a gzip": frame(gzip.compress(message(b"x"))[:-4], GZIP),
    "a bomb of zstd": frame(zstandard.ZstdCompressor().compress(bytes(4 * MIB)), ZSTD),
    "a bomb of gzip": frame(gzip.compress(bytes(4 * MIB)), GZIP),
    "a terminal frame": frame(b"\x01\x90{}", TERMINAL),
    "an empty terminal frame": frame(b"", TERMINAL),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_a_bad_frame_ends_the_session_behind_the_acks_before_it(
    api: Api, stream: str, what: str
) -> None:
    status, document = is_poisoned_by(api, stream, BAD_FRAMES[what])
    assert (status, document["code"]) == (400, "bad_frame")
    assert document["message"]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_an_input_that_ends_inside_a_frame_is_a_bad_frame(
    api: Api, stream: str, length: int
) -> None:
    call, frames = opened(api, stream)
    call.send(append(b"good"))
    call.send(append(b"never whole")[:length])
    call.end()
    assert frames.take().ack.end.seq_num == 1
    assert frames.take().code == (400, "bad_frame")
    assert frames.next() is None
    assert tail_of(api, stream) == 1


def test_a_failure_is_told_while_the_client_still_sends(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    call.send(append(b"x", match_seq_num=5))
    assert frames.take().status == 412
    assert frames.next() is None
    if isinstance(call, H1Call):
        assert call.at_end(), "what follows could not be told from the rest of the input"


def test_of_two_failures_the_first_input_s_is_told(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    call.send(append(b"x", match_seq_num=5) + frame(b"\xff") + append(b"y"))
    assert frames.take().error == (412, {"seq_num_mismatch": 0})
    assert frames.next() is None
    assert tail_of(api, stream) == 0


def test_conditions_see_what_is_in_flight(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    fence = b"\x0a\x0f\x12\x07\x12\x05fence\x1a\x04mine"
    data = b"".join(append(b"x", match_seq_num=index) for index in range(20))
    data += frame(fence) + append(b"y", fencing_token="mine", match_seq_num=21)
    data += append(b"z", fencing_token="other")
    call.send(data)
    acks = [frames.take().ack.end.seq_num for _ in range(22)]
    assert acks == list(range(1, 23))
    assert frames.take().error == (412, {"fencing_token_mismatch": "mine"})


def test_a_stream_deleted_under_a_session_fails_its_next_input(
    server: Server, api: Api, another: Callable[[], Api], stream: str
) -> None:
    call, frames = opened(api, stream)
    call.send(append(b"x"))
    assert frames.take().ack.end.seq_num == 1
    other = another()
    assert other.delete(f"{STREAMS}/{stream}").status == 202
    call.send(append(b"y"))
    assert frames.take().code in {(409, "stream_deletion_pending"), (503, "unavailable")}
    assert frames.next() is None
    eventually(lambda: other.get(f"{STREAMS}/{stream}").status == 404)


def test_a_changed_config_holds_for_the_next_input(
    api: Api, another: Callable[[], Api], stream: str
) -> None:
    call, frames = opened(api, stream)
    call.send(append(b"x"))
    assert frames.take().ack.end.seq_num == 1
    patch = {"timestamping": {"mode": "client-require"}}
    assert another().send_json("PATCH", f"{STREAMS}/{stream}", patch).status == 200
    call.send(append(b"y"))
    assert frames.take().code == (422, "invalid")


# Compression


def unsized_zstd(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


def test_every_frame_may_be_compressed_in_its_own_way(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    data = message(b"x" * 3000, b"y")
    call.send(frame(data, 0x0F))  # reserved bits do not matter
    call.send(frame(zstandard.ZstdCompressor().compress(data), ZSTD))
    call.send(frame(unsized_zstd(data), ZSTD))
    call.send(frame(gzip.compress(data), GZIP))
    call.send(frame(data))
    call.end()
    found = frames.rest()
    assert [reply.ack.end.seq_num for reply in found] == [2, 4, 6, 8, 10]
    assert {reply.flag for reply in found} == {0}
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0&bytes=100000")
    assert [len(record["body"]) for record in reply.json["records"]] == [3000, 1] * 5


def test_acks_are_too_small_to_be_compressed(api: Api, stream: str) -> None:
    call, frames = opened(api, stream, {"accept-encoding": "zstd, gzip"})
    call.send(append(b"x"))
    assert frames.take().flag == 0
    assert ("content-encoding" in dict(call.fields)) is False
    call.end()


# Many at once


def test_large_inputs_flow_both_ways(api: Api, stream: str) -> None:
    call, frames = opened(api, stream)
    body = b"x" * (MIB - 8)
    for _ in range(12):
        call.send(append(body))
    call.end()
    assert [found.ack.end.seq_num for found in frames.rest()] == list(range(1, 13))


def test_sessions_interleave_each_in_its_own_order(
    api: Api, another: Callable[[], Api], stream: str
) -> None:
    clients = [api, api if api.version == "h2" else another(), another()]
    sessions = [opened(client, stream) for client in clients]
    for index in range(30):
        for number, (call, _) in enumerate(sessions):
            call.send(append(b"%d:%d" % (number, index)))
    for call, _ in sessions:
        call.end()
    ends = [[found.ack.end.seq_num for found in frames.rest()] for _, frames in sessions]
    assert all(found == sorted(found) and len(found) == 30 for found in ends)
    assert sorted(sum(ends, start=[])) == list(range(1, 91))  # noqa: RUF017  three lists
    records = api.get(f"{STREAMS}/{stream}/records?seq_num=0").json["records"]
    for number in range(3):
        mine = [r["body"] for r in records if r["body"].startswith(f"{number}:")]
        assert mine == [f"{number}:{index}" for index in range(30)]


def test_an_open_session_holds_the_stream_and_a_closed_one_lets_it_go(
    server: Server, api: Api, stream: str
) -> None:
    call, frames = opened(api, stream)
    assert server.users(BASIN, stream) == 1
    call.end()
    assert frames.next() is None
    eventually(lambda: server.users(BASIN, stream) == 0)


class Deaf:
    """An exchange whose client sends and sends and reads nothing."""

    method, path, query = "POST", "", ""
    fields: Headers = ()

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.taken = 0

    def header(self, name: str) -> str | None:
        return None

    def header_values(self, name: str) -> list[str]:
        return []

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in range(self.inputs):
            self.taken += 1
            yield append(b"")

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None: ...
    async def start(self, status: int, headers: Headers) -> None: ...
    async def send_parts(self, parts: Sequence[bytes]) -> None: ...
    def feed(self, intake: Intake | None) -> None: ...
    def pusher(self) -> None: ...
    async def finish(self) -> None: ...
    async def gone(self) -> None: ...


def test_a_client_that_reads_no_acks_is_read_no_further_and_costs_no_time() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        async with node_on() as node:
            await with_stream(node)
            exchange = Deaf(3 * UNACKED_INPUTS_MAX)
            appender = await node.appender(BASIN, STREAM)
            telemetry = Telemetry(node, clock)
            anybody = Principal(node, clock, None)
            session = AppendSession(
                exchange, appender, telemetry, Draining(node), clock, anybody, lambda _: None
            )
            task = asyncio.ensure_future(session.run())
            taken = -1
            loop: Any = asyncio.get_running_loop()
            async with asyncio.timeout(60.0):
                while exchange.taken != taken or loop._ready:  # nothing turns while everybody waits
                    taken = exchange.taken
                    await clock.sleep(0.05)
            assert UNACKED_INPUTS_MAX < taken < 3 * UNACKED_INPUTS_MAX
            task.cancel()
            await asyncio.wait([task])
            appender.close()

    run(scenario())
