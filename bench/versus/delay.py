"""A TCP relay in a process of its own that holds every answer back: an object store far away."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import uvloop

from bourn.clock import SystemClock

CHUNK_BYTES = 1 << 18


@contextmanager
def delayed(endpoint: str, delay_secs: float) -> Iterator[str]:
    """The endpoint of a relay to `endpoint`, until the block ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    port = urlsplit(endpoint).port
    child = context.Process(target=_relay, args=(theirs, port, delay_secs), daemon=True)
    child.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        child.terminate()
        child.join()


def _relay(told: Connection, port: int, delay_secs: float) -> None:
    uvloop.run(_serve(told, port, delay_secs))


async def _serve(told: Connection, port: int, delay_secs: float) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, far_writer, 0.0), _pass(far_reader, writer, delay_secs))

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secs: float) -> None:
    """Pass on what comes, each piece so much later, in order."""
    loop, clock = asyncio.get_running_loop(), SystemClock()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

    async def late() -> None:
        while True:
            due, data = await queue.get()
            if due > (now := loop.time()):
                await clock.sleep(due - now)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    passing = asyncio.create_task(late())
    try:
        while data := await reader.read(CHUNK_BYTES):
            await queue.put((loop.time() + secs, data))
    except OSError:
        pass
    await queue.put((loop.time() + secs, b""))
    await asyncio.gather(passing, return_exceptions=True)
