"""Imports: what was exported comes back as it was, each record once, whatever is killed."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from bourn.bucket.local import LocalBucket
from bourn.cli.main import main as bourn_main
from bourn.client import Refused, SeqNumMismatch
from bourn.client.failures import ConnectionLost
from bourn.model.record import Record
from bourn.pipeline.export_plan import Wanted
from bourn.pipeline.load import Load
from bourn.pipeline.load_place import open_source
from bourn.pipeline.load_stream import (
    ROWS_SCHEMA,
    CopyOptions,
    StreamCopy,
    TransferRefused,
    batches_of,
)
from bourn.pipeline.place import Place
from tests.http.server import Server
from tests.pipeline.harness import CLOCK
from tests.pipeline.test_export import fill
from tests.pipeline.transfer_world import (
    BASIN,
    KEPT_SHAPE,
    connector,
    exported,
    rows_at,
    url_of,
    without_commands,
)
from tests.support import run

LONG_SECS = 120


def place_at(path: Path) -> Place:
    return Place("file", str(path), "", "", "")


@pytest.fixture
def server():
    with Server() as running:
        with connector(running)() as client:
            client.create_basin(BASIN, KEPT_SHAPE)
        yield running


def load(server: Server, path: Path, *, to: str | None = None, of: str | None = None, **options):
    work = Load(connector(server), CopyOptions(**options), CLOCK, lambda *_: None, to=to)
    return work.run(open_source(place_at(path), of))


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """One world, exported in every format; and what a reader saw of it."""
    root = tmp_path_factory.mktemp("exports")

    async def main():
        bucket = LocalBucket(root / "bucket")
        visible = await fill(bucket)
        for of in ("parquet", "delta", "jsonl"):
            place = place_at(root / "bucket")
            await exported(bucket, place, place_at(root / of), of, Wanted(BASIN))
        await bucket.close()
        return visible

    return root, run(main())


@pytest.mark.parametrize("of", ["parquet", "delta", "jsonl"])
def test_what_is_exported_and_imported_is_read_back_byte_for_byte(exports, server, of):
    root, visible = exports
    report = load(server, root / of)
    wanted = {name: without_commands(rows) for name, rows in visible.items() if rows}
    assert {name: rows_at(server, name) for name in wanted} == wanted
    assert report.records == sum(map(len, wanted.values()))
    assert report.commands == sum(map(len, visible.values())) - report.records == 2
    again = load(server, root / of)
    assert (again.records, again.skipped) == (0, report.records)
    assert {name: rows_at(server, name) for name in wanted} == wanted


def test_a_stream_with_other_records_is_refused_unless_told_where_to_begin(exports, server):
    root, _ = exports
    (root / "one.jsonl").write_bytes(b'{"body":"a","timestamp":1}\n{"body":"b","timestamp":2}\n')
    with connector(server)() as client:
        client.create_stream("full")
        client.append("full", [Record(b"mine", (), 1)])
    with pytest.raises(TransferRefused, match="holds other records"):
        load(server, root / "one.jsonl", to="full")
    assert load(server, root / "one.jsonl", to="full", base=1).records == 2
    assert load(server, root / "one.jsonl", to="full", base=1).skipped == 2
    assert [row[3] for row in rows_at(server, "full")] == [b"mine", b"a", b"b"]
    with connector(server)() as client:
        client.append("full", [Record(b"theirs", (), 9)])
    with pytest.raises(TransferRefused, match="other records"):
        load(server, root / "one.jsonl", to="full", base=1)
    with pytest.raises(TransferRefused, match="ends at 4, before 9"):
        load(server, root / "one.jsonl", to="full", base=9)
    with pytest.raises(TransferRefused, match=r"records of 3 streams: write --to s2://basin"):
        load(server, root / "parquet", to="full")
    with pytest.raises(TransferRefused, match="does not name its streams"):
        load(server, root / "one.jsonl")
    assert len(rows_at(server, "full")) == 4


def test_files_of_others_are_taken_with_what_columns_they_have(tmp_path, server):
    names = pa.array(["x", "y", "x"])
    table = pa.table(
        {
            "stream": names,
            "body": ["one", "two", "three"],
            "headers": [[{"name": "n", "value": "v"}], [], None],
            "timestamp": pa.array([5, 7, 6], pa.timestamp("s", "UTC")),
            "whatever": [1, 2, 3],
        }
    )
    pq.write_table(table, tmp_path / "foreign.parquet")
    assert load(server, tmp_path / "foreign.parquet").records == 3
    assert rows_at(server, "x") == [(0, 5000, ((b"n", b"v"),), b"one"), (1, 6000, (), b"three")]
    assert rows_at(server, "y") == [(0, 7000, (), b"two")]
    write_deltalake(tmp_path / "table", pa.table({"body": [b"\xff", None]}))
    assert load(server, tmp_path / "table", to="bare").records == 2
    assert [row[3] for row in rows_at(server, "bare")] == [b"\xff", b""]
    largest = pa.array([2**64 - 1], pa.uint64())
    pq.write_table(pa.table({"body": [b""], "timestamp": largest}), tmp_path / "u64.parquet")
    load(server, tmp_path / "u64.parquet", to="u64")
    assert rows_at(server, "u64") == [(0, 2**64 - 1, (), b"")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'{"headers":[]}', "line 1: a line is a JSON object with `body`"),
        (b'{"body":"x"}\n\n{"body":1}', "line 3: bodies, names and values are text"),
        (b'{"body":"x","timestamp":-1}', "`timestamp` is a whole number"),
        (b'{"body":"x","timestamp":1.5}', "`timestamp` is a whole number"),
        (b'{"body":"x","timestamp":18446744073709551616}', "`timestamp` is a whole number"),
        (b'{"body":"?","base64":true}', "no base64"),
        (b'{"body":"x","headers":[["a"]]}', "`headers`|expected 2"),
        (b'{"body":"x","colour":1}', "no 'colour'"),
        (b'{"body":"x","kind":"encrypted"}', "encrypted"),
        (b'{"body":"x"', "line 1"),
        (b'{"body":"x","headers":[["","b"],["c","d"]]}', "empty name"),
        (b'{"body":"x","timestamp":5}\n{"body":"x","timestamp":4}', "timestamps go back"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_part_is_appended(tmp_path, server, text, fault):
    (tmp_path / "bad.jsonl").write_bytes(text)
    with pytest.raises((TransferRefused, Refused), match=fault):
        load(server, tmp_path / "bad.jsonl", to="bad")
    with connector(server)() as client:
        names = [info.name for info in client.list_streams()]
        assert "bad" not in names or client.check_tail("bad").seq_num == 0


def test_a_place_that_is_no_source_is_refused(tmp_path, server):
    for name, fault in (("nowhere", "is not there"), ("empty", "does not tell what it is")):
        if name == "empty":
            (tmp_path / name).mkdir()
        with pytest.raises(TransferRefused, match=fault):
            load(server, tmp_path / name, to="x")
    (tmp_path / "empty" / "_started.json").write_text("{}")
    with pytest.raises(TransferRefused, match="has not come to its end"):
        load(server, tmp_path / "empty", to="x")
    (tmp_path / "no.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TransferRefused, match="cannot be read as Parquet"):
        load(server, tmp_path / "no.parquet", to="x")
    pq.write_table(pa.table({"body": [1]}), tmp_path / "ints.parquet")
    with pytest.raises(TransferRefused, match="column `body` is int64"):
        load(server, tmp_path / "ints.parquet", to="x")


def test_timestamps_that_the_server_would_change_are_refused(tmp_path, server):
    future = CLOCK.now_ms() + 10**9
    line = orjson.dumps({"body": "x", "timestamp": future})
    (tmp_path / "late.jsonl").write_bytes(line)
    with connector(server)() as client:
        client.create_stream("arrival", {"timestamping": {"mode": "arrival"}})
        client.create_stream("capped", {"timestamping": {"uncapped": False}})
    with pytest.raises(TransferRefused, match="time of its arrival"):
        load(server, tmp_path / "late.jsonl", to="arrival")
    with pytest.raises(TransferRefused, match="ahead of the clock"):
        load(server, tmp_path / "late.jsonl", to="capped")
    for stream in ("arrival", "capped"):
        load(server, tmp_path / "late.jsonl", to=stream, new_timestamps=True)
        assert load(server, tmp_path / "late.jsonl", to=stream, new_timestamps=True).skipped == 1
        ((_, stamp, _, body),) = rows_at(server, stream)
        assert (stamp < future, body) == (True, b"x")


class Flaky(StreamCopy):
    """Loses the connection every now and then, before or after a batch took effect."""

    rng = random.Random(7)
    losses = 0

    def _submit(self, first, rows):
        if Flaky.losses < 25 and self.rng.random() < 0.2:
            Flaky.losses += 1
            if self.rng.random() < 0.5:
                super()._submit(first, rows)
                if self._session is not None and self.rng.random() < 0.5:
                    self._session.drain()  # acked, and nobody has heard of it
            raise ConnectionLost("cut on purpose")
        super()._submit(first, rows)


def test_lost_connections_neither_lose_nor_repeat_a_record(server):
    bodies = [b"%d" % n for n in range(400)]
    table = pa.table({"timestamp": list(range(400)), "headers": [[]] * 400, "body": bodies})
    copy = Flaky("flaky", CopyOptions(), CLOCK, lambda *_: None)
    client = connector(server)()
    copy.open(client)
    for at in range(0, 400, 10):
        for batch in batches_of(table.slice(at, 10).cast(ROWS_SCHEMA)):
            copy.push(batch)
        if at % 30 == 0:
            copy.flush()
    copy.finish()
    copy.close()
    client.close()
    assert Flaky.losses > 10
    assert [row[3] for row in rows_at(server, "flaky")] == bodies
    assert (copy.appended, copy.skipped) == (400, 0)


def test_somebody_else_who_appends_is_noticed(server):
    rows = pa.table({"timestamp": [1, 2], "headers": [[], []], "body": [b"a", b"b"]})
    (batch,) = batches_of(rows.cast(ROWS_SCHEMA))
    copy = StreamCopy("shared", CopyOptions(), CLOCK, lambda *_: None)
    own = connector(server)()
    copy.open(own)
    copy.push(batch.slice(0, 1))
    copy.flush()
    with connector(server)() as client:
        client.append("shared", [Record(b"theirs", (), 1)])
    with pytest.raises(TransferRefused, match="holds other records"):  # noqa: PT012
        copy.push(batch.slice(1))  # which may hear of it already
        copy.flush()
    copy.close()
    own.close()
    assert [row[3] for row in rows_at(server, "shared")] == [b"a", b"theirs"]
    with connector(server)() as client, pytest.raises(SeqNumMismatch):
        client.append("shared", [Record(b"x")], match_seq_num=1)


def test_an_import_that_is_killed_anywhere_goes_on_where_it_stopped(tmp_path, server):
    lines = [
        orjson.dumps({"stream": f"s{n % 3}", "body": f"{n} " + "x" * 2000, "timestamp": n})
        for n in range(24_000)
    ]
    for part in range(4):
        file = tmp_path / f"part-{part}.jsonl"
        file.write_bytes(b"\n".join(lines[part * 6000 : (part + 1) * 6000]))
    words = ["pipeline", "import", str(tmp_path), "--to", f"s2://{BASIN}"]
    words += ["--endpoint", url_of(server)]

    def written() -> int:
        with connector(server)() as client:
            return sum(client.check_tail(info.name).seq_num for info in client.list_streams())

    child = subprocess.Popen(
        [sys.executable, "-m", "bourn.cli.main", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = CLOCK.monotonic() + LONG_SECS
    while written() < 1000 and child.poll() is None:
        assert CLOCK.monotonic() < deadline
        threading.Event().wait(0.002)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(LONG_SECS) == -signal.SIGKILL
    assert bourn_main(words) == 0
    for n in range(3):
        bodies = [row[3].split()[0] for row in rows_at(server, f"s{n}")]
        assert bodies == [b"%d" % number for number in range(n, 24_000, 3)]
