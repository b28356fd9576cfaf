"""Rows for machines: one JSON file, with what they were measured on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import orjson

from bench.engine.case import Row
from bourn.clock import SystemClock

PACKAGES: Final = ("bourn", "uvloop", "numpy", "numba", "obstore", "msgspec", "pyarrow", "xxhash")


def machine(file_system: str, s3_server: str) -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    return {
        "measured_at": datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(
            timespec="seconds"
        ),
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": file_system,
        "s3_server": s3_server,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
    }


def save(path: Path, facts: dict[str, Any], options: dict[str, Any], rows: list[Row]) -> None:
    """Write the report; groups that were not measured this time keep their earlier rows."""
    measured = {row.group for row in rows}
    kept = [row for row in _earlier(path) if row["group"] not in measured]
    report = {
        "machine": facts,
        "options": options,
        "rows": [*(_as_json(row, facts["measured_at"]) for row in rows), *kept],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _as_json(row: Row, measured_at: str) -> dict[str, Any]:
    return {
        "group": row.group,
        "name": row.name,
        "measured_at": measured_at,
        "medians": _rounded(row.medians),
        "budgets": [
            {
                "figure": budget.figure,
                "at_least" if budget.at_least else "below": budget.bound,
                "holds": holds,
            }
            for budget, holds in row.verdicts()
        ],
        "failure": row.failure,
        "repeats": [_rounded(figures) for figures in row.repeats],
    }


def _rounded(figures: dict[str, float | str]) -> dict[str, float | str]:
    return {
        name: value if isinstance(value, str) else float(f"{value:.5g}")
        for name, value in figures.items()
    }


def _earlier(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = orjson.loads(path.read_bytes())["rows"]
    except (FileNotFoundError, ValueError, KeyError):
        return []
    return rows


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.machine()
