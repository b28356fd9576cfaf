"""One server for all tests of a module, and a client of it."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from bourn.client import Client, Retries, Settings
from bourn.wire.compression import Compression
from tests.http.server import Server

BASIN = "test-basin"
NUMBERS = count(1)
QUICK = Retries(attempts=4, pause_secs_min=0.001, pause_secs_max=0.01)

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Make clients; without a URL, of the server."""
    made: list[Client] = []

    def connected(
        at: str | None = None,
        *,
        basin: str = BASIN,
        key: str = "",
        compression: Compression = Compression.NONE,
    ) -> Client:
        settings = Settings.of(
            basin,
            at or url,
            encryption_key=key,
            compression=compression,
            retries=QUICK,
            environ={},
        )
        made.append(Client(settings))
        return made[-1]

    yield connected
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    found = connect()
    found.ensure_basin(BASIN)
    return found


@pytest.fixture
def stream(client: Client) -> str:
    """A new stream."""
    name = f"stream-{next(NUMBERS)}"
    client.create_stream(name, {"retention_policy": {"infinite": {}}})
    return name
