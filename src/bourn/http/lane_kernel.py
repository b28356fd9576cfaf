"""What the thread of `lanes` runs: receiving and sending on many sockets, without the GIL.

Between the loop and the thread there are two pipes with rows of four int64, taken in order:

    to the thread    op    lane  address  length
        JOIN         the lane's socket is received from
        SEND         the bytes at the address are sent
        SEND_MORE    the same, and the lane is received from again
        MORE         the lane is received from again
        LEAVE        the lane is left alone; answered by LEFT
        FREE         answered by FREED: every SEND before it is done with its bytes
        END          the thread ends
    to the loop      what  lane  address  length
        CAME         so many bytes are in the lane's memory; no more is received until MORE
        ENDED        the client has said its last, or the socket failed; none is received any more
        SHORT        these bytes could not be sent, nor can any behind them
        LEFT, FREED  as asked for

A lane's memory is the thread's from MORE (or JOIN) to CAME, and the loop's from CAME to MORE. The
pipes order what either does there.
"""

import errno
import platform
import select
import socket
import sys
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.libc import ADDRESS, INT, LONG, compiled, errno_location, symbol

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

JOIN, SEND, SEND_MORE, MORE, LEAVE, FREE, END = range(7)
CAME, ENDED, SHORT, LEFT, FREED = range(5)
ROW: Final = 4
ROW_BYTES: Final = 8 * ROW
INBOX: Final = -1  # the pipe, where events name a lane

# Columns of a lane
DESCRIPTOR, IS_TAKEN, IS_OUT, IS_SHORT = range(4)
LANE_FIELDS: Final = 4

AVAILABLE: Final = sys.platform == "linux"
_EVENTS: Final = 256
_COMMANDS: Final = 2048
_SLICE: Final = 64  # of them, between two looks at the sockets
# struct epoll_event is packed on x86-64 and nowhere else: in words of four bytes
_EVENT_WORDS: Final = 3 if platform.machine() == "x86_64" else 4
_DATA: Final = _EVENT_WORDS - 2
_EPOLLIN: Final = int(getattr(select, "EPOLLIN", 1))
_EPOLL_CTL_ADD: Final = 1
_EPOLL_CTL_DEL: Final = 2
_SEND_FLAGS: Final = int(getattr(socket, "MSG_NOSIGNAL", 0)) | socket.MSG_DONTWAIT
_RECEIVE_FLAGS: Final = int(socket.MSG_DONTWAIT)
_EINTR: Final = errno.EINTR
_EAGAIN: Final = errno.EAGAIN

_c_read = symbol("read", LONG, INT, ADDRESS, LONG)
_c_write = symbol("write", LONG, INT, ADDRESS, LONG)
_c_send = symbol("send", LONG, INT, ADDRESS, LONG, INT)
_c_recv = symbol("recv", LONG, INT, ADDRESS, LONG, INT)
_c_epoll_wait = symbol("epoll_wait", INT, INT, ADDRESS, INT, INT)
_c_epoll_ctl = symbol("epoll_ctl", INT, INT, INT, INT, ADDRESS)


@compiled
def _report(reports: _Ints, what: int, lane: int, address: int, length: int) -> None:
    """Add a row; the first row's first number counts them."""
    reports[0, 0] += 1
    row = reports[reports[0, 0]]
    row[0] = what
    row[1] = lane
    row[2] = address
    row[3] = length


@compiled
def _flush(reports: _Ints, outbox: int) -> None:
    at = reports[1:].ctypes.data
    left = reports[0, 0] * ROW_BYTES
    reports[0, 0] = 0
    while left > 0:
        count = _c_write(outbox, at, left)
        if count > 0:
            at += count
            left -= count
        elif errno_location()[0] != _EINTR:
            return  # nobody reads any more


@compiled
def _watch(lanes: _Ints, epoll: int, lane: int, event: npt.NDArray[np.int32]) -> None:
    event[0] = _EPOLLIN
    event[_DATA] = lane
    event[_DATA + 1] = 0
    _c_epoll_ctl(epoll, _EPOLL_CTL_ADD, lanes[lane, DESCRIPTOR], event.ctypes.data)
    lanes[lane, IS_OUT] = 0


@compiled
def _ignore(lanes: _Ints, epoll: int, lane: int, event: npt.NDArray[np.int32]) -> None:
    if not lanes[lane, IS_OUT]:
        _c_epoll_ctl(epoll, _EPOLL_CTL_DEL, lanes[lane, DESCRIPTOR], event.ctypes.data)
        lanes[lane, IS_OUT] = 1


@compiled
def _receive(lanes: _Ints, memory: _Bytes, lane: int, reports: _Ints) -> None:
    # By the arrays, not by the limit: machine code is kept as long as this file stays as it is.
    size = len(memory) // len(lanes)
    address = memory.ctypes.data + lane * size
    count = _c_recv(lanes[lane, DESCRIPTOR], address, size, _RECEIVE_FLAGS)
    if count < 0 and errno_location()[0] in (_EAGAIN, _EINTR):
        return
    lanes[lane, IS_TAKEN] = 1
    _report(reports, CAME if count > 0 else ENDED, lane, 0, count)


@compiled
def _send(lanes: _Ints, lane: int, address: int, length: int, reports: _Ints) -> None:
    while not lanes[lane, IS_SHORT] and length > 0:
        count = _c_send(lanes[lane, DESCRIPTOR], np.uint64(address), length, _SEND_FLAGS)
        if count > 0:
            address += count
            length -= count
        elif count < 0 and errno_location()[0] != _EINTR:
            lanes[lane, IS_SHORT] = 1
    if length > 0:
        _report(reports, SHORT, lane, address, length)


@compiled
def _obey(
    command: _Ints, lanes: _Ints, epoll: int, event: npt.NDArray[np.int32], reports: _Ints
) -> bool:
    op, lane = command[0], command[1]
    if op in (SEND, SEND_MORE):
        _send(lanes, lane, command[2], command[3], reports)
    elif op == LEAVE:
        _ignore(lanes, epoll, lane, event)
        _report(reports, LEFT, lane, 0, 0)
    elif op == FREE:
        _report(reports, FREED, lane, 0, 0)
    if op in (SEND_MORE, MORE, JOIN):
        lanes[lane, IS_TAKEN] = 0
        if lanes[lane, IS_OUT]:
            _watch(lanes, epoll, lane, event)
    return op != END  # type: ignore[no-any-return]


@compiled
def serve(lanes: _Ints, memory: _Bytes, epoll: int, inbox: int, outbox: int) -> None:
    """Receive and send until told to end."""
    events = np.zeros(_EVENTS * _EVENT_WORDS, np.int32)
    event = np.zeros(_EVENT_WORDS, np.int32)
    commands = np.zeros((_COMMANDS, ROW), np.int64)
    reports = np.zeros((_EVENTS + _COMMANDS + 1, ROW), np.int64)
    held = 0  # bytes of commands
    done = 0  # of them, commands that were obeyed
    event[0] = _EPOLLIN
    event[_DATA] = INBOX
    _c_epoll_ctl(epoll, _EPOLL_CTL_ADD, inbox, event.ctypes.data)
    while True:
        whole = held // ROW_BYTES
        ready = _c_epoll_wait(epoll, events.ctypes.data, _EVENTS, -1 if done == whole else 0)
        for place in range(ready):
            lane = events[place * _EVENT_WORDS + _DATA]
            if lane == INBOX:
                if done == whole:
                    held -= done * ROW_BYTES
                    if held:
                        commands[0] = commands[done]
                    done = 0
                    at = commands.ctypes.data + held
                    count = _c_read(inbox, at, _COMMANDS * ROW_BYTES - held)
                    if count == 0:
                        return
                    held += max(count, 0)
                    whole = held // ROW_BYTES
            elif lanes[lane, IS_TAKEN]:
                _ignore(lanes, epoll, lane, event)
            else:
                _receive(lanes, memory, lane, reports)
        # What has come meanwhile is not kept waiting behind all that is to be sent.
        for _ in range(min(whole - done, _SLICE)):
            if not _obey(commands[done], lanes, epoll, event, reports):
                return
            done += 1
        _flush(reports, outbox)


def load() -> None:
    """Compile `serve` (seconds), or take it from numba's cache (a fraction of one)."""
    if AVAILABLE:
        ints, octets = types.int64[:, ::1], types.uint8[::1]
        cast("Any", serve).compile(types.void(ints, octets, LONG, LONG, LONG))


def is_loaded() -> bool:
    """Whether `serve` begins at once."""
    return bool(cast("Any", serve).signatures)
