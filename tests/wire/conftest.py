import pytest

from bourn.wire import json_check


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile before any test has to wait for it."""
    json_check.warm(lambda _: None)
