"""What many streams cost: memory, snapshot size, start-up, look-ups and the snapshot cycle.

    python -m bench.streams_table [--streams 100000 1000000]

Each size runs in two fresh processes: one makes the snapshot, one loads it, so that the memory
figures hold nothing but what a starting node would hold.
"""

import argparse
import gc
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from bourn.catalog.cold import ColdStreams
from bourn.catalog.rows import StreamRow, encode_stream_row
from bourn.catalog.table import StreamTable
from bourn.layout.keys import LogPosition, snapshot_key
from bourn.layout.runs import RunIndex
from bourn.layout.snapshot import (
    SnapshotMeta,
    StreamColumns,
    StreamImage,
    decode_snapshot,
    encode_snapshot,
)
from bourn.model.config import SYSTEM_DEFAULT

START_MS = 1_700_000_000_000
CHANGED = 10_000
LOOKUPS = 20_000
POSITION = LogPosition(1, 100_000)


def name_of(number: int) -> str:
    return f"tenant-{number // 1000:06d}/device-{number % 1000:06d}"


def image_of(number: int, name: str, chance: random.Random) -> StreamImage:
    """Make a stream with one run and a catalog row of the usual size."""
    last_ms = START_MS + chance.randrange(86_400_000)
    count = chance.randrange(1, 100)
    expires_s = last_ms // 1000 + 604_801
    runs = RunIndex()
    runs.append(
        first_seq_num=0,
        last_timestamp=last_ms,
        first_timestamp=last_ms - chance.randrange(50),
        commit=chance.randrange(100_000),
        offset=chance.randrange(4 << 20),
        length=count * 120,
        count=count,
        metered=count * 108,
        expires_s=expires_s,
    )
    row = StreamRow(number, 1, name, SYSTEM_DEFAULT, cipher=None, created_at_ms=START_MS + number)
    return StreamImage(
        id=number,
        basin_id=1,
        name=name,
        row=encode_stream_row(row),
        next_seq_num=count,
        last_timestamp=last_ms,
        fencing_token="",
        trim_point=0,
        last_write_ms=last_ms,
        runs=runs.to_bytes(),
        next_check_s=expires_s,
    )


def rss_mb() -> float:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def show(what: str, value: float, unit: str) -> None:
    print(f"  {what:<46} {value:>12,.2f} {unit}", flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    show(what, time.perf_counter() - start, "s")


def each(what: str, calls: Callable[[], object], count: int) -> None:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        calls()
        best = min(best, time.perf_counter() - start)
    show(what, best / count * 1e6, "us")


def meta_of(streams: int) -> SnapshotMeta:
    return SnapshotMeta(
        position=POSITION,
        next_ordinal=POSITION.id,
        bases=[(1, 0)],
        next_resource_id=streams + 1,
        created_at_ms=START_MS,
    )


def make(streams: int, path: Path) -> None:
    chance = random.Random(streams)
    ids = list(range(1, streams + 1))
    chance.shuffle(ids)  # created in no order of their names
    columns = StreamColumns.of([image_of(ids[i], name_of(i), chance) for i in range(streams)])
    gc.collect()
    show("columns a stream", columns.nbytes / streams, "B")
    with timed("encode"):
        data = encode_snapshot(meta_of(streams), columns)
    show("file", len(data) / 1e6, "MB")
    path.write_bytes(data)


def load(streams: int, path: Path) -> None:
    # The libraries' own memory is not the streams': load one first.
    one = StreamColumns.of([image_of(1, "one", random.Random(0))])
    decode_snapshot(encode_snapshot(meta_of(1), one), snapshot_key(POSITION))
    before_mb = rss_mb()
    data = path.read_bytes()
    with timed("decode, every check included"):
        snapshot = decode_snapshot(data, snapshot_key(POSITION))
    del data
    with timed("index by id"):
        cold = ColdStreams(snapshot.columns)
    del snapshot
    show("peak while loading", peak_mb() - before_mb, "MB")
    held_mb = rss_mb() - before_mb
    show("resident when loaded", held_mb, "MB")
    show("resident a stream", held_mb * 1e6 / streams, "B")
    look_up(streams, cold)
    cycle(streams, cold)
    show("peak of the whole process", peak_mb(), "MB")


def look_up(streams: int, cold: ColdStreams) -> None:
    chance = random.Random(1)
    names = [name_of(chance.randrange(streams)) for _ in range(LOOKUPS)]
    ids = [chance.randrange(1, streams + 1) for _ in range(LOOKUPS)]
    assert all(cold.find(1, name) >= 0 for name in names[:100])
    each("find by name", lambda: [cold.find(1, name) for name in names], LOOKUPS)
    each("find by id", lambda: [cold.find_id(stream_id) for stream_id in ids], LOOKUPS)
    each("image", lambda: [cold.image(row) for row in range(LOOKUPS)], LOOKUPS)
    each("due, all rows", lambda: cold.due(START_MS // 1000), 1)
    each("commit_counts, all rows", lambda: cold.commit_counts(0), 1)


def cycle(streams: int, cold: ColdStreams) -> None:
    """Use some streams, then take a snapshot of them; the hot object is the image itself."""
    table: StreamTable[list[StreamImage]] = StreamTable(
        cold, lambda image: [image], lambda hot: hot[0], lambda _: True
    )
    chance = random.Random(2)
    names = [name_of(number) for number in chance.sample(range(streams), CHANGED // 2)]
    start = time.perf_counter()
    hot = [table.get(1, name) for name in names]
    show("get, cold", (time.perf_counter() - start) / len(names) * 1e6, "us")
    each("get, hot", lambda: [table.get(1, name) for name in names], len(names))
    ids = [stream[0].id for stream in hot if stream is not None]
    each("mark_dirty", lambda: deque(map(table.mark_dirty, ids), 0), len(ids))
    for number in range(CHANGED // 2):
        name = f"{name_of(number * (streams // CHANGED))}/new"
        image = image_of(streams + 1 + number, name, chance)
        table.add(image.id, 1, name, [image])
    each("list a page of 1,000", lambda: table.list_names(1, "tenant-00005"), 1)
    del hot
    start = time.perf_counter()
    capture = table.capture()
    show("capture, a dirty stream", (time.perf_counter() - start) / CHANGED * 1e6, "us")
    with timed(f"merge {CHANGED:,} (half of them new)"):
        merged = capture.merge()
    with timed("encode the merged"):
        encode_snapshot(meta_of(streams), merged.columns)
    start = time.perf_counter()
    table.adopt(capture, merged)
    show("adopt, a hot stream", (time.perf_counter() - start) / CHANGED * 1e6, "us")
    assert table.count() == streams + CHANGED // 2
    assert not table.hot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--step", choices=["make", "load"])
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step = make if arguments.step == "make" else load
        step(arguments.streams[0], arguments.path)
        return
    for streams in arguments.streams:
        print(f"{streams:,} streams")
        with tempfile.TemporaryDirectory() as folder:
            for step_name in ("make", "load"):
                subprocess.run(
                    [
                        *(sys.executable, "-m", "bench.streams_table", "--step", step_name),
                        *("--streams", str(streams), "--path", f"{folder}/snapshot.parquet"),
                    ],
                    check=True,
                )


if __name__ == "__main__":
    main()
