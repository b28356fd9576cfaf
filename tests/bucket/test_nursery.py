"""Where files are made before they have a name, and that nobody can tell afterwards."""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from bourn.bucket import nursery
from bourn.bucket.disk import TEMPORARY
from bourn.bucket.local import LocalBucket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nameless files are Linux's")

SHARED_MEMORY = Path("/dev/shm")


def nurseries(root: Path) -> list[str]:
    return sorted(path.name for path in (root / TEMPORARY).iterdir())


async def put_and_check(bucket: LocalBucket, keys: list[str]) -> None:
    for key in keys:
        await bucket.put_if_absent(key, key.encode())
    for key in keys:
        assert await bucket.get(key) == key.encode()


def test_files_are_made_in_a_directory_of_their_own_that_goes_with_the_bucket(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=2)
        await put_and_check(bucket, ["d/1", "e/2", "top"])
        assert len(nurseries(tmp_path)) == 1
        assert not list((tmp_path / TEMPORARY).glob("*/*"))
        await bucket.close()
        assert nurseries(tmp_path) == []

    asyncio.run(scenario())


def test_a_directory_is_changed_for_a_new_one_before_it_is_worn_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "NURSERY_FILES", 10)

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=3)
        seen: set[str] = set()
        for number in range(10):
            await put_and_check(bucket, [f"d/{number}-{turn}" for turn in range(10)])
            seen.update(nurseries(tmp_path))
            assert 1 <= len(nurseries(tmp_path)) <= 3  # an old one is removed behind the new one
        assert len(seen) >= 5
        await asyncio.gather(
            *(bucket.put_if_absent(f"e/{number}", bytes([number])) for number in range(200))
        )
        for number in range(200):
            assert await bucket.get(f"e/{number}") == bytes([number])
        await bucket.close()
        assert nurseries(tmp_path) == []

    asyncio.run(scenario())


def test_a_directory_that_somebody_removes_is_done_without_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "NURSERY_FILES", 1000)

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=1)
        await put_and_check(bucket, ["d/1"])
        shutil.rmtree(tmp_path / TEMPORARY)
        keys = [f"d/again-{number}" for number in range(4)]
        await put_and_check(bucket, keys)  # the first may have its file from before
        for number in range(1000):
            if (tmp_path / TEMPORARY).exists() and nurseries(tmp_path):
                break
            await bucket.put_if_absent(f"d/later-{number}", b"1")
        assert len(nurseries(tmp_path)) == 1
        await bucket.close()

    asyncio.run(scenario())


def test_directories_of_processes_that_are_gone_are_removed_and_those_in_use_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / TEMPORARY / "1-0").mkdir(parents=True)

    async def scenario() -> None:
        first = LocalBucket(tmp_path, threads=1)
        in_use = nurseries(tmp_path)
        assert "1-0" not in in_use
        second = LocalBucket(tmp_path, threads=1)
        assert set(in_use) < set(nurseries(tmp_path))
        await put_and_check(first, ["d/1", "d/2"])
        await put_and_check(second, ["d/3", "d/4"])
        await first.close()
        await put_and_check(second, ["d/5", "d/6"])
        await second.close()
        assert nurseries(tmp_path) == []

    asyncio.run(scenario())


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="needs a second file system")
def test_a_directory_on_another_file_system_makes_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("the tests' own files lie there too")
    elsewhere = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))

    async def scenario(name: str) -> None:
        bucket = LocalBucket(tmp_path, threads=1)
        (tmp_path / name).symlink_to(elsewhere)
        keys = [f"{name}/{name}{number}" for number in range(3)]
        await put_and_check(bucket, [*keys, f"here/{name}"])
        await bucket.close()

    try:
        asyncio.run(scenario("one"))
        # Quotas of projects forbid such links within a file system too, which no look tells.
        monkeypatch.setattr(nursery, "_handed_down", lambda _: ())
        asyncio.run(scenario("two"))
        assert len(list(elsewhere.iterdir())) == 6
    finally:
        shutil.rmtree(elsewhere)
