"""Unary requests over HTTP/2, by `h2load` (nghttp2): a client of machine code."""

import re
import resource
import shutil
import subprocess
import tempfile
from typing import Final

from bench.engine.case import Figures
from bench.http.server import BASIN, Server

_RATE: Final = re.compile(r"finished in [0-9.]+m?s, ([0-9.]+) req/s")
_STATUSES: Final = re.compile(
    r"status codes: ([0-9]+) 2xx, ([0-9]+) 3xx, ([0-9]+) 4xx, ([0-9]+) 5xx"
)
_STOP_SECS_MAX: Final = 60.0


def h2load(
    server: Server,
    path: str,
    media: str,
    body: bytes,
    connections: int,
    streams: int,
    seconds: float,
) -> Figures:
    """The same request again and again, on so many connections and so many streams of each."""
    command = shutil.which("h2load")
    if command is None:
        raise RuntimeError("no h2load here: install nghttp2 (Debian: apt install nghttp2-client)")
    fields = [f"s2-basin: {BASIN}", f"accept: {media}"]
    with tempfile.NamedTemporaryFile() as file:
        words = ["-D", f"{seconds:.0f}", "-c", str(connections), "-m", str(streams), "-t", "1"]
        if body:
            file.write(body)
            file.flush()
            words += ["-d", file.name]
            fields.append(f"content-type: {media}")
        for field in fields:
            words += ["-H", field]
        cpu, client = server.cpu_secs(), _children_cpu()
        done = subprocess.run(
            [command, *words, f"{server.url}/v1{path}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds + _STOP_SECS_MAX,
        )
        cpu, client = server.cpu_secs() - cpu, _children_cpu() - client
    rate, statuses = _RATE.search(done.stdout), _STATUSES.search(done.stdout)
    if rate is None or statuses is None or any(map(int, statuses.groups()[1:])):
        raise RuntimeError(f"h2load: {done.stdout[-300:]}")
    return {
        "requests_per_s": float(rate[1]),
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "client_cpu_share": client / (client + cpu or 1.0),
        "seconds": seconds,
    }


def _children_cpu() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
