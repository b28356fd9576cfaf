"""A stream of HTTP/2 that its client does not take holds up none of the others."""

import asyncio
from types import SimpleNamespace
from typing import Any

from bourn.http.pushing import Http2Burst
from tests.support import run


class Shut:
    """A driver whose stream has no window, while other streams put something by."""

    def __init__(self) -> None:
        self._send_lock = asyncio.Lock()
        self.pending = b""

    def send_data(self, *_: object) -> Any:
        return SimpleNamespace(stopped=None, flags=0, done=False, handle=None, sent=0)

    def take_pending(self) -> tuple[memoryview, bool]:
        taken, self.pending = self.pending, b""
        return memoryview(taken), False

    def credit_written(self) -> list[Any]:
        return []


def test_what_others_have_put_by_goes_out_before_a_stream_waits_for_its_window() -> None:
    async def scenario() -> None:
        written: list[bytes] = []
        transport = SimpleNamespace(writelines=lambda parts: written.extend(map(bytes, parts)))
        connection = SimpleNamespace(_writing_paused=False, _conn_lost=False, _transport=transport)
        driver, stream = Shut(), SimpleNamespace(id=1, window_evt=asyncio.Event())
        burst = Http2Burst(connection, SimpleNamespace(_conn=driver, _stream=stream))
        driver.pending = b"of others"
        waiting = asyncio.ensure_future(burst.put_by_later(b"x" * 10, 0, 10))
        for _ in range(3):
            await asyncio.sleep(0)  # noqa: TID251  a bare yield
        assert written == [b"of others"]
        stream.window_evt.set()
        assert await waiting == 0

    run(scenario())
