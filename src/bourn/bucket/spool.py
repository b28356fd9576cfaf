"""A remote bucket whose newest commits lie on a scratch file of this machine too.

What readers ask for and memory does not hold any more is, as a rule, not old. On a remote bucket it
takes a request all the same, which waits and costs. So commits are also written to one nameless
file, a ring, in which the newest takes the place of the oldest:

    0                                       at                          size
    +----------+-----+----------+-----------+----------+-----+----------+
    | commit n | ... | newest   |   free    |  oldest  | ... | n - 1    |
    +----------+-----+----------+-----------+----------+-----+----------+

Nothing depends on it. The bucket alone says what is durable; nothing here is ever synced, and the
file is gone with the process. What is read from it is checked as everything else is; whatever is
not there, cannot be read or was overwritten meanwhile comes from the bucket. One thread writes, in
the order of the places, so that a late write can never spoil a newer one.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bourn.bucket.nearby import read_near
from bourn.bucket.port import Bucket, Data, ObjectInfo, check_range
from bourn.layout.keys import WAL_PREFIX
from bourn.limits import (
    SPOOL_BYTES_MIN,
    SPOOL_DISK_SHARE,
    SPOOL_OBJECT_SHARE,
    SPOOL_PENDING_BYTES_MAX,
    SPOOL_READERS,
)

log = logging.getLogger(__name__)

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})


class _Place:
    """Where an object lies, or will; `waits_for` its write and its put, until then nobody reads."""

    __slots__ = ("is_alive", "key", "length", "offset", "waits_for")

    def __init__(self, key: str, offset: int, length: int) -> None:
        self.key = key
        self.offset = offset
        self.length = length
        self.waits_for = 2
        self.is_alive = True


class Spool:
    """The ring. `write` and `read` block and are for threads; everything else is for the loop."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._at = 0
        self._ring: deque[_Place] = deque()  # the oldest first
        self._by_key: dict[str, _Place] = {}

    def take(self, key: str, length: int) -> _Place | None:
        """Make room for an object; None for one that would leave hardly any for others."""
        if not 0 < length <= self._size_bytes // SPOOL_OBJECT_SHARE:
            return None
        at = self._at
        if at + length > self._size_bytes:
            while self._ring and self._ring[0].offset >= at:
                self._drop_oldest()
            at = 0
        while self._ring and at <= self._ring[0].offset < at + length:
            self._drop_oldest()
        place = _Place(key, at, length)
        self._ring.append(place)
        self._at = at + length
        return place

    def _drop_oldest(self) -> None:
        self.forget(self._ring.popleft())

    def forget(self, place: _Place) -> None:
        """Nobody finds it any more."""
        place.is_alive = False
        if self._by_key.get(place.key) is place:
            del self._by_key[place.key]

    def ready(self, place: _Place) -> None:
        """Its write has ended, or its put; behind both it may be found."""
        place.waits_for -= 1
        if not place.waits_for and place.is_alive:
            self._by_key[place.key] = place

    def find(self, key: str) -> _Place | None:
        """Where an object lies whole."""
        return self._by_key.get(key)

    def write(self, place: _Place, data: Data) -> None:
        """Write all of it."""
        left, at = memoryview(data), place.offset
        while left and place.is_alive:
            count = os.pwrite(self._descriptor, left, at)
            left, at = left[count:], at + count

    def read(self, place: _Place, start: int, length: int) -> bytes:
        """Read a part of it: what it was only if it is still alive afterwards."""
        return os.pread(self._descriptor, min(length, place.length - start), place.offset + start)

    def read_now(self, place: _Place, start: int, length: int) -> memoryview | None:
        """Read a part of it on the loop; None where the disk would have to be waited for."""
        return read_near(self._descriptor, place.offset + start, length)

    def close(self) -> None:
        """Let the file go; nothing is read from here on."""
        os.close(self._descriptor)
        self._descriptor = -1


class SpooledBucket:
    """`inner`, with its newest commits at hand."""

    def __init__(self, inner: Bucket, spool: Spool) -> None:
        self._inner = inner
        self._spool = spool
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bourn-spool")
        self._readers = ThreadPoolExecutor(SPOOL_READERS, thread_name_prefix="bourn-spool-read")
        self._pending_bytes = 0
        self._has_complained = False
        self.hits = 0

    @property
    def name(self) -> str:
        """Where the inner bucket is."""
        return self._inner.name

    @property
    def is_remote(self) -> bool:
        """Whether the inner bucket is remote."""
        return self._inner.is_remote

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, or fail; the copy is written meanwhile, and nobody waits for it."""
        place = self._begin_copy(key, data) if key.startswith(WAL_PREFIX) else None
        try:
            await self._inner.put_if_absent(key, data)
        except BaseException:
            if place is not None:
                self._spool.forget(place)
            raise
        if place is not None:
            self._spool.ready(place)

    def _begin_copy(self, key: str, data: Data) -> _Place | None:
        if self._pending_bytes + len(data) > SPOOL_PENDING_BYTES_MAX:
            return None  # a disk that is slower than the network is left alone
        place = self._spool.take(key, len(data))
        if place is not None:
            self._pending_bytes += len(data)
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(self._writer, self._spool.write, place, data)
            writing.add_done_callback(lambda done: self._copied(place, done))
        return place

    def _copied(self, place: _Place, done: "asyncio.Future[None]") -> None:
        self._pending_bytes -= place.length
        if done.cancelled() or done.exception() is not None:
            self._spool.forget(place)
            if not self._has_complained and not done.cancelled():
                self._has_complained = True
                log.warning("the spool cannot be written to: %s", done.exception())
        else:
            self._spool.ready(place)

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        self.forget_copy(key)
        await self._inner.put(key, data)

    async def get(self, key: str) -> bytes:
        """Return the whole object as the bucket has it, for who wants to know what is there."""
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the object, from the file where it is there."""
        place = self._spool.find(key)
        if place is not None:
            check_range(key, start, length)
            if start + length <= place.length:
                loop = asyncio.get_running_loop()
                try:
                    data = await loop.run_in_executor(
                        self._readers, self._spool.read, place, start, length
                    )
                except OSError as error:
                    log.debug("the spool cannot be read: %s", error)
                    self._spool.forget(place)
                except asyncio.CancelledError:
                    self._spool.forget(place)  # it took too long: the next one asks the bucket
                    raise
                else:
                    if place.is_alive and len(data) == length:
                        self.hits += 1
                        return data
        return await self._inner.get_range(key, start, length)

    def range_now(self, key: str, start: int, length: int) -> memoryview | None:
        """Return a part of the object where the machine has it in memory; None for `get_range`."""
        place = self._spool.find(key)
        if place is None or start + length > place.length:
            return None
        data = self._spool.read_now(place, start, length)
        self.hits += data is not None
        return data

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects of the bucket."""
        async for info in self._inner.list(prefix, after):
            yield info

    async def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        self.forget_copy(key)
        await self._inner.delete(key)

    def forget_copy(self, key: str) -> None:
        """Have the object come from the bucket from here on: what is here is not what was put."""
        place = self._spool.find(key)
        if place is not None:
            self._spool.forget(place)

    async def close(self) -> None:
        """Close the inner bucket, and let the file go."""
        await self._inner.close()
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        self._spool.close()


def open_spool(directory: Path, size_bytes: int) -> Spool | str:
    """A ring in that directory, of no more than a share of its free space; or why there is none."""
    try:
        if kind := _memory_of(directory):
            return f"{directory} is memory ({kind})"
        space = os.statvfs(directory)
        size_bytes = min(size_bytes, space.f_bavail * space.f_frsize // SPOOL_DISK_SHARE)
        if size_bytes < SPOOL_BYTES_MIN:
            return f"{directory} has too little space"
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        return Spool(os.open(directory, flags, 0o600), size_bytes)
    except (OSError, AttributeError) as error:  # another system has no O_TMPFILE
        return f"{directory} takes no nameless file: {error}"


def _memory_of(directory: Path) -> str:
    """The kind of a file system that keeps its files in memory; else nothing."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted and (kind := rest.split()[0]) in _IN_MEMORY:
            return kind
    return ""
