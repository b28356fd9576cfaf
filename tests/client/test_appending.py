"""Append sessions: order, bounds, refusals, and what is repeated."""
# ruff: noqa: SIM117, PT012  what raises stands alone

from typing import Any

import pyarrow as pa
import pytest

from bourn.client import (
    AppendRetry,
    Client,
    ConnectionLost,
    FencingTokenMismatch,
    ReadStart,
    Refused,
    SeqNumMismatch,
    Unreachable,
)
from bourn.client.failures import NotS2
from bourn.layout.arrow import Input, encode_inputs
from bourn.model.record import AppendAck, Record, StreamPosition, fence_record
from bourn.wire.compression import Compression
from bourn.wire.protobuf import encode_append_ack, encode_append_input
from tests.client.conftest import Connect
from tests.client.proxy import Proxy
from tests.client.script import Scripted, answer, frame, refusal, session


def one(body: bytes = b"x") -> Input:
    (only,) = encode_inputs(pa.array([body]))
    return only


def ack(start: int, records: int = 1) -> bytes:
    end = StreamPosition(start + records, 5)
    return encode_append_ack(AppendAck(StreamPosition(start, 5), end, end))


def bodies_in(client: Client, stream: str) -> list[Any]:
    found = client.read_session(stream, ReadStart(seq_num=0))
    return [body for batch in found for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_are_acked_in_order(connect: Connect, client, stream, compression):
    bodies = [b"%d" % number * 200 for number in range(20_000)]
    with connect(compression=compression).append_session(stream) as appends:
        for each in encode_inputs(pa.array(bodies)):
            appends.submit(each)
        acks = appends.drain()
    assert [ack.start.seq_num for ack in acks] == [0, *(ack.end.seq_num for ack in acks[:-1])]
    assert acks[-1].end.seq_num == 20_000
    assert bodies_in(client, stream) == bodies


def test_bytes_on_their_way_are_bounded(client: Client, stream: str):
    large = one(bytes(2**20 - 8))
    with client.append_session(stream, inflight_bytes_max=3 * 2**20) as appends:
        for _ in range(12):
            appends.submit(large)
            assert appends.unacked <= 2, "two of them fill the bound with their frames"
    assert appends.acked == 12
    with client.append_session(stream, inflight_bytes_max=1) as appends:
        appends.submit(large)
        appends.submit(large)
        assert appends.unacked <= 1
    assert client.check_tail(stream).seq_num == 14


def test_a_condition_that_fails_ends_the_session_and_nothing_behind_it_takes_effect(
    client: Client, stream: str
):
    client.append(stream, [fence_record("mine")])
    with pytest.raises(SeqNumMismatch) as mismatch, client.append_session(stream) as appends:
        appends.submit(one(b"a"), match_seq_num=1, fencing_token="mine")
        appends.submit(one(b"b"), match_seq_num=7)
        appends.submit(one(b"c"))
        appends.drain()
    assert mismatch.value.next_seq_num == 2
    assert [ack.start.seq_num for ack in appends.acks()] == [1]
    assert appends.acked == 1
    # The third is refused at once where the answer to the second has come before it.
    assert appends.unacked in {1, 2}
    with pytest.raises(SeqNumMismatch):
        appends.submit(one())
    assert bodies_in(client, stream) == [b"mine", b"a"]
    with pytest.raises(FencingTokenMismatch), client.append_session(stream) as appends:
        appends.submit(one(), fencing_token="theirs")


def test_a_stream_that_is_not_there_refuses_the_session(client: Client):
    with pytest.raises(Refused, match="not found"), client.append_session("none") as appends:
        appends.submit(one())
    with client.append_session("none"):
        pass  # nothing was sent, so nothing was asked for


def test_what_the_server_refuses_is_raised(client: Client, stream: str):
    bad = encode_append_input([Record(b"", ((b"", b"unknown"),))])
    with pytest.raises(Refused, match="unknown command") as refused:
        with client.append_session(stream) as appends:
            appends.submit(bad)
    assert (refused.value.status, refused.value.code) == (422, "invalid")


def test_a_lost_connection_is_an_error_unless_the_policy_says_otherwise(
    connect: Connect, client: Client, server, stream: str
):
    with Proxy(server.port, 400, 400, 400) as proxy:
        with pytest.raises(ConnectionLost) as lost:
            with connect(proxy.url).append_session(stream) as appends:
                for _ in range(100):
                    appends.submit(one())
        assert not lost.value.has_no_effect
        assert proxy.connections == 1
        with (
            pytest.raises(ConnectionLost),
            connect(proxy.url).append_session(stream, retry=AppendRetry.NO_SIDE_EFFECTS) as appends,
        ):
            for _ in range(100):
                appends.submit(one())
        assert proxy.connections == 2
    with Proxy(server.port, 400, 700, 900) as proxy:
        with connect(proxy.url).append_session(stream, retry=AppendRetry.ALL) as appends:
            for number in range(200):
                appends.submit(one(b"%d" % number))
        assert proxy.connections == 4
    assert appends.acked == 200
    # What the sessions before had on its way may still be appended meanwhile.
    found = [int(body) for body in bodies_in(client, stream) if body != b"x"]
    assert sorted(set(found)) == list(range(200)), "some may be there twice, none is missing"


def test_what_surely_did_nothing_may_be_repeated(connect: Connect):
    busy = refusal(429, b'{"code":"rate_limited","message":"m"}')
    draining = answer(503, b'{"code":"server_draining","message":"m"}')
    answers = (draining, session(busy), session(frame(ack(0))))
    with Scripted(*answers) as scripted:
        client = connect(scripted.url)
        with client.append_session("s", retry=AppendRetry.NO_SIDE_EFFECTS) as appends:
            appends.submit(one())
            assert [found.start.seq_num for found in appends.drain()] == [0]
        assert len(scripted.asked) == 3
    with Scripted(session(busy)) as scripted, pytest.raises(Refused, match="m"):
        with connect(scripted.url).append_session("s") as appends:
            appends.submit(one())


def test_a_session_moves_where_the_server_asks_for_it_and_repeats_nothing(connect: Connect):
    moving = session(frame(ack(0), reconnect=True))
    with Scripted(moving, session(frame(ack(1)))) as scripted:
        with connect(scripted.url).append_session("s") as appends:
            appends.submit(one())
            assert len(appends.drain()) == 1
            appends.submit(one())
        assert appends.acked == 2
        assert len(scripted.asked) == 2


@pytest.mark.parametrize(
    "said",
    [
        session(frame(ack(0, 2))),
        session(frame(b"\x0a\x00")),
        session(b"\x00\x00\x00\x00"),
        session(frame(ack(0)), frame(ack(1))),
    ],
)
def test_acks_that_do_not_fit_are_an_error(connect: Connect, said: bytes):
    with Scripted(said) as scripted, pytest.raises(NotS2):
        with connect(scripted.url).append_session("s") as appends:
            appends.submit(one())
            appends.drain()


def test_a_session_that_ends_before_its_acks_is_lost(connect: Connect):
    with Scripted(session()) as scripted, pytest.raises(ConnectionLost, match="before all was"):
        with connect(scripted.url).append_session("s") as appends:
            appends.submit(one())


def test_who_cannot_be_reached_has_taken_nothing(connect: Connect):
    with Scripted() as gone:
        pass
    with pytest.raises(Unreachable) as unreachable:
        with connect(gone.url).append_session("s") as appends:
            appends.submit(one())
    assert unreachable.value.has_no_effect
