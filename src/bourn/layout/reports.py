"""What the pipeline leaves behind of each run: the object pipeline/{started_at_ms:015d}-{run}.json.

```
JSON, one object: {"format":1,"run":"<16 hex digits>","master":"local[*]","started_at_ms":…,
  "ended_at_ms":…,"error":"" or a line,"jobs":[{"name":"tier", …}, …]}
```

Created once, create-only; the oldest go when there are too many. Names ascend with time.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from bourn.errors import Damaged

REPORT_PREFIX: Final = "pipeline/"
_Report = TypeVar("_Report", bound=msgspec.Struct)
_REPORT: Final = re.compile(r"pipeline/\d{15}-[0-9a-f]{16}\.json")


class JobReport(msgspec.Struct, kw_only=True):
    """What one job did in a run. `secs` is by stage; of the log, what was read."""

    name: str
    rounds: int = 0
    superseded: int = 0  # rounds that somebody else was quicker in
    commits: int = 0
    log_bytes: int = 0
    records: int = 0
    files: int = 0
    file_bytes: int = 0
    first_ordinal: int = 0
    end_ordinal: int = 0
    table_version: int = -1
    secs: dict[str, float] = {}
    facts: dict[str, int] = {}  # what else there is to say; names that end in _bytes are sizes


class RunReport(msgspec.Struct, kw_only=True):
    """One run of the pipeline, from the moment that work was found."""

    run: str
    master: str
    started_at_ms: int
    ended_at_ms: int = 0
    error: str = ""
    jobs: list[JobReport] = []
    format: int = 1

    @property
    def key(self) -> str:
        """The name of the object."""
        return f"{REPORT_PREFIX}{self.started_at_ms:015d}-{self.run}.json"


def is_report_key(key: str) -> bool:
    """Whether an object is a report."""
    return _REPORT.fullmatch(key) is not None


def decode_report(data: bytes, key: str) -> RunReport:
    """Return the report of a run; Damaged, naming `key`, where it is none."""
    return decode_as(RunReport, data, key)


# Of every report, audits included


def encode_report(report: msgspec.Struct) -> bytes:
    """Return the object: indented, because people read it."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode_as(kind: type[_Report], data: bytes, key: str) -> _Report:
    """Return a report of that kind; Damaged, naming `key`, where it is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise Damaged(key, f"it is no report: {error}") from None


def report_shape(report: msgspec.Struct) -> dict[str, Any]:
    """Return a report as plain values."""
    shape: dict[str, Any] = msgspec.to_builtins(report)
    return shape
