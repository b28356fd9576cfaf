"""Local disks that are not quite so: slow ones, and ones that break their word on purpose.

A slow disk is a good disk. Its commits take their time and end in any order, so that a kill finds
many of them under way. A crash test that a lying bucket passes would be worth nothing.
"""

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from bourn.bucket.local import LocalBucket
from bourn.bucket.port import Data
from bourn.clock import SystemClock
from bourn.layout.keys import WAL_PREFIX

SLOW_SECS_MAX: Final = 0.04
LATE_SECS: Final = 0.05

clock: Final = SystemClock()


class SlowBucket(LocalBucket):
    """Takes its time with commits, before they are durable and before it says so."""

    def __init__(self, root: Path, rng: Random) -> None:
        super().__init__(root)
        self._rng = rng

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Put, and be slow."""
        is_slow = key.startswith(WAL_PREFIX)
        if is_slow:
            await clock.sleep(self._rng.uniform(0.0, SLOW_SECS_MAX))
        await super().put_if_absent(key, data)
        if is_slow:
            await clock.sleep(self._rng.uniform(0.0, SLOW_SECS_MAX / 2))


class EarlyBucket(LocalBucket):
    """Says that a commit is durable a moment before it is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._late: set[asyncio.Task[None]] = set()

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Answer at once, put later."""
        if key.startswith(WAL_PREFIX):
            task = asyncio.ensure_future(self._put_late(key, data))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        else:
            await super().put_if_absent(key, data)

    async def _put_late(self, key: str, data: Data) -> None:
        await clock.sleep(LATE_SECS)
        await super().put_if_absent(key, data)


class ForgetfulBucket(LocalBucket):
    """Has lost the last object of the log whenever it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        commits = sorted((root / WAL_PREFIX).glob("*/*"))
        if commits:
            commits[-1].unlink()


LIES: Final = {"early-ack": EarlyBucket, "lost-commit": ForgetfulBucket}


def open_bucket(root: Path, rng: Random, lie: str) -> LocalBucket:
    """Open the bucket that lies so, or a good one: every other one is slow."""
    if lie:
        return LIES[lie](root)
    return LocalBucket(root) if rng.random() < 0.5 else SlowBucket(root, rng)
