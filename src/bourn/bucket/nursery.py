"""Where files are made before they have a name: in directories that are good at it.

A log that is collected deletes as many files as it makes. ext4 without a journal does not like to
use an inode again that was deleted in the last minutes: to make a file it looks at all of them,
thousands, in the group of the directory in which the file is made, and spends 0.6 to 0.9 ms of
CPU on what otherwise takes 0.03 (docs/adr/0003-buckets.md has the figures). A file without a name
can be linked into any directory. So it is made in one that was made for that, is empty, and is
changed for a new one, elsewhere on the disk, before its group is used up.

What a file system makes of that is its own business: those that do not care lose a `mkdir` for
every few thousand files.
"""

import errno
import logging
import os
import stat

from bourn.bucket import kernel
from bourn.bucket.disk import Directory, Disk
from bourn.bucket.workers import Answer
from bourn.limits import NURSERY_FILES

log = logging.getLogger(__name__)


class Nursery:
    """The directory in use and the one before it, in which files may still be under way."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._made: list[tuple[str, Directory]] = []  # the newest last
        self._left = 0
        self._is_renewing = False
        self.renew()

    def is_due(self) -> bool:
        """Tell whether to renew it, on another thread; who is told so does it."""
        if self._left > 0 or self._is_renewing:
            return False
        self._is_renewing = True
        return True

    def birth_for(self, directory: Directory) -> Directory:
        """Say where to make the next file of a directory: here, if nobody can tell afterwards."""
        if not self._made:
            return directory
        birth = self._made[-1][1]
        if directory.is_served is None:
            directory.is_served = _handed_down(directory) == _handed_down(birth)
        if not directory.is_served:
            return directory
        self._left -= 1
        return birth

    def has_failed(self, birth: Directory, directory: Directory, answer: Answer) -> bool:
        """Tell whether a put failed because its file was made here; then make it in `directory`."""
        if answer.step == kernel.STEP_OPEN:
            if birth is self._made[-1][1]:
                self._left = 0  # somebody has removed it, say: have another one soon
            return True
        if answer.step == kernel.STEP_LINK and answer.errno == errno.EXDEV:
            directory.is_served = False  # of another project's quota, say
            return True
        return False

    def renew(self) -> None:
        """Make a new directory; where that fails the old one goes on, and it is tried again."""
        try:
            name, directory = self._disk.make_temporary_directory()
        except OSError as error:
            log.debug("no directory to make files in: %s", error)
        else:
            self._made.append((name, directory))
            for old, _ in self._made[:-2]:
                self._disk.remove_temporary_directory(old)
            del self._made[:-2]
        self._left = NURSERY_FILES
        self._is_renewing = False

    def close(self) -> None:
        """Remove them; no file may be under way."""
        for name, directory in self._made:
            self._disk.remove_temporary_directory(name)
            directory.close()
        self._made.clear()


def _handed_down(directory: Directory) -> tuple[int, int | None, bytes]:
    """What a file has of the directory in which it is made: file system, group and rights."""
    found = os.fstat(directory.descriptor)
    try:
        acl = os.getxattr(directory.descriptor, "system.posix_acl_default")
    except OSError:
        acl = b""
    return found.st_dev, found.st_gid if found.st_mode & stat.S_ISGID else None, acl
