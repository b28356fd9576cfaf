"""The load generator: many connections of HTTP/1.1, each asking again once it is answered.

A client in Python costs as much for a request as the server does, and on few cores takes from it
what it measures. So all connections are served by one loop of machine code around epoll, which
makes three system calls for a request and looks for no more than status, length and end of each
answer. Whatever is not a plain 200 with a length ends the run with what has come.
"""

import errno
import platform
import select
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bourn.libc import ADDRESS, INT, LONG, compiled, errno_location, symbol

_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]

SILENCE_MS_MAX: Final = 60_000
CONNECT_SECS_MAX: Final = 60.0
HEAD_BYTES_MAX: Final = 4096
RECEIVE_BYTES: Final = 256 * 1024
_LATENCIES_AT_FIRST: Final = 1 << 20
_EVENTS: Final = 512
# struct epoll_event is packed on x86-64 and nowhere else: in words of four bytes
_EVENT_WORDS: Final = 3 if platform.machine() == "x86_64" else 4
_EVENT_DATA: Final = _EVENT_WORDS - 2

_CLOCK_MONOTONIC: Final = 1
_SECOND_NS: Final = 1_000_000_000
_SEND_FLAGS: Final = int(socket.MSG_NOSIGNAL)
_RECEIVE_FLAGS: Final = int(socket.MSG_DONTWAIT)
_EINTR: Final = errno.EINTR
_EAGAIN: Final = errno.EAGAIN
_LENGTH: Final = tuple(b"content-length:")
_LINE_END: Final = ord("\n")
_RETURN: Final = ord("\r")
_SPACE: Final = ord(" ")
_ZERO: Final = ord("0")
_TEN: Final = 10
_LOWER: Final = 0x20
_STATUS_AT: Final = len("HTTP/1.1 ")
_OK: Final = tuple(b"200 ")

FINE, SILENT, CLOSED, NOT_OK, NO_LENGTH, TOO_LONG, TOO_MUCH, FAILED = range(8)
_MEANINGS: Final = {
    SILENT: "nothing came for a minute",
    CLOSED: "the server closed the connection",
    NOT_OK: "an answer is not 200",
    NO_LENGTH: "an answer has no length",
    TOO_LONG: "an answer's head is too long",
    TOO_MUCH: "more came than was asked for",
    FAILED: "a system call failed",
}


class HammerError(RuntimeError):
    """A run that did not go as it must."""


class Crowd(NamedTuple):
    """All connections, as columns: what each says, and how far its answer has come."""

    by_descriptor: _Ints
    descriptors: _Ints
    requests: _Bytes  # one behind the other
    starts: _Ints  # where each begins, and where the last ends
    asking: _Ints  # which of them is each connection's turn
    heads: _Bytes  # a row of bytes for each
    head_bytes: _Ints
    body_left: _Ints  # -1 within the head
    asked_ns: _Ints
    received: _Bytes  # what came last
    events: npt.NDArray[np.int32]
    clock: _Ints
    outcome: _Ints  # meaning, connection, errno or how many bytes came last


_c_send = symbol("send", LONG, INT, ADDRESS, LONG, INT)
_c_recv = symbol("recv", LONG, INT, ADDRESS, LONG, INT)
_c_epoll_wait = symbol("epoll_wait", INT, INT, ADDRESS, INT, INT)
_c_clock_gettime = symbol("clock_gettime", INT, INT, ADDRESS)


@compiled
def _now_ns(crowd: Crowd) -> int:
    _c_clock_gettime(_CLOCK_MONOTONIC, crowd.clock.ctypes.data)
    return crowd.clock[0] * _SECOND_NS + crowd.clock[1]  # type: ignore[no-any-return]


@compiled
def _end(crowd: Crowd, meaning: int, at: int, detail: int) -> bool:
    """Note why the run is over; what is noted first stands."""
    if crowd.outcome[0] != FINE:
        return False
    crowd.outcome[0] = meaning
    crowd.outcome[1] = at
    crowd.outcome[2] = detail
    return False


@compiled
def _ask(crowd: Crowd, at: int) -> None:
    """Send the whole request; a failure is in the outcome."""
    crowd.head_bytes[at] = 0
    crowd.body_left[at] = -1
    crowd.asked_ns[at] = _now_ns(crowd)
    turn = crowd.asking[at]
    start, stop = crowd.starts[turn], crowd.starts[turn + 1]
    while start < stop:
        address = crowd.requests.ctypes.data + start
        count = _c_send(crowd.descriptors[at], address, stop - start, _SEND_FLAGS)
        if count >= 0:
            start += count
        elif errno_location()[0] != _EINTR:
            _end(crowd, FAILED, at, errno_location()[0])
            return


@compiled
def _length(head: _Bytes, size: int) -> int:
    """The answer's length, as its head says; -1 where it does not."""
    for start in range(size - len(_LENGTH)):
        if head[start] != _LINE_END:
            continue
        place = start + 1
        for letter in _LENGTH:
            if head[place] != letter and head[place] | _LOWER != letter:
                break
            place += 1
        if place != start + 1 + len(_LENGTH):
            continue
        while head[place] == _SPACE:
            place += 1
        length = 0
        digits = 0
        while _ZERO <= head[place] < _ZERO + _TEN:
            length = length * _TEN + head[place] - _ZERO
            place += 1
            digits += 1
        return length if digits else -1
    return -1


@compiled
def _read_head(crowd: Crowd, at: int, count: int) -> int:
    """Take in the head; how many of the bytes belong to it, or -1 with the outcome noted."""
    head = crowd.heads[at]
    size = crowd.head_bytes[at]
    taken = 0
    while taken < count:
        if size == HEAD_BYTES_MAX:
            _end(crowd, TOO_LONG, at, count)
            return -1
        letter = crowd.received[taken]
        head[size] = letter
        size += 1
        taken += 1
        if (
            letter == _LINE_END
            and size > 3
            and head[size - 2] == _RETURN
            and head[size - 3] == _LINE_END
        ):
            for place, digit in enumerate(_OK):
                if head[_STATUS_AT + place] != digit:
                    _end(crowd, NOT_OK, at, count)
                    return -1
            crowd.body_left[at] = _length(head, size)
            if crowd.body_left[at] < 0:
                _end(crowd, NO_LENGTH, at, count)
                return -1
            break
    crowd.head_bytes[at] = size
    return taken


@compiled
def _is_answered(crowd: Crowd, at: int) -> bool:
    """Take in what has come; whether the answer is whole now. A failure is in the outcome."""
    if crowd.outcome[0] != FINE:
        return False  # what came last is to be told
    address = crowd.received.ctypes.data
    count = _c_recv(crowd.descriptors[at], address, RECEIVE_BYTES, _RECEIVE_FLAGS)
    if count < 0:
        if errno_location()[0] not in (_EAGAIN, _EINTR):
            _end(crowd, FAILED, at, errno_location()[0])
        return False
    if count == 0:
        return _end(crowd, CLOSED, at, 0)
    taken = 0
    if crowd.body_left[at] < 0:
        taken = _read_head(crowd, at, count)
        if taken < 0 or crowd.body_left[at] < 0:
            return False
    crowd.body_left[at] -= count - taken
    if crowd.body_left[at] < 0:
        return _end(crowd, TOO_MUCH, at, count)
    return crowd.body_left[at] == 0  # type: ignore[no-any-return]


@compiled
def _is_awake(crowd: Crowd, ready: int) -> bool:
    if ready == 0:
        return _end(crowd, SILENT, 0, 0)
    if ready < 0 and errno_location()[0] != _EINTR:
        return _end(crowd, FAILED, 0, errno_location()[0])
    return True


@compiled
def _longer(latencies: _Ints) -> _Ints:
    longer = np.empty(2 * len(latencies), np.int64)
    longer[: len(latencies)] = latencies
    return longer


@compiled
def _run(crowd: Crowd, epoll: int, lasts_ns: int) -> tuple[_Ints, int]:
    """Ask on all connections; again until the time is over. All latencies, and what it took."""
    latencies = np.empty(_LATENCIES_AT_FIRST, np.int64)
    answered = 0
    asking = len(crowd.descriptors)
    began = _now_ns(crowd)
    until = began + lasts_ns
    for at in range(asking):
        _ask(crowd, at)
    while asking > 0 and crowd.outcome[0] == FINE:
        ready = _c_epoll_wait(epoll, crowd.events.ctypes.data, _EVENTS, SILENCE_MS_MAX)
        if not _is_awake(crowd, ready):
            break
        for event in range(ready):
            at = crowd.by_descriptor[crowd.events[event * _EVENT_WORDS + _EVENT_DATA]]
            if not _is_answered(crowd, at):
                continue
            now = _now_ns(crowd)
            if answered == len(latencies):
                latencies = _longer(latencies)
            latencies[answered] = now - crowd.asked_ns[at]
            answered += 1
            if now >= until:
                asking -= 1
                crowd.body_left[at] = 0  # a byte more would be too much
            else:
                turn = crowd.asking[at] + len(crowd.descriptors)
                crowd.asking[at] = turn % (len(crowd.starts) - 1)
                _ask(crowd, at)
    return latencies[:answered], _now_ns(crowd) - began


def hammer(
    port: int, requests: Sequence[bytes], seconds: float, connections: int | None = None
) -> tuple[float, npt.NDArray[np.float64]]:
    """One connection for each request, which asks again and again for so long, at least once.

    With fewer connections, each asks with the request of its number first, and goes on by as many
    as there are connections, round and round.
    How many seconds it took, connecting not counted, and the latency of each answer in seconds.
    """
    with ExitStack() as stack:
        count = len(requests) if connections is None else min(connections, len(requests))
        epoll = stack.enter_context(select.epoll(count))
        descriptors = []
        for _ in range(count):
            link = socket.create_connection(("127.0.0.1", port), CONNECT_SECS_MAX)
            stack.enter_context(link)
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            epoll.register(link, select.EPOLLIN)
            descriptors.append(link.fileno())
        crowd = _crowd(descriptors, requests)
        latencies, took_ns = _run(crowd, epoll.fileno(), int(seconds * _SECOND_NS))
    _check(crowd, requests)
    return took_ns / _SECOND_NS, latencies / _SECOND_NS


def warm() -> None:
    """Compile, or take the machine code from numba's cache: seconds that are not to be measured."""
    with select.epoll() as epoll:
        _run(_crowd([], []), epoll.fileno(), 0)


def _crowd(descriptors: list[int], requests: Sequence[bytes]) -> Crowd:
    count = len(descriptors)
    by_descriptor = np.zeros(max(descriptors, default=0) + 1, np.int64)
    by_descriptor[descriptors] = np.arange(count)
    starts = np.zeros(len(requests) + 1, np.int64)
    np.cumsum([len(request) for request in requests], out=starts[1:])
    return Crowd(
        by_descriptor=by_descriptor,
        descriptors=np.array(descriptors, np.int64),
        requests=np.frombuffer(bytearray(b"".join(requests) or b" "), np.uint8),
        starts=starts,
        asking=np.arange(count),
        heads=np.zeros((count, HEAD_BYTES_MAX), np.uint8),
        head_bytes=np.zeros(count, np.int64),
        body_left=np.zeros(count, np.int64),
        asked_ns=np.zeros(count, np.int64),
        received=np.zeros(RECEIVE_BYTES, np.uint8),
        events=np.zeros(_EVENTS * _EVENT_WORDS, np.int32),
        clock=np.zeros(2, np.int64),
        outcome=np.zeros(3, np.int64),
    )


def _check(crowd: Crowd, requests: Sequence[bytes]) -> None:
    meaning, at, detail = (int(value) for value in crowd.outcome)
    if meaning == FINE:
        return
    said = _MEANINGS[meaning]
    if meaning == FAILED:
        said += f": {errno.errorcode.get(detail, detail)}"
    elif meaning != SILENT:
        asked = requests[int(crowd.asking[at])].partition(b"\r\n")[0].decode(errors="replace")
        came = crowd.received[:detail].tobytes().decode(errors="replace")
        said += f"; asked {asked!r}, last came {came!r}"
    raise HammerError(said)
