"""The server under load: started as a user would, watched from outside."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

from bourn.limits import KIB

FIRST = -15  # as niceness goes

READY = re.compile(r"bourn is ready on http://127\.0\.0\.1:(\d+)")


class Server:
    """Where it listens, and what it holds."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._pid = pid

    def memory_bytes(self) -> int:
        """Resident bytes of the process and of its children, now."""
        return sum(_resident(pid) for pid in _family(self._pid))

    def starved_secs(self) -> float:
        """How long the thread of the loop has been ready to run and had no core, so far."""
        pid = _family(self._pid)[-1]
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def apart() -> Iterator[set[int]]:
    """Keep this process, and those it starts, on one core; yields those that a server can have."""
    cores = os.sched_getaffinity(0)
    own = {max(cores)}
    os.sched_setaffinity(0, own)
    try:
        yield cores - own or own
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
    """The most that a server held while this ran."""

    def __init__(self, server: Server, period_secs: float = 0.2) -> None:
        self._server = server
        self._period_secs = period_secs
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.peak_bytes = server.memory_bytes()

    def _run(self) -> None:
        while not self._stop.wait(self._period_secs):
            self.peak_bytes = max(self.peak_bytes, self._server.memory_bytes())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def serving(edge: str, cores: set[int] | None = None) -> Iterator[Server]:
    """Run `bourn serve` in memory until the block ends, on these cores alone."""
    command = [sys.executable, "-m", "bourn.cli.main", "serve", "--memory", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--edge", edge, "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if cores is not None:
            os.sched_setaffinity(process.pid, cores)
            hurry(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            if found := READY.match(line):
                break
        else:
            raise RuntimeError(f"the server did not start: exit code {process.wait()}")
        yield Server(int(found[1]), process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        found = [int(child) for child in children.read_text().split()]
    except OSError:
        found = []
    return [pid, *(member for child in found for member in _family(child))]


def _resident(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * KIB if found else 0
