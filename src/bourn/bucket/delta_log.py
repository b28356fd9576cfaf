"""Reads the log of a table from a bucket: all of it, or what has come since."""

from typing import Final

from bourn.bucket.port import Bucket
from bourn.errors import Damaged, ObjectMissing
from bourn.layout.history.checkpoint import decode_checkpoint
from bourn.layout.history.delta import (
    HISTORY_PREFIX,
    Actions,
    TableState,
    checkpoint_key,
    decode_actions,
    delta_key,
    from_checkpoint,
    parse_checkpoint_key,
    parse_delta_key,
    replay,
)

NO_TABLE: Final = TableState()
LISTINGS_MAX: Final = 3


async def read_table(
    bucket: Bucket,
    known: TableState = NO_TABLE,
    *,
    is_sure: bool = False,
    table: str = HISTORY_PREFIX,
) -> TableState:
    """Return the table as it is now; where there is none, its version is -1.

    With a `known` state only what has come since is read: one request where nothing has. Versions
    go, oldest first, once a checkpoint holds them and a day has passed: whoever may have slept
    longer asks with `is_sure`, which takes one request more.
    """
    if is_sure and known.version >= 0 and not await _is_there(bucket, known.version, table):
        known = NO_TABLE
    state = known if known.version >= 0 else await _from_newest_checkpoint(bucket, table)
    versions: list[tuple[int, Actions]] = []
    while True:
        version = state.version + 1 + len(versions)
        found = await _read(bucket, version, table)
        if found is None:
            break
        versions.append((version, found))
    return replay(state, versions, table) if versions else state


async def _read(bucket: Bucket, version: int, table: str) -> Actions | None:
    key = delta_key(version, table)
    try:
        return decode_actions(await bucket.get(key), key)
    except ObjectMissing:
        return None


async def _is_there(bucket: Bucket, version: int, table: str) -> bool:
    try:
        await bucket.get_range(delta_key(version, table), 0, 1)
    except ObjectMissing:
        return False
    return True


async def _from_newest_checkpoint(bucket: Bucket, table: str) -> TableState:
    missing = ""
    for _ in range(LISTINGS_MAX):
        newest, first = -1, None
        async for info in bucket.list(f"{table}_delta_log/"):
            checkpoint = parse_checkpoint_key(info.key, table)
            version = parse_delta_key(info.key, table)
            newest = newest if checkpoint is None else checkpoint
            first = version if first is None else first
        if newest < 0:
            if first:
                raise Damaged(delta_key(first, table), "versions before it are missing")
            return NO_TABLE
        missing = checkpoint_key(newest, table)
        try:
            found = decode_checkpoint(await bucket.get(missing), missing)
            return from_checkpoint(newest, found, table)
        except ObjectMissing:
            continue  # replaced by a newer one since it was listed
    raise Damaged(missing, "it is listed and cannot be found")
