"""Appends: rate, latency and CPU over buckets, batch shapes and numbers of appenders."""

import asyncio
import time
from array import array
from typing import Any, Final

import msgspec
import uvloop

from bench.engine.case import Budget, Case, Figures, latency_figures, rss_mb
from bench.engine.target import BASIN, Target, append_message, opened_node
from bourn.engine.node import Node
from bourn.layout.codec import decode_append_input
from bourn.layout.records import RecordBatch
from bourn.model.resource import CreateStream

WARM_SECS: Final = 0.3
BYTES_MAX: Final = {"memory": 1_500_000_000, "local": 2_000_000_000, "s3": 400_000_000}
MESSAGES_MAX: Final = 32  # different batches: enough that no cache holds them all at 1 MiB
APPENDERS: Final = (1, 16, 256)


class Shape(msgspec.Struct, frozen=True):
    """How a batch is made up."""

    name: str
    records: int
    body_bytes: int


ONE: Final = Shape("1 x 1 KiB", 1, 1024)
HUNDRED: Final = Shape("100 x 1 KiB", 100, 1024)
FULL: Final = Shape("1 MiB", 1000, 1040)  # as much as a batch may weigh: 8 more for each record
SHAPES: Final = (ONE, HUNDRED, FULL)

BUDGETS: Final = {
    ("memory", 256, ONE): (Budget("acks_per_s", 80_000, at_least=True),),
    ("local", 256, ONE): (Budget("acks_per_s", 60_000, at_least=True),),
    ("memory", 1, ONE): (Budget("p50_ms", 0.5, "ms"),),
    ("memory", 1, FULL): (Budget("mb_per_s", 400, "MB/s", at_least=True),),
    ("memory", 16, FULL): (Budget("mb_per_s", 400, "MB/s", at_least=True),),
    ("memory", 256, FULL): (Budget("mb_per_s", 400, "MB/s", at_least=True),),
}


def cases(targets: tuple[str, ...], seconds: float) -> list[Case]:
    """Every combination, then one stream for all, then with the decoding of each append."""
    made = [
        _case(target, appenders, shape, seconds)
        for target in targets
        for shape in SHAPES
        for appenders in APPENDERS
    ]
    made += [_case(target, 256, ONE, seconds, one_stream=True) for target in targets]
    made += [_case("memory", 256, shape, seconds, decode=True) for shape in SHAPES]
    if "local" in targets:
        made.append(_case("local", 256, ONE, seconds, decode=True))
    return made


def _case(
    target: str,
    appenders: int,
    shape: Shape,
    seconds: float,
    *,
    one_stream: bool = False,
    decode: bool = False,
) -> Case:
    plain = not one_stream and not decode
    how = ", one stream" if one_stream else ", decoded" if decode else ""
    noun = "appender" if appenders == 1 else "appenders"
    return Case(
        "appends",
        f"{target}, {appenders} {noun}, {shape.name}{how}",
        measure,
        {
            "appenders": appenders,
            "shape": shape,
            "seconds": seconds,
            "one_stream": one_stream,
            "decode": decode,
            "target": target,
        },
        BUDGETS.get((target, appenders, shape), ()) if plain else (),
    )


def measure(target: Target, **arguments: Any) -> Figures:
    """Append for some seconds, in this process."""
    return uvloop.run(_measure(target, **arguments))


async def _measure(
    target: Target,
    appenders: int,
    shape: Shape,
    seconds: float,
    *,
    one_stream: bool,
    decode: bool,
    spawned_at: float,
) -> Figures:
    del spawned_at
    messages = [
        append_message(shape.records, shape.body_bytes, seed)
        for seed in range(min(appenders, MESSAGES_MAX))
    ]
    async with opened_node(target) as node:
        names = [f"stream-{0 if one_stream else number}" for number in range(appenders)]
        for name in dict.fromkeys(names):
            await node.create_stream(BASIN, CreateStream(name))
        drive = _drive_decoding if decode else _drive
        work = [(name, messages[number % len(messages)]) for number, name in enumerate(names)]
        acks_max = BYTES_MAX[target.kind] // (shape.records * shape.body_bytes)
        warm = await _phase(node, work, drive, min(WARM_SECS, seconds), acks_max)
        commits = node.term.committer.commits
        cpu, loop_cpu, began = time.process_time(), time.thread_time(), time.perf_counter()
        latencies = await _phase(node, work, drive, seconds, acks_max - len(warm))
        took = time.perf_counter() - began
        cpu, loop_cpu = time.process_time() - cpu, time.thread_time() - loop_cpu
        commits = node.term.committer.commits - commits
        rss = rss_mb()
    acks = len(latencies)
    return {
        "acks_per_s": acks / took,
        "mb_per_s": acks * shape.records * shape.body_bytes / took / 1e6,
        **latency_figures(latencies),
        "cpu_us_per_ack": cpu / acks * 1e6,
        "loop_us_per_ack": loop_cpu / acks * 1e6,
        "acks_per_commit": acks / max(commits, 1),
        "cpus_busy": cpu / took,
        "rss_mb": rss,
        "acks": float(acks),
        "seconds": took,
    }


async def _phase(
    node: Node, work: list[tuple[str, bytes]], drive: Any, seconds: float, acks_max: int
) -> "array[float]":
    """Let all appenders go at once; returns the latency of every ack."""
    latencies = array("d")
    until = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for name, message in work:
            group.create_task(drive(node, name, message, until, acks_max, latencies))
    return latencies


async def _drive(
    node: Node,
    name: str,
    message: bytes,
    until: float,
    acks_max: int,
    latencies: "array[float]",
) -> None:
    """Append the same batch again and again, each when the one before is acked."""
    batch: RecordBatch = decode_append_input(message).batch
    clock = time.perf_counter
    began = clock()
    while began < until and len(latencies) < acks_max:
        await node.append(BASIN, name, batch)
        ended = clock()
        latencies.append(ended - began)
        began = ended


async def _drive_decoding(
    node: Node,
    name: str,
    message: bytes,
    until: float,
    acks_max: int,
    latencies: "array[float]",
) -> None:
    """The same, decoding each batch out of the message that a client would send."""
    clock = time.perf_counter
    began = clock()
    while began < until and len(latencies) < acks_max:
        await node.append(BASIN, name, decode_append_input(message).batch)
        ended = clock()
        latencies.append(ended - began)
        began = ended
