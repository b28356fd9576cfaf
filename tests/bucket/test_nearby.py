"""What is read without a wait is what was written, or nothing."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bourn.bucket import nearby
from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.nearby import NearFiles, read_near
from bourn.bucket.port import Bucket, ReadsNow
from bourn.bucket.spool import Spool, SpooledBucket
from bourn.limits import MIB

DATA = bytes(range(256)) * 16
PIECES = [(0, 1), (0, len(DATA)), (100, 1000), (len(DATA) - 1, 1)]
NOT_THERE = [(0, len(DATA) + 1), (len(DATA), 1), (len(DATA) - 1, 2), (1 << 40, 5)]


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(DATA)
    return found


@pytest.fixture
def directory(tmp_path: Path, file: Path) -> int:
    assert file.exists()
    return os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)


@pytest.mark.parametrize(("start", "length"), PIECES)
def test_a_piece_of_a_file_in_memory_is_read_whole(directory: int, start: int, length: int) -> None:
    before = descriptors()
    found = NearFiles().read(directory, b"file", start, length)
    if found is None:
        pytest.skip("this kernel cannot be asked")
    assert found == DATA[start : start + length]
    assert found.readonly
    assert descriptors() == before


@pytest.mark.parametrize(("start", "length"), NOT_THERE)
def test_what_is_not_there_whole_is_nothing(directory: int, start: int, length: int) -> None:
    before = descriptors()
    assert NearFiles().read(directory, b"file", start, length) is None
    assert descriptors() == before


@pytest.mark.parametrize("name", [b"none", b".", b"file/below", b"none/below", b""])
def test_what_is_no_file_is_nothing(directory: int, name: bytes) -> None:
    before = descriptors()
    assert NearFiles().read(directory, name, 0, 1) is None
    assert descriptors() == before


def test_a_file_that_is_on_the_disk_alone_is_left_to_who_may_wait(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    assert bytes(read_near(descriptor, 0, len(DATA)) or b"") == DATA
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    found = read_near(descriptor, 0, len(DATA))
    if found is not None:
        pytest.skip("this file system keeps all that it has in memory")
    assert os.pread(descriptor, len(DATA), 0) == DATA
    assert bytes(read_near(descriptor, 0, len(DATA)) or b"") == DATA  # now it is there


def test_a_kernel_that_does_not_know_the_call_is_asked_once(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearby, "_OPENAT2", 100_000)
    files = NearFiles()
    assert files.read(directory, b"file", 0, 1) is None
    monkeypatch.undo()
    assert files.read(directory, b"file", 0, 1) is None
    assert files._system is None


def test_a_system_without_the_call_reads_nothing(
    directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearby, "_WITHOUT_WAIT", 0)
    assert NearFiles().read(directory, b"file", 0, 1) is None
    assert read_near(directory, 0, 1) is None


def memory(_: Path) -> Bucket:
    return MemoryBucket()


def local(directory: Path) -> Bucket:
    return LocalBucket(directory / "bucket")


def spooled(directory: Path) -> Bucket:
    ring = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return SpooledBucket(MemoryBucket(), Spool(ring, 16 * MIB))


@pytest.mark.parametrize("make", [memory, local, spooled])
def test_a_bucket_gives_at_once_what_it_gives_or_nothing(
    tmp_path: Path, make: Callable[[Path], Bucket]
) -> None:
    async def scenario() -> None:
        bucket = make(tmp_path)
        assert isinstance(bucket, ReadsNow)
        await bucket.put_if_absent("wal/1/1", DATA)
        if isinstance(bucket, SpooledBucket):
            await asyncio.get_running_loop().run_in_executor(bucket._writer, lambda: None)
            for _ in range(3):
                await asyncio.sleep(0)  # noqa: TID251  a bare yield: the callbacks run
        for start, length in PIECES:
            found = bucket.range_now("wal/1/1", start, length)
            assert found is None or bytes(found) == DATA[start : start + length]
        if make is not local:  # where the kernel may say no
            assert bucket.range_now("wal/1/1", 0, len(DATA)) == DATA
        assert bucket.range_now("wal/1/2", 0, 1) is None
        await bucket.put_if_absent("wal/1/3", DATA)
        await bucket.delete("wal/1/1")
        assert bucket.range_now("wal/1/1", 0, 1) is None
        await bucket.close()
        if make is not memory:
            assert bucket.range_now("wal/1/3", 0, 1) is None

    asyncio.run(scenario())
