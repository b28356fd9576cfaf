"""Many ranges of a disk's files by one call, both ways of reading."""

import asyncio
from pathlib import Path

import pytest

from bourn.bucket import local, workers
from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Range, ReadsMany
from bourn.errors import BucketMisuse, BucketRefused
from bourn.limits import LOCAL_CHAIN_MAX

OBJECTS = 2 * LOCAL_CHAIN_MAX + 5


def body(number: int) -> bytes:
    return b"%d" % number * (1 + number % 7)


async def filled(root: Path, *, nameless: bool) -> LocalBucket:
    bucket = LocalBucket(root, nameless=nameless)
    for number in range(OBJECTS):
        await bucket.put_if_absent(f"d/{number}", body(number))
    return bucket


both_ways = pytest.mark.parametrize("nameless", [True, False])


@both_ways
def test_each_range_comes_as_if_it_were_asked_for_alone(tmp_path: Path, *, nameless: bool) -> None:
    async def scenario() -> None:
        bucket = await filled(tmp_path, nameless=nameless)
        wanted = [Range(f"d/{number}", number % 3, number % 5) for number in range(OBJECTS)]
        wanted += [Range("d/3", 0, 0), Range("d/3", 1000, 10), Range("d/10", 0, 1 << 20)]
        found = await bucket.get_ranges(wanted)
        assert found == [await bucket.get_range(*one) for one in wanted]
        assert await bucket.get_ranges([]) == []
        await bucket.close()

    asyncio.run(scenario())


@both_ways
def test_what_cannot_be_had_is_none_and_the_rest_is_there(
    tmp_path: Path, *, nameless: bool
) -> None:
    async def scenario() -> None:
        bucket = await filled(tmp_path, nameless=nameless)
        wanted = [
            Range("d/1", 0, 9),
            Range("d/nowhere", 0, 9),
            Range("d", 0, 9),
            Range("d/2", 0, 9),
        ]
        assert await bucket.get_ranges(wanted) == [body(1), None, None, body(2)]
        with pytest.raises(BucketMisuse):
            await bucket.get_ranges([Range("d/1", 0, 1), Range("../d", 0, 1)])
        with pytest.raises(BucketMisuse):
            await bucket.get_ranges([Range("d/1", -1, 1)])
        await bucket.close()
        with pytest.raises(BucketRefused, match="closed"):
            await bucket.get_ranges([Range("d/1", 0, 1)])

    asyncio.run(scenario())


def test_those_beyond_the_table_wait_in_line_and_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOCAL_JOBS_MAX", 5)
    monkeypatch.setattr(local, "LOCAL_CHAIN_MAX", 3)

    async def scenario() -> None:
        bucket = await filled(tmp_path, nameless=True)
        wanted = [Range(f"d/{number}", 0, 100) for number in range(OBJECTS)]
        expected = [body(number) for number in range(OBJECTS)]
        calls = [asyncio.ensure_future(bucket.get_ranges(wanted)) for _ in range(6)]
        singles = [asyncio.ensure_future(bucket.get("d/7")) for _ in range(20)]
        await asyncio.sleep(0)  # noqa: TID251  a bare yield: all are handed in now
        calls[1].cancel()
        calls[4].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for at, outcome in enumerate(outcomes):
            if at in {1, 4}:
                assert isinstance(outcome, asyncio.CancelledError)
            else:
                assert outcome == expected
        assert await asyncio.gather(*singles) == [body(7)] * 20
        assert bucket._readers is not None
        assert sorted(bucket._readers._free) == list(range(5)), "every row is free again"
        await bucket.close()

    asyncio.run(scenario())


def test_only_buckets_that_gain_by_it_offer_it(tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path)
    assert isinstance(bucket, ReadsMany)
    assert not isinstance(MemoryBucket(), ReadsMany)
    asyncio.run(bucket.close())
