"""What the threads of `workers` run: whole file operations as machine code, without the GIL.

A Python thread needs the GIL after every system call. An event loop that is always busy lets go
of the GIL for a moment only, and takes it back before a waiting thread has woken up: a put of six
system calls then takes hundreds of milliseconds (docs/adr/0003-buckets.md has the figures). Code
compiled by numba does all of them, waits for its next job and reports, and never asks for it.

A job is a row of eleven int64, filled in by the loop, answered in place:

    +----+--------+------+------+--------+--------+--------+------+----------+----------+------+
    | op | dir fd | name | data | length | offset | result | step | birth fd | birth no | next |
    +----+--------+------+------+--------+--------+--------+------+----------+----------+------+
      0      1       2      3       4        5        6       7        8          9        10

    op      CREATE  data -> a new durable file `name` in the directory; an offset is the size of
                    the pieces that go to the disk one by one, with a rest behind each
            READ    bytes [offset, offset + length) of `name` -> the memory at data
            SIZE    nothing but the size of `name`
            REMOVE  `name` is gone afterwards; that it never was there is no failure
    name    its address; it ends with a NUL byte
    data    its address
    result  how many bytes, or minus the errno of the step that failed
    step    the system call that failed, if one did
    birth   of CREATE: the directory in which the file is made before it has a name, by descriptor
            and by number; unlike its descriptor, no other directory has its number afterwards
    next    the row to do behind this one, before the answer to both; negative: none. Only of READ

A thread reads the row's number (int32) from its inbox, and writes it to its outbox when done.
A negative number, or the inbox's end, ends the thread.

To make a file takes a while, and can take longer than to sync it (`nursery` says when). So a thread
that has put an object makes the file of its next one, in the same directory, behind its answer.
Bulk work has no such hurry, and changes directories.
"""

import errno
import fcntl
import os
import sys
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from numba import types

from bourn.libc import ADDRESS, INT, LONG, compiled, errno_location, symbol
from bourn.limits import PIECE_REST_US

Jobs = npt.NDArray[np.int64]

OP, DIR_FD, NAME, DATA, LENGTH, OFFSET, RESULT, STEP, BIRTH_FD, BIRTH_NUMBER, NEXT = range(11)
JOB_FIELDS: Final = 11
MESSAGE_BYTES: Final = 4

CREATE: Final = 1
READ: Final = 2
SIZE: Final = 3
REMOVE: Final = 4

# What a thread has ready: a file for the next put, and a descriptor of its own of the directory in
# which it was made, since the loop may close that once it has its answer.
READY_FILE, READY_DIR_FD, READY_DIR_NUMBER = range(3)
READY_FIELDS: Final = 3

STEP_NONE: Final = 0
STEP_OPEN: Final = 1
STEP_WRITE: Final = 2
STEP_SYNC_DATA: Final = 3
STEP_LINK: Final = 4
STEP_SYNC_DIRECTORY: Final = 5
STEP_READ: Final = 6
STEP_REMOVE: Final = 7

# O_TMPFILE, AT_FDCWD, AT_SYMLINK_FOLLOW and /proc are Linux's: elsewhere nobody calls this.
AVAILABLE: Final = sys.platform == "linux"
_OPEN_TEMPORARY: Final = getattr(os, "O_TMPFILE", 0) | os.O_WRONLY | os.O_CLOEXEC
_OPEN_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_MODE: Final = 0o666  # the umask narrows it
_DUPLICATE: Final = getattr(fcntl, "F_DUPFD_CLOEXEC", 0)
_AT_FDCWD: Final = -100
_AT_SYMLINK_FOLLOW: Final = 0x400
_SEEK_END: Final = os.SEEK_END
_SYNC_RANGE_AND_WAIT: Final = 7
_REST_US: Final = PIECE_REST_US
_EINTR: Final = errno.EINTR
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)
_TEN: Final = 10
_ZERO_DIGIT: Final = ord("0")
_DESCRIPTORS: Final = tuple(b"/proc/self/fd/")
_DOT: Final = ord(".")

_c_read = symbol("read", LONG, INT, ADDRESS, LONG)
_c_write = symbol("write", LONG, INT, ADDRESS, LONG)
_c_pread = symbol("pread", LONG, INT, ADDRESS, LONG, LONG)
_c_lseek = symbol("lseek", LONG, INT, LONG, INT)
_c_openat = symbol("openat", INT, INT, ADDRESS, INT, INT)
_c_fcntl = symbol("fcntl", INT, INT, INT, INT)
_c_close = symbol("close", INT, INT)
_c_fdatasync = symbol("fdatasync", INT, INT)
_c_fsync = symbol("fsync", INT, INT)
_c_sync_range = symbol("sync_file_range", INT, INT, LONG, LONG, types.uint32)
_c_rest = symbol("usleep", INT, types.uint32)
_c_unlinkat = symbol("unlinkat", INT, INT, ADDRESS, INT)
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
def _create(job: Jobs, scratch: npt.NDArray[np.uint8], ready: Jobs) -> int:
    """Make the bytes durable, then the name: no crash can show a name with other bytes.

    The directory is synced also when the name was taken: only then is the winner's name durable.
    Returns the file's descriptor, to be closed behind the answer; negative if there is none.
    """
    descriptor = -1
    if ready[READY_DIR_NUMBER] == job[BIRTH_NUMBER]:
        descriptor, ready[READY_FILE] = ready[READY_FILE], -1
    if descriptor < 0:
        # scratch[0:2] is ".", scratch[2:] the path of a descriptor
        descriptor = _c_openat(job[BIRTH_FD], scratch.ctypes.data, _OPEN_TEMPORARY, _MODE)
    if descriptor < 0:
        _fail(job, STEP_OPEN)
        return -1
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
    return descriptor


@compiled
def _forget(ready: Jobs) -> None:
    for index in (READY_FILE, READY_DIR_FD):
        if ready[index] >= 0:
            _c_close(ready[index])
    ready[:] = -1


@compiled
def _stay_in_directory(job: Jobs, ready: Jobs) -> None:
    """Get ready to make files where this one was made; before its answer, while that is open."""
    if job[STEP] != STEP_NONE or job[OFFSET] > 0:
        _forget(ready)
    elif ready[READY_DIR_NUMBER] != job[BIRTH_NUMBER]:
        _forget(ready)
        directory = _c_fcntl(job[BIRTH_FD], _DUPLICATE, 0)
        if directory >= 0:
            ready[READY_DIR_FD], ready[READY_DIR_NUMBER] = directory, job[BIRTH_NUMBER]


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
def _remove(job: Jobs) -> None:
    gone = _c_unlinkat(job[DIR_FD], np.uint64(job[NAME]), 0)
    if gone != 0 and errno_location()[0] not in _ABSENT:
        _fail(job, STEP_REMOVE)


@compiled
def _do(job: Jobs, scratch: npt.NDArray[np.uint8], ready: Jobs) -> int:
    """Do a job; returns a descriptor to be closed behind the answer, negative if there is none."""
    job[RESULT] = 0
    job[STEP] = STEP_NONE
    written = -1
    if job[OP] == CREATE:
        written = _create(job, scratch, ready)
        _stay_in_directory(job, ready)
    elif job[OP] == REMOVE:
        _remove(job)
    else:
        _read(job)
    return written


@compiled
def serve(jobs: Jobs, inbox_fd: int, outbox_fd: int) -> None:
    """Do job after job until told to end."""
    message = np.zeros(1, np.int32)
    scratch = np.zeros(64, np.uint8)
    scratch[0] = _DOT
    for index in range(len(_DESCRIPTORS)):
        scratch[2 + index] = _DESCRIPTORS[index]
    ready = np.full(READY_FIELDS, -1, np.int64)
    while True:
        count = _c_read(inbox_fd, message.ctypes.data, MESSAGE_BYTES)
        if count < 0 and errno_location()[0] == _EINTR:
            continue
        if count != MESSAGE_BYTES or message[0] < 0:
            break
        row = message[0]
        written = _do(jobs[row], scratch, ready)
        while jobs[row, NEXT] >= 0:
            row = jobs[row, NEXT]
            _do(jobs[row], scratch, ready)
        count = _c_write(outbox_fd, message.ctypes.data, MESSAGE_BYTES)
        while count < 0 and errno_location()[0] == _EINTR:
            count = _c_write(outbox_fd, message.ctypes.data, MESSAGE_BYTES)
        # From here on the row is the loop's again.
        if written >= 0:
            _c_close(written)
        if count < 0:
            break
        if ready[READY_DIR_FD] >= 0 and ready[READY_FILE] < 0:
            directory = ready[READY_DIR_FD]
            ready[READY_FILE] = _c_openat(directory, scratch.ctypes.data, _OPEN_TEMPORARY, _MODE)
    _forget(ready)


def load() -> None:
    """Compile `serve` (seconds), or take it from numba's cache (a fraction of one)."""
    if AVAILABLE:
        cast("Any", serve).compile(types.void(types.int64[:, ::1], LONG, LONG))
