"""The threads that write: files made ahead of their puts, and how soon they are let in."""

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bourn.bucket import workers
from bourn.bucket.local import LocalBucket
from bourn.bucket.urgency import ask_for_short_slices

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the native way is Linux's")


@linux_only
def test_a_file_made_ahead_is_put_into_no_other_directory(tmp_path: Path) -> None:
    """Its owner and rights may come from the directory that it was made in."""

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=1)
        for number in range(6):
            directory = tmp_path / f"d{number % 2}"
            directory.mkdir(exist_ok=True)
            directory.chmod(0o2777)  # files of a directory like this take its group
            os.chown(directory, -1, 1000 + number % 2)
            bucket._directories.clear()  # its descriptor is the next one's
            for turn in range(2):
                await bucket.put_if_absent(f"d{number % 2}/{number}-{turn}", b"1")
        await bucket.close()

    if os.geteuid() != 0:
        pytest.skip("needs the right to give directories away")
    asyncio.run(scenario())
    groups = {(path.parent.name, path.stat().st_gid) for path in tmp_path.glob("d?/*")}
    assert groups == {("d0", 1000), ("d1", 1001)}


@linux_only
def test_files_made_ahead_are_nobodys_when_their_directory_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, threads=2)
        for turn in range(4):
            for number in range(4):
                await bucket.put_if_absent(f"d/{number}", b"%d" % turn)
            for number in range(4):
                assert await bucket.get(f"d/{number}") == b"%d" % turn
                await bucket.delete(f"d/{number}")
            (tmp_path / "d").rmdir()
        await bucket.close()

    asyncio.run(scenario())


@linux_only
def test_threads_that_write_for_a_server_ask_to_be_let_in_soon_and_those_for_bulk_work_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask() -> bool:
        asked.append(threading.current_thread().name)
        return False  # as on a system that does not know of it

    monkeypatch.setattr(workers, "ask_for_short_slices", ask)

    async def scenario(bucket: LocalBucket) -> None:
        await bucket.put_if_absent("k/1", b"1")
        assert await bucket.get("k/1") == b"1"
        await bucket.close()

    asyncio.run(scenario(LocalBucket(tmp_path / "bulk", threads=3, gentle=True)))
    assert asked == []
    asyncio.run(scenario(LocalBucket(tmp_path / "server", threads=3)))
    assert sorted(asked) == ["bourn-disk-0", "bourn-disk-1", "bourn-disk-2"]


@linux_only
def test_short_slices_leave_the_niceness_and_a_policy_that_was_chosen_alone() -> None:
    def found(policy: int) -> tuple[bool, int, int]:
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        os.sched_setscheduler(0, policy, os.sched_param(0))
        was_let = ask_for_short_slices()
        return was_let, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

    with ThreadPoolExecutor(1) as pool:  # on Linux all of it is the thread's own
        assert pool.submit(found, os.SCHED_OTHER).result()[1:] == (7, os.SCHED_OTHER)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(found, os.SCHED_BATCH).result() == (False, 7, os.SCHED_BATCH)
