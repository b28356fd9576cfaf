"""Access tokens for people: how a server guards itself, and `bourn token`."""

import json
import re
import signal
import stat
from pathlib import Path

import pytest

from bourn.cli.access import is_loopback
from bourn.cli.main import main
from tests.cli.process import Serving, bourn

BASIN = "my-basin-1"
ROOT = "a-root-token-of-16-and-more"
SECRET = re.compile(r'export S2_ACCESS_TOKEN="(bourn_[A-Za-z0-9_-]{43})"')


def at(server, token, *words):
    """Run a client command with a token."""
    variables = {"S2_ACCOUNT_ENDPOINT": server.url, "S2_BASIN_ENDPOINT": server.url}
    return bourn(*words, variables=variables | ({"S2_ACCESS_TOKEN": token} if token else {}))


def secrets_printed(server):
    return [found[1] for line in server.printed if (found := SECRET.fullmatch(line))]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_only_what_cannot_be_reached_from_elsewhere_is_loopback(host, expected):
    assert is_loopback(host) is expected


def test_a_server_that_others_can_reach_makes_a_root_token_and_shows_it_once(tmp_path):
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags, "--host", "0.0.0.0") as server:
        (secret,) = secrets_printed(server)
        assert not any("ignored" in line for line in server.printed)
        assert "every request needs a token; the root token is new" in server.errors()
        assert at(server, secret, "basin", "create", BASIN).code == 0
        refused = at(server, "", "basin", "list")
        assert refused.code == 1
        assert "set S2_ACCESS_TOKEN, or --token" in refused.err
        assert at(server, "wrong", "basin", "list").code == 1
    # On loopback too, once there is a root token: nobody has said that it may be open.
    with Serving(*flags) as server:
        assert secrets_printed(server) == []
        assert "the root token is the one of an earlier start" in server.errors()
        assert at(server, secret, "basin", "list").lines[1].startswith(BASIN)
        assert at(server, "", "basin", "list").code == 1
    with Serving(*flags, "--no-auth") as server:
        assert 'export S2_ACCESS_TOKEN="ignored"' in server.printed
        assert "open: no token is asked for" in server.errors()
        assert at(server, "", "basin", "list").code == 0
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert everything
    assert secret.encode() not in everything


def test_tokens_survive_a_kill_and_another_root_token_takes_the_place_of_the_last(tmp_path):
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags, variables={"BOURN_ROOT_TOKEN": ROOT}) as server:
        assert not any(ROOT in line for line in server.printed)
        assert ROOT not in server.errors()
        issued = at(
            server,
            ROOT,
            "token",
            "issue",
            "svc-a",
            "--basins",
            "=" + BASIN,
            "--ops",
            "create-basin",
        )
        assert issued.code == 0
        (secret,) = issued.lines
        gone = at(server, ROOT, "token", "issue", "gone", "--op-groups", "account=r").lines[0]
        assert at(server, ROOT, "token", "revoke", "gone").code == 0
        server.send(signal.SIGKILL)
        assert server.child.wait() == -signal.SIGKILL
    other = "another-root-token-of-16-and-more"
    with Serving(*flags, "--root-token", other) as server:
        assert at(server, secret, "basin", "create", BASIN).code == 0
        assert at(server, secret, "basin", "create", "my-basin-2").code == 1
        assert at(server, gone, "basin", "list").code == 1
        assert at(server, ROOT, "basin", "list").code == 1
        assert at(server, other, "basin", "list").lines[1].startswith(BASIN)


def test_tokens_are_issued_listed_and_revoked(tmp_path):
    log = tmp_path / "audit.log"
    with Serving("--memory", "--root-token", ROOT, "--audit-log", str(log)) as server:
        scope = ("--basins", "", "--streams", "logs/", "--access-tokens", "=x", "--ops", "append")
        more = ("--op-groups", "basin=r,stream=rw", "--auto-prefix-streams")
        end = ("--expires-at", "2040-01-01T01:00:00.5+01:00")
        issued = at(server, ROOT, "token", "issue", "svc a/é", *scope, *more, *end)
        assert (issued.code, len(issued.lines)) == (0, 1)
        assert "issued access token svc a/é" in issued.err
        shown = at(server, ROOT, "token", "list")
        heading, root, row = shown.lines
        assert heading.split() == ["ID", "EXPIRES", "BASINS", "STREAMS", "TOKENS", "MAY"]
        assert root.split()[:5] == ["root", "never", "all", "all", "all"]
        assert re.split(r" {2,}", row) == [
            "svc a/é",
            "2040-01-01T00:00:00.5Z",
            "all",
            "logs/… (prefixed)",
            "=x",
            "basin=r,stream=rw,append",
        ]
        (item,) = at(server, ROOT, "token", "list", "--json", "--prefix", "svc").lines
        assert json.loads(item)["scope"]["ops"] == ["append"]
        assert len(at(server, ROOT, "token", "list", "--limit", "1", "--json").lines) == 1
        timed = at(
            server, ROOT, "token", "issue", "t", "--ops", "read", "--expires-in", "1h", "--json"
        )
        assert list(json.loads(timed.out)) == ["access_token"]
        by_flag = at(server, "", "token", "list", "--prefix", "t", "--token", ROOT)
        assert by_flag.lines[1].startswith("t ")
        again = at(server, ROOT, "token", "issue", "t", "--ops", "read")
        assert (again.code, again.out) == (1, b"")
        assert "access token `t` already exists" in again.err
        assert at(server, ROOT, "token", "revoke", "svc a/é").lines == [
            "revoked access token svc a/é"
        ]
        missing = at(server, ROOT, "token", "revoke", "svc a/é")
        assert missing.code == 1
        assert "look with `bourn token list`" in missing.err
        assert "cannot be revoked" in at(server, ROOT, "token", "revoke", "root").err
        assert server.stop() == 0
    ops = [json.loads(line)["op"] for line in log.read_text().splitlines()]
    assert ops == [
        "issue-access-token",
        "issue-access-token",
        "issue-access-token",
        "revoke-access-token",
        "revoke-access-token",
        "revoke-access-token",
    ]
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for secret in (ROOT, issued.lines[0], json.loads(timed.out)["access_token"]):
        assert secret not in log.read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "a token that may do nothing is none: give --op-groups or --ops"),
        (["--ops", "appendd"], "--ops: 'appendd' is no operation: write some of account-metrics,"),
        (["--op-groups", "stream"], "--op-groups: 'stream' is no group"),
        (["--op-groups", "stream=rx"], "--op-groups: 'stream=rx' is no group"),
        (["--op-groups", "stream=r,stream=w"], "--op-groups: 'stream=w' is no group"),
        (["--ops", "read", "--expires-at", "soon"], "--expires-at: time must be in the form"),
        (["--ops", "read", "--expires-in", "soon"], "argument --expires-in: 'soon' is no duration"),
        (["--ops", "read", "--expires-in", "9000y"], "--expires-in: that is beyond the year 9999"),
    ],
)
def test_a_token_that_is_asked_for_wrongly_is_refused_before_anybody_is_asked(capsys, words, line):
    assert main(["token", "issue", "t", *words]) == 2
    assert capsys.readouterr().err.startswith(f"bourn token issue: {line}")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--root-token", "short"], "--root-token: is no root token: write 16 to 512 visible"),
        (["--root-token", "with spaces in its middle"], "--root-token: is no root token"),
        (
            ["--no-auth", "--root-token", ROOT],
            "root_token and no auth exclude each other: keep one of them",
        ),
    ],
)
def test_a_wrong_setting_stops_the_start_and_does_not_repeat_a_secret(
    capsys, tmp_path, monkeypatch, flags, line
):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bourn serve: {line}")
    assert ROOT not in said
    assert list(Path.cwd().iterdir()) == []
