"""A TCP relay, a process of its own, that makes every answer come later: an object store far away.

Of an answer the first byte is held back for so long; what follows it is passed on as it comes, so
that latency is added and the rate is left alone. Bytes go from socket to socket through pipes by
`splice` and never enter this process: a relay on the same few cores must cost next to nothing.
One answer at a time is under way on a connection, as with every client of HTTP/1.1 that does not
pipeline its requests.

python -m bench.versus.delay PORT SECS    prints its own port, and ends with its standard input
"""

import heapq
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
HOST: Final = "127.0.0.1"
PIECE_BYTES: Final = 1 << 20
BACKLOG: Final = 1024
NICENESS: Final = -10  # where it may: what is late here is late in every figure
_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_COMES: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_FLAGS: Final = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


@contextmanager
def delayed(endpoint: str, delay_secs: float) -> Iterator[str]:
    """The endpoint of a relay to `endpoint`, until the block ends."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.versus.delay", str(urlsplit(endpoint).port), str(delay_secs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        if not port.isdigit():
            raise RuntimeError("the relay did not start")
        yield f"http://{HOST}:{port}"
    finally:
        child.communicate()


class Pipes:
    """Pipes that hold nothing, to be used again: few connections move bytes at once."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        """An empty pipe."""
        return self._idle.pop() if self._idle else os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def give_back(self, pipe: tuple[int, int]) -> None:
        """One that is empty again."""
        self._idle.append(pipe)


class Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes) -> None:
        self.source, self.sink, self._pipes = source, sink, pipes
        self._pipe: tuple[int, int] | None = None
        self._piped_bytes = 0
        self.is_over = False

    def move(self) -> bool:
        """Pass on what there is, as far as the other side takes it; whether anything moved."""
        moved = False
        while not self.is_over:
            if self._pipe is None:
                self._pipe = self._pipes.take()
            if not self._piped_bytes:
                try:
                    self._piped_bytes = os.splice(
                        self.source.fileno(), self._pipe[1], PIECE_BYTES, flags=_FLAGS
                    )
                except BlockingIOError:
                    break
                if not self._piped_bytes:
                    self.is_over = True
                    with suppress(OSError):  # it may be gone altogether
                        self.sink.shutdown(socket.SHUT_WR)
                    break
                moved = True
            try:
                self._piped_bytes -= os.splice(
                    self._pipe[0], self.sink.fileno(), self._piped_bytes, flags=_FLAGS
                )
            except BlockingIOError:
                return moved  # with the pipe, which is not empty
        if self._pipe is not None:
            self._pipes.give_back(self._pipe)
            self._pipe = None
        return moved

    def drop(self) -> None:
        """The connection is gone, and with it whatever is still in the pipe."""
        if self._pipe is not None:
            for end in self._pipe:
                os.close(end)
            self._pipe = None


class Relayed:
    """A client's connection and ours to the server."""

    def __init__(self, near: socket.socket, far: socket.socket, pipes: Pipes) -> None:
        self.near, self.far = near, far
        self.requests = Way(near, far, pipes)
        self.answers = Way(far, near, pipes)
        self.is_asked = False  # of what is asked, nothing is answered yet
        self.is_held = False  # but it will be, at its time

    @property
    def is_over(self) -> bool:
        """Whether both sides have closed."""
        return self.requests.is_over and self.answers.is_over

    def close(self) -> None:
        """Leave nothing open."""
        self.requests.drop()
        self.answers.drop()
        self.near.close()
        self.far.close()


class Relay:
    """All connections, by one loop."""

    def __init__(self, port: int, delay_secs: float) -> None:
        self._far_port, self._delay_secs = port, delay_secs
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(sys.stdin, select.EPOLLIN)
        self._pipes = Pipes()
        self._relayed: dict[int, Relayed] = {}
        self._held: list[tuple[float, int, Relayed]] = []
        self._numbers = count()

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            wait = self._held[0][0] - time.perf_counter() if self._held else -1.0
            for descriptor, events in self._poll.poll(max(wait, 0.0) if self._held else -1):
                if descriptor == sys.stdin.fileno():
                    return
                if descriptor == self._listener.fileno():
                    self._accept()
                elif one := self._relayed.get(descriptor):
                    is_far = descriptor == one.far.fileno()
                    self._guard(one, answered=is_far and bool(events & _COMES))
            now = time.perf_counter()
            while self._held and self._held[0][0] <= now:
                one = heapq.heappop(self._held)[2]
                one.is_held = one.is_asked = False
                if one.near.fileno() >= 0:
                    self._guard(one, answered=False)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                near = self._listener.accept()[0]
                try:
                    far = socket.create_connection((HOST, self._far_port))
                except OSError:
                    near.close()
                    continue
                one = Relayed(near, far, self._pipes)
                for side in (near, far):
                    side.setblocking(False)
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._relayed[side.fileno()] = one
                    self._poll.register(side, _EVENTS)

    def _guard(self, one: Relayed, *, answered: bool) -> None:
        """Go on with a connection; one that is cut off ends on both sides."""
        try:
            self._go_on(one, answered=answered)
            is_over = one.is_over
        except OSError:
            is_over = True
        if is_over:
            del self._relayed[one.near.fileno()], self._relayed[one.far.fileno()]
            one.close()

    def _go_on(self, one: Relayed, *, answered: bool) -> None:
        if answered and one.is_asked and not one.is_held:
            one.is_held = True
            due = time.perf_counter() + self._delay_secs
            heapq.heappush(self._held, (due, next(self._numbers), one))
        if not one.is_asked:
            one.answers.move()
        if one.requests.move():
            one.is_asked = True


def main() -> None:
    """Serve until standard input ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    relay = Relay(int(sys.argv[1]), float(sys.argv[2]))
    with suppress(OSError):
        os.nice(NICENESS)
    print(relay.port, flush=True)
    relay.run()


if __name__ == "__main__":
    main()
