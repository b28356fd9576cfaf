"""The connector: `make bench-connector`, or `python -m bench.connector`.

    python -m bench.connector [--endpoint URL] [--mib 64] [--repeats 3] [--batches 20]

The same rows are read from a stream, by a batch read and by a query, and from Parquet; the best of
some repeats counts. Latency is from the call of an append to the call of `foreachBatch`, at rest.
Prints a table, and writes bench/results/connector.json.
"""

import argparse
import json
import os
import platform
import queue
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.connector_sink import measure_sink
from bourn.client import Client, ReadStart, Settings
from bourn.clock import SystemClock
from bourn.layout.arrow import encode_inputs
from bourn.model.record import Record
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from bourn.spark import BournDataSource
from tests.cli.process import Serving

RESULTS: Final = Path(__file__).parent / "results" / "connector.json"
CLOCK: Final = SystemClock()
SIZES: Final = (100, 1024)
BASIN: Final = "bench-source"
MIB: Final = 1 << 20
TOUCH: Final = ("count(*)", "sum(length(body))", "max(seq_num)")
PATIENCE_SECS: Final = 120


def timed(work: Callable[[], Any]) -> float:
    began = CLOCK.monotonic()
    work()
    return CLOCK.monotonic() - began


def fill(client: Client, stream: str, count: int, size: int, directory: str) -> None:
    """Append rows to a stream, and write the same rows, as they are read, as Parquet."""
    client.create_stream(stream, {"retention_policy": {"infinite": {}}})
    with client.append_session(stream) as session:
        for start in range(0, count, 10_000):
            numbers = range(start, min(start + 10_000, count))
            bodies = pa.array([(b"%012d" % number * (size // 12 + 1))[:size] for number in numbers])
            for each in encode_inputs(bodies):
                session.submit(each)
    for part, batch in enumerate(client.read_session(stream, ReadStart(seq_num=0))):
        pq.write_table(
            pa.Table.from_batches([batch]), f"{directory}/{part:05}.parquet", compression="zstd"
        )


def touched(frame: DataFrame) -> Any:
    """Look at every body."""
    return frame.selectExpr(*TOUCH).collect()


def query_secs(spark: SparkSession, options: dict[str, str]) -> float:
    """Read everything by a query, in one micro-batch; from its trigger to its end."""
    frame = spark.readStream.format("bourn").options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.foreachBatch(lambda batch, _: touched(batch) and None)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        return sum(done.durationMs["triggerExecution"] for done in query.recentProgress) / 1000


def latencies_ms(spark: SparkSession, client: Client, options: dict[str, str], batches: int) -> Any:
    """Append one record at a time, each when the one before has come."""
    seen: queue.SimpleQueue[float] = queue.SimpleQueue()

    def keep(batch: DataFrame, _: int) -> None:
        now = CLOCK.monotonic()
        if batch.count():
            seen.put(now)

    client.create_stream("latency")
    frame = spark.readStream.format("bourn").options(**options | {"stream": "latency"}).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint).start()
        )
        found: list[float] = []
        while not query.lastProgress:
            query.awaitTermination(1)
        for _ in range(batches):
            began = CLOCK.monotonic()
            client.append("latency", [Record(b"x" * 100)])
            found.append(1000 * (seen.get(timeout=PATIENCE_SECS) - began))
        query.stop()
    found = sorted(found[1:])
    return {"median_ms": round(median(found)), "max_ms": round(found[-1]), "batches": len(found)}


def measure_source(
    spark: SparkSession, endpoint: str, mib: int, repeats: int, batches: int
) -> dict[str, Any]:
    """Measure every size and way; rows of a table."""
    rows: list[dict[str, Any]] = []
    with Client(Settings.of(BASIN, endpoint, environ={})) as client, ExitStack() as stack:
        client.create_basin(BASIN)
        for size in SIZES:
            count = mib * MIB // size
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            fill(client, f"of-{size}", count, size, directory)
            options = {"endpoint": endpoint, "basin": BASIN, "stream": f"of-{size}"}

            def load(options: dict[str, str] = options) -> DataFrame:
                return spark.read.format("bourn").options(**options, minPartitions="2").load()

            def one_client(stream: str = f"of-{size}") -> int:
                return sum(b.num_rows for b in client.read_session(stream, ReadStart(seq_num=0)))

            ways: dict[str, Callable[[], float]] = {
                "batch read": lambda load=load: timed(lambda: touched(load())),  # type: ignore[misc]
                "query": lambda options=options: query_secs(spark, options),  # type: ignore[misc]
                "parquet": lambda d=directory: timed(lambda: touched(spark.read.parquet(d))),  # type: ignore[misc]
                "the client alone": lambda one=one_client: timed(one),  # type: ignore[misc]
            }
            for way, run in ways.items():
                secs = min(run() for _ in range(repeats))
                rows.append(
                    {
                        "way": way,
                        "body_bytes": size,
                        "records": count,
                        "secs": round(secs, 2),
                        "records_per_sec": round(count / secs),
                        "mb_per_sec": round(count * size / secs / 1e6, 1),
                    }
                )
        base = {"endpoint": endpoint, "basin": BASIN}
        return {"read": rows, "latency": latencies_ms(spark, client, base, batches)}


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        name = row.get("way") or f"sink, {row['delivery']}"
        print(
            f"{name:<22} {row['body_bytes']:>5} B {row['records_per_sec']:>10,} records/s "
            f"{row['mb_per_sec']:>7} MB/s  {row['secs']:>6} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.connector", description=__doc__)
    parser.add_argument("--endpoint", help="otherwise a server on a disk of this machine")
    parser.add_argument("--mib", type=int, default=256, help="of bodies, for each size")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20, help="for the latency")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with ExitStack() as stack:
        endpoint = options.endpoint
        if not endpoint:
            bucket = Path(stack.enter_context(tempfile.TemporaryDirectory()), "bucket")
            flags = ("--bucket", str(bucket), "--pipeline", "off")
            endpoint = stack.enter_context(Serving(*flags)).url
        running = Spark(PipelineSettings(master="local[2]"))
        stack.callback(running.close)
        session = running.session()
        session.dataSource.register(BournDataSource)
        found = measure_source(session, endpoint, options.mib, options.repeats, options.batches)
        show(found["read"])
        print(f"append to foreachBatch: {found['latency']}")
        found["write"] = measure_sink(session, endpoint, options.mib // 4)
        show(found["write"])
    found["machine"] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
