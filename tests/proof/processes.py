"""The server as a process, and the processes below it: finding them, killing them."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from bourn.clock import SystemClock

READY: Final = re.compile(r"bourn is ready on http://127\.0\.0\.1:([0-9]+)")
START_SECS_MAX: Final = 120.0
STOP_SECS_MAX: Final = 60.0
POLL_SECS: Final = 0.1
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
WORKER: Final = "pyspark.daemon"

clock: Final = SystemClock()


class NoStart(Exception):
    """The server did not become ready; the text is its log's end."""


class Served:
    """A server on one bucket that can be killed and started again on the same port."""

    def __init__(
        self, bucket: str, log: Path, environ: Mapping[str, str], flags: tuple[str, ...]
    ) -> None:
        self._bucket = bucket
        self._log = log
        self._environ = dict(environ)
        self._flags = flags
        self._child: subprocess.Popen[str] | None = None
        self.port = 0
        self.starts = 0

    def start(self, master: str) -> None:
        """Start it; returns once it is ready."""
        words = ["--port", str(self.port), "--bucket", self._bucket, "--pipeline", master]
        with self._log.open("ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.proof.serve", *words, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environ,
                text=True,
            )
        self.starts += 1
        assert self._child.stdout is not None
        giving_up = threading.Timer(START_SECS_MAX, self._child.kill)
        giving_up.start()
        try:
            for line in self._child.stdout:
                if found := READY.match(line):
                    self.port = int(found[1])
                    return
        finally:
            giving_up.cancel()
        raise NoStart(self._log.read_text(errors="replace")[-2000:])

    def end(self, number: signal.Signals) -> int:
        """End it by a signal; returns its exit code."""
        assert self._child is not None
        self._child.send_signal(number)
        code = self._child.wait(STOP_SECS_MAX)
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._child = None
        return code

    def close(self) -> None:
        """Leave nothing behind."""
        if self._child is not None:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                self.end(signal.SIGKILL)

    def metrics(self) -> dict[str, float]:
        """What it tells of itself; nothing where it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/metrics", timeout=STOP_SECS_MAX
            ) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, urllib.error.URLError):
            return {}
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def driver(self) -> int | None:
        """The pipeline's process."""
        if self._child is None:
            return None
        found = (pid for pid in below(self._child.pid) if "pipeline run" in words_of(pid))
        return next(found, None)

    def executors(self) -> list[int]:
        """The processes that do the work of tasks, or the Java that has them."""
        driver = self.driver()
        if driver is None:
            return []
        every = [(pid, words_of(pid)) for pid in below(driver)]
        workers = {pid for pid, words in every if WORKER in words}
        found = [pid for pid, words in every if EXECUTOR in words]
        found += [pid for pid in workers if parent_of(pid) in workers]
        return found or [pid for pid, words in every if "java" in words.split(" ")[0]]

    def kill(self, what: str, rng: Random) -> bool:
        """Kill -9 something below the server; False where it is not there."""
        if what == "driver":
            pid = self.driver()
        else:
            executors = self.executors()
            pid = rng.choice(executors) if executors else None
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def below(pid: int) -> Iterator[int]:
    """All processes that a process has started, and those that they have."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children = (task / "children").read_text(encoding="ascii")
                for child in map(int, children.split()):
                    yield child
                    yield from below(child)


def words_of(pid: int) -> str:
    """The command line of a process; empty where it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return ""


def parent_of(pid: int) -> int:
    """The parent of a process; 0 where it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
