"""Which paths and methods there are, how names stand in paths, and what a query may be."""

from urllib.parse import quote

import pytest

from tests.http.clients import Api, H1Call, H1Client, head_of, pairs
from tests.http.conftest import BASIN
from tests.http.server import Server

BASINS = "/v1/basins"
STREAMS = "/v1/streams"
ALLOWED = {
    "/health": "GET,HEAD",
    "/ping": "GET,HEAD",
    "/metrics": "GET,HEAD",
    "/v1/basins": "GET,HEAD,POST",
    "/v1/basins/some-basin": "GET,HEAD,PUT,PATCH,DELETE",
    "/v1/streams": "GET,HEAD,POST",
    "/v1/streams/s": "GET,HEAD,PUT,PATCH,DELETE",
    "/v1/streams/s/records": "GET,HEAD,POST",
    "/v1/streams/s/records/tail": "GET,HEAD",
    "/v1/access-tokens": "GET,HEAD,POST",
    "/v1/access-tokens/t": "DELETE",
    "/v1/locations": "GET,HEAD",
    "/v1/locations/default": "GET,HEAD,PUT",
    "/v1/metrics": "GET,HEAD",
    "/v1/metrics/some-basin": "GET,HEAD",
    "/v1/metrics/some-basin/s": "GET,HEAD",
    "/v1/basins/some-basin/streams/s/read": "GET,HEAD",
    "/v1/basins/some-basin/streams/s/append": "POST",
}
UNKNOWN = [
    "/",
    "/v1",
    "/v1/",
    "/v2/basins",
    "/basins",
    "/v1/health",
    "/health/",
    "/v1/basins/",
    "/v1/basins/some-basin/",
    "/v1/basins/some-basin/streams",
    "/v1/streams/",
    "/v1/streams/s/",
    "/v1/streams/a/b",
    "/v1/streams//records",
    "/v1/streams/s/records/",
    "/v1/streams/s/records/tail/",
    "/v1/streams/s/record",
    "/v1//streams",
    "//v1/streams",
    "/V1/streams",
    "/v1/locations/other",
]


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_path_is_404_without_a_body(api: Api, path: str) -> None:
    reply = api.get(path)
    assert (reply.status, reply.named, reply.body) == (404, {"content-length": "0"}, b"")


@pytest.mark.parametrize("path", ALLOWED)
def test_a_known_path_with_a_wrong_method_is_405_and_says_what_is_allowed(
    api: Api, path: str
) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
        if method not in ALLOWED[path].split(","):
            reply = api.request(method, path)
            assert (reply.status, reply.body) == (405, b""), method
            assert reply.named == {"allow": ALLOWED[path], "content-length": "0"}


def test_routing_comes_before_everything_else(api: Api) -> None:
    bad = {"s2-basin": "X", "s2-format": "X", "content-encoding": "X"}
    assert api.get("/v1/streams/a/b?seq_num=x", bad).status == 404
    assert api.request("PUT", "/v1/streams/s/records?seq_num=x", bad).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/health",
        BASINS,
        f"{BASINS}/{BASIN}",
        STREAMS,
        "/v1/locations",
        "/v1/metrics",
        "/v1/streams/missing",
        "/v1/streams/missing/records/tail",
        "/v1/streams/missing/records?seq_num=x",
    ],
)
def test_head_answers_as_get_does_without_the_body(api: Api, path: str) -> None:
    got, head = api.get(path), api.request("HEAD", path)
    assert got.body
    assert head.body == b""
    assert (head.status, head.named) == (got.status, got.named)


def test_a_connection_goes_on_after_a_head(api: Api, stream: str) -> None:
    api.append(stream, "x")
    for headers in ({}, {"accept": "text/event-stream"}, {"content-type": "s2s/proto"}):
        reply = api.request("HEAD", f"{STREAMS}/{stream}/records?seq_num=0", headers)
        assert (reply.status, reply.body) == (200, b"")
    assert api.get("/health").body == b"OK"


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "/",
        "//",
        "a b",
        "é",
        "日本語",
        "🙂",
        "?",
        "#",
        "%",
        "%2F",
        "a%20b",
        "+",
        "&=",
        "...",
        "records",
        "a/records",
        "\n\t\x01\x7f",
        "'\"`<>\\",
        "x" * 512,
        "é" * 256,
    ],
)
def test_a_stream_is_found_by_its_encoded_name(api: Api, name: str) -> None:
    path = f"{STREAMS}/{quote(name, safe='')}"
    try:
        assert api.put(path).json["name"] == name
        assert api.get(path).status == 200
        assert api.post(f"{path}/records", {"records": [{"body": "x"}]}).status == 200
        assert api.get(f"{path}/records/tail").json["tail"]["seq_num"] == 1
        found = api.get(f"{STREAMS}?prefix={quote(name)}").json["streams"]
        assert [info["name"] for info in found] == [name]
    finally:
        api.delete(path)


def test_a_segment_is_decoded_once_and_lower_or_upper_hexadecimal_alike(api: Api) -> None:
    name = "50%2f"
    assert api.put(f"{STREAMS}/50%252f").json["name"] == name
    assert api.get(f"{STREAMS}/50%252F").error == (404, "stream_not_found")
    assert api.get(f"{STREAMS}/%35%30%252%66").status == 200


def test_a_plus_in_a_path_is_a_plus_and_in_a_query_a_space(api: Api) -> None:
    for name in ("a+b", "a b"):
        assert api.put(f"{STREAMS}/{quote(name)}").json["name"] == name
    assert api.get(f"{STREAMS}/a+b").status == 200
    listed = api.get(f"{STREAMS}?prefix=a+b").json["streams"]
    assert [info["name"] for info in listed] == ["a b"]
    listed = api.get(f"{STREAMS}?prefix=a%2Bb").json["streams"]
    assert [info["name"] for info in listed] == ["a+b"]


@pytest.mark.parametrize(
    "segment", ["%FF", "%C3", "%ED%A0%80", "%00", ".", "%2E", "..", "%2e%2E", "x" * 513]
)
def test_a_stream_name_that_is_none_is_a_bad_path(api: Api, segment: str) -> None:
    for path in (segment, f"{segment}/records", f"{segment}/records/tail"):
        reply = api.get(f"{STREAMS}/{path}")
        assert reply.error == (400, "bad_path")
        assert reply.json["message"].startswith("Invalid URL: ")


@pytest.mark.parametrize(
    "segment", ["short", "UPPERCASE", "-basin-name", "basin-name-", "under_score", "x" * 49, "%FF"]
)
def test_a_basin_name_that_is_none_is_a_bad_path(api: Api, segment: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert api.request(method, f"{BASINS}/{segment}").error == (400, "bad_path")


@pytest.mark.parametrize("length", [8, 48])
def test_the_shortest_and_the_longest_basin_name_are_names(api: Api, length: int) -> None:
    name = "b" * length
    assert api.put(f"{BASINS}/{name}").status in {200, 201}
    assert api.get(f"{BASINS}/{name}").status == 200


# Queries

NUMBERS = ("seq_num", "timestamp", "tail_offset", "count", "bytes", "until", "wait")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    ["", "-1", "abc", "1.0", "1e3", "0x1", "18446744073709551616", "9" * 5000, "%201", "%D9%A1"],
    ids=lambda value: str(value)[:24],
)
def test_a_number_that_is_none_is_a_bad_query(api: Api, stream: str, name: str, value: str) -> None:
    reply = api.get(f"{STREAMS}/{stream}/records?{name}={quote(value, safe='%')}")
    assert reply.error == (400, "bad_query")
    assert reply.json["message"].startswith("Failed to deserialize query string: ")


@pytest.mark.parametrize("value", ["", "1", "0", "True", "TRUE", "yes", "null", "true%20"])
def test_a_boolean_is_exactly_true_or_false(api: Api, stream: str, value: str) -> None:
    path = f"{STREAMS}/{stream}/records?seq_num=9&clamp={value}"
    assert api.get(path).error == (400, "bad_query")


@pytest.mark.parametrize("name", [*NUMBERS, "clamp"])
def test_a_parameter_given_twice_is_a_bad_query(api: Api, stream: str, name: str) -> None:
    value = "false" if name == "clamp" else "0"
    reply = api.get(f"{STREAMS}/{stream}/records?{name}={value}&{name}={value}")
    assert reply.error == (400, "bad_query")
    assert f"`{name}`" in reply.json["message"]


def test_a_parameter_without_a_value_is_a_bad_query(api: Api, stream: str) -> None:
    assert api.get(f"{STREAMS}/{stream}/records?seq_num").error == (400, "bad_query")
    assert api.get(f"{STREAMS}/{stream}/records?clamp").error == (400, "bad_query")


def test_wait_has_32_bits(api: Api, stream: str) -> None:
    api.append(stream, "x")
    path = f"{STREAMS}/{stream}/records?seq_num=0&wait="
    assert api.get(f"{path}4294967295").status == 200
    assert api.get(f"{path}4294967296").error == (400, "bad_query")


def test_other_numbers_have_64_bits(api: Api, stream: str) -> None:
    most = 2**64 - 1
    path = f"{STREAMS}/{stream}/records?count={most}&bytes={most}&until={most}"
    assert api.get(f"{path}&seq_num={most}").status == 416
    assert api.get(f"{path}&timestamp={most - 1}").status == 416
    assert api.get(f"{path}&tail_offset={most}").status == 416


def test_leading_zeros_and_encoded_digits_do_not_matter(api: Api, stream: str) -> None:
    api.append(stream, "a", "b")
    reply = api.get(f"{STREAMS}/{stream}/records?seq%5Fnum={'0' * 40}%31")
    assert [record["body"] for record in reply.json["records"]] == ["b"]


def test_unknown_parameters_are_ignored_even_twice_and_malformed(api: Api, stream: str) -> None:
    api.append(stream, "a")
    reply = api.get(f"{STREAMS}/{stream}/records?x=1&x=2&&=&seq_num=0&SEQ_NUM=zz&y")
    assert reply.status == 200
    assert api.get(f"{BASINS}?seq_num=x").status == 200


@pytest.mark.parametrize("name", ["prefix", "start_after"])
def test_a_listing_checks_the_grammar_of_its_names(api: Api, name: str) -> None:
    for value in ("X", "-a", "a_b", "a" * 49, "%FF"):
        assert api.get(f"{BASINS}?{name}={value}").error == (400, "bad_query")
    for value in ("%00", "%FF", "x" * 513):
        assert api.get(f"{STREAMS}?{name}={value}").error == (400, "bad_query")
    for value in ("", "a", "a-", "8", "a" * 48):
        assert api.get(f"{BASINS}?{name}={value}").status == 200
    for value in ("", ".", "..", "x" * 512, "%0A"):
        assert api.get(f"{STREAMS}?{name}={value}").status == 200


@pytest.mark.parametrize("value", ["", "-1", "x", "18446744073709551616"])
def test_a_limit_that_is_no_number_is_a_bad_query(api: Api, value: str) -> None:
    assert api.get(f"{BASINS}?limit={value}").error == (400, "bad_query")
    assert api.get(f"{STREAMS}?limit={value}").error == (400, "bad_query")


# Headers


def test_of_a_repeated_header_the_first_counts(api: Api, stream: str) -> None:
    other = api.of(None)
    twice = [("s2-basin", BASIN), ("s2-basin", "X")]
    assert other.get(f"{STREAMS}/{stream}", twice).status == 200
    assert other.get(f"{STREAMS}/{stream}", reversed(twice)).error == (400, "bad_header")
    formats = [("s2-format", "base64"), ("s2-format", "X")]
    api.append(stream, "hi")
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0", formats)
    assert reply.json["records"][0]["body"] == "aGk="


@pytest.mark.parametrize("version", ["h1"])
def test_header_names_are_of_any_case_and_values_are_trimmed(server: Server, stream: str) -> None:
    client = H1Client(server.port)
    try:
        sock = client.connect()
        fields = [("Host", "x"), ("S2-BASIN", f" \t{BASIN}\t "), ("S2-Format", " raw ")]
        sock.sendall(head_of("GET", f"{STREAMS}/{stream}/records?count=0", fields))
        call = H1Call(None, sock)
        call.head()
        assert call.status == 200
    finally:
        client.close()


@pytest.mark.parametrize(
    "name", ["s2-basin", "s2-format", "s2-encryption-key", "s2-stream-config", "s2-request-token"]
)
@pytest.mark.parametrize("value", [b"caf\xc3\xa9", b"\xff", b"a\x80b"])
def test_a_header_that_is_not_visible_ascii_is_a_bad_header(
    api: Api, stream: str, name: str, value: bytes
) -> None:
    fields: list[tuple[str, str | bytes]] = [("content-type", "application/json"), (name, value)]
    if name == "s2-request-token":
        reply = api.request("POST", STREAMS, fields, b'{"stream":"new"}')
    else:
        reply = api.request("POST", f"{STREAMS}/{stream}/records", fields, b'{"records":[{}]}')
    assert reply.error == (400, "bad_header")
    assert f"`{name}`" in reply.json["message"]


def test_headers_that_mean_nothing_to_us_may_hold_anything(api: Api) -> None:
    assert api.get(BASINS, pairs([("x-other", b"caf\xc3\xa9 \xff")])).status == 200
