"""Reads the log of the history's table from a bucket: all of it, or what has come since."""

from typing import Final

from bourn.bucket.port import Bucket
from bourn.errors import Damaged, ObjectMissing
from bourn.layout.history.checkpoint import decode_checkpoint
from bourn.layout.history.delta import (
    DELTA_PREFIX,
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


async def read_table(bucket: Bucket, known: TableState = NO_TABLE) -> TableState:
    """Return the table as it is now; where there is none, its version is -1.

    With a `known` state only what has come since is read: one request where nothing has.
    """
    state = known if known.version >= 0 else await _from_newest_checkpoint(bucket)
    versions: list[tuple[int, Actions]] = []
    while True:
        version = state.version + 1 + len(versions)
        found = await _read(bucket, version)
        if found is None:
            break
        versions.append((version, found))
    return replay(state, versions) if versions else state


async def _read(bucket: Bucket, version: int) -> Actions | None:
    key = delta_key(version)
    try:
        return decode_actions(await bucket.get(key), key)
    except ObjectMissing:
        return None


async def _from_newest_checkpoint(bucket: Bucket) -> TableState:
    missing = ""
    for _ in range(LISTINGS_MAX):
        newest, first = -1, None
        async for info in bucket.list(DELTA_PREFIX):
            checkpoint, version = parse_checkpoint_key(info.key), parse_delta_key(info.key)
            newest = newest if checkpoint is None else checkpoint
            first = version if first is None else first
        if newest < 0:
            if first:
                raise Damaged(delta_key(first), "versions before it are missing")
            return NO_TABLE
        missing = checkpoint_key(newest)
        try:
            return from_checkpoint(newest, decode_checkpoint(await bucket.get(missing), missing))
        except ObjectMissing:
            continue  # replaced by a newer one since it was listed
    raise Damaged(missing, "it is listed and cannot be found")
