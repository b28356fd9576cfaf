"""The two servers, each started as a user would, on a bucket of its own, and watched."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from bench.http.benches import s2_binary
from bench.http.server import BASIN, Server
from bench.versus.delay import delayed
from tests.s3server import versity_server

BOURN: Final = "bourn"
S2_LITE: Final = "s2_lite"
PEERS: Final = (BOURN, S2_LITE)
BUCKETS: Final = ("memory", "local", "s3")
START_SECS_MAX: Final = 300.0  # of the first one, whose machine code may have to be made
SYNCS: Final = ("fsync", "fdatasync", "sync_file_range", "syncfs")
STOP_SECS_MAX: Final = 30.0
SAID_BYTES_MAX: Final = 1000
S3_BUCKET: Final = "versus"
S3_DELAY_SECS: Final = 0.02
_PAUSE: Final = Event()  # never set
_OURS: Final = ("BOURN_", "S2_", "S2LITE_", "SL8_", "AWS_")


class NotStarted(RuntimeError):
    """A server that cannot be used; the message is what it said."""


class S3(NamedTuple):
    """Where a bucket is."""

    endpoint: str
    access_key_id: str
    secret_access_key: str

    @property
    def environ(self) -> dict[str, str]:
        """The usual variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def serving(peer: str, bucket: str, directory: Path) -> Iterator[Server]:
    """A fresh server with an empty bucket and a basin."""
    with ExitStack() as stack:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        if bucket == "s3":
            root = directory / "s3"
            root.mkdir()
            store = stack.enter_context(versity_server(root))
            store.make_bucket(S3_BUCKET)
            endpoint = stack.enter_context(delayed(store.endpoint, S3_DELAY_SECS))
            environ |= S3(endpoint, store.access_key_id, store.secret_access_key).environ
        command, port = _command(peer, bucket, directory)
        said = stack.enter_context(tempfile.TemporaryFile())
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environ
        )
        try:
            server = Server(child.pid, port, directory)
            try:
                _wait(child, server)
            except NotStarted:
                said.seek(0)
                text = said.read()[-SAID_BYTES_MAX:].decode(errors="replace")
                raise NotStarted(f"{' '.join(command)} did not start: {text}") from None
            yield server
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _command(peer: str, bucket: str, directory: Path) -> tuple[list[str], int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    data = directory / "data"
    if peer == BOURN:
        where = {
            "memory": ["--memory"],
            "local": ["--bucket", str(data)],
            "s3": ["--bucket", f"s3://{S3_BUCKET}"],
        }
        server = [sys.executable, "-m", "bourn.cli.main", "serve", "--pipeline", "off"]
    else:
        data.mkdir()
        where = {
            "memory": [],
            "local": ["--local-root", str(data)],
            "s3": ["--bucket", S3_BUCKET],
        }
        server = [s2_binary() or "s2", "lite"]
    return [*server, "--port", str(port), *where[bucket]], port


def _wait(child: "subprocess.Popen[bytes]", server: Server) -> None:
    until = time.perf_counter() + START_SECS_MAX
    while True:
        try:
            server.request("POST", "/basins", {"basin": BASIN})
        except OSError:
            if child.poll() is not None or time.perf_counter() > until:
                raise NotStarted from None
            _PAUSE.wait(0.1)
        else:
            return


def sync_calls(peer: str, directory: Path) -> dict[str, int]:
    """Count, by strace, what a server syncs while a few appends are acked on local disk."""
    if shutil.which("strace") is None:
        return {}
    with serving(peer, "local", directory) as server:
        path = directory / "strace"
        tracer = subprocess.Popen(
            ["strace", "-fc", f"-etrace={','.join(SYNCS)}", "-o", path, "-p", str(server.pid)],
            stderr=subprocess.DEVNULL,
        )
        _PAUSE.wait(1.0)
        with server.stream() as records:
            for number in range(20):
                server.request("POST", records, {"records": [{"body": str(number)}]})
        tracer.terminate()
        tracer.wait()
        calls: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = line.split()
            if len(cells) >= 5 and cells[-1] in SYNCS:
                calls[cells[-1]] = int(cells[3])
        return calls
