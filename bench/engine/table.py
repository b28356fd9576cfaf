"""Rows for people: one aligned table a group, budgets beside the figures."""

import statistics
from collections.abc import Iterable
from typing import Final, NamedTuple

from bench.engine.case import Figures, Row


class Column(NamedTuple):
    """A figure under a heading."""

    heading: str
    figure: str
    decimals: int = 0

    def text(self, figures: Figures) -> str:
        """The figure of a row, or a dash."""
        value = figures.get(self.figure)
        if value is None:
            return "-"
        return value if isinstance(value, str) else f"{value:,.{self.decimals}f}"


TITLES: Final = {
    "appends": "Appends: every appender on a stream of its own, awaiting each ack",
    "idle": "An idle node's ack against a bare put of an object of the same size",
    "reads": "Catch-up reads: a session from the first record to the tail, as wire bytes",
    "streams": "Many streams on local disk, one record of 100 B on each",
    "startup": "From the making of the process to an empty node that serves, on local disk",
}
COLUMNS: Final = {
    "appends": (
        Column("acks/s", "acks_per_s"),
        Column("MB/s", "mb_per_s"),
        Column("p50 ms", "p50_ms", 2),
        Column("p99 ms", "p99_ms", 2),
        Column("CPU us/ack", "cpu_us_per_ack", 1),
        Column("of it loop", "loop_us_per_ack", 1),
        Column("acks/commit", "acks_per_commit"),
        Column("CPUs", "cpus_busy", 2),
    ),
    "idle": (
        Column("put p50 ms", "put_p50_ms", 2),
        Column("put p99", "put_p99_ms", 2),
        Column("ack p50 ms", "ack_p50_ms", 2),
        Column("ack p99", "ack_p99_ms", 2),
        Column("more p50", "ack_minus_put_p50_ms", 2),
        Column("more p99", "ack_minus_put_p99_ms", 2),
    ),
    "reads": (
        Column("MB/s", "mb_per_s", 1),
        Column("records/s", "records_per_s"),
        Column("CPU s/GB", "cpu_s_per_gb", 2),
        Column("us/record", "cpu_us_per_record", 2),
        Column("gets", "fetches"),
        Column("CPUs", "cpus_busy", 2),
    ),
    "streams": (
        Column("create s", "create_s", 1),
        Column("append s", "append_s", 1),
        Column("appended", "appended"),
        Column("longest turn ms", "longest_turn_cpu_ms"),
        Column("close s", "close_s", 2),
        Column("snapshot MB", "snapshot_mb", 1),
        Column("start s", "start_s", 2),
        Column("process s", "process_to_serving_s", 2),
        Column("RSS MB", "rss_mb"),
        Column("(empty)", "rss_empty_mb"),
        Column("peak", "rss_start_peak_mb"),
        Column("cold p50 ms", "cold_append_p50_ms", 2),
        Column("p99", "cold_append_p99_ms", 2),
        Column("hot p50", "hot_append_p50_ms", 2),
        Column("list p50 ms", "list_p50_ms", 2),
        Column("p99", "list_p99_ms", 2),
    ),
    "startup": (
        Column("serving s", "serving_s", 2),
        Column("imports", "imports_s", 2),
        Column("open", "open_s", 2),
        Column("RSS MB", "rss_mb"),
    ),
}


BUSY_BELOW: Final = 0.9


def note_on_load(rows: Iterable[Row]) -> str:
    """Say so where the machine had not a core to give; nothing otherwise."""
    shares = [
        share
        for row in rows
        if row.group == "appends"
        and row.name.startswith("memory")
        and isinstance(share := row.medians.get("cpus_busy"), float)
    ]
    if not shares or (share := statistics.median(shares)) >= BUSY_BELOW:
        return ""
    return (
        f"The machine was busy: appends in memory, which never wait, got {share:.2f} of a core. "
        "Figures by CPU hold; those by the clock would be better on a machine of our own."
    )


def one_line(group: str, figures: Figures) -> str:
    """The first figures of a group, for a line of progress."""
    shown = COLUMNS[group][:5]
    return "  ".join(f"{column.heading} {column.text(figures)}" for column in shown)


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
        figures = row.medians
        verdict = "FAILED" if row.failure else verdict_of(row)
        lines.append((row.name, *(column.text(figures) for column in columns), verdict))
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    rendered = [
        "  ".join(
            (
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)),
                line[-1],
            )
        ).rstrip()
        for line in lines
    ]
    said = [f"  {row.name} said: {row.medians['said']}" for row in rows if row.medians.get("said")]
    failures = [f"  {row.name} failed: {row.failure.strip()}" for row in rows if row.failure]
    return "\n".join([TITLES[group], *rendered, *said, *failures])


def verdict_of(row: Row) -> str:
    """Every budget of a row with PASS or MISS."""
    return " · ".join(f"{'PASS' if holds else 'MISS'} {budget}" for budget, holds in row.verdicts())
