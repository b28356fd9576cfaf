"""Where an export goes: a place that was empty, and holds a whole export or nothing of it.

    _started.json    put first, create-only: of two exports to one place, one is refused
    part-…           in any order
    the end          put last (export_format says which); then the first goes

What is left by an export that was killed has no end. It is refused as it is: nobody but a person
can say that it may go.
"""

import json
import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import Clock
from bourn.errors import BournError, BucketError, ObjectExists
from bourn.pipeline.export_format import DELTA_LOG, STARTED, SUCCESS, encode_delta
from bourn.pipeline.place import Place


class Occupied(BournError):
    """Something is there already; an export overwrites nothing."""


class Part(NamedTuple):
    """A part that is there."""

    name: str
    rows: int
    metered_bytes: int
    size_bytes: int


class ExportReport(msgspec.Struct, kw_only=True):
    """What an export has written."""

    to: str
    format: str
    streams: int
    records: int
    metered_bytes: int
    parts: int
    part_bytes: int
    secs: float = 0.0


class ExportTarget:
    """One export, from its first object to its last."""

    def __init__(
        self, place: Place, of: str, clock: Clock, rng: random.Random, retry: Retry
    ) -> None:
        self.place = place
        self.format = of
        self._clock = clock
        self._rng = rng
        self._retry = retry
        self._written: set[str] = set()
        self.bucket: Bucket | None = None

    async def begin(self) -> Bucket:
        """Make sure that nothing is there, and say that this export is; Occupied."""
        place = self.place
        if place.scheme == "file" and _holds_something(Path(place.place)):
            raise Occupied(f"{place.uri} is there and not empty: name another place, or remove it")
        self.bucket = bucket = place.open()
        async for info in bucket.list(""):
            raise Occupied(
                f"{place.uri} is not empty, {info.key} is there: name another place, or remove it"
            )
        note = {"started_at_ms": self._clock.now_ms(), "id": f"{self._rng.getrandbits(64):016x}"}
        try:
            await bucket.put_if_absent(STARTED, json.dumps(note).encode())
        except ObjectExists:
            raise Occupied(f"another export to {place.uri} is under way") from None
        self._written.add(STARTED)
        return bucket

    def expect(self, names: Sequence[str]) -> None:
        """Say which parts may come to be: they go if the export fails."""
        self._written.update(names)

    async def clear(self) -> None:
        """Remove the parts that there may be."""
        for name in sorted(self._written - {STARTED}):
            await self._delete(name)
        self._written &= {STARTED}

    async def finish(self, parts: Sequence[Part]) -> None:
        """Put the end: from now on the export is there."""
        assert self.bucket is not None
        name, data = SUCCESS, b""
        if self.format == "delta":
            table_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            listed = [(part.name, part.rows, part.size_bytes) for part in parts]
            name, data = DELTA_LOG, encode_delta(listed, table_id, self._clock.now_ms())
        await self._retry(partial(self.bucket.put, name, data))
        await self._delete(STARTED)
        self._written.clear()

    async def close(self) -> None:
        """Let it go; an export that has no end is removed, as far as that can be done."""
        if self.bucket is None:
            return
        with suppress(BucketError):
            await self.clear()
            for name in sorted(self._written):
                await self._delete(name)
        await self.bucket.close()
        if self.place.scheme == "file":
            _tidy(Path(self.place.place))

    async def _delete(self, name: str) -> None:
        assert self.bucket is not None
        await self._retry(partial(self.bucket.delete, name))


def _holds_something(path: Path) -> bool:
    try:
        return any(True for _ in path.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _tidy(path: Path) -> None:
    """Remove the directories that a bucket makes and nobody wants, where they are empty."""
    for directory in (path / "~tmp", path):
        with suppress(OSError):
            directory.rmdir()
