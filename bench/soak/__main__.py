"""Measure full load, then run half of it for long, look every ten seconds, and judge.

    python -m bench.soak [--minutes 30] [--pipeline off | local] [--warm-up-minutes 5]

Figures go to bench/results/soak.json, one run for each place of the pipeline, saved after every
sample. The exit code is 1 where memory grows, latency drifts or a client met an error, and where
the machine was so seldom calm (`weather`) that nobody can say.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any, Final

import orjson

from bench.engine import report
from bench.engine.target import IN_MEMORY, directory_in, file_system_of
from bench.http.server import Server, serving
from bench.soak import readers, trend, writers
from bench.soak.client import Client
from bench.soak.weather import Weather

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "soak.json"
DISK_GB_SPARE: Final = 3.0
SETTLE_SECS: Final = 2.0
SHARE: Final = 0.5
_PAUSE: Final = Event()  # never set


def main() -> int:
    """Soak, print, save."""
    options = _options()
    options.directory.mkdir(parents=True, exist_ok=True)
    if (kind := file_system_of(options.directory.resolve())) in IN_MEMORY:
        print(f"{kind} is no disk: give --directory one that is", file=sys.stderr)
        return 2
    facts = report.machine(file_system_of(options.directory.resolve()), "")
    with (
        directory_in(options.directory) as directory,
        serving("local", directory, "--pipeline", options.pipeline) as server,
        Weather(directory) as weather,
    ):
        _prepare(server, options.retention_secs)
        crowds = {
            "writers": Client(writers.write, server.port),
            "readers": Client(readers.read, server.port),
        }
        try:
            run = _soak(server, crowds, weather, options, facts)
        finally:
            for crowd in crowds.values():
                crowd.close()
    verdict = run["judgement"]
    memory = verdict["trends"]["rss_mb"]
    print(
        f"memory {memory['mean']} MB on average, {memory['slope_per_hour']} MB/h "
        f"(+- {memory['error_per_hour']}): {verdict['verdict']}"
    )
    return 0 if verdict["is_good"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up-minutes", type=float, help="a quarter of it, 5 at most")
    parser.add_argument("--full-seconds", type=float, default=15.0, help="of full load, before")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--retention-secs", type=int, default=60, help="of every stream")
    parser.add_argument("--pipeline", default="off", help="off, local, or a Spark master")
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".cache" / "bench")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.warm_up_minutes is None:
        options.warm_up_minutes = min(5.0, options.minutes / 4)
    return options


def _prepare(server: Server, retention_secs: int) -> None:
    config = {"retention_policy": {"age": retention_secs}}
    for stream in (readers.FOLLOWED, *writers.STREAMS):
        server.request("POST", "/streams", {"stream": stream, "config": config})


def _soak(
    server: Server,
    crowds: dict[str, Client],
    weather: Weather,
    options: argparse.Namespace,
    facts: dict[str, Any],
) -> dict[str, Any]:
    crowds["writers"].tell("full")
    _PAUSE.wait(SETTLE_SECS)
    _take(crowds)
    full = _sample(server, crowds, options.full_seconds)
    per_s = full["append_per_s"] * SHARE
    print(
        f"full load: {full['append_per_s']:,.0f} appends/s, server {full['server_cpus']:.2f} and "
        f"clients {full['client_cpus']:.2f} CPUs; from now on {per_s:,.0f}/s",
        flush=True,
    )
    run: dict[str, Any] = {
        "minutes": options.minutes,
        "load": _load(options),
        "full": _rounded(full),
        "appends_per_s_asked": round(per_s, 1),
        "samples": [],
    }
    crowds["writers"].tell("pace", per_s=per_s)
    _PAUSE.wait(SETTLE_SECS)
    _take(crowds)
    weather.take()
    began = time.perf_counter()
    while (at := time.perf_counter() - began) < 60 * options.minutes:
        sample = _sample(server, crowds, min(options.every, 60 * options.minutes - at + 0.01))
        sample |= {"at_s": time.perf_counter() - began, **weather.take()}
        run["samples"].append(_rounded(sample))
        run["judgement"] = trend.judged(run["samples"], 60 * options.warm_up_minutes, per_s)
        _keep(options, facts, run)
        _say(sample)
        if shutil.disk_usage(options.directory).free / 1e9 < DISK_GB_SPARE:
            print("the disk is nearly full: this is the end", file=sys.stderr)
            break
    return run


def _load(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "append_sessions": 2 * writers.SESSIONS,
        "session_batch": f"{writers.SESSION_RECORDS} x {writers.SESSION_BODY_BYTES} B",
        "unary_connections": writers.UNARY,
        "unary_body_bytes": writers.UNARY_BODY_BYTES,
        "followers_sse": readers.FOLLOWERS,
        "followers_s2s": readers.FOLLOWERS,
        "events_per_s": readers.EVENTS_PER_S,
        "catch_up_records_per_s": readers.CATCH_UPS_PER_S * readers.CATCH_UP_RECORDS,
        "retention_secs": options.retention_secs,
        "pipeline": options.pipeline,
    }


def _take(crowds: dict[str, Client]) -> dict[str, dict[str, Any]]:
    return {name: crowd.tell("sample") for name, crowd in crowds.items()}


def _sample(server: Server, crowds: dict[str, Client], seconds: float) -> dict[str, Any]:
    """What both sides did from the last look on, and what the server holds now."""
    cpu, began = server.cpu_secs(), time.perf_counter()
    _PAUSE.wait(seconds)
    seen = _take(crowds)
    took = time.perf_counter() - began
    wrote, read = seen["writers"], seen["readers"]
    for found in (wrote, read):
        for why in found["first_errors"]:
            print(f"error: {why}", file=sys.stderr, flush=True)
    return {
        "rss_mb": server.memory_mb(),
        "files": len(list(Path(f"/proc/{server.pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{server.pid}/task").iterdir())),
        "server_cpus": (server.cpu_secs() - cpu) / took,
        "client_cpus": wrote["cpus"] + read["cpus"],
        "client_rss_mb": wrote["rss_mb"] + read["rss_mb"],
        "append_per_s": wrote["append_per_s"],
        "append_p50_ms": wrote.get("append_p50_ms", 0.0),
        "append_p99_ms": wrote.get("append_p99_ms", 0.0),
        "left_out_per_s": wrote.get("left_out_per_s", 0.0) + read.get("left_out_per_s", 0.0),
        "delivery_per_s": read["delivery_per_s"],
        "delivery_due_per_s": 2 * readers.FOLLOWERS * read["event_per_s"],
        "delivery_p50_ms": read.get("delivery_p50_ms", 0.0),
        "delivery_p99_ms": read.get("delivery_p99_ms", 0.0),
        "catch_up_p50_ms": read.get("catch_up_p50_ms", 0.0),
        "catch_up_bytes_per_s": read.get("catch_up_bytes_per_s", 0.0),
        "errors": wrote["errors"] + read["errors"],
    }


def _say(sample: dict[str, Any]) -> None:
    print(
        f"{sample['at_s']:6.0f} s  {sample['rss_mb']:7.1f} MB  "
        f"{sample['append_per_s']:7,.0f} appends/s  p50 {sample['append_p50_ms']:.2f}  "
        f"p99 {sample['append_p99_ms']:.2f} ms  delivery p99 {sample['delivery_p99_ms']:.2f} ms  "
        f"{sample['files']} files  {sample['threads']} threads  "
        f"CPUs {sample['server_cpus']:.2f} + {sample['client_cpus']:.2f}  "
        f"errors {sample['errors']}  "
        f"disk {sample['disk_sync_ms_max']:.0f} ms, {sample['stolen_share']:.0%} stolen, "
        f"fixed work {sample['fixed_work_us']:.0f} us",
        flush=True,
    )


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in found.items()
    }


def _keep(options: argparse.Namespace, facts: dict[str, Any], run: dict[str, Any]) -> None:
    """Write the run beside those with the pipeline elsewhere."""
    output: Path = options.output
    kept: dict[str, Any] = orjson.loads(output.read_bytes()) if output.exists() else {}
    run["measured_at"] = facts["measured_at"]
    runs = {**kept.get("runs", {}), f"pipeline {options.pipeline}": run}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(
        orjson.dumps(
            {"machine": facts, "runs": runs},
            option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
