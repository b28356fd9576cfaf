"""Rows: medians of both servers side by side, the ratio (above 1: Bourn is better), the goal."""

import statistics
from typing import Any, Final

import msgspec

from bench.engine.case import Figures
from bench.versus.loads import Compared
from bench.versus.peers import BOURN, PEERS, S2_LITE

COST: Final = ("server_cpu_s", "client_cpu_s", "peak_mb", "seconds")


class Result(msgspec.Struct):
    """A workload on a bucket: the figures of every repeat of both."""

    group: str
    workload: str
    bucket: str
    compared: tuple[Compared, ...]
    repeats: dict[str, list[Figures]]
    failures: dict[str, str]

    @property
    def is_measured(self) -> bool:
        """Whether both have had their turn."""
        return all(self.repeats[peer] or peer in self.failures for peer in PEERS)

    def median(self, peer: str, figure: str) -> float | None:
        """The middle one of the repeats."""
        values = [figures.get(figure) for figures in self.repeats[peer]]
        numbers = [float(value) for value in values if isinstance(value, float | int)]
        return statistics.median(numbers) if numbers else None


def rows_of(result: Result) -> list[dict[str, Any]]:
    """One row for each compared figure, as it is saved."""
    rows = []
    for compared in result.compared:
        ours, theirs = (result.median(peer, compared.figure) for peer in PEERS)
        ratio = None
        if ours and theirs:
            ratio = ours / theirs if compared.more_is_better else theirs / ours
        rows.append(
            {
                "workload": f"{result.workload}: {compared.name}",
                "bucket": result.bucket,
                BOURN: ours and round(ours, 4),
                S2_LITE: theirs and round(theirs, 4),
                "ratio": ratio and round(ratio, 3),
                "goal": compared.goal,
                "repeats": {
                    peer: [figures.get(compared.figure) for figures in result.repeats[peer]]
                    for peer in PEERS
                },
                "cost": {
                    peer: {name: _rounded(result.median(peer, name)) for name in COST}
                    for peer in PEERS
                },
                **({"failures": result.failures} if result.failures else {}),
            }
        )
    return rows


def take_up(result: Result, saved: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Have a result begin with the repeats that its rows have; of the cost, each has the median."""
    rows = {
        compared.figure: saved.get((result.bucket, f"{result.workload}: {compared.name}"))
        for compared in result.compared
    }
    kept = {figure: row for figure, row in rows.items() if row is not None}
    if len(kept) < len(rows) or any("failures" in row for row in kept.values()):
        return
    for peer in PEERS:
        cost = {name: value for row in kept.values() for name, value in row["cost"][peer].items()}
        result.repeats[peer] = [
            {**cost, **dict(zip(kept, figures, strict=True))}
            for figures in zip(*(row["repeats"][peer] for row in kept.values()), strict=True)
        ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def render(rows: list[dict[str, Any]]) -> str:
    """The table, for people."""
    head = ("bucket", "workload", "bourn", "s2 lite", "ratio", "", "CPU s", "", "peak MB", "")
    lines = [head]
    for row in rows:
        ratio = row["ratio"]
        cost = row["cost"]
        lines.append(
            (
                row["bucket"],
                row["workload"],
                _number(row[BOURN]),
                _number(row[S2_LITE]),
                _number(ratio),
                "" if ratio and ratio >= row["goal"] else f"MISSED {row['goal']:g}",
                *(_number(cost[peer]["server_cpu_s"]) for peer in PEERS),
                *(_number(cost[peer]["peak_mb"]) for peer in PEERS),
            )
        )
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"
