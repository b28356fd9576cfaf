"""Lanes: the quick way for many connections at once, with a thread that does the system calls.

Half of what a small append costs is the kernel's work for its two packets, and the loop does it
under the interpreter's lock. Where many connections are busy, their sockets go to one thread of
machine code (`lane_kernel`) instead: it receives for all that are ready, and wakes the loop
once; the loop serves all that came, and has all answers sent by one message. With few connections
that would only add two hand-overs to every answer, so they stay with the loop.

A connection in a lane is still the loop's (`laned_connection`, and for append sessions
`laned_transport`): its transport is paused, and the lane has a descriptor of its own. Anything but
small requests and answers takes it out of the lane, and the transport goes on where the lane has
stopped.
"""

import asyncio
import fcntl
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final, Protocol

import numpy as np

from bourn.http import lane_kernel as kernel
from bourn.limits import LANE_BYTES, LANES_FROM, LANES_MAX

log = logging.getLogger(__name__)

PIPE_BYTES: Final = 1 << 20  # a lane has few rows under way, so neither pipe is full in general
ROWS_BYTES_MAX: Final = 128 * kernel.ROW_BYTES  # heard in a turn: few appends fit the caches
_JOINS_AT_LEAST: Final = PIPE_BYTES // (4 * kernel.ROW_BYTES)

assert LANES_MAX <= _JOINS_AT_LEAST, "all lanes can say all they have at once"


class Member(Protocol):
    """Who is in a lane."""

    def came(self, data: bytes) -> None:
        """Take what has come; no more is received until that is asked for."""

    def was_short(self, data: bytes) -> None:
        """Keep what could not be sent; nothing behind it is."""

    def leave_lane(self) -> None:
        """Leave: the client has said its last, or the socket failed."""

    def left_lane(self) -> None:
        """Go on without the lane."""

    def cut(self) -> None:
        """End the connection at once."""


class Lanes:
    """The thread, and who is in which lane; made when there is something to do for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._members: list[Member | None] = []
        self._free: list[int] = []
        self._out: list[tuple[int, int, bytes]] = []  # lane, op, what to send
        self._blocks: deque[tuple[int, bytes]] = deque()  # being sent: where, and the bytes
        self._rest = b""
        self.joined = 0  # ever

    def is_wanted(self, connections: int) -> bool:
        """Whether another connection should have a lane."""
        return (
            connections >= LANES_FROM
            and not self._is_closed
            and (bool(self._free) if self._thread is not None else self._start())
        )

    def _start(self) -> bool:
        if not kernel.AVAILABLE or not kernel.is_loaded() or not self._open():
            self._is_closed = True
            return False
        self._members = [None] * LANES_MAX
        self._free = list(range(LANES_MAX - 1, -1, -1))
        self._table = np.zeros((LANES_MAX, kernel.LANE_FIELDS), np.int64)
        memory = np.empty(LANES_MAX * LANE_BYTES, np.uint8)
        self._memory = memoryview(memory.data)
        arguments = (self._table, memory, self._epoll.fileno(), *self._theirs)
        self._thread = threading.Thread(
            target=kernel.serve, args=arguments, name="lanes", daemon=True
        )
        self._thread.start()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._outbox, self._hear)
        return True

    def _open(self) -> bool:
        """Open what the thread needs; a system that has no room for it goes without lanes."""
        with ExitStack() as opened:
            try:
                self._epoll = opened.enter_context(select.epoll())
                inbox, self._inbox = pipe = os.pipe()
                opened.callback(_close, pipe)
                self._outbox, outbox = pipe = os.pipe()
                opened.callback(_close, pipe)
                for end in (self._inbox, self._outbox):
                    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError as error:
                log.warning("many connections will be served by the loop alone: %s", error.strerror)
                return False
            opened.pop_all()
        for end in (self._inbox, self._outbox):
            os.set_blocking(end, False)
        self._theirs = (inbox, outbox)
        return True

    def join(self, member: Member, descriptor: int) -> int | None:
        """Give a connection a lane, which is received from at once; None where that fails."""
        try:
            own = os.dup(descriptor)
        except OSError:
            return None
        lane = self._free.pop()
        self._members[lane] = member
        self._table[lane] = (own, 1, 1, 0)
        self._say(kernel.JOIN, lane)
        self.joined += 1
        return lane

    def send(self, lane: int, data: bytes, *, more: bool) -> None:
        """Send, together with all that is to be sent in this turn of the loop."""
        self._queue(lane, kernel.SEND_MORE if more else kernel.SEND, data)

    def more(self, lane: int) -> None:
        """Receive from the lane again."""
        self._queue(lane, kernel.MORE, b"")

    def _queue(self, lane: int, op: int, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append((lane, op, data))

    def leave(self, lane: int) -> None:
        """Have the lane left alone, behind all that was to be sent; its member is told."""
        if self._thread is not None:
            self._flush()
            self._say(kernel.LEAVE, lane)

    def _say(self, op: int, lane: int) -> None:
        row = np.array((op, lane, 0, 0), np.int64)
        self._write(row.tobytes())

    def _flush(self) -> None:
        if not self._out:
            return
        out, self._out = self._out, []
        lanes, ops, parts = zip(*out, strict=True)
        block = b"".join(parts) or b" "  # which has an address
        address = np.frombuffer(block, np.uint8).ctypes.data
        rows = np.zeros((len(out) + 1, kernel.ROW), np.int64)
        rows[:-1, 0] = ops
        rows[:-1, 1] = lanes
        rows[:-1, 3] = lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        rows[:-1, 2] = address + np.cumsum(lengths) - lengths
        rows[-1, 0] = kernel.FREE
        self._blocks.append((address, block))
        self._write(rows.tobytes())

    def _write(self, rows: bytes) -> None:
        """Say it, however long the thread takes to listen."""
        view = memoryview(rows)
        while view:
            try:
                view = view[os.write(self._inbox, view) :]
            except BlockingIOError:
                self._wait()

    def _wait(self) -> None:
        """Return when the thread listens or has said something, which is put by.

        It does not listen while nobody hears it: then both pipes are full.
        """
        waiting = select.poll()
        waiting.register(self._inbox, select.POLLOUT)
        waiting.register(self._outbox, select.POLLIN)
        waiting.poll()
        with suppress(BlockingIOError):
            self._rest += os.read(self._outbox, ROWS_BYTES_MAX)
        self._loop.call_soon(self._hear)

    def _hear(self) -> None:
        if self._thread is None:
            return
        data = self._rest
        with suppress(BlockingIOError):
            data += os.read(self._outbox, ROWS_BYTES_MAX)
        whole = len(data) - len(data) % kernel.ROW_BYTES
        self._rest = data[whole:]
        rows: list[list[int]] = (
            np.frombuffer(data[:whole], np.int64).reshape(-1, kernel.ROW).tolist()
        )
        for what, lane, address, length in rows:
            if what == kernel.FREED:
                self._blocks.popleft()
                continue
            member = self._members[lane]
            assert member is not None
            try:
                if what == kernel.CAME:
                    at = lane * LANE_BYTES
                    member.came(bytes(self._memory[at : at + length]))
                elif what == kernel.ENDED:
                    member.leave_lane()
                elif what == kernel.SHORT:
                    member.was_short(self._block(address, length))
                else:
                    self._left(lane)
                    member.left_lane()
            except Exception:
                log.exception("a connection failed")
                member.cut()

    def _block(self, address: int, length: int) -> bytes:
        start, block = self._blocks[0]  # behind each block comes FREED
        return block[address - start : address - start + length]

    def _left(self, lane: int) -> None:
        os.close(int(self._table[lane, kernel.DESCRIPTOR]))
        self._members[lane] = None
        self._free.append(lane)

    def close(self) -> None:
        """End the thread; nobody is in a lane any more, or wants to be."""
        self._is_closed = True
        if self._thread is None:
            return
        self._loop.remove_reader(self._outbox)
        self._flush()
        self._say(kernel.END, 0)
        os.close(self._outbox)  # or the thread might wait for somebody to hear it
        self._thread.join()
        self._epoll.close()
        _close((*self._theirs, self._inbox))
        for lane, member in enumerate(self._members):
            if member is not None:
                self._left(lane)
        self._thread = None


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
