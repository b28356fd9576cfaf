"""Buckets with 1, 10 or 100 GB of history, made in minutes on a disk that could not hold it plain.

What is real: the layout. Parquet files as merging leaves them (64 MB of rows in each, 25 streams,
four generations, so that a stream lies in four files), their sidecars, the version of the table
that names them all, and the catalog with 100 streams for every GB. Each file is a file of its own
on the disk, with bytes and page cache of its own, so that a cold read is one; rows, blocks,
checksums and sequence numbers are what the server finds and verifies when it reads.

What is scaled: the records are lines of JSON of 1 KiB as services log them, drawn from few words,
so that Zstandard makes about a tenth of them (`parquet_bytes` by `metered_bytes`). A cold read
fetches a row group of 1 MB of records from some 100 KB on disk, as it would with such logs; with
less repetitive ones it would fetch more, at every size alike. One GB is encoded; each further GB is
a copy of its files for other streams: the sidecar names the streams, and the columns `stream` and
`stream_id` inside of the copies still name those of the first, which the server never looks at,
and queries would. The table has one version, as if a checkpoint had just been made. Nothing is
left in the log.
"""

import asyncio
import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from bench.http.server import BASIN
from bourn.bucket.local import LocalBucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.engine.node import Node
from bourn.layout.columns import SCHEMA, StreamColumns
from bourn.layout.entry import Entry
from bourn.layout.history.delta import SegmentName
from bourn.layout.history.facts import SegmentFacts, add_of, facts_of
from bourn.layout.history.rows import table_of
from bourn.layout.history.segment import encode_segment
from bourn.layout.records import RecordBatch, encode_records
from bourn.layout.snapshot import decode_snapshot, encode_snapshot
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.table import HistoryTable, TableChange

STREAMS_PER_GB: Final = 100
SHARDS: Final = 4  # files side by side, each with a range of streams
GENERATIONS: Final = 4  # files one behind the other, each with a range of sequence numbers
BODY_BYTES: Final = 1024
BATCH_RECORDS: Final = 305
BATCHES: Final = 8  # of a stream in a file
RECORDS_IN_FILE: Final = BATCH_RECORDS * BATCHES  # of a stream: 2.5 MB
RECORDS: Final = RECORDS_IN_FILE * GENERATIONS  # of a stream: 10 MB
POOL_BODIES: Final = 7919  # a prime, and far more than a row group has rows
CREATED_AT_ONCE: Final = 1000
RETENTION_SECS: Final = 604_800
CLOCK: Final = SystemClock()
_STREAM_IDS_AT: Final = 24  # behind the head; see layout/history/index.py
_U64: Final = struct.Struct("<Q")


class File(NamedTuple):
    """A Parquet file outside of any bucket, and what is to be said of it."""

    path: Path
    sidecar: bytes  # of streams that are numbered from 0 on
    facts: SegmentFacts


def stream_name(number: int) -> str:
    """The name of the stream with that number."""
    return f"service-{number:06d}"


def bodies(rng: random.Random) -> list[bytes]:
    """Lines of logs: a few services, paths and messages; times, ids and sizes that differ."""
    words = [f"{rng.getrandbits(28):x}" for _ in range(300)]
    paths = ["/".join(rng.choices(words, k=3)) for _ in range(40)]
    texts = [" ".join(rng.choices(words, k=70)) for _ in range(48)]
    made = []
    for number in range(POOL_BODIES):
        line = (
            f'{{"at":"2026-01-01T00:{number % 60:02d}:{number % 59:02d}.{number % 997:03d}Z",'
            f'"level":"{rng.choice(("info", "info", "info", "warning"))}",'
            f'"path":"/{rng.choice(paths)}","status":{rng.choice((200, 200, 200, 404))},'
            f'"took_us":{rng.randrange(100_000)},"bytes":{rng.randrange(1_000_000)},'
            f'"trace":"{rng.getrandbits(64):016x}","user":{rng.getrandbits(30)},'
            f'"message":"{rng.choice(texts)} {rng.choice(texts)}"}}'
        )
        made.append(line.encode()[:BODY_BYTES].ljust(BODY_BYTES))
    return made


def encode_first(store: Path, rng: random.Random, say: Callable[[str], None]) -> list[File]:
    """Encode one GB as files in a directory; streams are numbered from 0 on."""
    pool = bodies(rng)
    payloads = [
        encode_records([Record(pool[(start + n) % POOL_BODIES]) for n in range(BATCH_RECORDS)])
        for start in range(0, POOL_BODIES, BATCH_RECORDS)
    ]
    per_shard = STREAMS_PER_GB // SHARDS
    files: list[File] = []
    store.mkdir(parents=True)
    for generation in range(GENERATIONS):
        for shard in range(SHARDS):
            numbers = range(shard * per_shard, (shard + 1) * per_shard)
            entries = _entries(numbers, generation, payloads, rng)
            names = {number: (BASIN, stream_name(number)) for number in numbers}
            segment = encode_segment(table_of(entries, names))
            part = len(files)
            path = store / f"000-{part:03d}.parquet"
            path.write_bytes(segment.parquet)
            facts = facts_of(
                SegmentName(0, 1, part, f"{0:016x}"), segment, (numbers[0], numbers[-1]), level=2
            )
            files.append(File(path, segment.index, facts))
    ratio = sum(file.facts.parquet_bytes for file in files) / sum(
        file.facts.metered_bytes for file in files
    )
    say(f"one GB is encoded: {ratio:.3f} of its records' bytes")
    return files


def _entries(
    numbers: range, generation: int, payloads: list[RecordBatch], rng: random.Random
) -> list[Entry]:
    """The batches of some streams in one generation."""
    now_ms = CLOCK.now_ms()
    made = []
    for number in numbers:
        for turn in range(BATCHES):
            batch = rng.choice(payloads)
            made.append(
                Entry(
                    stream_id=number,
                    first_seq_num=generation * RECORDS_IN_FILE + turn * BATCH_RECORDS,
                    count=BATCH_RECORDS,
                    metered_bytes=batch.metered_bytes,
                    header_count=batch.header_count,
                    arrival_ms=now_ms,
                    retention_secs=RETENTION_SECS,
                    last_timestamp=now_ms,
                    timestamps=now_ms,
                    payload=batch.payload,
                    has_commands=False,
                )
            )
    return made


def copy_of(file: File, store: Path, copy: int) -> File:
    """The same rows in a file of its own, for other streams."""
    if copy == 0:
        return file
    path = store / f"{copy:03d}-{file.path.name[4:]}"
    if not path.exists():
        partial = path.with_suffix(".partial")
        shutil.copyfile(file.path, partial)
        partial.rename(path)
    return file._replace(path=path)


def shifted(index: bytes, by: int) -> bytes:
    """The sidecar with every stream's id so much higher."""
    groups, blocks = struct.unpack_from("<II", index, 12)
    at = _STREAM_IDS_AT + 16 * groups
    ids = np.frombuffer(index, "<u8", blocks, at) + np.uint64(by)
    body = b"".join([index[:at], ids.astype("<u8").tobytes(), index[at + 8 * blocks : -8]])
    return body + _U64.pack(xxh3_64_intdigest(body))


def make_bucket(
    root: Path, store: Path, first: list[File], gigabytes: int, say: Callable[[str], None]
) -> dict[str, int]:
    """A bucket with so much history; its files are links to those of the store."""
    began = time.perf_counter()
    root.mkdir(parents=True)
    streams = gigabytes * STREAMS_PER_GB
    first_id, end_ordinal = asyncio.run(_catalog(root, streams))
    say(f"{streams:,} streams are there, {time.perf_counter() - began:.0f} s")
    history = root / "history"
    (history / "_index").mkdir(parents=True)
    facts: list[SegmentFacts] = []
    for copy in range(gigabytes):
        by = first_id + copy * STREAMS_PER_GB
        for template in first:
            file = copy_of(template, store, copy)
            name = SegmentName(0, end_ordinal, len(facts), f"{copy:016x}")
            os.link(file.path, root / name.key)
            (root / name.index_key).write_bytes(shifted(file.sidecar, by))
            low, high = file.facts.stream_ids
            facts.append(
                msgspec.structs.replace(
                    file.facts,
                    name=str(name),
                    end_ordinal=end_ordinal,
                    stream_ids=(low + by, high + by),
                )
            )
        if copy and copy % 10 == 0:
            say(f"{copy} GB of {gigabytes}, {time.perf_counter() - began:.0f} s")
    asyncio.run(_register(root, facts, end_ordinal))
    os.sync()
    say(f"{gigabytes} GB are there, {time.perf_counter() - began:.0f} s")
    return {
        "streams": streams,
        "segments": len(facts),
        "records": sum(found.rows for found in facts),
        "metered_bytes": sum(found.metered_bytes for found in facts),
        "parquet_bytes": sum(found.parquet_bytes for found in facts),
        "index_bytes": sum(found.index_bytes for found in facts),
    }


async def _catalog(root: Path, streams: int) -> tuple[int, int]:
    """Create the streams; the id of the first, and the ordinal behind the log's last commit."""
    bucket = LocalBucket(root)
    node = await Node.open(bucket)
    await node.create_basin(CreateBasin(BASIN))
    for start in range(0, streams, CREATED_AT_ONCE):
        await asyncio.gather(
            *(
                node.create_stream(BASIN, CreateStream(stream_name(number)))
                for number in range(start, min(start + CREATED_AT_ONCE, streams))
            )
        )
    await node.close()
    await bucket.close()
    path = max((root / "catalog").glob("*.parquet"))
    key = f"catalog/{path.name}"
    meta, columns = decode_snapshot(path.read_bytes(), key)
    assert len(columns) == streams, "the snapshot has them all"
    first_id = int(columns.ids.min())
    assert int(columns.ids.max()) == first_id + streams - 1, "ids are dense"
    now_ms = CLOCK.now_ms()
    tails = {"next_seq_num": RECORDS, "last_timestamp": now_ms, "last_write_ms": now_ms}
    arrays = [
        pa.array([tails[name]] * streams, SCHEMA.field(name).type) if name in tails else array
        for name, array in zip(SCHEMA.names, columns.arrays, strict=True)
    ]
    path.write_bytes(encode_snapshot(meta, StreamColumns(arrays)))
    return first_id, meta.next_ordinal


async def _register(root: Path, facts: list[SegmentFacts], end_ordinal: int) -> None:
    rng = random.Random(1)
    bucket = LocalBucket(root)
    table = HistoryTable(bucket, CLOCK, rng, Retry(CLOCK, rng, 30.0))
    adds = [add_of(found, CLOCK.now_ms()) for found in facts]
    await table.commit(TableChange("TIER", adds, first_ordinal=0, end_ordinal=end_ordinal))
    await bucket.close()
