"""What a process that is a server, and nothing else, does to itself once at its start."""

import ctypes
import gc
import logging
from typing import Final

log = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (50_000, 20, 100)
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
MMAP_THRESHOLD_BYTES: Final = 32 << 20  # the most that glibc takes
TRIM_THRESHOLD_BYTES: Final = 128 << 20


def tune_process() -> None:
    """Collect garbage rarely, and keep large buffers on the heap.

    The hot path makes no cycles, so the collector finds nothing and only costs time (a fifth of an
    append's). Commit objects of some MiB would be mapped and unmapped each time otherwise, and
    every page of them faulted in anew.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")
