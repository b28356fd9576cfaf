"""What a process that is a server, and nothing else, does to itself once at its start."""

import ctypes
import gc
import logging
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (10_000, 20, 100)
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
ARENAS_MIN: Final = 2
ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"  # which it reads when it is loaded
MMAP_THRESHOLD_BYTES: Final = 20 << 20  # the largest commits are smaller
TRIM_THRESHOLD_BYTES: Final = 128 << 20
OPEN_FILES_MAX: Final = 1 << 20
SWITCH_SECS: Final = 0.001
PR_SET_PDEATHSIG: Final = 1
MADV_DONTNEED: Final = 4
PARENT_POLL_SECS: Final = 0.5
_ANY_MAPPED: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_FILE_MAPPED: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[x-]p [0-9a-f]+ \S+ [1-9][0-9]* +/")


def share_heaps() -> None:
    """Have all share a few heaps, before there are any others: what one lets go, another can use.

    Each thread would keep hundreds of MiB for itself otherwise, of large texts that were written
    once; and Arrow, unless its user says otherwise, twice what its largest snapshot takes.
    """
    os.environ.setdefault(ARROW_POOL, "system")
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, max(ARENAS_MIN, os.cpu_count() or 0))
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")


def tune_process() -> None:
    """Collect garbage rarely, keep most buffers on the heap, and take all files that there are.

    The hot path makes no cycles, so the collector finds nothing and only costs time (a fifth of an
    append's); and while it looks, everything waits, so what it looks at is bounded. Commit objects
    of some MiB would be mapped and unmapped each time otherwise, and every page of them faulted in
    anew; what is larger than these is a snapshot's, and goes back whole. A thread that reads a
    large text lets the loop in every millisecond. The usual soft limit, 1,024 files, is less than
    the followers of one stream. What only the start needed of the libraries need not stay in
    memory.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES_MAX if files == resource.RLIM_INFINITY else min(files, OPEN_FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    sys.setswitchinterval(SWITCH_SECS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")
    page_out()


def page_out() -> None:
    """Let go of the pages of libraries that a start alone needs; they come back when they are used.

    Those are most: the compiler's 60 MB, and half of everybody else's. Only what nobody has ever
    written to is let go, code and constants: it comes back out of its file, from the system's
    cache, so that there is nothing to lose.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        maps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        for start, end in _unwritten(maps):
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
    except (OSError, AttributeError, ValueError):
        log.debug("this system lets no memory go")


def _unwritten(maps: str) -> Iterator[tuple[int, int]]:
    """Yield where files are mapped that this process cannot write to and never has written to."""
    place: tuple[int, int] | None = None
    for line in maps.splitlines():
        if mapping := _FILE_MAPPED.match(line):
            place = int(mapping[1], 16), int(mapping[2], 16)
        elif _ANY_MAPPED.match(line):
            place = None
        elif place is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield place


def leave_out_pandas() -> None:
    """Have pyarrow do without pandas, which it imports at its first array where it finds it.

    That takes 46 MB for good and a second or two, in the middle of something; a server needs
    nothing of it. What has been imported before stays.
    """
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    """Says that there is no such package."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Answer an import that nobody has made before."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def end_with_parent() -> None:
    """Die as soon as the parent has: a child that outlives it would keep its port, and serve."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        log.debug("this system does not tell a child of its parent's end")

    def watch() -> None:  # where it is not told, and for a parent that was gone before it asked
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(PARENT_POLL_SECS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="bourn-parent", daemon=True).start()
