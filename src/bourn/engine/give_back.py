"""Memory that a burst has left behind, given back to the system when the process is at rest.

The C library keeps what was freed, for the next time: hundreds of MiB behind thousands of clients
that did not take their answers. While there is much to do that is right, since every page would
have to be faulted in anew; at rest it is not.
"""

import asyncio
import ctypes
import logging
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bourn.clock import Clock, Timer
from bourn.limits import GIVE_BACK_BYTES_MIN, GIVE_BACK_CPU_SHARE_MAX, GIVE_BACK_LOOK_SECS

log = logging.getLogger(__name__)

_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")
_COUNTS: Final = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Counts(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _COUNTS.split())


class Process(NamedTuple):
    """What is asked of the process, and done to it."""

    cpu_secs: Callable[[], float]
    unused_bytes: Callable[[], int]  # resident, and not handed out by the C library
    trim: Callable[[], None]


class GiveBack:
    """Looks now and then, and trims where that may pay."""

    def __init__(self, clock: Clock, process: Process) -> None:
        self._clock = clock
        self._process = process
        self._timer: Timer | None = None
        self._looking: asyncio.Future[None] | None = None
        self._cpu_before = process.cpu_secs()
        self._least = process.unused_bytes()  # of all looks since the last trim

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._timer = self._clock.call_later(GIVE_BACK_LOOK_SECS, self._look)

    async def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            await self._looking

    def _look(self) -> None:
        self.start()
        cpu = self._process.cpu_secs()
        spent, self._cpu_before = cpu - self._cpu_before, cpu
        is_busy = spent > GIVE_BACK_CPU_SHARE_MAX * GIVE_BACK_LOOK_SECS
        if not is_busy and (self._looking is None or self._looking.done()):
            # In a thread, which lets the loop go on unless it asks for memory just then.
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(None, self._give_back)

    def _give_back(self) -> None:
        unused = self._process.unused_bytes()
        self._least = min(self._least, unused)
        if unused >= self._least + GIVE_BACK_BYTES_MIN:
            self._process.trim()
            self._least = self._process.unused_bytes()  # of what stays, there is nothing to be had


@asynccontextmanager
async def giving_back(clock: Clock) -> AsyncIterator[None]:
    """Look after this process as long as the block runs."""
    looks = GiveBack(clock, own_process())
    looks.start()
    try:
        yield
    finally:
        await looks.stop()


def own_process() -> Process:
    """This process; where the C library cannot tell or trim, nothing comes of it."""
    libc: Any = ctypes.CDLL(None)
    counts = getattr(libc, "mallinfo2", None)
    trim = getattr(libc, "malloc_trim", None)
    if counts is None or trim is None:
        log.debug("this C library gives nothing back")
        return Process(_cpu_secs, lambda: 0, lambda: None)
    counts.restype = _Counts
    trim.argtypes = [ctypes.c_size_t]

    def unused_bytes() -> int:
        found = counts()
        resident = int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
        return resident - int(found.uordblks) - int(found.hblkhd)

    return Process(_cpu_secs, unused_bytes, lambda: trim(0))


def _cpu_secs() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
