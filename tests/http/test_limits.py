"""Limits of traffic, by basin and by token: who is refused, until when, and who is only slowed.

The clock is moved by hand, so that every figure is exact.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from bourn.clock import ManualClock
from bourn.limits import BATCH_METERED_BYTES_MAX, KIB, SESSION_RETRY_MS
from bourn.settings import EngineSettings, TrafficLimit, TrafficLimits
from tests.http.access import EVERYTHING, ROOT, TokenApi, exact, prefix
from tests.http.clients import EVENTS, SESSION, Api, Call, Connected, Reply, reply_of
from tests.http.conftest import BASIN
from tests.http.frames import TERMINAL, Frames, append
from tests.http.server import LOCATION, LoopThread, Server, eventually

STREAMS = "/v1/streams"
NUMBERS = count(1)
REQUESTS = 5
BYTES = 64 * KIB
SESSIONS = 2
LONG_SECS = 3600.0
HALF = b"x" * (BYTES // 2 - 8)  # a record whose metered size is half a second's worth

LIMITS = {
    "requests": TrafficLimit(requests=REQUESTS),
    "append_bytes": TrafficLimit(append_bytes=BYTES),
    "sessions": TrafficLimit(sessions=SESSIONS),
}


class Limited:
    """A server whose basins have one limit, and a client with a basin and a stream."""

    def __init__(self, server: Server, clock: ManualClock, connect: Callable[[], Api]) -> None:
        self.server = server
        self._clock = clock
        self.connect = connect
        self.api = connect()
        self.stream = f"stream-{next(NUMBERS)}"
        self.pass_time(LONG_SECS)
        assert self.api.put(f"/v1/basins/{BASIN}").status in {200, 201}
        assert self.api.put(f"{STREAMS}/{self.stream}").status == 201
        self.path = f"{STREAMS}/{self.stream}/records"
        self.pass_time(LONG_SECS)

    def pass_time(self, seconds: float) -> None:
        self.server.call(lambda: self._clock.advance(seconds))

    def tail(self) -> int:
        found: int = self.api.get(f"{self.path}/tail").json["tail"]["seq_num"]
        return found

    def session(self, api: Api | None = None) -> tuple[Call, Frames]:
        call = (api or self.api).open("POST", self.path, SESSION)
        assert call.status == 200
        return call, Frames(call)

    def throttled_ms(self) -> int:
        """How long sessions have been told to wait so far."""
        return round(self.server.call(lambda: self.server.app.telemetry.throttled_secs * 1000))

    def until_throttled(self, ms: int) -> None:
        eventually(lambda: self.throttled_ms() == ms)


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], tuple[Server, ManualClock]]]:
    """One server for each limit."""
    made: dict[str, tuple[Server, ManualClock]] = {}
    with ExitStack() as stack:

        def server(name: str) -> tuple[Server, ManualClock]:
            if name not in made:
                clock = ManualClock()
                traffic = TrafficLimits(basin=LIMITS[name])
                running = Server(cors=False, clock=clock, traffic=traffic)
                made[name] = (stack.enter_context(running), clock)
            return made[name]

        yield server


@pytest.fixture
def limited(
    request: pytest.FixtureRequest,
    servers: Callable[[str], tuple[Server, ManualClock]],
    version: str,
    client_thread: LoopThread,
) -> Iterator[Limited]:
    server, clock = servers(request.param)
    with ExitStack() as stack:

        def connect() -> Api:
            connected = Connected(version, server.port, client_thread)
            return Api(stack.enter_context(connected).client, BASIN)

        yield Limited(server, clock, connect)


requests_limited = pytest.mark.parametrize("limited", ["requests"], indirect=True)
bytes_limited = pytest.mark.parametrize("limited", ["append_bytes"], indirect=True)
sessions_limited = pytest.mark.parametrize("limited", ["sessions"], indirect=True)


def refusal(reply: Reply, what: str, retry_after_ms: int) -> None:
    """The whole answer to a request that was refused."""
    body = f'{{"code":"rate_limited","message":"{what}"}}'.encode()
    assert (reply.status, reply.body) == (429, body)
    assert reply.named == {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "retry-after-ms": str(retry_after_ms),
    }


# Requests

TOO_MANY_REQUESTS = f"requests a second in this basin are limited to {REQUESTS}"


@requests_limited
def test_a_second_s_worth_of_requests_goes_at_once_and_then_what_flows_in(
    limited: Limited,
) -> None:
    api, path = limited.api, f"{limited.path}/tail"
    assert [api.get(path).status for _ in range(REQUESTS)] == [200] * REQUESTS
    refusal(api.get(path), TOO_MANY_REQUESTS, 200)
    limited.pass_time(0.199)
    refusal(api.get(path), TOO_MANY_REQUESTS, 1)
    limited.pass_time(0.001)
    assert api.get(path).status == 200
    refusal(api.get(path), TOO_MANY_REQUESTS, 200)


@requests_limited
def test_a_client_that_waits_as_long_as_told_needs_to_ask_twice_at_most(limited: Limited) -> None:
    refused = 0
    for _ in range(4 * REQUESTS):
        reply = limited.api.append(limited.stream, "a")
        if reply.status == 429:
            refused += 1
            limited.pass_time(int(reply.header("retry-after-ms") or 0) / 1000)
            reply = limited.api.append(limited.stream, "a")
        assert reply.status == 200
    assert refused == 3 * REQUESTS
    limited.pass_time(LONG_SECS)
    assert limited.tail() == 4 * REQUESTS


@requests_limited
def test_nothing_has_happened_where_a_request_was_refused(limited: Limited) -> None:
    api = limited.api
    for _ in range(REQUESTS):
        assert api.get(f"{limited.path}/tail").status == 200
    assert api.append(limited.stream, "a").status == 429
    assert api.append("unheard-of", "a").status == 429
    assert api.put(f"{STREAMS}/made-in-vain").status == 429
    assert api.delete(f"{STREAMS}/{limited.stream}").status == 429
    assert api.delete(f"/v1/basins/{BASIN}").status == 429
    assert api.send_json("PATCH", f"/v1/basins/{BASIN}", {}).status == 429
    assert api.get(limited.path + "?seq_num=0").status == 429
    limited.pass_time(LONG_SECS)
    assert limited.tail() == 0
    assert api.get(f"{STREAMS}/made-in-vain").status == 404


@requests_limited
def test_other_basins_and_what_belongs_to_none_go_on(limited: Limited) -> None:
    api = limited.api
    while api.get(f"{limited.path}/tail").status == 200:
        pass
    assert api.put("/v1/basins/another-basin").status in {200, 201}
    assert api.of("another-basin").get(STREAMS).status == 200
    limited.pass_time(0.0)
    for path in ("/v1/basins", "/v1/locations", "/v1/access-tokens", "/health", "/metrics"):
        assert [api.get(path).status for _ in range(2 * REQUESTS)] == [200] * 2 * REQUESTS


@requests_limited
def test_a_session_counts_as_one_request_however_long_it_is(limited: Limited) -> None:
    call, frames = limited.session()
    for index in range(3 * REQUESTS):
        call.send(append(b"a"))
        assert frames.take().ack.end.seq_num == index + 1
    call.end()
    assert frames.rest() == []
    api = limited.connect()
    read = Frames(api.open("GET", f"{limited.path}?seq_num=0&count=10", SESSION, body=b""))
    assert sum(len(found.batch.records) for found in read.rest()) == 10
    statuses = [api.get(f"{limited.path}/tail").status for _ in range(REQUESTS)]
    assert statuses == [200] * (REQUESTS - 2) + [429] * 2


@requests_limited
def test_a_session_beyond_the_limit_waits_for_its_turn(limited: Limited) -> None:
    before = limited.throttled_ms()
    assert [limited.api.get(f"{limited.path}/tail").status for _ in range(REQUESTS)]
    append_call = limited.connect().begin("POST", limited.path, SESSION)
    limited.until_throttled(before + 200)
    read_call = limited.connect().begin("GET", f"{limited.path}?seq_num=0", SESSION, body=b"")
    limited.until_throttled(before + 200 + 400)
    refusal(limited.api.get(f"{limited.path}/tail"), TOO_MANY_REQUESTS, 200)
    assert limited.server.app.telemetry.open_sessions == 0
    limited.pass_time(0.2)
    append_call.head()
    assert append_call.status == 200
    assert limited.server.app.telemetry.open_sessions == 1
    append_call.send(append(b"a"))
    assert Frames(append_call).take().ack.end.seq_num == 1
    limited.pass_time(0.2)
    read_call.head()
    assert read_call.status == 200
    assert [record.body for record in Frames(read_call).take().batch.records] == [b"a"]
    for call in (append_call, read_call):
        call.abort()
    eventually(lambda: limited.server.app.telemetry.open_sessions == 0)


@requests_limited
def test_a_session_whose_turn_comes_too_late_is_refused_and_told_when(limited: Limited) -> None:
    api = limited.api
    assert [api.get(f"{limited.path}/tail").status for _ in range(REQUESTS)]
    before = limited.throttled_ms()
    waiting = [
        limited.connect().begin("GET", f"{limited.path}?seq_num=0", EVENTS, body=b"")
        for _ in range(REQUESTS * 5)
    ]
    limited.until_throttled(before + 200 * sum(range(1, REQUESTS * 5 + 1)))
    reply = limited.connect().get(f"{limited.path}?seq_num=0", EVENTS)
    refusal(reply, TOO_MANY_REQUESTS, 5200)
    reply = limited.connect().get(f"{limited.path}?seq_num=0", SESSION)
    refusal(reply, TOO_MANY_REQUESTS, 5200)  # the one before has taken nothing
    limited.pass_time(5)
    for call in waiting:
        call.head()
        assert call.status == 200
        call.abort()
    eventually(lambda: limited.server.app.telemetry.open_sessions == 0)


# Appended bytes

TOO_MANY_BYTES = f"appended bytes a second in this basin are limited to {BYTES}"


@bytes_limited
def test_appends_go_as_long_as_anything_is_left_and_then_wait_for_what_was_overdrawn(
    limited: Limited,
) -> None:
    api, text = limited.api, HALF.decode()
    assert api.append(limited.stream, text).status == 200
    assert api.append(limited.stream, text[:-1]).status == 200
    assert api.append(limited.stream, text).status == 200, "a byte was left"
    # What was overdrawn flows in within half a second, and the next byte a little later.
    refusal(api.append(limited.stream, "a"), TOO_MANY_BYTES, 500)
    limited.pass_time(0.499)
    refusal(api.append(limited.stream, "a"), TOO_MANY_BYTES, 1)
    limited.pass_time(0.001)
    assert api.append(limited.stream, "a").status == 200
    assert limited.tail() == 4, "reads have no limit here"


@bytes_limited
def test_a_batch_larger_than_the_limit_is_admitted_when_its_turn_comes(limited: Limited) -> None:
    api, text = limited.api, "x" * (BATCH_METERED_BYTES_MAX - 8)
    assert api.append(limited.stream, text).status == 200
    seconds = BATCH_METERED_BYTES_MAX // BYTES - 1  # one of them was there
    refusal(api.append(limited.stream, text), TOO_MANY_BYTES, seconds * 1000 + 1)
    limited.pass_time(seconds + 0.001)
    assert api.append(limited.stream, text).status == 200
    assert limited.tail() == 2


@bytes_limited
def test_a_session_is_slowed_to_the_rate_and_loses_nothing(limited: Limited) -> None:
    before = limited.throttled_ms()
    call, frames = limited.session()
    for _ in range(8):
        call.send(append(HALF))
    call.end()
    for index in range(2):
        assert frames.take().ack.end.seq_num == index + 1
    for index in range(2, 8):
        limited.until_throttled(before + (index - 1) * 500)
        assert limited.tail() == index, "the acks so far have come, and nothing more is admitted"
        limited.pass_time(0.499)
        assert limited.tail() == index
        limited.pass_time(0.001)
        assert frames.take().ack.end.seq_num == index + 1
    assert frames.rest() == []
    assert limited.tail() == 8


@bytes_limited
def test_sessions_of_a_basin_take_turns(limited: Limited) -> None:
    before = limited.throttled_ms()
    first, second = limited.session(), limited.session(limited.connect())
    for call, _ in (first, second):
        call.send(append(HALF))
    for _, frames in (first, second):
        assert frames.take().ack
    first[0].send(append(HALF) * 4)
    limited.until_throttled(before + 500)
    second[0].send(append(HALF) * 4)
    told = before + 500 + 1000  # behind the one of the other session
    for frames in (first[1], second[1]) * 3:
        limited.until_throttled(told)
        limited.pass_time(0.5)
        assert frames.take().ack
        told += 1000
    first[0].abort()
    second[0].abort()


@bytes_limited
def test_sessions_that_queue_do_not_keep_single_appends_out(limited: Limited) -> None:
    before = limited.throttled_ms()
    call, frames = limited.session()
    call.send(append(HALF) * 4)
    limited.until_throttled(before + 500)
    api = limited.connect()
    refusal(api.append(limited.stream, "a"), TOO_MANY_BYTES, 1)
    limited.pass_time(0.001)
    assert api.append(limited.stream, "a").status == 200
    limited.pass_time(0.499)
    assert [frames.take().ack.end.seq_num for _ in range(3)] == [1, 2, 4]
    limited.until_throttled(before + 500 + 500)
    call.abort()


@bytes_limited
def test_reads_go_on_while_appends_are_slowed(limited: Limited) -> None:
    before = limited.throttled_ms()
    call, frames = limited.session()
    call.send(append(HALF) * 3)
    assert [frames.take().ack.end.seq_num for _ in range(2)] == [1, 2]
    limited.until_throttled(before + 500)
    read = Frames(limited.connect().open("GET", f"{limited.path}?seq_num=0", SESSION, body=b""))
    assert sum(len(read.take().batch.records) for _ in range(2)) == 2
    limited.pass_time(0.5)
    assert frames.take().ack.end.seq_num == 3
    assert len(read.take().batch.records) == 1
    call.end()
    assert frames.rest() == []


# Sessions

TOO_MANY_SESSIONS = f"open sessions in this basin are limited to {SESSIONS}"


@sessions_limited
def test_one_session_too_many_is_refused_until_another_has_ended(limited: Limited) -> None:
    call, frames = limited.session()
    reading = limited.connect().open("GET", f"{limited.path}?seq_num=0", EVENTS, body=b"")
    assert reading.status == 200
    api = limited.connect()
    for headers in (SESSION, EVENTS):
        reply = api.get(limited.path, headers)
        refusal(reply, TOO_MANY_SESSIONS, SESSION_RETRY_MS)
    refused = limited.connect().open("POST", f"{STREAMS}/new-stream/records", SESSION)
    assert refused.status == 429
    assert api.get(f"{STREAMS}/new-stream").status == 404
    assert api.append(limited.stream, "a").status == 200, "what answers once is no session"
    assert api.get(f"{limited.path}?seq_num=0").status == 200
    call.send(append(b"b"))
    assert frames.take().ack.end.seq_num == 2
    call.end()
    assert frames.rest() == []
    eventually(lambda: limited.server.app.telemetry.open_sessions == 1)
    with_place, its_frames = limited.session(limited.connect())
    with_place.end()
    assert its_frames.rest() == []
    reading.abort()
    eventually(lambda: limited.server.app.telemetry.open_sessions == 0)


@sessions_limited
def test_a_session_that_is_refused_or_breaks_off_gives_its_place_back(limited: Limited) -> None:
    for _ in range(2 * SESSIONS):
        api = limited.connect()
        assert api.get(f"{limited.path}?seq_num=9", SESSION).status == 416
        assert api.get(f"{STREAMS}/nothing/records", SESSION).status == 404
        assert api.get(f"{limited.path}?seq_num=x", EVENTS).status == 400
        assert api.request("HEAD", f"{limited.path}?seq_num=0", EVENTS).status == 200
        call = api.open("GET", f"{limited.path}?seq_num=0", SESSION, body=b"")
        assert call.status == 200
        call.abort()
        eventually(lambda: limited.server.app.telemetry.open_sessions == 0)


# Tokens


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_each_token_has_its_own_limits(
    version: str, clock: ManualClock, client_thread: LoopThread
) -> None:
    traffic = TrafficLimits(token=TrafficLimit(requests=REQUESTS, append_bytes=BYTES, sessions=1))
    with (
        Server(cors=False, clock=clock, root_token=ROOT, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
        Connected(version, server.port, client_thread) as for_sessions,
    ):
        root = TokenApi(connected.client, BASIN, ROOT)
        assert root.put(f"/v1/basins/{BASIN}").status == 201
        assert root.put(f"{STREAMS}/s").status == 201
        one, two = root.issue("one", **EVERYTHING), root.issue("two", **EVERYTHING)
        assert [one.get("/v1/basins").status for _ in range(REQUESTS)] == [200] * REQUESTS
        message = f"requests a second by this access token are limited to {REQUESTS}"
        refusal(one.get("/v1/basins"), message, 200)
        assert two.get("/v1/basins").status == 200
        server.call(lambda: clock.advance(LONG_SECS))

        assert one.append("s", HALF.decode(), HALF.decode()).status == 200
        message = f"appended bytes a second by this access token are limited to {BYTES}"
        refusal(one.append("s", "a"), message, 1)
        assert two.append("s", "a").status == 200

        open_one = TokenApi(for_sessions.client, BASIN, one.token)
        assert open_one.open("GET", f"{STREAMS}/s/records?seq_num=0", SESSION, body=b"").status
        message = "open sessions by this access token are limited to 1"
        refusal(one.get(f"{STREAMS}/s/records", SESSION), message, SESSION_RETRY_MS)
        assert two.get(f"{STREAMS}/s/records?seq_num=0&count=1", SESSION).status == 200


def test_what_a_token_may_not_do_takes_nothing_from_those_who_may(
    version: str, clock: ManualClock, client_thread: LoopThread
) -> None:
    traffic = TrafficLimits(basin=TrafficLimit(requests=REQUESTS))
    with (
        Server(cors=False, clock=clock, root_token=ROOT, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        root = TokenApi(connected.client, BASIN, ROOT)
        assert root.put(f"/v1/basins/{BASIN}").status == 201
        stranger = root.issue(
            "stranger", basins=exact("other-basin"), streams=prefix(""), ops=["list-streams"]
        )
        statuses = [stranger.get(STREAMS).status for _ in range(2 * REQUESTS)]
        assert statuses == [403] * 2 * REQUESTS
        assert root.get(STREAMS).status == 200


def test_basin_and_token_must_both_have_something_left_and_the_longer_wait_is_told(
    version: str, clock: ManualClock, client_thread: LoopThread
) -> None:
    traffic = TrafficLimits(basin=TrafficLimit(requests=10), token=TrafficLimit(requests=4))
    with (
        Server(cors=False, clock=clock, root_token=ROOT, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        root = TokenApi(connected.client, BASIN, ROOT)
        assert root.put(f"/v1/basins/{BASIN}").status == 201
        tokens = [root.issue(f"token-{number}", **EVERYTHING) for number in range(3)]
        server.call(lambda: clock.advance(LONG_SECS))
        first, second, third = tokens
        assert [first.get(STREAMS).status for _ in range(4)] == [200] * 4
        message = "requests a second by this access token are limited to 4"
        for _ in range(20):  # a refusal by the one takes nothing from the other
            refusal(first.get(STREAMS), message, 250)
        assert [second.get(STREAMS).status for _ in range(4)] == [200] * 4
        assert [third.get(STREAMS).status for _ in range(2)] == [200] * 2
        refusal(third.get(STREAMS), "requests a second in this basin are limited to 10", 100)
        refusal(first.get(STREAMS), message, 250)  # neither has anything left
        assert third.get("/v1/basins").status == 200


def test_an_open_server_has_no_tokens_to_limit(
    version: str, clock: ManualClock, client_thread: LoopThread
) -> None:
    traffic = TrafficLimits(token=TrafficLimit(requests=1, append_bytes=BYTES, sessions=1))
    with (
        Server(cors=False, clock=clock, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        api = Api(connected.client, BASIN)
        assert [api.get("/v1/basins").status for _ in range(3)] == [200] * 3


# The end of a session, figures, and none of it


def test_a_server_that_stops_ends_a_session_that_waits_behind_its_acks(
    version: str, client_thread: LoopThread
) -> None:
    clock = ManualClock()
    traffic = TrafficLimits(basin=TrafficLimit(append_bytes=BYTES))
    with (
        Server(cors=False, clock=clock, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        api = Api(connected.client, BASIN)
        assert api.put(f"/v1/basins/{BASIN}").status == 201
        assert api.put(f"{STREAMS}/s").status == 201
        frames = Frames(api.open("POST", f"{STREAMS}/s/records", SESSION))
        frames.call.send(append(HALF) * 4)
        eventually(lambda: server.app.telemetry.throttled_secs == 0.5)
        server.call(server.app.draining.end)
        *acks, end = frames.rest()
        assert [found.ack.end.seq_num for found in acks] == [1, 2]
        assert end.flag & TERMINAL
        assert end.code == (503, "server_draining")
        assert server.call(lambda: server.stream(BASIN, "s").tail.seq_num) == 2
        holder = server.call(lambda: server.app._throttle._basins.get(BASIN, 0))  # type: ignore[union-attr]
        eventually(lambda: holder.sessions == 0)
        assert holder.append_bytes is not None
        assert holder.append_bytes.reserve(0, 0) == 0, "what waited was not spent"


def test_a_session_that_waits_to_begin_does_not_begin_on_a_server_that_stops(
    version: str, clock: ManualClock, client_thread: LoopThread
) -> None:
    traffic = TrafficLimits(basin=TrafficLimit(requests=1))
    with (
        Server(cors=False, clock=clock, traffic=traffic) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        api = Api(connected.client, BASIN)
        assert api.put(f"/v1/basins/{BASIN}").status == 201
        call = api.begin("GET", f"{STREAMS}/s/records", SESSION, body=b"")
        eventually(lambda: server.app.telemetry.throttled_secs == 1)
        server.call(server.app.draining.begin)
        server.call(lambda: clock.advance(1))
        assert reply_of(call).error == (503, "server_draining")


@requests_limited
def test_the_figures_tell_who_was_refused_why(limited: Limited) -> None:
    name = 'bourn_rate_limited_total{scope="basin",limit="requests"}'

    def refused() -> int:
        lines = limited.api.get("/metrics").body.decode().splitlines()
        return int(next(line for line in lines if line.startswith(name)).removeprefix(name))

    before = refused()
    while limited.api.get(f"{limited.path}/tail").status == 200:
        pass
    assert refused() == before + 1


def test_without_limits_there_is_nothing_that_could_refuse(
    server: Server, api: Api, stream: str
) -> None:
    assert server.app._throttle is None
    for _ in range(50):
        assert api.append(stream, "a").status == 200
    text = api.get("/metrics").body.decode()
    assert text.count("\nbourn_rate_limited_total{") == 6
    for scope in ("basin", "token"):
        for limit in ("requests", "append_bytes", "sessions"):
            labels = f'{{scope="{scope}",limit="{limit}"}}'
            assert f"\nbourn_rate_limited_total{labels} 0\n" in text
    assert "\nbourn_session_throttled_seconds_total 0.0\n" in text
    assert EngineSettings(location=LOCATION).quota_basins is None
