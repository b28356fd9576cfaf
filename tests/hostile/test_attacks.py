"""Each attack in small, on a real server: others are served, and nothing is left behind."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bourn.limits import MIB
from tests.hostile.attacks import ATTACKS, Target, junk
from tests.http import clients
from tests.http.clients import JSON, Api, Connected
from tests.http.server import LoopThread, Server, eventually
from tests.support import batch

BASIN = "hostile-basin"
CROWD = 24
CALLS = 15  # of a client that means well, while the attack goes on
HISTORY_MIB = 6


@pytest.fixture(scope="module")
def threads() -> Iterator[tuple[LoopThread, LoopThread]]:
    found = (LoopThread(), LoopThread())
    yield found
    for thread in found:
        thread.close()


@pytest.fixture(scope="module")
def server(threads: tuple[LoopThread, LoopThread]) -> Iterator[Server]:
    with Server(cors=False) as running:
        with Connected("h1", running.port, threads[0]) as connected:
            api = Api(connected.client, BASIN)
            assert api.put(f"/v1/basins/{BASIN}").status == 201
            for name in ("s", "history"):
                assert api.put(f"/v1/streams/{name}").status == 201

        async def fill() -> None:
            for _ in range(HISTORY_MIB):
                await running.node.append(BASIN, "history", batch(b"x" * (MIB - 8)))

        running.run(fill())
        yield running


@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_served_while_it_goes_on_and_nothing_is_left_of_it(
    server: Server,
    threads: tuple[LoopThread, LoopThread],
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "bourn")
    attackers, own = threads
    begun: list[None] = []
    target = Target(server.port, BASIN, "s", "history", CROWD, lambda: begun.append(None))
    before = server.app.telemetry.requests
    attack = attackers.submit(running(name, target))
    try:
        eventually(lambda: len(begun) >= 2)
        for version in ("h1", "h2"):
            with Connected(version, server.port, own) as connected:
                api = Api(connected.client, BASIN)
                for index in range(CALLS):
                    reply = api.append("s", f"{name} {index}")
                    assert reply.status == 200
                    at = reply.json["start"]["seq_num"]
                    read = api.get(f"/v1/streams/s/records?seq_num={at}&count=1")
                    assert read.json["records"][0]["body"] == f"{name} {index}"
                    assert not attack.done()
    finally:
        attack.cancel()
    assert server.app.telemetry.requests >= before + 4 * CALLS
    eventually(lambda: server.users(BASIN, "s") == 0)
    eventually(lambda: server.users(BASIN, "history") == 0)
    eventually(lambda: server.app.telemetry.open_sessions == 0)
    eventually(lambda: server.call(server.edge.busy) == 0)
    assert not caplog.records, "no attack fills the log"


async def running(name: str, target: Target) -> None:
    with suppress(asyncio.CancelledError):
        await ATTACKS[name](target)


@pytest.mark.parametrize("name", junk())
def test_a_large_text_has_its_answer_and_the_answer_of_a_small_one(
    server: Server, threads: tuple[LoopThread, LoopThread], name: str
) -> None:
    """Large ones are read beside the loop; that must not show."""
    with Connected("h1", server.port, threads[1]) as connected:
        api = Api(connected.client, BASIN)
        path = "/v1/streams/s/records"
        reply = api.request("POST", path, JSON, junk()[name])
        expected = {
            "unknown numbers": 200,
            "unknown objects": 200,
            "unknown arrays": 200,
            "unknown keys": 200,
            "empty records": 422,
        }
        assert reply.status == expected.get(name, 400)
        if reply.status == 400:
            assert reply.error == (400, "bad_json")
        if name == "a key twice":
            assert reply.json["message"] == "duplicate field `1`"


def test_a_body_that_drips_is_given_up(
    server: Server, threads: tuple[LoopThread, LoopThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bourn.http.exchange.BODY_READ_SECS", 0.2)
    for version in ("h1", "h2"):
        with Connected(version, server.port, threads[1]) as connected:
            api = Api(connected.client, BASIN)
            call = api.begin("POST", "/v1/streams/s/records", JSON)
            call.send(b'{"records":')
            reply = clients.reply_of(call)
            assert reply.error == (408, "request_timeout")
            assert reply.json["message"] == "the body took longer than 0 seconds"
            call.abort()
