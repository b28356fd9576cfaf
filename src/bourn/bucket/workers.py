"""Threads for file operations, driven from an event loop and never waiting for the GIL.

    loop ── job row, then its number ──► inbox pipe ──► a thread in `kernel.serve`
    loop ◄── reader callback ◄── outbox pipe ◄── the row's number, answered

A job keeps everything it points to alive until a thread has answered it, whether or not somebody
still waits for the answer. Jobs beyond the rows of the table wait in line, first come first served.
"""

import asyncio
import ctypes
import errno
import os
import struct
import threading
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from bourn.bucket import kernel
from bourn.bucket.disk import Directory
from bourn.bucket.port import Data
from bourn.bucket.urgency import ask_for_short_slices
from bourn.limits import LOCAL_JOBS_MAX

_ROW: Final = struct.Struct(f"={kernel.JOB_FIELDS}q")
_ANSWER: Final = struct.Struct("=2q")
_MESSAGE: Final = struct.Struct("=i")
_END: Final = _MESSAGE.pack(-1)

# The C API allows writing into a bytes object that was just made this way and is not shared yet:
# a read lands in the object that the caller gets, without a copy.
_new_bytes: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of_bytes: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


class Answer(NamedTuple):
    """How many bytes a job moved, or which step failed (`step` is not zero) and why."""

    size_bytes: int
    errno: int = 0
    step: int = kernel.STEP_NONE


class _Job(NamedTuple):
    future: asyncio.Future[Answer]
    operation: int
    directory: Directory
    name: bytes
    address: int
    length: int
    offset: int
    kept: Any  # what the address belongs to
    birth: Directory  # where a new file is made, before it is linked into `directory`


class Workers:
    """A fixed number of threads. Belongs to one event loop at a time; start it where it is used.

    Urgent ones go before others that are busy (`urgency`).
    """

    def __init__(self, threads: int, *, urgent: bool = False) -> None:
        kernel.load()
        self._table = np.zeros((LOCAL_JOBS_MAX, kernel.JOB_FIELDS), np.int64)
        self._rows = self._table.data.cast("B")
        self._free = list(range(LOCAL_JOBS_MAX))
        self._running: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Future[None] | None = None
        self._ended = False
        self._inbox_read, self._inbox = os.pipe()
        self._outbox, self._outbox_write = os.pipe()
        os.set_blocking(self._outbox, False)
        self._threads = [
            threading.Thread(
                target=_serve_urgently if urgent else kernel.serve,
                args=(self._table, self._inbox_read, self._outbox_write),
                name=f"bourn-disk-{number}",
                daemon=True,
            )
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def create(
        self,
        directory: Directory,
        name: bytes,
        data: Data,
        *,
        birth: Directory | None = None,
        piece_bytes: int = 0,
    ) -> asyncio.Future[Answer]:
        """Create a durable file in the open directory; it is made there, or in `birth`, and linked.

        Where `piece_bytes` is given, it goes to the disk in such pieces, with a rest behind each.
        """
        view = np.frombuffer(data, np.uint8) if len(data) else None
        address = 0 if view is None else view.ctypes.data
        return self._submit(
            kernel.CREATE, directory, name, address, len(data), piece_bytes, view, birth
        )

    def size(self, directory: Directory, name: bytes) -> asyncio.Future[Answer]:
        """Find out how long a file is."""
        return self._submit(kernel.SIZE, directory, name, 0, 0, 0, None)

    def remove(self, directory: Directory, name: bytes) -> asyncio.Future[Answer]:
        """Remove a file if it is there."""
        return self._submit(kernel.REMOVE, directory, name, 0, 0, 0, None)

    async def read(
        self, directory: Directory, name: bytes, start: int, length: int
    ) -> tuple[Answer, bytes]:
        """Read [start, start + length) of a file; fewer bytes where it ends."""
        target: bytes = _new_bytes(None, length)
        address: int = _address_of_bytes(target)
        answer = await self._submit(kernel.READ, directory, name, address, length, start, target)
        whole = answer.step == kernel.STEP_NONE and answer.size_bytes == length
        return answer, target if whole else target[: answer.size_bytes]

    async def close(self) -> None:
        """Let everything handed in finish, then end the threads."""
        while self._running and self._loop is asyncio.get_running_loop():
            self._idle = self._loop.create_future()
            await self._idle
        self._ended = True
        self._detach()
        for _ in self._threads:
            os.write(self._inbox, _END)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for descriptor in (self._inbox_read, self._inbox, self._outbox, self._outbox_write):
            os.close(descriptor)

    def _submit(
        self,
        operation: int,
        directory: Directory,
        name: bytes,
        address: int,
        length: int,
        offset: int,
        kept: object,
        birth: Directory | None = None,
    ) -> asyncio.Future[Answer]:
        if self._ended:  # its pipes may be anybody's files by now
            raise OSError(errno.ESHUTDOWN, "the bucket is closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._attach(loop)
        job = _Job(
            loop.create_future(),
            operation,
            directory,
            name,
            address,
            length,
            offset,
            kept,
            directory if birth is None else birth,
        )
        if self._free:
            self._start(job)
        else:
            self._waiting.append(job)
        return job.future

    def _start(self, job: _Job) -> None:
        row = self._free.pop()
        self._running[row] = job
        _ROW.pack_into(
            self._rows,
            row * _ROW.size,
            job.operation,
            job.directory.descriptor,
            _address_of_bytes(job.name),
            job.address,
            job.length,
            job.offset,
            0,
            0,
            job.birth.descriptor,
            job.birth.number,
        )
        os.write(self._inbox, _MESSAGE.pack(row))

    def _on_answers(self) -> None:
        messages = os.read(self._outbox, LOCAL_JOBS_MAX * kernel.MESSAGE_BYTES)
        for (row,) in _MESSAGE.iter_unpack(messages):
            job = self._running.pop(row)
            result, step = _ANSWER.unpack_from(
                self._rows, row * _ROW.size + kernel.RESULT * self._table.itemsize
            )
            self._free.append(row)
            if not job.future.done():
                answer = Answer(result) if step == kernel.STEP_NONE else Answer(0, -result, step)
                job.future.set_result(answer)
        while self._free and self._waiting:
            job = self._waiting.popleft()
            if not job.future.done():
                self._start(job)
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._detach()
        self._loop = loop
        loop.add_reader(self._outbox, self._on_answers)

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._outbox)
        self._loop = None


def _serve_urgently(jobs: kernel.Jobs, inbox_fd: int, outbox_fd: int) -> None:
    ask_for_short_slices()
    kernel.serve(jobs, inbox_fd, outbox_fd)
