"""One durable, create-only put of a commit object, through every way in which a put can fail."""

import random

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Backoff
from bourn.clock import Clock
from bourn.errors import (
    BucketError,
    BucketUnavailable,
    Damaged,
    Fenced,
    ObjectExists,
    ObjectMissing,
    StorageFailed,
)
from bourn.layout.commit import decode_commit
from bourn.settings import EngineSettings


class DurablePuts:
    """Puts objects and knows the outcome, or says that it cannot be known.

    `bucket` answers every call in bounded time.
    """

    def __init__(
        self, bucket: Bucket, settings: EngineSettings, clock: Clock, rng: random.Random
    ) -> None:
        self._bucket = bucket
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self.retries = 0

    async def put(self, key: str, data: bytes) -> None:
        """Return once `data` is durable under `key`.

        Raises Fenced where another writer's object stands there, StorageFailed where it cannot
        be found out whether the object is there. It is tried twice at least: a process that was
        stopped for long finds its first attempt given up, whatever has become of it.
        """
        deadline = self._clock.monotonic() + self._settings.put_deadline_secs
        backoff = Backoff(self._clock, self._rng)
        attempts = 0
        while True:
            attempts += 1
            try:
                await self._bucket.put_if_absent(key, data)
            except ObjectExists:
                await self._compare(key, data, deadline)
                return
            except BucketUnavailable as error:
                if attempts > 1 and self._clock.monotonic() >= deadline:
                    raise StorageFailed(f"{error}; its outcome is unknown") from error
            except BucketError as refused:
                raise StorageFailed(str(refused)) from refused
            else:
                return
            self.retries += 1
            await backoff.pause()

    async def _compare(self, key: str, data: bytes, deadline: float) -> None:
        """The object is there: ours, of an attempt whose reply was lost, or a newer writer's."""
        backoff = Backoff(self._clock, self._rng)
        while True:
            try:
                found = await self._bucket.get(key)
                if found == data:
                    return
                # Whole, by its checksums: a reply that was altered on its way proves nothing.
                header = decode_commit(found, key).header
                break
            except (BucketUnavailable, ObjectMissing, Damaged) as error:
                if self._clock.monotonic() >= deadline:
                    raise StorageFailed(f"{error}; its outcome is unknown") from error
                await backoff.pause()
            except BucketError as refused:
                raise StorageFailed(str(refused)) from refused
        what = "sealed by a newer writer" if header.is_tombstone else "written by another writer"
        raise Fenced(f"{key} was {what}")
