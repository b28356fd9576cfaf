"""A `bourn serve` process with a basin, what it costs, and requests for setting things up."""

import http.client
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from bench.engine.case import Budget, Figures

BASIN: Final = "bench-basin"
READY: Final = re.compile(r"bourn is ready on http://127\.0\.0\.1:([0-9]+)")
STOP_SECS_MAX: Final = 30
_NUMBERS: Final = itertools.count()
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def token_header() -> dict[str, str]:
    """The access token of the environment, where there is one."""
    token = os.environ.get("S2_ACCESS_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


class Server(NamedTuple):
    """A server that runs."""

    pid: int
    port: int
    directory: Path

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_secs(self) -> float:
        """What all its threads have spent so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS_PER_S

    def memory_mb(self, what: str = "VmRSS") -> float:
        """What it has resident now, or had at most (`VmHWM`)."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024 / 1e6
        return 0.0

    def request(self, method: str, path: str, shape: Any = None) -> Any:
        """Make a request that must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STOP_SECS_MAX)
        headers = {"s2-basin": BASIN, "content-type": "application/json", **token_header()}
        try:
            connection.request(method, f"/v1{path}", orjson.dumps(shape), headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {answer.status} {data.decode()}")
        return orjson.loads(data) if data else None

    @contextmanager
    def stream(self, **config: Any) -> Iterator[str]:
        """A stream, deleted behind the block; gives the path of its records."""
        name = f"bench-{next(_NUMBERS)}"  # a deleted stream's name is not free at once
        self.request("POST", "/streams", {"stream": name, "config": config})
        try:
            yield f"/streams/{name}/records"
        finally:
            self.request("DELETE", f"/streams/{name}")


class HttpCase(msgspec.Struct, frozen=True):
    """One thing to measure on a server that runs."""

    group: str
    name: str
    bucket: str
    work: Callable[..., Figures]
    arguments: dict[str, Any] = {}
    budgets: tuple[Budget, ...] = ()
    is_alone: bool = False  # whether it needs a server that nobody else has used


@contextmanager
def serving(bucket: str, directory: Path, *more: str, has_basin: bool = False) -> Iterator[Server]:
    """A server in memory, or on the disk that holds the directory."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it is ended, not left behind
    disk = ["--bucket", str(directory / "data"), "--pipeline", "off"]
    flags = [*(["--memory"] if bucket == "memory" else disk), *more]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BOURN_")}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "bourn.cli.main", "serve", "--port", "0", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environ,
            text=True,
        )
        try:
            server = Server(child.pid, _port(child), directory)
            if not has_basin:
                server.request("POST", "/basins", {"basin": BASIN})
            yield server
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _port(child: "subprocess.Popen[str]") -> int:
    assert child.stdout is not None
    for line in child.stdout:
        if found := READY.match(line):
            return int(found[1])
    raise RuntimeError("the server ended before it was ready")
