"""Who stood still while somebody waited: the server, the client that measures, or the machine.

A witness sits on every core, asks to be woken every few milliseconds, and notes when that came
late. What the kernel counts as its time in the queue is taken off: in what is left, nobody got the
core, because the machine's own host did not run it (or the kernel did not let go of it).

A wait is laid to the server unless one of these covers as much of it as is too long: the server's
loop stood in the queue for a core; the host kept the server's core, or the client's before it had
sent its request; the client itself stood in the queue before that. They may be the same time, so
they are never added up.
"""

import multiprocessing
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps
from typing import Any, Final, NamedTuple, Self

PERIOD_NS: Final = 5_000_000
LATE_NS_MIN: Final = 5_000_000  # what is less is not noted
FIRST: Final = -20  # as niceness goes: before those that are measured


class Span(NamedTuple):
    """From one moment to another, in nanoseconds since the Unix epoch."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    def shared_ns(self, other: "Span") -> int:
        """How long both last at once."""
        return max(0, min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns))


@dataclass
class Outlier:
    """One long wait, in milliseconds, and all that is known of that time."""

    kind: str
    at_secs: float  # of the time that was measured
    wait_ms: float  # from before the request was sent until the answer was there
    unsent_ms: float  # of this, before the request was sent whole
    loop_starved_ms: float  # the server's loop was ready and had no core
    loop_ran_ms: float  # it had one
    probe_starved_ms: float  # the client was ready and had no core, before its request was sent
    major_faults: int  # of the server: it waited for a disk
    turn_ms: float = 0.0  # the longest turn of the server's loop that touches the wait
    where: str = ""  # what the loop was at, in the middle of it
    host_ms: float = 0.0  # the host kept the server's core
    host_probe_ms: float = 0.0  # the host kept the client's core before the request was sent
    steal_ms: float = 0.0  # of all cores, as the kernel counts it, in steps of 10 ms
    span: Span = field(default=Span(0, 0), repr=False)

    @property
    def unsent(self) -> Span:
        """When the request was not sent whole."""
        start = self.span.start_ns
        return Span(start, start + int(self.unsent_ms * 1e6))

    @property
    def excuses(self) -> dict[str, float]:
        """What is not the server's, each by itself."""
        return {
            "no core for the server": min(self.wait_ms, self.loop_starved_ms),
            "the host kept the server's core": self.host_ms,
            "the client was late": min(
                self.unsent_ms, max(self.probe_starved_ms, self.host_probe_ms)
            ),
        }

    @property
    def server_ms(self) -> float:
        """What is left of the wait behind the greatest excuse."""
        return self.wait_ms - max(self.excuses.values())

    def verdict(self, limit_ms: float) -> str:
        """Say whose wait it was."""
        if self.server_ms > limit_ms:
            return f"the server's: {self.server_ms:.0f} ms"
        why, much_ms = max(self.excuses.items(), key=lambda excuse: excuse[1])
        return f"{why} for {much_ms:.0f} ms"

    def told(self, limit_ms: float) -> str:
        """Say it all in one line."""
        return (
            f"waited {self.wait_ms:.0f} ms, {self.kind} at {self.at_secs:.1f} s: "
            f"{self.verdict(limit_ms)} (turn {self.turn_ms:.0f}, ran {self.loop_ran_ms:.0f}, "
            f"no core {self.loop_starved_ms:.0f}, host {self.host_ms:.0f}, "
            f"steal {self.steal_ms:.0f}, client {self.unsent_ms:.0f} ms; "
            f"{self.major_faults} major faults) {self.where}"
        ).rstrip()

    def figures(self, limit_ms: float) -> dict[str, Any]:
        """Return it as it is kept."""
        kept = {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if name != "span"
        }
        return {**kept, "server_ms": round(self.server_ms, 1), "verdict": self.verdict(limit_ms)}


def longest_ns(spans: Iterable[Span], of: Span) -> int:
    """The length of the longest that touches a span; 0 where none does."""
    return max((span.length_ns for span in spans if of.shared_ns(span)), default=0)


def shared_ns(spans: Iterable[Span], of: Span) -> int:
    """How much of a span others cover, which do not overlap."""
    return sum(of.shared_ns(span) for span in spans)


class Witnesses:
    """One process on each core while the block runs; then `still` says when a core stood still."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._pipes = {core: multiprocessing.Pipe() for core in cores}
        self._processes = [
            multiprocessing.Process(target=_witness, args=(core, pipe[1]), daemon=True)
            for core, pipe in self._pipes.items()
        ]
        self.still: dict[int, list[Span]] = {}

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        for ours, _ in self._pipes.values():
            ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for core, (ours, _theirs) in self._pipes.items():
            ours.send("enough")
            self.still[core] = [Span(*span) for span in ours.recv()]
        for process in self._processes:
            process.join()

    def still_ms(self, cores: Iterable[int], span: Span) -> float:
        """How long, of a span, none of these cores was run: the least of what is known of each."""
        return min(shared_ns(self.still[core], span) for core in cores) / 1e6


def _witness(core: int, pipe: "Connection[Any, Any]") -> None:
    os.sched_setaffinity(0, {core})
    os.setsid()  # what is said of its group below is said of nobody else
    try:
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        Path("/proc/self/autogroup").write_text(str(FIRST))
    except OSError:
        pass  # then more of its lateness is its own time in the queue
    found: list[Span] = []
    pause = Event()
    queue = os.open("/proc/self/schedstat", os.O_RDONLY)
    queued, slept_at = queued_ns(queue), time_ns()
    pipe.send("ready")
    while not pipe.poll():
        pause.wait(PERIOD_NS / 1e9)
        now, queued_before = time_ns(), queued
        queued = queued_ns(queue)
        late_ns = now - slept_at - PERIOD_NS - (queued - queued_before)
        if late_ns > LATE_NS_MIN:
            found.append(Span(now - late_ns, now))
        slept_at = time_ns()
    pipe.send(found)


def queued_ns(file: int) -> int:
    """How long a thread has stood in the queue for a core, by its open `schedstat`."""
    return int(os.pread(file, 64, 0).split()[1])
