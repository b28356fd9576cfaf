"""What the tests of export, import and replay share: hard records, and ways to read them back."""

import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from bourn.bucket.port import Bucket
from bourn.client import Client, ReadStart, Retries, Settings
from bourn.limits import RECORD_METERED_BYTES_MAX
from bourn.model.config import BasinConfig, Infinite, StreamConfig, Timestamping
from bourn.model.record import Record, SequencedRecord
from bourn.pipeline.export import Export
from bourn.pipeline.export_plan import Bounds, ExportPlan, Wanted
from bourn.pipeline.export_target import ExportReport, ExportTarget
from bourn.pipeline.export_tasks import PartOutcome, run_part_task
from bourn.pipeline.job import Tools
from bourn.pipeline.place import Place
from bourn.pipeline.progress import Progress
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from tests.http.server import Server
from tests.pipeline.harness import CLOCK, quiet, retry

BASIN = "moved-basin"
KEPT = BasinConfig(
    default_stream_config=StreamConfig(
        retention_policy=Infinite(), timestamping=Timestamping(uncapped=True)
    )
)
KEPT_SHAPE = {
    "default_stream_config": {
        "retention_policy": {"infinite": {}},
        "timestamping": {"uncapped": True},
    }
}
Row = tuple[int, int, tuple[tuple[bytes, bytes], ...], bytes]  # seq_num, timestamp, headers, body

HARD = (
    Record(b"", (), 0),
    Record(b"plain text \xe2\x82\xac", ((b"name", b"value"), (b"name", b"")), 0),
    Record(b"\x00\xff\xfe not UTF-8", ((b"\xff", b"\x80"),), 1),
    Record(b"\x00" * (RECORD_METERED_BYTES_MAX - 8), (), 1_700_000_000_000),
    Record(b"\xff" * (RECORD_METERED_BYTES_MAX - 8), (), 1_700_000_000_000),
    Record(b"many", tuple((b"h%d" % n, b"v" * (n % 7)) for n in range(10_000)), 2**63 - 1),
    Record(b"the \xf0\x9f\x8c\x8a is late", (), 2**63),
    Record(b"last", (), 2**64 - 1),
)


def rows_of(records: list[SequencedRecord]) -> list[Row]:
    return [(one.seq_num, one.timestamp, one.headers, one.body) for one in records]


def without_commands(rows: list[Row]) -> list[Row]:
    """The same, numbered anew."""
    kept = [row for row in rows if not (len(row[2]) == 1 and not row[2][0][0])]
    return [(number, *row[1:]) for number, row in enumerate(kept)]


class InProcessExport(Export):
    """The export with its tasks done here, one after the other."""

    async def _parts(self, plan: ExportPlan, progress: Progress) -> list[PartOutcome]:
        names = [f"part-{task.number:06d}" for task in plan.tasks]
        self._target.expect(
            [f"{name}.{'jsonl' if self._target.format == 'jsonl' else 'parquet'}" for name in names]
        )
        place, to = self._tools.place, self._target.place
        return [await run_part_task(place, to, task, self._target.format) for task in plan.tasks]


async def exported(
    bucket: Bucket,
    place: Place,
    to: Place,
    of: str,
    wanted: Wanted,
    bounds: Bounds = Bounds(),  # noqa: B008  a frozen value
    *,
    spark: Spark | None = None,
) -> ExportReport:
    rng = random.Random()
    settings = PipelineSettings(master="local[2]")
    kind: Callable[..., Export] = Export if spark else InProcessExport
    tools = Tools(bucket, place, spark or Spark(settings), CLOCK, rng, retry(), settings)
    target = ExportTarget(to, of, CLOCK, rng, retry())
    return await kind(tools, target).run(wanted, bounds, quiet())


def rows_in(path: Path, of: str) -> dict[str, list[Row]]:
    """Every record of an export, by stream; read by others than us."""
    rows: dict[str, list[Row]] = {}
    for item in _items(path, of):
        rows.setdefault(item["stream"], []).append(
            (
                item["seq_num"] % 2**64,
                item["timestamp"] % 2**64,
                tuple((pair["name"], pair["value"]) for pair in item["headers"]),
                item["body"],
            )
        )
    return rows


def kinds_in(path: Path) -> list[Any]:
    return pq.read_table(path).column("kind").to_pylist()


def _items(path: Path, of: str) -> list[dict[str, Any]]:
    if of == "jsonl":
        parts = sorted(path.glob("*.jsonl"))
        lines = [line for part in parts for line in part.read_bytes().splitlines()]
        return [_decoded(orjson.loads(line)) for line in lines]
    if of == "delta":
        files = sorted(DeltaTable(path).file_uris())
    else:
        files = sorted(str(file) for file in path.glob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return found


def _decoded(item: dict[str, Any]) -> dict[str, Any]:
    decode = base64.b64decode if item.get("base64") else str.encode
    headers = [{"name": decode(name), "value": decode(value)} for name, value in item["headers"]]
    return {**item, "headers": headers, "body": decode(item["body"])}


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def connector(server: Server, basin: str = BASIN, key: str = "") -> Callable[[], Client]:
    retries = Retries(attempts=40, pause_secs_min=0.05, pause_secs_max=0.5)
    settings = Settings.of(basin, url_of(server), encryption_key=key, retries=retries, environ={})
    return lambda: Client(settings)


def rows_at(server: Server, stream: str) -> list[Row]:
    """All that a reader of the stream gets."""
    rows: list[Row] = []
    with connector(server)() as client:
        session = client.read_session(stream, ReadStart(seq_num=0))
        for batch in session:
            for row in batch.to_pylist():
                headers = tuple((pair["name"], pair["value"]) for pair in row["headers"])
                rows.append(
                    (row["seq_num"] % 2**64, row["timestamp"] % 2**64, headers, row["body"])
                )
        session.close()
    return rows
