"""What bodies are and what clients want back: media types, optional bodies, content codings."""

import gzip
import json
import zlib
from collections.abc import Callable
from random import Random

import pytest
import zstandard

from bourn.limits import UNARY_BODY_BYTES_MAX
from tests.http.clients import FICKLE, JSON, Api, Reply
from tests.wire.schema import AppendAck, AppendInput, ReadBatch

STREAMS = "/v1/streams"
ACK = {"seq_num", "timestamp"}
INPUT = b'{"records":[{"body":"x"}]}'
PROTO_INPUT = b"\x0a\x03\x1a\x01x"
JSON_TYPES = [
    "application/json",
    "APPLICATION/JSON",
    "application/json; charset=utf-8",
    "application/vnd.api+json",
    " application/json ;q=0",
    "application/json, text/html",
]
PROTO_TYPES = [
    "application/protobuf",
    "application/x-protobuf",
    "Application/Protobuf;proto=x",
    "application/x-protobuf,application/json",
]
OTHER_ACCEPTS = [
    None,
    "*/*",
    "text/html",
    "text/html, application/protobuf",
    "nonsense",
    "",
    "/",
    "application/",
    "application/json",
    "application/problem+json, application/protobuf",
]


@pytest.fixture(params=["h1", FICKLE, "h2"])
def version(request: pytest.FixtureRequest) -> str:
    """The quick way too: see H1Client."""
    found: str = request.param
    return found


def is_json(reply: Reply) -> bool:
    return reply.header("content-type") == "application/json" and json.loads(reply.body) is not None


@pytest.mark.parametrize("accept", OTHER_ACCEPTS)
@pytest.mark.parametrize("media", ["application/json", "application/protobuf"])
def test_an_ack_is_json_whatever_is_accepted_but_protobuf(
    api: Api, stream: str, media: str, accept: str | None
) -> None:
    headers = {"content-type": media} | ({} if accept is None else {"accept": accept})
    body = INPUT if media == "application/json" else PROTO_INPUT
    reply = api.request("POST", f"{STREAMS}/{stream}/records", headers, body)
    assert reply.status == 200
    assert set(reply.json) == {"start", "end", "tail"}


@pytest.mark.parametrize("accept", PROTO_TYPES)
@pytest.mark.parametrize("media", [*JSON_TYPES, *PROTO_TYPES])
def test_encodings_of_request_and_response_are_independent(
    api: Api, stream: str, media: str, accept: str
) -> None:
    body = INPUT if media in JSON_TYPES else PROTO_INPUT
    headers = {"content-type": media, "accept": accept}
    reply = api.request("POST", f"{STREAMS}/{stream}/records", headers, body)
    assert reply.status == 200
    assert reply.header("content-type") == "application/protobuf"
    ack = AppendAck.FromString(reply.body)
    assert (ack.HasField("start"), ack.end.seq_num, ack.tail.seq_num) == (True, 1, 1)


@pytest.mark.parametrize("accept", PROTO_TYPES)
def test_a_read_is_protobuf_where_that_is_accepted(api: Api, stream: str, accept: str) -> None:
    api.append(stream, "a", "b")
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0", {"accept": accept})
    assert reply.header("content-type") == "application/protobuf"
    batch = ReadBatch.FromString(reply.body)
    assert [record.body for record in batch.records] == [b"a", b"b"]
    assert not batch.HasField("tail")


@pytest.mark.parametrize("accept", OTHER_ACCEPTS)
def test_a_read_is_json_otherwise(api: Api, stream: str, accept: str | None) -> None:
    api.append(stream, "a")
    headers = {"content-type": "text/plain"} | ({} if accept is None else {"accept": accept})
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0", headers)
    assert [record["body"] for record in reply.json["records"]] == ["a"]


@pytest.mark.parametrize(
    "media", [None, "", "text/plain", "text/plain, application/json", "application", "json"]
)
def test_an_append_of_an_unknown_type_is_bad_json(api: Api, stream: str, media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    reply = api.request("POST", f"{STREAMS}/{stream}/records", headers, INPUT)
    assert reply.error == (400, "bad_json")


def test_a_session_is_told_by_the_content_type_whatever_is_accepted(api: Api, stream: str) -> None:
    api.append(stream, "a")
    for accept in ("s2s/proto", "application/protobuf", "text/event-stream", "*/*"):
        headers = {"content-type": "S2S/Proto; x=y", "accept": accept}
        for method, path in (("GET", "?seq_num=0&count=1"), ("POST", "")):
            reply = api.request(method, f"{STREAMS}/{stream}/records{path}", headers)
            assert (reply.status, reply.header("content-type")) == (200, "s2s/proto")


@pytest.mark.parametrize("accept", ["text/event-stream", "Text/Event-Stream;q=0.1, */*"])
def test_events_are_told_by_what_is_accepted(api: Api, stream: str, accept: str) -> None:
    api.append(stream, "a")
    path = f"{STREAMS}/{stream}/records?seq_num=0&count=1"
    reply = api.get(path, {"accept": accept})
    assert (reply.status, reply.header("content-type")) == (200, "text/event-stream")


@pytest.mark.parametrize("accept", ["application/protobuf", "text/event-stream", "s2s/proto"])
def test_errors_are_json_whatever_is_accepted(api: Api, accept: str) -> None:
    for path in ("missing/records?seq_num=0", "missing/records?seq_num=x", "missing"):
        assert is_json(api.get(f"{STREAMS}/{path}", {"accept": accept}))
    reply = api.request(
        "POST", f"{STREAMS}/missing/records", {"accept": accept, **JSON}, b'{"records":[{}]}'
    )
    assert reply.error == (404, "stream_not_found")


# Optional bodies


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({}, b"whatever"),
        ({}, b'{"retention_policy":{"age":5}}'),
        (JSON, b""),
        (JSON, b"null"),
        (JSON, b"{}"),
    ],
)
def test_a_put_without_a_body_asks_for_the_defaults(
    api: Api, stream: str, headers: dict[str, str], body: bytes
) -> None:
    path = f"{STREAMS}/{stream}"
    api.send_json("PATCH", path, {"retention_policy": {"age": 77}})
    reply = api.request("PUT", path, headers, body)
    assert (reply.status, reply.header("s2-provision-result")) == (200, "updated")
    assert api.get(path).json["retention_policy"] == {"age": 604_800}


@pytest.mark.parametrize(
    ("headers", "body"), [({}, b""), ({}, b"whatever"), (JSON, b""), (JSON, b"null"), (JSON, b"{}")]
)
def test_a_put_of_a_basin_without_a_body_asks_for_the_defaults(
    api: Api, headers: dict[str, str], body: bytes
) -> None:
    path = "/v1/basins/optional-body"
    api.send_json("PUT", path, {"config": {"create_stream_on_read": True}})
    reply = api.request("PUT", path, headers, body)
    assert (reply.status, reply.header("s2-provision-result")) == (200, "updated")
    assert api.get(path).json["create_stream_on_read"] is False


@pytest.mark.parametrize("media", ["text/plain", "application/protobuf"])
def test_a_put_of_something_else_is_bad_json(api: Api, stream: str, media: str) -> None:
    for path in (f"{STREAMS}/{stream}", "/v1/basins/optional-body"):
        reply = api.request("PUT", path, {"content-type": media}, b"")
        assert reply.error == (400, "bad_json")


# Content codings of requests


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def unsized_zstd(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


CODINGS: dict[str, list[Callable[[bytes], bytes]]] = {
    "gzip": [gzipped],
    "GZIP": [gzipped],
    "x-gzip": [gzipped],
    "zstd": [zstd, unsized_zstd],
    "identity": [bytes],
    "identity, gzip": [gzipped],
}
CODED = [(name, encode) for name, found in CODINGS.items() for encode in found]


@pytest.mark.parametrize(("coding", "encode"), CODED)
def test_every_body_may_be_compressed(
    api: Api, stream: str, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    path = f"{STREAMS}/{stream}"
    coded = {"content-encoding": coding}
    assert api.request("POST", f"{path}/records", JSON | coded, encode(INPUT)).status == 200
    headers = {"content-type": "application/protobuf", **coded}
    assert api.request("POST", f"{path}/records", headers, encode(PROTO_INPUT)).status == 200
    assert api.get(f"{path}/records/tail").json["tail"]["seq_num"] == 2
    config = b'{"retention_policy":{"age":99}}'
    assert api.request("PATCH", path, JSON | coded, encode(config)).json["retention_policy"] == {
        "age": 99
    }
    assert api.request("PUT", path, JSON | coded, encode(b"null")).status == 200
    create = b'{"stream":"%b"}' % stream.encode()
    reply = api.request("POST", STREAMS, JSON | coded, encode(create))
    assert reply.error == (409, "resource_already_exists")


@pytest.mark.parametrize("coding", ["br", "deflate", "compress", "gzip, zstd", "gzip, gzip", "x"])
def test_other_codings_are_415_without_a_body(api: Api, stream: str, coding: str) -> None:
    for method, path in (
        ("POST", f"{STREAMS}/{stream}/records"),
        ("PUT", f"{STREAMS}/{stream}"),
        ("PATCH", f"{STREAMS}/{stream}"),
        ("POST", "/v1/basins"),
        ("GET", f"{STREAMS}/{stream}"),
    ):
        reply = api.request(method, path, JSON | {"content-encoding": coding}, INPUT)
        assert (reply.status, reply.named, reply.body) == (415, {"content-length": "0"}, b"")


def test_a_session_takes_no_content_coding_at_all(api: Api, stream: str) -> None:
    for coding in ("gzip", "zstd", "br"):
        headers = {"content-type": "s2s/proto", "content-encoding": coding}
        assert api.request("POST", f"{STREAMS}/{stream}/records", headers).status == 415
    headers = {"content-type": "s2s/proto", "content-encoding": "identity"}
    assert api.request("POST", f"{STREAMS}/{stream}/records", headers).status == 200


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_corrupt_body_is_bad(api: Api, stream: str, coding: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    good = gzipped(INPUT) if coding == "gzip" else zstd(INPUT)
    for body in (b"", b"x", INPUT, good[:-1], good + b"x", good + good):
        for media, code in (("json", "bad_json"), ("protobuf", "bad_proto")):
            headers = {"content-type": f"application/{media}", "content-encoding": coding}
            assert api.request("POST", path, headers, body).error == (400, code)


def padded(size: int) -> bytes:
    """An append of this many bytes of text."""
    return b'{"records":[{"body":"x"}]' + b" " * (size - len(b'{"records":[{"body":"x"}]}')) + b"}"


def test_a_body_of_two_mebibytes_is_taken_and_of_one_byte_more_is_not(
    api: Api, stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    most = UNARY_BODY_BYTES_MAX
    for coding, encode in (("identity", bytes), ("gzip", gzipped), ("zstd", unsized_zstd)):
        headers = JSON | {"content-encoding": coding}
        assert api.request("POST", path, headers, encode(padded(most))).status == 200
        reply = api.request("POST", path, headers, encode(padded(most + 1)))
        assert reply.error == (400, "bad_json")
        headers = {"content-type": "application/protobuf", "content-encoding": coding}
        reply = api.request("POST", path, headers, encode(bytes(most + 1)))
        assert reply.error == (400, "bad_proto")


def test_a_body_that_grew_by_compression_still_counts_as_large_as_it_is(
    api: Api, stream: str
) -> None:
    noise = Random(1).randbytes(UNARY_BODY_BYTES_MAX // 2 - 32).hex().encode()
    body = b'{"records":[{}],"x":"%b"}' % noise
    stored = zlib.compressobj(0, zlib.DEFLATED, 31)
    coded = stored.compress(body) + stored.flush()
    assert len(body) <= UNARY_BODY_BYTES_MAX < len(coded)
    headers = JSON | {"content-encoding": "gzip"}
    reply = api.request("POST", f"{STREAMS}/{stream}/records", headers, coded)
    assert reply.status == 200


def test_a_bomb_is_refused_at_its_limit(api: Api, stream: str) -> None:
    zeros = bytes(64 << 20)
    for coding, bomb in (("gzip", gzipped(zeros)), ("zstd", unsized_zstd(zeros))):
        headers = JSON | {"content-encoding": coding}
        reply = api.request("POST", f"{STREAMS}/{stream}/records", headers, bomb)
        assert reply.error == (400, "bad_json")
        assert "2097152" in reply.json["message"]


# Content codings of responses


@pytest.fixture
def large(api: Api, stream: str) -> str:
    """The path of a read whose answer is some kilobytes."""
    api.append(stream, "x" * 4000)
    return f"{STREAMS}/{stream}/records?seq_num=0"


def decoded(reply: Reply) -> bytes:
    coding = reply.header("content-encoding")
    if coding == "gzip":
        return gzip.decompress(reply.body)
    if coding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(reply.body)
    assert coding is None
    return reply.body


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("br, deflate", None),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("zstd", "zstd"),
        ("gzip, zstd", "zstd"),
        ("zstd, gzip", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("gzip;q=0.5, zstd;q=0.5", "zstd"),
        ("gzip; q=0.1, zstd; q=0", "gzip"),
        ("*", "zstd"),
        ("*, zstd;q=0", "gzip"),
        ("gzip;q=0, zstd;q=0", None),
        ("identity;q=0, gzip", "gzip"),
        ("*;q=0, gzip", "gzip"),
        ("gzip;q=nonsense", None),
    ],
)
def test_a_large_answer_is_coded_as_the_client_likes_best(
    api: Api, large: str, accepted: str | None, coding: str | None
) -> None:
    plain = api.get(large)
    reply = api.get(large, {} if accepted is None else {"accept-encoding": accepted})
    assert reply.status == 200
    assert reply.header("content-encoding") == coding
    assert reply.header("vary") == "accept-encoding"
    assert reply.header("content-length") == str(len(reply.body))
    assert decoded(reply) == plain.body
    assert coding is None or len(reply.body) < len(plain.body)


def test_several_lines_of_accept_encoding_count_as_one(api: Api, large: str) -> None:
    lines = [("accept-encoding", "gzip;q=0.5"), ("accept-encoding", "zstd")]
    assert api.get(large, lines).header("content-encoding") == "zstd"


@pytest.mark.parametrize("accepted", ["identity;q=0", "*;q=0", "identity;q=0, br, zstd;q=0"])
def test_a_client_that_takes_none_of_our_codings_is_told_so_and_nothing_happens(
    api: Api, stream: str, accepted: str
) -> None:
    headers = {"accept-encoding": accepted}
    path = f"{STREAMS}/{stream}"
    for reply in (
        api.post(f"{path}/records", {"records": [{}]}, headers),
        api.get(f"{path}/records/tail", headers),
        api.delete(path, headers),
    ):
        assert (reply.status, reply.named, reply.body) == (406, {"content-length": "0"}, b"")
    assert api.get(f"{path}/records/tail").json["tail"]["seq_num"] == 0


def test_an_answer_is_compressed_from_1024_bytes_on(api: Api, stream: str) -> None:
    overhead = len('{"records":[{"seq_num":0,"timestamp":1700000000000,"body":""}]}')
    for size, coded in ((1023, False), (1024, True)):
        api.append(stream, "x" * (size - overhead))
        seq_num = api.get(f"{STREAMS}/{stream}/records/tail").json["tail"]["seq_num"] - 1
        path = f"{STREAMS}/{stream}/records?seq_num={seq_num}"
        reply = api.get(path, {"accept-encoding": "gzip"})
        assert len(decoded(reply)) == size
        assert (reply.header("content-encoding") == "gzip") is coded
        assert (reply.header("vary") == "accept-encoding") is coded


def test_protobuf_listings_and_errors_are_compressed_alike(api: Api, large: str) -> None:
    headers = {"accept-encoding": "zstd", "accept": "application/protobuf"}
    reply = api.get(large, headers)
    assert reply.header("content-encoding") == "zstd"
    assert len(ReadBatch.FromString(decoded(reply)).records) == 1
    for index in range(12):
        api.put(f"{STREAMS}/listed-{'x' * 60}-{index}")
    listing = api.get(f"{STREAMS}?prefix=listed", {"accept-encoding": "gzip"})
    assert listing.header("content-encoding") == "gzip"
    assert len(json.loads(decoded(listing))["streams"]) == 12


def test_sessions_and_events_are_never_coded_as_a_whole(api: Api, large: str) -> None:
    for headers in ({"content-type": "s2s/proto"}, {"accept": "text/event-stream"}):
        reply = api.get(f"{large}&count=1", headers | {"accept-encoding": "zstd, gzip"})
        assert reply.status == 200
        assert reply.header("content-encoding") is None
        assert reply.header("vary") is None
        assert reply.body


def test_a_message_of_our_own_library_is_what_the_schema_says(api: Api, stream: str) -> None:
    wanted = AppendInput()
    record = wanted.records.add(timestamp=7, body=b"\x00\xff")
    record.headers.add(name=b"n", value=b"\xfe")
    wanted.match_seq_num = 0
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    path = f"{STREAMS}/{stream}/records"
    reply = api.request("POST", path, headers, wanted.SerializeToString())
    assert reply.body == bytes.fromhex("0a021007 120408011007 1a0408011007")
    (found,) = ReadBatch.FromString(api.get(f"{path}?seq_num=0", headers).body).records
    assert (found.seq_num, found.timestamp, found.body) == (0, 7, b"\x00\xff")
    assert [(header.name, header.value) for header in found.headers] == [(b"n", b"\xfe")]
