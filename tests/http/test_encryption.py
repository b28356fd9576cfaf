"""Streams with a cipher: every form of appending and reading, and every way to have no key."""

import base64
import json
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from bourn.engine.fetches import unpacked
from bourn.limits import AES_GCM_SEQ_NUM_MAX
from tests.http.clients import EVENTS, PROTO, SESSION, Api, Reply
from tests.http.frames import Frames, append, frame, message
from tests.http.server import Server, eventually
from tests.http.test_events import Events
from tests.wire.schema import AppendInput, ReadBatch

STREAMS = "/v1/streams"
CIPHERS = ["aegis-256", "aes-256-gcm"]
FORMS = ["json", "proto", "session", "events"]
NAMES = count(1)
KEY = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.b64encode(bytes(range(1, 33))).decode()
BAD_KEYS = {
    None: "missing encryption key for stream cipher '{}'",
    "rot13": "invalid encryption key for stream cipher '{}': invalid base64",
    KEY[:-1]: "invalid encryption key for stream cipher '{}': invalid base64",
    "AAAA": "invalid encryption key length for stream cipher '{}': 3",
    "A" * 44: "invalid encryption key length for stream cipher '{}': 33",
}
FAILED = {"code": "decryption_failed", "message": "record decryption failed"}
RECORDS: list[dict[str, Any]] = [
    {"body": "one", "timestamp": 10},
    {"body": "two, with headers", "headers": [["a", "b"], ["a", ""]], "timestamp": 20},
    {"headers": [["", "fence"]], "body": "me", "timestamp": 30},
    {"timestamp": 40},
    {"body": "x" * 300, "timestamp": 50},
]


def with_key(key: str | None, headers: dict[str, str] | None = None) -> dict[str, str]:
    return (headers or {}) | ({} if key is None else {"s2-encryption-key": key})


@pytest.fixture(params=CIPHERS)
def cipher(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def basin(api: Api, cipher: str) -> Api:
    """A basin whose streams are encrypted, and made by the first append."""
    name = f"{cipher}-basin"
    config = {"stream_cipher": cipher, "create_stream_on_append": True}
    assert api.post("/v1/basins", {"basin": name, "config": config}).status in {201, 409}
    return api.of(name)


@pytest.fixture
def stream() -> str:
    return f"sealed-{next(NAMES)}"


def put(api: Api, stream: str, records: list[dict[str, Any]], key: str | None = KEY) -> Reply:
    return api.post(f"{STREAMS}/{stream}/records", {"records": records}, with_key(key))


def shape(record: Any) -> dict[str, Any]:
    """A record of protobuf as JSON has it."""
    found: dict[str, Any] = {"seq_num": record.seq_num, "timestamp": record.timestamp}
    if record.headers:
        found["headers"] = [[h.name.decode(), h.value.decode()] for h in record.headers]
    if record.body:
        found["body"] = record.body.decode()
    return found


def read(  # noqa: PLR0911  a way for each form
    api: Api, stream: str, form: str, query: str, key: str | None = KEY
) -> Any:
    """The records of a read, or its error as status and document; sessions come to their end."""
    path = f"{STREAMS}/{stream}/records?{query}"
    accept = {"json": {}, "proto": PROTO, "session": SESSION, "events": EVENTS}[form]
    call = api.begin("GET", path, with_key(key, accept), body=b"")
    call.head()
    if call.status != 200:
        reply = reply_of_open(call)
        return reply.status, reply.json
    if form == "json":
        return reply_of_open(call).json["records"]
    if form == "proto":
        return [shape(record) for record in ReadBatch.FromString(reply_of_open(call).body).records]
    if form == "session":
        frames = Frames(call).rest()
        if frames and frames[-1].flag & 0x80:
            return frames[-1].error
        return [shape(record) for found in frames for record in found.batch.records]
    events = Events(call).rest()
    if events[-1].kind == "error":
        return 400, events[-1].document
    assert events[-1].data == "[DONE]"
    return [record for event in events[:-1] for record in event.document["records"]]


def reply_of_open(call: Any) -> Reply:
    parts = []
    while part := call.receive():
        parts.append(part)
    return Reply(call.status, call.fields, b"".join(parts))


def expected(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"seq_num": at, **record} for at, record in enumerate(records)]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_appended_is_read_back_in_every_form(basin: Api, stream: str, form: str) -> None:
    assert put(basin, stream, RECORDS).json["end"] == {"seq_num": 5, "timestamp": 50}
    assert read(basin, stream, form, "seq_num=0&count=5") == expected(RECORDS)
    assert read(basin, stream, form, "seq_num=3&count=1") == expected(RECORDS)[3:4]


def test_every_way_to_append_is_encrypted(basin: Api, stream: str, server: Server) -> None:
    assert put(basin, stream, [{"body": "by json"}]).status == 200
    path = f"{STREAMS}/{stream}/records"
    proto = basin.request("POST", path, with_key(KEY, PROTO), message(b"by protobuf"))
    assert proto.status == 200
    session = basin.request(
        "POST", path, with_key(KEY, SESSION), append(b"by session") + append(b"again")
    )
    assert session.status == 200
    found = read(basin, stream, "json", "seq_num=0")
    assert [record["body"] for record in found] == ["by json", "by protobuf", "by session", "again"]
    assert b"by " not in everything_in_memory(server)


def everything_in_memory(server: Server) -> bytes:
    """What the caches of the node hold."""

    def held() -> bytes:
        term = server.node.term
        parts = [bytes(wire) for wire in term.encoded._wires.values()]
        kept = [part.batches for part in term.reader._read.values()]
        parts += term.tail_cache._objects.values()
        entries = [entry for batches in kept for entry in unpacked(batches)]
        return b"".join((*parts, *(bytes(entry.payload) for entry in entries)))

    return server.call(held)


@pytest.mark.parametrize("form", FORMS)
def test_another_key_opens_nothing(basin: Api, stream: str, form: str) -> None:
    put(basin, stream, RECORDS)
    assert read(basin, stream, form, "seq_num=0&count=5", OTHER_KEY) == (400, FAILED)
    assert read(basin, stream, form, "seq_num=0", OTHER_KEY) == (400, FAILED)
    assert read(basin, stream, form, "seq_num=2&count=1", OTHER_KEY) == expected(RECORDS)[2:3]


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_commands_alone_are_read_with_any_key(
    basin: Api, stream: str, form: str
) -> None:
    commands = RECORDS[2:3] * 2
    put(basin, stream, commands)
    assert read(basin, stream, form, "seq_num=0&count=9", OTHER_KEY) == expected(commands)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_read_without_a_usable_key_is_refused_by_its_status(
    basin: Api, stream: str, cipher: str, form: str, key: str | None
) -> None:
    put(basin, stream, RECORDS)
    error = {"code": "bad_header", "message": BAD_KEYS[key].format(cipher)}
    assert read(basin, stream, form, "seq_num=0", key) == (400, error)
    assert read(basin, stream, form, "seq_num=99&count=1", key) == (400, error), "before the 416"
    assert read(basin, stream, form, "seq_num=0&count=0", key) == (400, error)


@pytest.mark.parametrize("key", BAD_KEYS)
@pytest.mark.parametrize("form", ["json", "proto", "session"])
def test_an_append_without_a_usable_key_creates_the_stream_and_fails(
    basin: Api, stream: str, cipher: str, form: str, key: str | None
) -> None:
    headers = {"json": {"content-type": "application/json"}, "proto": PROTO, "session": SESSION}
    body = {"json": b'{"records":[{"body":"x"}]}', "proto": message(b"x"), "session": append(b"x")}
    path = f"{STREAMS}/{stream}/records"
    reply = basin.request("POST", path, with_key(key, headers[form]), body[form])
    assert reply.status == 400
    assert reply.json == {"code": "bad_header", "message": BAD_KEYS[key].format(cipher)}
    assert basin.get(f"{path}/tail").json == {"tail": {"seq_num": 0, "timestamp": 0}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["", "A" * 45])
def test_a_key_of_a_wrong_size_is_refused_wherever_it_is_sent(
    api: Api, basin: Api, stream: str, form: str, key: str
) -> None:
    api.put(f"{STREAMS}/{stream}")
    put(basin, stream, [{"body": "x"}])
    for one in (api, basin):
        status, error = read(one, stream, form, "seq_num=0", key)
        assert (status, error["code"]) == (400, "bad_header")
        assert put(one, stream, [{"body": "x"}], key).error == (400, "bad_header")


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_without_a_cipher_does_not_look_at_the_key(
    api: Api, stream: str, form: str
) -> None:
    api.put(f"{STREAMS}/{stream}")
    assert put(api, stream, RECORDS, "rot13").status == 200
    assert read(api, stream, form, "seq_num=0&count=5", "AAAA") == expected(RECORDS)


def test_blanks_around_a_key_do_not_count(basin: Api, stream: str) -> None:
    padded = f" \t{KEY} " if basin.version == "h1" else KEY
    assert put(basin, stream, RECORDS, padded).status == 200
    assert read(basin, stream, "json", "seq_num=0", padded) == expected(RECORDS)


def test_what_comes_before_the_key_is_told_first(api: Api, basin: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    assert basin.get(f"{path}?seq_num=0").error == (404, "stream_not_found")
    assert basin.post(path, b"{").error == (400, "bad_json")
    assert basin.post(path, {"records": []}).error == (422, "invalid")
    assert basin.get(f"{path}?seq_num=0&timestamp=1").error == (422, "invalid")
    assert basin.get(path).error == (404, "stream_not_found"), "none of them has created it"
    assert put(basin, stream, RECORDS).status == 200
    assert basin.get(f"{path}?seq_num=0&timestamp=1").error == (422, "invalid")
    assert basin.post(path, {"records": [{}], "match_seq_num": 9}).error == (400, "bad_header")


def test_conditions_are_told_to_who_has_a_key(basin: Api, stream: str) -> None:
    put(basin, stream, RECORDS)
    path = f"{STREAMS}/{stream}/records"
    refused = basin.post(path, {"records": [{}], "match_seq_num": 9}, with_key(KEY))
    assert (refused.status, refused.json) == (412, {"seq_num_mismatch": 5})
    fenced = basin.post(path, {"records": [{}], "fencing_token": "you"}, with_key(KEY))
    assert (fenced.status, fenced.json) == (412, {"fencing_token_mismatch": "me"})


def test_a_stream_that_is_being_deleted_says_so_before_it_asks_for_a_key(
    basin: Api, stream: str, server: Server
) -> None:
    put(basin, stream, RECORDS)
    wanted = server.call(server.hold_purges)
    try:
        assert basin.delete(f"{STREAMS}/{stream}").status == 202
        path = f"{STREAMS}/{stream}/records"
        assert basin.post(path, {"records": [{}]}).error == (409, "stream_deletion_pending")
        assert basin.get(f"{path}?seq_num=0").error == (409, "stream_deletion_pending")
    finally:
        server.call(lambda: server.release_purges(wanted))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "query",
    [
        "seq_num=0&count=3",
        "seq_num=1&bytes=11",
        "seq_num=0&bytes=60",
        "seq_num=0&bytes=10",
        "seq_num=1&until=40&count=9",
        "timestamp=20&count=2",
        "tail_offset=2&count=9",
        "seq_num=0&bytes=0",
    ],
)
def test_limits_count_what_records_weigh_in_the_clear(
    api: Api, basin: Api, stream: str, form: str, query: str
) -> None:
    api.put(f"{STREAMS}/{stream}")
    for one in (api, basin):
        assert put(one, stream, RECORDS).status == 200
    clear = read(api, stream, form, query)
    assert isinstance(clear, list)
    assert read(basin, stream, form, query) == clear


def test_the_events_of_a_session_count_what_records_weigh_in_the_clear(
    api: Api, basin: Api, stream: str
) -> None:
    api.put(f"{STREAMS}/{stream}")
    ids = []
    for one in (api, basin):
        put(one, stream, RECORDS)
        path = f"{STREAMS}/{stream}/records?seq_num=0&count=5"
        call = one.open("GET", path, with_key(KEY, EVENTS), body=b"")
        ids.append([event.id for event in Events(call).rest()])
    assert ids[0] == ids[1]


def test_a_batch_of_the_largest_size_is_appended_and_read(basin: Api, stream: str) -> None:
    wanted = AppendInput()
    for _ in range(1000):
        wanted.records.add(body=b"y" * 1040)
    body = wanted.SerializeToString()
    path = f"{STREAMS}/{stream}/records"
    assert basin.request("POST", path, with_key(KEY, SESSION), frame(body)).status == 200
    call = basin.open("GET", f"{path}?seq_num=0&count=1000", with_key(KEY, SESSION), body=b"")
    batches = [found.batch for found in Frames(call).rest()]
    assert [len(batch.records) for batch in batches] == [1000]
    assert all(record.body == b"y" * 1040 for record in batches[0].records)


def test_many_tiny_headers_still_fit_frames(basin: Api, stream: str) -> None:
    wanted = AppendInput()
    for _ in range(100):
        record = wanted.records.add()
        for _ in range(3000):
            record.headers.add(name=b"n")
    path = f"{STREAMS}/{stream}/records"
    body = wanted.SerializeToString()
    assert basin.request("POST", path, with_key(KEY, SESSION), frame(body)).status == 200
    call = basin.open("GET", f"{path}?seq_num=0&count=100", with_key(KEY, SESSION), body=b"")
    found = [record for one in Frames(call).rest() for record in one.batch.records]
    assert [record.seq_num for record in found] == list(range(100))
    assert all(len(record.headers) == 3000 for record in found)


# Sessions that follow


def test_a_follower_gets_what_its_key_opens_and_then_the_error(
    basin: Api, stream: str, another: Callable[[], Api]
) -> None:
    put(basin, stream, [{"body": "old"}])
    reader = another().of(basin.basin)
    path = f"{STREAMS}/{stream}/records?seq_num=0"
    call = reader.open("GET", path, with_key(KEY, SESSION), body=b"")
    frames = Frames(call)
    assert [record.body for record in frames.take().batch.records] == [b"old"]
    assert frames.take().batch.tail.seq_num == 1
    put(basin, stream, [{"body": "new"}])
    live = frames.take().batch
    assert ([record.body for record in live.records], live.tail.seq_num) == ([b"new"], 2)
    put(basin, stream, [{"body": "theirs"}], OTHER_KEY)
    assert frames.take().error == (400, FAILED)
    assert frames.next() is None


def test_events_end_with_the_error_and_without_a_last_word(
    basin: Api, stream: str, another: Callable[[], Api]
) -> None:
    put(basin, stream, [{"body": "old"}])
    reader = another().of(basin.basin)
    call = reader.open(
        "GET", f"{STREAMS}/{stream}/records?seq_num=0", with_key(KEY, EVENTS), body=b""
    )
    events = Events(call)
    assert events.take().document["records"][0]["body"] == "old"
    assert events.take().kind == "ping"
    put(basin, stream, [{"body": "theirs"}], OTHER_KEY)
    last = events.take()
    assert (last.kind, last.id, last.document) == ("error", None, FAILED)
    assert events.next() is None


def test_followers_share_ciphertext_and_each_opens_its_own(
    basin: Api, stream: str, another: Callable[[], Api], server: Server
) -> None:
    put(basin, stream, [{"body": "first secret"}])
    path = f"{STREAMS}/{stream}/records?seq_num=0&count=2&wait=60"
    calls = [
        another().of(basin.basin).begin("GET", path, with_key(key, SESSION), body=b"")
        for key in (KEY, KEY, OTHER_KEY)
    ]
    eventually(lambda: server.users(str(basin.basin), stream) >= 2)
    put(basin, stream, [{"body": "second secret"}])
    for call in calls:
        call.head()
    results = [Frames(call).rest() for call in calls]
    for frames in results[:2]:
        bodies = [record.body for one in frames for record in one.batch.records]
        assert bodies == [b"first secret", b"second secret"]
    assert [one.error for one in results[2]] == [(400, FAILED)]
    assert b"secret" not in everything_in_memory(server)


def test_an_append_session_refuses_as_others_do(basin: Api, stream: str) -> None:
    path = f"{STREAMS}/{stream}/records"
    sent = append(b"a") + append(b"b", match_seq_num=7) + append(b"c")
    call = basin.begin("POST", path, with_key(KEY, SESSION), body=sent)
    call.head()
    frames = Frames(call).rest()
    assert frames[0].ack.end.seq_num == 1
    assert frames[1].error == (412, {"seq_num_mismatch": 1})
    assert [record["body"] for record in read(basin, stream, "json", "seq_num=0")] == ["a"]


# The end of AES-GCM


def test_sequence_numbers_end_where_nonces_could_repeat(
    basin: Api, stream: str, cipher: str, server: Server
) -> None:
    put(basin, stream, [{"body": "x"}])
    found = server.stream(str(basin.basin), stream)
    if cipher == "aegis-256":
        assert found.rules.seq_num_max > AES_GCM_SEQ_NUM_MAX, "its nonces are long enough"
        return
    state = found.state
    last = msgspec.structs.replace(state, next_seq_num=AES_GCM_SEQ_NUM_MAX)
    server.call(lambda: setattr(found, "state", last))
    refused = put(basin, stream, [{"body": "x"}, {"body": "x"}])
    server.call(lambda: setattr(found, "state", state))
    assert refused.status == 422
    assert refused.json == {
        "code": "invalid",
        "message": "max assignable sequence number is 4294967295; attempted 4294967296",
    }


# What is never said


def test_no_key_and_no_record_is_in_a_log_or_an_answer_to_others(
    basin: Api, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [put(basin, stream, [{"body": "a secret body"}]).body, basin.get("/metrics").body]
    answers += [
        json.dumps(read(basin, stream, form, "seq_num=0&count=1", key)).encode()
        for form in FORMS
        for key in (OTHER_KEY, None, KEY[:-1])
    ]
    said = caplog.text.encode() + b"".join(answers)
    for secret in (KEY[:-1], OTHER_KEY[:-1], "a secret body"):
        assert secret.encode() not in said
