"""Tables of docs/performance.md: each a function from what was measured to Markdown."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

BUCKETS: Final = {
    "memory": "in memory",
    "local": "on local disk",
    "s3": "on S3, every answer 20 ms late",
}

Results = dict[str, dict[str, Any]]


NOT_MEASURED: Final = "*Not measured yet: run `make {}`.*"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---" if at == 0 else "---:" for at in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def number(value: float | None, digits: int = 3) -> str:
    """A number for people."""
    if value is None:
        return "-"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def machine(results: Results) -> str:
    """What the figures were measured on."""
    facts = results.get("versus", results.get("scaling", {})).get("machine")
    if not facts:
        return NOT_MEASURED.format("versus")
    said = (
        f"{facts['cores']} cores ({facts['cpu']}), {number(facts['memory_gb'])} GB of memory, "
        f"{facts['system']}, {facts['file_system']}, {facts['python']}; "
        f"{facts['measured_at'][:10]}."
    )
    rows = results.get("versus", {}).get("rows", [])
    elsewhere = Counter(row["cpu"] for row in rows if row.get("cpu", facts["cpu"]) != facts["cpu"])
    for cpu, count in sorted(elsewhere.items()):
        said += f" {count} of the {len(rows)} rows below are of another one ({cpu})."
    return said


def versus(results: Results) -> str:
    """The table, bucket by bucket, and how many rows reach what was asked."""
    rows = results.get("versus", {}).get("rows", [])
    if not rows:
        return NOT_MEASURED.format("versus")
    parts = []
    for bucket, said in BUCKETS.items():
        own = [row for row in rows if row["bucket"] == bucket]
        if not own:
            continue
        ahead = sum(1 for row in own if (row["ratio"] or 0) >= 1)
        reached = sum(1 for row in own if (row["ratio"] or 0) >= row.get("goal", 1.0))
        parts += [
            f"### {said[0].upper()}{said[1:]}",
            f"![ratios](plots/versus-{bucket}.svg)",
            f"{ahead} of {len(own)} rows are at 1.0 or above, {reached} reach their goal.",
            _table(
                ("workload", "Bourn", "s2 lite", "ratio", "goal", "CPU s", "", "peak MB", ""),
                [_versus_line(row) for row in own],
            ),
        ]
    return "\n\n".join(parts)


def _versus_line(row: dict[str, Any]) -> list[str]:
    ratio, goal = row["ratio"], row.get("goal", 1.0)
    said = number(ratio)
    cost = row.get("cost", {})
    return [
        row["workload"],
        number(row["bourn"]),
        number(row["s2_lite"]),
        f"**{said}**" if ratio is not None and ratio >= goal else said,
        number(goal),
        *(number(cost.get(peer, {}).get("server_cpu_s")) for peer in ("bourn", "s2_lite")),
        *(number(cost.get(peer, {}).get("peak_mb")) for peer in ("bourn", "s2_lite")),
    ]


def misses(results: Results) -> str:
    """Rows below one, or below their goal."""
    rows = results.get("versus", {}).get("rows", [])
    if not rows:
        return NOT_MEASURED.format("versus")
    missed = [row for row in rows if (row["ratio"] or 0) < row.get("goal", 1.0)]
    if not missed:
        return "None: every row reaches its goal."
    lines = [
        [row["workload"], row["bucket"], number(row["ratio"]), number(row.get("goal", 1.0))]
        for row in sorted(missed, key=lambda row: row["ratio"] or 0)
    ]
    return _table(("workload", "bucket", "ratio", "goal"), lines)


def clients(results: Results) -> str:
    """What a MiB costs server and client together, and what a free server could reach."""
    measured = results.get("versus", {})
    lines = []
    for row in measured.get("rows", []):
        workload, _, figure = row["workload"].partition(": ")
        if figure != "write MiB/s" or not (row["ratio"] and row.get("seconds")):
            continue
        spent = [
            1000 * row["cost"][peer][of] / (row[peer] * row["seconds"])
            for of in ("server_cpu_s", "client_cpu_s")
            for peer in ("bourn", "s2_lite")
        ]
        most = 1000 * measured["machine"]["cores"] / min(spent[2:])
        lines.append([workload, row["bucket"], *map(number, spent), number(most)])
    if not lines:
        return NOT_MEASURED.format("versus")
    head = ("CPU ms a MiB", "bucket", "Bourn", "s2 lite", "its client", "", "most MiB/s")
    return _table(head, lines)


def scaling_streams(results: Results) -> str:
    """Figures by the number of streams."""
    rows = results.get("scaling", {}).get("streams", [])
    if not rows:
        return NOT_MEASURED.format("scaling")
    head = ("streams", "appends/s", "us CPU", "p50 ms", "p99 ms", "reads/s", "us CPU")
    lines = [
        [
            f"{row['streams']:,}",
            *(
                number(row["append"][name])
                for name in ("requests_per_s", "server_cpu_us_per_request")
            ),
            *(number(row["append"][name]) for name in ("p50_ms", "p99_ms")),
            *(
                number(row["read"][name])
                for name in ("requests_per_s", "server_cpu_us_per_request")
            ),
            number(row["rss_active_mb"]),
            number(row["rss_peak_mb"]),
            number(row.get("start_s")),
            number(row.get("rss_started_mb")),
        ]
        for row in rows
    ]
    table = _table((*head, "MB, all active", "MB at most", "start s", "MB, started"), lines)
    return f"![how cost grows with streams](plots/scaling-streams.svg)\n\n{table}"


def scaling_history(results: Results) -> str:
    """Figures by the size of the history."""
    rows = results.get("scaling", {}).get("history", [])
    if not rows:
        return NOT_MEASURED.format("scaling")
    head = ("GB", "on disk GB", "files", "start s", "MB, started", "index MB", "cold read p50 ms")
    lines = [
        [
            number(row["history_gb"]),
            number(row["parquet_bytes"] / 1e9),
            f"{row['segments']:,}",
            number(row["start_s"]),
            number(row["rss_started_mb"]),
            number(row["index_bytes"] / 1e6),
            number(row["cold_read"]["p50_ms"]),
            number(row["cold_read"]["p99_ms"]),
            number(row["append_alone"]["p50_ms"]),
            number(row["append_beside_cold_reads"]["p50_ms"]),
        ]
        for row in rows
    ]
    table = _table((*head, "p99 ms", "append p50 ms", "beside reads ms"), lines)
    return f"![how cost grows with history](plots/scaling-history.svg)\n\n{table}"


def soak(results: Results) -> str:
    """The verdicts, with slopes and their errors."""
    runs = results.get("soak", {}).get("runs", {})
    if not runs:
        return NOT_MEASURED.format("soak")
    parts = []
    for name, run in runs.items():
        judgement = run["judgement"]
        lines = [
            [
                said,
                number(trend["mean"]),
                f"{number(trend['slope_per_hour'])} ± {number(trend['error_per_hour'])}",
                number(judgement["trends_of_all"][key]["mean"]),
            ]
            for key, said in (
                ("rss_mb", "resident memory, MB"),
                ("append_p50_ms", "append p50, ms"),
                ("append_p99_ms", "append p99, ms"),
                ("delivery_p99_ms", "delivery to followers p99, ms"),
                ("files", "open files"),
                ("fixed_work_us", "CPU of a fixed piece of work beside it, us"),
            )
            if (trend := judgement["trends"].get(key))
        ]
        plot = f"soak-{name.replace(' ', '-')}.svg"
        parts += [
            (
                f"{number(run['minutes'])} minutes, {name}, "
                f"at {number(run['appends_per_s_asked'])} "
                f"appends/s of {number(run['full']['append_per_s'])} at full load: "
                f"**{judgement['verdict']}**. Behind the time of warming up the machine was calm "
                f"in {judgement['calm_windows']} of {judgement['windows']} windows. Memory and "
                f"files are of all windows, latencies of calm ones."
            ),
            f"![soak](plots/{plot})",
            _table(("figure", "mean", "slope an hour", "mean, not calm ones too"), lines),
        ]
    return "\n\n".join(parts)


LIMITS: Final = (
    # path, bucket, row of versus, factor to the unit of the limit, limit, its name, more is better
    ("write, 8 KiB", "memory", "s2 bench, 8 KiB, full speed: write MiB/s", 1.048576,
     "loopback_mb_per_s", "MB/s through the loopback", True),
    ("catch-up, 8 KiB", "memory", "s2 bench, 8 KiB, full speed: catch-up MiB/s", 1.048576,
     "loopback_mb_per_s", "MB/s through the loopback", True),
    ("ack p50 at 1 MiB/s", "local", "s2 bench, 8 KiB, 1 MiB/s: ack p50 ms", 1.0,
     "put_8_kib_p50_ms", "ms for a bare create-only put of 8 KiB", False),
    ("unary append, 1 connection", "memory", "unary append, protobuf, 1 connection: ops/s", 1.0,
     "loopback_rounds_per_s", "round trips a second through the loopback", True),
    ("unary read, 1 connection", "memory", "unary read, protobuf, 1 connection: ops/s", 1.0,
     "loopback_rounds_per_s", "round trips a second through the loopback", True),
)  # fmt: skip


def ceilings(results: Results) -> str:
    """What the machine can do."""
    figures = results.get("ceilings", {}).get("figures", {})
    if not figures:
        return NOT_MEASURED.format("ceilings")
    said = {
        "loopback_mb_per_s": "TCP through the loopback, one connection, MB/s",
        "loopback_round_trip_p50_ms": "round trip of 256 B through the loopback, p50 ms",
        "fdatasync_8_kib_p50_ms": "`fdatasync` of 8 KiB, p50 ms",
        "put_8_kib_p50_ms": "create-only put of 8 KiB by bare system calls, p50 ms",
        "put_8_kib_p99_ms": "the same, p99 ms",
        "memcpy_gb_per_s": "copy of 64 MiB, GB/s",
        "memcpy_1_mib_gb_per_s": "copy of 1 MiB within the caches, GB/s",
        "xxh3_gb_per_s": "xxh3-64 of 1 MiB, GB/s",
    }
    lines = [[text, number(figures[name])] for name, text in said.items() if name in figures]
    return _table(("limit", "value"), lines)


def distance(results: Results) -> str:
    """How far we are from the limits."""
    figures = dict(results.get("ceilings", {}).get("figures", {}))
    rows = {
        (row["bucket"], row["workload"]): row for row in results.get("versus", {}).get("rows", [])
    }
    if not figures or not rows:
        return NOT_MEASURED.format("ceilings versus")
    figures["loopback_rounds_per_s"] = 1000 / figures["loopback_round_trip_p50_ms"]
    lines = []
    for what, bucket, workload, factor, limit, said, more_is_better in LIMITS:
        row = rows.get((bucket, workload))
        if row is None or not row["bourn"]:
            continue
        ours = row["bourn"] * factor
        share = ours / figures[limit] if more_is_better else figures[limit] / ours
        lines.append(
            [f"{what}, {bucket}", number(ours), number(figures[limit]), said, f"{share:.0%}"]
        )
    return _table(("path", "Bourn", "limit", "which is", "of it"), lines)


def profiles(results: Results) -> str:
    """Where the server's time goes, path by path, and the flame graphs."""
    paths = results.get("profiles", {}).get("paths", {})
    if not paths:
        return NOT_MEASURED.format("profiles")
    parts = []
    for name, found in paths.items():
        title = f"{found['title']}: {name.rpartition('-')[2]}"  # before, or after
        lines = [
            [f"`{row['file']}`", f"{row['share']:.0%}", f"`{row['function']}`"]
            for row in found["files"]
        ]
        parts += [
            (
                f"**{title}** ([flame graph](../bench/results/profiles/{name}.svg)); "
                f"the main thread has {found['main_thread_share']:.0%} of the samples."
            ),
            _table(("file", "own time", "most of it in"), lines),
        ]
    return "\n\n".join(parts)


BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    "machine": machine,
    "versus": versus,
    "misses": misses,
    "clients": clients,
    "profiles": profiles,
    "ceilings": ceilings,
    "distance": distance,
    "scaling streams": scaling_streams,
    "scaling history": scaling_history,
    "soak": soak,
}
