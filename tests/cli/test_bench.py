"""`bourn bench` against a real server: what it measures, what it notices, what it leaves behind."""

import json
import signal
import subprocess
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.cli.process import BOURN, SECS_MAX, Serving, bourn, environment

BASIN = "bench-basin"
QUICK = ("-d", "300ms", "-w", "0s")
FULL_SPEED = ("-t", "100000")


@pytest.fixture(scope="module")
def served():
    with Serving("--memory") as server:
        assert bourn("basin", "create", BASIN, "--endpoint", server.url).code == 0
        yield server


def bench(served, *words, variables=None):
    ended = bourn("bench", BASIN, "--endpoint", served.url, *words, variables=variables)
    assert streams(served) == [], "the stream must go"
    return ended


def asked(served, path):
    wanted = Request(f"{served.url}/v1/{path}", headers={"s2-basin": BASIN})
    with urlopen(wanted, timeout=SECS_MAX) as answer:
        return json.load(answer)


def streams(served):
    listed = asked(served, "streams")["streams"]
    return [found["name"] for found in listed if not found["deleted_at"]]


def started(served, *words):
    """A command under way, as soon as its stream has records."""
    child = subprocess.Popen(
        [*BOURN, "bench", BASIN, "--endpoint", served.url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    while not (found := streams(served)):
        assert child.poll() is None
    stream = f"s2://{BASIN}/{found[0]}"
    path = f"streams/{quote(found[0], safe='')}/records/tail"
    while not asked(served, path)["tail"]["seq_num"]:
        assert child.poll() is None
    return child, stream


def test_the_result_is_a_table_of_three_phases(served):
    ended = bench(served, *QUICK)
    assert ended.code == 0, ended.err
    heading, *rows = ended.lines
    assert heading.split()[:4] == ["PHASE", "MIB/S", "RECORDS/S", "RECORDS"]
    assert [row.split()[0] for row in rows] == ["write", "read", "catch-up"]
    assert "every record was read as it was appended" in ended.err


@pytest.mark.parametrize(
    ("http", "compression", "size"),
    [
        ("2", "none", "128"),
        ("1.1", "zstd", "128"),
        ("2", "zstd", "8KiB"),
        ("1.1", "gzip", "8KiB"),
        ("2", "gzip", "1048575"),
        ("1.1", "none", "1048575"),
    ],
)
def test_every_record_is_acked_followed_and_read_again(served, http, compression, size):
    words = (*QUICK, *FULL_SPEED, "-b", size, "--http", http, "--compression", compression)
    ended = bench(served, *words, "--json")
    assert ended.code == 0, ended.err
    [line] = ended.lines
    found = json.loads(line)
    assert found["verified"] is True
    records = found["write"]["records"]
    assert records > 0
    for phase in ("write", "read", "catch_up"):
        assert found[phase]["records"] == records
        assert found[phase]["mib_per_s"] > 0
        assert found[phase]["client_cpu_seconds"] > 0
    for figures in (found["write"]["ack_ms"], found["read"]["end_to_end_ms"]):
        assert 0 <= figures["p50"] <= figures["p90"] <= figures["p99"] <= figures["max"]


def test_it_keeps_to_the_pace_that_is_asked_for(served):
    ended = bench(served, "-d", "1s", "-w", "0s", "-b", "16KiB", "-t", "2", "--json")
    found = json.loads(ended.out)["write"]
    assert 2 <= found["records"] <= found["seconds"] * 128 + 1


def test_the_stream_has_the_storage_class_that_is_asked_for(served):
    child, stream = started(served, "-d", "60s", "-c", "standard")
    name = stream.removeprefix(f"s2://{BASIN}/")
    config = asked(served, f"streams/{quote(name, safe='')}")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=SECS_MAX)
    assert config["storage_class"] == "standard"
    assert config["timestamping"] == {"mode": "client-require", "uncapped": True}


def test_an_interrupt_shows_the_figures_so_far_and_deletes_the_stream(served):
    child, _ = started(served, "-d", "60s")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=SECS_MAX)
    assert child.returncode == 130
    assert out.splitlines()[1].split()[0] == "write"
    assert "interrupted" in err
    assert "Traceback" not in err
    assert streams(served) == []


def test_records_of_somebody_else_are_noticed(served):
    child, stream = started(served, "-d", "60s")
    line = b'{"body": "not yours", "timestamp": 1}\n'
    ended = bourn("append", stream, "--format", "json", "--endpoint", served.url, stdin=line)
    assert ended.code == 0, ended.err
    _, err = child.communicate(timeout=SECS_MAX)
    assert child.returncode == 1
    assert "somebody else appends" in err or "is not what was appended" in err
    assert streams(served) == []


def test_a_stream_that_is_deleted_under_it_is_said_so(served):
    child, stream = started(served, "-d", "60s")
    assert bourn("stream", "delete", stream, "--endpoint", served.url).code == 0
    _, err = child.communicate(timeout=SECS_MAX)
    assert child.returncode in {1, 3}
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("bourn bench: ")


def test_a_server_that_stops_ends_it_with_one_line():
    with Serving("--memory") as server:
        assert bourn("basin", "create", BASIN, "--endpoint", server.url).code == 0
        child, _ = started(server, "-d", "60s")
        server.child.kill()
        _, err = child.communicate(timeout=SECS_MAX)
    assert child.returncode == 3
    assert "Traceback" not in err
    assert "is still there" in err


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("-b", "127"), "is no record's size", 2),
        (("-b", "1MiB"), "is no record's size", 2),
        (("-b", "many"), "is no size", 2),
        (("-t", "0"), "would write nothing", 2),
        (("-d", "soon"), "is no duration", 2),
        (("--http", "3"), "invalid choice", 2),
        (("--endpoint", "http://127.0.0.1:1"), "cannot reach", 3),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(words, said, code):
    ended = bourn("bench", BASIN, *words)
    assert ended.code == code
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_basin_that_does_not_exist_is_said_so(served):
    ended = bourn("bench", "no-such-basin", "--endpoint", served.url)
    assert ended.code == 1
    assert "bourn basin create" in ended.err
