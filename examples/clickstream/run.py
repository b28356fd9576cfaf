"""Clicks to counts, live: appended with S2's SDK, counted by Spark, watched over SSE.

    python examples/clickstream/run.py

    events.py --s2-sdk-->  `clicks`  --Spark, windows of 10 s-->  `counts`  --SSE-->  here

A window is written once it is over: when clicks come that are more than ten seconds younger. The
sink writes it once, however often the query is killed and started again. In the end all are
compared with counts made here.
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its usual name
from pyspark.sql.streaming.query import StreamingQuery

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from session import endpoint_of, spark_session  # noqa: E402  it lies beside the examples

from bourn.client import Client, ReadStart, Settings  # noqa: E402  as above

BASIN = "clickstream"
LAST_PAGE = "/end"
WINDOW_MS = 10_000


def counts_of(clicks: DataFrame) -> DataFrame:
    """Count the clicks of each page in windows of ten seconds of their own time."""
    parsed = clicks.select(
        F.from_json(F.col("body").cast("string"), "at long, page string, user string").alias("c")
    )
    timed = parsed.select(F.timestamp_millis("c.at").alias("at"), "c.page", "c.user")
    counted = (
        timed.withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "10 seconds"), "page")
        .agg(F.count(F.lit(1)).alias("clicks"), F.approx_count_distinct("user").alias("users"))
    )
    return counted.select(
        F.lit("counts").alias("stream"),
        F.to_json(
            F.struct(F.unix_millis("window.start").alias("from"), "page", "clicks", "users")
        ).alias("body"),
    )


class Watcher:
    """Follows `counts` with server-sent events, as a page in a browser would."""

    def __init__(self, endpoint: str) -> None:
        self.newest: dict[tuple[int, str], int] = {}
        self.records = 0
        self._changed = threading.Condition()
        place = urlsplit(endpoint)
        link = http.client.HTTPConnection(place.hostname or "", place.port)
        headers = {"s2-basin": BASIN, "accept": "text/event-stream"}
        link.request("GET", "/v1/streams/counts/records?seq_num=0", headers=headers)
        self._link = link
        self._thread = threading.Thread(target=self._follow, args=(link.getresponse(),))
        self._thread.start()

    def close(self) -> None:
        """Go away."""
        if self._link.sock is not None:
            self._link.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._link.close()

    def _follow(self, response: http.client.HTTPResponse) -> None:
        with response, suppress(OSError, http.client.HTTPException):
            self._hear(response)

    def _hear(self, response: http.client.HTTPResponse) -> None:
        kind = ""
        for raw in response:
            line = raw.decode().strip()
            if line.startswith("event:"):
                kind = line.removeprefix("event:").strip()
            elif line.startswith("data:") and kind == "batch":
                self._take(json.loads(line.removeprefix("data:")))

    def _take(self, batch: dict[str, list[dict[str, str]]]) -> None:
        with self._changed:
            for record in batch["records"]:
                count = json.loads(record["body"])
                self.newest[count["from"], count["page"]] = count["clicks"]
            self.records += len(batch["records"])
            print(f"  {self.records:6d} counts, {sum(self.newest.values()):6d} clicks", flush=True)
            self._changed.notify_all()

    def until(self, clicks: int, query: StreamingQuery) -> bool:
        """Wait until so many clicks are counted; False where the query ends before."""
        with self._changed:
            while sum(self.newest.values()) < clicks:
                if not query.isActive:
                    print(query.exception())
                    return False
                self._changed.wait(1.0)
        return True


def count_here(client: Client) -> Counter[tuple[int, str]]:
    """Count once more, in plain Python."""
    counted: Counter[tuple[int, str]] = Counter()
    for batch in client.read_session("clicks", ReadStart(seq_num=0)):
        for body in batch.column("body").to_pylist():
            click = json.loads(body)
            if click["page"] == LAST_PAGE:
                continue
            counted[click["at"] // WINDOW_MS * WINDOW_MS, click["page"]] += 1
    return counted


def run(spark: SparkSession, endpoint: str, count: int, sdk_python: str) -> bool:
    with Client(Settings.of(BASIN, endpoint, environ={})) as client:
        client.ensure_basin(BASIN)
        for stream in ("clicks", "counts"):
            client.ensure_stream(stream)
        where = {"endpoint": endpoint, "basin": BASIN}
        clicks = (
            spark.readStream.format("bourn")
            .options(**where, stream="clicks", startingOffsets="earliest")
            .load()
        )
        with (
            closing(Watcher(endpoint)) as watcher,
            tempfile.TemporaryDirectory() as checkpoint,
        ):
            query = (
                counts_of(clicks)
                .writeStream.format("bourn")
                .options(**where, checkpointLocation=checkpoint)
                .start()
            )
            command = [sdk_python, str(HERE / "events.py"), "--endpoint", endpoint]
            subprocess.run([*command, "--count", str(count)], check=True)
            is_whole = watcher.until(count, query)
            query.stop()
        wanted = count_here(client)
    is_equal = is_whole and watcher.newest == wanted
    print(f"{count} clicks in {len(wanted)} windows: {'equal' if is_equal else 'NOT EQUAL'}")
    return is_equal


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", help="of a server that runs; otherwise one is started")
    parser.add_argument("--count", type=int, default=5000, help="clicks (5000)")
    parser.add_argument("--sdk-python", default=sys.executable, help="a Python that has s2-sdk")
    options = parser.parse_args()
    with endpoint_of(options.endpoint) as url, spark_session() as session:
        sys.exit(0 if run(session, url, options.count, options.sdk_python) else 1)
