"""Replays between two servers: in order, each record once, at a pace, from where they stopped."""

import base64
import os
import signal
import subprocess
import sys
import threading

import pytest

from bourn.cli.main import main as bourn_main
from bourn.cli.transfer import parse_streams
from bourn.cli.transfer_options import _speed
from bourn.client import ReadStart
from bourn.clock import ManualClock
from bourn.model.record import Record, fence_record, trim_record
from bourn.pipeline import replay as replay_module
from bourn.pipeline.export import StreamsMissing
from bourn.pipeline.export_plan import Wanted
from bourn.pipeline.load_stream import TransferRefused
from bourn.pipeline.replay import Replay
from bourn.wire.protobuf import encode_append_input
from tests.http.server import Server
from tests.pipeline.harness import CLOCK
from tests.pipeline.transfer_world import (
    BASIN,
    HARD,
    KEPT_SHAPE,
    connector,
    rows_at,
    url_of,
    without_commands,
)

LONG_SECS = 120
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def ends():
    """A server to read from and one to append to."""
    with Server() as source, Server() as target:
        for server in (source, target):
            with connector(server)() as client:
                client.create_basin(BASIN, KEPT_SHAPE)
        yield source, target


def put(server, stream, *records):
    with connector(server)() as client:
        client.ensure_stream(stream)
        for record in records:
            client.append(stream, [record])


def replay(source, target, wanted=None, to=None, **options):
    work = Replay(connector(source), connector(target), CLOCK, lambda *_: None, **options)
    return work.run(work.routes(wanted or Wanted(BASIN), to))


def test_all_streams_of_a_basin_arrive_byte_for_byte(ends):
    source, target = ends
    put(source, "hard", *HARD)
    put(source, "commanded", fence_record("t"), Record(b"a", (), 1), trim_record(1))
    put(source, "empty")
    put(source, "a/b c?\u20ac", Record(b"named", (), 7))
    report = replay(source, target)
    names = ["hard", "commanded", "empty", "a/b c?\u20ac"]
    assert {name: rows_at(target, name) for name in names} == {
        name: without_commands(rows_at(source, name)) for name in names
    }
    # The fence has been trimmed away, so the source does not show it.
    assert (report.streams, report.records, report.commands) == (4, len(HARD) + 2, 1)
    assert replay(source, target).records == 0


def test_one_stream_or_those_with_a_prefix_and_none(ends):
    source, target = ends
    for name in ("logs/a", "logs/b", "other"):
        put(source, name, Record(name.encode(), (), 1))
    one = Wanted(BASIN, "other", is_prefix=False)
    assert replay(source, target, one, "renamed").records == 1
    assert rows_at(target, "renamed") == [(0, 1, (), b"other")]
    assert replay(source, target, Wanted(BASIN, "logs/")).streams == 2
    with pytest.raises(StreamsMissing):
        replay(source, target, Wanted(BASIN, "nobody", is_prefix=False))
    with pytest.raises(TransferRefused, match="cannot go to one"):
        replay(source, target, Wanted(BASIN, "logs/"), "one")
    with connector(target)() as client:
        assert sorted(info.name for info in client.list_streams()) == [
            "logs/a",
            "logs/b",
            "renamed",
        ]


def test_a_replay_goes_on_where_the_last_one_stopped_whatever_the_source_has_lost(ends):
    source, target = ends
    put(source, "s", *[Record(b"%d" % n, (), n // 3) for n in range(9)])
    put(target, "s", *[Record(b"%d" % n, (), n // 3) for n in range(5)])  # killed within a time
    report = replay(source, target)
    assert (report.records, report.skipped) == (4, 5)
    trim = trim_record(9)._replace(timestamp=2)
    put(source, "s", trim, Record(b"9", (), 2), Record(b"10", (), 4))
    with pytest.raises(TransferRefused, match="has lost its records up to timestamp 2"):
        replay(source, target)
    put(source, "s", trim_record(11)._replace(timestamp=4))
    assert replay(source, target).records == 1
    assert [row[3] for row in rows_at(target, "s")] == [b"%d" % n for n in range(9)] + [b"10"]


def test_a_target_with_other_records_is_refused(ends):
    source, target = ends
    put(source, "s", Record(b"a", (), 1), Record(b"b", (), 2))
    put(target, "s", Record(b"x", (), 1))
    with pytest.raises(TransferRefused, match="holds other records"):
        replay(source, target)
    put(target, "late", Record(b"x", (), 99))
    put(source, "late", Record(b"a", (), 1))
    with pytest.raises(TransferRefused, match="other records"):
        replay(source, target, Wanted(BASIN, "late"))
    with connector(target)() as client:
        client.create_stream("arrival", {"timestamping": {"mode": "arrival"}})
    one = Wanted(BASIN, "s", is_prefix=False)
    with pytest.raises(TransferRefused, match="time of its arrival"):
        replay(source, target, one, "arrival")
    assert replay(source, target, one, "arrival", new_timestamps=True).records == 2
    put(source, "s", Record(b"c", (), 3))
    assert replay(source, target, one, "arrival", new_timestamps=True).records == 1
    assert [row[3] for row in rows_at(target, "arrival")] == [b"a", b"b", b"c"]


def test_with_a_speed_each_record_waits_for_its_time(ends, monkeypatch):
    source, target = ends
    stamps = [10_000, 10_000, 11_000, 14_000, 40_000]
    put(source, "s", *[Record(b"%d" % n, (), stamp) for n, stamp in enumerate(stamps)])
    clock = ManualClock()
    tails: list[tuple[float, int]] = []

    class Waiting:
        """Moves the clock instead of waiting, and looks what has arrived by then."""

        def wait(self, secs: float) -> None:
            with connector(target)() as client:
                tails.append((clock.monotonic(), client.check_tail("s").seq_num))
            clock._elapsed += secs

    class Threading:
        Event = Waiting

    monkeypatch.setattr(replay_module, "threading", Threading)
    work = Replay(connector(source), connector(target), clock, lambda *_: None, speed=10.0)
    assert work.run(work.routes(Wanted(BASIN), None)).records == 5
    assert [count for _, count in tails] == [2, 3, 4]
    assert [round(at, 1) for at, _ in tails] == [0.0, 0.1, 0.4]
    assert round(clock.monotonic(), 1) == 3.0
    assert [row[1] for row in rows_at(target, "s")] == stamps


def test_speeds_and_addresses_as_people_write_them():
    assert (_speed("max"), _speed("1x"), _speed("10"), _speed("0.5x")) == (None, 1.0, 10.0, 0.5)
    for text in ("0x", "-1", "fast", "nan", "inf"):
        with pytest.raises(Exception, match="is no speed"):
            _speed(text)
    assert parse_streams("s2://moved-basin") == Wanted(BASIN)
    assert parse_streams("moved-basin/") == Wanted(BASIN)
    assert parse_streams("s2://moved-basin/a/b") == Wanted(BASIN, "a/b", is_prefix=False)
    assert parse_streams("s2://moved-basin/a/*") == Wanted(BASIN, "a/")


def test_encrypted_streams_are_replayed_with_the_keys_of_both(ends, tmp_path, capsys):
    source, target = ends
    for server, cipher in ((source, "aegis-256"), (target, "aes-256-gcm")):
        with connector(server, "sealed-basin", KEY)() as client:
            client.create_basin("sealed-basin", {**KEPT_SHAPE, "stream_cipher": cipher})
    with connector(source, "sealed-basin", KEY)() as client:
        client.create_stream("s")
        client.append("s", [Record(b"secret", ((b"h", b"\xff"),), 4)])
    (tmp_path / "key").write_text(KEY)
    words = ["pipeline", "replay", "s2://sealed-basin/s", "--to", "s2://sealed-basin/t"]
    words += ["--from-endpoint", url_of(source), "--to-endpoint", url_of(target)]
    assert bourn_main(words) == 1
    assert "encryption key" in capsys.readouterr().err
    words += ["--from-encryption-key-file", str(tmp_path / "key")]
    words += ["--to-encryption-key-file", str(tmp_path / "key"), "--json"]
    assert bourn_main(words) == 0
    assert '"records":1' in capsys.readouterr().out
    with connector(target, "sealed-basin", KEY)() as client:
        (found,) = client.read("t", ReadStart(seq_num=0), 10)
    assert (found.body, found.headers, found.timestamp) == (b"secret", ((b"h", b"\xff"),), 4)


def test_a_replay_that_is_killed_is_made_again_without_a_gap_or_a_repetition(ends):
    source, target = ends
    with connector(source)() as client:
        client.create_stream("s")
        with client.append_session("s") as session:
            for n in range(40):
                body = b"x" * 20_000
                records = [Record(b"%d %s" % (n * 25 + k, body), (), n // 7) for k in range(25)]
                session.submit(encode_append_input(records, None, None))
    words = ["pipeline", "replay", f"s2://{BASIN}/s", "--to", f"s2://{BASIN}/s", "--from-endpoint"]
    words += [url_of(source), "--to-endpoint", url_of(target)]
    child = subprocess.Popen([sys.executable, "-m", "bourn.cli.main", *words])
    deadline = CLOCK.monotonic() + LONG_SECS
    with connector(target)() as client:
        client.ensure_stream("s")
        while client.check_tail("s").seq_num < 100 and child.poll() is None:
            assert CLOCK.monotonic() < deadline
            threading.Event().wait(0.001)
    if child.poll() is None:
        os.kill(child.pid, signal.SIGKILL)
    child.wait(LONG_SECS)
    assert bourn_main(words) == 0
    bodies = [row[3].split()[0] for row in rows_at(target, "s")]
    assert bodies == [b"%d" % n for n in range(1000)]
