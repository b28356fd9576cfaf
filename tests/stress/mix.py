"""Everything at once against one server in a process of its own, and what is true behind it."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.cli.process import Serving
from tests.stress.actors import Actor, Stage, companion, crowd, follower, session, sharer
from tests.stress.ledger import Found, Ledger, read, records_of
from tests.stress.loner import loner
from tests.stress.speakers import CLOCK, PATIENCE_SECS, Ask, Http1

BASIN: Final = "stress-basin"
STREAMS: Final = 3
ACTORS: Final[tuple[tuple[Actor, int], ...]] = (
    (sharer, 8),
    (crowd, 1),
    (loner, 3),
    (session, 4),
    (follower, 8),
    (companion, 2),
)
AT_REST: Final = (
    "bourn_open_sessions",
    "bourn_append_inflight_bytes",
    "bourn_append_waiting",
    "bourn_commits_in_flight",
)
OWN_DESCRIPTORS: Final = 6  # lanes have an epoll and two pipes, the listener has one to spare


async def play(server: Serving, seed: int, seconds: float) -> Stage:
    """Have all actors act for so long; raises where a promise is broken."""
    stage = await _stage(server.port, seed)
    async with asyncio.timeout(seconds + 4 * PATIENCE_SECS):
        async with asyncio.TaskGroup() as group:
            for actor, count in ACTORS:
                for at in range(count):
                    name = f"{actor.__name__}{at}"
                    group.create_task(actor(stage, name), name=name)  # type: ignore[arg-type]
            await CLOCK.sleep(seconds)
            stage.is_over = True
        await check(stage)
    return stage


async def play_until_stopped(server: Serving, seed: int, seconds: float) -> Stage:
    """Have all actors act until the server is told to stop, under their hands."""
    stage = await _stage(server.port, seed)
    acting = [
        asyncio.ensure_future(actor(stage, f"{actor.__name__}{at}"))
        for actor, count in ACTORS
        for at in range(count)
    ]
    await CLOCK.sleep(seconds)
    for task in acting:
        if task.done():
            task.result()
    server.send(signal.SIGTERM)
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, server.child.wait, PATIENCE_SECS) == 0
    stage.is_over = True
    for task in acting:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*acting, return_exceptions=True)
    return stage


async def _stage(port: int, seed: int) -> Stage:
    stage = Stage(port, [Ledger(BASIN, f"shared-{at}") for at in range(STREAMS)], seed)
    http1 = Http1(port)
    assert (await http1.ask(Ask("PUT", f"/v1/basins/{BASIN}"))).status in {200, 201}
    for ledger in stage.ledgers:
        made = Ask("PUT", f"/v1/streams/{ledger.stream}", ledger.fields)
        assert (await http1.ask(made)).status == 201
    await http1.close()
    return stage


async def check(stage: Stage) -> None:
    """Read everything back."""
    http1 = Http1(stage.port)
    for ledger in stage.ledgers:
        found: list[Found] = []
        while (reply := await http1.ask(read(ledger, f"seq_num={len(found)}"))).status != 416:
            found += records_of(reply)
        ledger.check(found)
    await http1.close()


def descriptors(server: Serving) -> int:
    """How many the server has open."""
    return len(list(Path(f"/proc/{server.child.pid}/fd").iterdir()))


async def at_rest(server: Serving, descriptors_before: int) -> None:
    """Return when the server holds nothing of its clients any more."""

    async def left() -> dict[str, float]:
        more = descriptors(server) - descriptors_before - OWN_DESCRIPTORS
        http1 = Http1(server.port)
        text = (await http1.ask(Ask("GET", "/metrics"))).body.decode()
        await http1.close()
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        gauges = {name: float(value) for name, value in lines if name in AT_REST}
        assert len(gauges) == len(AT_REST)
        return {name: value for name, value in gauges.items() if value} | (
            {"descriptors": more} if more > 0 else {}
        )

    until = CLOCK.monotonic() + PATIENCE_SECS
    while held := await left():
        assert CLOCK.monotonic() < until, held
        await CLOCK.sleep(0.1)
