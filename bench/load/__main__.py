"""Put a server under load, then under attack; show the figures and keep them.

python -m bench.load [--edge native|asgi] [--followers N] [--sessions N] [--seconds S]
                     [--attack-seconds S] [--only NAME …]

Exit code 1: a client saw an error, or the server let somebody wait longer than the limit during an
attack. `probe` says how that is measured, and `witness` what is not laid to the server: each long
wait is shown, with the turns of the server's loop and what the machine did meanwhile.
"""

import argparse
import asyncio
import multiprocessing
import resource
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from bench.engine import report
from bench.load import crowds, probe
from bench.load.attacker import NOTHING, Attacker
from bench.load.target import Server, Watch, apart, serving
from bench.load.witness import Witnesses, longest_ns
from bourn.limits import MIB
from tests.hostile.attacks import ATTACKS, CLOCK

RESULTS: Final = Path(__file__).resolve().parent.parent / "results" / "load.json"
WAIT_MS_MAX: Final = 100.0
SETTLE_SECS: Final = 2.0
HISTORY_MIB: Final = 64


def main() -> int:
    """Run what is asked for."""
    options = _options()
    multiprocessing.set_start_method("spawn")
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    figures: dict[str, Any] = {"machine": report.machine("memory", ""), "options": vars(options)}
    errors = 0
    if "crowd" in options.only or not options.only:
        with serving(options.edge) as server:
            found = crowds.measure(server, options)
        errors += len(found["errors"])
        figures["crowd"] = found
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode(), flush=True)
    names = [name for name in (NOTHING, *ATTACKS) if not options.only or name in options.only]
    figures["attacks"] = {name: _attacked(name, options) for name in names}
    attacks = figures["attacks"]
    slow = [name for name, found in attacks.items() if found["server_ms_max"] > WAIT_MS_MAX]
    errors += sum(found["errors"] for found in attacks.values())
    _keep(figures, options)
    print(f"{errors} errors; waits above {WAIT_MS_MAX:.0f} ms: {', '.join(slow) or 'none'}")
    return 1 if errors or slow else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.add_argument("--edge", choices=("native", "asgi"), default="native")
    parser.add_argument("--followers", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events-per-second", type=float, default=5.0)
    parser.add_argument("--appends-per-second", type=float, default=2.0, help="of each session")
    parser.add_argument("--attack-seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=[], choices=("crowd", NOTHING, *ATTACKS))
    return parser.parse_args()


def _attacked(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Attack a fresh server, and measure what others wait for meanwhile."""
    with apart() as places, serving(options.edge, places.server) as server:
        target = probe.prepared(server.port, HISTORY_MIB if name == "deaf_followers" else 4)
        before = server.memory_bytes()
        with (
            Witnesses(places.server | places.clients) as witnesses,
            Watch(server) as watch,
            Attacker(name, target) as attacker,
        ):
            prober = probe.Prober(server, target)
            waits, errors = prober.run(options.attack_seconds)
        for outlier in prober.outliers:
            outlier.turn_ms = longest_ns(server.turns(), outlier.span) / 1e6
            outlier.where = watch.where(outlier.span)
            outlier.host_ms = witnesses.still_ms(places.server, outlier.span)
            outlier.host_probe_ms = witnesses.still_ms(places.clients, outlier.unsent)
        after = _settled(server)
    found = {
        **waits,
        "outliers": [outlier.figures(WAIT_MS_MAX) for outlier in prober.outliers],
        "server_ms_max": round(max((found.server_ms for found in prober.outliers), default=0.0), 2),
        "errors": errors,
        "begun": attacker.begun,
        "memory_mib": {
            "before": before // MIB,
            "peak": watch.peak_bytes // MIB,
            "after": after // MIB,
        },
    }
    print(f"{name:20} {orjson.dumps(found).decode()}", flush=True)
    for outlier in prober.outliers:
        if outlier.wait_ms > WAIT_MS_MAX:
            print(f"{name:20} {outlier.told(WAIT_MS_MAX)}", flush=True)
    return found


def _settled(server: Server) -> int:
    asyncio.run(CLOCK.sleep(SETTLE_SECS))
    return server.memory_bytes()


def _keep(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the figures beside those of the other edge, and of what was not measured this time."""
    kept: dict[str, Any] = orjson.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    earlier = kept.get(options.edge, {})
    figures["attacks"] = {**earlier.get("attacks", {}), **figures["attacks"]}
    kept[options.edge] = {**earlier, **figures}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    sys.exit(main())
