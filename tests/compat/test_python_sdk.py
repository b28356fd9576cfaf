"""The official Python SDK, unmodified, against a real server on a port of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from s2_sdk import (
    S2,
    AppendInput,
    Compression,
    Endpoints,
    ReadLimit,
    Record,
    S2Stream,
    SeqNum,
    SeqNumMismatchError,
)

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from tests.http.server import Server

BATCHES = 3000


@pytest.fixture(params=["memory", "disk"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    bucket: Bucket = MemoryBucket() if request.param == "memory" else LocalBucket(tmp_path / "data")
    with Server(bucket=bucket) as running:
        yield running


def connect(server: Server, compression: Compression = Compression.NONE) -> S2:
    endpoint = f"http://127.0.0.1:{server.port}"
    here = Endpoints(account=endpoint, basin=endpoint)
    client: S2 = S2("any token", endpoints=here, compression=compression)
    return client


async def stream_of(s2: S2, name: str = "stream") -> S2Stream:
    await s2.ensure_basin("sdk-basin")
    basin = s2.basin("sdk-basin")
    await basin.ensure_stream(name)
    stream: S2Stream = basin.stream(name)
    return stream


@pytest.mark.parametrize("compression", list(Compression), ids=lambda c: c.name.lower())
def test_a_session_of_thousands_of_batches_is_read_back_exactly(
    server: Server, compression: Compression
) -> None:
    bodies = [b"%d:" % i + bytes([i % 256]) * (i % 2000) for i in range(BATCHES)]

    async def scenario() -> None:
        async with connect(server, compression) as s2:
            stream = await stream_of(s2, f"session/{compression.name}")
            async with stream.append_session() as session:
                tickets = [
                    await session.submit(AppendInput(records=[Record(body=body)]))
                    for body in bodies
                ]
                acks = [await ticket for ticket in tickets]
            assert [ack.start.seq_num for ack in acks] == list(range(BATCHES))
            found: list[bytes] = []
            limit = ReadLimit(count=BATCHES)
            async for batch in stream.read_session(start=SeqNum(0), limit=limit):
                found += [record.body for record in batch.records]
            assert found == bodies

    asyncio.run(scenario())


def test_unary_calls_conditions_and_the_tail(server: Server) -> None:
    async def scenario() -> None:
        async with connect(server) as s2:
            stream = await stream_of(s2)
            headers = [(b"kind", b"test"), (b"kind", b"\xff")]
            ack = await stream.append(AppendInput(records=[Record(body=b"a", headers=headers)]))
            assert (ack.start.seq_num, ack.end.seq_num) == (0, 1)
            with pytest.raises(SeqNumMismatchError):
                await stream.append(AppendInput(records=[Record(body=b"b")], match_seq_num=0))
            assert (await stream.check_tail()).seq_num == 1
            batch = await stream.read(start=SeqNum(0))
            assert [(record.body, list(record.headers)) for record in batch.records] == [
                (b"a", headers)
            ]

    asyncio.run(scenario())


def test_basins_streams_and_locations(server: Server) -> None:
    async def scenario() -> None:
        async with connect(server) as s2:
            await s2.create_basin("sdk-basin-one")
            basin = s2.basin("sdk-basin-one")
            for name in ("b", "a/x", "a"):
                await basin.create_stream(name)
            assert [stream.name async for stream in basin.list_all_streams()] == ["a", "a/x", "b"]
            assert (await basin.get_stream_config("a")).storage_class is not None
            location = await s2.get_default_location()
            assert [found.name for found in await s2.list_locations()] == [location.name]
            await basin.delete_stream("b")
            await s2.delete_basin("sdk-basin-one")

    asyncio.run(scenario())
