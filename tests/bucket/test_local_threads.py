"""The threads and descriptors of a bucket on a disk: none too many, none left, none used twice."""

import asyncio
import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from bourn.bucket import local, workers
from bourn.bucket.local import LocalBucket
from bourn.errors import BucketRefused, BucketUnavailable, ObjectExists
from tests.bucket.test_local import files_below, linux_only, listed


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def count() -> int:
    return open_descriptors()


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bourn-")]


@linux_only
def test_closing_waits_for_what_runs_and_leaves_no_thread_and_no_descriptor(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path)
        puts = [
            asyncio.ensure_future(bucket.put_if_absent(f"d{number}/key", bytes(100_000)))
            for number in range(20)
        ]
        await asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED)
        puts[-1].cancel()
        await bucket.put("d0/other", b"1")
        await bucket.close()
        await bucket.close()
        done = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(outcome) for outcome in done} <= {type(None), asyncio.CancelledError}
        for call in (bucket.get("d0/key"), bucket.put("x", b""), bucket.put_if_absent("x", b"")):
            with pytest.raises(BucketRefused, match="closed"):
                await call
        with pytest.raises(BucketRefused, match="closed"):
            await listed(bucket)
        assert (open_descriptors() - loop_descriptors, own_threads()) == before

    gc.collect()
    before = open_descriptors(), own_threads()
    loop_descriptors = asyncio.run(count()) - before[0]
    asyncio.run(scenario())


@linux_only
def test_no_more_directories_stay_open_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOCAL_DIRECTORIES_OPEN_MAX", 4)

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=3)
        await bucket.put_if_absent("first", b"")
        before = open_descriptors()
        for turn in range(2):
            await asyncio.gather(
                *(bucket.put_if_absent(f"d{number}/{turn}", b"1") for number in range(40))
            )
            # And a thread's own: the file of its next put, and the directory that this is for.
            assert open_descriptors() <= before + 4 + 3 * 2
        assert len(await listed(bucket)) == 81
        await bucket.close()

    asyncio.run(scenario())


@linux_only
def test_a_file_made_ahead_is_used_in_the_directory_that_it_was_made_for(tmp_path: Path) -> None:
    """Elsewhere may be another disk, where it cannot be given a name."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")

    async def scenario(elsewhere: str) -> None:
        (tmp_path / "elsewhere").symlink_to(elsewhere)
        bucket = LocalBucket(tmp_path, threads=1)
        descriptors = set()
        for number in range(12):
            name = ("here", "elsewhere")[number // 2 % 2]
            key, data = f"{name}/{number}", b"%d" % number * 10
            if number % 2 == 0:
                bucket._directories.clear()  # the next one is given the same descriptor
            await bucket.put_if_absent(key, data)
            descriptors.add(bucket._directories[name].descriptor)
            assert await bucket.get(key) == data
            # What the thread does behind its answer is done before its next one, and opens nothing.
            assert bucket._writers is not None
            await bucket._writers.size(bucket._disk.top, key.encode())
        assert len(descriptors) == 1
        await bucket.close()

    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        asyncio.run(scenario(elsewhere))


@linux_only
def test_of_files_made_ahead_every_one_is_used_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=1)
        await bucket.put_if_absent("d/0", b"0")
        before = open_descriptors()
        for number in range(1, 40):
            await bucket.put_if_absent(f"d/{number}", b"%d" % number)
            with pytest.raises(ObjectExists):
                await bucket.put_if_absent(f"d/{number}", b"another")
        for number in range(40):
            assert await bucket.get(f"d/{number}") == b"%d" % number
        # The thread's own two may be there by now, and the last file is closed behind its answer.
        assert open_descriptors() <= before + 3
        paths = list((tmp_path / "d").iterdir())
        assert len({path.stat().st_ino for path in paths}) == len(paths) == 40
        await bucket.close()

    asyncio.run(scenario())


@linux_only
@pytest.mark.parametrize("failing", ["open", "link"])
def test_a_file_system_without_nameless_files_is_served_the_portable_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    usual: Any = getattr(os, failing)

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if failing == "link" or arguments[0] & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return usual(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, refuse)
        bucket = LocalBucket(tmp_path)
    assert bucket._writers is None

    async def scenario() -> None:
        await bucket.put_if_absent("d/key", b"1")
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent("d/key", b"2")
        assert await bucket.get("d/key") == b"1"
        assert files_below(tmp_path) == ["d/key"]
        await bucket.close()

    before = open_descriptors()
    asyncio.run(scenario())
    assert open_descriptors() < before


@linux_only
def test_jobs_beyond_the_table_wait_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOCAL_JOBS_MAX", 3)

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=2)
        await bucket.put_if_absent("k/first", b"")
        puts = [
            asyncio.ensure_future(bucket.put_if_absent(f"k/{number}", b"%d" % number))
            for number in range(60)
        ]
        await asyncio.sleep(0)  # noqa: TID251  a bare yield: all are handed in now
        for put in puts[40:50]:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        assert [put.cancelled() for put in puts] == [40 <= index < 50 for index in range(60)]
        for number in (*range(40), *range(50, 60)):
            assert await bucket.get(f"k/{number}") == b"%d" % number
        # Those cancelled while they waited in line have never begun.
        assert len(await listed(bucket)) == 51
        await bucket.close()

    asyncio.run(scenario())


@linux_only
def test_threads_that_have_ended_take_no_more_jobs(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path)
        await bucket.put_if_absent("k/1", b"")
        assert bucket._readers is not None
        await bucket._readers.close()
        with pytest.raises(BucketUnavailable, match="closed"):
            await bucket.get("k/1")
        bucket._readers = None
        await bucket.close()

    asyncio.run(scenario())


def test_a_bucket_may_serve_one_event_loop_after_another(tmp_path: Path) -> None:
    bucket = LocalBucket(tmp_path)
    for turn in range(3):
        asyncio.run(bucket.put_if_absent(f"k/{turn}", b"%d" % turn))
        assert asyncio.run(bucket.get(f"k/{turn}")) == b"%d" % turn
    asyncio.run(bucket.close())


def test_threads_that_begin_at_once_find_nothing_left_to_import():
    # numpy imports `ma` when it is first asked for; eight threads at once broke off in it.
    program = "import bourn.bucket.kernel, numpy, sys; sys.exit('ma' not in vars(numpy))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
