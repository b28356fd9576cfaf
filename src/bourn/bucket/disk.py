"""Blocking file operations of the local bucket, for threads that may wait.

`local` does its hot work through `workers`. This module does the rest (directories, listings,
deletes, replacing puts), and all of it where a file system cannot make nameless files or the
machine is no Linux. The order that makes a put durable:

    write the temporary file · sync it · give it its name · sync the directory

Temporary files, and the directories of `nursery`, lie in `~tmp`, whose name is no segment of a key:
no listing ever shows it. Their writers hold them locked, so that whoever opens the bucket next can
tell leftovers from live ones.
"""

import errno
import fcntl
import itertools
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from bourn.bucket.port import Data, ObjectInfo, is_segment

TEMPORARY: Final = "~tmp"
_MODE: Final = 0o666  # the umask narrows it
_MODE_DIRECTORY: Final = 0o777
_ATTEMPTS_MAX: Final = 8
# What `chattr +T` does: the directories in this one have little in common, let them lie far apart.
_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
_SPREAD: Final = 0x00020000
_FLAGS: Final = struct.Struct("=q")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SyncFailed(OSError):
    """A directory could not be synced: whether the names in it are durable is not known."""


def _sync_data(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache
    else:
        os.fdatasync(descriptor)


class Syscalls:
    """The system calls of a put, as an argument: a test records them, or lets one fail."""

    open = staticmethod(os.open)
    write = staticmethod(os.write)
    sync_data = staticmethod(_sync_data)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    sync_directory = staticmethod(os.fsync)


class Directory:
    """An open directory, closed by hand or when the last one who needs it lets go."""

    _numbers = itertools.count(1)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.number = next(self._numbers)  # its own for ever, where descriptors are given again
        self.is_served: bool | None = None  # by a `nursery`, or makes its own files; None: not seen

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close it; nothing may be using it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def is_removed(self) -> bool:
        """Tell whether the directory has lost its name since it was opened."""
        return os.fstat(self.descriptor).st_nlink == 0


class Disk:
    """The files below one root."""

    def __init__(self, root: Path, syscalls: Syscalls) -> None:
        self.root = root
        self._calls = syscalls
        self._numbers = itertools.count()
        self._make_root()
        self.top = Directory(os.open(root, _DIRECTORY))
        self._sweep()

    def make_temporary_directory(self) -> tuple[str, Directory]:
        """Make an empty, locked directory in `~tmp`; the caller removes it and closes it."""
        for _ in range(_ATTEMPTS_MAX):
            name = self._temporary_name()
            try:
                self._calls.mkdir(name, _MODE_DIRECTORY, dir_fd=self.top.descriptor)
                directory = Directory(os.open(name, _DIRECTORY, dir_fd=self.top.descriptor))
            except FileExistsError:
                continue  # a leftover of an earlier process of this number
            except FileNotFoundError:
                self._make_home_of_temporaries()  # or it was swept before it was opened
                continue
            fcntl.flock(directory.descriptor, fcntl.LOCK_EX)
            if not directory.is_removed():  # swept in the moment before it was locked
                return name, directory
        raise OSError(errno.EEXIST, "no free temporary name")

    def remove_temporary_directory(self, name: str) -> None:
        """Remove such a directory; that somebody else did is no failure."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=self.top.descriptor)

    def makes_nameless_files(self) -> bool:
        """Try whether a file can be made without a name and named afterwards."""
        if sys.platform != "linux":
            return False
        name = self._temporary_name()
        try:
            descriptor = os.open(self.root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        except OSError:
            return False
        try:
            self._make_home_of_temporaries()
            path = f"/proc/self/fd/{descriptor}"
            os.link(path, name, dst_dir_fd=self.top.descriptor)  # follows the link in /proc
            os.unlink(name, dir_fd=self.top.descriptor)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def open_directory(self, path: str) -> Directory:
        """Open a directory below the root, making it and its parents where missing.

        It is durable then, whoever made it: each parent is synced.
        """
        parent = self.top
        for segment in path.split("/") if path else ():
            with suppress(FileExistsError):
                self._calls.mkdir(segment, _MODE_DIRECTORY, dir_fd=parent.descriptor)
            child = Directory(os.open(segment, _DIRECTORY, dir_fd=parent.descriptor))
            self._sync(parent)
            parent = child
        return parent

    def create(self, directory: Directory, name: str, data: Data) -> None:
        """Create a durable file, or raise FileExistsError once the one there is durable."""
        temporary, descriptor = self._written(data)
        try:
            self._calls.link(
                temporary,
                name,
                src_dir_fd=self.top.descriptor,
                dst_dir_fd=directory.descriptor,
            )
        except FileExistsError:
            self._sync(directory)
            raise
        finally:
            with suppress(FileNotFoundError):
                self._calls.unlink(temporary, dir_fd=self.top.descriptor)
            os.close(descriptor)
        self._sync(directory)

    def replace(self, directory: Directory, name: str, data: Data) -> None:
        """Create or replace a durable file."""
        temporary, descriptor = self._written(data)
        try:
            self._calls.rename(
                temporary,
                name,
                src_dir_fd=self.top.descriptor,
                dst_dir_fd=directory.descriptor,
            )
        except OSError:
            with suppress(FileNotFoundError):
                self._calls.unlink(temporary, dir_fd=self.top.descriptor)
            raise
        finally:
            os.close(descriptor)
        self._sync(directory)

    def size(self, key: str) -> int:
        """Find out how long a file is."""
        return os.stat(key, dir_fd=self.top.descriptor).st_size

    def is_directory(self, key: str) -> bool:
        """Tell whether a directory has this name."""
        return (self.root / key).is_dir()

    def read(self, key: str, start: int, length: int | None) -> bytes:
        """Read [start, start + length) of a file, or all of it."""
        descriptor = os.open(key, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.top.descriptor)
        try:
            left = max(os.fstat(descriptor).st_size - start, 0)
            left = left if length is None else min(left, length)
            parts = [os.pread(descriptor, left, start)]
            while parts[-1] and (left := left - len(parts[-1])):
                start += len(parts[-1])
                parts.append(os.pread(descriptor, left, start))
        finally:
            os.close(descriptor)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def remove(self, key: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._calls.unlink(key, dir_fd=self.top.descriptor)

    def walk(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the files below `prefix` behind `after`; opens a directory when it gets there.

        A directory sorts by its name and a slash, as all keys in it do: "a-b", "a/b", "ab".
        """
        for name in self._sorted_names(prefix, after):
            path = prefix + name
            if name.endswith("/"):
                yield from self.walk(path, after)
            else:
                with suppress(FileNotFoundError):
                    yield ObjectInfo(path, self.size(path))

    def _sorted_names(self, prefix: str, after: str) -> list[str]:
        names = []
        try:
            with os.scandir(self.root / prefix) as entries:
                for entry in entries:
                    if not is_segment(entry.name):
                        continue
                    if entry.is_dir():
                        path = f"{prefix}{entry.name}/"
                        if path > after or after.startswith(path):
                            names.append(f"{entry.name}/")
                    elif prefix + entry.name > after and entry.is_file():
                        names.append(entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names.sort()
        return names

    def _written(self, data: Data) -> tuple[str, int]:
        """Write a locked, durable temporary file; the caller names it and closes it."""
        for _ in range(_ATTEMPTS_MAX):
            name = self._temporary_name()
            try:
                descriptor = self._calls.open(
                    name,
                    os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC,
                    _MODE,
                    dir_fd=self.top.descriptor,
                )
            except FileExistsError:
                continue  # a leftover of an earlier process of this number
            except FileNotFoundError:
                self._make_home_of_temporaries()
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 0:
                    os.close(descriptor)
                    continue  # swept in the moment before it was locked
                self._write_all(descriptor, data)
            except BaseException:
                with suppress(OSError):
                    self._calls.unlink(name, dir_fd=self.top.descriptor)
                os.close(descriptor)
                raise
            return name, descriptor
        raise OSError(errno.EEXIST, "no free temporary name")

    def _write_all(self, descriptor: int, data: Data) -> None:
        view = memoryview(data)
        while view:
            view = view[self._calls.write(descriptor, view) :]
        self._calls.sync_data(descriptor)

    def _temporary_name(self) -> str:
        return f"{TEMPORARY}/{os.getpid()}-{next(self._numbers)}"

    def _make_home_of_temporaries(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(TEMPORARY, _MODE_DIRECTORY, dir_fd=self.top.descriptor)
        with suppress(OSError):  # a file system that has no such wish keeps them where it likes
            home = Directory(os.open(TEMPORARY, _DIRECTORY, dir_fd=self.top.descriptor))
            flags = bytearray(_FLAGS.size)
            fcntl.ioctl(home.descriptor, _GET_FLAGS, flags)
            (found,) = _FLAGS.unpack(flags)
            fcntl.ioctl(home.descriptor, _SET_FLAGS, _FLAGS.pack(found | _SPREAD))

    def _make_root(self) -> None:
        missing = []
        path = self.root
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with suppress(FileExistsError):
                self._calls.mkdir(directory, _MODE_DIRECTORY)
            self._sync(Directory(os.open(directory.parent, _DIRECTORY)))

    def _sweep(self) -> None:
        """Remove the temporary files and directories of writers that are gone."""
        with suppress(OSError):
            for path in (self.root / TEMPORARY).iterdir():
                with suppress(OSError):
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        remove = path.rmdir if path.is_dir() else path.unlink
                        remove()
                    finally:
                        os.close(descriptor)

    def _sync(self, directory: Directory) -> None:
        try:
            self._calls.sync_directory(directory.descriptor)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error
