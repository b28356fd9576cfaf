"""Every adapter of the port, behind one fixture."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.bucket.stores import RemoteOptions, open_s3
from tests.s3server import NotHere, S3Server, moto_server, versity_server

ADAPTERS = ("memory", "local", "local-gentle", "local-portable", "s3-moto", "s3-versity")
S3_BUCKET = "contract"

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.make_bucket(S3_BUCKET)
        yield server


@pytest.fixture(scope="session")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with versity_server(tmp_path_factory.mktemp("versity")) as server:
            server.make_bucket(S3_BUCKET)
            yield server
    except NotHere as reason:
        pytest.skip(str(reason))


def options_of(server: S3Server) -> RemoteOptions:
    return RemoteOptions(
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


@pytest.fixture(params=ADAPTERS)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """Yield an empty bucket of each kind in turn."""
    made: Bucket
    match request.param:
        case "memory":
            made = MemoryBucket()
        case "local":
            made = LocalBucket(tmp_path)
        case "local-gentle":
            made = LocalBucket(tmp_path, gentle=True)
        case "local-portable":
            made = LocalBucket(tmp_path, nameless=False)
        case _:
            server = request.getfixturevalue(request.param.removeprefix("s3-"))
            made = open_s3(S3_BUCKET, f"run/{next(_prefixes)}", options_of(server))
    yield made
    asyncio.run(made.close())
