"""A log to measure on: text that compresses as logs do, in one large stream and many small ones."""

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import Final

from bourn.bucket.local import LocalBucket
from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.layout.records import RecordBatch, encode_records
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.settings import EngineSettings

BASIN: Final = "bench-basin"
LARGE: Final = "large"
APPENDS_AT_ONCE: Final = 64
POOL_BATCHES: Final = 40
CLOCK: Final = SystemClock()


def make_pool(record_bytes: int, per_batch: int, seed: int = 1) -> list[RecordBatch]:
    """Return batches of words."""
    rng = random.Random(seed)
    words = [rng.randbytes(6).hex().encode() + b" " for _ in range(4000)]

    def body() -> bytes:
        return b"".join(rng.choices(words, k=record_bytes // 13 + 1))[:record_bytes]

    return [
        encode_records([Record(body(), ((b"k", b"v%d" % n),)) for n in range(per_batch)])
        for _ in range(POOL_BATCHES)
    ]


async def fill(
    root: Path, megabytes: int, streams: int, record_bytes: int, per_batch: int, *, large: float
) -> None:
    """Append so much; a share of it, `large`, goes to one stream."""
    bucket = LocalBucket(root)
    node = await Node.open(bucket, EngineSettings(tail_cache_bytes=1 << 20))
    await node.create_basin(CreateBasin(BASIN))
    names = [LARGE, *(f"s{number:05d}" for number in range(streams))]
    for name in names:
        await node.create_stream(BASIN, CreateStream(name))
    rng = random.Random(1)
    pool = make_pool(record_bytes, per_batch)
    turn = asyncio.Semaphore(APPENDS_AT_ONCE)

    async def append(number: int) -> None:
        async with turn:
            name = LARGE if rng.random() < large else names[1 + rng.randrange(streams)]
            await node.append(BASIN, name, pool[number % len(pool)])

    total = megabytes * 1_000_000 // (record_bytes * per_batch)
    await asyncio.gather(*map(append, range(total)))
    await node.close()
    await bucket.close()


def forget_table(root: Path) -> None:
    """Take the table away, so that the log is tiered from its beginning again."""
    for name in ("history", "pipeline"):
        shutil.rmtree(root / name, ignore_errors=True)


def size_of(root: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def drop_page_cache(root: Path) -> None:
    """Have the system forget the files below a directory, so that they come from the disk."""
    for path in root.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
