"""Rows for people: one aligned table a group, budgets beside the figures."""

from collections.abc import Iterable
from typing import Final

from bench.engine.case import Figures, Row
from bench.engine.table import Column, verdict_of

SERVER: Final = Column("server CPU s", "server_cpu_s", 2)
CLIENT: Final = Column("client CPU s", "client_cpu_s", 2)
PER_GB: Final = Column("server s/GB", "server_cpu_s_per_gb", 2)
P50: Final = Column("p50 ms", "p50_ms", 2)
P99: Final = Column("p99 ms", "p99_ms", 2)

TITLES: Final = {
    "bench": "A writer at full speed or at 1 MiB/s with a reader at the tail, then catch-up",
    "batches": "One append session of full batches, HTTP/2, 8 MiB under way",
    "rounds": "One append session, HTTP/2, one record under way",
    "reads": "A read session from the first record to the tail, HTTP/2, every record checked",
    "unary": "Unary appends of 100 B, HTTP/1.1, each connection behind its own answer",
    "followers": "Server-sent events, from before the append to each follower",
    "memory": "What a fresh server has resident after 600 MB",
}
COLUMNS: Final = {
    "bench": (
        Column("write MiB/s", "write_mib_per_s", 1),
        Column("records/s", "write_records_per_s"),
        Column("ack p50 ms", "ack_p50_ms", 2),
        Column("p99", "ack_p99_ms", 2),
        Column("e2e p50 ms", "e2e_p50_ms", 2),
        Column("p99", "e2e_p99_ms", 2),
        Column("put p50 ms", "put_p50_ms", 2),
        Column("catch-up MiB/s", "catchup_mib_per_s", 1),
        Column("records/s", "catchup_records_per_s"),
        SERVER,
        CLIENT,
        PER_GB,
    ),
    "batches": (
        Column("MB/s", "mb_per_s", 1),
        Column("records/s", "records_per_s"),
        P50,
        P99,
        SERVER,
        CLIENT,
        PER_GB,
    ),
    "rounds": (
        P50,
        P99,
        Column("rounds/s", "rounds_per_s"),
        Column("server us", "server_cpu_us_per_round"),
        SERVER,
        CLIENT,
    ),
    "reads": (
        Column("MB/s", "mb_per_s", 1),
        Column("records/s", "records_per_s"),
        PER_GB,
        Column("client s/GB", "client_cpu_s_per_gb", 2),
        SERVER,
        CLIENT,
    ),
    "unary": (
        Column("requests/s", "requests_per_s"),
        P50,
        P99,
        Column("server us", "server_cpu_us_per_request"),
        Column("client us", "client_cpu_us_per_request"),
        SERVER,
        CLIENT,
    ),
    "followers": (
        P50,
        P99,
        Column("deliveries/s", "deliveries_per_s"),
        Column("server us", "server_cpu_us_per_delivery", 1),
        Column("RSS MB", "server_rss_mb"),
        SERVER,
        CLIENT,
    ),
    "memory": (
        Column("RSS MB", "rss_mb"),
        Column("peak", "rss_peak_mb"),
        Column("(empty)", "rss_empty_mb"),
        SERVER,
    ),
}


def one_line(group: str, figures: Figures) -> str:
    """The first figures of a group, for a line of progress."""
    shown = (column for column in COLUMNS[group] if column.figure in figures)
    return "  ".join(f"{column.heading} {column.text(figures)}" for column in list(shown)[:5])


def render(rows: Iterable[Row]) -> str:
    """All groups, in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return "\n\n".join(_render_group(group, found) for group, found in groups.items())


def _render_group(group: str, rows: list[Row]) -> str:
    columns = COLUMNS[group]
    lines = [("", *(column.heading for column in columns), "budget")]
    for row in rows:
        verdict = "FAILED" if row.failure else verdict_of(row)
        lines.append((row.name, *(column.text(row.medians) for column in columns), verdict))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    aligned = [
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)),
                line[-1],
            ]
        ).rstrip()
        for line in lines
    ]
    failures = [f"  {row.name} failed: {row.failure.strip()}" for row in rows if row.failure]
    return "\n".join([TITLES[group], *aligned, *failures])
