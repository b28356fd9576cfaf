"""Thousands of followers on one stream beside hundreds of append sessions, in two processes.

All three share the machine's cores, so the delays that the crowds see are as much theirs, and the
host's, as the server's. What the server spent on an event (and on the acks beside it) is not.
"""

import argparse
import asyncio
import multiprocessing
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps
from typing import Any, Final

from bench.load.probe import BASIN, Client
from bench.load.target import Server, Watch, stolen_secs
from bench.load.witness import Span, longest_ns
from bourn.limits import MIB
from tests.hostile.crowd import (
    CLOCK,
    Session,
    message_of,
    open_followers,
    open_sessions,
    percentiles,
    settled,
)

FOLLOWED: Final = "followed"
STREAMS: Final = [f"s-{index}" for index in range(50)]
ERRORS_SHOWN: Final = 20
DRAIN_SECS: Final = 30.0


def measure(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Open both crowds, let them run, and say what they saw and what the server held."""
    _prepare(server.port)
    before = server.memory_bytes()
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    crowds = [
        multiprocessing.Process(target=work, args=(server.port, options, pipe[1]), daemon=True)
        for work, pipe in zip((_followers, _sessions), pipes, strict=True)
    ]
    with Watch(server) as watch:
        for crowd in crowds:
            crowd.start()
        for ours, _ in pipes:
            ours.recv()  # all are connected
        opened = server.memory_bytes()
        spent, stolen, began_ns = server.cpu_secs(), stolen_secs(), time_ns()
        for ours, _ in pipes:
            ours.send("go")
        written = pipes[1][0].recv()
        pipes[0][0].send(written.pop("followed"))
        read = pipes[0][0].recv()
        spent, stolen = server.cpu_secs() - spent, stolen_secs() - stolen
        took = Span(began_ns, time_ns())
        for crowd in crowds:
            crowd.join()
    return {
        "followers": options.followers,
        "sessions": options.sessions,
        "seconds": options.seconds,
        **written,
        **read,
        "errors": (written["errors"] + read["errors"])[:ERRORS_SHOWN],
        "server_cpu_secs": round(spent, 2),
        "server_cpu_us_per_event": round(spent / max(1, read["events"]) * 1e6, 2),
        "loop_turn_ms_max": round(longest_ns(server.turns(), took) / 1e6, 1),
        "steal_secs": round(stolen, 2),
        "memory_mib": {
            "before": before // MIB,
            "all_connected": opened // MIB,
            "peak": watch.peak_bytes // MIB,
        },
    }


def _prepare(port: int) -> None:
    client = Client(port)
    client.call("PUT", f"/v1/basins/{BASIN}")
    for name in (FOLLOWED, *STREAMS):
        client.call("PUT", f"/v1/streams/{name}")
    client.close()


def _followers(port: int, options: argparse.Namespace, pipe: Any) -> None:
    async def run() -> None:
        notes, followers = await open_followers(port, BASIN, FOLLOWED, options.followers)
        pipe.send("connected")
        await asyncio.to_thread(pipe.recv)
        expected = await asyncio.to_thread(pipe.recv)
        await settled(notes, lambda: all(found.next_seq_num == expected for found in followers))
        await notes.close()
        pipe.send(
            {
                "events": notes.events,
                "event_delay_ms": percentiles(notes.delays),
                "errors": notes.errors,
            }
        )

    asyncio.run(run())


def _sessions(port: int, options: argparse.Namespace, pipe: Any) -> None:
    async def run() -> None:
        own, writers = await open_sessions(port, BASIN, [FOLLOWED], 2)
        notes, sessions = await open_sessions(port, BASIN, STREAMS, options.sessions)
        pipe.send("connected")
        await asyncio.to_thread(pipe.recv)
        end = CLOCK.monotonic() + options.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_paced(writers[:1], options.events_per_second, end))
            tasks.create_task(_paced(sessions, options.appends_per_second, end))
        await settled(own, lambda: writers[0].is_idle)
        await settled(notes, lambda: all(session.is_idle for session in sessions))
        await own.close()
        await notes.close()
        pipe.send(
            {
                "followed": own.acks,
                "acks": notes.acks,
                "ack_ms": percentiles(notes.delays),
                "late": own.late + notes.late,
                "errors": own.errors + notes.errors,
            }
        )

    asyncio.run(run())


async def _paced(sessions: list[Session], rate: float, end: float) -> None:
    """Let each session append so many times a second, evenly spread."""
    start = CLOCK.monotonic()
    sent = 0
    while (now := CLOCK.monotonic()) < end:
        while sent < (now - start) * rate * len(sessions):
            session = sessions[sent % len(sessions)]
            session.append(message_of(f"{CLOCK.monotonic():.6f}".encode()))
            sent += 1
        await CLOCK.sleep(0.002)
