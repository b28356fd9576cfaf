"""The official `s2` command, where it is on the path or named by BOURN_TEST_S2."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.cli.process import environment
from tests.compat.server import Place

S2 = os.environ.get("BOURN_TEST_S2") or shutil.which("s2")
NUMBERS = count(1)
SECS_MAX = 60

pytestmark = [
    pytest.mark.skipif(S2 is None, reason="no s2 on the path, nor named by BOURN_TEST_S2"),
    pytest.mark.xdist_group("cli"),
]

Run = Callable[..., str]


@pytest.fixture
def s2(place: Place, tmp_path: Path) -> Run:
    variables = {
        "S2_ACCESS_TOKEN": "any",
        "S2_ACCOUNT_ENDPOINT": place.url,
        "S2_BASIN_ENDPOINT": place.url,
        "HOME": str(tmp_path),
    }

    def run(*words: str, stdin: str = "", code: int = 0) -> str:
        ended = subprocess.run(
            [str(S2), *words],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment(variables),
            timeout=SECS_MAX,
            check=False,
        )
        assert (ended.returncode == 0) == (code == 0), f"{words}: {ended.stderr}{ended.stdout}"
        return ended.stdout if code == 0 else ended.stderr

    return run


@pytest.fixture
def basin(s2: Run) -> str:
    name = f"cli-basin-{os.getpid()}-{next(NUMBERS)}"
    s2("create-basin", name)
    return name


@pytest.fixture
def stream(s2: Run, basin: str) -> str:
    uri = f"s2://{basin}/stream"
    s2("create-stream", uri)
    return uri


def test_basins_are_created_listed_changed_and_deleted(s2, basin):
    assert basin in s2("list-basins", "--prefix", basin)
    assert basin in s2("ls")
    assert "already exists" in s2("create-basin", basin, code=1)
    s2("reconfigure-basin", basin, "--create-stream-on-append", "true")
    assert re.search(r"create_stream_on_append\W+true", s2("get-basin-config", basin))
    s2("delete-basin", basin)


def test_streams_are_created_listed_changed_and_deleted(s2, basin, stream):
    assert stream in s2("list-streams", f"s2://{basin}/")
    assert stream in s2("ls", basin)
    s2("reconfigure-stream", stream, "--retention-policy", "1d")
    assert "1day" in s2("get-stream-config", stream).replace(" ", "")
    s2("delete-stream", stream)
    assert s2("get-stream-config", stream, code=1)


def test_lines_are_appended_and_read_back(s2, stream):
    lines = "".join(f"line {number}\n" for number in range(2500))
    s2("append", stream, stdin=lines)
    assert s2("read", stream, "--seq-num", "0", "--count", "2500") == lines
    assert s2("tail", stream, "-n", "3") == "".join(lines.splitlines(keepends=True)[-3:])
    assert "2500" in s2("check-tail", stream)


def test_fences_and_trims_take_effect(s2, stream):
    s2("append", stream, stdin="a\nb\nc\n")
    s2("trim", stream, "2")
    s2("fence", stream, "mine")
    assert s2("append", stream, "--fencing-token", "yours", stdin="d\n", code=1)
    s2("append", stream, "--fencing-token", "mine", stdin="d\n")
    found = s2("read", stream, "--seq-num", "0", "--count", "9", "--format", "json")
    assert [json.loads(line)["seq_num"] for line in found.splitlines()] == [2, 3, 4, 5]


def test_locations_are_listed(s2):
    name = s2("get-default-location").split()[0]
    assert s2("list-locations").split()[0] == name
    s2("set-default-location", name)
    assert "moon" in s2("set-default-location", "moon:base-1", code=1)


def test_a_spec_is_applied(s2, tmp_path):
    name = f"cli-spec-{os.getpid()}-{next(NUMBERS)}"
    spec = {"basins": [{"name": name, "streams": [{"name": "events"}]}]}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    assert name in s2("apply", "-f", str(path), "--dry-run")
    s2("apply", "-f", str(path))
    assert f"s2://{name}/events" in s2("list-streams", f"s2://{name}/")


def test_a_bench_verifies_what_it_reads(s2, basin):
    s2("bench", basin, "--duration", "3s", "--target-mibps", "2", "--catchup-delay", "0s")
