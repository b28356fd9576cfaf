"""What the batch codec costs: time per batch and record, bytes per second, time to start.

    python -m bench.codec [--seconds 0.2] [--cold]

Every figure is the best of many short runs, so that a busy machine disturbs little. The last two
columns do the same work with the protobuf library: parse and weigh an append, build and serialise
a read, a Python object per record. `--cold` also compiles everything into an empty cache.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba

from bourn.layout import codec
from bourn.layout.records import encode_records
from bourn.limits import MIB
from bourn.model.record import Record, metered_bytes
from tests.layout.record_samples import message_of, read_batch_of, records_in
from tests.wire.schema import AppendInput

RESULTS = Path(__file__).parent / "results" / "codec.json"
FIRST_SEQ_NUM = 1_000_000
TIMESTAMP = 1_700_000_000_000
HEADERS = ((b"content-type", b"application/json"), (b"trace", b"0123456789abcdef"))
START = """
import time
wall, cpu = time.perf_counter(), time.process_time()
from bourn.layout import codec
codec.warm(lambda _: None)
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


class Shape(NamedTuple):
    name: str
    records: int
    body_bytes: int
    headers: tuple[tuple[bytes, bytes], ...] = ()


SHAPES = (
    Shape("1 x 100 B", 1, 100),
    Shape("1 x 1 KiB", 1, 1024),
    Shape("1 x 1 KiB, 2 headers", 1, 1024, HEADERS),
    Shape("10 x 100 B", 10, 100),
    Shape("1,000 x 100 B", 1000, 100),
    Shape("1,000 x 100 B, 2 headers", 1000, 100, HEADERS),
    Shape("1,000 x 1,000 B", 1000, 1000),
    Shape("128 x 8 KiB", 128, 8184),
    Shape("1 x 1 MiB", 1, MIB - 8),
)


def best_us(work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of one call."""
    work()
    began = time.perf_counter()
    work()
    calls = max(1, int(0.002 / max(time.perf_counter() - began, 1e-7)))
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - began) / calls)
    return best * 1e6


def by_library(message: bytes) -> int:
    return sum(
        metered_bytes(r.headers, r.body) for r in records_in(AppendInput.FromString(message))
    )


def measure(shape: Shape, seconds: float) -> dict[str, Any]:
    records = [
        Record(bytes([index % 251]) * shape.body_bytes, shape.headers)
        for index in range(shape.records)
    ]
    message = message_of(records).SerializeToString()
    payload = codec.decode_append_input(message).batch.payload
    count = shape.records
    sequenced = (payload, count, FIRST_SEQ_NUM, TIMESTAMP, 0, count)
    values = [
        (FIRST_SEQ_NUM + index, TIMESTAMP, record.body, record.headers)
        for index, record in enumerate(records)
    ]
    limits = {"records_max": 1000, "metered_max": MIB, "encoded_max": 2 * MIB}
    assert codec.encode_sequenced(*sequenced) == read_batch_of(values)
    work: dict[str, Callable[[], object]] = {
        "decode_append_input": lambda: codec.decode_append_input(message),
        "encode_records": lambda: encode_records(records),
        "encode_sequenced": lambda: codec.encode_sequenced(*sequenced),
        "decode_sequenced": lambda: codec.decode_sequenced(*sequenced),
        "cut": lambda: codec.cut(
            payload, count, TIMESTAMP, 0, until=None, first_seq_num=FIRST_SEQ_NUM, **limits
        ),
        "library_decode": lambda: by_library(message),
        "library_encode": lambda: read_batch_of(values),
    }
    return {
        "shape": shape.name,
        "records": count,
        "message_bytes": len(message),
        "us": {name: round(best_us(call, seconds), 3) for name, call in work.items()},
    }


def start_secs(cache: str | None = None) -> dict[str, float]:
    """Import the codec and warm it, in a fresh process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache} if cache else dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=True
    )
    wall, cpu = map(float, done.stdout.split())
    return {"wall": round(wall, 2), "cpu": round(cpu, 2)}


def show(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0]["us"])
    print(f"{'us per batch':26}" + "".join(f"{name:>20}" for name in names))
    for row in rows:
        print(f"{row['shape']:26}" + "".join(f"{row['us'][name]:20.2f}" for name in names))
    print(f"\n{'':26}{'decode':>9}{'encode':>9} ns/record{'decode':>9}{'encode':>9} GB/s")
    for row in rows:
        times = [row["us"][name] for name in ("decode_append_input", "encode_sequenced")]
        records = "".join(f"{spent * 1e3 / row['records']:9.0f}" for spent in times)
        speeds = "".join(f"{row['message_bytes'] / spent / 1e3:9.2f}" for spent in times)
        print(f"{row['shape']:26}{records}{'':10}{speeds}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure")
    parser.add_argument("--cold", action="store_true", help="compile into an empty cache, too")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    codec.warm(print)
    rows = [measure(shape, options.seconds) for shape in SHAPES]
    starts = min((start_secs() for _ in range(3)), key=lambda found: found["wall"])
    start = {"warm_cache": starts}
    if options.cold:
        with tempfile.TemporaryDirectory() as cache:
            start["empty_cache"] = start_secs(cache)
    show(rows)
    print("\nimport and warm, seconds:", json.dumps(start))
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numba": numba.__version__,
    }
    options.output.parent.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine, "start_secs": start, "rows": rows}, indent=1)
    options.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
