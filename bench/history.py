"""What the history costs: batches to a segment, row groups back to batches and to S2S bytes.

    python -m bench.history [--seconds 1.0]

CPU time of one core, medians, over a segment of 16 MiB.
Speeds are metered bytes a second. `read` is the cold way of a catch-up read: the bytes of a row
group are checked, decoded by Arrow, turned into batches, and encoded as `ReadBatch` records.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bourn.layout import codec
from bourn.layout.entry import Entry
from bourn.layout.history import rows as history_rows
from bourn.layout.history.footer import LEAVES
from bourn.layout.history.index import (
    Arrays,
    SegmentIndex,
    decode_block,
    decode_index,
    encode_index,
)
from bourn.layout.history.rows import table_of
from bourn.layout.history.segment import Segment, encode_segment
from bourn.layout.records import encode_records
from bourn.limits import MIB
from bourn.model.record import Record

RESULTS = Path(__file__).parent / "results" / "history.json"
KEY = "bench"
DATA_BYTES = 16 * MIB
HEADERS = ((b"content-type", b"application/json"), (b"trace", b"0123456789abcdef"))


class Shape(NamedTuple):
    name: str
    body_bytes: int
    is_text: bool
    headers: tuple[tuple[bytes, bytes], ...] = ()
    batch_records: int = 1000
    streams: int = 1


SHAPES = (
    Shape("100 B, random", 100, is_text=False),
    Shape("100 B, JSON", 100, is_text=True),
    Shape("100 B, JSON, 2 headers", 100, is_text=True, headers=HEADERS),
    Shape("1 KiB, random", 1024, is_text=False),
    Shape("1 KiB, JSON", 1024, is_text=True),
    Shape("8 KiB, JSON", 8192, is_text=True, batch_records=100),
    Shape("1 KiB, JSON, batches of 1", 1024, is_text=True, batch_records=1),
    Shape("100 B, JSON, 1,000 streams", 100, is_text=True, batch_records=100, streams=1000),
)


def body(shape: Shape, rng: random.Random, words: list[bytes]) -> bytes:
    if not shape.is_text:
        return rng.randbytes(shape.body_bytes)
    text = b'{"at":%d,"user":%d,"text":"' % (rng.getrandbits(40), rng.getrandbits(20))
    missing = shape.body_bytes - len(text) - 2
    text += b" ".join(rng.choices(words, k=missing // 6 + 1))[:missing]
    return text.ljust(shape.body_bytes - 2) + b'"}'


def entries_of(shape: Shape) -> list[Entry]:
    rng = random.Random(1)
    words = [b"%x" % rng.getrandbits(24) for _ in range(2000)]
    records = DATA_BYTES // (shape.body_bytes + 8)
    each = records // shape.streams
    entries = []
    for stream_id in range(shape.streams):
        for first in range(0, each, shape.batch_records):
            count = min(shape.batch_records, each - first)
            batch = encode_records(
                [Record(body(shape, rng, words), shape.headers) for _ in range(count)]
            )
            stamp = 1_700_000_000_000 + first
            entries.append(
                Entry(
                    stream_id,
                    first,
                    count,
                    batch.metered_bytes,
                    batch.header_count,
                    stamp,
                    604_800,
                    stamp,
                    stamp,
                    batch.payload,
                    has_commands=False,
                )
            )
    return entries


def cpu_secs(work: Callable[[], object], seconds: float) -> float:
    """Return the median CPU time of a call."""
    work()
    spent: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(spent) < 3:
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def wire(entries: list[Entry]) -> int:
    return sum(
        len(
            codec.encode_sequenced(
                entry.payload, entry.count, entry.first_seq_num, entry.timestamps, 0, entry.count
            )
        )
        for entry in entries
    )


def decode_all(segment: Segment, index: SegmentIndex) -> list[list[Entry]]:
    view = memoryview(segment.parquet)
    found = []
    for place in range(len(index)):
        block = index.block(place)
        offset, length = index.row_group_range(block)
        found.append(decode_block(index, block, view[offset : offset + length], KEY))
    return found


def measure(shape: Shape, seconds: float) -> dict[str, Any]:
    entries = entries_of(shape)
    names = {stream_id: ("basin-of-bench", f"stream/{stream_id}") for stream_id in range(1000)}
    metered = sum(entry.metered_bytes for entry in entries)
    table = table_of(entries, names)
    segment = encode_segment(table)
    index = decode_index(segment.index, KEY)
    decoded = decode_all(segment, index)
    assert sum(entry.metered_bytes for block in decoded for entry in block) == metered
    work: dict[str, Callable[[], object]] = {
        "table_of": lambda: table_of(entries, names),
        "encode": lambda: encode_segment(table_of(entries, names)),
    }
    if shape.streams == 1:
        work["decode"] = lambda: decode_all(segment, index)
        work["read"] = lambda: [wire(block) for block in decode_all(segment, index)]
    speed = {name: cpu_secs(call, seconds) for name, call in work.items()}
    one = index.block(len(index) // 2)
    offset, length = index.row_group_range(one)
    data = segment.parquet[offset : offset + length]
    block_secs = cpu_secs(lambda: decode_block(index, one, data, KEY), seconds)
    return {
        "shape": shape.name,
        "row_groups": int(index.block(len(index) - 1).row_group) + 1,
        "blocks": len(index),
        "file_to_metered": round(len(segment.parquet) / metered, 3),
        "index_bytes": len(segment.index),
        "one_block_us": round(block_secs * 1e6),
        "mb_per_cpu_sec": {name: round(metered / 1e6 / spent) for name, spent in speed.items()},
    }


def measure_index() -> dict[str, float]:
    """Find blocks among a million."""
    count = 1_000_000
    places = np.arange(count, dtype=np.uint64)
    one_row = {name: np.ones(count, np.uint32) for name in ("count", "metered_bytes", "expires_s")}
    blocks: Arrays = dict.fromkeys(("stream_id", "first_seq_num", "last_seq_num"), places)
    blocks |= dict.fromkeys(("first_timestamp", "last_timestamp"), places) | one_row
    blocks |= {"row_group": places // 100, "first_row": places % 100}
    groups: Arrays = dict.fromkeys(("offset", "checksum", "header_values"), np.zeros(count // 100))
    groups |= {"rows": np.full(count // 100, 100), "chunk_ends": np.zeros(count // 100 * LEAVES)}
    data = encode_index(groups, blocks)
    began = time.process_time()
    tracemalloc.start()
    index = decode_index(data, KEY)
    spent = time.process_time() - began
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wanted = np.random.default_rng(1).integers(0, count, 10_000).tolist()
    began = time.process_time()
    for stream_id in wanted:
        index.find(stream_id, stream_id)
    return {
        "bytes": len(data),
        "bytes_held_besides": held,
        "bytes_used_to_decode": peak,
        "decode_ms": round(spent * 1e3, 1),
        "find_us": round((time.process_time() - began) / len(wanted) * 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    codec.warm(print)
    history_rows.warm(print)
    rows = []
    print(f"{'MB per CPU second':28}{'table_of':>10}{'encode':>10}{'decode':>10}{'read':>10}")
    for shape in SHAPES:
        row = measure(shape, options.seconds)
        rows.append(row)
        speeds = row["mb_per_cpu_sec"]
        figures = "".join(
            f"{speeds.get(name, '-'):>10}" for name in ("table_of", "encode", "decode", "read")
        )
        size = f"{row['file_to_metered']:.3f}"
        print(
            f"{shape.name:28}{figures}   file {size}, a block {row['one_block_us']} us", flush=True
        )
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    index = measure_index()
    print("find in an index of 1,000,000 blocks:", index)
    text = json.dumps({"machine": machine, "rows": rows, "index": index}, indent=1)
    options.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
