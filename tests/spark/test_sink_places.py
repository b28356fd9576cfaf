"""Where a sink stages and what it writes to: S3, encrypted streams, endpoints that fail."""

import base64
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql.types import StructType

from bourn.client import Client, Retries, Settings
from bourn.model.record import Record
from bourn.spark.options_sink import parse_sink_options
from bourn.spark.sink import Staged, Writing, deliver_staged, stage_rows, write_partition
from bourn.spark.sink_manifest import batch_prefix
from bourn.spark.sink_parts import Marking, RowLimits
from bourn.spark.sink_protocol import SinkStopped, Superseded
from bourn.spark.sink_rows import check_columns
from bourn.spark.sink_staging import Staging
from tests.client.proxy import Proxy
from tests.client.script import answer
from tests.spark.writers import MARKING, Writer, bodies, bodies_of, records_of, rows_of
from tests.sparks import S3_BUCKET

BASIN = "sink-places"


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


def test_rows_may_be_staged_in_s3(settings, client, stream, moto, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto.secret_access_key)
    writer = Writer(settings, f"s3://{S3_BUCKET}/sink/{random.getrandbits(64):x}")
    writer.agree_only(client, {stream: bodies(1500)})
    writer.commit({stream: list(reversed(bodies(1500)))}, run="second")
    writer.commit({stream: bodies(2)}, run="third")
    assert bodies_of(client, stream) == bodies(1500), "the manifest of the first is what counts"
    for batch in range(1, 4):
        parts = stage_rows(
            str(writer.directory),
            batch_prefix(writer.name, batch) + "part",
            iter([rows_of({stream: bodies(200, 1000)})]),
            RowLimits.with_marker(writer.marking, writer.name, batch),
        )
        assert parts[0].key, "it is an object of its own"
        writer.commit_parts(list(parts), batch)
    assert len(bodies_of(client, stream)) == 2100
    found = writer.staged()
    assert [key.split("/", 1)[1] for key in found] == [
        f"00000000000{batch}/{name}" for batch in (2, 3) for name in ("done", "manifest")
    ]
    with pytest.raises(Superseded, match="batch 1 is behind batch 3"):
        writer.commit({stream: bodies(2)}, 1, run="late")


def test_encrypted_streams_get_their_rows_once_and_sealed(settings, tmp_path, stream):
    key = base64.b64encode(bytes(range(32))).decode()
    basin = f"sealed-{random.getrandbits(32):08x}"
    sealed = Settings.of(basin, settings.streams.url, encryption_key=key, environ={})
    writer = Writer(sealed, tmp_path)
    with Client(sealed) as client:
        client.create_basin(basin, {"create_stream_on_append": True, "stream_cipher": "aegis-256"})
        writer.agree_only(client, {stream: bodies(1500)})
        records = [Record(body) for body in bodies(1000)]
        records[-1] = records[-1]._replace(headers=((MARKING.name, b"q1 0 1000 1500"),))
        client.append(stream, records, match_seq_num=0)
        writer.commit({stream: bodies(3)}, run="second")
        assert bodies_of(client, stream) == bodies(1500)
    plain = Settings.of(basin, settings.streams.url, environ={})
    with pytest.raises(SinkStopped, match=r"stream '.*': missing encryption key"):
        Writer(plain, tmp_path / "plain").commit({stream: bodies(1)})


def test_an_endpoint_that_limits_and_fails_is_asked_again(settings, tmp_path, client, stream):
    faults = [
        answer(429, b'{"code":"rate_limited","message":"slow"}', "retry-after-ms: 20"),
        answer(500, b'{"code":"storage","message":"no"}'),
        b"",
        answer(503, b'{"code":"unavailable","message":"no"}'),
    ]
    port = settings.streams.port
    for count in (3, 2500):
        with Proxy(port, answers=[fault for fault in faults for _ in range(2)]) as way:
            there = Settings.of(BASIN, way.url, environ={}, retries=Retries(attempts=20))
            writer = Writer(there, tmp_path / str(count))
            writer.commit({f"{stream}/{count}": bodies(count)})
            assert way.unsaid < 8
        assert bodies_of(client, f"{stream}/{count}") == bodies(count)


@pytest.mark.parametrize(
    ("before", "behind"),
    [(Marking(), Marking(b"other")), (Marking(b"m", is_record=True), Marking(b"x" * 64))],
)
def test_a_batch_is_ended_with_the_markers_that_it_was_begun_with(
    settings, tmp_path, client, stream, before, behind
):
    """As where a query is killed, and started again with other options."""
    writer = Writer(settings, tmp_path)
    writer.marking = before
    writer.agree_only(client, {stream: bodies(1500)})
    mark = (before.name, b"q1 0 999 1500" if before.is_record else b"q1 0 1000 1500")
    records = [Record(body) for body in bodies(999 if before.is_record else 1000)]
    if before.is_record:
        records.append(Record(b"", (mark,)))
    else:
        records[-1] = records[-1]._replace(headers=(mark,))
    client.append(stream, records, match_seq_num=0)
    writer.marking = behind
    writer.commit({stream: bodies(1)}, run="second")
    writer.commit({stream: bodies(1)}, 1, run="second")
    found = [record for record in records_of(client, stream) if record.body]
    assert [record.body for record in found] == bodies(1500) + bodies(1)
    assert [name for name, _ in found[-1].headers] == [behind.name]


class Attempt(NamedTuple):
    """What a task knows of itself."""

    partition: int
    attempt: int

    def partitionId(self) -> int:  # noqa: N802  Spark's own
        return self.partition

    def taskAttemptId(self) -> int:  # noqa: N802  Spark's own
        return self.attempt


def test_of_two_attempts_at_a_task_the_one_that_spark_takes_is_written(
    settings, tmp_path, client, stream
):
    given = {"endpoint": settings.streams.url, "basin": BASIN, "stagingLocation": str(tmp_path)}
    options = parse_sink_options(given, is_streaming=False, environ={})
    shape = check_columns(StructType().add("stream", "string").add("body", "binary"), "")

    def attempt(partition: int, number: int) -> Staged:
        rows = rows_of({stream: [b"%d %099d" % (partition, row) for row in range(1200)]})
        context: Any = Attempt(partition, number)
        return write_partition(options, shape, Writing("w", "r", 0), context, iter([rows]))

    taken = [attempt(1, 0), attempt(0, 1)]
    slow = attempt(0, 2)
    with Staging(str(tmp_path)) as staging:
        assert len(staging.keys("")) == 3, "each has staged its own"
        deliver_staged(options, staging, sorted(taken, key=lambda found: found.partition))
        assert staging.keys("") == ["w/000000000000/done", "w/000000000000/manifest"]
        deliver_staged(options, staging, [slow])
    wanted = [b"%d %099d" % (partition, row) for partition in range(2) for row in range(1200)]
    assert bodies_of(client, stream) == wanted
