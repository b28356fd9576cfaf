"""Each client command end to end, against a server in a process of its own.

Where the command's own process matters (signals, pipes, a follower) it has one as well.
"""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from itertools import count

import pytest

from bourn.cli.main import main
from tests.cli.process import (
    BOURN,
    POLL_SECS,
    SECS_MAX,
    Ended,
    Serving,
    bourn,
    environment,
    environment_names,
)

NUMBERS = count(1)


@pytest.fixture(scope="module")
def server():
    with Serving("--memory") as running:
        yield running


@pytest.fixture
def run(server, monkeypatch, capsysbinary):
    """Run a command against the server, as its export lines say; in this process, to be quick."""
    for name in environment_names():
        monkeypatch.delenv(name)
    monkeypatch.setenv("S2_ACCOUNT_ENDPOINT", server.url)
    monkeypatch.setenv("S2_BASIN_ENDPOINT", server.url)

    def run(*words, stdin=b"", code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        ended_with = main(words)
        captured = capsysbinary.readouterr()
        ended = Ended(ended_with, captured.out, captured.err.decode())
        assert ended.code == code, ended.err
        if code:
            assert ended.err.count("\n") == 1, "an error is one line"
            assert ended.err.startswith("bourn")
        return ended

    return run


@pytest.fixture(scope="module")
def basin(server):
    name = "client-basin"
    words = ("basin", "create", name, "--create-stream-on-append", "--endpoint", server.url)
    assert bourn(*words).code == 0
    return name


@pytest.fixture
def stream(basin):
    """A stream that the first append creates."""
    return f"s2://{basin}/stream-{next(NUMBERS)}"


def test_basins_are_created_listed_configured_and_deleted(run):
    options = ("--retention", "12h", "--create-stream-on-read", "--timestamping", "arrival")
    assert run("basin", "create", "life-of-a-basin", *options).lines == [
        "created basin life-of-a-basin"
    ]
    again = run("basin", "create", "life-of-a-basin", code=1)
    assert "already exists" in again.err
    header, row = run("basin", "list", "--prefix", "life-").lines
    assert header.split() == ["NAME", "CREATED", "STATE"]
    assert row.split()[::2] == ["life-of-a-basin", "active"]
    (listed,) = run("basin", "list", "--prefix", "life-", "--json").lines
    assert json.loads(listed)["name"] == "life-of-a-basin"
    shown = dict(line.split() for line in run("basin", "config", "life-of-a-basin").lines)
    assert shown["default_stream_config.retention_policy"] == "12h"
    assert shown["default_stream_config.timestamping.mode"] == "arrival"
    assert shown["create_stream_on_read"] == "true"
    assert shown["create_stream_on_append"] == "false"
    changes = ("--retention", "default", "--no-create-stream-on-read", "--uncapped")
    config = json.loads(run("basin", "config", "life-of-a-basin", *changes, "--json").out)
    assert config["default_stream_config"]["retention_policy"] is None
    assert config["default_stream_config"]["timestamping"] == {"mode": "arrival", "uncapped": True}
    assert config["create_stream_on_read"] is False
    assert run("basin", "delete", "s2://life-of-a-basin").lines == [
        "deleting basin life-of-a-basin and all its streams"
    ]


def test_streams_are_created_listed_configured_and_deleted(run, basin):
    address = f"s2://{basin}/life/of a stream/ü"
    options = ("--retention", "infinite", "--delete-on-empty", "1h", "--storage-class", "standard")
    assert run("stream", "create", address, *options).lines == [f"created stream {address}"]
    config = json.loads(run("stream", "config", address, "--json").out)
    assert config["retention_policy"] == {"infinite": {}}
    assert config["delete_on_empty"] == {"min_age_secs": 3600}
    assert config["storage_class"] == "standard"
    changed = run("stream", "config", address, "--retention", "90s", "--delete-on-empty", "0s")
    shown = dict(line.split() for line in changed.lines)
    assert shown["retention_policy"] == "90s"
    assert shown["delete_on_empty"] == "off"
    for words in ((f"s2://{basin}/life/",), (basin, "--prefix", "life/"), (basin, "--limit", "1")):
        (listed,) = run("stream", "list", *words, "--json").lines
        assert json.loads(listed)["name"] == "life/of a stream/ü"
    deleted = json.loads(run("stream", "delete", address, "--json").out)
    assert deleted == {"deleted": address}


def test_a_listing_goes_through_all_pages(run, server):
    run("basin", "create", "many-streams", "--create-stream-on-append")
    # Through the API at once: a thousand and one commands would take their time.
    connection = socket.create_connection(("127.0.0.1", server.port), SECS_MAX)
    with connection, connection.makefile("rb") as answers:
        for number in range(1001):
            head = f"PUT /v1/streams/s{number:04d} HTTP/1.1\r\nhost: x\r\ns2-basin: many-streams"
            connection.sendall(f"{head}\r\ncontent-length: 0\r\n\r\n".encode())
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            answers.read(length)
    lines = run("stream", "list", "many-streams", "--json").lines
    assert [json.loads(line)["name"] for line in lines] == [f"s{n:04d}" for n in range(1001)]
    assert len(run("stream", "list", "many-streams", "--limit", "1001").lines) == 1 + 1001


def test_lines_come_out_as_they_went_in_whatever_bytes_they_hold(run, stream):
    text = b"first\n\nwith \xff\xfe bytes\r\n" + "ünï\t".encode() + b"\nwithout end"
    ended = run("append", stream, stdin=text)
    assert ended.out == b""
    assert ended.err.endswith(f"appended 5 records to {stream}, 0 to 4\n")
    assert run("read", stream).out == text + b"\n"


def test_a_flood_of_lines_goes_in_many_batches_and_keeps_its_order(run, stream, tmp_path):
    path = tmp_path / "lines"
    lines = [f"{number} {'x' * (number % 900)}" for number in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    acks = [json.loads(line) for line in run("append", stream, "--file", str(path), "--json").lines]
    assert len(acks) >= 5
    assert acks[-1]["end"]["seq_num"] == 5000
    assert run("read", stream).lines == lines
    assert run("read", stream, "--seq-num", "10", "--count", "3").lines == lines[10:13]
    assert run("tail", stream, "-n", "2").lines == lines[-2:]
    assert run("tail", stream).lines == lines[-10:]
    assert run("read", stream, "--tail-offset", "1").lines == lines[-1:]
    assert run("read", stream, "--ago", "1h", "--count", "1").lines == lines[:1]


def test_a_line_goes_at_once_while_the_input_stays_open(run, server, stream):
    words = [*BOURN, "append", stream, "--json", "--endpoint", server.url]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(),
    )  # fmt: skip
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number in range(2):
            child.stdin.write(b"line\n")
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["start"]["seq_num"] == number
    assert child.returncode == 0


def test_records_with_headers_and_timestamps_can_be_copied_from_stream_to_stream(run, stream):
    records: list[dict[str, object]] = [
        {"timestamp": 1000, "headers": [["name", "value"], ["name", "again"]], "body": "text"},
        {"timestamp": 2000, "headers": [["ü", ""]]},
        {"timestamp": 3000},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    run("append", stream, "--format", "json", stdin=text)
    found = [json.loads(line) for line in run("read", stream, "--json").lines]
    assert found == [{"seq_num": n, **record} for n, record in enumerate(records)]
    run("append", f"{stream}-raw", stdin=b"\xff\x00\n")
    for source in (stream, f"{stream}-raw"):
        dumped = run("read", source, "--format", "json-base64").out
        run("append", f"{source}-copy", "--format", "json-base64", stdin=dumped)
        assert run("read", f"{source}-copy", "--format", "json-base64").out == dumped
    assert run("read", stream, "--json", "--timestamp", "2000", "--until", "3000").lines == [
        json.dumps(found[1], separators=(",", ":"), ensure_ascii=False)
    ]


@pytest.mark.parametrize(
    ("fmt", "text", "line"),
    [
        ("text", b"ok\n" + b"x" * 1_048_569, "line 2: is too large: a record holds at most"),
        ("text", b"x" * (5 << 20), "a line is longer than any record: split it"),
        ("json", b"{}\n{", "line 2: is no JSON: write one object a line"),
        ("json", b"[]", "line 1: is no record: write"),
        ("json", b'{"boddy":"x"}', "line 1: is no record: write"),
        ("json", b'{"body":1}', "line 1: is no record: bodies, names and values are text"),
        ("json", b'{"headers":[["a"]]}', "line 1: is no record: bodies, names and values"),
        ("json", b'{"timestamp":-1}', "line 1: is no record: a timestamp is a number"),
        ("json-base64", b'{"body":"?"}', "line 1: is no record: bodies, names and values"),
    ],
)
def test_input_that_holds_no_record_is_refused_with_its_line(run, stream, fmt, text, line):
    ended = run("append", stream, "--format", fmt, stdin=text, code=2)
    assert ended.err.startswith(f"bourn append: {line}")


def test_the_largest_record_goes_through(run, stream):
    run("append", stream, stdin=b"x" * 1_048_568)
    assert len(run("read", stream).out) == 1_048_569


def test_conditions_guard_an_append_and_say_what_holds(run, stream):
    run("append", stream, "--match-seq-num", "0", stdin=b"a\nb\n")
    late = run("append", stream, "--match-seq-num", "0", stdin=b"c\n", code=1)
    assert late.err.startswith("bourn append: the next sequence number is 2: look what was")
    assert run("fence", stream, "mine").lines == [f"{stream} is fenced by 'mine'"]
    other = run("append", stream, "--fencing-token", "yours", stdin=b"c\n", code=1)
    assert "the stream's fencing token is 'mine'" in other.err
    run("append", stream, "--fencing-token", "mine", stdin=b"c\n")
    ack = json.loads(run("fence", stream, "", "--fencing-token", "mine", "--json").out)
    assert ack["start"]["seq_num"] == 4
    run("append", stream, "--fencing-token", "", stdin=b"d\n")
    read = run("read", stream)
    assert read.lines == ["a", "b", "c", "d"]
    assert read.err.splitlines() == ["2: fence 'mine'", "4: fence ''"]
    run("fence", stream, "x" * 37, code=2)


def test_a_trim_removes_what_is_before(run, stream):
    run("append", stream, stdin=b"a\nb\nc\n")
    assert run("trim", stream, "2").lines == [f"records of {stream} before 2 are trimmed"]
    read = run("read", stream)
    assert read.lines == ["c"]
    assert read.err == "3: trim 2\n"


def test_an_empty_input_appends_nothing(run, stream):
    assert run("append", stream).err == "nothing to append: the input is empty\n"


def test_reading_at_the_tail_is_empty_and_behind_it_is_refused(run, stream):
    run("append", stream, stdin=b"a\n")
    assert run("read", stream, "--seq-num", "1").out == b""
    assert run("read", stream, "--seq-num", "1", "--count", "5").out == b""
    ended = run("read", stream, "--seq-num", "2", "--count", "5", code=1)
    assert "nothing is written there yet: the stream ends before 1" in ended.err


def answering(listener, *answers):
    """Answer one connection's requests with these, then break it off."""
    peer, _ = listener.accept()
    with peer:
        for answer in (*answers, b""):
            peer.recv(1 << 20)
            peer.sendall(answer)


def test_an_append_that_fails_says_how_far_it_came_and_what_is_in_doubt(run):
    ack = b'{"start":{"seq_num":7},"end":{"seq_num":1007},"tail":{"seq_num":1007}}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(ack), ack)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = ("--endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}")
        words = ("append", "s2://my-basin/stream", *url)
        for answers, said in (
            ((answer,), "(1000 records up to 1006 are appended; whether the next ones are, "),
            ((), "(whether the next ones are, `bourn tail` shows)"),
        ):
            thread = threading.Thread(target=answering, args=(listener, *answers))
            thread.start()
            ended = run(*words, stdin=b"x\n" * 1500, code=3)
            thread.join()
            assert "broke the connection off" in ended.err
            assert said in ended.err
    assert "whether" not in run(*words, stdin=b"x\n", code=3).err, "nothing was sent"


class Following:
    """`bourn tail -f` in the background."""

    def __init__(self, *words):
        self.child = subprocess.Popen(
            [*BOURN, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment(), text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def line(self):
        assert self.child.stdout is not None
        return self.child.stdout.readline().rstrip("\n")

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.kill()
        self.child.communicate()


def test_a_follower_prints_the_last_lines_and_then_what_is_appended(run, server, stream):
    run("append", stream, stdin=b"a\nb\nc\n")
    with Following("tail", "-f", "-n", "2", stream, "--endpoint", server.url) as follower:
        assert [follower.line(), follower.line()] == ["b", "c"]
        run("append", stream, stdin=b"d\n")
        assert follower.line() == "d"
        follower.child.send_signal(signal.SIGINT)
        assert follower.child.wait(SECS_MAX) == 130
        assert follower.child.stderr is not None
        assert follower.child.stderr.read() == ""


def test_a_follower_goes_on_after_a_restart_of_the_server_without_gap_or_repeat(tmp_path, run):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = ("--bucket", str(tmp_path / "data"))
    url = ("--endpoint", f"http://127.0.0.1:{port}")
    full, empty = "s2://my-basin/full", "s2://my-basin/empty"
    with Serving(*flags, port=port) as first:
        run("basin", "create", "my-basin", *url)
        for stream in (full, empty):
            run("stream", "create", stream, *url)
        run("append", full, *url, stdin=b"a\nb\n")
        reader = Following("read", "-f", full, "--count", "3", *url)
        waiter = Following("tail", "-f", empty, *url)
        with reader, waiter:
            assert [reader.line(), reader.line()] == ["a", "b"]
            while open_sessions(first) < 2:
                with pytest.raises(subprocess.TimeoutExpired):
                    waiter.child.wait(POLL_SECS)
            first.send(signal.SIGKILL)
            first.child.wait(SECS_MAX)
            with Serving(*flags, port=port):
                for stream, text in ((full, b"c\nd\n"), (empty, b"x\n")):
                    run("append", stream, *url, stdin=text)
                assert reader.line() == "c"
                assert reader.line() == "", "the count goes on over the restart"
                assert reader.child.wait(SECS_MAX) == 0
                assert waiter.line() == "x"


def open_sessions(server):
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=SECS_MAX) as response:
        text = response.read().decode()
    found = re.search(r"^bourn_open_sessions (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_reader_that_has_enough_ends_the_command_quietly(run, server, stream):
    run("append", stream, stdin=b"".join(b"%d %s\n" % (n, b"x" * 500) for n in range(4000)))
    child = subprocess.Popen(
        [*BOURN, "read", stream, "--endpoint", server.url], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith(b"0 ")
    child.stdout.close()
    assert child.wait(SECS_MAX) == 141
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["basin", "config", "no-such-basin"], 1, "basin `no-such-basin` not found: make it with"),
        (["stream", "list", "no-such-basin"], 1, "basin `no-such-basin` not found: make it with"),
        (["read", "s2://client-basin/nix"], 1, "stream `nix` in basin `client-basin` not found"),
        (["basin", "create", "Short"], 2, "'Short' names no basin: basin name must be at least"),
        (["read", "s2://client-basin"], 2, "'s2://client-basin' names no stream: write s2://"),
        (["append", "s2://a/b"], 2, "'s2://a/b' names no stream: basin name must be at least"),
        (["stream", "list", "client-basin/a", "--prefix", "b"], 2, "give the prefix once"),
        (["basin", "create", "client-basin-2", "--retention", "soon"], 2, "--retention: 'soon' is"),
        (["basin", "create", "client-basin-2", "--retention", "0s"], 1, "age must be greater than"),
        (["tail", "s2://client-basin/x", "-n", "-1"], 2, "argument -n/--lines: '-1' is no"),
        (["read", "s2://client-basin/x", "--ago", "soon"], 2, "argument --ago: 'soon' is no"),
        (
            ["read", "s2://client-basin/x", "--seq-num", "1", "--ago", "1h"],
            2,
            "argument --ago: not",
        ),
        (["append", "s2://client-basin/x", "--file", "/none"], 2, "cannot read /none: No such"),
        (["basin", "list", "--endpoint", "localhost"], 2, "--endpoint: 'localhost' is no endpoint"),
        (["basin", "list", "--endpoint", "http://127.0.0.1:1"], 3, "cannot reach http://127.0.0.1"),
        (["basin"], 2, "the following arguments are required: COMMAND; `bourn basin --help`"),
        (["frobnicate"], 2, "argument COMMAND: invalid choice: 'frobnicate'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_an_error_is_one_line_that_says_what_to_do(run, basin, words, code, line):
    ended = run(*words, code=code)
    assert ended.err.partition(": ")[2].startswith(line), ended.err
    assert ended.out == b""


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n<hi>", "does not answer like an S2 API"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answers 404, not like an S2"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "does not speak plain HTTP: try https://"),
        (b"", "broke the connection off: try again"),
    ],
)
def test_a_server_of_another_kind_is_told_apart(run, answer, line):
    def serve():
        peer, _ = listener.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended = run("basin", "list", "--endpoint", url, code=3)
        thread.join()
    assert ended.err.startswith(f"bourn basin list: {url} {line}")
