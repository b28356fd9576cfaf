"""One server per module and bucket; the clients must have been installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import install
from tests.compat.server import BUCKETS, Place


@pytest.fixture(scope="session", autouse=True)
def clients() -> None:
    if not (install.PYTHON.exists() and install.TYPESCRIPT_SDK.exists()):
        pytest.skip("the official clients are not installed: make compat does it")


@pytest.fixture(scope="module", params=BUCKETS)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clients: None
) -> Iterator[Place]:
    data: Path = tmp_path_factory.mktemp("data")
    with Place(request.param, data) as running:
        yield running
