"""What an audit leaves behind: the object pipeline/audit-{started_at_ms:015d}-{run}.json.

```
JSON, one object: {"format":1,"run":"<16 hex digits>","started_at_ms":…,"ended_at_ms":…,
  "table_version":…,"log_end":…,"snapshot":"<key>","counts":{"streams":…, …},"notes":[…],
  "violations_total":…,"violations":[{"kind":…,"key":…,"what":…,"stream_id":…,"seq_num":…}, …]}
```

Created once, create-only; the oldest go when there are too many. Streams go by their ids, because
the object may outlive a stream, and then nothing must name it.
"""

import re
from typing import Final

import msgspec

from bourn.layout.reports import REPORT_PREFIX, decode_as

_AUDIT: Final = re.compile(r"pipeline/audit-\d{15}-[0-9a-f]{16}\.json")

KINDS: Final = {
    "damaged": "an object is not what was written: it fails its checksum, or cannot be read",
    "missing": "an object that must be there is not there",
    "lost": "records are missing that nothing can have removed",
    "repeated": "records are there twice",
    "order": "timestamps or sequence numbers go back",
    "disagree": "two objects say different things of the same records",
    "stray": "what nobody can have written: of a stream that never was, behind a tail, by others",
    "unsealed": "an epoch has no tombstone though a later one has begun",
}


class Violation(msgspec.Struct, frozen=True):
    """Something that cannot be as it is."""

    kind: str
    key: str
    what: str
    stream_id: int | None = None
    seq_num: int | None = None


class AuditReport(msgspec.Struct, kw_only=True):
    """What an audit has found. It is clean where there is no violation."""

    run: str
    started_at_ms: int
    ended_at_ms: int = 0
    table_version: int = -1
    log_end: int = 0
    snapshot: str = ""
    rounds: int = 0
    counts: dict[str, int] = {}
    notes: list[str] = []
    violations_total: int = 0
    violations: list[Violation] = []
    format: int = 1

    @property
    def key(self) -> str:
        """The name of the object."""
        return f"{REPORT_PREFIX}audit-{self.started_at_ms:015d}-{self.run}.json"

    @property
    def is_clean(self) -> bool:
        """Whether everything is as it must be."""
        return not self.violations_total


def is_audit_key(key: str) -> bool:
    """Whether an object is the report of an audit."""
    return _AUDIT.fullmatch(key) is not None


def decode_audit(data: bytes, key: str) -> AuditReport:
    """Return the report of an audit; Damaged, naming `key`, where it is none."""
    return decode_as(AuditReport, data, key)
