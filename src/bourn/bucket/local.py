"""A bucket in a directory of a disk: an object is durable before its put succeeds.

Creating and reading go through `workers`, everything else and every other machine through `disk`;
both keep the order that the docstring of `disk` gives. A key is the path of its file.
"""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from bourn.bucket import kernel
from bourn.bucket.disk import Directory, Disk, SyncFailed, Syscalls
from bourn.bucket.nearby import NearFiles
from bourn.bucket.nursery import Nursery
from bourn.bucket.port import Data, ObjectInfo, Range, check_key, check_listing, check_range
from bourn.bucket.workers import Answer, Read, Workers
from bourn.errors import BucketError, BucketRefused, BucketUnavailable, ObjectExists, ObjectMissing
from bourn.limits import (
    GENTLE_PIECE_BYTES,
    LIST_PAGE_KEYS,
    LOCAL_CHAIN_MAX,
    LOCAL_DIRECTORIES_OPEN_MAX,
    LOCAL_THREADS,
    LOCAL_THREADS_MAX,
    MIB,
)

P = ParamSpec("P")
T = TypeVar("T")

_READ_UNSIZED_BYTES_MAX: Final = 8 * MIB  # above it, ask for the size before making room
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_REFUSED: Final = {
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EACCES: "permission denied: let this user read and write the directory",
    errno.EPERM: "not permitted: let this user read and write the directory",
    errno.ENOENT: "the bucket's directory is gone: put it back, or start anew",
    errno.ENOTDIR: "an object stands where the key needs a directory: use another key",
    errno.EISDIR: "a directory of other objects has this name: use another key",
    errno.ENOTEMPTY: "a directory of other objects has this name: use another key",
    errno.EXDEV: "the key lies on another file system: keep the bucket on one",
    errno.EOPNOTSUPP: "the file system cannot link files: use another one",
    errno.ENAMETOOLONG: "the path is too long: move the bucket closer to the root",
}
_MAY_PASS: Final = {
    errno.ENOSPC: "no space left: free some",
    errno.EDQUOT: "the disk quota is used up: raise it",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
}


class LocalBucket:
    """The files below `root`, which is made if it is missing. Opening blocks for a moment.

    `threads` bounds how many writes run at once, and how many reads; neither waits for the other.
    Several processes may use one root. A `gentle` one puts large objects in pieces, so that others
    who sync to the same disk need not wait for all of it. With `nameless` false it takes the way of
    machines that cannot make files without a name.
    """

    is_remote: Final = False

    def __init__(
        self,
        root: Path,
        *,
        threads: int = LOCAL_THREADS,
        syscalls: Syscalls | None = None,
        gentle: bool = False,
        nameless: bool = True,
    ) -> None:
        if not 1 <= threads <= LOCAL_THREADS_MAX:
            raise BucketRefused(str(root), f"threads must be 1 to {LOCAL_THREADS_MAX}")
        self._root = root.absolute()
        self.name: Final = f"file://{self._root}"
        try:
            self._disk = Disk(self._root, syscalls or Syscalls())
        except OSError as error:
            raise _failure(self.name, error) from error
        self._directories: dict[str, Directory] = {}  # the least recently used first
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bourn-files")
        self._readers = Workers(threads) if nameless and kernel.AVAILABLE else None
        nameless = self._readers is not None and self._disk.makes_nameless_files()
        self._writers = Workers(threads, urgent=not gentle) if nameless else None
        self._near = NearFiles()
        self._piece_bytes = GENTLE_PIECE_BYTES if gentle else 0
        # Who puts rarely, and takes its time, may as well make its files where they belong.
        self._nursery = Nursery(self._disk) if self._writers is not None and not gentle else None
        self._broken = ""
        self._closed = False

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object durably, or raise `ObjectExists`."""
        check_key(key)
        try:
            await self._write(key, data, self._create)
        except FileExistsError:
            if await self._run(key, self._disk.is_directory, key):
                raise BucketRefused(key, _REFUSED[errno.EISDIR]) from None
            raise ObjectExists(key) from None
        except OSError as error:
            raise self._write_failure(key, error) from error

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object durably."""
        check_key(key)
        try:
            await self._write(key, data, self._replace)
        except OSError as error:
            raise self._write_failure(key, error) from error

    async def get(self, key: str) -> bytes:
        """Return the whole object."""
        check_key(key)
        try:
            return await self._read(key, 0, None)
        except OSError as error:
            raise _read_failure(key, error) from error

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the object's bytes in [start, start + length)."""
        check_range(key, start, length)
        try:
            return await self._read(key, start, length)
        except OSError as error:
            raise _read_failure(key, error) from error

    def range_now(self, key: str, start: int, length: int) -> memoryview | None:
        """Return a part of the object where the machine has it in memory; None for `get_range`."""
        if self._closed:
            return None
        return self._near.read(self._disk.top.descriptor, key.encode(), start, length)

    async def get_ranges(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return each range, or None where that fails; one thread reads many of them."""
        for wanted in ranges:
            check_range(*wanted)
        found: list[bytes | None] = []
        for at in range(0, len(ranges), LOCAL_CHAIN_MAX):
            found += await self._read_each(ranges[at : at + LOCAL_CHAIN_MAX])
        return found

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects under `prefix` behind `after`, in ascending order."""
        check_listing(prefix, after)
        walk = self._disk.walk(prefix, after)
        page = None
        while page is None or len(page) == LIST_PAGE_KEYS:
            try:
                page = await self._run(prefix, lambda: [*itertools.islice(walk, LIST_PAGE_KEYS)])
            except OSError as error:
                raise _failure(prefix or "*", error) from error
            for info in page:
                yield info

    async def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        check_key(key)
        try:
            if self._readers is None:
                await self._run(key, self._disk.remove, key)
            else:
                self._check_open(key)
                _check(await self._readers.remove(self._disk.top, key.encode()))
        except OSError as error:
            raise _failure(key, error) from error

    async def close(self) -> None:
        """Wait for what runs, then end the threads and close the directories."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
        for workers in (self._writers, self._readers):
            if workers is not None:
                await workers.close()
        if self._nursery is not None:
            self._nursery.close()
        for directory in (*self._directories.values(), self._disk.top):
            directory.close()
        self._directories.clear()

    async def _write(
        self, key: str, data: Data, write: Callable[[Directory, str, Data], Awaitable[None]]
    ) -> None:
        """Write into the key's directory; once more if it was removed since it was opened."""
        self._check_usable(key)
        path, _, name = key.rpartition("/")
        try:
            directory = self._directories.pop(path, None)
            if directory is not None:
                self._directories[path] = directory  # now the most recently used
                try:
                    await write(directory, name, data)
                except OSError:
                    if not directory.is_removed():
                        raise
                    self._directories.pop(path, None)
                    directory = None
            if directory is None:
                await write(await self._open_directory(key, path), name, data)
        except SyncFailed as error:
            # A sync that failed may succeed the next time without having written anything, so
            # that nothing this bucket says from here on could be relied on.
            self._broken = (
                f"a directory could not be synced ({error.strerror}): "
                "check the disk, then start again"
            )
            raise BucketUnavailable(key, self._broken) from error
        if self._broken:
            raise BucketUnavailable(key, self._broken)

    async def _open_directory(self, key: str, path: str) -> Directory:
        opened = await self._run(key, self._disk.open_directory, path)
        directory = self._directories.setdefault(path, opened)
        while len(self._directories) > LOCAL_DIRECTORIES_OPEN_MAX:
            del self._directories[next(iter(self._directories))]
        return directory

    async def _create(self, directory: Directory, name: str, data: Data) -> None:
        if self._writers is None:
            await self._run(name, self._disk.create, directory, name, data)
            return
        write = partial(
            self._writers.create, directory, name.encode(), data, piece_bytes=self._piece_bytes
        )
        if (nursery := self._nursery) is None:
            _check(await write())
            return
        if nursery.is_due():
            asyncio.get_running_loop().run_in_executor(self._pool, nursery.renew)
        birth = nursery.birth_for(directory)
        answer = await write(birth=birth)
        if birth is not directory and nursery.has_failed(birth, directory, answer):
            self._check_open(name)
            answer = await write()
        _check(answer)

    async def _replace(self, directory: Directory, name: str, data: Data) -> None:
        await self._run(name, self._disk.replace, directory, name, data)

    async def _read(self, key: str, start: int, length: int | None) -> bytes:
        workers, top, name = self._readers, self._disk.top, key.encode()
        if workers is None:
            return await self._run(key, self._disk.read, key, start, length)
        self._check_open(key)
        if length is None or length > _READ_UNSIZED_BYTES_MAX:
            answer = await workers.size(top, name)
            _check(answer)
            left = max(answer.size_bytes - start, 0)
            length = left if length is None else min(left, length)
        self._check_open(key)
        answer, data = await workers.read(top, name, start, length)
        _check(answer)
        return data

    async def _read_each(self, ranges: Sequence[Range]) -> Sequence[bytes | None]:
        if self._readers is None:
            return await self._run("*", self._read_in_turn, ranges)
        self._check_open("*")
        reads = [Read(key.encode(), start, length) for key, start, length in ranges]
        try:
            answers = await self._readers.read_each(self._disk.top, reads)
        except OSError as error:
            raise _failure("*", error) from error
        return [data if answer.step == kernel.STEP_NONE else None for answer, data in answers]

    def _read_in_turn(self, ranges: Sequence[Range]) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        for key, start, length in ranges:
            try:
                found.append(self._disk.read(key, start, length))
            except OSError:
                found.append(None)
        return found

    async def _run(self, key: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open(key)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(call, *args, **kwargs))

    def _write_failure(self, key: str, error: OSError) -> BucketError:
        gone = not self._closed and self._disk.top.is_removed()
        return BucketRefused(key, _REFUSED[errno.ENOENT]) if gone else _failure(key, error)

    def _check_usable(self, key: str) -> None:
        self._check_open(key)
        if self._broken:
            raise BucketRefused(key, self._broken)

    def _check_open(self, key: str) -> None:
        if self._closed:
            raise BucketRefused(key, "the bucket is closed: open it again")


def _check(answer: Answer) -> None:
    if answer.step == kernel.STEP_NONE:
        return
    kind = SyncFailed if answer.step == kernel.STEP_SYNC_DIRECTORY else OSError
    raise kind(answer.errno, os.strerror(answer.errno))


def _read_failure(key: str, error: OSError) -> BucketError:
    return ObjectMissing(key) if error.errno in _ABSENT else _failure(key, error)


def _failure(key: str, error: OSError) -> BucketError:
    number = error.errno or 0
    if number in _REFUSED:
        return BucketRefused(key, _REFUSED[number])
    return BucketUnavailable(key, _MAY_PASS.get(number) or error.strerror or "input/output error")
