"""The examples do what they say, on little data."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.process import environment
from tests.compat.install import PYTHON

WAIT_SECS = 800
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


@pytest.mark.long
def test_a_year_goes_into_streams_and_comes_back_as_it_was(spark, server, capsys):
    assert example("backfill").run(spark, server.url, 2, 300)
    assert "600 records in 2 streams: 0 lost, 0 too many" in capsys.readouterr().out


def test_clicks_are_counted_live(spark, server, capsys):
    if not PYTHON.exists():
        pytest.skip("s2-sdk is not installed: make compat does that")
    assert example("clickstream").run(spark, server.url, 700, str(PYTHON))
    assert "700 clicks" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_declarative_pipeline_goes_from_one_stream_to_another(server):
    """In a process of its own: Spark Connect and a classic session do not share one."""
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_status") is None:
        pytest.skip("grpcio and grpcio-status are not installed: pip install 'pyspark[pipelines]'")
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "pipeline" / "run.py", "--endpoint", server.url],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert "1000 clicks, 1000 pages: equal" in ended.stdout
