"""What many streams cost: to create, to keep, to start with, to wake up, to list."""

import asyncio
import time
from random import Random
from typing import Any, Final

import uvloop

from bench.engine.case import (
    Budget,
    Case,
    Figures,
    in_child,
    latency_figures,
    peak_rss_mb,
    rss_mb,
)
from bench.engine.target import BASIN, Target, append_message, opened_node
from bourn.bucket.port import Bucket
from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.layout import codec
from bourn.layout.codec import decode_append_input
from bourn.layout.keys import SNAPSHOT_PREFIX
from bourn.model.resource import CreateStream

CREATORS: Final = 1_000
TICK_SECS: Final = 0.002
APPEND_SECS_MAX: Final = 180.0
COLD_APPENDS: Final = 300
LISTINGS: Final = 200
BODY_BYTES: Final = 100
BUDGETS: Final = (Budget("rss_mb", 1000, "MB"), Budget("start_s", 30, "s"))


def cases(counts: tuple[int, ...]) -> list[Case]:
    """One case for each number of streams, once: creating a million is the long part."""
    return [
        Case(
            "streams",
            f"{count:,} streams",
            measure,
            {"target": "local", "count": count},
            BUDGETS if count == 1_000_000 else (),
            1,
        )
        for count in counts
    ]


def measure(target: Target, count: int, spawned_at: float) -> Figures:
    """Create in one process, start in a second one, and an empty node in a third."""
    del spawned_at
    empty = in_child(start, target=Target("local", f"{target.place}/empty"), count=0)
    full = Target("local", f"{target.place}/full")
    created = in_child(create, target=full, count=count)
    started = in_child(start, target=full, count=count)
    more_mb = float(started["rss_mb"]) - float(empty["rss_mb"])
    return {
        **created,
        **started,
        "rss_empty_mb": empty["rss_mb"],
        "rss_b_per_stream": more_mb * 1e6 / count,
    }


def name_of(number: int) -> str:
    """Names as people give them: a shared prefix, two levels."""
    return f"tenant-{number // 1000:06d}/device-{number % 1000:06d}"


def create(target: Target, count: int, spawned_at: float) -> Figures:
    """Create the streams, append a record to each, close the node with a snapshot."""
    del spawned_at
    return uvloop.run(_create(target, count))


class LongestTurn:
    """The most CPU that the event loop has spent without letting anything else run."""

    def __init__(self) -> None:
        self.cpu_secs = 0.0

    async def watch(self) -> None:
        """Look again and again; runs until cancelled."""
        clock = SystemClock()
        while True:
            before = time.thread_time()
            await clock.sleep(TICK_SECS)
            self.cpu_secs = max(self.cpu_secs, time.thread_time() - before)


async def _create(target: Target, count: int) -> Figures:
    batch = decode_append_input(append_message(1, BODY_BYTES)).batch
    rss_before = rss_mb()
    began = time.perf_counter()
    async with opened_node(target) as node:

        async def make(number: int) -> None:
            await node.create_stream(BASIN, CreateStream(name_of(number)))

        async def append(number: int) -> None:
            await node.append(BASIN, name_of(number), batch)

        stall = LongestTurn()
        ticking = asyncio.create_task(stall.watch())
        cpu = time.process_time()
        made, create_s = await _for_all(make, count)
        create_cpu = time.process_time() - cpu
        cpu = time.process_time()
        appended, append_s = await _for_all(append, count, APPEND_SECS_MAX)
        append_cpu = time.process_time() - cpu
        ticking.cancel()
        rss_after = rss_mb()
        taken = node.housekeeping.snapshots.taken
        bucket = node.term.bucket
        closing = time.perf_counter()
        await node.close()
        close_s = time.perf_counter() - closing
        snapshot_bytes = await _newest_snapshot_bytes(bucket)
    return {
        "created": float(made),
        "appended": float(appended),
        "create_s": create_s,
        "create_cpu_us": create_cpu / made * 1e6,
        "append_s": append_s,
        "append_cpu_us": append_cpu / appended * 1e6,
        "longest_turn_cpu_ms": stall.cpu_secs * 1e3,
        "close_s": close_s,
        "snapshots": float(taken + 1),
        "snapshot_mb": snapshot_bytes / 1e6,
        "rss_create_before_mb": rss_before,
        "rss_create_after_mb": rss_after,
        "rss_create_peak_mb": peak_rss_mb(),
        "create_total_s": time.perf_counter() - began,
    }


async def _for_all(work: Any, count: int, seconds_max: float = float("inf")) -> tuple[int, float]:
    """Do something for every stream, many at once; returns for how many, and how long it took."""
    began = time.perf_counter()
    numbers = iter(range(count))
    done = 0

    async def some() -> None:
        nonlocal done
        for number in numbers:
            await work(number)
            done += 1
            if time.perf_counter() - began > seconds_max:
                return

    await asyncio.gather(*(some() for _ in range(min(CREATORS, count))))
    return done, time.perf_counter() - began


async def _newest_snapshot_bytes(bucket: Bucket) -> int:
    sizes = [info.size_bytes async for info in bucket.list(SNAPSHOT_PREFIX)]
    return sizes[-1]


def start(target: Target, count: int, spawned_at: float) -> Figures:
    """Start a node as a server would; with streams, use some of them."""
    ready = time.perf_counter()
    codec.warm(lambda _: None)
    warm_s = time.perf_counter() - ready

    async def work() -> Figures:
        opened = time.perf_counter()
        async with opened_node(target) as node:
            served = time.perf_counter()
            rss, peak = rss_mb(), peak_rss_mb()
            used = await _use(node, count) if count else {}
            return {
                "start_s": served - opened,
                "warm_s": warm_s,
                "process_to_serving_s": served - spawned_at,
                "rss_mb": rss,
                "rss_start_peak_mb": peak,
                **used,
                "rss_used_mb": rss_mb(),
            }

    return uvloop.run(work())


async def _use(node: Node, count: int) -> Figures:
    assert node.term.state.streams.count() == count
    rng = Random(count)
    batch = decode_append_input(append_message(1, BODY_BYTES)).batch
    cold: list[float] = []
    hot: list[float] = []
    pages: list[float] = []
    for _ in range(COLD_APPENDS):
        name = name_of(rng.randrange(count))
        for latencies in (cold, hot):  # the second one finds the stream awake
            began = time.perf_counter()
            await node.append(BASIN, name, batch)
            latencies.append(time.perf_counter() - began)
    for _ in range(LISTINGS):
        began = time.perf_counter()
        page = await node.list_streams(BASIN, start_after=name_of(rng.randrange(count)))
        pages.append(time.perf_counter() - began)
        assert page.rows or not page.has_more
    return {
        **latency_figures(cold, "cold_append_"),
        **latency_figures(hot, "hot_append_"),
        **latency_figures(pages, "list_"),
    }
