"""Threads for file operations, driven from an event loop and never waiting for the GIL.

    loop ── job row, then its number ──► inbox pipe ──► a thread in `kernel.serve`
    loop ◄── reader callback ◄── outbox pipe ◄── the row's number, answered

A job keeps everything it points to alive until a thread has answered it, whether or not somebody
still waits for the answer. Jobs beyond the rows of the table wait in line, first come first served.

Many small reads are one job of several rows, chained: one message each way, and one wake-up.
"""

import asyncio
import ctypes
import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Sequence
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
_NO_ROW: Final = -1

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


class _Chain(NamedTuple):
    """Reads that one thread does one behind the other; their rows are known once they have some."""

    future: asyncio.Future[list[Answer]]
    directory: Directory
    reads: "Sequence[Read]"
    targets: list[bytes]
    rows: list[int]


class Read(NamedTuple):
    """Bytes [start, start + length) of a file."""

    name: bytes
    start: int
    length: int


class Workers:
    """A fixed number of threads. Belongs to one event loop at a time; start it where it is used.

    Urgent ones go before others that are busy (`urgency`).
    """

    def __init__(self, threads: int, *, urgent: bool = False) -> None:
        kernel.load()
        self._table = np.zeros((LOCAL_JOBS_MAX, kernel.JOB_FIELDS), np.int64)
        self._rows = self._table.data.cast("B")
        self._free = list(range(LOCAL_JOBS_MAX))
        self._running: dict[int, _Job | _Chain] = {}
        self._waiting: deque[_Job | _Chain] = deque()
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

    async def read_each(
        self, directory: Directory, reads: Sequence[Read]
    ) -> list[tuple[Answer, bytes]]:
        """Read as `read` does, a few small files by one job; at most LOCAL_CHAIN_MAX."""
        loop = self._running_loop()
        targets: list[bytes] = [_new_bytes(None, read.length) for read in reads]
        chain = _Chain(loop.create_future(), directory, reads, targets, [])
        self._begin(chain)
        return [
            (answer, target if answer.size_bytes == len(target) else target[: answer.size_bytes])
            for answer, target in zip(await chain.future, targets, strict=True)
        ]

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
        job = _Job(
            self._running_loop().create_future(),
            operation,
            directory,
            name,
            address,
            length,
            offset,
            kept,
            directory if birth is None else birth,
        )
        self._begin(job)
        return job.future

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._ended:  # its pipes may be anybody's files by now
            raise OSError(errno.ESHUTDOWN, "the bucket is closed")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._attach(loop)
        return loop

    def _begin(self, job: _Job | _Chain) -> None:
        if self._waiting or not self._may_start(job):
            self._waiting.append(job)
        else:
            self._start(job)

    def _may_start(self, job: _Job | _Chain) -> bool:
        return len(self._free) >= (len(job.reads) if isinstance(job, _Chain) else 1)

    def _start(self, job: _Job | _Chain) -> None:
        if isinstance(job, _Chain):
            self._start_chain(job)
            return
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
            _NO_ROW,
        )
        os.write(self._inbox, _MESSAGE.pack(row))

    def _start_chain(self, chain: _Chain) -> None:
        descriptor = chain.directory.descriptor
        row = _NO_ROW
        for read, target in zip(reversed(chain.reads), reversed(chain.targets), strict=True):
            behind, row = row, self._free.pop()
            chain.rows.append(row)
            _ROW.pack_into(
                self._rows,
                row * _ROW.size,
                kernel.READ,
                descriptor,
                _address_of_bytes(read.name),
                _address_of_bytes(target),
                read.length,
                read.start,
                0,
                0,
                descriptor,
                _NO_ROW,
                behind,
            )
        chain.rows.reverse()
        self._running[row] = chain
        os.write(self._inbox, _MESSAGE.pack(row))

    def _on_answers(self) -> None:
        messages = os.read(self._outbox, LOCAL_JOBS_MAX * kernel.MESSAGE_BYTES)
        for (row,) in _MESSAGE.iter_unpack(messages):
            job = self._running.pop(row)
            if isinstance(job, _Chain):
                answers = [self._answer(one) for one in job.rows]
                if not job.future.done():
                    job.future.set_result(answers)
            else:
                answer = self._answer(row)
                if not job.future.done():
                    job.future.set_result(answer)
        while self._waiting and self._may_start(self._waiting[0]):
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                self._start(waiting)
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _answer(self, row: int) -> Answer:
        """Take the answer of a row, which is free from here on."""
        at = row * _ROW.size + kernel.RESULT * self._table.itemsize
        result, step = _ANSWER.unpack_from(self._rows, at)
        self._free.append(row)
        return Answer(result) if step == kernel.STEP_NONE else Answer(0, -result, step)

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
