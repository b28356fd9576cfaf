"""Every wrong setting stops the start with one line that says what to do, and exit code 2."""

import socket

import pytest

from bourn.cli.main import main
from bourn.cli.tls import make_self_signed
from bourn.clock import SystemClock
from tests.cli.process import bourn

WRONG = [
    (["--port", "99999"], "--port: port must be from 0 to 65535; 0 takes any free one"),
    (["--port", "http"], "--port: 'http' is no whole number: write digits alone"),
    (["--host", ""], "--host: is empty: give it a value, or leave it out"),
    (["--bucket", "ftp://x"], "bucket: unknown scheme ftp: write memory:, a path, file:///path"),
    (["--bucket", "s3://"], "bucket: write s3://bucket/prefix, with the bucket's name"),
    (["--bucket", "s3://me:secret@x"], "bucket: credentials do not belong into a URL"),
    (["--path", "../up"], "path: '../up' must be letters, digits, '.', '_', '-' and slashes"),
    (["--bucket", "s3://bucket", "--path", "a//b"], "path: 'a//b' must be letters"),
    (["--bucket", "s3://bucket/p", "--path", "x" * 255], "path: 'p/xxx"),
    (["--memory", "--path", "a"], "path: there are no paths in memory: leave it out"),
    (["--memory", "--bucket", "x"], "--memory and --bucket exclude each other: keep one"),
    (["--flush-interval", "soon"], "--flush-interval: 'soon' is no duration: write one such as"),
    (["--flush-interval", "1us"], "--flush-interval: '1us' must be whole milliseconds"),
    (["--append-inflight-bytes", "1M"], "--append-inflight-bytes: '1M' is no size: write one"),
    (["--append-inflight-bytes", "1kB"], "--append-inflight-bytes: append_inflight_bytes must be"),
    (["--commits-in-flight", "0"], "--commits-in-flight: commits_in_flight must be from 1 to"),
    (["--tail-cache-bytes", "-1"], "--tail-cache-bytes: '-1' is no size: write one such as"),
    (["--location", "here and there"], "location: location name must hold only ASCII letters"),
    (["--basin-domain", "a_b"], "--basin-domain: 'a_b' is no domain: write one such as"),
    (["--tls-cert", "a.pem"], "tls_cert and tls_key belong together: give both files"),
    (["--tls-key", "a.pem"], "tls_cert and tls_key belong together: give both files"),
    (["--tls-cert", "a", "--tls-key", "b", "--tls-self"], "tls_self and tls_cert exclude each"),
    (["--tls-cert", "a", "--tls-key", "b"], "tls_cert: a is no file that can be read: name one"),
    (["--init-file", "none.json"], "init_file: cannot read none.json: No such file or directory"),
    (["--usage-prices", "append"], "--usage-prices: 'append' is no price: write prices such as"),
    (["--usage-prices", "append=-1"], "--usage-prices: 'append=-1' is no price"),
    (["--usage-prices", "read=1,read=2"], "--usage-prices: 'read=2' is no price"),
    (["--usage-prices", "tea=1"], "--usage-prices: 'tea=1' is no price"),
    (["--limit-basin-requests", "0"], "--limit-basin-requests: limit_basin_requests must be at le"),
    (["--limit-token-sessions", "0"], "--limit-token-sessions: limit_token_sessions must be at le"),
    (["--limit-basin-append-bytes", "1"], "--limit-basin-append-bytes: limit_basin_append"),
    (["--limit-token-append-bytes", "fast"], "--limit-token-append-bytes: 'fast' is no size"),
    (["--quota-basins", "few"], "--quota-basins: 'few' is no whole number: write digits alone"),
    (["--quota-tokens", "-1"], "--quota-tokens"),
    (["--pipeline", "remote"], "--pipeline: 'remote' is no place for a pipeline: write off, local"),
    (["--pipeline", "local[0]"], "--pipeline: 'local[0]' is no place for a pipeline: write off"),
    (["--pipeline", "spark://me:word@host"], "--pipeline: credentials do not belong into a URL"),
    (["--pipeline", ""], "--pipeline: is empty: give it a value, or leave it out"),
    (["--memory", "--pipeline", "local"], "pipeline: a bucket in memory has none: leave it out"),
    (["--pipeline-age", "60"], "--pipeline-age: '60' is no duration: write one such as"),
    (["--pipeline-backlog", "0"], "--pipeline-backlog: pipeline_backlog must be at least 1"),
    (["--log-level", "loud"], "--log-level: 'loud' is no level: write one of debug, info"),
    (["--config", "none.toml"], "cannot read the settings in none.toml: No such file"),
    (["--prot", "1"], "there is no --prot: did you mean --port?"),
    (["--port"], "argument --port: expected one argument; `bourn serve --help` shows how"),
    (["now"], "there is no now; `bourn serve --help` shows how"),
]
WRONG_VARIABLES = [
    ("BOURN_PRT", "1", "BOURN_PRT is no variable: did you mean BOURN_PORT?"),
    ("BOURN_ZZZZ", "1", "BOURN_ZZZZ is no variable: docs/settings.md lists all"),
    ("BOURN_PORT", "http", "BOURN_PORT: 'http' is no whole number: write digits alone"),
    ("BOURN_CORS", "maybe", "BOURN_CORS: 'maybe' is neither true nor false: write one of them"),
    ("BOURN_MEMORY", "2", "BOURN_MEMORY: '2' is neither true nor false: write one of them"),
    ("BOURN_BASIN_DOMAIN", "a.b,", "BOURN_BASIN_DOMAIN: '' is no domain: write one such as"),
    ("BOURN_PIPELINE", "on", "BOURN_PIPELINE: 'on' is no place for a pipeline: write off"),
    ("BOURN_COMMITS_IN_FLIGHT", "999", "BOURN_COMMITS_IN_FLIGHT: commits_in_flight must be"),
]


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """An empty directory, in which the port 8080 of this machine does not matter."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, words):
    assert main(["serve", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("bourn serve: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    return captured.err.removeprefix("bourn serve: ")


@pytest.mark.parametrize(("flags", "line"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_flag_stops_the_start(capsys, nowhere, flags, line):
    assert refused(capsys, flags).startswith(line)
    assert list(nowhere.iterdir()) == [], "nothing may be touched before all is checked"


@pytest.mark.parametrize(("variable", "text", "line"), WRONG_VARIABLES)
def test_a_wrong_variable_stops_the_start(capsys, monkeypatch, variable, text, line):
    monkeypatch.setenv(variable, text)
    assert refused(capsys, []).startswith(line)


def test_a_spec_that_is_none_stops_the_start(capsys, nowhere):
    (nowhere / "spec.json").write_text('{"basins":[{"name":"my-basin","colour":1}]}')
    line = refused(capsys, ["--init-file", "spec.json"])
    assert line.startswith("spec.json is no resource spec: Object contains unknown field `colour`")


def test_a_certificate_and_a_key_of_another_one_stop_the_start(capsys, nowhere):
    for name in ("a.pem", "b.pem"):
        (nowhere / name).write_bytes(make_self_signed("localhost", SystemClock().now_ms()))
    (nowhere / "text.pem").write_text("no certificate")
    for certificate, key in (("a.pem", "b.pem"), ("text.pem", "a.pem")):
        line = refused(capsys, ["--tls-cert", certificate, "--tls-key", key])
        assert line.startswith(f"tls_cert {certificate} and tls_key {key} do not work together")


def test_an_address_of_another_machine_stops_the_start(capsys):
    line = refused(capsys, ["--host", "203.0.113.7", "--port", "0"])
    assert line.startswith("cannot listen on 203.0.113.7 port 0: this machine has no such address")


def test_a_port_that_is_taken_stops_the_start_before_the_bucket_is_touched(capsys, nowhere):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refused(capsys, ["--port", str(port), "--bucket", "data"])
    assert line.startswith(f"cannot listen on 127.0.0.1 port {port}: the port is taken")
    assert not (nowhere / "data").exists()


def test_a_bucket_that_cannot_be_had_stops_the_start(nowhere):
    (nowhere / "file").write_text("in the way")
    ended = bourn("serve", "--port", "0", "--bucket", "file/data", cwd=nowhere)
    assert (ended.code, ended.out) == (2, b"")
    *notes, line = ended.err.splitlines()
    assert line.startswith("bourn serve: cannot open the bucket: file://")
    assert all(note.startswith("loading the codecs") for note in notes)  # on a busy machine
