"""In small, what `python -m tests.stress` does for as long as one likes."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.process import Serving
from tests.http.edges import native_only
from tests.stress.mix import at_rest, check, descriptors, play, play_until_stopped

pytestmark = native_only("the command serves by the native edge")

SHORT = pytest.param(1, 3.0, id="short")
LONG = [pytest.param(seed, 60.0, id=f"seed-{seed}", marks=pytest.mark.long) for seed in (2, 3)]


@pytest.mark.parametrize(("seed", "seconds"), [SHORT, *LONG])
def test_every_promise_is_kept_and_nothing_is_left_behind(seed: int, seconds: float) -> None:
    async def scenario(server: Serving) -> dict[str, int]:
        before = descriptors(server)
        stage = await play(server, seed, seconds)
        await at_rest(server, before)
        return stage.did

    with Serving("--memory") as server:
        did = asyncio.run(scenario(server))
        assert "Traceback" not in server.errors()
    assert {"append", "read", "pipelined", "session h1", "followed h1", "compared 200"} <= set(did)


@pytest.mark.parametrize(("seed", "seconds"), LONG)
def test_what_was_acked_before_a_server_stopped_is_there_when_it_is_back(
    seed: int, seconds: float, tmp_path: Path
) -> None:
    with Serving("--bucket", str(tmp_path)) as server:
        stage = asyncio.run(play_until_stopped(server, seed, seconds))
        assert "Traceback" not in server.errors()
    assert any(ledger.tail for ledger in stage.ledgers)
    with Serving("--bucket", str(tmp_path)) as server:
        stage.port = server.port
        asyncio.run(check(stage))
