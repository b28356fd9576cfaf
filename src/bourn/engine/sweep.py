"""Commit objects that nothing knows any more, left by a writer that ended in the middle of things.

Two kinds: commits below the snapshots whose deletion was cut short, and puts that landed behind a
tombstone. Claims and tombstones stay for ever; a tombstone stands where its epoch's commits end.
"""

from bourn.bucket.port import Bucket
from bourn.engine.commit_refs import CommitRefs
from bourn.errors import Damaged, ObjectMissing
from bourn.layout.commit import HEADER_BYTES, decode_header
from bourn.layout.keys import WAL_PREFIX, LogPosition, parse_wal_key, wal_key
from bourn.log.epochs import EpochMap


async def orphans(
    bucket: Bucket, epochs: EpochMap, refs: CommitRefs, below: int, newest_epoch: int
) -> list[str]:
    """Name the objects that no state refers to; `below` is the first ordinal still needed."""
    found: list[str] = []
    async for info in bucket.list(WAL_PREFIX):
        position = parse_wal_key(info.key)
        if position is None or position.epoch >= newest_epoch:
            continue
        if await _is_orphan(bucket, epochs, refs, below, position):
            found.append(info.key)
    return found


async def _is_orphan(
    bucket: Bucket, epochs: EpochMap, refs: CommitRefs, below: int, position: LogPosition
) -> bool:
    span = epochs.span(position.epoch)
    if span is not None:
        ordinal = span.start + position.id
        if ordinal > span.stop:
            return True  # a put that landed behind the tombstone
        if ordinal == span.stop or ordinal >= below:
            return False
        if ordinal >= refs.base:
            return refs.is_collected(ordinal)
        return True
    # The epoch lies wholly below what is needed; only its tombstone stays.
    key = wal_key(*position)
    try:
        header = decode_header(await bucket.get_range(key, 0, HEADER_BYTES), key)
    except (ObjectMissing, Damaged):
        return False  # gone already; or nobody needs it, and nobody can say what it was
    return not header.is_tombstone
