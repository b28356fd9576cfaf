"""What a disk adds to the contract: durability, crashes, other processes, limits of the machine."""

import asyncio
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bourn.bucket.disk import TEMPORARY, Directory, Syscalls
from bourn.bucket.local import LocalBucket
from bourn.bucket.port import Bucket
from bourn.errors import BucketRefused, BucketUnavailable, ObjectExists, ObjectMissing

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the native way is Linux's")

SETUP = """
import asyncio, os, sys
from pathlib import Path
from bourn.bucket.local import LocalBucket
from bourn.errors import BucketError, BucketRefused, BucketUnavailable, ObjectExists
root = Path(sys.argv[1])
"""


def child(script: str, root: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + textwrap.dedent(script), str(root), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def output_of(script: str, root: Path) -> list[str]:
    process = child(script, root)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.split("\n")[:-1]


async def listed(bucket: Bucket) -> list[str]:
    return [info.key async for info in bucket.list("")]


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class Recorder(Syscalls):
    """Notes the system calls and the names of the files they are about; lets one of them fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failing = ""
        self.number = 0
        for name in [name for name in vars(Syscalls) if not name.startswith("_")]:
            setattr(self, name, self._recorded(name, getattr(Syscalls, name)))

    def _recorded(self, name: str, call: Any) -> Any:
        def recorded(target: Any, *arguments: Any, **options: Any) -> Any:
            about = Path(f"/proc/self/fd/{target}").readlink() if type(target) is int else target
            about = arguments[0] if name in {"link", "rename"} else about
            shown = "temporary" if TEMPORARY in str(about) else Path(about).name
            self.calls.append((name, shown))
            if name == self.failing:
                raise OSError(self.number, os.strerror(self.number))
            return call(target, *arguments, **options)

        return recorded


def portable(root: Path) -> tuple[LocalBucket, Recorder]:
    recorder = Recorder()
    return LocalBucket(root, syscalls=recorder, nameless=False), recorder


# Durability


def test_new_directories_are_synced_up_to_the_root(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path / "x" / "y")
        await bucket.put_if_absent("a/b/key", b"1")
        made = [call for call in recorder.calls if call[0] in {"mkdir", "sync_directory", "link"}]
        assert made == [
            ("mkdir", "x"),
            ("sync_directory", tmp_path.name),
            ("mkdir", "y"),
            ("sync_directory", "x"),
            ("mkdir", "a"),
            ("sync_directory", "y"),
            ("mkdir", "b"),
            ("sync_directory", "a"),
            ("link", "key"),
            ("sync_directory", "b"),
        ]
        await bucket.close()

    asyncio.run(scenario())


def test_directories_found_at_first_use_are_synced_too(tmp_path: Path) -> None:
    """Whoever made them may have died before making them durable."""
    (tmp_path / "a").mkdir()

    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        await bucket.put_if_absent("a/key", b"1")
        synced = [about for name, about in recorder.calls if name == "sync_directory"]
        assert synced == [tmp_path.name, "a"]
        await bucket.close()

    asyncio.run(scenario())


def test_the_portable_way_syncs_the_bytes_before_the_name_and_the_name_before_success(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        await bucket.put_if_absent("d/first", b"1")
        recorder.calls.clear()
        await bucket.put_if_absent("d/key", b"12345")
        written = [("open", "temporary"), ("write", "temporary"), ("sync_data", "temporary")]
        assert recorder.calls == [
            *written,
            ("link", "key"),
            ("unlink", "temporary"),
            ("sync_directory", "d"),
        ]
        recorder.calls.clear()
        with pytest.raises(ObjectExists):
            await bucket.put_if_absent("d/key", b"67890")
        assert ("sync_directory", "d") in recorder.calls, "the winner may not have got that far"
        recorder.calls.clear()
        await bucket.put("d/key", b"67890")
        assert recorder.calls == [*written, ("rename", "key"), ("sync_directory", "d")]
        await bucket.close()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("strace"), reason="needs strace")
def test_the_native_way_syncs_the_bytes_before_the_name_and_the_name_before_its_answer(
    tmp_path: Path,
) -> None:
    script = """
    async def main():
        bucket = LocalBucket(root, threads=1)
        await bucket.put_if_absent("d/object-under-test", b"12345")
        try:
            await bucket.put_if_absent("d/object-under-test", b"67890")
        except ObjectExists:
            print("exists")
        await bucket.close()
    asyncio.run(main())
    """
    traced = "trace=openat,fcntl,write,fdatasync,linkat,fsync"
    command = ["strace", "-ff", "-o", str(tmp_path / "trace"), "-e", traced, sys.executable, "-c"]
    process = subprocess.run(
        [*command, SETUP + textwrap.dedent(script), str(tmp_path / "root")],
        check=False,
        capture_output=True,
        text=True,
    )
    if "ptrace" in process.stderr and process.returncode:
        pytest.skip("tracing is not permitted here")
    assert process.stdout == "exists\n"
    text = "".join(path.read_text() for path in sorted(tmp_path.glob("trace.*")))
    # The first put makes its own file, and then, behind the answer, that of the second.
    puts = re.findall(
        r"openat\((\d+), \"\.\", \S*O_TMPFILE\S*, 0666\) = (\d+)\n"
        r"write\((\d+), \"(\d+)\", 5\) += 5\n"
        r"fdatasync\((\d+)\) += 0\n"
        r"linkat\(AT_FDCWD, \"/proc/self/fd/(\d+)\", (\d+), \"object-under-test\", "
        r"AT_SYMLINK_FOLLOW\) = (0|-1 EEXIST).*\n"
        r"fsync\((\d+)\) += 0\n"
        r"(?:fcntl\(\d+, F_DUPFD_CLOEXEC, 0\) += (\d+)\n)?"
        r"write\(\d+, \"[^\"]+\", 4\) += 4\n",  # the answer
        text,
    )
    assert [(put[3], put[7]) for put in puts] == [("12345", "0"), ("67890", "-1 EEXIST")]
    first, second = puts
    for _, file, written, _, synced, linked, linked_in, _, synced_last, _ in puts:
        assert {file} == {written, synced, linked}
        assert linked_in == synced_last
    nursery = re.findall(r"openat\(\d+, \"~tmp/\d+-\d+\", \S*O_DIRECTORY\S*\) = (\d+)\n", text)
    assert [first[0]] == nursery
    assert second[0] == first[9], "made in the same directory, by a descriptor of the thread's own"


# Failures


@pytest.mark.parametrize(
    ("failing", "number", "expected", "words"),
    [
        ("open", errno.EROFS, BucketRefused, "mount it writable"),
        ("open", errno.EACCES, BucketRefused, "let this user"),
        ("open", errno.EMFILE, BucketUnavailable, "ulimit"),
        ("write", errno.ENOSPC, BucketUnavailable, "free some"),
        ("write", errno.EIO, BucketUnavailable, "Input/output error"),
        ("sync_data", errno.EDQUOT, BucketUnavailable, "quota"),
        ("sync_data", errno.EIO, BucketUnavailable, "Input/output error"),
        ("link", errno.EOPNOTSUPP, BucketRefused, "cannot link"),
        ("link", errno.ENOSPC, BucketUnavailable, "free some"),
    ],
)
def test_a_put_that_fails_says_the_remedy_and_leaves_nothing_behind(
    tmp_path: Path, failing: str, number: int, expected: type[Exception], words: str
) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        await bucket.put_if_absent("d/there", b"1")
        for put, step in ((bucket.put_if_absent, failing), (bucket.put, failing)):
            recorder.failing = "rename" if (put, step) == (bucket.put, "link") else step
            recorder.number = number
            with pytest.raises(expected, match=words):
                await put("d/key", b"12345")
            assert files_below(tmp_path) == ["d/there"]
        recorder.failing = ""
        await bucket.put_if_absent("d/key", b"12345")
        assert await bucket.get("d/key") == b"12345"
        await bucket.close()

    asyncio.run(scenario())


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        setattr(recorder, "write", lambda file, data: os.write(file, data[:3]))  # noqa: B010  mypy
        await bucket.put_if_absent("key", b"0123456789")
        assert await bucket.get("key") == b"0123456789"
        await bucket.close()

    asyncio.run(scenario())


async def check_that_nothing_is_accepted(bucket: LocalBucket) -> None:
    for key in ("d/key", "d/other", "elsewhere"):
        with pytest.raises(BucketRefused, match="check the disk"):
            await bucket.put_if_absent(key, b"1")
        with pytest.raises(BucketRefused, match="check the disk"):
            await bucket.put(key, b"1")
    assert await bucket.get("d/there") == b"1"


def test_after_a_failed_sync_of_a_directory_no_put_is_accepted_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        await bucket.put_if_absent("d/there", b"1")
        recorder.failing, recorder.number = "sync_directory", errno.EIO
        with pytest.raises(BucketUnavailable, match="could not be synced"):
            await bucket.put_if_absent("d/key", b"1")
        recorder.failing = ""
        await check_that_nothing_is_accepted(bucket)
        await bucket.close()

    asyncio.run(scenario())


@linux_only
def test_the_native_way_also_stops_after_a_failed_sync_of_a_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path)
        await bucket.put_if_absent("d/there", b"1")
        # Files can be made and linked through such a descriptor, but it cannot be synced.
        unsyncable = Directory(os.open(tmp_path / "d", os.O_PATH | os.O_DIRECTORY))
        bucket._directories["d"] = unsyncable
        with pytest.raises(BucketUnavailable, match="could not be synced"):
            await bucket.put_if_absent("d/key", b"1")
        await check_that_nothing_is_accepted(bucket)
        await bucket.close()

    asyncio.run(scenario())


@linux_only
def test_the_native_way_reports_a_file_too_large_and_too_many_files(tmp_path: Path) -> None:
    script = """
    import resource
    files = Path("/proc/self/fd")
    async def attempt(put, *arguments):
        try:
            await put(*arguments)
        except BucketError as error:
            print(type(error).__name__, error)
        else:
            print("stored")
    async def main():
        bucket = LocalBucket(root, gentle=True)  # which has no file ready for the next put
        await bucket.put_if_absent("d/first", b"1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        await attempt(bucket.put_if_absent, "d/large", bytes(5000))
        await attempt(bucket.put_if_absent, "d/small", bytes(500))
        for _ in range(2000):
            if not any(f"{root}/d/#" in os.path.realpath(fd) for fd in files.iterdir()):
                break
            await asyncio.sleep(0.01)  # the file of a put is closed behind its answer
        else:
            print("a file stays open")
        top = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 2, top + 2))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        await attempt(bucket.put_if_absent, "d/one-more", b"1")
        await attempt(bucket.get, "d/first")
        for descriptor in held:
            os.close(descriptor)
        await attempt(bucket.put_if_absent, "d/one-more", b"1")
        await bucket.close()
    asyncio.run(main())
    """
    too_many = "too many open files: raise `ulimit -n`"
    assert output_of(script, tmp_path) == [
        "BucketUnavailable d/large: File too large",
        "stored",
        f"BucketUnavailable d/one-more: {too_many}",
        f"BucketUnavailable d/first: {too_many}",
        "stored",
    ]
    assert files_below(tmp_path) == ["d/first", "d/one-more", "d/small"]


@pytest.mark.parametrize("nameless", [True, False])
def test_a_directory_without_permission_is_refused_with_a_remedy(
    tmp_path: Path, nameless: bool
) -> None:
    script = f"""
    async def main():
        bucket = LocalBucket(root, nameless={nameless})
        if os.geteuid() == 0:
            os.setuid(65534)
        else:
            root.chmod(0o555)
        for put in (bucket.put_if_absent, bucket.put):
            for key in ("key", "d/key"):
                try:
                    await put(key, b"1")
                except BucketRefused as error:
                    print(error)
        try:
            LocalBucket(root / "below")
        except BucketRefused as error:
            print("permission denied" in str(error))
        await bucket.close()
    asyncio.run(main())
    """
    remedy = "permission denied: let this user read and write the directory"
    try:
        lines = output_of(script, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert lines == [f"{key}: {remedy}" for key in ("key", "d/key") * 2] + ["True"]


@pytest.mark.parametrize("nameless", [True, False])
def test_a_name_cannot_be_both_an_object_and_a_directory(tmp_path: Path, nameless: bool) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, nameless=nameless)
        await bucket.put_if_absent("a/b", b"1")
        for put in (bucket.put_if_absent, bucket.put):
            with pytest.raises(BucketRefused, match="a directory of other objects"):
                await put("a", b"2")
            with pytest.raises(BucketRefused, match="an object stands where"):
                await put("a/b/c", b"2")
        assert await listed(bucket) == ["a/b"]
        await bucket.close()

    asyncio.run(scenario())


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BucketRefused):
            LocalBucket(root)
    with pytest.raises(BucketRefused):
        LocalBucket(tmp_path, threads=0)


# Crashes and other processes


@pytest.mark.parametrize("nameless", [True, False])
def test_a_killed_writer_leaves_every_confirmed_object_and_whole_ones_only(
    tmp_path: Path, nameless: bool
) -> None:
    script = f"""
    async def write(bucket, numbers):
        for number in numbers:
            await bucket.put_if_absent(f"k/{{number:06}}", b"%06d" % number * 5000)
            print(number, flush=True)
    async def main():
        bucket = LocalBucket(root, nameless={nameless})
        await asyncio.gather(*(write(bucket, range(start, 10**6, 4)) for start in range(4)))
    asyncio.run(main())
    """
    writer = child(script, tmp_path)
    assert writer.stdout is not None
    confirmed = {int(writer.stdout.readline()) for _ in range(60)}
    writer.send_signal(signal.SIGKILL)
    confirmed |= {int(line) for line in writer.stdout if line.endswith("\n")}
    writer.wait()
    writer.stdout.close()

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path)
        found = [int(key[2:]) for key in await listed(bucket)]
        assert confirmed <= set(found)
        for number in found:
            assert await bucket.get(f"k/{number:06}") == b"%06d" % number * 5000
        assert files_below(tmp_path) == await listed(bucket)  # no leftovers either
        await bucket.close()

    asyncio.run(scenario())


def test_leftovers_are_never_listed_and_are_removed_at_the_next_opening(tmp_path: Path) -> None:
    (tmp_path / TEMPORARY).mkdir()
    dead, live = tmp_path / TEMPORARY / "1-0", tmp_path / TEMPORARY / "2-0"
    dead.write_bytes(b"half an obj")
    live.write_bytes(b"half an obj")

    async def scenario() -> None:
        with live.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # as its writer, in some other process, does
            bucket = LocalBucket(tmp_path)
            assert not dead.exists()
            assert live.exists()
            assert await listed(bucket) == []
            await bucket.close()
        second = LocalBucket(tmp_path)
        assert not live.exists()
        await second.close()

    asyncio.run(scenario())


def test_a_put_under_way_survives_the_opening_of_the_bucket_by_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)

        def open_another(_: int) -> None:
            other = LocalBucket(tmp_path, nameless=False)
            assert len(list((tmp_path / TEMPORARY).iterdir())) == 1
            other._disk.top.close()

        setattr(recorder, "sync_data", open_another)  # noqa: B010  the class has it static
        await bucket.put_if_absent("key", b"1")
        assert files_below(tmp_path) == ["key"]
        await bucket.close()

    asyncio.run(scenario())


def test_a_temporary_file_swept_before_it_was_locked_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket, recorder = portable(tmp_path)
        swept: list[str] = []

        def open_and_sweep(path: str, *arguments: Any, **options: Any) -> int:
            descriptor = os.open(path, *arguments, **options)
            if not swept:
                (tmp_path / path).unlink()
                swept.append(path)
            return descriptor

        setattr(recorder, "open", open_and_sweep)  # noqa: B010  the class has it static
        await bucket.put_if_absent("key", b"1")
        assert swept
        assert await bucket.get("key") == b"1"
        await bucket.close()

    asyncio.run(scenario())


def test_temporary_names_of_an_earlier_process_are_stepped_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        bucket = LocalBucket(tmp_path, nameless=False)
        (tmp_path / TEMPORARY).mkdir()
        for number in range(4):
            (tmp_path / TEMPORARY / f"{os.getpid()}-{number}").write_bytes(b"")
        await bucket.put_if_absent("key", b"1")
        assert await bucket.get("key") == b"1"
        await bucket.close()

    asyncio.run(scenario())


def test_files_that_are_no_objects_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a b", "a~", "naïve", "d/x y", "d/lost+found"):
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "d" / "object").write_bytes(b"")

    async def scenario() -> None:
        bucket = LocalBucket(tmp_path)
        assert await listed(bucket) == ["d/object"]
        await bucket.close()

    asyncio.run(scenario())


def test_of_two_processes_exactly_one_creates_each_object(tmp_path: Path) -> None:
    script = """
    async def main():
        bucket = LocalBucket(root)
        sys.stdin.readline()
        for number in range(120):
            try:
                await bucket.put_if_absent(f"k/{number}", sys.argv[2].encode())
            except ObjectExists:
                continue
            print(number)
        await bucket.close()
    asyncio.run(main())
    """
    racers = {name: child(script, tmp_path, name, stdin=subprocess.PIPE) for name in "ab"}
    for racer in racers.values():
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = {name: {int(n) for n in racer.communicate()[0].split()} for name, racer in racers.items()}
    assert won["a"] | won["b"] == set(range(120))
    assert not won["a"] & won["b"]
    for name, numbers in won.items():
        for number in numbers:
            assert (tmp_path / "k" / str(number)).read_text() == name


@pytest.mark.parametrize("nameless", [True, False])
def test_a_directory_removed_by_somebody_is_made_again(tmp_path: Path, nameless: bool) -> None:
    async def scenario() -> None:
        root = tmp_path / "root"
        bucket = LocalBucket(root, nameless=nameless)
        await bucket.put_if_absent("d/e/1", b"1")
        shutil.rmtree(root / "d")
        await bucket.put_if_absent("d/e/2", b"2")
        assert await listed(bucket) == ["d/e/2"]
        shutil.rmtree(root)
        for key in ("d/e/3", "top"):
            with pytest.raises(BucketRefused, match="is gone"):
                await bucket.put_if_absent(key, b"3")
        with pytest.raises(ObjectMissing):
            await bucket.get("d/e/2")
        await bucket.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("nameless", [True, False])
def test_the_umask_decides_who_may_read(tmp_path: Path, nameless: bool) -> None:
    async def scenario() -> None:
        before = os.umask(0o027)
        try:
            bucket = LocalBucket(tmp_path, nameless=nameless)
            await bucket.put_if_absent("d/key", b"1")
        finally:
            os.umask(before)
        assert (tmp_path / "d" / "key").stat().st_mode & 0o777 == 0o640
        assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750
        await bucket.close()

    asyncio.run(scenario())
