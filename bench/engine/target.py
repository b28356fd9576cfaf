"""What nodes are measured on: buckets, each run in a place of its own, and batches to append."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket
from bourn.bucket.stores import RemoteOptions, open_s3
from bourn.engine.node import Node
from bourn.engine.process import tune_process
from bourn.errors import BasinNotFound
from bourn.model.record import Record
from bourn.model.resource import CreateBasin
from bourn.settings import EngineSettings
from bourn.wire.protobuf import encode_append_input
from tests.s3server import NotHere, built_versitygw, moto_server, versity_server

BASIN: Final = "bench-basin"
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class Target(msgspec.Struct, frozen=True):
    """A bucket that a child can open: in its memory, in a directory, or on a server."""

    kind: str
    place: str = ""  # a directory, or the bucket's name
    endpoint: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    def open(self) -> Bucket:
        """Open it."""
        if self.kind == "memory":
            return MemoryBucket()
        if self.kind == "local":
            return LocalBucket(Path(self.place))
        options = RemoteOptions(
            endpoint=self.endpoint,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )
        return open_s3(self.place, "", options)


def s3_server_name() -> str:
    """Which S3 server `serve_s3` runs: the quicker one, where it is there."""
    try:
        built_versitygw()
    except NotHere:
        return "moto"
    return "versitygw"


@contextmanager
def serve_s3(root: Path) -> Iterator[Target]:
    """An S3 server of its own on the loopback, with an empty bucket."""
    served = moto_server() if s3_server_name() == "moto" else versity_server(root)
    with served as server:
        server.make_bucket(BASIN)
        yield Target("s3", BASIN, server.endpoint, server.access_key_id, server.secret_access_key)


@contextmanager
def directory_in(root: Path) -> Iterator[Path]:
    """A directory of its own for one run, gone behind it."""
    root.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def file_system_of(path: Path) -> str:
    """The kind of file system that holds `path`, where the machine tells it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    found = ("", "unknown")
    for line in mounts.read_text(encoding="utf-8").splitlines():
        _, mounted_at, kind, *_ = line.split()
        if path.is_relative_to(mounted_at) and len(mounted_at) >= len(found[0]):
            found = (mounted_at, kind)
    return found[1]


@asynccontextmanager
async def opened_node(
    target: Target, settings: EngineSettings | None = None
) -> AsyncIterator[Node]:
    """A node with the basin of the benchmark; closed behind the block, and the bucket too."""
    bucket = target.open()
    node = await Node.open(bucket, settings, rng=Random(1))
    tune_process()  # as the server does when it begins to serve
    try:
        try:
            await node.basin_config(BASIN)
        except BasinNotFound:
            await node.create_basin(CreateBasin(BASIN))
        yield node
    finally:
        await node.close()
        await bucket.close()


def append_message(records: int, body_bytes: int, seed: int = 0) -> bytes:
    """An append as a client sends it; the bodies do not compress."""
    rng = Random(seed)
    return encode_append_input([Record(rng.randbytes(body_bytes)) for _ in range(records)])
