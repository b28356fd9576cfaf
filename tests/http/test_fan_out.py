"""Many followers of one stream, served together: each gets exactly what it would get alone."""

import base64
import socket
from collections.abc import Callable

import pytest

from bourn.http import pushing
from tests.http.clients import Api, head_of
from tests.http.conftest import BASIN
from tests.http.server import Server, eventually
from tests.http.test_events import bodies
from tests.http.test_events import opened as events
from tests.http.test_read_sessions import is_heartbeat
from tests.http.test_read_sessions import opened as frames

DEAF_EVENTS = 400


@pytest.fixture
def writer(another: Callable[[], Api]) -> Api:
    return another()


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts what is sent by plain calls, by its size."""
    counted: list[int] = []
    for kind in (pushing.Http1Pusher, pushing.Http2Pusher):
        push = kind.push

        def counting(self: object, framed: bytes, push: Callable[..., bool] = push) -> bool:
            taken = push(self, framed)
            if taken:
                counted.append(len(framed))
            return taken

        monkeypatch.setattr(kind, "push", counting)
    return counted


def test_each_gets_every_event_with_an_id_of_its_own_count(
    another: Callable[[], Api], writer: Api, stream: str, pushes: list[int]
) -> None:
    writer.append(stream, "x", "yy")
    followers = [events(another(), stream, f"seq_num={start}") for start in (0, 0, 1, 1, 2, 2)]
    texts = [f"text {at}" for at in range(20)]
    sizes = [8 + len(text) for text in ("x", "yy", *texts)]
    for at, found in enumerate(followers):
        history = [] if at >= 4 else [found.take()]
        assert found.take().kind == "ping"
        assert [bodies(event) for event in history] == [["x", "yy"][at // 2 :]] * len(history)
    for number, text in enumerate(texts, 2):
        writer.append(stream, text)
        for at, found in enumerate(followers):
            event = found.take()
            start = at // 2
            assert bodies(event) == [text]
            assert event.id == f"{number},{number - start + 1},{sum(sizes[start : number + 1])}"
            assert event.document["tail"]["seq_num"] == number + 1
    assert len(pushes) > len(texts)


def test_formats_and_frames_are_never_mistaken_for_one_another(
    another: Callable[[], Api], writer: Api, stream: str, pushes: list[int]
) -> None:
    raw = [events(another(), stream, "seq_num=0") for _ in range(3)]
    coded = [events(another(), stream, "seq_num=0", {"s2-format": "base64"}) for _ in range(3)]
    framed = [frames(another(), stream, "seq_num=0")[1] for _ in range(3)]
    for found in raw + coded:
        assert found.take().kind == "ping"
    for one in framed:
        assert is_heartbeat(one.take(), 0)
    for at in range(8):
        text = f"né {at}"
        writer.append(stream, text)
        for found in raw:
            assert bodies(found.take()) == [text]
        for found in coded:
            assert bodies(found.take()) == [base64.b64encode(text.encode()).decode()]
        payloads = [one.take() for one in framed]
        assert len({payload.payload for payload in payloads}) == 1
        assert [record.body for record in payloads[0].batch.records] == [text.encode()]
    assert pushes


def test_large_batches_come_too_and_small_ones_behind_them(
    another: Callable[[], Api], writer: Api, stream: str, pushes: list[int]
) -> None:
    followers = [events(another(), stream, "seq_num=0") for _ in range(3)]
    for found in followers:
        assert found.take().kind == "ping"
    for text in ("a", "b" * 300_000, "c", "d" * 20_000, "e"):
        writer.append(stream, text)
        for found in followers:
            event = found.take()
            while event.kind == "ping":  # whoever fell behind is told when it has caught up
                event = found.take()
            assert bodies(event) == [text]
    assert all(size < 20_000 for size in pushes)


def test_one_that_reads_nothing_holds_up_nobody_and_misses_nothing(
    api: Api, another: Callable[[], Api], server: Server, writer: Api, stream: str
) -> None:
    if api.version != "h1":
        pytest.skip("the deaf one is a plain socket")
    others = [events(another(), stream, "seq_num=0") for _ in range(3)]
    for found in others:
        assert found.take().kind == "ping"
    text = "z" * 7000
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        fields = [("s2-basin", BASIN), ("accept", "text/event-stream")]
        deaf.sendall(head_of("GET", f"/v1/streams/{stream}/records?seq_num=0", fields))
        deaf.settimeout(20)
        assert deaf.recv(100)
        for at in range(DEAF_EVENTS):
            writer.append(stream, f"{at}.{text}")
            if at % 50 == 0:
                for found in others:
                    while bodies(event := found.take())[-1] != f"{at}.{text}":
                        assert event.kind == "batch"
        got = b""
        while b'"%d.zzz' % (DEAF_EVENTS - 1) not in got:
            piece = deaf.recv(1 << 20)
            assert piece, "it was cut off"
            got += piece
        for at in range(DEAF_EVENTS):
            assert got.count(b'"body":"%d.' % at) == 1
    eventually(lambda: server.app.telemetry.open_sessions <= 3)
