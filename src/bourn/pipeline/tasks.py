"""What runs on executors: a run of consecutive commits becomes one segment in the bucket.

Nothing here knows Spark but the last function. A task may be repeated, also while its first attempt
still runs: every attempt writes under a name of its own, and only the one whose answer Spark takes
is named in the table.
"""

import asyncio
import importlib.metadata
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from bourn.bucket.port import Bucket
from bourn.bucket.retry import Retry
from bourn.clock import SystemClock
from bourn.errors import BournError, BucketRefused, Damaged, ObjectExists, ObjectMissing
from bourn.layout.commit import Commit, decode_commit
from bourn.layout.entry import Entry
from bourn.layout.history.delta import SegmentName
from bourn.layout.history.facts import SegmentFacts, facts_of
from bourn.layout.history.rows import table_of
from bourn.layout.history.segment import Segment, encode_segment
from bourn.layout.keys import parse_wal_key
from bourn.layout.records import RecordFormatError
from bourn.limits import TIER_FETCHES
from bourn.pipeline.job import Note
from bourn.pipeline.names import StreamNames
from bourn.pipeline.place import Place

RETRY_SECS: Final = 60.0


class TierRun(NamedTuple):
    """Consecutive commits, those of them that are still there, for one task."""

    first_ordinal: int
    end_ordinal: int
    keys: tuple[str, ...]
    size_bytes: int


class TierOutcome(NamedTuple):
    """What a task has done; `facts` is None where no record of it is wanted any more."""

    run: TierRun
    facts: SegmentFacts | None
    error: str = ""  # of a kind that another attempt would meet again
    vanished: str = ""  # the commit that is there no more


class Vanished(Damaged):
    """A commit has gone since it was listed: collected, if a newer snapshot says so."""


class VersionMismatch(Exception):
    """Driver and executor have different versions of Bourn."""


async def write_segment(
    bucket: Bucket, run: TierRun, names: StreamNames, nonce: int, retry: Retry
) -> SegmentFacts | None:
    """Read the commits, sort their records by stream and number, write them; None for no records.

    `nonce` makes the names of this attempt its own.
    """
    entries = await _entries(bucket, run, retry)
    known = {
        stream_id: found
        for stream_id in {entry.stream_id for entry in entries}
        if (found := names.get(stream_id)) is not None
    }
    entries = [entry for entry in entries if entry.stream_id in known]
    if not entries:
        return None
    entries.sort(key=lambda entry: (entry.stream_id, entry.first_seq_num))
    ids = [_signed(entries[0].stream_id), _signed(entries[-1].stream_id)]
    try:
        segment = encode_segment(table_of(entries, known))
    except (RecordFormatError, ValueError) as error:
        raise Damaged(run.keys[0], f"it, or one up to {run.keys[-1]}: {error}") from error
    entries.clear()  # the largest part of what a task holds
    name = SegmentName(run.first_ordinal, run.end_ordinal, 0, f"{nonce:016x}")
    await put_segment(bucket, name, segment, retry)
    return facts_of(name, segment, (min(ids), max(ids)))


async def _entries(bucket: Bucket, run: TierRun, retry: Retry) -> list[Entry]:
    turn = asyncio.Semaphore(TIER_FETCHES)

    async def fetch(key: str) -> Commit:
        async with turn:
            return await retry(partial(_commit, bucket, key))

    commits = await asyncio.gather(*map(fetch, run.keys))
    return [entry for commit in commits for _, entries in commit.runs for entry in entries]


async def _commit(bucket: Bucket, key: str) -> Commit:
    try:
        commit = decode_commit(await bucket.get(key), key)
    except ObjectMissing:
        raise Vanished(key, "it was listed and cannot be found") from None
    if parse_wal_key(key) != (commit.header.epoch, commit.header.id):
        raise Damaged(key, "it is the commit of another place")
    return commit


async def put_segment(bucket: Bucket, name: SegmentName, segment: Segment, retry: Retry) -> None:
    """Put both objects of a segment."""
    await asyncio.gather(
        _put(bucket, name.key, segment.parquet, retry),
        _put(bucket, name.index_key, segment.index, retry),
    )


async def _put(bucket: Bucket, key: str, data: bytes, retry: Retry) -> None:
    try:
        await retry(partial(bucket.put_if_absent, key, data))
    except ObjectExists:
        # By an attempt of ours whose answer was lost, or nobody knows whose.
        if await retry(partial(bucket.get, key)) != data:
            raise BucketRefused(key, "somebody else has used the name") from None


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


async def run_tier_task(place: Place, run: TierRun, names: StreamNames, nonce: int) -> TierOutcome:
    """Do one task on a bucket of its own; what cannot be mended by another attempt is told."""
    bucket = place.open()
    try:
        retry = Retry(SystemClock(), random.Random(nonce), RETRY_SECS)  # noqa: S311  jitter
        return TierOutcome(run, await write_segment(bucket, run, names, nonce, retry))
    except Vanished as error:
        return TierOutcome(run, None, error.message, error.key)
    except BournError as error:
        return TierOutcome(run, None, error.message)
    finally:
        await bucket.close()


def check_version(version: str) -> None:
    """Raise VersionMismatch where this process has another Bourn than its driver."""
    own = importlib.metadata.version("bourn")
    if own != version:
        raise VersionMismatch(f"this executor has bourn {own}, its driver {version}")


def nonces(seed: int) -> Iterator[int]:
    """Yield what makes the names of this attempt at a task its own: when, and at random."""
    from pyspark import TaskContext  # noqa: PLC0415  who has no Spark has no use for it

    context = TaskContext.get()
    assert context is not None
    rng = random.Random(seed * 2**32 + context.taskAttemptId())  # noqa: S311  a name
    clock = SystemClock()
    while True:
        yield nonce_at(clock.now_ms(), rng)


def nonce_at(now_ms: int, rng: random.Random) -> int:
    """Return a nonce that says when it was made."""
    return (now_ms // 1000 & 0xFFFF_FFFF) << 32 | rng.getrandbits(32)


def tier_partition(
    place: Place, names: Callable[[], StreamNames], seed: int, version: str, note: Note
) -> Callable[[Iterable[TierRun]], Iterator[TierOutcome]]:
    """Return the function that Spark calls with the runs of a partition, on the executor."""

    def work(runs: Iterable[TierRun]) -> Iterator[TierOutcome]:
        check_version(version)
        for run, nonce in zip(runs, nonces(seed), strict=False):
            outcome = asyncio.run(run_tier_task(place, run, names(), nonce))
            note(len(run.keys), run.size_bytes, outcome.facts.rows if outcome.facts else 0)
            yield outcome

    return work
