"""Writes without Spark: the sink, driven as Spark drives it, in this process."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from bourn.client import Client, ReadStart, Settings
from bourn.clock import SystemClock
from bourn.model.record import SequencedRecord
from bourn.spark.sink_delivery import Manner, Sink
from bourn.spark.sink_manifest import Manifest, Part, batch_prefix, make_manifest
from bourn.spark.sink_parts import Marking, RowLimits, encode_part
from bourn.spark.sink_protocol import Terms
from bourn.spark.sink_staging import Staging

MARKING = Marking()
FIELDS: "list[pa.Field[Any]]" = [pa.field("stream", pa.string()), pa.field("body", pa.binary())]
COLUMNS = pa.schema(FIELDS)


def rows_of(rows: dict[str, list[bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "stream": [name for name, bodies in rows.items() for _ in bodies],
            "body": [body for bodies in rows.values() for body in bodies],
        },
        COLUMNS,
    )


class Writer:
    """A query whose tasks have staged some rows."""

    def __init__(self, settings: Settings, directory: Path | str, **terms: object) -> None:
        self.settings = settings
        self.directory = directory
        self.marking = MARKING
        self.name = "q1"
        self.extra = terms

    def part(self, rows: dict[str, list[bytes]], batch: int = 0) -> Part:
        limits = RowLimits.with_marker(self.marking, self.name, batch)
        return Part("", *encode_part(rows_of(rows), limits))

    def manifest(self, rows: dict[str, list[bytes]], batch: int = 0, run: str = "r") -> Manifest:
        return make_manifest(self.name, run, batch, [self.part(rows, batch)], self.marking)

    def commit(self, rows: dict[str, list[bytes]], batch: int = 0, run: str = "r") -> None:
        self.commit_parts([self.part(rows, batch)], batch, run)

    def commit_parts(self, parts: list[Part], batch: int = 0, run: str = "r") -> None:
        terms = Terms(self.name, run, **self.extra)  # type: ignore[arg-type]
        manner = Manner(self.settings, 5.0)
        with Staging(str(self.directory)) as staging:
            Sink(terms, manner, staging, SystemClock()).commit(
                batch, make_manifest(self.name, run, batch, parts, self.marking)
            )

    def agree_only(self, client: Client, rows: dict[str, list[bytes]], batch: int = 0) -> None:
        """Die right behind the manifest."""
        manifest = self.manifest(rows, batch, "dead")
        starts = {}
        for name in rows:
            try:
                starts[name] = client.check_tail(name).seq_num
            except Exception:  # noqa: BLE001  it is not there yet
                starts[name] = 0
        with Staging(str(self.directory)) as staging:
            key = batch_prefix(self.name, batch) + "manifest"
            assert staging.create(key, manifest.starting_at(starts).encode())

    def staged(self) -> list[str]:
        with Staging(str(self.directory)) as staging:
            return staging.keys("")


def records_of(client: Client, stream: str) -> list[SequencedRecord]:
    found: list[SequencedRecord] = []
    while True:
        start = found[-1].seq_num + 1 if found else 0
        some = client.read(stream, ReadStart(seq_num=start), 1000)
        if not some:
            return found
        found += some


def bodies_of(client: Client, stream: str) -> list[bytes]:
    return [record.body for record in records_of(client, stream)]


def bodies(count: int, size: int = 20) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]
