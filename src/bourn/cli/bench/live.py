"""The phases for people: a table that is redrawn while they run, and the result."""

import sys
from collections.abc import Sequence
from typing import Any, Final

from bourn.cli import render
from bourn.cli.bench.latencies import Latencies
from bourn.cli.bench.phases import Bench, Meter

COLUMNS: Final = (
    "phase",
    "MiB/s",
    "records/s",
    "records",
    "seconds",
    "client cpu",
    "latency",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "max ms",
)
TEXT_COLUMNS: Final = frozenset({"phase", "latency"})


class LiveTable:
    """Redraws the table at the bottom of a terminal; nothing where nobody looks at one."""

    def __init__(self, *, is_shown: bool | None = None) -> None:
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._lines = 0

    def show(self, bench: Bench) -> None:
        """Draw the table as things are now."""
        if not self._is_shown:
            return
        lines = table_of(bench)
        self.clear()
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._lines = len(lines)

    def clear(self) -> None:
        """Take the table away."""
        if self._lines:
            sys.stderr.write(f"\x1b[{self._lines}A\x1b[J")
            sys.stderr.flush()
            self._lines = 0


def table_of(bench: Bench) -> list[str]:
    """Return the phases that have begun, below the names of their figures."""
    rows = [_row(*phase) for phase in _phases(bench)]
    if not rows:
        return []
    cells = [[column.upper() for column in COLUMNS], *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in cells]


def result_of(bench: Bench) -> dict[str, Any]:
    """Return the phases that have begun, for machines."""
    found: dict[str, Any] = {}
    for name, meter, what, latencies in _phases(bench):
        shape: dict[str, Any] = {
            "mib_per_s": meter.mib_per_s,
            "records_per_s": meter.records_per_s,
            "bytes": meter.bytes,
            "records": meter.records,
            "seconds": meter.seconds,
            "client_cpu_seconds": meter.cpu_secs,
        }
        percentiles = latencies.percentiles() if latencies is not None else None
        if percentiles is not None:
            shape[f"{what.replace(' ', '_')}_ms"] = {
                "p50": percentiles.p50,
                "p90": percentiles.p90,
                "p99": percentiles.p99,
                "max": percentiles.most,
            }
        found[name.replace("-", "_")] = shape
    return found


def print_result(bench: Bench) -> None:
    """Write the table as the command's result."""
    for line in table_of(bench):
        render.line(line)


def _phases(bench: Bench) -> list[tuple[str, Meter, str, Latencies | None]]:
    found: list[tuple[str, Meter, str, Latencies | None]] = []
    if bench.writer is not None:
        found.append(("write", bench.writer.meter, "ack", bench.writer.latencies))
    if bench.reader is not None:
        found.append(("read", bench.reader.meter, "end to end", bench.reader.latencies))
    if bench.catchup is not None:
        found.append(("catch-up", bench.catchup.meter, "", None))
    return found


def _row(name: str, meter: Meter, what: str, latencies: Latencies | None) -> list[str]:
    percentiles = latencies.percentiles() if latencies is not None else None
    return [
        name,
        f"{meter.mib_per_s:,.2f}",
        f"{meter.records_per_s:,.0f}",
        f"{meter.records:,}",
        f"{meter.seconds:.1f}",
        f"{meter.cpu_share:.0%}",
        what,
        *(["-"] * 4 if percentiles is None else (f"{value:,.2f}" for value in percentiles)),
    ]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column in TEXT_COLUMNS else cell.rjust(width)
        for column, cell, width in zip(COLUMNS, row, widths, strict=True)
    ]
