"""A real server with a real pipeline beside it: it works by itself, and goes with the server."""

import json
import os
import signal
import threading
import urllib.request
from pathlib import Path

import pytest

from bourn.cli.main import main
from tests.cli.process import Serving
from tests.proof.processes import below, words_of

PATIENCE_SECS = 280
SECRET = "a-root-token-that-nobody-else-knows"
FLAGS = ("--pipeline", "local[1]", "--pipeline-age", "1s")


def call(server, method, path, shape=None):
    headers = {"content-type": "application/json", "s2-basin": "my-basin"}
    headers["authorization"] = f"Bearer {SECRET}"
    body = None if shape is None else json.dumps(shape).encode()
    request = urllib.request.Request(server.url + path, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECS) as response:
        return response.read().decode()


def metrics(server):
    lines = call(server, "GET", "/metrics").splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def eventually(condition):
    pause = threading.Event()
    for _ in range(PATIENCE_SECS * 10):
        if found := condition():
            return found
        pause.wait(0.1)
    raise AssertionError("it did not come to pass")


def is_there(pid):
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.timeout(600)
def test_records_come_into_the_table_by_themselves_and_nothing_outlives_a_kill(tmp_path, capsys):
    bucket = str(tmp_path / "data")
    variables = {"BOURN_ROOT_TOKEN": SECRET}
    with Serving("--bucket", bucket, *FLAGS, variables=variables) as server:
        call(server, "PUT", "/v1/basins/my-basin")
        call(server, "PUT", "/v1/streams/events")
        records = [{"body": f"record {n}"} for n in range(100)]
        call(server, "POST", "/v1/streams/events/records", {"records": records})
        eventually(lambda: metrics(server)["bourn_pipeline_runs_total"])
        eventually(lambda: metrics(server)["bourn_history_version"] >= 0)
        found = metrics(server)
        assert found["bourn_pipeline_up"] == 1
        assert found["bourn_pipeline_last_run_duration_seconds"] > 0
        assert found["bourn_pipeline_restarts_total"] == 0
        children = list(below(server.child.pid))
        (driver,) = [pid for pid in children if "pipeline run" in words_of(pid)]
        assert SECRET not in words_of(driver)
        assert SECRET.encode() not in Path(f"/proc/{driver}/environ").read_bytes()
        assert any("java" in words_of(pid) for pid in children)
        assert os.getpriority(os.PRIO_PROCESS, driver) > os.getpriority(os.PRIO_PROCESS, 0)
        assert main(["pipeline", "status", "--json", "--bucket", bucket]) == 0
        status = json.loads(capsys.readouterr().out)
        assert status["records"] == 100
        assert status["last_run"]["master"] == "local[1]"
        read = call(server, "GET", "/v1/streams/events/records?seq_num=0")
        assert [record["body"] for record in json.loads(read)["records"]] == [
            record["body"] for record in records
        ]
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: not any(map(is_there, children)))
