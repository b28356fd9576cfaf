"""`bourn bench`: a stream of its own, measured and deleted again."""

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from random import Random
from typing import Any, Final

import orjson

from bourn.cli import render
from bourn.cli.address import StreamAddress, parse_basin
from bourn.cli.bench.link import make_way
from bourn.cli.bench.live import LiveTable, print_result, result_of
from bourn.cli.bench.phases import Bench, Plan
from bourn.cli.client import Client, basin_client
from bourn.cli.failures import DONE, INTERRUPTED, CommandError
from bourn.cli.resources import stream_path
from bourn.clock import SystemClock
from bourn.engine.process import tune_process
from bourn.wire.compression import Compression

RETENTION_SECS: Final = 3600
EMPTY_SECS: Final = 60  # if this process is killed, the server clears up
_NS_PER_SECOND: Final = 1e9


def run(arguments: argparse.Namespace) -> int:
    """Measure, show the result, delete the stream."""
    address = StreamAddress(parse_basin(arguments.basin), f"bench/{Random().getrandbits(64):016x}")  # noqa: S311  a name
    way = make_way(
        arguments.endpoint,
        address.basin,
        arguments.http,
        Compression[arguments.compression.upper()],
    )
    path = stream_path(address.stream)
    plan = Plan(
        way,
        f"{path}/records",
        arguments.record_size,
        arguments.target_mibps,
        arguments.duration / _NS_PER_SECOND,
        arguments.catchup_delay / _NS_PER_SECOND,
    )
    with basin_client(arguments.endpoint, address.basin) as client:
        client.call("POST", "/streams", orjson.dumps(_stream(address, arguments.storage_class)))
        render.note(f"made {address}; it goes at the end")
        try:
            return _measure(plan, address, arguments)
        finally:
            _delete(client, path, address)


def _stream(address: StreamAddress, storage_class: str | None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "retention_policy": {"age": RETENTION_SECS},
        "delete_on_empty": {"min_age_secs": EMPTY_SECS},
        "timestamping": {"mode": "client-require", "uncapped": True},
    }
    if storage_class is not None:
        config["storage_class"] = storage_class
    return {"stream": address.stream, "config": config}


def _delete(client: Client, path: str, address: StreamAddress) -> None:
    try:
        client.call("DELETE", path)
    except CommandError as error:
        render.note(f"{address} is still there: {error}")


def _measure(plan: Plan, address: StreamAddress, arguments: argparse.Namespace) -> int:
    table = LiveTable()

    def say(text: str) -> None:
        table.clear()
        render.note(text)

    bench = Bench(plan, SystemClock(), table.show)
    try:
        is_interrupted = _run(bench, say)
    finally:
        table.clear()
        if arguments.json:
            found = {"stream": str(address), "verified": bench.is_verified, **result_of(bench)}
            render.json_line(found)
        else:
            print_result(bench)
    if is_interrupted:
        render.note("interrupted: these are the figures so far")
        return INTERRUPTED
    render.note("every record was read as it was appended, twice")
    return DONE


def _run(bench: Bench, say: Any) -> bool:
    """Run the phases; True where somebody did not want to wait for their end."""
    tune_process()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_until_done(bench, say))


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415  there is none on Windows

    return uvloop.new_event_loop()


async def _until_done(bench: Bench, say: Any) -> bool:
    loop = asyncio.get_running_loop()
    work = loop.create_task(bench.run(say))
    interrupted = asyncio.Event()

    def interrupt() -> None:
        # A second one is no longer ours, and ends the process the ordinary way.
        loop.remove_signal_handler(signal.SIGINT)
        interrupted.set()
        work.cancel()

    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await work
    except asyncio.CancelledError:
        if not interrupted.is_set():
            raise
    return interrupted.is_set()
