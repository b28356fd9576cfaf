"""The staging place of a sink: a directory, or a prefix of a bucket, that all who write share.

Calls block; they may come from any thread.
"""

import asyncio
import random
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, Self, TypeVar

from bourn.bucket.location import parse_bucket
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.errors import ObjectExists, ObjectMissing

T = TypeVar("T")

RETRY_SECS: Final = 30.0


class Staging:
    """Objects by key, until the block ends."""

    def __init__(self, location: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._bucket: Bucket = parse_bucket(location).open()
        self._retry = Retry(SystemClock(), random.Random(), RETRY_SECS)  # noqa: S311  jitter

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._bucket.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def create(self, key: str, data: bytes) -> bool:
        """Put an object where there is none; False where there is one, perhaps this one."""
        try:
            self._wait(self._retry(partial(self._bucket.put_if_absent, key, data)))
        except ObjectExists:
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """Return an object, or None."""
        try:
            return self._wait(self._retry(partial(self._bucket.get, key)))
        except ObjectMissing:
            return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return some of an object, or None where it is not there."""
        try:
            return self._wait(self._retry(partial(self._bucket.get_range, key, start, length)))
        except ObjectMissing:
            return None

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of a directory, in their order."""
        return self._wait(self._retry(partial(self._listed, prefix)))

    def delete(self, keys: list[str]) -> None:
        """Remove objects."""
        self._wait(self._deleted(keys))

    async def _listed(self, prefix: str) -> list[str]:
        return [info.key async for info in self._bucket.list(prefix)]

    async def _deleted(self, keys: list[str]) -> None:
        for key in keys:
            await self._retry(partial(self._bucket.delete, key))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
