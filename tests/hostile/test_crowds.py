"""Many clients at once, in small: everything arrives, once and in order."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.hostile.crowd import (
    message_of,
    open_followers,
    open_sessions,
    settled,
    until,
)
from tests.http.clients import Api, Connected
from tests.http.server import LoopThread, Server, eventually

BASIN = "crowd-basin"
FOLLOWERS, SESSIONS, ROUNDS = 40, 24, 10
OTHERS = ["s-0", "s-1", "s-2"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(cors=False) as running:
        thread = LoopThread()
        with Connected("h1", running.port, thread) as connected:
            api = Api(connected.client, BASIN)
            api.put(f"/v1/basins/{BASIN}")
            for name in ("followed", *OTHERS):
                assert api.put(f"/v1/streams/{name}").status == 201
        thread.close()
        yield running


def test_a_crowd_of_followers_and_writers_sees_everything_once_and_in_order(
    server: Server,
) -> None:
    async def run() -> None:
        notes, followers = await open_followers(server.port, BASIN, "followed", FOLLOWERS)
        own, writers = await open_sessions(server.port, BASIN, ["followed"], 2)
        others, sessions = await open_sessions(server.port, BASIN, OTHERS, SESSIONS)
        for _ in range(ROUNDS):
            for session in (*writers, *sessions):
                session.append(message_of(b"0.0"))
            await until(lambda: all(found.is_idle for found in (*writers, *sessions)))
        await settled(notes, lambda: all(f.next_seq_num == 2 * ROUNDS for f in followers))
        for crowd in (notes, own, others):
            await crowd.close()
            assert crowd.errors == []
        assert (own.acks, others.acks) == (2 * ROUNDS, SESSIONS * ROUNDS)
        assert own.late + others.late == 0

    asyncio.run(run())
    eventually(lambda: server.users(BASIN, "followed") == 0)
