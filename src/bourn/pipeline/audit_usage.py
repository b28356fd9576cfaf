"""What an audit says of the usage table: its files are there, and no period is twice."""

from functools import partial
from typing import Final

import pyarrow as pa

from bourn.bucket.delta_log import read_table
from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.errors import Damaged, NewerFormat, ObjectMissing
from bourn.layout.history.delta import Add, TableState
from bourn.layout.usage_table import USAGE_PREFIX, closed_minutes, decode_usage, usage_key
from bourn.pipeline.audit_facts import Findings

LOOKS_MAX: Final = 3
_PLACE: Final = ["interval", "start", "basin", "stream_id", "metric", "label"]
_US: Final = 1_000_000


async def audit_usage(bucket: Bucket, retry: Retry, findings: Findings) -> None:
    """Check the usage table as it is now; again where its files went meanwhile."""
    for _ in range(LOOKS_MAX):
        found = Findings()
        try:
            state = await retry(partial(read_table, bucket, table=USAGE_PREFIX))
        except (Damaged, NewerFormat) as damage:
            findings.add("damaged", getattr(damage, "key", USAGE_PREFIX), str(damage))
            return
        await _check(bucket, retry, state, found)
        if not any(violation.kind == "missing" for violation in found.violations):
            break
    findings.take(found)


async def _check(bucket: Bucket, retry: Retry, state: TableState, findings: Findings) -> None:
    tables: dict[tuple[int, int], list[pa.Table]] = {}
    for add in state.live.values():
        table = await _file(bucket, retry, add, findings)
        if table is None:
            continue
        findings.count("usage rows", len(table))
        kind = (add.tag("interval"), add.tag("streams"))
        tables.setdefault(kind, []).append(table)
        closed_s = closed_minutes(state)[kind[1]] * 60
        if add.tag("until_s") + kind[0] > closed_s:
            findings.add("disagree", usage_key(add), "it has a period that has not closed")
    for (secs, _), parts in tables.items():
        places = pa.concat_tables(parts).select(_PLACE).unify_dictionaries()
        distinct = len(places.group_by(_PLACE).aggregate([]))
        if distinct != len(places):
            findings.add(
                "repeated",
                USAGE_PREFIX,
                f"{len(places) - distinct} periods of {secs} seconds are there twice",
            )


async def _file(bucket: Bucket, retry: Retry, add: Add, findings: Findings) -> pa.Table | None:
    key = usage_key(add)

    async def fetch() -> pa.Table:
        data = await bucket.get(key)
        if len(data) != add.size:
            raise Damaged(key, f"it has {len(data)} bytes, the table says {add.size}")
        table = decode_usage(data, key)
        starts = table.column("start").cast(pa.int64()).to_numpy() // _US
        if len(table) != add.tag("rows") or (
            int(starts.min()) != add.tag("from_s") or int(starts.max()) != add.tag("until_s")
        ):
            raise Damaged(key, "it has other rows than the table says")
        return table

    try:
        return await retry(fetch)
    except Damaged as damage:
        findings.add("damaged", key, str(damage))
    except ObjectMissing:
        findings.add("missing", key, "the usage table names it, and it is not there")
    return None
