"""One contract, every adapter.

The S3 adapter runs against moto, and against versitygw where that is installed or built
(BOURN_TEST_VERSITYGW=build builds it; see tests/s3server.py).
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bourn.bucket.port import Bucket, ObjectInfo
from bourn.errors import BucketMisuse, ObjectExists, ObjectMissing
from bourn.limits import LIST_PAGE_KEYS, MIB
from tests.s3server import MOTO_PAGE_KEYS

ILLEGAL_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/..",
    "../a",
    "a/../b",
    "a/./b",
    "a b",
    "a\n",
    "a\0b",
    "a\\b",
    "a%2e",
    "a~b",
    "a:b",
    "a*",
    "naïve",
    "日本",
    "a\ud800",
    "x" * 256,
    "/".join(["x" * 200] * 4),
)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def listed(bucket: Bucket, prefix: str = "", after: str = "") -> list[str]:
    return [info.key async for info in bucket.list(prefix, after)]


@pytest.mark.parametrize("size", [0, 1, 4096, MIB + 1, 10 * MIB])
def test_a_created_object_reads_back_byte_for_byte(bucket: Bucket, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]

    async def scenario() -> None:
        await bucket.put_if_absent("dir/object", data)
        assert await bucket.get("dir/object") == data
        assert await bucket.get_range("dir/object", 0, size) == data
        assert [info async for info in bucket.list("")] == [ObjectInfo("dir/object", size)]

    run(scenario())


def test_a_second_create_is_refused_and_changes_nothing(bucket: Bucket) -> None:
    async def scenario() -> None:
        await bucket.put_if_absent("a/b", b"first")
        for data in (b"second", b"first", b""):
            with pytest.raises(ObjectExists) as caught:
                await bucket.put_if_absent("a/b", data)
            assert caught.value.key == "a/b"
        assert await bucket.get("a/b") == b"first"

    run(scenario())


@pytest.mark.parametrize("size", [3, 300_000])
def test_of_many_concurrent_creators_exactly_one_wins_and_its_bytes_stay(
    bucket: Bucket, size: int
) -> None:
    async def create(number: int) -> int | None:
        try:
            await bucket.put_if_absent("race/key", bytes([number]) * size)
        except ObjectExists:
            return None
        return number

    async def scenario() -> None:
        outcomes = await asyncio.gather(*map(create, range(32)))
        winners = [number for number in outcomes if number is not None]
        assert len(winners) == 1
        assert await bucket.get("race/key") == bytes(winners) * size

    run(scenario())


def test_concurrent_creators_of_different_keys_all_succeed(bucket: Bucket) -> None:
    async def scenario() -> None:
        keys = [f"d{number % 3}/{number:03}" for number in range(64)]
        await asyncio.gather(*(bucket.put_if_absent(key, key.encode()) for key in keys))
        found = await asyncio.gather(*(bucket.get(key) for key in keys))
        assert found == [key.encode() for key in keys]
        assert await listed(bucket) == sorted(keys)

    run(scenario())


def test_a_put_replaces_what_is_there(bucket: Bucket) -> None:
    async def scenario() -> None:
        await bucket.put("a/b", b"long content")
        await bucket.put("a/b", b"short")
        assert await bucket.get("a/b") == b"short"
        await bucket.put("a/b", b"x" * (6 * MIB))
        assert await bucket.get("a/b") == b"x" * (6 * MIB)
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent("a/b", b"other")

    run(scenario())


@pytest.mark.parametrize("size", [0, 5000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_can_be_stored(bucket: Bucket, kind: type, size: int) -> None:
    data = bytes(size)

    async def scenario() -> None:
        await bucket.put_if_absent("created", kind(data))
        await bucket.put("put", kind(b"xx" + data)[2:])
        for key in ("created", "put"):
            found = await bucket.get(key)
            assert type(found) is bytes
            assert found == data
        assert type(await bucket.get_range("put", 0, size)) is bytes

    run(scenario())


def test_a_stored_object_does_not_follow_its_buffer(bucket: Bucket) -> None:
    async def scenario() -> None:
        data = bytearray(b"before")
        await bucket.put_if_absent("key", data)
        data[:] = b"behind"
        assert await bucket.get("key") == b"before"

    run(scenario())


@pytest.mark.parametrize("key", ["absent", "dir/absent", "there/below", "dir"])
def test_what_is_absent_is_missing_and_can_be_deleted(bucket: Bucket, key: str) -> None:
    async def scenario() -> None:
        await bucket.put_if_absent("there", b"1")
        await bucket.put_if_absent("dir/there", b"2")
        with pytest.raises(ObjectMissing):
            await bucket.get(key)
        for start, length in ((0, 10), (0, 0), (7, 1), (0, 64 * MIB)):
            with pytest.raises(ObjectMissing):
                await bucket.get_range(key, start, length)
        if key != "dir":  # the name of a directory is nobody's to delete
            await bucket.delete(key)
        assert await listed(bucket) == ["dir/there", "there"]

    run(scenario())


@pytest.mark.parametrize(
    ("start", "length"),
    [
        *((0, 0), (0, 1), (0, 10), (3, 4), (9, 1), (9, 2), (8, 100), (10, 0), (10, 1), (11, 5)),
        *((0, 9 * MIB), (5, 9 * MIB), (10, 9 * MIB), (2**62, 5)),
    ],
)
def test_a_range_ends_where_the_object_ends(bucket: Bucket, start: int, length: int) -> None:
    data = b"0123456789"

    async def scenario() -> None:
        await bucket.put_if_absent("key", data)
        await bucket.put_if_absent("empty", b"")
        assert await bucket.get_range("key", start, length) == data[start : start + length]
        assert await bucket.get_range("empty", start, length) == b""

    run(scenario())


def test_keys_are_listed_in_the_order_of_their_bytes(bucket: Bucket) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b-1", "a/ba", "a/c-/x", "a/c/x", "a/c0", "a0", "B", "_", "z"]
    keys += ["0/1", "a/A/1", "a/_/1", "a/a/1", "..a", "a/-", "a/...", "a_/1"]

    async def scenario() -> None:
        for key in reversed(keys):
            await bucket.put_if_absent(key, key.encode())
        infos = [info async for info in bucket.list("")]
        assert [info.key for info in infos] == sorted(keys)
        assert [info.size_bytes for info in infos] == [len(key) for key in sorted(keys)]
        for after in sorted(keys):
            assert await listed(bucket, "", after) == [key for key in sorted(keys) if key > after]

    run(scenario())


def test_a_prefix_is_a_directory(bucket: Bucket) -> None:
    keys = ["wal/1", "wal/2/x", "wal-1", "wal1/x", "wa/l", "x/wal/1", "wal/2-x"]

    async def scenario() -> None:
        for key in keys:
            await bucket.put_if_absent(key, b"")
        assert await listed(bucket, "wal/") == ["wal/1", "wal/2-x", "wal/2/x"]
        assert await listed(bucket, "wal/2/") == ["wal/2/x"]
        assert await listed(bucket, "x/") == ["x/wal/1"]
        assert await listed(bucket, "w/") == []
        assert await listed(bucket, "wal/1/") == []
        assert await listed(bucket, "none/at/all/") == []

    run(scenario())


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("", ["d/1", "d/2/a", "d/2/c", "d/3"]),
        ("d", ["d/1", "d/2/a", "d/2/c", "d/3"]),
        ("c/zzz", ["d/1", "d/2/a", "d/2/c", "d/3"]),
        ("d-", ["d/1", "d/2/a", "d/2/c", "d/3"]),
        ("d/0", ["d/1", "d/2/a", "d/2/c", "d/3"]),
        ("d/1", ["d/2/a", "d/2/c", "d/3"]),
        ("d/2", ["d/2/a", "d/2/c", "d/3"]),
        ("d/2-", ["d/2/a", "d/2/c", "d/3"]),
        ("d/2/a", ["d/2/c", "d/3"]),
        ("d/2/b", ["d/2/c", "d/3"]),
        ("d/20", ["d/3"]),
        ("d/3", []),
        ("d0", []),
        ("e/1", []),
    ],
)
def test_a_listing_starts_strictly_behind_a_key(
    bucket: Bucket, after: str, expected: list[str]
) -> None:
    async def scenario() -> None:
        for key in ("c/9", "d/1", "d/2/a", "d/2/c", "d/3", "e/1"):
            await bucket.put_if_absent(key, b"")
        assert await listed(bucket, "d/", after) == expected

    run(scenario())


def test_a_listing_goes_on_over_many_pages(bucket: Bucket, request: pytest.FixtureRequest) -> None:
    page_keys = MOTO_PAGE_KEYS if "moto" in request.node.name else LIST_PAGE_KEYS
    keys = [f"many/{number % 2}/{number:05}" for number in range(page_keys + 150)]

    async def scenario() -> None:
        for start in range(0, len(keys), 50):
            part = keys[start : start + 50]
            await asyncio.gather(*(bucket.put_if_absent(key, b"1") for key in part))
        await bucket.put_if_absent("many.more", b"1")
        assert await listed(bucket, "many/") == sorted(keys)
        for index in (0, page_keys // 2 + 7, page_keys):
            assert await listed(bucket, "many/", sorted(keys)[index]) == sorted(keys)[index + 1 :]

    run(scenario())


def test_a_listing_may_be_left_early_and_begun_again(bucket: Bucket) -> None:
    async def scenario() -> None:
        for number in range(10):
            await bucket.put_if_absent(f"k/{number}", b"")
        for _ in range(3):
            async for info in bucket.list("k/"):
                if info.key == "k/4":
                    break
        assert len(await listed(bucket, "k/")) == 10

    run(scenario())


def test_objects_can_be_deleted_while_they_are_listed(bucket: Bucket) -> None:
    async def scenario() -> None:
        keys = [f"k/{number}" for number in range(20)]
        for key in keys:
            await bucket.put_if_absent(key, b"")
        seen = []
        async for info in bucket.list("k/"):
            seen.append(info.key)
            await bucket.delete(info.key)
        assert seen == sorted(keys)
        assert await listed(bucket) == []

    run(scenario())


def test_deleting_twice_is_the_same_as_once_and_frees_the_key(bucket: Bucket) -> None:
    async def scenario() -> None:
        await bucket.put_if_absent("a/b", b"1")
        await bucket.delete("a/b")
        await bucket.delete("a/b")
        with pytest.raises(ObjectMissing):
            await bucket.get("a/b")
        await bucket.put_if_absent("a/b", b"2")
        assert await bucket.get("a/b") == b"2"

    run(scenario())


@pytest.mark.parametrize("key", ILLEGAL_KEYS)
def test_an_illegal_key_is_refused_by_every_call(bucket: Bucket, key: str) -> None:
    async def scenario() -> None:
        for call in (
            bucket.put_if_absent(key, b"1"),
            bucket.put(key, b"1"),
            bucket.get(key),
            bucket.get_range(key, 0, 1),
            bucket.delete(key),
        ):
            with pytest.raises(BucketMisuse):
                await call
        if key:
            with pytest.raises(BucketMisuse):
                await listed(bucket, f"{key}/")
            with pytest.raises(BucketMisuse):
                await listed(bucket, "", key)
        assert await listed(bucket) == []

    run(scenario())


def test_half_a_segment_is_no_prefix_and_a_negative_range_is_none(bucket: Bucket) -> None:
    async def scenario() -> None:
        await bucket.put_if_absent("wal/1", b"123")
        with pytest.raises(BucketMisuse):
            await listed(bucket, "wal")
        for start, length in ((-1, 1), (0, -1), (2**63, 1)):
            with pytest.raises(BucketMisuse):
                await bucket.get_range("wal/1", start, length)

    run(scenario())


def test_a_cancelled_put_leaves_a_whole_object_or_none(bucket: Bucket) -> None:
    data = b"x" * (2 * MIB)

    async def scenario() -> None:
        puts = [
            asyncio.ensure_future(bucket.put_if_absent(f"k/{number}", data)) for number in range(8)
        ]
        for put in puts[::2]:
            await asyncio.wait([put], timeout=0.001)
            put.cancel()
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert outcomes[1::2] == [None] * 4
        for _ in range(3):  # a cancelled one may still arrive
            for info in [info async for info in bucket.list("k/")]:
                assert info.size_bytes == len(data)
                assert await bucket.get(info.key) == data
        current = asyncio.current_task()
        assert [task for task in asyncio.all_tasks() if task is not current] == []

    run(scenario())


def test_a_cancelled_get_does_not_disturb_the_others(bucket: Bucket) -> None:
    async def scenario() -> None:
        objects = {f"k/{number}": bytes([number]) * 300_000 for number in range(16)}
        for key, data in objects.items():
            await bucket.put_if_absent(key, data)
        gets = {key: asyncio.ensure_future(bucket.get(key)) for key in objects}
        await asyncio.wait(gets.values(), timeout=0.0005)
        for key in list(objects)[::3]:
            gets[key].cancel()
        await asyncio.wait(gets.values())
        for key, get in gets.items():
            assert get.cancelled() or get.result() == objects[key]
        assert [await bucket.get(key) for key in objects] == list(objects.values())

    run(scenario())


def test_a_bucket_says_where_it_is(bucket: Bucket) -> None:
    assert bucket.name
    assert isinstance(bucket.is_remote, bool)
    assert "secret" not in bucket.name
