"""Every behaviour that does not depend on the bucket is tried on each kind that needs no server."""

from pathlib import Path

import pytest

from tests.engine.harness import Storage


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> Storage:
    """For tests that are about the node alone, or that turn on single turns of the loop."""
    return Storage("memory", tmp_path)
