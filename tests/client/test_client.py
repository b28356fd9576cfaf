"""Unary calls, settings and errors."""

import base64
import pickle
from random import Random
from typing import Any

import pytest

from bourn.client import (
    AppendRetry,
    BadAddress,
    Client,
    ConnectionLost,
    FencingTokenMismatch,
    ReadStart,
    Refused,
    Retries,
    SeqNumMismatch,
    Settings,
    Unreachable,
    Unwritten,
)
from bourn.client import client as module
from bourn.client.failures import NotS2, Untrusted, refusal
from bourn.client.retries import Attempts, may_repeat
from bourn.model.record import Record, fence_record
from bourn.wire.protobuf import encode_append_input
from tests.cli.process import Serving
from tests.client.conftest import BASIN, Connect
from tests.client.proxy import Proxy
from tests.client.script import Scripted, answer

TOKEN = "a-secret-token-of-somebody"
KEY = base64.b64encode(bytes(32)).decode()


def test_settings_can_be_pickled_and_show_no_secret():
    settings = Settings.of(BASIN, "http://a", token=TOKEN, encryption_key=KEY, environ={})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert TOKEN not in f"{settings!r} {settings}"
    assert KEY not in f"{settings!r} {settings}"


def test_settings_come_from_the_variables_where_nothing_is_given():
    environ = {
        "S2_BASIN_ENDPOINT": "https://{basin}.b.example",
        "S2_ACCOUNT_ENDPOINT": "https://a.example",
        "S2_ACCESS_TOKEN": TOKEN,
        "S2_ENCRYPTION_KEY": KEY,
        "S2_SSL_NO_VERIFY": "true",
    }
    settings = Settings.of(BASIN, environ=environ)
    assert settings.streams.host == f"{BASIN}.b.example"
    assert settings.account.host == "a.example"
    assert (settings.token, settings.encryption_key, settings.is_verified) == (TOKEN, KEY, False)
    given = Settings.of(BASIN, "http://c", token="", encryption_key="", environ=environ)
    assert (given.streams.url, given.token, given.encryption_key) == ("http://c:80", "", "")
    with pytest.raises(BadAddress, match="the option: 'x' is no endpoint"):
        Settings.of(BASIN, "x", origin="the option", environ={})


def test_streams_are_made_listed_and_described(client: Client, monkeypatch):
    monkeypatch.setattr(module, "LIST_LIMIT_MAX", 3)
    names = [f"list/é {number:04}" for number in range(7)]
    for name in names:
        client.create_stream(name)
    assert [info.name for info in client.list_streams("list/")] == names
    assert [info.name for info in client.list_streams("list/", names[-2])] == names[-1:]
    with pytest.raises(Refused) as refused:
        client.create_stream(names[0])
    assert (refused.value.code, refused.value.status) == ("resource_already_exists", 409)
    client.ensure_stream(names[0])
    client.ensure_basin(BASIN)
    assert BASIN in [basin.name for basin in client.list_basins()]
    assert client.stream_config(names[0])["retention_policy"] == {"age": 604_800}


def test_records_are_appended_and_read(client: Client, stream: str):
    records = [Record(b"a", ((b"k", b"v"),), 5), Record(b"", (), 2**63)]
    ack = client.append(stream, records, match_seq_num=0, fencing_token="")
    assert (ack.start, ack.end.seq_num) == ((0, 5), 2)
    client.append(stream, encode_append_input([Record(b"raw")]), match_seq_num=2)
    assert client.check_tail(stream).seq_num == 3
    found = client.read(stream, ReadStart(seq_num=0), 10)
    assert [(record.seq_num, record.body) for record in found] == [(0, b"a"), (1, b""), (2, b"raw")]
    assert found[0].headers == ((b"k", b"v"),)
    assert client.read(stream, ReadStart(timestamp=6), 1)[0].seq_num == 1
    assert client.read(stream, ReadStart(tail_offset=1), 10)[0].seq_num == 2
    assert client.read(stream, ReadStart(seq_num=0), 10, until=6)[-1].seq_num == 0


def test_the_tail_is_an_end_and_what_lies_behind_it_an_error(client: Client, stream: str):
    assert client.read(stream, ReadStart(seq_num=0), 10) == []
    assert client.read(stream, ReadStart(tail_offset=5), 10) == []
    client.append(stream, [Record(b"a")])
    assert client.read(stream, ReadStart(seq_num=1), 10) == []
    with pytest.raises(Unwritten) as unwritten:
        client.read(stream, ReadStart(seq_num=2), 10)
    assert unwritten.value.tail_seq_num == 1
    with pytest.raises(ValueError, match="name one of"):
        client.read(stream, ReadStart(), 10)


def test_conditions_that_fail_say_what_holds(client: Client, stream: str):
    client.append(stream, [fence_record("mine")])
    with pytest.raises(SeqNumMismatch) as mismatch:
        client.append(stream, [Record(b"a")], match_seq_num=0)
    assert mismatch.value.next_seq_num == 1
    with pytest.raises(FencingTokenMismatch) as fenced:
        client.append(stream, [Record(b"a")], fencing_token="theirs")
    assert fenced.value.fencing_token == "mine"
    for error in (mismatch.value, fenced.value, Unwritten(3, 4), Refused(500, "other", "x", 7)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.__dict__, str(again)) == (
            type(error),
            error.__dict__,
            str(error),
        )
        assert not error.is_retryable or error.code == "other"


def test_errors_carry_status_code_and_text(client: Client):
    with pytest.raises(Refused, match=r"stream `none` in basin `test-basin` not found") as refused:
        client.check_tail("none")
    assert (refused.value.status, refused.value.code) == (404, "stream_not_found")
    assert str(refused.value).endswith("(stream_not_found 404)")


@pytest.mark.parametrize(
    ("status", "code", "is_retryable", "has_no_effect"),
    [
        (408, "request_timeout", True, False),
        (409, "transaction_conflict", True, True),
        (409, "stream_deletion_pending", False, True),
        (429, "rate_limited", True, True),
        (500, "storage", True, False),
        (500, "other", True, False),
        (502, "hot_server", True, True),
        (503, "unavailable", True, False),
        (503, "server_draining", True, True),
        (501, "not_implemented", False, False),
        (503, "", True, False),
        (404, "", False, True),
    ],
)
def test_what_may_be_repeated_goes_by_the_code(status, code, is_retryable, has_no_effect):
    body = b'{"code":"%b","message":"m"}' % code.encode() if code else b"<html>"
    error = refusal(status, body)
    assert (error.is_retryable, error.has_no_effect) == (is_retryable, has_no_effect)
    assert may_repeat(AppendRetry.ALL, error) == is_retryable
    assert may_repeat(AppendRetry.NO_SIDE_EFFECTS, error) == (is_retryable and has_no_effect)
    assert not may_repeat(AppendRetry.NEVER, error)


def test_attempts_are_counted_from_the_last_success():
    attempts = Attempts(Retries(3, 0.0, 0.0), Random(0))
    error = ConnectionLost("x")
    for _ in range(5):
        attempts.fail(error)
        attempts.fail(error)
        attempts.succeed()
    attempts.fail(error)
    attempts.fail(error)
    with pytest.raises(ConnectionLost):
        attempts.fail(error)
    with pytest.raises(Refused):
        Attempts(Retries(3, 0.0, 0.0), Random(0)).fail(Refused(404, "stream_not_found", "x"))


def test_calls_are_repeated_where_that_may_help(connect: Connect):
    tail = answer(200, b'{"tail":{"seq_num":7,"timestamp":8}}')
    busy = answer(429, b'{"code":"rate_limited","message":"m"}', "retry-after-ms: 1")
    with Scripted(b"", busy, tail) as scripted:
        assert connect(scripted.url).check_tail("s") == (7, 8)
        assert len(scripted.asked) == 3
        assert scripted.asked[0].startswith(b"GET /v1/streams/s/records/tail HTTP/1.1\r\n")
    with Scripted(busy, busy, busy, busy, tail) as scripted, pytest.raises(Refused, match="m"):
        connect(scripted.url).check_tail("s")


def test_a_name_is_one_segment_of_the_path(connect: Connect):
    with Scripted(answer(200, b'{"tail":{"seq_num":7,"timestamp":8}}')) as scripted:
        connect(scripted.url).check_tail("a/b ?é")
        assert scripted.asked[0].startswith(b"GET /v1/streams/a%2Fb%20%3F%C3%A9/records/tail ")


def test_an_append_is_repeated_only_as_its_policy_says(connect: Connect):
    unknown = answer(500, b'{"code":"other","message":"m"}')
    refused = answer(429, b'{"code":"rate_limited","message":"m"}')
    ack = answer(200, bytes.fromhex("0a021005120408011005 1a0408011005"))
    for policy, answers, asked in [
        (AppendRetry.NEVER, (refused,), 1),
        (AppendRetry.NO_SIDE_EFFECTS, (refused, unknown), 2),
        (AppendRetry.ALL, (refused, unknown, b"", ack), 4),
    ]:
        with Scripted(*answers) as scripted:
            client = connect(scripted.url)
            if policy is AppendRetry.ALL:
                assert client.append("s", [Record(b"a")], retry=policy).end.seq_num == 1
            else:
                with pytest.raises(Refused):
                    client.append("s", [Record(b"a")], retry=policy)
            assert len(scripted.asked) == asked


def test_a_connection_that_was_lost_is_opened_anew(
    connect: Connect, server, client: Client, stream
):
    with Proxy(server.port, 30, 30) as proxy:
        assert connect(proxy.url).check_tail(stream).seq_num == 0
        assert proxy.connections == 3


def test_who_cannot_be_reached_is_named(connect: Connect):
    with Scripted() as gone:
        pass
    with pytest.raises(Unreachable, match=f"cannot reach {gone.url}"):
        connect(gone.url).check_tail("s")


@pytest.mark.parametrize(
    "said",
    [answer(200, b"hello"), answer(200, b"[]"), b"SSH\r\n\r\n"],
)
def test_what_is_no_s2_endpoint_is_told_so(connect: Connect, said: bytes):
    with Scripted(said) as scripted, pytest.raises(NotS2):
        connect(scripted.url).check_tail("s")


def test_encrypted_streams_are_read_with_their_key(connect: Connect, client: Client):
    client.create_basin("sealed-basin", {"stream_cipher": "aegis-256"})
    sealed = connect(basin="sealed-basin", key=KEY)
    sealed.create_stream("s")
    sealed.append("s", [Record(b"hidden")])
    assert sealed.read("s", ReadStart(seq_num=0), 1)[0].body == b"hidden"
    with pytest.raises(Refused) as refused:
        connect(basin="sealed-basin").read("s", ReadStart(seq_num=0), 1)
    assert refused.value.code == "bad_header"


def test_a_connection_may_be_encrypted():
    with Serving("--memory", "--tls-self") as serving:
        url = serving.url
        trusting = Settings.of(BASIN, url, environ={"S2_SSL_NO_VERIFY": "1"})
        with Client(trusting) as client:
            client.ensure_basin(BASIN)
            client.create_stream("s")
            with client.append_session("s") as session:
                for number in range(40):
                    message = encode_append_input([Record(b"%d" % number + bytes(2**19))])
                    session.submit(message)
            assert session.acked == 40
            found = client.read_session("s", ReadStart(seq_num=0))
            bodies: list[Any] = []
            for batch in found:
                bodies += batch.column("body").to_pylist()
            assert [body[:2].strip(b"\0") for body in bodies] == [b"%d" % n for n in range(40)]
        with Client(Settings.of(BASIN, url, environ={})) as client, pytest.raises(Untrusted):
            client.check_tail("s")
        plain = Settings.of(BASIN, url.replace("https", "http"), environ={})
        with Client(plain) as client, pytest.raises((ConnectionLost, NotS2)):
            client.check_tail("s")
