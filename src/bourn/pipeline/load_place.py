"""Finds the files of an import: a file, a directory, or what lies below a prefix of a bucket."""

import asyncio
import os
from functools import partial
from pathlib import Path

from bourn.limits import IMPORT_FETCH_BYTES
from bourn.pipeline.load_source import (
    Source,
    SourceFile,
    choose,
    delta_files,
    fetched_file,
    local_file,
)
from bourn.pipeline.load_stream import TransferRefused
from bourn.pipeline.place import Place


def open_source(place: Place, of: str | None) -> Source:
    """Look what is there; TransferRefused where it is nothing that can be imported. Blocks."""
    return _local(Path(place.place), of) if place.scheme == "file" else _remote(place, of)


def _local(path: Path, of: str | None) -> Source:
    if path.is_file():
        found, _ = choose([path.name], of, str(path))
        return Source(found, [SourceFile(str(path), partial(local_file, path))])
    if not path.is_dir():
        raise TransferRefused(f"{path} is not there")
    names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    found, chosen = choose(names, of, str(path))
    if found == "delta":
        chosen = delta_files(str(path), {})
    files = [SourceFile(name, partial(local_file, path / name)) for name in chosen]
    return Source(found, files)


def _remote(place: Place, of: str | None) -> Source:
    names = asyncio.run(_listed(place))
    if not names:
        raise TransferRefused(f"{place.uri} is not there")
    found, chosen = choose(names, of, place.uri)
    if found == "delta":
        chosen = delta_files(place.uri, place.storage_options)
    files = [
        SourceFile(name, partial(fetched_file, partial(_fetch, place, name))) for name in chosen
    ]
    return Source(found, files)


async def _listed(place: Place) -> list[str]:
    bucket = place.open()
    try:
        return [info.key async for info in bucket.list("")]
    finally:
        await bucket.close()


def _fetch(place: Place, key: str, descriptor: int) -> None:
    asyncio.run(_copy(place, key, descriptor))


async def _copy(place: Place, key: str, descriptor: int) -> None:
    bucket = place.open()
    try:
        at = 0
        while True:
            data = await bucket.get_range(key, at, IMPORT_FETCH_BYTES)
            at += len(data)
            await asyncio.to_thread(_write, descriptor, data)
            if len(data) < IMPORT_FETCH_BYTES:
                return
    finally:
        await bucket.close()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
