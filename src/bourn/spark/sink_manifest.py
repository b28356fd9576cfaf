"""The manifest of a batch: which rows go where, in which order, from which positions on.

It is written once, before the first append, and whoever goes on with the batch goes by it:

    {writer}/{batch:012d}/manifest       msgpack of `Manifest`, create-only
    {writer}/{batch:012d}/done           empty: every row is in its stream
    {writer}/{batch:012d}/{part}         rows as `sink_parts` draws them
    {writer}/runs/{number:012d}.{run}    the runs of an exclusive writer, in their order
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from bourn.errors import Damaged, Undecodable

VERSION: Final = 1
MANIFEST: Final = "manifest"
DONE: Final = "done"


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one stream, one behind the other in a part."""

    stream: str
    rows: int
    offset: int
    size_bytes: int
    checksum: int
    large: dict[int, bytes] = {}  # rows without room for a marker, by place here, and their digests


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What a task has staged at once: an object, or the bytes themselves where they are few."""

    key: str
    data: bytes
    regions: tuple[Region, ...]


class StreamPlan(msgspec.Struct, frozen=True, array_like=True):
    """How many rows one stream gets, and where it ended before."""

    name: str
    rows: int
    start: int
    large: dict[int, bytes] = {}  # rows without room for a marker, by their place in the batch


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All of a batch, the parts in the order of their rows."""

    version: int
    writer: str
    run: str
    batch: int
    streams: tuple[StreamPlan, ...]
    parts: tuple[Part, ...]
    marker_name: bytes = b"bourn-sink"  # how its appends are marked, whatever options say later
    has_marker_records: bool = False

    def starting_at(self, starts: Mapping[str, int]) -> "Manifest":
        """Return it with the streams' tails."""
        streams = tuple(
            msgspec.structs.replace(plan, start=starts[plan.name]) for plan in self.streams
        )
        return msgspec.structs.replace(self, streams=streams)

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        return msgspec.msgpack.encode(self)


def make_manifest(
    writer: str,
    run: str,
    batch: int,
    parts: Iterable[Part],
    marking: tuple[bytes, bool] = (b"bourn-sink", False),
) -> Manifest:
    """Return the manifest of parts in the order of their rows, without tails."""
    kept = tuple(parts)
    rows: dict[str, int] = {}
    large: dict[str, dict[int, bytes]] = {}
    for part in kept:
        for region in part.regions:
            before = rows.get(region.stream, 0)
            for row, digest in region.large.items():
                large.setdefault(region.stream, {})[before + row] = digest
            rows[region.stream] = before + region.rows
    streams = tuple(
        StreamPlan(name, count, 0, large.get(name, {})) for name, count in sorted(rows.items())
    )
    return Manifest(VERSION, writer, run, batch, streams, kept, *marking)


def decode_manifest(data: bytes, key: str) -> Manifest:
    """Return the manifest that an object holds; Damaged where it holds none."""
    try:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Damaged(key, f"it is no manifest: {error}") from None
    if manifest.version != VERSION:
        raise Undecodable(f"{key}: a manifest of version {manifest.version} is not known here")
    return manifest


def batch_prefix(writer: str, batch: int) -> str:
    """Return the directory of a batch."""
    return f"{writer}/{batch:012d}/"


def batch_of(writer: str, key: str) -> tuple[int, str] | None:
    """Return batch and name of a writer's key; None for one that is of no batch."""
    directory, _, name = key.removeprefix(f"{writer}/").partition("/")
    return (int(directory), name) if directory.isdecimal() and name else None
