"""Reads of files that the machine has in memory, by whoever must not wait for a disk.

Linux can be asked for just that: to open a file only if nothing of its path has to be looked up on
the disk (`openat2` with RESOLVE_CACHED, Linux 5.12), and to read only what is in the page cache
(`preadv2` with RWF_NOWAIT). Anything else is None: then a thread reads it.
"""

import ctypes
import errno
import os
import sys
from typing import Final

import numpy as np

_WITHOUT_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_OPENAT2: Final = 437  # by this number on every machine but those older than it
_OPENAT2_MACHINES: Final = frozenset({"x86_64", "aarch64", "riscv64"})
_RESOLVE_CACHED: Final = 0x20
_NEVER: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW: Final = _OpenHow(os.O_RDONLY | getattr(os, "O_CLOEXEC", 0), 0, _RESOLVE_CACHED)
_HOW_BYTES: Final = ctypes.sizeof(_HOW)


def read_near(descriptor: int, start: int, length: int) -> memoryview | None:
    """Return `length` bytes of an open file from `start` on, if they are in memory, all of them."""
    if not _WITHOUT_WAIT:
        return None
    room = np.empty(length, np.uint8).data
    try:
        count = os.preadv(descriptor, [room], start, _WITHOUT_WAIT)
    except OSError:
        return None
    return room.toreadonly() if count == length else None


class NearFiles:
    """The files below a directory, opened where that needs no disk."""

    def __init__(self) -> None:
        known = sys.platform == "linux" and os.uname().machine in _OPENAT2_MACHINES
        # It cannot wait, so the interpreter's lock is not let go for it.
        self._system = ctypes.PyDLL(None, use_errno=True) if known and _WITHOUT_WAIT else None

    def read(self, directory: int, name: bytes, start: int, length: int) -> memoryview | None:
        """Return `length` bytes of a file from `start` on, if they are in memory, all of them."""
        if self._system is None:
            return None
        descriptor = self._system.syscall(
            _OPENAT2, directory, name, ctypes.byref(_HOW), ctypes.c_size_t(_HOW_BYTES)
        )
        if descriptor < 0:
            if ctypes.get_errno() in _NEVER:  # an older kernel, or a sandbox that does not know it
                self._system = None
            return None
        try:
            return read_near(descriptor, start, length)
        finally:
            os.close(descriptor)
