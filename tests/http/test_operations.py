"""What surrounds the API: pages of other origins, health, metrics."""

import re
from collections.abc import Iterator

import pytest

from tests.http.clients import EVENTS, JSON, SESSION, Api, Connected, Reply, reply_of
from tests.http.conftest import BASIN
from tests.http.frames import append
from tests.http.server import CLOCK, LoopThread, Server, eventually

STREAMS = "/v1/streams"
ORIGIN = {"origin": "https://page.example"}
VARY = "origin, access-control-request-method, access-control-request-headers"
EXPOSED = "s2-provision-result, retry-after-ms"
SHARED = {
    "access-control-allow-origin": "https://page.example",
    "access-control-allow-credentials": "true",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=True) as running:
        yield running


# Other origins


def is_readable(reply: Reply) -> bool:
    expected = SHARED | {"access-control-expose-headers": EXPOSED}
    found = {name: value for name, value in reply.fields if name.startswith("access-control")}
    return found == expected and VARY in reply.values("vary")


def test_every_answer_may_be_read_by_a_page_of_any_origin(api: Api, stream: str) -> None:
    api.append(stream, "x" * 2000)
    records = f"{STREAMS}/{stream}/records"
    for reply in (
        api.get("/health", ORIGIN),
        api.get("/v1/basins", ORIGIN),
        api.put(f"{STREAMS}/{stream}", ORIGIN),
        api.post(records, {"records": [{}]}, ORIGIN),
        api.get(f"{records}?seq_num=0", ORIGIN),
        api.get(f"{records}?seq_num=0&count=1", ORIGIN | EVENTS),
        api.get(f"{records}?seq_num=0&count=1", ORIGIN | SESSION),
        api.request("POST", records, ORIGIN | SESSION, append(b"x")),
        api.request("HEAD", "/v1/basins", ORIGIN),
    ):
        assert reply.status == 200
        assert is_readable(reply)


def test_every_error_may_be_read_by_a_page_of_any_origin(api: Api, stream: str) -> None:
    for reply, status in (
        (api.get("/nothing/here", ORIGIN), 404),
        (api.request("PATCH", "/health", ORIGIN), 405),
        (api.get(f"{STREAMS}/missing", ORIGIN), 404),
        (api.get(f"{STREAMS}/{stream}/records", ORIGIN), 416),
        (api.get(f"{STREAMS}/{stream}/records?seq_num=x", ORIGIN), 400),
        (api.request("POST", f"{STREAMS}/{stream}", ORIGIN | {"content-encoding": "br"}), 405),
        (api.get(STREAMS, ORIGIN | {"content-encoding": "br"}), 415),
        (api.get("/v1/metrics", ORIGIN), 400),
    ):
        assert reply.status == status
        assert is_readable(reply)


def test_an_answer_varies_by_coding_and_by_origin(api: Api, stream: str) -> None:
    api.append(stream, "x" * 2000)
    headers = ORIGIN | {"accept-encoding": "gzip"}
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0", headers)
    assert set(reply.values("vary")) == {"accept-encoding", VARY}


def test_without_an_origin_there_is_nothing_to_allow_but_the_answer_varies(api: Api) -> None:
    reply = api.get("/v1/basins")
    assert reply.header("vary") == VARY
    assert not any(name.startswith("access-control") for name, _ in reply.fields)


@pytest.mark.parametrize("path", ["/v1/basins", f"{STREAMS}/a%2Fb/records", "/health", "/nowhere"])
def test_a_preflight_is_allowed_what_it_asks_for(api: Api, path: str) -> None:
    asked = {
        "access-control-request-method": "PATCH",
        "access-control-request-headers": "s2-basin, s2-format,authorization",
    }
    reply = api.of(None).request("OPTIONS", path, ORIGIN | asked)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.named == SHARED | {
        "access-control-allow-methods": "PATCH",
        "access-control-allow-headers": "s2-basin, s2-format,authorization",
        "vary": VARY,
        "content-length": "0",
    }


def test_a_preflight_that_asks_for_nothing_gets_nothing(api: Api) -> None:
    reply = api.request("OPTIONS", "/v1/basins")
    assert (reply.status, reply.named) == (200, {"vary": VARY, "content-length": "0"})


def test_an_origin_that_is_no_text_is_not_echoed(api: Api) -> None:
    reply = api.get("/v1/basins", [("origin", b"https://\xff.example")])
    assert (reply.status, reply.header("access-control-allow-origin")) == (200, None)


def test_a_server_may_keep_pages_out(version: str, client_thread: LoopThread) -> None:
    with (
        Server(cors=False) as closed,
        Connected(version, closed.port, client_thread) as connected,
    ):
        api = Api(connected.client, None)
        reply = api.get("/v1/basins", ORIGIN)
        assert reply.named.keys() == {"content-type", "content-length"}
        preflight = api.request(
            "OPTIONS", "/v1/basins", ORIGIN | {"access-control-request-method": "POST"}
        )
        assert (preflight.status, preflight.header("allow")) == (405, "GET,HEAD,POST")


# Health and metrics


def test_a_serving_node_is_healthy(api: Api) -> None:
    for path in ("/health", "/ping"):
        reply = api.of(None).get(path)
        assert (reply.status, reply.body) == (200, b"OK")
        assert reply.header("content-type") == "text/plain; charset=utf-8"


HELP = re.compile(r"# HELP ([a-z_0-9]+) (\S.*)")
TYPE = re.compile(r"# TYPE ([a-z_0-9]+) (counter|gauge|histogram)")
LABELS = r'[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*'
SAMPLE = re.compile(rf'([a-z_0-9]+)(?:\{{(?:le="([^"]+)"|({LABELS}))\}})? ([0-9.e+-]+)')
SECONDS: list[float] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]
BOUNDS: dict[str, list[float]] = {
    "s2_append_permit_latency_seconds": SECONDS,
    "s2_append_ack_latency_seconds": SECONDS,
    "s2_append_batch_records": [1, 10, 50, 100, 250, 500, 1000],
    "s2_append_batch_bytes": [512, 1024, 4096, 16384, 65536, 262144, 524288, 1048576],
}


def scraped(api: Api) -> dict[str, dict[str | None, float]]:
    """Parse the exposition line by line: metric name to its samples by bound or labels."""
    reply = api.of(None).get("/metrics")
    assert (reply.status, reply.header("content-type")) == (200, "text/plain; version=0.0.4")
    assert reply.body.endswith(b"\n")
    helped: set[str] = set()
    kinds: dict[str, str] = {}
    samples: dict[str, dict[str | None, float]] = {}
    for line in reply.body.decode().splitlines():
        if match := HELP.fullmatch(line):
            assert match[1] not in helped
            helped.add(match[1])
        elif match := TYPE.fullmatch(line):
            assert match[1] in helped
            kinds[match[1]] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert (family if kinds.get(family) == "histogram" else match[1]) in kinds
            found = samples.setdefault(match[1], {})
            label = match[2] or match[3]
            assert label not in found
            found[label] = float(match[4])
    for name, kind in kinds.items():
        assert kind != "counter" or name.endswith("_total")
    assert helped == kinds.keys()
    return samples


def test_the_four_histograms_have_their_buckets(api: Api) -> None:
    samples = scraped(api)
    for name, bounds in BOUNDS.items():
        buckets = samples[f"{name}_bucket"]
        assert [float(bound or 0) for bound in buckets] == [*bounds, float("inf")]
        counts = list(buckets.values())
        assert counts == sorted(counts)
        assert counts[-1] == samples[f"{name}_count"][None]
        assert samples[f"{name}_sum"].keys() == {None}


def test_appends_are_counted_by_every_way_in(api: Api, stream: str) -> None:
    before = scraped(api)
    api.append(stream, "x" * 592)
    api.post(f"{STREAMS}/{stream}/records", {"records": [{}] * 20})
    body = append(b"", b"") + append(b"")
    assert api.request("POST", f"{STREAMS}/{stream}/records", SESSION, body).status == 200
    refused = api.append(stream, "x", match_seq_num=0)
    assert refused.status == 412
    after = scraped(api)

    def grown(name: str, bound: str | None = None) -> float:
        return after[name][bound] - before[name][bound]

    assert grown("s2_append_ack_latency_seconds_count") == 4
    assert grown("s2_append_batch_records_count") == 5
    assert grown("s2_append_batch_records_sum") == 1 + 20 + 2 + 1 + 1
    assert grown("s2_append_batch_records_bucket", "1") == 3
    assert grown("s2_append_batch_bytes_sum") == 600 + 160 + 16 + 8 + 9
    assert grown("s2_append_batch_bytes_bucket", "512") == 4
    assert grown("s2_append_permit_latency_seconds_count") == 5
    assert grown("bourn_requests_total") >= 5


def test_a_wait_for_room_is_measured(server: Server, api: Api, stream: str) -> None:
    room = server.node.term.room
    before = scraped(api)["s2_append_permit_latency_seconds_sum"][None]
    server.call(lambda: room.try_take(room.bytes_max))
    call = api.begin("POST", f"{STREAMS}/{stream}/records", JSON, body=b'{"records":[{}]}')
    eventually(lambda: room.waiting)
    server.run(CLOCK.sleep(0.05))
    server.call(lambda: room.give_back(room.bytes_max))
    assert reply_of(call).status == 200
    assert scraped(api)["s2_append_permit_latency_seconds_sum"][None] - before >= 0.05


def test_reads_and_sessions_are_counted(server: Server, api: Api, stream: str) -> None:
    api.append(stream, "a", "b")
    before = scraped(api)
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    assert api.get(path).status == 200
    assert api.get(f"{path}&count=1", EVENTS).status == 200
    assert api.get(f"{path}&count=2", SESSION).status == 200
    after = scraped(api)
    assert after["bourn_read_records_total"][None] - before["bourn_read_records_total"][None] == 5
    assert after["bourn_read_bytes_total"][None] - before["bourn_read_bytes_total"][None] == 45
    assert after["bourn_open_sessions"][None] == 0
    assert after["bourn_streams"][None] >= 1
    assert after["bourn_basins"][None] >= 1
    assert server.users(BASIN, stream) == 0
