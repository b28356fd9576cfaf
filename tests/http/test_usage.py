"""Usage metrics, end to end: every set, interval and refusal, and totals of a known workload."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from bourn.clock import ManualClock
from bourn.settings import UsagePrices
from tests.http.clients import EVENTS, SESSION, Api, Connected, Reply, rest_of
from tests.http.conftest import BASIN
from tests.http.frames import Frames, append
from tests.http.server import LoopThread, Server, eventually

METRICS = "/v1/metrics"
STREAMS = "/v1/streams"
DAY = 86_400
NOW_S = 1_700_006_400  # 2023-11-15 00:00 UTC
SECS = {"minute": 60, "hour": 3600, "day": DAY}
NUMBERS = count(1)

Sets = dict[str, tuple[str, ...]]
ACCOUNT: Sets = {
    "active-basins": (),
    "account-ops": ("hour", "day", "minute"),
    "estimated-billable-usage": ("hour", "day"),
}
OF_BASIN: Sets = {
    "storage": ("hour",),
    "append-ops": ("minute", "hour", "day"),
    "read-ops": ("minute", "hour", "day"),
    "read-throughput": ("minute", "hour", "day"),
    "append-throughput": ("minute", "hour", "day"),
    "basin-ops": ("hour", "minute", "day"),
}
OF_STREAM: Sets = {"storage": ("minute",)}
PLACES = {
    METRICS: ACCOUNT,
    f"{METRICS}/{BASIN}": OF_BASIN,
    f"{METRICS}/{BASIN}/s%2F1": OF_STREAM,
}
ROWS = [(path, name) for path, sets in PLACES.items() for name in sets]


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock(NOW_S * 1000)


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Server]:
    with Server(cors=False, clock=clock) as running:
        yield running


@pytest.fixture
def now(server: Server, clock: ManualClock) -> Callable[[], int]:
    return lambda: server.call(lambda: clock.now_ms() // 1000)


@pytest.fixture
def pass_time(server: Server, clock: ManualClock) -> Callable[[float], None]:
    return lambda seconds: server.call(lambda: clock.advance(seconds))


@pytest.fixture
def basin(api: Api) -> Api:
    """A client with a basin of its own, and the stream `s` in it."""
    name = f"usage-basin-{next(NUMBERS):04}"
    assert api.put(f"/v1/basins/{name}").status == 201
    own = api.of(name)
    assert own.put(f"{STREAMS}/s").status == 201
    return own


def ask(api: Api, path: str, **parameters: Any) -> Reply:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return api.of(None).get(f"{path}?{query}")


def refusal(api: Api, path: str, **parameters: Any) -> tuple[int, str, str]:
    found = ask(api, path, **parameters)
    assert found.json.keys() == {"code", "message"}
    return found.status, found.json["code"], found.json["message"]


def lately(api: Api, path: str, of: str, now_s: int, interval: str = "minute") -> dict[str, float]:
    """The totals of every series over the last two days."""
    found = ask(api, path, set=of, start=now_s - 2 * DAY, end=now_s + 60, interval=interval)
    assert found.status == 200, found
    totals = {}
    for metric in found.json["values"]:
        inner = metric["accumulation"]
        assert inner.keys() == {"name", "unit", "interval", "values"}
        assert inner["interval"] == interval
        instants = [instant for instant, _ in inner["values"]]
        assert instants == sorted(set(instants))
        assert all(instant % SECS[interval] == 0 for instant in instants)
        totals[inner["name"]] = sum(value for _, value in inner["values"])
    return totals


# Refusals


@pytest.mark.parametrize(("path", "of"), ROWS)
def test_every_set_answers_in_each_of_its_intervals_and_in_no_other(
    api: Api, now: Callable[[], int], path: str, of: str
) -> None:
    window = {"start": now() - 3600, "end": now()}
    allowed = PLACES[path][of]
    assert ask(api, path, set=of, **window).json.keys() == {"values"}
    for interval in SECS:
        if interval in allowed:
            assert ask(api, path, set=of, interval=interval, **window).status == 200
        else:
            use = " or ".join(allowed) or "no interval"
            message = f"interval `{interval}` is not supported for `{of}`: use {use}"
            assert refusal(api, path, set=of, interval=interval, **window) == (
                422,
                "invalid",
                message,
            )


@pytest.mark.parametrize(("path", "of"), ROWS)
def test_every_set_wants_a_window_that_makes_sense(
    api: Api, now: Callable[[], int], path: str, of: str
) -> None:
    end = now()
    both = (422, "invalid", "start and end params required")
    assert refusal(api, path, set=of) == both
    assert refusal(api, path, set=of, start=end) == both
    assert refusal(api, path, set=of, end=end) == both
    assert refusal(api, path, set=of, start=end, end=end - 1) == (
        422,
        "invalid",
        "start must not be after end",
    )
    assert refusal(api, path, set=of, start=end, end=end + 61) == (
        422,
        "invalid",
        "end must not be more than 60 seconds ahead",
    )
    for days in (40, 31):
        assert refusal(api, path, set=of, start=end - days * DAY, end=end) == (
            422,
            "invalid",
            "the time span must not exceed 30 days",
        )
    for start in (end, end - 30 * DAY):
        assert ask(api, path, set=of, start=start, end=end).status == 200
    assert ask(api, path, set=of, start=end, end=end + 60).status == 200


@pytest.mark.parametrize("path", PLACES)
def test_a_query_that_cannot_be_read_is_bad_before_it_is_invalid(api: Api, path: str) -> None:
    prefix = "Failed to deserialize query string: "
    expected = ", ".join(f"`{name}`" for name in PLACES[path])
    of = next(iter(PLACES[path]))
    assert refusal(api, path) == (400, "bad_query", f"{prefix}missing field `set`")
    for wrong in ("nothing", "", of.upper(), *({*ACCOUNT, *OF_BASIN} - PLACES[path].keys())):
        assert refusal(api, path, set=wrong) == (
            400,
            "bad_query",
            f"{prefix}unknown set `{wrong}`, expected {expected}",
        )
    for wrong in ("week", "", "Minute"):
        assert refusal(api, path, set=of, interval=wrong) == (
            400,
            "bad_query",
            f"{prefix}unknown interval `{wrong}`, expected `minute`, `hour`, `day`",
        )
    for name in ("start", "end"):
        for wrong in ("x", "-1", "1.5", "", str(2**32)):
            assert refusal(api, path, set=of, **{name: wrong})[:2] == (400, "bad_query")
        doubled = api.of(None).get(f"{path}?set={of}&{name}=1&{name}=1")
        assert doubled.json["message"] == f"{prefix}duplicate field `{name}`"


def test_a_name_that_cannot_be_is_a_bad_path_whatever_the_query_says(api: Api) -> None:
    assert api.get(f"{METRICS}/X").error == (400, "bad_path")
    assert api.get(f"{METRICS}/X?set=nothing").error == (400, "bad_path")
    assert api.get(f"{METRICS}/{BASIN}/%FF?set=storage").error == (400, "bad_path")


@pytest.mark.parametrize("of", OF_BASIN)
def test_nobody_knows_of_a_basin_or_a_window_without_usage(
    api: Api, now: Callable[[], int], of: str
) -> None:
    for path in (f"{METRICS}/no-such-basin", f"{METRICS}/{BASIN}"):
        old = now() - 3000 * DAY
        assert ask(api, path, set=of, start=old, end=old + DAY).json == {"values": []}
    unknown = ask(api, f"{METRICS}/no-such-basin", set=of, start=now() - DAY, end=now())
    assert unknown.json == {"values": []}
    stream = f"{METRICS}/{BASIN}/no-such-stream"
    found = ask(api, stream, set="storage", start=now() - DAY, end=now() + 60)
    assert (found.status, found.json) == (200, {"values": []})


# Totals


def test_appends_are_counted_by_batch_and_metered_byte_for_each_storage_class(
    basin: Api, now: Callable[[], int]
) -> None:
    assert basin.put(f"{STREAMS}/standard").status == 201
    changed = basin.send_json("PATCH", f"{STREAMS}/standard", {"storage_class": "standard"})
    assert changed.status == 200
    for _ in range(3):
        assert basin.append("s", "12345", "1").status == 200
    call = basin.open("POST", f"{STREAMS}/standard/records", SESSION)
    frames = Frames(call)
    for _ in range(4):
        call.send(append(b"xyz"))
        assert frames.take().ack.end.seq_num
    call.end()
    rest_of(call)
    refused = basin.append("s", "never", match_seq_num=99)
    assert refused.status == 412
    path = f"{METRICS}/{basin.basin}"
    for interval in SECS:
        assert lately(basin, path, "append-ops", now(), interval) == {"express": 3, "standard": 4}
        assert lately(basin, path, "append-throughput", now(), interval) == {
            "express": 3 * (13 + 9),
            "standard": 4 * 11,
        }


def test_reads_are_counted_by_call_by_minute_of_a_session_and_by_metered_byte(
    basin: Api,
    server: Server,
    now: Callable[[], int],
    pass_time: Callable[[float], None],
) -> None:
    basin.append("s", "12345", "1")
    records = f"{STREAMS}/s/records?seq_num=0"
    for _ in range(3):
        assert basin.get(records).status == 200
    assert basin.get(f"{STREAMS}/s/records?seq_num=99").status == 416
    assert basin.get(f"{STREAMS}/missing/records?seq_num=0").status == 404
    for headers in (SESSION, EVENTS):
        ended = basin.request("GET", f"{records}&count=1", headers)
        assert ended.status == 200
    path = f"{METRICS}/{basin.basin}"
    name = str(basin.basin)
    assert lately(basin, path, "read-ops", now()) == {"unary": 3, "streaming": 2}
    delivered = 3 * 22 + 2 * 13
    assert lately(basin, path, "read-throughput", now()) == {"metered_bytes": delivered}
    follower = Frames(basin.open("GET", f"{STREAMS}/s/records?seq_num=0", SESSION, body=b""))
    assert len(follower.take().batch.records) == 2
    eventually(lambda: server.users(name, "s") == 1)
    for _ in range(5):
        pass_time(60)
    assert lately(basin, path, "read-ops", now()) == {"unary": 3, "streaming": 2 + 1 + 5}
    follower.call.abort()
    eventually(lambda: server.users(name, "s") == 0)
    pass_time(600)
    for interval in SECS:
        assert lately(basin, path, "read-ops", now(), interval) == {"unary": 3, "streaming": 8}
        assert lately(basin, path, "read-throughput", now(), interval) == {
            "metered_bytes": delivered + 22
        }


def test_calls_about_a_basin_are_counted_by_operation_once_they_succeed(
    basin: Api, now: Callable[[], int]
) -> None:
    for path in (STREAMS, STREAMS, f"{STREAMS}/s", f"{STREAMS}/s/records/tail"):
        assert basin.get(path).status == 200
    assert basin.get(f"/v1/basins/{basin.basin}").status == 200
    assert basin.post(STREAMS, {"stream": "t"}).status == 201
    assert basin.post(STREAMS, {"stream": "t"}).status == 409
    assert basin.get(f"{STREAMS}/missing").status == 404
    assert basin.send_json("PATCH", f"{STREAMS}/t", {}).status == 200
    assert basin.delete(f"{STREAMS}/t").status == 202
    for interval in SECS:
        assert lately(basin, f"{METRICS}/{basin.basin}", "basin-ops", now(), interval) == {
            "list-streams": 2,
            "get-stream-config": 1,
            "check-tail": 1,
            "get-basin-config": 1,
            "create-stream": 2,  # the PUT of the fixture, and the POST
            "reconfigure-stream": 1,
            "delete-stream": 1,
        }


def test_calls_about_the_account_are_counted_by_operation_and_those_for_metrics_too(
    api: Api, now: Callable[[], int]
) -> None:
    before = lately(api, METRICS, "account-ops", now())
    name = f"counted-basin-{next(NUMBERS):04}"
    assert api.get("/v1/basins").status == 200
    assert api.post("/v1/basins", {"basin": name}).status == 201
    assert api.send_json("PATCH", f"/v1/basins/{name}", {}).status == 200
    assert api.get("/v1/locations").status == 200
    assert api.get("/v1/locations/default").status == 200
    assert api.delete(f"/v1/basins/{name}").status == 202
    window = {"start": now() - 60, "end": now()}
    assert ask(api, f"{METRICS}/{BASIN}", set="storage", **window).status == 200
    assert ask(api, f"{METRICS}/{BASIN}/s", set="storage", **window).status == 200
    assert ask(api, METRICS, set="nothing").status == 400
    after = lately(api, METRICS, "account-ops", now())
    assert {op: after[op] - before.get(op, 0) for op in after if after[op] != before.get(op)} == {
        "list-basins": 1,
        "create-basin": 1,
        "reconfigure-basin": 1,
        "list-locations": 1,
        "get-default-location": 1,
        "delete-basin": 1,
        "basin-metrics": 1,
        "stream-metrics": 1,
        "account-metrics": 1,
    }


def test_active_basins_had_a_stream_within_the_window(
    api: Api, basin: Api, now: Callable[[], int], pass_time: Callable[[float], None]
) -> None:
    idle = f"idle-basin-{next(NUMBERS):04}"
    assert api.put(f"/v1/basins/{idle}").status == 201

    def active(start: int, end: int) -> set[str]:
        found = ask(api, METRICS, set="active-basins", start=start, end=end).json
        (metric,) = found["values"]
        assert metric.keys() == {"label"}
        assert metric["label"].keys() == {"name", "values"}
        assert metric["label"]["name"] == "active_basins"
        names = metric["label"]["values"]
        assert names == sorted(names)
        return set(names)

    name = str(basin.basin)
    born = now()
    assert name in active(born, born + 1)
    assert name not in active(born - DAY, born)
    assert name not in active(born, born)
    pass_time(2 * DAY)
    assert name in active(born + DAY, born + DAY + 1), "though nothing happened there"
    assert idle not in active(born, now())
    assert basin.delete(f"{STREAMS}/s").status == 202
    died = now()
    eventually(lambda: basin.get(f"{STREAMS}/s").status == 404)
    pass_time(2 * DAY)
    assert name in active(died - 60, died + 60)
    assert name not in active(died + 60, died + DAY)


def test_storage_is_a_gauge_that_follows_appends_trims_and_deletions(
    basin: Api, server: Server, now: Callable[[], int], pass_time: Callable[[float], None]
) -> None:
    name = str(basin.basin)
    pass_time(3600 - now() % 3600)
    hour = now()

    def sizes(path: str, start: int, end: int) -> list[list[float]]:
        values = ask(basin, path, set="storage", start=start, end=end).json["values"]
        if not values:
            return []
        (metric,) = values
        assert metric.keys() == {"gauge"}
        assert metric["gauge"].keys() == {"name", "unit", "values"}
        assert (metric["gauge"]["name"], metric["gauge"]["unit"]) == ("metered_size", "bytes")
        found: list[list[float]] = metric["gauge"]["values"]
        return found

    def kept() -> None:
        server.run(server.node.housekeeping.flush_usage())

    of_basin, of_stream = f"{METRICS}/{name}", f"{METRICS}/{name}/s"
    basin.append("s", "12345")
    assert sizes(of_basin, hour, hour + 1) == [[hour, 13]]
    assert sizes(of_stream, hour, hour + 1) == [[hour, 13]]
    kept()
    pass_time(3 * 3600)
    assert sizes(of_basin, hour, now()) == [[hour + 3600 * at, 13] for at in range(3)]
    basin.append("s", "1")
    kept()
    assert sizes(of_basin, hour, now() + 1) == [
        *([hour + 3600 * at, 13] for at in range(3)),
        [now(), 22],
    ]
    pass_time(60)
    minutes = sizes(of_stream, now() - 120, now() + 60)
    assert minutes == [[now() - 120, 13], [now() - 60, 22], [now(), 22]]
    trim = {"headers": [["", "trim"]], "body": "\0\0\0\0\0\0\0\2"}
    assert basin.post(f"{STREAMS}/s/records", {"records": [trim]}).status == 200
    server.call(server.node.housekeeping.expire)
    left = sizes(of_stream, now(), now() + 1)[0][1]
    assert left == 8 + 2 + 4 + 8, "the trim record itself"
    assert basin.delete(f"{STREAMS}/s").status == 202
    eventually(lambda: basin.get(f"{STREAMS}/s").status == 404)
    assert sizes(of_stream, now(), now() + 1) == []
    assert sizes(of_basin, hour + 3 * 3600, now() + 60) == [[hour + 3 * 3600, 0]]


def test_minutes_are_told_apart_for_two_days_hours_for_a_month_and_days_for_longer(
    basin: Api, now: Callable[[], int], pass_time: Callable[[float], None]
) -> None:
    path = f"{METRICS}/{basin.basin}"
    pass_time(DAY - now() % DAY)
    began = now()
    for _ in range(3):
        basin.append("s", "x")
        pass_time(60)

    def totals(interval: str) -> list[list[float]]:
        window = {"start": began, "end": min(began + DAY, now())}
        found = ask(basin, path, set="append-ops", interval=interval, **window).json["values"]
        return found[0]["accumulation"]["values"] if found else []

    minutes = [[began, 1], [began + 60, 1], [began + 120, 1]]
    whole = [[began, 3]]
    assert (totals("minute"), totals("hour"), totals("day")) == (minutes, whole, whole)
    pass_time(3 * DAY)
    basin.append("s", "x")
    assert (totals("minute"), totals("hour"), totals("day")) == ([], whole, whole)
    pass_time(40 * DAY)
    basin.append("s", "x")
    assert (totals("minute"), totals("hour"), totals("day")) == ([], [], whole)


def test_without_prices_nothing_is_estimated(api: Api, now: Callable[[], int]) -> None:
    window = {"start": now() - DAY, "end": now()}
    assert ask(api, METRICS, set="estimated-billable-usage", **window).json == {"values": []}


def test_prices_are_put_on_what_was_used(version: str, client_thread: LoopThread) -> None:
    clock = ManualClock(NOW_S * 1000)
    gib = 2**30
    prices = UsagePrices(
        append_gib=gib, read_gib=2 * gib, storage_gib_month=730 * gib, operations_million=1e6
    )
    with (
        Server(cors=False, clock=clock, prices=prices) as server,
        Connected(version, server.port, client_thread) as connected,
    ):
        api = Api(connected.client, BASIN)
        api.put(f"/v1/basins/{BASIN}")
        api.put(f"{STREAMS}/s")
        api.append("s", "12345")
        api.get(f"{STREAMS}/s/records?seq_num=0")
        server.run(server.node.housekeeping.flush_usage())
        server.call(lambda: clock.advance(7200))
        for interval, hours in (("hour", 2), ("day", 3)):  # of the day, the third has begun
            found = ask(
                api,
                METRICS,
                set="estimated-billable-usage",
                start=NOW_S,
                end=NOW_S + 7200,
                interval=interval,
            ).json["values"]
            totals = {}
            for metric in found:
                assert metric["accumulation"]["unit"] == "usd"
                values = metric["accumulation"]["values"]
                totals[metric["accumulation"]["name"]] = sum(value for _, value in values)
            operations = {"hour": 4, "day": 5}[interval]
            assert totals == pytest.approx(
                {
                    "append": 13,
                    "read": 26,
                    "storage": 13 * hours,
                    "operations": operations,
                    "total": 13 + 26 + 13 * hours + operations,
                }
            )
