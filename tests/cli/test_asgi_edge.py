"""The server under granian, started as its users start it; what it serves is in tests/http."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.wires import ACK, PREFACE, SETTINGS, frame
from tests.http.server import eventually

BIN = Path(sys.executable).parent
READY = re.compile(r"bourn is ready on (http://127\.0\.0\.1:\d+), data in (.*)")


def call(url: str, method: str, path: str, document: Any = None) -> Any:
    headers = {"s2-basin": "asgi-basin", "content-type": "application/json"}
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url + path, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read() or b"null")


@contextmanager
def started(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BOURN_")} | variables
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stopped(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(40)


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := READY.match(line):
            return found[1]
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


@pytest.mark.slow
def test_it_serves_stops_with_0_and_keeps_what_it_acked(tmp_path: Path) -> None:
    bucket = str(tmp_path / "data")
    command = [str(BIN / "bourn"), "serve", "--edge", "asgi", "--port", "0", "--bucket", bucket]
    for start in range(2):
        with started(command) as process:
            url = ready(process)
            call(url, "PUT", "/v1/basins/asgi-basin")
            call(url, "PUT", "/v1/streams/s")
            ack = call(url, "POST", "/v1/streams/s/records", {"records": [{"body": "x"}]})
            assert ack["start"]["seq_num"] == start, "the first start's record is still there"
            assert stopped(process) == 0


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--edge", "wsgi"], "--edge: 'wsgi' is no edge: write one of native, asgi"),
        (
            ["--edge", "asgi", "--tls-self"],
            "tls_self is for the native edge: give tls_cert and tls_key",
        ),
    ],
)
def test_what_cannot_be_is_told_before_anything_begins(flags: list[str], line: str) -> None:
    command = [str(BIN / "bourn"), "serve", "--memory", "--port", "0", *flags]
    with started(command) as process:
        _, text = process.communicate(timeout=20)
        assert process.returncode == 2
        assert text.strip().endswith(line)


@pytest.mark.slow
def test_nothing_of_it_outlives_a_kill(tmp_path: Path) -> None:
    bucket = str(tmp_path / "data")
    command = [str(BIN / "bourn"), "serve", "--edge", "asgi", "--bucket", bucket]
    with started([*command, "--port", "0"]) as process:
        url = ready(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait(40)
    eventually(lambda: not any(Path(f"/proc/{child}/fd").exists() for child in children))
    with started([*command, "--port", url.rpartition(":")[2]]) as process:
        assert ready(process) == url


@pytest.mark.slow
def test_a_client_that_never_confirms_that_it_shall_go_does_not_hold_up_the_end() -> None:
    # So does the official Python SDK. Granian's own patience is longer than the test's.
    program = (
        "import sys; from bourn.cli import asgi, main; asgi.KILL_SECS = 600; sys.exit(main.main())"
    )
    words = ["serve", "--edge", "asgi", "--memory", "--port", "0"]
    with started([sys.executable, "-c", program, *words]) as process:
        port = int(ready(process).rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
            assert client.recv(1)
            assert stopped(process) == 0
