"""What is pushed into a connection of HTTP/2 is written at once, unless its own task must do it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bourn.http.pushing import Http2Pusher


class Driver:
    """As much of the library's connection as flushing needs."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._send_lock = asyncio.Lock()
        self._transport: Any = SimpleNamespace(
            _writing_paused=False,
            _conn_lost=False,
            _transport=SimpleNamespace(write=lambda data: self.written.append(bytes(data))),
        )
        self.pending = bytearray(b"frames")
        self.sender = SimpleNamespace(window_evt=asyncio.Event())

    def take_pending(self) -> tuple[memoryview, bool]:
        taken, self.pending = self.pending, bytearray()
        return memoryview(taken), False

    def credit_written(self) -> list[Any]:
        return [self.sender]


def pusher_of(driver: Driver) -> Http2Pusher:
    return Http2Pusher(SimpleNamespace(_conn=driver, _stream=None))


def test_flushing_writes_all_that_is_put_by_and_lets_its_senders_go_on() -> None:
    driver = Driver()
    pusher = pusher_of(driver)
    pusher.flush()
    pusher.flush()
    assert driver.written == [b"frames"]
    assert driver.sender.window_evt.is_set()


@pytest.mark.parametrize("why", ["_writing_paused", "_conn_lost"])
def test_nothing_is_flushed_to_a_client_that_does_not_read(why: str) -> None:
    driver = Driver()
    setattr(driver._transport, why, True)
    pusher_of(driver).flush()
    assert not driver.written
    assert driver.pending == b"frames"


def test_nothing_overtakes_what_is_being_sent() -> None:
    async def scenario() -> None:
        driver = Driver()
        async with driver._send_lock:
            pusher_of(driver).flush()
        assert not driver.written
        assert driver.pending == b"frames"

    asyncio.run(scenario())


def test_streams_of_one_connection_share_a_line() -> None:
    one, other = Driver(), Driver()
    assert pusher_of(one).line == pusher_of(one).line != pusher_of(other).line
