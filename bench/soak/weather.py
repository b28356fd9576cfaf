"""The machine's weather: what its disk and its cores do to anybody, whatever the server does.

A thread of the runner syncs a small file on the server's disk, twenty times a second, and keeps the
longest; the kernel says how much of the cores the host took for others. A window in which either is
bad says nothing about the server. Each time it also does the same small piece of work, by memory
and by arithmetic, and keeps the CPU time of the middle one: where that rises, the cores have become
slower for everybody, whatever the kernel says. It stands beside the figures, and judges none.
"""

import hashlib
import os
import statistics
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

EVERY_SECS: Final = 0.05
SIZE_BYTES: Final = 8192
SYNC_MS_MAX: Final = 50.0  # the longest of a window that is calm
STOLEN_SHARE_MAX: Final = 0.05
WORK: Final = bytes(range(256)) * 1024
_STOLEN: Final = 7  # the place in /proc/stat's first line, behind its name


def is_calm(sample: dict[str, Any]) -> bool:
    """Whether the machine let the server work."""
    return bool(
        sample["disk_sync_ms_max"] <= SYNC_MS_MAX and sample["stolen_share"] <= STOLEN_SHARE_MAX
    )


class Weather:
    """Looks out for as long as it is open."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "weather"
        self._has_ended = threading.Event()
        self._worst_secs = 0.0
        self._since: float | None = None  # of the sync under way
        self._work_secs: list[float] = []
        self._ticks = _ticks()
        self._thread = threading.Thread(target=self._look_out, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._has_ended.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _look_out(self) -> None:
        opened = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            while not self._has_ended.wait(EVERY_SECS):
                os.pwrite(opened, bytes(SIZE_BYTES), 0)
                self._since = began = time.perf_counter()
                os.fdatasync(opened)
                self._since = None
                self._worst_secs = max(self._worst_secs, time.perf_counter() - began)
                self._work_secs.append(_work())
        finally:
            os.close(opened)

    def take(self) -> dict[str, float]:
        """What it was like since the last time; a sync that has not ended counts so far."""
        since, worst_secs, self._worst_secs = self._since, self._worst_secs, 0.0
        if since is not None:
            worst_secs = max(worst_secs, time.perf_counter() - since)
        before, self._ticks = self._ticks, _ticks()
        stolen, every = (now - then for now, then in zip(self._ticks, before, strict=True))
        worked, self._work_secs = self._work_secs, []
        return {
            "disk_sync_ms_max": 1000 * worst_secs,
            "stolen_share": stolen / max(every, 1),
            "fixed_work_us": 1e6 * statistics.median(worked or [_work()]),
        }


def _work() -> float:
    """Do the piece of work; returns the CPU time that it took."""
    began = time.thread_time()
    hashlib.sha256(bytearray(WORK)).digest()
    return time.thread_time() - began


def _ticks() -> tuple[int, int]:
    """Stolen from all cores so far, and in all."""
    with Path("/proc/stat").open() as stat:
        found = [int(value) for value in stat.readline().split()[1 : _STOLEN + 2]]
    return found[_STOLEN], sum(found)
