"""Catch-up reads: a session from the first record to the tail, as bytes for the wire.

Filled and read in one process from the tail cache (`memory`, or `encoded` where an earlier reader
has had it encoded), from log objects with the tail cache off (`objects`), and after a restart
(`restart`: filled by one process, read by another). The files themselves are in the machine's page
cache. What is larger than every cache is read twice, and the second time counts: by then the
process has the memory that a running server has.
"""

import asyncio
import time
from typing import Any, Final

import msgspec
import uvloop

from bench.engine.case import Budget, Case, Figures, in_child, rss_mb
from bench.engine.target import BASIN, Target, append_message, opened_node
from bourn.engine.node import Node
from bourn.layout.codec import decode_append_input
from bourn.log.cursor import make_request
from bourn.model.resource import CreateStream
from bourn.settings import EngineSettings

SUBMITS_AHEAD: Final = 64
DEFAULT: Final = EngineSettings()
NO_TAIL_CACHE: Final = EngineSettings(tail_cache_bytes=0)


class Shape(msgspec.Struct, frozen=True):
    """What a stream is filled with.

    With `streams` above one, as many streams are filled side by side, each waiting for its acks,
    so that every commit holds one small batch of each; they are read one after the other.
    """

    name: str
    body_bytes: int
    records: int
    bytes_total: int
    streams: int = 1

    @property
    def stream_names(self) -> list[str]:
        """The streams that are filled, and read."""
        return [f"read-{number}" for number in range(self.streams)]


LARGE: Final = Shape("8 KiB, 1 MiB batches", 8192, 127, 192_000_000)
SMALL: Final = Shape("256 B, 1,000-record batches", 256, 1000, 96_000_000)
LARGE_ENCODED: Final = Shape("8 KiB, 1 MiB batches", 8192, 127, 48_000_000)
SMALL_ENCODED: Final = Shape("256 B, 1,000-record batches", 256, 1000, 48_000_000)
ONES: Final = Shape("256 B, 1-record batches, a session's", 256, 1, 12_800_000)
SCATTERED: Final = Shape("256 B, 1-record batches, one a commit", 256, 1, 400_000, streams=16)

MB_BUDGET: Final = Budget("mb_per_s", 524.3, "MB/s", at_least=True)  # 500 MiB/s
RECORDS_BUDGET: Final = Budget("records_per_s", 600_000, at_least=True)
CPU_BUDGET: Final = Budget("cpu_s_per_gb", 0.6, "s")


def cases() -> list[Case]:
    """Every source with every shape."""
    made = []
    for source in ("memory", "encoded", "objects", "restart"):
        encoded = source == "encoded"
        made.append(_case(source, LARGE_ENCODED if encoded else LARGE, (MB_BUDGET, CPU_BUDGET)))
        made.append(_case(source, SMALL_ENCODED if encoded else SMALL, (RECORDS_BUDGET,)))
        if not encoded:
            made += [_case(source, ONES), _case(source, SCATTERED)]
    return made


def _case(source: str, shape: Shape, budgets: tuple[Budget, ...] = ()) -> Case:
    encoded = source == "encoded"
    in_memory = encoded or source == "memory"
    return Case(
        "reads",
        f"{source}, {shape.name}",
        measure_restarted if source == "restart" else measure,
        {
            "target": "memory" if in_memory else "local",
            "shape": shape,
            "settings": DEFAULT if in_memory or source == "restart" else NO_TAIL_CACHE,
            "passes": 2 if encoded or shape in {LARGE, SMALL} else 1,
        },
        budgets,
    )


def measure(
    target: Target, shape: Shape, settings: EngineSettings, passes: int, spawned_at: float
) -> Figures:
    """Fill a stream and read it, in this process."""
    del spawned_at

    async def work() -> Figures:
        async with opened_node(target, settings) as node:
            await _fill(node, shape)
            return [await _read(node, shape) for _ in range(passes)][-1]

    return uvloop.run(work())


def measure_restarted(
    target: Target, shape: Shape, settings: EngineSettings, passes: int, spawned_at: float
) -> Figures:
    """Fill a stream in one more process, and read it in this one."""
    del spawned_at
    in_child(fill, target=target, shape=shape)

    async def work() -> Figures:
        async with opened_node(target, settings) as node:
            return [await _read(node, shape) for _ in range(passes)][-1]

    return uvloop.run(work())


def fill(target: Target, shape: Shape, spawned_at: float) -> Figures:
    """Fill a stream and close the node."""
    del spawned_at

    async def work() -> Figures:
        async with opened_node(target) as node:
            await _fill(node, shape)
        return {}

    return uvloop.run(work())


async def _fill(node: Node, shape: Shape) -> None:
    batch = decode_append_input(append_message(shape.records, shape.body_bytes)).batch
    batches = shape.bytes_total // (shape.records * shape.body_bytes)
    for name in shape.stream_names:
        await node.create_stream(BASIN, CreateStream(name))
    if shape.streams == 1:
        appender = await node.appender(BASIN, shape.stream_names[0])
        acks: list[asyncio.Future[Any]] = []
        for _ in range(batches):
            await appender.room_for(batch)
            acks.append(appender.submit(batch))
            if len(acks) >= SUBMITS_AHEAD:
                await asyncio.gather(*acks)
                acks.clear()
        await asyncio.gather(*acks)
        appender.close()
        return

    async def one_by_one(name: str) -> None:
        for _ in range(batches):
            await node.append(BASIN, name, batch)

    await asyncio.gather(*map(one_by_one, shape.stream_names))


async def _read(node: Node, shape: Shape) -> Figures:
    reader = node.term.reader
    fetches = reader.fetches
    request = make_request(seq_num=0, wait=0)
    records = metered = sent = batches = 0
    cpu, began = time.process_time(), time.perf_counter()
    for name in shape.stream_names:
        async with node.read_session(BASIN, name, request) as session:
            async for batch in session:
                records += batch.records_count
                metered += batch.metered_bytes
                sent += sum(map(len, batch.wire()))
                batches += 1
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    tails = [await node.check_tail(BASIN, name) for name in shape.stream_names]
    assert records == sum(tail.seq_num for tail in tails) > 0, "every record was read"
    body_bytes = metered - 8 * records
    return {
        "mb_per_s": body_bytes / took / 1e6,
        "records_per_s": records / took,
        "cpu_s_per_gb": cpu / body_bytes * 1e9,
        "cpu_us_per_record": cpu / records * 1e6,
        "wire_mb": sent / 1e6,
        "batches": float(batches),
        "fetches": float(reader.fetches - fetches),
        "cpus_busy": cpu / took,
        "rss_mb": rss_mb(),
        "seconds": took,
    }
