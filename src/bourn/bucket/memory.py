"""A bucket in memory: the fastest one, gone with its process."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator
from typing import Final

from bourn.bucket.port import Data, ObjectInfo, check_key, check_listing, check_range
from bourn.errors import ObjectExists, ObjectMissing


class MemoryBucket:
    """Objects in a dict. No call ever suspends; `bytes` are kept as they are, without a copy.

    It keeps its objects when closed, so that a test can start a second node on the same bucket.
    """

    name: Final = "memory:"
    is_remote: Final = False

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._keys: list[str] = []  # sorted

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, or raise `ObjectExists`."""
        if key in self._objects:
            raise ObjectExists(key)
        check_key(key)
        self._insert(key, bytes(data))

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        if key in self._objects:
            self._objects[key] = bytes(data)
            return
        check_key(key)
        self._insert(key, bytes(data))

    async def get(self, key: str) -> bytes:
        """Return the whole object."""
        found = self._objects.get(key)
        if found is None:
            check_key(key)
            raise ObjectMissing(key)
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the object's bytes in [start, start + length)."""
        return bytes(self.view(key, start, length))

    def view(self, key: str, start: int, length: int) -> memoryview:
        """Return as `get_range` does, at once and without a copy: the object stays as long."""
        check_range(key, start, length)
        found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(key)
        return memoryview(found)[start : start + length]

    def range_now(self, key: str, start: int, length: int) -> memoryview | None:
        """Return as `view` does, or None where there is no such object."""
        return self.view(key, start, length) if key in self._objects else None

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects under `prefix` behind `after`, in ascending order."""
        check_listing(prefix, after)
        index = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        while index < len(self._keys) and (key := self._keys[index]).startswith(prefix):
            yield ObjectInfo(key, len(self._objects[key]))
            # The caller may have put or deleted meanwhile: the place is found anew by the key.
            index = bisect_right(self._keys, key)

    async def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        check_key(key)
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        """Keep everything."""

    def _insert(self, key: str, data: bytes) -> None:
        self._objects[key] = data
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            insort(self._keys, key)
