"""The server starts the pipeline when there is work, starts it again, and leaves none behind.

The process is a few lines of Python here; the real one runs in `test_supervised_pipeline`.
"""

import asyncio
import json
import os
import random
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import uvloop

from bourn.bucket.location import Location
from bourn.bucket.memory import MemoryBucket
from bourn.cli.failures import Misused
from bourn.cli.log_watch import LogWatch
from bourn.cli.supervise import Supervision, Supervisor, supervised
from bourn.cli.supervise_plan import NoPipeline, plan_pipeline
from bourn.clock import SystemClock
from bourn.http.pipeline_state import PipelineState
from bourn.http.telemetry import Telemetry
from bourn.layout.reports import JobReport, RunReport, decode_report
from bourn.pipeline.session import SparkMissing
from bourn.settings import EngineSettings, ServeSettings
from tests.pipeline.harness import InProcessTier, quiet
from tests.support import BASIN, STREAM, batch, node_on, with_stream

CLOCK = SystemClock()
PATIENCE_SECS = 60
GOOD = RunReport(
    run="0" * 16,
    master="local[1]",
    started_at_ms=1000,
    ended_at_ms=3500,
    jobs=[JobReport(name="tier", rounds=1, commits=3, end_ordinal=1000, table_version=4)],
)
FOLLOWS = "import signal, sys; print({line!r}, flush=True); signal.pause()"


def run(story):
    """On the loop that the server has."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story)


def follows(report=GOOD):
    return FOLLOWS.format(line=msgspec.json.encode(report).decode())


def plan(script, **changes):
    told = {"backlog_bytes": 1, "age_secs": 0.0, "poll_secs": 0.02, "restart_secs_min": 0.01}
    command = (sys.executable, "-c", script)
    return Supervision(command=command, master="local[1]", **(told | changes))


async def until(condition):
    async with asyncio.timeout(PATIENCE_SECS):
        while not condition():
            await CLOCK.sleep(0.01)


@asynccontextmanager
async def supervising(script, *, records=b"some", **changes):
    """A node with a pipeline of that script beside it, and a record that waits."""
    bucket = MemoryBucket()
    async with node_on(bucket) as node:
        await with_stream(node)
        if records:
            await node.append(BASIN, STREAM, batch(records))
        state = PipelineState()
        watch = LogWatch(node, bucket, CLOCK, random.Random(1), state)
        watching = asyncio.create_task(watch.run(0.02))
        supervisor = Supervisor(
            plan(script, **changes), node, bucket, watch, CLOCK, random.Random(1)
        )
        doing = asyncio.create_task(supervisor.run())
        try:
            yield node, bucket, state
        finally:
            for task in (doing, watching):
                task.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_report_of_the_process_is_the_state_that_metrics_tell():
    async def story():
        async with supervising(follows()) as (node, _, state):
            await until(lambda: state.runs)
            assert (state.starts, state.restarts, state.failures) == (1, 0, 0)
            assert (state.table_version, state.table_end_ordinal) == (4, 1000)
            assert state.lag().commits == 0, "the table has everything by now"
            telemetry = Telemetry(node, CLOCK)
            telemetry.pipeline = state
            lines = telemetry.render().decode().splitlines()
            for line in (
                "bourn_pipeline_enabled 1",
                "bourn_pipeline_up 1",
                "bourn_pipeline_runs_total 1",
                "bourn_pipeline_last_run_started_seconds 1.0",
                "bourn_pipeline_last_run_duration_seconds 2.5",
                "bourn_pipeline_lag_commits 0",
                "bourn_history_version -1",
                "bourn_history_fetches_total 0",
            ):
                assert line in lines

    run(story())


def test_the_process_leads_a_group_of_its_own_and_goes_with_its_children():
    script = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, file=sys.stderr, flush=True)\n"
        "time.sleep(600)"
    )

    async def story():
        async with supervising(script) as (_, _, state):
            await until(lambda: state.is_running)
            pid = state.pid
            assert os.getpgid(pid) == pid
            await until(lambda: children_of(pid))
            (grandchild,) = children_of(pid)
        assert not is_alive(pid)
        await until(lambda: not is_alive(grandchild))
        assert not state.is_running

    run(story())


def test_one_that_does_not_listen_is_killed_in_time():
    script = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)"
    )

    async def story():
        async with supervising(script, stop_secs=0.2) as (_, _, state):
            await until(lambda: state.is_running)
            pid = state.pid
        assert not is_alive(pid)

    run(story())


def test_it_is_started_again_and_the_first_end_is_in_the_bucket():
    script = "import sys; print('no Java', file=sys.stderr); sys.exit(3)"

    async def story():
        async with supervising(script) as (_, bucket, state):
            await until(lambda: state.restarts >= 3)
            assert state.failures >= 3
            assert state.last_error == "the pipeline's process ended with exit code 3: no Java"
            keys = [info.key async for info in bucket.list("pipeline/")]
            assert len(keys) == 1, "one report for a series of ends"
            report = decode_report(await bucket.get(keys[0]), keys[0])
            assert (report.error, report.master) == (state.last_error, "local[1]")

    run(story())


def test_a_killed_process_is_started_again_and_does_its_work():
    async def story():
        async with supervising(follows()) as (node, _, state):
            await until(lambda: state.runs == 1)
            os.kill(state.pid, 9)
            await until(lambda: state.restarts == 1)
            assert "signal 9" in state.last_error
            state.table_end_ordinal = 0  # so that there is work
            await until(lambda: state.runs == 2)
            assert state.last_error == ""
            assert await node.check_tail(BASIN, STREAM)

    run(story())


def test_it_goes_when_there_is_nothing_to_do():
    async def story():
        async with supervising(follows(), idle_secs=0.1) as (node, _, state):
            await until(lambda: state.runs)
            await until(lambda: not state.is_running)
            await CLOCK.sleep(0.2)
            assert (state.starts, state.failures) == (1, 0), "an end that was asked for"
            assert node.term.committer.last_records < state.table_end_ordinal

    run(story())


def test_one_that_says_that_it_works_is_left_to_it(tmp_path):
    quiet = tmp_path / "quiet"
    script = (
        f"import os, time; print({msgspec.json.encode(GOOD).decode()!r}, flush=True)\n"
        f"while not os.path.exists({str(quiet)!r}):\n"
        '    print(\'{"stage": "merging"}\', flush=True); time.sleep(0.02)\n'
        "time.sleep(600)"
    )

    async def story():
        async with supervising(script, idle_secs=0.1, silence_secs=0.5) as (_, _, state):
            await until(lambda: state.runs)
            await CLOCK.sleep(0.5)
            assert state.is_running, "nothing waits, and it is at work even so"
            quiet.touch()
            await until(lambda: not state.is_running)
            assert (state.starts, state.failures) == (1, 0)

    run(story())


@pytest.mark.parametrize(
    "changes", [{"age_secs": 3600.0, "backlog_bytes": 1 << 30}, {"grace_secs": 60, "age_secs": 60}]
)
def test_it_is_not_started_for_little_that_is_young(changes):
    async def story():
        async with supervising(follows(), **changes) as (_, _, state):
            await CLOCK.sleep(0.3)
            assert state.starts == 0
            assert state.lag().commits > 0

    run(story())


def test_what_is_no_work_starts_nothing():
    async def story():
        async with supervising(follows(), records=b"") as (node, _, state):
            node.meter.read_unary(BASIN, 100)
            await node.meter.flush(node.term, with_sizes=False)
            await CLOCK.sleep(0.3)
            assert state.lag().commits > 0, "there are commits, and no record in them"
            assert state.starts == 0
            await node.append(BASIN, STREAM, batch(b"now"))
            await until(lambda: state.starts)

    run(story())


def test_a_table_that_nobody_has_looked_after_for_long_starts_it():
    async def story():
        changes = {"age_secs": 3600.0, "grace_secs": 0.0, "backlog_bytes": 1 << 30}
        async with supervising(follows(), upkeep_secs=0.1, **changes) as (_, _, state):
            await CLOCK.sleep(0.3)
            assert state.starts == 0, "there is no table yet"
            state.table_version = 0
            await until(lambda: state.starts)

    run(story())


def test_a_log_from_before_the_start_counts_with_its_bytes():
    async def story():
        bucket = MemoryBucket()
        async with node_on(bucket) as node:
            await with_stream(node)
            await node.append(BASIN, STREAM, batch(b"a" * 1000))
        async with node_on(bucket) as node:
            state = PipelineState()
            async with supervised(plan(follows(), age_secs=60.0), node, bucket, CLOCK, state):
                await until(lambda: state.lag().commits)
                first = state.lag()
        sizes = [info.size_bytes async for info in bucket.list("wal/000000000001/")]
        assert sum(sizes) * 0.8 <= first.size_bytes <= sum(sizes)
        assert first.size_bytes > 1000
        await InProcessTier(bucket).run(quiet())
        async with node_on(bucket) as node:
            state = PipelineState()
            async with supervised(plan(follows(), age_secs=60.0), node, bucket, CLOCK, state):
                await until(lambda: state.table_version >= 0)
                assert state.lag().size_bytes < 1000

    run(story())


def test_its_words_are_passed_on_and_a_flood_is_cut(capsys):
    script = (
        "import sys, time\n"
        "sys.stderr.write('a line\\n' + 'x' * 1_000_000 + '\\nanother\\n')\n"
        "sys.stdout.write('no report\\n'); sys.stdout.flush(); time.sleep(600)"
    )
    said: list[str] = []

    async def story():
        def all_said():
            said.append(capsys.readouterr().err)
            return "pipeline: another\n" in "".join(said) and "no report" in "".join(said)

        async with supervising(script):
            await until(all_said)

    run(story())
    text = "".join(said)
    assert "pipeline: a line\n" in text
    assert "pipeline: no report\n" in text
    assert len(text) < 500_000


def test_the_server_s_own_settings_and_secrets_are_not_told_to_it(monkeypatch):
    monkeypatch.setenv("BOURN_ROOT_TOKEN", "a-very-secret-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the bucket")
    script = "import json, os, sys, time; print(json.dumps(dict(os.environ)), flush=True)\n"
    heard: list[bytes] = []

    async def story():
        async with supervising(script + "time.sleep(600)") as (_, _, state):
            await until(lambda: heard)
            assert state.runs == 0

    monkeypatch.setattr(Supervisor, "_on_line", lambda _, line: heard.append(line))
    run(story())
    environ = json.loads(heard[0])
    assert "BOURN_ROOT_TOKEN" not in environ
    assert environ["AWS_SECRET_ACCESS_KEY"] == "of the bucket"


# Whether there is one


def planned(pipeline="", bucket="s3://bucket/prefix", **changes):
    location = Location("memory") if bucket == "memory:" else Location("s3", "bucket", "prefix")
    settings = ServeSettings(
        bucket=bucket, pipeline=pipeline, engine=EngineSettings(), root_token="r" * 20, **changes
    )
    return plan_pipeline(settings, location, {"AWS_SECRET_ACCESS_KEY": "a-secret"})


def test_the_command_says_where_and_when_and_no_secret():
    found = planned("local[2]", pipeline_age=1.5, pipeline_backlog=1000)
    assert found is not None
    words = " ".join(found.command)
    for part in ("--follow", "--tied", "--master=local[2]", "--bucket=s3://bucket/prefix"):
        assert part in words
    assert "--backlog=1000 --age=1500ms" in words
    assert "a-secret" not in words
    assert "rrrr" not in words


def test_the_default_leaves_half_of_the_cores_to_the_server(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    found = planned()
    assert found is not None
    assert found.master == "local[4]"


def test_there_is_none_in_memory_unless_it_is_asked_for():
    assert planned("", "memory:") is None
    assert planned("off") is None
    with pytest.raises(Misused, match="a bucket in memory has none"):
        planned("local", "memory:")


def test_without_its_packages_there_is_none_unless_it_is_asked_for(monkeypatch):
    def missing():
        raise SparkMissing("the pipeline needs pyspark: pip install 'bourn[pipeline]'")

    monkeypatch.setattr("bourn.cli.supervise_plan.require_packages", missing)
    with pytest.raises(NoPipeline, match="pip install"):
        planned()
    with pytest.raises(Misused, match="pip install"):
        planned("local")
    assert planned("off") is None
