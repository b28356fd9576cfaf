"""Threads that do little but wait for a disk, and should go on at once when it has answered.

Where all cores are busy, Linux lets whoever is running end its slice first, however nice it is: up
to a tick of 4 ms for each of the waits in a put. From 6.12 on, a thread that asks for shorter
slices than others have is let in at once; it gets no more of the processor than before.
"""

import ctypes
import os
import platform
import struct
import sys
from typing import Final

SLICE_NS: Final = 100_000  # the shortest there is
_NUMBERS: Final = {"x86_64": 314, "aarch64": 274}  # of sched_setattr, which libc does not have
# size, policy, flags, nice, priority, runtime (here: the slice), deadline, period
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def ask_for_short_slices() -> bool:
    """Have the calling thread let in soon; False where that is not to be had, or not wanted."""
    number = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # whoever chose another policy knows better
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
