"""What many tests need: a loop, batches, a node."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.clock import Clock
from bourn.engine.node import Node
from bourn.layout.records import RecordBatch, encode_records
from bourn.log.cursor import ReadRequest, make_request
from bourn.model.record import Record, SequencedRecord
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings

T = TypeVar("T")

_SEEDS = itertools.count()
BASIN = "test-basin"
STREAM = "stream"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in debug-free asyncio: a test never waits for what is not awaited."""
    return asyncio.run(work)


def batch(*bodies: bytes | str | Record) -> RecordBatch:
    """A batch of these bodies, or of ready records."""
    return encode_records(
        [
            body
            if isinstance(body, Record)
            else Record(body.encode() if isinstance(body, str) else body)
            for body in bodies
        ]
    )


@asynccontextmanager
async def node_on(
    bucket: Bucket | None = None,
    settings: EngineSettings | None = None,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
) -> AsyncIterator[Node]:
    """A node that is closed behind the block; without a seed, one that no other node has had."""
    rng = Random(next(_SEEDS) if seed is None else seed)
    node = await Node.open(bucket or MemoryBucket(), settings, clock=clock, rng=rng)
    try:
        yield node
    finally:
        await node.close()


async def with_stream(node: Node, basin: str = BASIN, stream: str = STREAM) -> None:
    """Create one basin and one stream."""
    await node.create_basin(CreateBasin(basin))
    await node.create_stream(basin, CreateStream(stream))


async def read_all(node: Node, basin: str = BASIN, stream: str = STREAM) -> list[SequencedRecord]:
    """Every record of a stream, through a session that ends at the tail."""
    request = make_request(seq_num=0, wait=0)
    records: list[SequencedRecord] = []
    async with node.read_session(basin, stream, request) as batches:
        async for found in batches:
            records += found.records()
    return records


def from_start(**limits: int) -> ReadRequest:
    """A request from sequence number 0."""
    return make_request(seq_num=0, **limits)  # type: ignore[arg-type]  # names are the API's
