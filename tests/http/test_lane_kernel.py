"""The thread of the lanes, without a server around it: what is heard when."""

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from bourn.http import lane_kernel as kernel
from bourn.limits import LANE_BYTES
from tests.http.edges import native_only
from tests.http.server import PATIENCE_SECS

pytestmark = native_only("it has no lanes")

Row = tuple[int, int, int, int]
TALKER, LISTENER = 0, 1
FREE: Row = (kernel.FREE, 0, 0, 0)
FREED: Row = (kernel.FREED, 0, 0, 0)


class Thread:
    """A running kernel with two lanes, and the clients at their other ends."""

    def __init__(self, opened: ExitStack) -> None:
        kernel.load()
        self.clients: list[socket.socket] = []
        self._ours: list[socket.socket] = []
        self._lanes = np.zeros((2, kernel.LANE_FIELDS), np.int64)
        for lane in (TALKER, LISTENER):
            ours, client = socket.socketpair()
            self._ours.append(opened.enter_context(ours))
            self.clients.append(opened.enter_context(client))
            client.settimeout(PATIENCE_SECS)
            self._lanes[lane] = (ours.fileno(), 1, 1, 0)  # not received from before MORE
        inbox, self.inbox = os.pipe()
        self._outbox, outbox = os.pipe()
        for end in (inbox, self.inbox, self._outbox, outbox):
            opened.callback(os.close, end)
        epoll = opened.enter_context(select.epoll())
        memory = np.zeros(2 * LANE_BYTES, np.uint8)
        arguments = (self._lanes, memory, epoll.fileno(), inbox, outbox)
        self._thread = threading.Thread(target=kernel.serve, args=arguments)
        self._thread.start()
        opened.callback(self._end)

    def _end(self) -> None:
        self.say([(kernel.END, 0, 0, 0)])
        self._thread.join(PATIENCE_SECS)
        assert not self._thread.is_alive()

    def say(self, rows: list[Row]) -> None:
        os.write(self.inbox, np.array(rows, np.int64).tobytes())

    def heard(self, count: int) -> list[Row]:
        """The next so many rows, however they come."""
        data = b""
        while len(data) < count * kernel.ROW_BYTES:
            assert select.select([self._outbox], [], [], PATIENCE_SECS)[0], "it says nothing"
            data += os.read(self._outbox, count * kernel.ROW_BYTES - len(data))
        rows = np.frombuffer(data, np.int64).reshape(-1, kernel.ROW).tolist()
        return [(row[0], row[1], row[2], row[3]) for row in rows]


@pytest.fixture
def thread() -> Iterator[Thread]:
    with ExitStack() as opened:
        yield Thread(opened)


def test_who_has_something_to_say_is_heard_before_all_commands_are_obeyed(thread: Thread) -> None:
    thread.clients[TALKER].sendall(b"more")
    thread.say([(kernel.MORE, TALKER, 0, 0), *[FREE] * 1000])
    came = (kernel.CAME, TALKER, 0, 4)
    rows = thread.heard(1001)
    assert rows.count(came) == 1
    assert rows.index(came) < 200


def test_more_than_it_takes_at_once_is_obeyed_in_order(thread: Thread) -> None:
    text = bytes(range(256))
    block = np.frombuffer(text, np.uint8)
    rows: list[Row] = []
    for at in range(len(text)):
        rows += [(kernel.SEND, LISTENER, block.ctypes.data + at, 1), *[FREE] * 20]
    for at in range(0, len(rows), 1500):
        some = rows[at : at + 1500]
        thread.say(some)
        assert thread.heard(some.count(FREE)) == [FREED] * some.count(FREE)
    assert thread.clients[LISTENER].recv(len(text), socket.MSG_WAITALL) == text


@pytest.mark.parametrize("cut", [5, 40, 70])
def test_a_command_may_come_in_parts(thread: Thread, cut: int) -> None:
    data = np.array([FREE] * 3, np.int64).tobytes()
    whole = cut // kernel.ROW_BYTES
    os.write(thread.inbox, data[:cut])
    assert thread.heard(whole) == [FREED] * whole
    os.write(thread.inbox, data[cut:])
    assert thread.heard(3 - whole) == [FREED] * (3 - whole)
