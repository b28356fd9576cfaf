"""A ring of copies: whatever happens to it, every read gives what the bucket has."""

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from bourn.bucket import spool as module
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.spool import Spool, SpooledBucket, open_spool
from bourn.errors import BucketMisuse, BucketUnavailable, ObjectExists, ObjectMissing
from bourn.limits import MIB, SPOOL_BYTES_MIN

SIZE = 4096


class Far(MemoryBucket):
    """Counts what is asked of it."""

    is_remote = True  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.error: Exception | None = None

    async def put_if_absent(self, key: str, data: bytes | bytearray | memoryview) -> None:
        if self.error is not None:
            raise self.error
        await super().put_if_absent(key, data)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads += 1
        return await super().get_range(key, start, length)


def ring(directory: Path, size_bytes: int = SIZE) -> Spool:
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return Spool(descriptor, size_bytes)


def on_ring(
    directory: Path,
    scenario: Callable[[Far, SpooledBucket], Awaitable[None]],
    size_bytes: int = SIZE,
) -> None:
    async def main() -> None:
        far = Far()
        bucket = SpooledBucket(far, ring(directory, size_bytes))
        try:
            await scenario(far, bucket)
        finally:
            await bucket.close()

    asyncio.run(main())


async def written(bucket: SpooledBucket) -> None:
    """Wait until all copies are on the file."""
    await asyncio.get_running_loop().run_in_executor(bucket._writer, lambda: None)
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251  a bare yield: the callbacks run


def test_a_commit_is_read_from_the_file_and_everything_else_from_the_bucket(tmp_path: Path) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        await bucket.put_if_absent("wal/1/2", b"0123456789")
        await bucket.put_if_absent("catalog/1", b"other")
        await written(bucket)
        assert await bucket.get_range("wal/1/2", 3, 4) == b"3456"
        assert await bucket.get_range("wal/1/2", 0, 10) == b"0123456789"
        assert (far.reads, bucket.hits) == (0, 2)
        assert await bucket.get_range("wal/1/2", 8, 100) == b"89"
        assert await bucket.get_range("catalog/1", 0, 5) == b"other"
        assert (far.reads, bucket.hits) == (2, 2)
        assert await bucket.get("wal/1/2") == b"0123456789"
        assert [info.key async for info in bucket.list("")] == ["catalog/1", "wal/1/2"]
        with pytest.raises(BucketMisuse):
            await bucket.get_range("wal/1/2", -1, 2)
        assert bucket.is_remote
        assert bucket.name == far.name

    on_ring(tmp_path, scenario)


def test_a_copy_that_was_overwritten_is_not_given_at_once_either(tmp_path: Path) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        for number in range(20):
            await bucket.put_if_absent(f"wal/1/{number}", bytes([number]) * (SIZE // 8))
            await written(bucket)
            for older in range(number + 1):
                found = bucket.range_now(f"wal/1/{older}", 0, SIZE // 8)
                assert found is None or found == bytes([older]) * (SIZE // 8)
            assert bucket.range_now(f"wal/1/{number}", 0, SIZE // 8) is not None
        assert bucket.range_now("wal/1/0", 0, SIZE // 8) is None
        assert far.reads == 0

    on_ring(tmp_path, scenario)


def test_what_was_not_put_is_never_read(tmp_path: Path) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        far.error = BucketUnavailable("wal/1/1", "no answer")
        with pytest.raises(BucketUnavailable):
            await bucket.put_if_absent("wal/1/1", b"lost")
        far.error = None
        await written(bucket)
        with pytest.raises(ObjectMissing):
            await bucket.get_range("wal/1/1", 0, 4)
        await far.put_if_absent("wal/1/2", b"theirs")
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent("wal/1/2", b"ours!!")
        await written(bucket)
        assert await bucket.get_range("wal/1/2", 0, 6) == b"theirs"

    on_ring(tmp_path, scenario)


def test_what_is_replaced_or_deleted_is_not_read_from_the_file(tmp_path: Path) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        for number in (1, 2, 3):
            await bucket.put_if_absent(f"wal/1/{number}", b"first")
        await written(bucket)
        await bucket.put("wal/1/1", b"other")
        await bucket.delete("wal/1/2")
        bucket.forget_copy("wal/1/3")
        bucket.forget_copy("wal/1/4")
        assert await bucket.get_range("wal/1/1", 0, 5) == b"other"
        with pytest.raises(ObjectMissing):
            await bucket.get_range("wal/1/2", 0, 5)
        assert await bucket.get_range("wal/1/3", 0, 5) == b"first"
        assert (far.reads, bucket.hits) == (3, 0)

    on_ring(tmp_path, scenario)


def test_the_newest_take_the_place_of_the_oldest(tmp_path: Path) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        for number in range(10):
            await bucket.put_if_absent(f"wal/1/{number}", bytes([number]) * 1000)
            await written(bucket)
        for number in range(10):
            assert await bucket.get_range(f"wal/1/{number}", 0, 1000) == bytes([number]) * 1000
        assert (far.reads, bucket.hits) == (6, 4)
        await bucket.put_if_absent("wal/1/large", b"x" * (SIZE // 4 + 1))
        await written(bucket)
        assert len(await bucket.get_range("wal/1/large", 0, 10)) == 10
        assert far.reads == 7, "it would have taken the place of too many"

    on_ring(tmp_path, scenario)


sizes = st.lists(st.integers(0, 1100), max_size=60)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes, st.randoms(use_true_random=False))
def test_every_read_gives_what_was_put(tmp_path: Path, sizes: list[int], rng: object) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        for number, size in enumerate(sizes):
            await bucket.put_if_absent(f"wal/1/{number}", bytes([number]) * size)
            if rng.random() < 0.5:  # type: ignore[attr-defined]
                await written(bucket)
            asked = rng.randrange(number + 1)  # type: ignore[attr-defined]
            start = rng.randrange(1200)  # type: ignore[attr-defined]
            expected = (bytes([asked]) * sizes[asked])[start : start + 500]
            assert await bucket.get_range(f"wal/1/{asked}", start, 500) == expected
        for number, size in enumerate(sizes):
            assert await bucket.get_range(f"wal/1/{number}", 0, size) == bytes([number]) * size
        places = [*bucket._spool._ring]
        taken = sorted((place.offset, place.offset + place.length) for place in places)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(taken))
        assert all(0 <= start <= end <= SIZE for start, end in taken)

    on_ring(tmp_path, scenario)


def test_a_part_that_is_overwritten_while_it_is_read_comes_from_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        await bucket.put_if_absent("wal/1/0", b"a" * 1000)
        await written(bucket)
        read = bucket._spool.read
        loop = asyncio.get_running_loop()

        def read_late(*wanted: object) -> bytes:
            async def overwrite() -> None:
                for number in range(1, 6):
                    await bucket.put_if_absent(f"wal/1/{number}", b"b" * 1000)
                await written(bucket)

            asyncio.run_coroutine_threadsafe(overwrite(), loop).result(10)
            return read(*wanted)  # type: ignore[arg-type]

        monkeypatch.setattr(bucket._spool, "read", read_late)
        assert await bucket.get_range("wal/1/0", 0, 1000) == b"a" * 1000
        assert (far.reads, bucket.hits) == (1, 0)

    on_ring(tmp_path, scenario)


def test_a_disk_that_fails_costs_nothing_but_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        await bucket.put_if_absent("wal/1/0", b"a" * 1000)
        await written(bucket)
        monkeypatch.setattr("os.pwrite", fail)
        monkeypatch.setattr("os.pread", fail)
        for number in (1, 2):
            await bucket.put_if_absent(f"wal/1/{number}", b"b" * 1000)
        await written(bucket)
        assert await bucket.get_range("wal/1/0", 0, 1000) == b"a" * 1000
        assert await bucket.get_range("wal/1/1", 0, 1000) == b"b" * 1000
        assert (far.reads, bucket.hits) == (2, 0)
        assert bucket._pending_bytes == 0

    on_ring(tmp_path, scenario)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the spool cannot be written to: [Errno 28] No space left on device"
    ]


def test_a_copy_that_takes_too_long_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def hang(*_: object) -> bytes:
        go.wait(10)
        return b""

    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        await bucket.put_if_absent("wal/1/0", b"a" * 1000)
        await written(bucket)
        monkeypatch.setattr(bucket._spool, "read", hang)
        reading = asyncio.ensure_future(bucket.get_range("wal/1/0", 0, 1000))
        await asyncio.sleep(0)  # noqa: TID251  a bare yield: it has begun
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await bucket.get_range("wal/1/0", 0, 1000) == b"a" * 1000
        assert (far.reads, bucket.hits) == (1, 0)
        go.set()

    on_ring(tmp_path, scenario)


def test_a_slow_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPOOL_PENDING_BYTES_MAX", 1500)

    async def scenario(far: Far, bucket: SpooledBucket) -> None:
        go = asyncio.Event()
        loop = asyncio.get_running_loop()
        held = loop.run_in_executor(
            bucket._writer, lambda: asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        )
        for number in range(3):
            await bucket.put_if_absent(f"wal/1/{number}", b"a" * 1000)
        assert bucket._pending_bytes == 1000
        go.set()
        await held
        await written(bucket)
        for number in range(3):
            assert len(await bucket.get_range(f"wal/1/{number}", 0, 1000)) == 1000
        assert (far.reads, bucket.hits) == (2, 1)

    on_ring(tmp_path, scenario)


def test_a_spool_is_a_nameless_file_of_a_share_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_spool(tmp_path, SPOOL_BYTES_MIN)
    assert isinstance(found, Spool)
    assert list(tmp_path.iterdir()) == []
    found.close()
    assert "No such file" in str(open_spool(tmp_path / "nowhere", MIB * 1000))
    assert "too little space" in str(open_spool(tmp_path, 1))
    monkeypatch.setattr(module, "_memory_of", lambda _: "tmpfs")
    assert "is memory (tmpfs)" in str(open_spool(tmp_path, SPOOL_BYTES_MIN))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="Linux's")
def test_a_file_system_in_memory_is_known() -> None:
    assert module._memory_of(Path("/dev/shm")) == "tmpfs"
    assert module._memory_of(Path("/proc")) == ""
