"""One Spark session, and servers, for all tests of the connector in a process."""

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bourn.client import Client, Retries, Settings
from bourn.pipeline.session import Spark
from bourn.spark import BournDataSource
from tests.cli.process import Serving, environment

BASIN = "connector-tests"
PATIENCE_SECS = 60
S2 = os.environ.get("BOURN_TEST_S2") or shutil.which("s2")
NUMBERS = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Serving]:
    with Serving("--memory", "--pipeline", "off") as serving:
        yield serving


@pytest.fixture(scope="session")
def lite() -> Iterator[str]:
    """Another S2 server, where there is one."""
    if S2 is None:
        pytest.skip("no s2 on the path, nor named by BOURN_TEST_S2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [S2, "lite", "--port", str(port)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        patient = Settings.of("", url, retries=Retries(PATIENCE_SECS), environ={})
        with Client(patient) as client:
            list(client.list_basins())
        yield url
    finally:
        child.kill()
        child.wait(PATIENCE_SECS)


@pytest.fixture(scope="session", params=["bourn", "s2 lite"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """The URL of a server; what only reads is tested on each."""
    if request.param == "bourn":
        serving: Serving = request.getfixturevalue("server")
        return serving.url
    url: str = request.getfixturevalue("lite")
    return url


@pytest.fixture
def world(endpoint: str) -> Iterator[Client]:
    """A client of a new basin on that server."""
    basin = f"source-{next(NUMBERS):04}"
    with Client(Settings.of(basin, endpoint, environ={})) as client:
        client.create_basin(basin)
        yield client


@pytest.fixture
def home(server: Serving) -> Iterator[Client]:
    """A client of a new basin on our own server."""
    basin = f"source-{next(NUMBERS):04}"
    with Client(Settings.of(basin, server.url, environ={})) as client:
        client.create_basin(basin)
        yield client


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def spark(spark: Spark) -> SparkSession:
    session = spark.session()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.dataSource.register(BournDataSource)
    return session


@pytest.fixture(scope="session")
def client(server: Serving) -> Iterator[Client]:
    with Client(Settings.of(BASIN, server.url, environ={})) as client:
        client.create_basin(BASIN, {"create_stream_on_append": True})
        yield client


@pytest.fixture(scope="module")
def settings(endpoint: str, request: pytest.FixtureRequest) -> Settings:
    """Of the module's BASIN, on our own server, and on another one where there is one."""
    basin = request.module.BASIN
    found = Settings.of(basin, endpoint, environ={})
    with Client(found) as client:
        client.create_basin(basin, {"create_stream_on_append": True})
    return found


@pytest.fixture
def stream() -> str:
    return f"stream {random.getrandbits(64):x}/ü"
