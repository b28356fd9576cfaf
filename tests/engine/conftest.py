"""Every behaviour that does not depend on the bucket is tried on each kind that needs no server."""

from pathlib import Path

import pytest

from bourn.engine import snapshots
from tests.engine.harness import Storage


@pytest.fixture(autouse=True)
def _no_stream_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every snapshot let go of all idle streams, so that they come back from their rows."""
    monkeypatch.setattr(snapshots, "STREAMS_IN_USE_MAX", 0)


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> Storage:
    """For tests that are about the node alone, or that turn on single turns of the loop."""
    return Storage("memory", tmp_path)
