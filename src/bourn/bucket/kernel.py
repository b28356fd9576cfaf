"""What the threads of `workers` run: whole file operations as machine code, without the GIL.

A Python thread needs the GIL after every system call. An event loop that is always busy lets go
of the GIL for a moment only, and takes it back before a waiting thread has woken up: a put of six
system calls then takes hundreds of milliseconds (docs/adr/0003-buckets.md has the figures). Code
compiled by numba does all of them, waits for its next job and reports, and never asks for it.

A job is a row of eight int64, filled in by the loop, answered in place:

    +----+--------+---------------+---------------+--------+--------+--------+------+
    | op | dir fd | name address  | data address  | length | offset | result | step |
    +----+--------+---------------+---------------+--------+--------+--------+------+
      0      1           2               3            4        5        6       7

    op      CREATE  data -> a new durable file `name` in the directory; an offset is the size of
                    the pieces that go to the disk one by one, with a rest behind each
            READ    bytes [offset, offset + length) of `name` -> the memory at data
            SIZE    nothing but the size of `name`
    name    ends with a NUL byte
    result  how many bytes, or minus the errno of the step that failed
    step    the system call that failed, if one did

A thread reads the row's number (int32) from its inbox, and writes it to its outbox when done.
A negative number, or the inbox's end, ends the thread.
"""

import errno
import os
import sys
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.libc import ADDRESS, INT, LONG, compiled, errno_location, symbol
from bourn.limits import PIECE_REST_US

Jobs = npt.NDArray[np.int64]

OP, DIR_FD, NAME, DATA, LENGTH, OFFSET, RESULT, STEP = range(8)
JOB_FIELDS: Final = 8
MESSAGE_BYTES: Final = 4

CREATE: Final = 1
READ: Final = 2
SIZE: Final = 3

STEP_NONE: Final = 0
STEP_OPEN: Final = 1
STEP_WRITE: Final = 2
STEP_SYNC_DATA: Final = 3
STEP_LINK: Final = 4
STEP_SYNC_DIRECTORY: Final = 5
STEP_READ: Final = 6

# O_TMPFILE, AT_FDCWD, AT_SYMLINK_FOLLOW and /proc are Linux's: elsewhere nobody calls this.
AVAILABLE: Final = sys.platform == "linux"
_OPEN_TEMPORARY: Final = getattr(os, "O_TMPFILE", 0) | os.O_WRONLY | os.O_CLOEXEC
_OPEN_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_MODE: Final = 0o666  # the umask narrows it
_AT_FDCWD: Final = -100
_AT_SYMLINK_FOLLOW: Final = 0x400
_SEEK_END: Final = os.SEEK_END
_SYNC_RANGE_AND_WAIT: Final = 7
_REST_US: Final = PIECE_REST_US
_EINTR: Final = errno.EINTR
_TEN: Final = 10
_ZERO_DIGIT: Final = ord("0")
_DESCRIPTORS: Final = tuple(b"/proc/self/fd/")
_DOT: Final = ord(".")

_c_read = symbol("read", LONG, INT, ADDRESS, LONG)
_c_write = symbol("write", LONG, INT, ADDRESS, LONG)
_c_pread = symbol("pread", LONG, INT, ADDRESS, LONG, LONG)
_c_lseek = symbol("lseek", LONG, INT, LONG, INT)
_c_openat = symbol("openat", INT, INT, ADDRESS, INT, INT)
_c_close = symbol("close", INT, INT)
_c_fdatasync = symbol("fdatasync", INT, INT)
_c_fsync = symbol("fsync", INT, INT)
_c_sync_range = symbol("sync_file_range", INT, INT, LONG, LONG, types.uint32)
_c_rest = symbol("usleep", INT, types.uint32)
_c_linkat = symbol("linkat", INT, INT, ADDRESS, INT, ADDRESS, INT)


@compiled
def _fail(job: Jobs, step: int) -> None:
    job[STEP] = step
    job[RESULT] = -errno_location()[0]


@compiled
def _name_descriptor(path: npt.NDArray[np.uint8], descriptor: int) -> None:
    """Write the descriptor's decimal digits and a NUL behind "/proc/self/fd/"."""
    end = len(_DESCRIPTORS)
    rest = descriptor
    while True:
        end += 1
        rest //= _TEN
        if rest == 0:
            break
    path[end] = 0
    rest = descriptor
    while end > len(_DESCRIPTORS):
        end -= 1
        path[end] = _ZERO_DIGIT + rest % _TEN
        rest //= _TEN


@compiled
def _write_all(job: Jobs, descriptor: int) -> None:
    address, left, piece = job[DATA], job[LENGTH], job[OFFSET]
    while left > 0:
        size = min(left, piece) if piece > 0 else left
        count = _c_write(descriptor, np.uint64(address), size)
        if count > 0:
            if piece > 0 and count < left:
                # It commits no journal that others wait for, and makes nothing durable; but what
                # fails here, the sync behind it does not tell again.
                done = job[LENGTH] - left
                if _c_sync_range(descriptor, done, count, _SYNC_RANGE_AND_WAIT) != 0:
                    _fail(job, STEP_SYNC_DATA)
                    return
                _c_rest(_REST_US)
            address += count
            left -= count
        elif count == 0 or errno_location()[0] != _EINTR:
            _fail(job, STEP_WRITE)
            return


@compiled
def _create(job: Jobs, scratch: npt.NDArray[np.uint8]) -> None:
    """Make the bytes durable, then the name: no crash can show a name with other bytes.

    The directory is synced also when the name was taken: only then is the winner's name durable.
    """
    # scratch[0:2] is ".", scratch[2:] the path of a descriptor
    descriptor = _c_openat(job[DIR_FD], scratch.ctypes.data, _OPEN_TEMPORARY, _MODE)
    if descriptor < 0:
        _fail(job, STEP_OPEN)
        return
    _write_all(job, descriptor)
    if job[STEP] == STEP_NONE and _c_fdatasync(descriptor) != 0:
        _fail(job, STEP_SYNC_DATA)
    if job[STEP] == STEP_NONE:
        path = scratch[2:]
        _name_descriptor(path, descriptor)
        name = np.uint64(job[NAME])
        if _c_linkat(_AT_FDCWD, path.ctypes.data, job[DIR_FD], name, _AT_SYMLINK_FOLLOW) != 0:
            _fail(job, STEP_LINK)
        if _c_fsync(job[DIR_FD]) != 0:
            _fail(job, STEP_SYNC_DIRECTORY)
    _c_close(descriptor)


@compiled
def _read(job: Jobs) -> None:
    descriptor = _c_openat(job[DIR_FD], np.uint64(job[NAME]), _OPEN_TO_READ, 0)
    if descriptor < 0:
        _fail(job, STEP_OPEN)
        return
    # A directory can be opened and sought in; reading nothing from it is what fails.
    if _c_read(descriptor, np.uint64(0), 0) < 0:
        _fail(job, STEP_READ)
    elif job[OP] == SIZE:
        job[RESULT] = _c_lseek(descriptor, 0, _SEEK_END)
        if job[RESULT] < 0:
            _fail(job, STEP_READ)
    else:
        done = 0
        while done < job[LENGTH]:
            count = _c_pread(
                descriptor, np.uint64(job[DATA] + done), job[LENGTH] - done, job[OFFSET] + done
            )
            if count > 0:
                done += count
            elif count == 0:
                break
            elif errno_location()[0] != _EINTR:
                _fail(job, STEP_READ)
                break
        if job[STEP] == STEP_NONE:
            job[RESULT] = done
    _c_close(descriptor)


@compiled
def serve(jobs: Jobs, inbox_fd: int, outbox_fd: int) -> None:
    """Do job after job until told to end."""
    message = np.zeros(1, np.int32)
    scratch = np.zeros(64, np.uint8)
    scratch[0] = _DOT
    for index in range(len(_DESCRIPTORS)):
        scratch[2 + index] = _DESCRIPTORS[index]
    while True:
        count = _c_read(inbox_fd, message.ctypes.data, MESSAGE_BYTES)
        if count < 0 and errno_location()[0] == _EINTR:
            continue
        if count != MESSAGE_BYTES or message[0] < 0:
            return
        job = jobs[message[0]]
        job[RESULT] = 0
        job[STEP] = STEP_NONE
        if job[OP] == CREATE:
            _create(job, scratch)
        else:
            _read(job)
        while _c_write(outbox_fd, message.ctypes.data, MESSAGE_BYTES) < 0:
            if errno_location()[0] != _EINTR:
                return


def load() -> None:
    """Compile `serve` (seconds), or take it from numba's cache (a fraction of one)."""
    if AVAILABLE:
        cast("Any", serve).compile(types.void(types.int64[:, ::1], LONG, LONG))
