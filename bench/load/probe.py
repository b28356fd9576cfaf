"""One client that means well, and how long the server lets it wait.

Attacker, server and client share one machine, and a wait must not be laid to the server that is
another's. So it is measured thrice, each time from the moment before the request is sent:

- *seen*: until the client has the answer. On a busy machine the client itself comes late to its
  answer, which says nothing about the server.
- *wait*: until the last byte of the answer reached the client's socket, by the kernel's own stamp
  (SO_TIMESTAMPNS). On loopback that is the moment at which the server sent it. Where there is no
  stamp (`unstamped` counts these) it is as long as what was seen.
- *own*: the wait less the time that the server's loop stood ready in that while and had no core
  (run delay, by the kernel's count), as if nobody else used its cores. A delay that began before
  the request is taken off too, so this may be somewhat too low; what was taken off at most is
  shown as `starved_ms_max`.

A wait that is long even so is kept as an `Outlier`, with all that is known of that time (`witness`
says whose it was).

The server has cores for itself, and the attackers and this client share another one, where there
are two (`target.apart`); the attackers give way to the client. Where this user may say so, server
and client also go before whatever else the machine does (`target.hurry`).
"""

import base64
import gc
import os
import socket
import struct
import threading
from itertools import cycle
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps
from typing import Any, Final

from bench.load.target import Server, hurry, stolen_secs
from bench.load.witness import Outlier, Span, queued_ns
from bourn.limits import KIB, MIB
from tests.hostile.attacks import CLOCK, Target
from tests.hostile.crowd import percentiles
from tests.hostile.wires import head

BASIN: Final = "load-basin"
PERIOD_SECS: Final = 0.01
PATIENCE_SECS: Final = 30.0
START_SECS: Final = 2.0  # for all of a crowd to begin
LONG_SECS: Final = 0.05  # a wait that is looked into
LATE_NS: Final = 5_000_000
STAMPS: Final = 35  # SO_TIMESTAMPNS, which the socket module does not name
STAMP: Final = struct.Struct("qq")


class Client:
    """Unary calls over one HTTP/1.1 connection at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self.answered_at_ns = 0  # when the last answer was there
        self.is_stamped = False  # whether the kernel said so
        self.sent_at_ns = 0  # when the last request was sent whole, at the latest

    def call(self, method: str, path: str, body: bytes = b"") -> int:
        """Send and wait for the whole answer; returns its status."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), PATIENCE_SECS)
            self._socket.setsockopt(socket.SOL_SOCKET, STAMPS, 1)
        media = ("content-type", "application/json")
        length = ("content-length", str(len(body)))
        start = head(method, path, ("s2-basin", BASIN), media, ("s2-format", "base64"), length)
        self._socket.sendall(start + body)
        self.sent_at_ns = time_ns()
        self.on_sent()
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        fields, _, rest = answer.partition(b"\r\n\r\n")
        missing = int(fields.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        missing -= len(rest)
        while missing > 0:
            missing -= len(self._receive())
        return int(fields[9:12])

    def on_sent(self) -> None:
        """A request has been sent."""

    def _receive(self) -> bytes:
        assert self._socket is not None
        data, notes, _, _ = self._socket.recvmsg(64 * KIB, socket.CMSG_SPACE(STAMP.size))
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self.answered_at_ns, self.is_stamped = time_ns(), False
        for level, kind, note in notes:
            if (level, kind) == (socket.SOL_SOCKET, STAMPS):
                seconds, nanoseconds = STAMP.unpack(note)
                self.answered_at_ns, self.is_stamped = seconds * 10**9 + nanoseconds, True
        return data

    def close(self) -> None:
        """Go."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def prepared(port: int, history_mib: int) -> Target:
    """Make a stream to write to and one with some MiB in it."""
    target = Target(port, BASIN, "s", "history")
    client = Client(port)
    client.call("PUT", f"/v1/basins/{BASIN}")
    for name in ("s", "history"):
        client.call("PUT", f"/v1/streams/{name}")
    body = base64.b64encode(bytes(MIB - 8)).decode()
    text = f'{{"records":[{{"body":"{body}"}}]}}'.encode()
    for _ in range(history_mib):
        assert client.call("POST", target.records("history"), text) == 200
    client.close()
    return target


class Waits:
    """What was waited for in calls of one kind, in seconds."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.wait: list[float] = []
        self.own: list[float] = []

    def add(self, other: "Waits") -> None:
        """Take another kind in."""
        self.seen += other.seen
        self.wait += other.wait
        self.own += other.own

    def figures(self) -> dict[str, Any]:
        """Return percentiles."""
        return {
            "own_ms": percentiles(self.own),
            "wait_ms": percentiles(self.wait),
            "seen_ms": percentiles(self.seen),
        }


class Punctual(Client):
    """A client that knows how long it stood in the queue for a core before a request was sent."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._queue = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._queued_before_ns = 0
        self.began_at_ns = 0
        self.queued_ns = 0

    def begin(self) -> None:
        """A call is about to be made."""
        self._queued_before_ns = queued_ns(self._queue)
        self.queued_ns = 0
        self.began_at_ns = self.answered_at_ns = self.sent_at_ns = time_ns()

    def on_sent(self) -> None:
        """Look, if it took long."""
        if self.sent_at_ns - self.began_at_ns > LATE_NS:
            self.queued_ns = queued_ns(self._queue) - self._queued_before_ns


class Prober:
    """Appends, reads, and asks for the tail as somebody who has just come, again and again."""

    def __init__(self, server: Server, target: Target) -> None:
        self._server = server
        self._client = Punctual(target.port)
        self._calls: tuple[tuple[str, str, str, bytes], ...] = (
            ("append", "POST", target.records("s"), b'{"records":[{"body":"eA=="}]}'),
            ("read", "GET", target.records("s", "?tail_offset=1&count=1"), b""),
            ("newcomer", "GET", "/v1/streams/s/records/tail", b""),
        )
        self._newcomer = Punctual(target.port)
        self._kinds = {kind: Waits() for kind, *_ in self._calls}
        self._starved_secs_max = 0.0
        self._unstamped = 0
        self._errors = 0
        self._began_at_ns = 0
        self._stamping = socket.socket()  # the kernel takes a while to begin with its stamps
        self._stamping.setsockopt(socket.SOL_SOCKET, STAMPS, 1)
        self.outliers: list[Outlier] = []

    def run(self, seconds: float) -> tuple[dict[str, Any], int]:
        """Return the figures, and how often a call went wrong."""
        pause = threading.Event()
        pause.wait(START_SECS)
        hurry(threading.get_native_id())
        gc.collect()
        gc.freeze()
        self._began_at_ns = time_ns()
        end = CLOCK.monotonic() + seconds
        for kind, method, path, body in cycle(self._calls):
            client = self._newcomer if kind == "newcomer" else self._client
            self._measure(kind, client, method, path, body)
            if client is self._newcomer:
                client.close()
                if CLOCK.monotonic() > end:
                    break
                pause.wait(PERIOD_SECS)
        self._client.close()
        self._stamping.close()
        return self._figures(), self._errors

    def _measure(self, kind: str, client: Punctual, method: str, path: str, body: bytes) -> None:
        stolen_before, before = stolen_secs(), self._server.shares()
        client.begin()
        try:
            self._errors += client.call(method, path, body) != 200
        except OSError:
            self._errors += 1
            client.close()
            client.answered_at_ns = time_ns()
        seen_ns = time_ns() - client.began_at_ns
        after = self._server.shares()
        starved = after.starved_secs - before.starved_secs
        wait = (client.answered_at_ns - client.began_at_ns) / 1e9
        found = self._kinds[kind]
        self._unstamped += not client.is_stamped
        found.seen.append(seen_ns / 1e9)
        found.wait.append(wait)
        found.own.append(max(0.0, wait - starved))
        self._starved_secs_max = max(self._starved_secs_max, min(wait, starved))
        if wait > LONG_SECS:
            self.outliers.append(
                Outlier(
                    kind,
                    at_secs=(client.began_at_ns - self._began_at_ns) / 1e9,
                    wait_ms=wait * 1e3,
                    unsent_ms=(client.sent_at_ns - client.began_at_ns) / 1e6,
                    loop_starved_ms=starved * 1e3,
                    loop_ran_ms=(after.ran_secs - before.ran_secs) * 1e3,
                    probe_starved_ms=client.queued_ns / 1e6,
                    major_faults=after.major_faults - before.major_faults,
                    steal_ms=(stolen_secs() - stolen_before) * 1e3,
                    span=Span(client.began_at_ns, client.answered_at_ns),
                )
            )

    def _figures(self) -> dict[str, Any]:
        every = Waits()
        for found in self._kinds.values():
            every.add(found)
        return {
            **every.figures(),
            **{f"{kind}_own_ms": percentiles(found.own) for kind, found in self._kinds.items()},
            "starved_ms_max": round(self._starved_secs_max * 1000, 2),
            "calls": len(every.wait),
            "unstamped": self._unstamped,
        }
