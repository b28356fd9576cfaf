import asyncio

from bourn.bucket.memory import MemoryBucket


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
