"""One server per module, and every test over HTTP/1.1 and over HTTP/2."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.http.clients import Api, Connected
from tests.http.server import LoopThread, Server

BASIN = "test-basin"
NUMBERS = count(1)


@pytest.fixture(scope="session")
def client_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=False) as running:
        yield running


@pytest.fixture(params=["h1", "h2"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def api(server: Server, version: str, client_thread: LoopThread) -> Iterator[Api]:
    """A client with a basin that exists."""
    with Connected(version, server.port, client_thread) as connected:
        found = Api(connected.client, BASIN)
        assert found.put(f"/v1/basins/{BASIN}").status in {200, 201}
        yield found


@pytest.fixture
def another(api: Api, server: Server, client_thread: LoopThread) -> Iterator[Callable[[], Api]]:
    """Makes further clients, each with a connection of its own."""
    with ExitStack() as stack:

        def connect() -> Api:
            connected = stack.enter_context(Connected(api.version, server.port, client_thread))
            return Api(connected.client, BASIN)

        yield connect


@pytest.fixture
def stream(api: Api) -> str:
    """A new stream in that basin."""
    name = f"stream-{next(NUMBERS)}"
    assert api.put(f"/v1/streams/{name}").status == 201
    return name
