"""The server under load: started as a user would, but for a pulse, and watched from outside."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps
from typing import Final, NamedTuple, Self

from bench.load.pulse import Pulse
from bench.load.witness import Span
from bourn.limits import KIB

FIRST = -15  # as niceness goes
SILENT_NS_MIN: Final = 50_000_000  # then the server is asked where it stands
LOOK_SECS: Final = 0.01
FRAMES_SHOWN: Final = 4

FRAME = re.compile(
    r'File "(?:.*?/(?:src|site-packages|lib/python[\d.]+)/)?([^"]+)", line (\d+) in (\S+)'
)
READY = re.compile(r"bourn is ready on http://127\.0\.0\.1:(\d+)")


class Shares(NamedTuple):
    """What the thread of the loop has had so far."""

    ran_secs: float
    starved_secs: float  # ready to run, and without a core
    major_faults: int  # of all threads


class Server:
    """Where it listens, and what it holds."""

    def __init__(self, port: int, pid: int, pulse_at: Path | None = None) -> None:
        self.port = port
        self.pid = pid
        self._pulse_at = pulse_at
        self.pulse = None if pulse_at is None else Pulse(pulse_at)

    def memory_bytes(self) -> int:
        """Resident bytes of the process and of its children, now."""
        return sum(_resident(pid) for pid in _family(self.pid))

    def cpu_secs(self) -> float:
        """What the process and its children have spent so far."""
        spent = 0
        for pid in _family(self.pid):
            fields = _stat(pid)
            spent += int(fields[11]) + int(fields[12])
        return spent / os.sysconf("SC_CLK_TCK")

    def shares(self) -> Shares:
        """How the loop has fared so far."""
        pid = _family(self.pid)[-1]
        ran, starved, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return Shares(int(ran) / 1e9, int(starved) / 1e9, int(_stat(pid)[9]))

    def turns(self) -> list[Span]:
        """The long turns of its loop, so far."""
        return [] if self.pulse is None else self.pulse.turns()

    def ask_where(self) -> str:
        """Have the server note what its loop is at, which `stacks` tells; returns its state.

        That is R where it runs or could run, or what it waits for in the kernel.
        """
        try:
            state = _stat(self.pid)[0]
            waits_for = Path(f"/proc/{self.pid}/wchan").read_text()
            # To the loop's own thread: any of them would do for the process, and most say nothing.
            ctypes.CDLL(None).tgkill(self.pid, self.pid, signal.SIGUSR1)
        except OSError:
            return "gone"
        return state if waits_for in {"", "0"} else f"{state} {waits_for}"

    def stacks(self) -> list[str]:
        """What the loop was at, each time it was asked: the innermost frames, inside out."""
        if self._pulse_at is None:
            return []
        text = self._pulse_at.with_suffix(".stacks").read_text(encoding="utf-8")
        return [
            " < ".join(f"{name}:{line} {what}" for name, line, what in frames[:FRAMES_SHOWN])
            for frames in map(FRAME.findall, text.split("Stack (")[1:])
        ]


class Places(NamedTuple):
    """Which cores are whose."""

    server: set[int]
    clients: set[int]


@contextmanager
def apart() -> Iterator[Places]:
    """Keep this process, and those it starts, on one core, and leave the others to a server."""
    cores = os.sched_getaffinity(0)
    own = {max(cores)}
    os.sched_setaffinity(0, own)
    try:
        yield Places(cores - own or own, own)
    finally:
        os.sched_setaffinity(0, cores)


def hurry(pid: int) -> None:
    """Let a process go before all that is not measured, where this user may say so."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, FIRST)
        if os.getsid(pid) == pid:  # a session of its own may be a group of the scheduler
            with suppress(FileNotFoundError):
                Path(f"/proc/{pid}/autogroup").write_text(str(FIRST))


class Watch:
    """The most that a server held while this ran, and where its loop stood for long."""

    def __init__(self, server: Server, period_secs: float = 0.2) -> None:
        self._server = server
        self._looks_each = round(period_secs / LOOK_SECS)
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.peak_bytes = server.memory_bytes()
        self._asked: list[tuple[int, str]] = []  # when, and the state that it was in

    def _run(self) -> None:
        pulse, asked_of = self._server.pulse, 0
        looks = 0
        while not self._stop.wait(LOOK_SECS):
            looks += 1
            if looks % self._looks_each == 0:
                self.peak_bytes = max(self.peak_bytes, self._server.memory_bytes())
            last = pulse.last_ns() if pulse is not None else 0
            if last and last != asked_of and time_ns() - last > SILENT_NS_MIN:
                asked_of = last  # once a turn
                self._asked.append((time_ns(), self._server.ask_where()))

    def where(self, span: Span) -> str:
        """What the loop was at when it was asked in that time."""
        asked = zip(self._asked, self._server.stacks(), strict=False)
        return "; ".join(
            f"{state}: {stack}"
            for (at, state), stack in asked
            if span.start_ns <= at <= span.end_ns
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def serving(edge: str, cores: set[int] | None = None) -> Iterator[Server]:
    """Run `bourn serve` in memory until the block ends, on these cores alone.

    The loop of the native edge has a pulse (`watched`); that of the other is another process's.
    """
    with TemporaryDirectory() as scratch:
        pulse_at = Path(scratch) / "pulse" if edge == "native" else None
        module = ["bourn.cli.main"] if pulse_at is None else ["bench.load.watched", str(pulse_at)]
        command = [sys.executable, "-m", *module, "serve", "--memory", "--port", "0"]
        command += ["--edge", edge, "--log-level", "warning"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                if cores is not None:
                    os.sched_setaffinity(process.pid, cores)
                    hurry(process.pid)
                yield Server(_port(process), process.pid, pulse_at)
            finally:
                process.terminate()
                process.wait(30)


def _port(process: "subprocess.Popen[str]") -> int:
    """Return where it listens, once it does."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := READY.match(line):
            return int(found[1])
    raise RuntimeError(f"the server did not start: exit code {process.wait()}")


def stolen_secs() -> float:
    """How long the host has kept cores from this machine, so far, in steps of 10 ms."""
    every = Path("/proc/stat").read_bytes().partition(b"\n")[0].split()
    return int(every[8]) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except OSError:
        found = []
    return [pid, *(member for child in found for member in _family(child))]


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on: its name may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * KIB if found else 0
