"""Exports from the bucket: every visible record once, whole or not at all, in three formats."""

import base64
import random
from pathlib import Path

import pytest

from bourn.bucket.local import LocalBucket
from bourn.cli.main import main as bourn_main
from bourn.clock import ManualClock
from bourn.engine.node import Node
from bourn.errors import Damaged
from bourn.layout.history import segment
from bourn.layout.history.delta import HISTORY_PREFIX
from bourn.limits import MIB
from bourn.model.config import BasinConfig, Cipher
from bourn.model.keys import CustomerKey
from bourn.model.record import Record, fence_record, trim_record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline import export_plan
from bourn.pipeline.export import StreamsMissing
from bourn.pipeline.export_plan import Bounds, Wanted
from bourn.pipeline.export_target import Occupied
from bourn.pipeline.job import TaskFailed
from bourn.pipeline.load import Load
from bourn.pipeline.load_place import open_source
from bourn.pipeline.load_stream import CopyOptions
from bourn.pipeline.place import Place
from tests.engine.harness import crash, eventually
from tests.http.server import Server
from tests.pipeline import transfer_world
from tests.pipeline.harness import CLOCK, InProcessTier, objects_in, quiet
from tests.pipeline.transfer_world import (
    BASIN,
    HARD,
    KEPT,
    KEPT_SHAPE,
    InProcessExport,
    Row,
    connector,
    exported,
    kinds_in,
    rows_at,
    rows_in,
    rows_of,
    url_of,
    without_commands,
)
from tests.sparks import S3_BUCKET
from tests.support import batch, node_on, read_all, run

ALL = Wanted(BASIN)
KEY_TEXT = base64.b64encode(bytes(range(32))).decode()
KEY = CustomerKey(KEY_TEXT)


def place_at(path: Path) -> Place:
    return Place("file", str(path), "", "", "")


async def append(node: Node, stream: str, *records: Record) -> None:
    await node.append(BASIN, stream, batch(*records))


async def fill(bucket) -> dict[str, list[Row]]:
    """Leave streams in the table and in the log, some of them trimmed; returns what is visible."""
    async with node_on(bucket) as node:
        await node.create_basin(CreateBasin(BASIN, KEPT))
        for stream in ("hard", "logs/a", "logs/b", "empty", "gone"):
            await node.create_stream(BASIN, CreateStream(stream))
        for record in HARD[:5]:
            await append(node, "hard", record)
        for number in range(20):
            await append(node, "logs/a", *[Record(b"%d.%d" % (number, n)) for n in range(5)])
        await append(node, "gone", Record(b"never seen again"))
        await append(node, "logs/b", fence_record("token"), Record(b"b"), trim_record(1))
        await crash(node)
    await InProcessTier(bucket).run(quiet())
    async with node_on(bucket) as node:
        for record in HARD[5:]:
            await append(node, "hard", record)
        await append(node, "logs/a", Record(b"new"), trim_record(7))
        await node.delete_stream(BASIN, "gone")
        streams = ("hard", "logs/a", "logs/b", "empty")
        visible = {name: rows_of(await read_all(node, BASIN, name)) for name in streams}
        await crash(node)  # no snapshot: the trims are in the log alone
    return visible


def test_an_export_has_every_visible_record_once_in_every_format(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        place = place_at(tmp_path / "bucket")
        visible = await fill(bucket)
        assert [row[0] for row in visible["logs/b"]] == [1, 2]
        assert [row[0] for row in visible["logs/a"]] == list(range(7, 102))
        wanted = {name: rows for name, rows in visible.items() if rows}
        for of in ("parquet", "delta", "jsonl"):
            to = tmp_path / of
            report = await exported(bucket, place, place_at(to), of, ALL)
            assert rows_in(to, of) == wanted, of
            assert (report.streams, report.records) == (4, sum(map(len, wanted.values())))
            assert not (to / "_started.json").exists()
            assert (to / "_SUCCESS").exists() == (of != "delta")
        # By a part of the names, by number and by time; the log and the table alike.
        to = tmp_path / "some"
        await exported(bucket, place, place_at(to), "parquet", Wanted(BASIN, "logs/"), Bounds(2, 9))
        cut = {name: [row for row in rows if 2 <= row[0] < 9] for name, rows in visible.items()}
        del cut["hard"]
        assert rows_in(to, "parquet") == {name: rows for name, rows in cut.items() if rows}
        to = tmp_path / "late"
        late = Bounds(from_timestamp=1, to_timestamp=2**64 - 1)
        one = Wanted(BASIN, "hard", is_prefix=False)
        await exported(bucket, place, place_at(to), "jsonl", one, late)
        assert rows_in(to, "jsonl") == {
            "hard": [row for row in visible["hard"] if 1 <= row[1] < 2**64 - 1]
        }
        await bucket.close()

    run(main())


def test_what_has_expired_is_left_out_and_a_stream_that_was_made_anew_is_another(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        past = ManualClock(CLOCK.now_ms() - 30 * 86_400_000)
        async with node_on(bucket, clock=past) as node:
            await node.create_basin(CreateBasin(BASIN))  # seven days
            for stream in ("twice", "old"):
                await node.create_stream(BASIN, CreateStream(stream))
                await append(node, stream, Record(b"long ago", (), 1))
            await crash(node)
        await InProcessTier(bucket).run(quiet())
        async with node_on(bucket) as node:
            await append(node, "old", Record(b"of late", (), 2))
            await node.delete_stream(BASIN, "twice")
            await eventually(lambda: node.term.find(BASIN, "twice") is None)
            await node.create_stream(BASIN, CreateStream("twice"))
            await append(node, "twice", Record(b"second life", (), 5))
            await crash(node)
        to = tmp_path / "out"
        await exported(bucket, place_at(tmp_path / "bucket"), place_at(to), "delta", ALL)
        assert rows_in(to, "delta") == {
            "old": [(1, 2, (), b"of late")],
            "twice": [(0, 5, (), b"second life")],
        }
        await bucket.close()

    run(main())


def test_nothing_is_overwritten_and_a_failed_export_leaves_nothing(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        place = place_at(tmp_path / "bucket")
        await fill(bucket)
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "mine").write_text("precious")
        with pytest.raises(Occupied):
            await exported(bucket, place, place_at(tmp_path / "there"), "jsonl", ALL)
        assert [file.name for file in (tmp_path / "there").iterdir()] == ["mine"]
        await exported(bucket, place, place_at(tmp_path / "twice"), "jsonl", ALL)
        with pytest.raises(Occupied):
            await exported(bucket, place, place_at(tmp_path / "twice"), "jsonl", ALL)
        nobody = Wanted(BASIN, "nobody", is_prefix=False)
        with pytest.raises(StreamsMissing, match="s2://moved-basin/nobody"):
            await exported(bucket, place, place_at(tmp_path / "none"), "jsonl", nobody)
        # A byte of a segment is flipped: the part fails, and all of it goes.
        (key,) = [k for k in await objects_in(bucket, HISTORY_PREFIX) if k.endswith(".parquet")]
        data = bytearray(await bucket.get(key))
        data[100] ^= 1
        await bucket.put(key, bytes(data))
        with pytest.raises((TaskFailed, Damaged), match="checksum"):
            await exported(bucket, place, place_at(tmp_path / "broken"), "parquet", ALL)
        assert not (tmp_path / "broken").exists()
        assert not (tmp_path / "none").exists()
        await bucket.close()

    run(main())


def test_an_empty_stream_becomes_an_empty_export(tmp_path):
    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        await fill(bucket)
        empty = Wanted(BASIN, "empty", is_prefix=False)
        for of in ("parquet", "delta", "jsonl"):
            to = tmp_path / of
            report = await exported(bucket, place_at(tmp_path / "bucket"), place_at(to), of, empty)
            assert (report.records, rows_in(to, of)) == (0, {})
        await bucket.close()

    run(main())


def test_encrypted_records_are_exported_as_they_are_and_by_an_endpoint_in_the_clear(
    tmp_path, monkeypatch, capsys
):
    secret = b"PLAINTEXT"
    path = tmp_path / "bucket"
    with Server(bucket=LocalBucket(path)) as server:

        async def fill_sealed():
            config = BasinConfig(
                default_stream_config=KEPT.default_stream_config, stream_cipher=Cipher.AEGIS_256
            )
            await server.node.create_basin(CreateBasin(BASIN, config))
            await server.node.create_stream(BASIN, CreateStream("sealed"))
            sealer = await server.node.sealer(BASIN, "sealed", KEY)
            assert sealer is not None
            sealed = sealer.seal(batch(Record(secret, ((b"h", secret),), 3)))
            await server.node.append(BASIN, "sealed", sealed)

        server.run(fill_sealed())
        monkeypatch.setenv("S2_ENCRYPTION_KEY", KEY_TEXT)
        address = f"s2://{BASIN}/sealed"
        words = ["pipeline", "export", address, "--to", str(tmp_path / "clear")]
        assert bourn_main([*words, "--endpoint", url_of(server)]) == 0
        assert rows_in(tmp_path / "clear", "parquet") == {
            "sealed": [(0, 3, ((b"h", secret),), secret)]
        }
    raw = tmp_path / "raw"

    async def main():
        bucket = LocalBucket(path)
        await exported(bucket, place_at(path), place_at(raw), "parquet", ALL)
        await bucket.close()

    run(main())
    assert kinds_in(raw) == ["encrypted"]
    assert secret not in rows_in(raw, "parquet")["sealed"][0][3]
    with Server() as other:
        words = ["pipeline", "import", str(raw), "--to", f"s2://{BASIN}/x"]
        assert bourn_main([*words, "--endpoint", url_of(other)]) == 1
    assert "encrypted" in capsys.readouterr().err


def test_an_endpoint_exports_what_its_readers_get(tmp_path, capsys):
    with Server() as server:
        with connector(server)() as client:
            client.create_basin(BASIN, KEPT_SHAPE)
            for stream in ("hard", "logs/a", "logs/b", "empty"):
                client.create_stream(stream)
            for record in HARD:
                client.append("hard", [record])
            client.append("logs/a", [Record(b"%d" % n, (), n) for n in range(100)])
            client.append("logs/b", [fence_record("t"), Record(b"b", (), 1), trim_record(1)])
        visible = {name: rows_at(server, name) for name in ("hard", "logs/a", "logs/b")}

        def export(to: str, *more: str, of: str = "parquet") -> dict[str, list[Row]]:
            words = ["pipeline", "export", *more, "--to", str(tmp_path / to), "--format", of]
            assert bourn_main([*words, "--endpoint", url_of(server)]) == 0
            return rows_in(tmp_path / to, of)

        for of in ("parquet", "delta", "jsonl"):
            assert export(of, f"s2://{BASIN}", of=of) == visible
        assert "exported 110 records of 4 streams" in capsys.readouterr().out
        kinds = kinds_in(tmp_path / "parquet")
        assert (kinds.count("envelope"), kinds.count("command")) == (109, 1)
        ranges = ("--from-seq-num", "1", "--to-seq-num", "50", "--from-timestamp", "7")
        some = export("some", f"s2://{BASIN}/logs/*", *ranges, "--to-timestamp", "9")
        assert some == {"logs/a": visible["logs/a"][7:9]}
        assert export("late", f"s2://{BASIN}/logs/a", "--from-timestamp", "98") == {
            "logs/a": visible["logs/a"][98:]
        }
        for to, bound in (("n", "--from-seq-num"), ("t", "--from-timestamp")):
            assert export(to, f"s2://{BASIN}/logs/a", bound, str(2**64 - 1)) == {}
        assert export("nothing", f"s2://{BASIN}/empty") == {}
        words = ["pipeline", "export", f"s2://{BASIN}/nobody", "--to", str(tmp_path / "no")]
        assert bourn_main([*words, "--endpoint", url_of(server)]) == 1
        assert "there is no stream s2://moved-basin/nobody" in capsys.readouterr().err
        assert not (tmp_path / "no").exists()


class Disturbed(InProcessExport):
    """Its first tasks find that the segments have gone; then they are back."""

    rounds = 0

    async def _parts(self, plan, progress):
        bucket = self._tools.bucket
        Disturbed.rounds += 1
        gone = {}
        if Disturbed.rounds == 1:
            keys = await objects_in(bucket, HISTORY_PREFIX)
            gone = {key: await bucket.get(key) for key in keys if key.endswith(".parquet")}
            for key in gone:
                await bucket.delete(key)
        outcomes = await super()._parts(plan, progress)
        assert any(outcome.is_gone for outcome in outcomes) == bool(gone)
        for key, data in gone.items():
            await bucket.put(key, data)
        return outcomes


def test_an_export_begins_again_where_a_merge_has_taken_its_files_away(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer_world, "InProcessExport", Disturbed)

    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        visible = await fill(bucket)
        to = tmp_path / "out"
        await exported(bucket, place_at(tmp_path / "bucket"), place_at(to), "parquet", ALL)
        assert Disturbed.rounds == 2
        assert rows_in(to, "parquet") == {name: rows for name, rows in visible.items() if rows}
        await bucket.close()

    run(main())


def test_an_export_begins_again_where_the_server_has_made_a_snapshot_meanwhile(
    tmp_path, monkeypatch
):
    looks: list[str] = []
    look = export_plan._newest_snapshot_key

    async def moving(bucket, retry):
        looks.append(await look(bucket, retry))
        return f"{looks[-1]}, and a newer one" if len(looks) == 2 else looks[-1]

    monkeypatch.setattr(export_plan, "_newest_snapshot_key", moving)

    async def main():
        bucket = LocalBucket(tmp_path / "bucket")
        visible = await fill(bucket)
        to = tmp_path / "out"
        await exported(bucket, place_at(tmp_path / "bucket"), place_at(to), "parquet", ALL)
        assert len(looks) == 4  # at the beginning and the end of each plan
        assert rows_in(to, "parquet") == {name: rows for name, rows in visible.items() if rows}
        await bucket.close()

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "of"), [("disk", "parquet"), ("s3", "delta")])
def test_an_export_by_spark_on_a_disk_and_on_s3(kind, of, spark, moto, tmp_path, monkeypatch):
    """The bucket and the target are both on S3, or both on disk."""
    monkeypatch.setattr(export_plan, "EXPORT_PART_BYTES_MIN", 1024)  # or one part would do
    # And none is less than a row group: the two records of 1 MiB are one each.
    monkeypatch.setattr(segment, "HISTORY_ROW_GROUP_BYTES_MAX", MIB)
    if kind == "disk":
        place, to = place_at(tmp_path / "bucket"), place_at(tmp_path / "out")
    else:
        run_name = f"export-{random.getrandbits(64):x}"
        place, to = (
            Place("s3", S3_BUCKET, f"{run_name}/{end}", moto.endpoint, "us-east-1")
            for end in ("in", "out")
        )

    async def main():
        bucket = place.open()
        visible = await fill(bucket)
        report = await exported(bucket, place, to, of, ALL, spark=spark)
        assert report.records == sum(map(len, visible.values()))
        assert report.parts > 4
        with pytest.raises(Occupied):
            await exported(bucket, place, to, of, ALL, spark=spark)
        await bucket.close()
        return visible

    visible = run(main())
    source = open_source(to, None)
    assert (source.format, source.streams()) == (of, {"hard", "logs/a", "logs/b"})
    with Server() as server:
        with connector(server)() as client:
            client.create_basin(BASIN, KEPT_SHAPE)
        Load(connector(server), CopyOptions(), CLOCK, lambda *_: None, to=None).run(source)
        for name, rows in visible.items():
            if rows:
                assert rows_at(server, name) == without_commands(rows)
