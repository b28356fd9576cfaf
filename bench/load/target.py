"""The server under load: started as a user would, watched from outside."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Self

from bourn.limits import KIB

READY = re.compile(r"bourn is ready on http://127\.0\.0\.1:(\d+)")


class Server:
    """Where it listens, and what it holds."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._pid = pid

    def memory_bytes(self) -> int:
        """Resident bytes of the process and of its children, now."""
        return sum(_resident(pid) for pid in _family(self._pid))


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
def serving(edge: str) -> Iterator[Server]:
    """Run `bourn serve` in memory until the block ends."""
    command = [sys.executable, "-m", "bourn.cli.main", "serve", "--memory", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--edge", edge, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    try:
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
