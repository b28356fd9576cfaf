import asyncio

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.errors import BucketMisuse, ObjectMissing


def test_bytes_are_kept_and_given_back_without_a_copy() -> None:
    data = b"x" * 1000

    async def scenario() -> None:
        bucket = MemoryBucket()
        await bucket.put_if_absent("created", data)
        await bucket.put("put", data)
        assert await bucket.get("created") is data
        assert await bucket.get("put") is data

    asyncio.run(scenario())


def test_no_call_ever_suspends() -> None:
    bucket = MemoryBucket()
    for call in (
        bucket.put_if_absent("a", b"1"),
        bucket.put("a", b"2"),
        bucket.get("a"),
        bucket.get_range("a", 0, 1),
        bucket.delete("a"),
        bucket.close(),
    ):
        try:
            call.send(None)
        except StopIteration:
            continue
        raise AssertionError("it waited for something")


def test_objects_outlive_close_for_the_next_node() -> None:
    async def scenario() -> None:
        bucket = MemoryBucket()
        await bucket.put_if_absent("a", b"1")
        await bucket.close()
        assert await bucket.get("a") == b"1"

    asyncio.run(scenario())


def test_a_view_is_a_range_without_a_copy() -> None:
    data = bytes(range(200))

    async def scenario() -> None:
        bucket = MemoryBucket()
        await bucket.put("a", data)
        for start, length in ((0, 200), (0, 0), (7, 50), (190, 50), (200, 1), (500, 9)):
            view = bucket.view("a", start, length)
            assert view == await bucket.get_range("a", start, length)
            assert view.obj is data
            assert view.readonly
        with pytest.raises(ObjectMissing):
            bucket.view("b", 0, 1)
        with pytest.raises(BucketMisuse):
            bucket.view("a", -1, 1)
        kept = bucket.view("a", 0, 200)
        await bucket.delete("a")
        assert kept == data

    asyncio.run(scenario())
