"""`bourn bench` and `s2 bench`: full speed with a reader at the tail, and acks at 1 MiB/s."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from bench.engine.case import Budget, Figures, latency_figures
from bench.http.server import BASIN, HttpCase, Server
from bourn.bucket.local import LocalBucket
from bourn.clock import SystemClock

FULL_SPEED: Final = "100000"
S2_VARIABLE: Final = "BOURN_TEST_S2"
BENCH_SECS_MAX: Final = 120
PUTS: Final = 150
PUT_BYTES: Final = 8300  # a commit of one record of 8 KiB

WRITE_8K: Final = Budget("write_mib_per_s", 150, "MiB/s", at_least=True)
WRITE_256: Final = Budget("write_records_per_s", 200_000, at_least=True)
ACK: Final = Budget("ack_minus_put_p50_ms", 1.0, "ms")

_RATE: Final = re.compile(
    r"(Write|Read|Catchup): ([0-9.]+) MiB/s, ([0-9]+) records/s \(([0-9]+) bytes, ([0-9]+) records"
)
_LATENCY: Final = re.compile(r"(p50|p90|p99) *: *([0-9.]+)(ns|us|ms|s)")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")
_MS: Final = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_PHASES: Final = {"Write": "write", "Read": "read", "Catchup": "catchup"}


def s2_binary() -> str | None:
    """Where the `s2` command is, if it is anywhere."""
    return os.environ.get(S2_VARIABLE) or shutil.which("s2")


def cases(buckets: tuple[str, ...], seconds: float) -> list[HttpCase]:
    """Both commands on every bucket, three loads each."""
    tools = ["bourn bench"] + (["s2 bench"] if s2_binary() else [])
    made = []
    for bucket in buckets:
        for tool in tools:
            for name, size, rate, budgets in (
                ("8 KiB, full speed", 8192, FULL_SPEED, (WRITE_8K,)),
                ("256 B, full speed", 256, FULL_SPEED, (WRITE_256,)),
                ("8 KiB, 1 MiB/s", 8192, "1", (ACK,) if bucket == "local" else ()),
            ):
                arguments = {"tool": tool, "size": size, "rate": rate, "seconds": seconds}
                case = HttpCase("bench", f"{tool}, {name}", bucket, measure, arguments, budgets)
                made.append(case)
    return made


def measure(server: Server, tool: str, size: int, rate: str, seconds: float) -> Figures:
    """Run the command against the server."""
    words = ["-b", str(size), "-t", rate, "-d", f"{round(seconds * 1000)}ms", "-w", "0s"]
    cpu = server.cpu_secs()
    client = _children_cpu()
    figures = _bourn(server, words) if tool == "bourn bench" else _s2(server, words)
    cpu, client = server.cpu_secs() - cpu, _children_cpu() - client
    moved = float(figures["write_bytes"])
    figures |= {
        "server_cpu_s": cpu,
        "client_cpu_s": client,
        "server_cpu_s_per_gb": cpu / moved * 1e9 if moved else 0.0,
    }
    if rate != FULL_SPEED and server.directory.joinpath("data").exists():
        put = latency_figures(uvloop.run(_puts(server)), "put_")
        figures |= put
        for which in ("p50_ms", "p99_ms"):
            more = float(figures[f"ack_{which}"]) - float(put[f"put_{which}"])
            figures[f"ack_minus_put_{which}"] = more
    return figures


def _bourn(server: Server, words: list[str]) -> Figures:
    command = [sys.executable, "-m", "bourn.cli.main", "bench", BASIN, "--json", *words]
    found = orjson.loads(_run(command, server).stdout)
    figures: Figures = {}
    for name, phase in (("write", "write"), ("read", "read"), ("catch_up", "catchup")):
        figures[f"{phase}_mib_per_s"] = found[name]["mib_per_s"]
        figures[f"{phase}_records_per_s"] = found[name]["records_per_s"]
        figures[f"{phase}_bytes"] = float(found[name]["bytes"])
        figures[f"{phase}_client_cpus"] = found[name]["client_cpu_seconds"] / found[name]["seconds"]
    figures |= _percentiles("ack", found["write"]["ack_ms"])
    return figures | _percentiles("e2e", found["read"]["end_to_end_ms"])


def _s2(server: Server, words: list[str]) -> Figures:
    command = [s2_binary() or "s2", "bench", f"s2://{BASIN}", *words]
    text = _ESCAPE.sub("", _run(command, server).stderr)
    figures: Figures = {}
    for phase, mib, records, size, _ in _RATE.findall(text):
        figures[f"{_PHASES[phase]}_mib_per_s"] = float(mib)
        figures[f"{_PHASES[phase]}_records_per_s"] = float(records)
        figures[f"{_PHASES[phase]}_bytes"] = float(size)
    # Acks and end to end stand side by side, in this order, or one below the other.
    found = [(name, float(value) * _MS[unit]) for name, value, unit in _LATENCY.findall(text)]
    for name in ("p50", "p90", "p99"):
        values = [value for which, value in found if which == name]
        for what, value in zip(("ack", "e2e"), values, strict=False):
            figures[f"{what}_{name}_ms"] = value
    return figures


def _run(command: list[str], server: Server) -> "subprocess.CompletedProcess[str]":
    told = {name: value for name, value in os.environ.items() if not name.startswith("S2_")}
    told |= {
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.url,
        "S2_ACCESS_TOKEN": "ignored",
    }
    ended = subprocess.run(
        command, capture_output=True, env=told, text=True, timeout=BENCH_SECS_MAX, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{command[0]} ended with {ended.returncode}: {ended.stderr[-800:]}")
    return ended


def _percentiles(what: str, found: dict[str, Any]) -> Figures:
    return {f"{what}_{name}_ms": found[name] for name in ("p50", "p90", "p99")}


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _puts(server: Server) -> list[float]:
    """Put objects one by one beside the server's: what a bare put takes at this moment."""
    clock = SystemClock()
    bucket = LocalBucket(Path(tempfile.mkdtemp(prefix="puts-", dir=server.directory)))
    took: list[float] = []
    for number in range(PUTS):
        await clock.sleep(0.005)
        began = clock.monotonic()
        await bucket.put_if_absent(f"bench/{number:012d}", bytes(PUT_BYTES))
        took.append(clock.monotonic() - began)
    await bucket.close()
    return took
