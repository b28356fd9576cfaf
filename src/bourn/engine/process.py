"""What a process that is a server, and nothing else, does to itself once at its start."""

import ctypes
import gc
import logging
import os
import resource
import signal
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (50_000, 20, 100)
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
ARENAS_MIN: Final = 2
MMAP_THRESHOLD_BYTES: Final = 32 << 20  # the most that glibc takes
TRIM_THRESHOLD_BYTES: Final = 128 << 20
OPEN_FILES_MAX: Final = 1 << 20
SWITCH_SECS: Final = 0.001
PR_SET_PDEATHSIG: Final = 1
MADV_DONTNEED: Final = 4
COMPILER: Final = "libllvmlite"  # not used once the kernels are loaded, and 60 MB of pages
PARENT_POLL_SECS: Final = 0.5


def share_heaps() -> None:
    """Have threads share a few heaps, before there are any: what one lets go, another can use.

    Each would keep hundreds of MiB for itself otherwise, of large texts that were written once.
    """
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, max(ARENAS_MIN, os.cpu_count() or 0))
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")


def tune_process() -> None:
    """Collect garbage rarely, keep large buffers on the heap, and take all files that there are.

    The hot path makes no cycles, so the collector finds nothing and only costs time (a fifth of an
    append's). Commit objects of some MiB would be mapped and unmapped each time otherwise, and
    every page of them faulted in anew. A thread that reads a large text lets the loop in every
    millisecond. The usual soft limit, 1,024 files, is less than the followers of one stream. The
    compiler, which is done, need not stay in memory.
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
    _page_out(COMPILER)


def _page_out(library: str) -> None:
    """Let the code of a library go; it comes back from its file, page by page, when needed.

    Code alone: nobody has ever written to it, so that there is nothing to lose.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        for line in maps.splitlines():
            if library in line and " r-xp " in line:
                start, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
    except (OSError, AttributeError, ValueError):
        log.debug("this system lets no memory go")


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
