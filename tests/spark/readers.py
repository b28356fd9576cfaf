"""Reads without Spark: the readers, driven as Spark drives them, in this process.

Starting Python for a plan costs Spark seconds; what a reader does is the same here.
"""

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import DataType, StructField, StructType

from bourn.client import Client
from bourn.model.record import Record
from bourn.spark.datasource import BournDataSource
from bourn.spark.source import BatchReader, StreamReader
from bourn.wire.protobuf import encode_append_input

KEEP = {"retention_policy": {"infinite": {}}, "timestamping": {"uncapped": True}}


def fill(client: Client, stream: str, count: int, start: int = 0, size: int = 0) -> None:
    """Records `start` on: body and timestamp are the sequence number."""
    client.ensure_stream(stream, KEEP)
    with client.append_session(stream) as appends:
        for first in range(start, start + count, 500):
            numbers = range(first, min(first + 500, start + count))
            records = [Record(b"%0*d" % (size, n), ((b"n", b"%d" % n),), n) for n in numbers]
            appends.submit(encode_append_input(records))


def options_of(client: Client, stream: str, **options: Any) -> dict[str, str]:
    given = {
        "endpoint": client.settings.streams.url,
        "basin": client.settings.basin,
        "stream": stream,
    }
    return given | {name: str(value) for name, value in options.items()}


def rows(
    client: Client, stream: str, schema: Mapping[str, DataType] | None = None, **options: Any
) -> list[Any]:
    """Read a batch; the tasks get their reader and their ranges as Spark hands them over."""
    source = BournDataSource(options_of(client, stream, **options))
    wanted = source.schema()
    if schema is not None:
        wanted = StructType([StructField(name, kind) for name, kind in schema.items()])
    reader = source.reader(wanted)
    found: list[Any] = []
    for partition in reader.partitions():
        task: BatchReader = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def numbers(client: Client, stream: str, **options: Any) -> list[Any]:
    return [row["seq_num"] for row in rows(client, stream, **options)]


class Query:
    """A query that Spark would run, and its checkpoint; `stop_all` ends the queries of a test."""

    running: ClassVar[list["Query"]] = []

    def __init__(self, client: Client, stream: str, **options: Any) -> None:
        self._given = options_of(client, stream, **options)
        self.kept: dict[str, Any] | None = None  # the checkpoint
        self.reader = self._start()
        self.running.append(self)

    @classmethod
    def stop_all(cls) -> None:
        while cls.running:
            cls.running.pop().reader.stop()

    def _start(self) -> StreamReader:
        source = BournDataSource(self._given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader

    def restart(self, **options: Any) -> None:
        """End the driver, and start another from the checkpoint, perhaps with other options."""
        self.reader.stop()
        self._given |= {name: str(value) for name, value in options.items()}
        self.reader = self._start()

    def step(self, limit: ReadLimit | None = None) -> list[Any] | None:
        """Run one micro-batch; None where there is nothing to read."""
        if self.kept is None:
            self.kept = json.loads(json.dumps(self.reader.initialOffset()))
        limit = limit or self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.kept, limit)))
        if end == self.kept:
            return None
        found = list(self.between(self.kept, end))
        self.kept = end
        return found

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        for partition in self.reader.partitions(start, end):
            task: StreamReader = pickle.loads(pickle.dumps(self.reader))
            for batch in task.read(pickle.loads(pickle.dumps(partition))):
                yield from batch.to_pylist()

    def drain(self, limit: ReadLimit | None = None) -> list[tuple[str, int]]:
        """Run micro-batches until nothing is left."""
        found: list[tuple[str, int]] = []
        while (more := self.step(limit)) is not None:
            found += [(row["stream"], row["seq_num"]) for row in more]
        return found

    def all_now(self) -> list[tuple[str, int]]:
        self.reader.prepareForTriggerAvailableNow()
        return self.drain(ReadAllAvailable())
