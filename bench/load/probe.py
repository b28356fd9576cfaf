"""One client that means well, and how long it waits."""

import asyncio
import base64
from typing import Any, Final

from bourn.limits import MIB
from tests.hostile.attacks import CLOCK, Target
from tests.hostile.crowd import percentiles
from tests.hostile.wires import head

BASIN: Final = "load-basin"
PERIOD_SECS: Final = 0.01
PATIENCE_SECS: Final = 30.0
START_SECS: Final = 2.0  # for the attackers' process to come up


class Client:
    """Unary calls over one HTTP/1.1 connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: bytes = b"") -> int:
        """Send and wait for the whole answer; returns its status."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=4 * MIB)
        reader, writer = self._streams
        media = ("content-type", "application/json")
        length = ("content-length", str(len(body)))
        start = head(method, path, ("s2-basin", BASIN), media, ("s2-format", "base64"), length)
        writer.write(start + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
        await reader.readexactly(size)
        return int(answer[9:12])

    def close(self) -> None:
        """Go."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def prepared(port: int, history_mib: int) -> Target:
    """Make a stream to write to and one with some MiB in it."""
    target = Target(port, BASIN, "s", "history")

    async def prepare() -> None:
        client = Client(port)
        await client.call("PUT", f"/v1/basins/{BASIN}")
        for name in ("s", "history"):
            await client.call("PUT", f"/v1/streams/{name}")
        body = base64.b64encode(bytes(MIB - 8)).decode()
        text = f'{{"records":[{{"body":"{body}"}}]}}'.encode()
        for _ in range(history_mib):
            assert await client.call("POST", target.records("history"), text) == 200
        client.close()

    asyncio.run(prepare())
    return target


class Lag:
    """How late this process itself is: on a busy machine, a part of what it waits for."""

    def __init__(self) -> None:
        self.secs_max = 0.0

    async def watch(self) -> None:
        """Look at the clock again and again, until cancelled."""
        while True:
            began = CLOCK.monotonic()
            await CLOCK.sleep(PERIOD_SECS)
            self.secs_max = max(self.secs_max, CLOCK.monotonic() - began - PERIOD_SECS)


async def waits(target: Target, seconds: float) -> tuple[dict[str, Any], int]:
    """Append and read one record again and again: waits in ms, and how often it went wrong."""
    await CLOCK.sleep(START_SECS)
    lag = Lag()
    watching = asyncio.ensure_future(lag.watch())
    client = Client(target.port)
    errors = 0
    append: list[float] = []
    read: list[float] = []
    body = b'{"records":[{"body":"eA=="}]}'
    end = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < end:
        for found, method, query, sent in (
            (append, "POST", "", body),
            (read, "GET", "?tail_offset=1&count=1", b""),
        ):
            began = CLOCK.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_SECS):
                    status = await client.call(method, target.records("s", query), sent)
                errors += status != 200
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                errors += 1
                client.close()
            found.append(CLOCK.monotonic() - began)
        await CLOCK.sleep(PERIOD_SECS)
    client.close()
    watching.cancel()
    figures = {
        "wait_ms": percentiles(append + read),
        "append_ms": percentiles(append),
        "read_ms": percentiles(read),
        "own_lag_ms_max": round(lag.secs_max * 1000, 2),
        "calls": len(append) + len(read),
    }
    return figures, errors
