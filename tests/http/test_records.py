"""Unary appends and reads, checks of the tail, and what they are refused by."""

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from typing import Any

import pytest

from tests.http.clients import FICKLE, JSON, PROTO, Api, Reply, reply_of
from tests.http.conftest import BASIN
from tests.http.server import Server, eventually
from tests.wire.schema import AppendAck, AppendInput, ReadBatch

STREAMS = "/v1/streams"
NAMES = count(1)


@pytest.fixture(params=["h1", FICKLE, "h2"])
def version(request: pytest.FixtureRequest) -> str:
    """The quick way too: see H1Client."""
    found: str = request.param
    return found


def position(seq_num: int, timestamp: int) -> dict[str, int]:
    return {"seq_num": seq_num, "timestamp": timestamp}


def records_of(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json["records"]
    return found


def seq_nums(reply: Reply) -> list[int]:
    return [record["seq_num"] for record in records_of(reply)]


# JSON


def test_an_append_is_acked_with_its_positions_and_read_back(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    reply = api.post(
        path,
        {
            "records": [
                {"timestamp": 5, "body": "hello"},
                {"timestamp": 7, "headers": [["k", "v"], ["k", ""]], "body": ""},
                {"timestamp": 7},
            ]
        },
    )
    assert reply.body == (
        b'{"start":{"seq_num":0,"timestamp":5},'
        b'"end":{"seq_num":3,"timestamp":7},"tail":{"seq_num":3,"timestamp":7}}'
    )
    assert reply.named == {"content-type": "application/json", "content-length": "106"}
    reply = api.get(f"{path}?seq_num=0")
    assert reply.body == (
        b'{"records":[{"seq_num":0,"timestamp":5,"body":"hello"},'
        b'{"seq_num":1,"timestamp":7,"headers":[["k","v"],["k",""]]},'
        b'{"seq_num":2,"timestamp":7}]}'
    )
    assert reply.header("content-type") == "application/json"
    tail = api.get(f"{path}/tail")
    assert tail.body == b'{"tail":{"seq_num":3,"timestamp":7}}'
    assert tail.named == {"content-type": "application/json", "content-length": "36"}


def test_a_new_stream_has_its_tail_at_zero(api: Api, stream: str) -> None:
    reply = api.get(f"{STREAMS}/{stream}/records/tail")
    assert (reply.status, reply.json) == (200, {"tail": position(0, 0)})


@pytest.mark.parametrize("name", ["base64", "json-binsafe"])
def test_base64_carries_any_bytes_in_names_values_and_bodies(
    api: Api, stream: str, name: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    body = bytes(range(256))
    document = {
        "records": [
            {
                "timestamp": 1,
                "headers": [["/w==", "AP8="]],
                "body": base64.b64encode(body).decode(),
            }
        ]
    }
    assert api.post(path, document, {"s2-format": name}).status == 200
    (record,) = records_of(api.get(f"{path}?seq_num=0", {"s2-format": name}))
    assert record == {"seq_num": 0, **document["records"][0]}
    found = ReadBatch.FromString(api.get(f"{path}?seq_num=0", PROTO).body).records[0]
    assert (found.body, found.headers[0].name, found.headers[0].value) == (
        body,
        b"\xff",
        b"\x00\xff",
    )


@pytest.mark.parametrize("name", ["raw", "json"])
def test_raw_text_is_utf_8_and_what_is_not_is_shown_with_replacements(
    api: Api, stream: str, name: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    api.post(path, {"records": [{"body": "é\u0000🙂"}]}, {"s2-format": name})
    api.post(path, {"records": [{"body": "YfCfmf9i4oI="}]}, {"s2-format": "base64"})
    bodies = [record["body"] for record in records_of(api.get(f"{path}?seq_num=0"))]
    assert bodies == ["é\u0000🙂", "a\ufffd\ufffdb\ufffd"]
    coded = api.get(f"{path}?seq_num=0", {"s2-format": "base64"})
    assert [record["body"] for record in records_of(coded)] == ["w6kA8J+Zgg==", "YfCfmf9i4oI="]


def test_the_fencing_token_is_plain_text_in_every_format(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    fence = {"records": [{"headers": [["", "ZmVuY2U="]], "body": "w6k="}]}
    coded = {"s2-format": "base64"}
    assert api.post(path, fence, coded).status == 200
    assert api.post(path, {"records": [{}], "fencing_token": "é"}, coded).status == 200
    reply = api.post(path, {"records": [{}], "fencing_token": "w6k="}, coded)
    assert (reply.status, reply.body) == (412, '{"fencing_token_mismatch":"é"}'.encode())


def test_numbers_of_64_bits_are_exact(api: Api) -> None:
    name = f"uncapped-{next(NAMES)}"
    api.send_json("PUT", f"{STREAMS}/{name}", {"timestamping": {"uncapped": True}})
    path = f"{STREAMS}/{name}/records"
    most = 2**64 - 1
    reply = api.post(path, b'{"records":[{"timestamp":18446744073709551615}]}')
    assert reply.json["end"] == position(1, most)
    assert records_of(api.get(f"{path}?timestamp={most}"))[0]["timestamp"] == most
    reply = api.post(path, b'{"records":[{}],"match_seq_num":18446744073709551615}')
    assert (reply.status, reply.json) == (412, {"seq_num_mismatch": 1})


def test_unknown_and_null_fields_are_as_if_absent(api: Api, stream: str) -> None:
    body: dict[str, Any] = {
        "records": [{"timestamp": None, "headers": None, "body": None, "other": [1]}],
        "match_seq_num": None,
        "fencing_token": None,
        "more": {},
    }
    assert api.post(f"{STREAMS}/{stream}/records", body).status == 200


def test_a_body_may_come_in_the_smallest_pieces(api: Api, stream: str) -> None:
    call = api.begin("POST", f"{STREAMS}/{stream}/records", JSON)
    for byte in b'{"records":[{"body":"tiny"},{}]}':
        call.send(bytes([byte]))
    call.end()
    assert reply_of(call).json["end"]["seq_num"] == 2


# Protobuf


def test_protobuf_in_and_out(api: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    wanted = AppendInput(match_seq_num=0, fencing_token="")
    wanted.records.add(timestamp=0, body=b"hi")
    wanted.records.add()
    reply = api.request("POST", path, PROTO, wanted.SerializeToString())
    ack = AppendAck.FromString(reply.body)
    assert [ack.HasField(name) for name in ("start", "end", "tail")] == [True] * 3
    assert (ack.start.seq_num, ack.start.timestamp, ack.end.seq_num) == (0, 0, 2)
    assert reply.named == {
        "content-type": "application/protobuf",
        "content-length": str(len(reply.body)),
    }
    reply = api.get(f"{path}?seq_num=0", PROTO)
    assert reply.header("content-type") == "application/protobuf"
    first, second = ReadBatch.FromString(reply.body).records
    assert (first.seq_num, first.timestamp, first.body) == (0, 0, b"hi")
    assert (second.seq_num, second.body) == (1, b"")
    assert second.timestamp > 1_700_000_000_000


def test_the_format_does_not_matter_to_a_protobuf_append_but_to_a_read(
    api: Api, stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    headers = PROTO | {"s2-format": "X"}
    assert api.request("POST", path, headers, b"\x0a\x00").status == 200
    assert api.get(f"{path}?seq_num=0", headers).error == (400, "bad_header")


# Conditions


def test_a_failed_condition_is_412_with_one_key(api: Api, stream: str) -> None:
    assert api.append(stream, "a", match_seq_num=0).status == 200
    for token, wrong in (("", "x"), ("mine", "")):
        api.post(
            f"{STREAMS}/{stream}/records",
            {"records": [{"headers": [["", "fence"]], "body": token}]},
        )
        reply = api.append(stream, "b", fencing_token=wrong)
        assert (reply.status, reply.json) == (412, {"fencing_token_mismatch": token})
        assert reply.named == {
            "content-type": "application/json",
            "content-length": str(len(reply.body)),
        }
        assert api.append(stream, "b", fencing_token=token).status == 200
    reply = api.append(stream, "c", match_seq_num=1)
    assert (reply.status, reply.body) == (412, b'{"seq_num_mismatch":5}')
    reply = api.append(stream, "c", match_seq_num=1, fencing_token="x")
    assert reply.body == b'{"fencing_token_mismatch":"mine"}'
    assert api.get(f"{STREAMS}/{stream}/records/tail").json["tail"]["seq_num"] == 5
    wanted = AppendInput(match_seq_num=9, records=[{}])
    reply = api.request("POST", f"{STREAMS}/{stream}/records", PROTO, wanted.SerializeToString())
    assert (reply.status, reply.body) == (412, b'{"seq_num_mismatch":5}')
    assert reply.header("content-type") == "application/json"


def test_of_two_appends_for_one_place_one_wins(
    api: Api, another: Callable[[], Api], stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    body = json.dumps({"records": [{}, {}], "match_seq_num": 0}).encode()
    calls = [client.begin("POST", path, JSON, body=body) for client in (api, another())]
    replies = sorted((reply_of(call) for call in calls), key=lambda reply: reply.status)
    assert [reply.status for reply in replies] == [200, 412]
    assert replies[1].json == {"seq_num_mismatch": replies[0].json["end"]["seq_num"]}


# The read outcome matrix: records 4..9 are there, 0..3 are trimmed, the tail is {10, 109}


@pytest.fixture(scope="module")
def trimmed() -> dict[str, str]:
    return {}


@pytest.fixture
def matrix(api: Api, trimmed: dict[str, str]) -> str:
    """The path of the records of that stream, made once per version."""
    if api.version not in trimmed:
        name = f"matrix-{api.version}"
        api.put(f"{STREAMS}/{name}")
        path = trimmed[api.version] = f"{STREAMS}/{name}/records"
        bodies = [{"timestamp": 100 + index, "body": str(index)} for index in range(9)]
        assert api.post(path, {"records": bodies}).status == 200
        trim = {"timestamp": 109, "headers": [["", "dHJpbQ=="]], "body": "AAAAAAAAAAQ="}
        assert api.post(path, {"records": [trim]}, {"s2-format": "base64"}).status == 200
    return trimmed[api.version]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0", [4, 5, 6, 7, 8, 9]),
        ("seq_num=9&count=5", [9]),
        ("seq_num=4&count=2", [4, 5]),
        ("seq_num=8&wait=30", [8, 9]),
        ("tail_offset=3", [7, 8, 9]),
        ("tail_offset=100", [4, 5, 6, 7, 8, 9]),
        ("timestamp=0", [4, 5, 6, 7, 8, 9]),
        ("timestamp=106", [6, 7, 8, 9]),
        ("timestamp=109", [9]),
        ("seq_num=4&count=0", []),
        ("seq_num=99&count=0", []),
        ("seq_num=99&bytes=0", []),
        ("seq_num=4&bytes=7", []),
        ("seq_num=4&bytes=9", [4]),
        ("seq_num=4&bytes=18", [4, 5]),
        ("seq_num=4&until=106", [4, 5]),
        ("seq_num=4&until=104", []),
        ("seq_num=4&until=1", []),
    ],
)
def test_a_read_of_what_is_there_is_200_without_a_tail(
    api: Api, matrix: str, query: str, expected: list[int]
) -> None:
    reply = api.get(f"{matrix}?{query}")
    assert seq_nums(reply) == expected
    assert reply.json.keys() == {"records"}
    if not expected:
        assert reply.body == b'{"records":[]}'
        assert api.get(f"{matrix}?{query}", PROTO).body == b""


@pytest.mark.parametrize(
    "query",
    [
        "",
        "seq_num=10",
        "seq_num=11",
        "seq_num=11&wait=30",
        "seq_num=11&clamp=true",
        "seq_num=11&clamp=false",
        "timestamp=110",
        "timestamp=110&wait=30",
        "timestamp=110&clamp=true",
        "tail_offset=0",
        "tail_offset=0&clamp=true",
    ],
)
def test_a_read_of_what_is_not_written_is_416_with_the_tail(
    api: Api, matrix: str, query: str
) -> None:
    for headers in ({}, PROTO):
        reply = api.get(f"{matrix}?{query}", headers)
        assert (reply.status, reply.body) == (416, b'{"tail":{"seq_num":10,"timestamp":109}}')
        assert reply.named == {"content-type": "application/json", "content-length": "39"}


def test_a_read_that_may_wait_at_the_tail_waits_in_vain(
    another: Callable[[], Api], matrix: str
) -> None:
    starts = ("seq_num=10", "seq_num=11&clamp=true", "timestamp=110&clamp=true", "tail_offset=0")
    calls = [another().begin("GET", f"{matrix}?wait=1&{start}", body=b"") for start in starts]
    for call in calls:
        reply = reply_of(call)
        assert (reply.status, reply.body) == (200, b'{"records":[]}')


def test_where_everything_is_trimmed_a_read_is_empty_and_the_tail_unwritten(
    api: Api, stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    api.append(stream, "a", "b")
    trim = {"headers": [["", "trim"]], "body": "\u007f" * 8}
    tail = api.post(path, {"records": [trim]}).json["tail"]
    assert api.get(f"{path}?seq_num=0").body == b'{"records":[]}'
    reply = api.get(path)
    assert (reply.status, reply.json) == (416, {"tail": tail})
    assert api.get(f"{path}/tail").json == {"tail": tail}


def test_a_read_that_waits_gets_the_next_batch_at_once_and_its_tail(
    server: Server, api: Api, another: Callable[[], Api], stream: str
) -> None:
    path = f"{STREAMS}/{stream}/records"
    call = api.begin("GET", f"{path}?seq_num=0&wait=30&count=2", body=b"")
    eventually(lambda: server.users(BASIN, stream) == 1)
    body = {"records": [{"timestamp": 3, "body": str(index)} for index in range(3)]}
    assert another().post(path, body).status == 200
    reply = reply_of(call)
    assert seq_nums(reply) == [0, 1]
    assert reply.json["tail"] == position(3, 3)


def test_a_read_returns_a_thousand_records_at_most(api: Api, stream: str) -> None:
    for _ in range(2):
        api.post(f"{STREAMS}/{stream}/records", {"records": [{}] * 700})
    reply = api.get(f"{STREAMS}/{stream}/records?seq_num=0&count=5000")
    assert seq_nums(reply) == list(range(1000))


def test_many_appends_at_once_are_all_acked_in_gapless_places(
    another: Callable[[], Api], stream: str
) -> None:
    clients = [another() for _ in range(4)]

    def append_ten(client: Api) -> list[int]:
        return [client.append(stream, "", "").json["start"]["seq_num"] for _ in range(10)]

    with ThreadPoolExecutor(len(clients)) as pool:
        starts = list(pool.map(append_ten, clients))
    assert all(found == sorted(found) for found in starts)
    assert sorted(chain.from_iterable(starts)) == list(range(0, 80, 2))
