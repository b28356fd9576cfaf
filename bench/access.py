"""What access tokens cost: the same requests to a server that asks for one and one that does not.

    python -m bench.access [--rounds 9] [--seconds 1.5]

Both servers run side by side and take turns; both are sent the token. Ratios are of the medians,
asked to open: of requests a second (or batches), and of the server's CPU for each.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.engine import report
from bench.http import sessions, unary
from bench.http.asking import JSON
from bench.http.server import Server, serving

RESULTS: Final = Path(__file__).parent / "results" / "access.json"
TOKEN: Final = "the-root-token-of-a-benchmark"
Measure = Callable[[Server, float], tuple[float, float]]


def unary_json(server: Server, seconds: float) -> tuple[float, float]:
    found = unary.measure(server, JSON, 64, seconds)
    return float(found["requests_per_s"]), float(found["server_cpu_us_per_request"])


def session_rounds(server: Server, seconds: float) -> tuple[float, float]:
    found = sessions.rounds(server, seconds)
    return float(found["rounds_per_s"]), float(found["server_cpu_us_per_round"])


def session_batches(server: Server, seconds: float) -> tuple[float, float]:
    found = sessions.append(server, 100, seconds)
    return float(found["records_per_s"]), float(found["server_cpu_s_per_gb"])


CASES: Final[dict[str, Measure]] = {
    "unary append, JSON, 64 connections": unary_json,
    "append session, one record a round": session_rounds,
    "append session, 1,000 x 100 B batches": session_batches,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.access")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    os.environ["S2_ACCESS_TOKEN"] = TOKEN
    rows = []
    with (
        tempfile.TemporaryDirectory() as home,
        serving("memory", Path(home)) as without,
        serving("memory", Path(home), "--root-token", TOKEN) as asked,
    ):
        for name, measure in CASES.items():
            found: dict[str, list[tuple[float, float]]] = {"open": [], "asked": []}
            for number in range(options.rounds):
                turns = [("open", without), ("asked", asked)]
                for mode, server in turns if number % 2 else reversed(turns):
                    found[mode].append(measure(server, options.seconds))
            rows.append(_row(name, found))
            print(_line(rows[-1]), flush=True)
    document = {"machine": report.machine("memory", ""), "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _row(name: str, found: dict[str, list[tuple[float, float]]]) -> dict[str, float | str]:
    rate, cpu = (
        {mode: statistics.median(pair[at] for pair in pairs) for mode, pairs in found.items()}
        for at in (0, 1)
    )
    return {
        "workload": name,
        "open_per_s": rate["open"],
        "asked_per_s": rate["asked"],
        "rate_ratio": rate["asked"] / rate["open"],
        "open_cpu": cpu["open"],
        "asked_cpu": cpu["asked"],
        "cpu_ratio": cpu["asked"] / cpu["open"],
    }


def _line(row: dict[str, float | str]) -> str:
    return (
        f"{row['workload']:40} {row['open_per_s']:>12,.0f} {row['asked_per_s']:>12,.0f} "
        f"rate x{row['rate_ratio']:.3f}  cpu x{row['cpu_ratio']:.3f}"
    )


if __name__ == "__main__":
    main()
