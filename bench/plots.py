"""Plots and tables of docs/performance.md from the files of bench/results: `python -m bench.plots`.

Every figure of the document stands between two markers, `<!-- NAME -->` and `<!-- end NAME -->`,
and is written there by this module alone, so that document and files never disagree; a test
holds them against each other. Plots go to docs/plots. What was not measured says so.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from bench.figures import BLOCKS, BUCKETS, Results
from bench.svg import Bar, Panel, Series, bars, panels

REPOSITORY: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results"
DOCUMENT: Final = REPOSITORY / "docs" / "performance.md"
PLOTS: Final = REPOSITORY / "docs" / "plots"


def load(folder: Path = RESULTS) -> Results:
    """What was measured, by the name of the file."""
    found: Results = {}
    for name in ("versus", "scaling", "soak", "ceilings", "profiles/profiles"):
        path = folder / f"{name}.json"
        if path.exists():
            found[path.stem] = orjson.loads(path.read_bytes())
    return found


# Plots


def plots_of(results: Results) -> dict[str, str]:
    """Every plot by the name of its file."""
    return {**_versus_plots(results), **_scaling_plots(results), **_soak_plots(results)}


def _versus_plots(results: Results) -> dict[str, str]:
    rows = results.get("versus", {}).get("rows", [])
    return {
        f"versus-{bucket}.svg": bars(
            f"Bourn against s2 lite, {said}: above 1 Bourn is better",
            [
                Bar(row["workload"], row["ratio"], row.get("goal", 1.0))
                for row in rows
                if row["bucket"] == bucket
            ],
        )
        for bucket, said in BUCKETS.items()
        if any(row["bucket"] == bucket for row in rows)
    }


def _line(name: str, rows: Sequence[dict[str, Any]], x: str, *path: str) -> Series:
    points = []
    for row in rows:
        value: Any = row
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            points.append((float(row[x]), float(value)))
    return Series(name, points)


def _scaling_plots(results: Results) -> dict[str, str]:
    found = results.get("scaling", {})
    made = {}
    if rows := found.get("streams", []):

        def streams(title: str, *lines: tuple[str, ...], log_y: bool = False) -> Panel:
            series = [_line(name, rows, "streams", *path) for name, *path in lines]
            return Panel(title, "active streams", series, log_x=True, log_y=log_y)

        cpu = "server_cpu_us_per_request"
        made["scaling-streams.svg"] = panels(
            "The same load over ever more streams",
            [
                streams(
                    "requests a second",
                    ("appends", "append", "requests_per_s"),
                    ("reads", "read", "requests_per_s"),
                ),
                streams(
                    "server CPU, us a request", ("append", "append", cpu), ("read", "read", cpu)
                ),
                streams(
                    "append latency, ms",
                    ("p50", "append", "p50_ms"),
                    ("p99", "append", "p99_ms"),
                    log_y=True,
                ),
                streams(
                    "resident memory, MB",
                    ("all streams active", "rss_active_mb"),
                    ("most", "rss_peak_mb"),
                    ("started, none in use", "rss_started_mb"),
                ),
            ],
        )
    if rows_gb := found.get("history", []):

        def history(title: str, *lines: tuple[str, ...], log_y: bool = False) -> Panel:
            series = [_line(name, rows_gb, "history_gb", *path) for name, *path in lines]
            return Panel(title, "GB of history", series, log_x=True, log_y=log_y)

        made["scaling-history.svg"] = panels(
            "Ever more history",
            [
                history("start, s", ("from nothing to ready", "start_s")),
                history(
                    "resident memory, MB",
                    ("behind the start", "rss_started_mb"),
                    ("most", "rss_peak_mb"),
                ),
                history(
                    "cold read of one record, ms",
                    ("p50", "cold_read", "p50_ms"),
                    ("p99", "cold_read", "p99_ms"),
                    log_y=True,
                ),
                history(
                    "append p50, ms",
                    ("alone", "append_alone", "p50_ms"),
                    ("beside cold reads", "append_beside_cold_reads", "p50_ms"),
                    log_y=True,
                ),
            ],
        )
    return made


def _soak_plots(results: Results) -> dict[str, str]:
    made = {}
    for name, run in results.get("soak", {}).get("runs", {}).items():
        rows = [{**row, "minute": row["at_s"] / 60} for row in run["samples"]]

        def lines(
            title: str,
            *found: tuple[str, str],
            of: list[dict[str, Any]] = rows,
            log_y: bool = False,
        ) -> Panel:
            series = [_line(said, of, "minute", key) for said, key in found]
            return Panel(title, "minutes", series, log_y=log_y)

        made[f"soak-{name.replace(' ', '-')}.svg"] = panels(
            f"Half of full load, {name}",
            [
                lines("resident memory, MB", ("server", "rss_mb"), ("clients", "client_rss_mb")),
                lines(
                    "append latency, ms",
                    ("p50", "append_p50_ms"),
                    ("p99", "append_p99_ms"),
                    log_y=True,
                ),
                lines("appends a second", ("acked", "append_per_s")),
                lines("open files and threads", ("files", "files"), ("threads", "threads")),
            ],
        )
    return made


def filled(text: str, results: Results) -> str:
    """The document with all its blocks as the results say; ValueError where one has no place."""
    for name, render in BLOCKS.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"the document has no place for {name!r}: {begin} … {end}")
        text = f"{before}{begin}\n\n{render(results)}\n\n{end}{after}"
    return text


def main() -> int:
    """Write the plots and the document."""
    results = load()
    PLOTS.mkdir(parents=True, exist_ok=True)
    made = plots_of(results)
    for path in PLOTS.glob("*.svg"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (PLOTS / name).write_text(text, encoding="utf-8")
    DOCUMENT.write_text(filled(DOCUMENT.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(f"docs/performance.md and {len(made)} plots are as bench/results says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
